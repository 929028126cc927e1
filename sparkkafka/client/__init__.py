"""A Kafka client without Spark: `from sparkkafka.client import Admin, Consumer, Producer`.

docs/client.md shows how to use it. Names are imported when they are first used, so that a Spark
task, which takes single modules, does not load them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.client.admin.acls import AclBinding, AclBindingFilter
    from sparkkafka.client.admin.admin import Admin
    from sparkkafka.client.admin.brokers import FeatureMetadata, FeatureUpdate
    from sparkkafka.client.admin.groups import (
        ConsumerGroupDescription,
        ShareGroupDescription,
        ShareGroupOffset,
    )
    from sparkkafka.client.admin.quotas import (
        ClientQuotaAlteration,
        ClientQuotaEntity,
        ClientQuotaFilter,
        ClientQuotaFilterComponent,
    )
    from sparkkafka.client.admin.scram import (
        ScramCredentialInfo,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )
    from sparkkafka.client.admin.tokens import DelegationToken
    from sparkkafka.client.admin.topics import (
        NewPartitions,
        NewTopic,
        PartitionReassignment,
        TopicDescription,
    )
    from sparkkafka.client.admin.transactions import TransactionDescription
    from sparkkafka.client.cluster.configs import AlterConfigOp, ConfigEntry, ConfigResource
    from sparkkafka.client.cluster.metadata import PartitionInfo
    from sparkkafka.client.cluster.offsets import OffsetSpec
    from sparkkafka.client.consumer.consumer import Consumer
    from sparkkafka.client.consumer.record import DamagedRecord, Record, Records
    from sparkkafka.client.deadline import Deadline
    from sparkkafka.client.group.committed_offsets import GroupMetadata
    from sparkkafka.client.net.connection import Connection
    from sparkkafka.client.producer.futures import (
        Delivery,
        RecordFailure,
        RecordMetadata,
        TableDelivery,
    )
    from sparkkafka.client.producer.producer import Producer
    from sparkkafka.client.share.acknowledgements import AcknowledgeType, ShareRecord
    from sparkkafka.client.share.share_consumer import ShareConsumer
    from sparkkafka.client.values import (
        LagInfo,
        Listing,
        OffsetAndMetadata,
        Results,
        TopicPartition,
    )

__all__ = [
    "AcknowledgeType",
    "AclBinding",
    "AclBindingFilter",
    "Admin",
    "AlterConfigOp",
    "ClientQuotaAlteration",
    "ClientQuotaEntity",
    "ClientQuotaFilter",
    "ClientQuotaFilterComponent",
    "ConfigEntry",
    "ConfigResource",
    "Connection",
    "Consumer",
    "ConsumerGroupDescription",
    "DamagedRecord",
    "Deadline",
    "DelegationToken",
    "Delivery",
    "FeatureMetadata",
    "FeatureUpdate",
    "GroupMetadata",
    "LagInfo",
    "Listing",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetSpec",
    "PartitionInfo",
    "PartitionReassignment",
    "Producer",
    "Record",
    "RecordFailure",
    "RecordMetadata",
    "Records",
    "Results",
    "ScramCredentialInfo",
    "ShareConsumer",
    "ShareGroupDescription",
    "ShareGroupOffset",
    "ShareRecord",
    "TableDelivery",
    "TopicDescription",
    "TopicPartition",
    "TransactionDescription",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]

_MODULES = {
    "admin.acls": "AclBinding AclBindingFilter",
    "admin.admin": "Admin",
    "admin.brokers": "FeatureMetadata FeatureUpdate",
    "admin.groups": "ConsumerGroupDescription ShareGroupDescription ShareGroupOffset",
    "admin.quotas": "ClientQuotaAlteration ClientQuotaEntity ClientQuotaFilter "
    "ClientQuotaFilterComponent",
    "admin.scram": "ScramCredentialInfo UserScramCredentialDeletion UserScramCredentialUpsertion",
    "admin.tokens": "DelegationToken",
    "admin.topics": "NewPartitions NewTopic PartitionReassignment TopicDescription",
    "admin.transactions": "TransactionDescription",
    "cluster.configs": "AlterConfigOp ConfigEntry ConfigResource",
    "cluster.offsets": "OffsetSpec",
    "cluster.metadata": "PartitionInfo",
    "consumer.consumer": "Consumer",
    "consumer.record": "DamagedRecord Record Records",
    "deadline": "Deadline",
    "group.committed_offsets": "GroupMetadata",
    "net.connection": "Connection",
    "producer.futures": "Delivery RecordFailure RecordMetadata TableDelivery",
    "producer.producer": "Producer",
    "share.acknowledgements": "AcknowledgeType ShareRecord",
    "share.share_consumer": "ShareConsumer",
    "values": "LagInfo Listing OffsetAndMetadata Results TopicPartition",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name.startswith("Async"):  # an import would not show the message of an AttributeError
        return getattr(import_module(f"{__name__}.aio"), name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    """Return all public names for completion, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
