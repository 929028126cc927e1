"""A Kafka client without Spark: `from sparkkafka.client import Admin, Consumer, Producer`.

docs/client.md shows how to use it. Names are imported when they are first used, so that a Spark
task, which takes single modules, does not load them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.client.admin import Admin
    from sparkkafka.client.configs import AlterConfigOp, ConfigEntry, ConfigResource
    from sparkkafka.client.connection import Connection
    from sparkkafka.client.consumer import Consumer
    from sparkkafka.client.deadline import Deadline
    from sparkkafka.client.delivery_notes import (
        Delivery,
        RecordFailure,
        RecordMetadata,
        TableDelivery,
    )
    from sparkkafka.client.group_admin import ConsumerGroupDescription
    from sparkkafka.client.group_metadata import GroupMetadata
    from sparkkafka.client.metadata import OffsetAndMetadata, PartitionInfo, TopicPartition
    from sparkkafka.client.offset_specs import OffsetSpec
    from sparkkafka.client.producer import Producer
    from sparkkafka.client.record import Record, Records
    from sparkkafka.client.results import Listing, Results
    from sparkkafka.client.topic_descriptions import TopicDescription
    from sparkkafka.client.topics import NewPartitions, NewTopic
    from sparkkafka.client.transaction_admin import TransactionDescription

__all__ = [
    "Admin",
    "AlterConfigOp",
    "ConfigEntry",
    "ConfigResource",
    "Connection",
    "Consumer",
    "ConsumerGroupDescription",
    "Deadline",
    "Delivery",
    "GroupMetadata",
    "Listing",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetSpec",
    "PartitionInfo",
    "Producer",
    "Record",
    "RecordFailure",
    "RecordMetadata",
    "Records",
    "Results",
    "TableDelivery",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
]

_MODULES = {
    "Admin": "admin",
    "AlterConfigOp": "configs",
    "ConfigEntry": "configs",
    "ConfigResource": "configs",
    "Connection": "connection",
    "Consumer": "consumer",
    "ConsumerGroupDescription": "group_admin",
    "Deadline": "deadline",
    "Delivery": "delivery_notes",
    "GroupMetadata": "group_metadata",
    "Listing": "results",
    "NewPartitions": "topics",
    "NewTopic": "topics",
    "OffsetAndMetadata": "metadata",
    "OffsetSpec": "offset_specs",
    "PartitionInfo": "metadata",
    "Producer": "producer",
    "Record": "record",
    "RecordFailure": "delivery_notes",
    "RecordMetadata": "delivery_notes",
    "Records": "record",
    "Results": "results",
    "TableDelivery": "delivery_notes",
    "TopicDescription": "topic_descriptions",
    "TopicPartition": "metadata",
    "TransactionDescription": "transaction_admin",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """For completion: also the names that have not been used yet."""
    return sorted({*globals(), *__all__})
