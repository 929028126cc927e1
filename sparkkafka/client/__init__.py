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
    from sparkkafka.client.group_metadata import GroupMetadata
    from sparkkafka.client.metadata import OffsetAndMetadata, TopicPartition
    from sparkkafka.client.offset_specs import OffsetSpec
    from sparkkafka.client.record import Record, Records
    from sparkkafka.client.results import Results
    from sparkkafka.client.topics import NewPartitions, NewTopic

__all__ = [
    "Admin",
    "AlterConfigOp",
    "ConfigEntry",
    "ConfigResource",
    "Connection",
    "Consumer",
    "Deadline",
    "GroupMetadata",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetSpec",
    "Record",
    "Records",
    "Results",
    "TopicPartition",
]

_MODULES = {
    "Admin": "admin",
    "AlterConfigOp": "configs",
    "ConfigEntry": "configs",
    "ConfigResource": "configs",
    "Connection": "connection",
    "Consumer": "consumer",
    "Deadline": "deadline",
    "GroupMetadata": "group_metadata",
    "NewPartitions": "topics",
    "NewTopic": "topics",
    "OffsetAndMetadata": "metadata",
    "OffsetSpec": "offset_specs",
    "Record": "record",
    "Records": "record",
    "Results": "results",
    "TopicPartition": "metadata",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
