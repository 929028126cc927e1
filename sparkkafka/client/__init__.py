"""A Kafka client without Spark: `from sparkkafka.client import Admin, Consumer, Producer`.

docs/client.md shows how to use it. Names are imported when they are first used, so that a Spark
task, which takes single modules, does not load them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.client.admin.acls import AclBinding as AclBinding
    from sparkkafka.client.admin.acls import AclBindingFilter as AclBindingFilter
    from sparkkafka.client.admin.admin import Admin as Admin
    from sparkkafka.client.admin.brokers import FeatureMetadata as FeatureMetadata
    from sparkkafka.client.admin.brokers import FeatureUpdate as FeatureUpdate
    from sparkkafka.client.admin.groups import ConsumerGroupDescription as ConsumerGroupDescription
    from sparkkafka.client.admin.groups import ShareGroupDescription as ShareGroupDescription
    from sparkkafka.client.admin.groups import ShareGroupOffset as ShareGroupOffset
    from sparkkafka.client.admin.quotas import ClientQuotaAlteration as ClientQuotaAlteration
    from sparkkafka.client.admin.quotas import ClientQuotaEntity as ClientQuotaEntity
    from sparkkafka.client.admin.quotas import ClientQuotaFilter as ClientQuotaFilter
    from sparkkafka.client.admin.quotas import (
        ClientQuotaFilterComponent as ClientQuotaFilterComponent,
    )
    from sparkkafka.client.admin.scram import ScramCredentialInfo as ScramCredentialInfo
    from sparkkafka.client.admin.scram import (
        UserScramCredentialDeletion as UserScramCredentialDeletion,
    )
    from sparkkafka.client.admin.scram import (
        UserScramCredentialUpsertion as UserScramCredentialUpsertion,
    )
    from sparkkafka.client.admin.tokens import DelegationToken as DelegationToken
    from sparkkafka.client.admin.topics import NewPartitions as NewPartitions
    from sparkkafka.client.admin.topics import NewTopic as NewTopic
    from sparkkafka.client.admin.topics import PartitionReassignment as PartitionReassignment
    from sparkkafka.client.admin.topics import TopicDescription as TopicDescription
    from sparkkafka.client.admin.transactions import (
        TransactionDescription as TransactionDescription,
    )
    from sparkkafka.client.cluster.configs import AlterConfigOp as AlterConfigOp
    from sparkkafka.client.cluster.configs import ConfigEntry as ConfigEntry
    from sparkkafka.client.cluster.configs import ConfigResource as ConfigResource
    from sparkkafka.client.cluster.metadata import PartitionInfo as PartitionInfo
    from sparkkafka.client.cluster.offsets import OffsetSpec as OffsetSpec
    from sparkkafka.client.consumer.consumer import Consumer as Consumer
    from sparkkafka.client.consumer.record import DamagedRecord as DamagedRecord
    from sparkkafka.client.consumer.record import Record as Record
    from sparkkafka.client.consumer.record import Records as Records
    from sparkkafka.client.deadline import Deadline as Deadline
    from sparkkafka.client.group.committed_offsets import GroupMetadata as GroupMetadata
    from sparkkafka.client.net.connection import Connection as Connection
    from sparkkafka.client.producer.futures import Delivery as Delivery
    from sparkkafka.client.producer.futures import RecordFailure as RecordFailure
    from sparkkafka.client.producer.futures import RecordMetadata as RecordMetadata
    from sparkkafka.client.producer.futures import TableDelivery as TableDelivery
    from sparkkafka.client.producer.producer import Producer as Producer
    from sparkkafka.client.share import AcknowledgeType as AcknowledgeType
    from sparkkafka.client.share import ShareConsumer as ShareConsumer
    from sparkkafka.client.share import ShareRecord as ShareRecord
    from sparkkafka.client.values import LagInfo as LagInfo
    from sparkkafka.client.values import Listing as Listing
    from sparkkafka.client.values import OffsetAndMetadata as OffsetAndMetadata
    from sparkkafka.client.values import Results as Results
    from sparkkafka.client.values import TopicPartition as TopicPartition


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
    "share": "AcknowledgeType ShareConsumer ShareRecord",
    "values": "LagInfo Listing OffsetAndMetadata Results TopicPartition",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


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
