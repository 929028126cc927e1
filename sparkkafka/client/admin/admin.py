"""Admin: topics, settings, groups, offsets, transactions, users, ACLs, quotas and the cluster.

The calls about each subject are in the module beside this one that is named after it; those whose
requests other clients send, too, are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import isfunction

from sparkkafka.client.admin.acls import AclAdmin
from sparkkafka.client.admin.brokers import ClusterAdmin
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.admin.groups import GroupAdmin
from sparkkafka.client.admin.quotas import QuotaAdmin
from sparkkafka.client.admin.scram import ScramAdmin
from sparkkafka.client.admin.tokens import TokenAdmin
from sparkkafka.client.admin.topics import TopicAdmin
from sparkkafka.client.admin.transactions import TransactionAdmin
from sparkkafka.client.cluster import configs, offsets
from sparkkafka.client.cluster.configs import ConfigChanges, ConfigEntry, ConfigResource
from sparkkafka.client.cluster.offsets import ListedOffset, OffsetSpec
from sparkkafka.client.values import Results, TopicPartition


class Admin(
    TopicAdmin,
    GroupAdmin,
    TransactionAdmin,
    AclAdmin,
    ScramAdmin,
    TokenAdmin,
    QuotaAdmin,
    ClusterAdmin,
):
    """Administers a Kafka cluster. The names are those of Java's Admin in snake_case.

        with Admin({"bootstrap.servers": "broker:9092"}) as admin:
            admin.create_topics([NewTopic("orders", partitions=6)]).all()
            admin.describe_topic("orders").partitions[0].leader

    `config` has Kafka's settings by their names (bootstrap.servers, security.protocol, …). Nothing
    is on the network before the first call.

    A call on several items returns `Results`: each item has its value, or an error of its own,
    which is raised only when the item is read: `.all()` returns all values or raises the first
    error, `[item]` returns one value or raises its error, `.errors` has the errors. Lists of
    groups and transactions are a `Listing`, with the errors of brokers that did not answer.

    Each call waits at most `timeout_s`, by default default.api.timeout.ms, and retries failures
    that may pass until then: a moved leader, controller or coordinator, a broken connection, a
    broker that starts. If a response is lost, the retry counts what the first attempt has done as
    success. Errors are KafkaErrors: BrokerError with Kafka's code, and the ACL to grant if the
    request was denied; KafkaTimeoutError with the last failure; OptionError for a bad argument,
    before anything is sent.

    Several threads may use one Admin; their calls wait for each other.
    """

    def list_config_resources(
        self, types: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> list[ConfigResource]:
        """List what has settings: topics, brokers, groups, … (Kafka 4.1), sorted. `types` limits
        it to these, such as ["group"]: groups with settings of their own. Raises OptionError for
        an invalid type."""
        with self._call(timeout_s) as (cluster, deadline):
            return configs.list_config_resources(cluster, types, deadline)

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Iterable[str] | None = None,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout_s: float | None = None,
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """Describe the settings of each resource, by name: all, or those of `keys` that it has.
        Raises OptionError for an invalid resource."""
        with self._call(timeout_s) as (cluster, deadline):
            return configs.describe_configs(
                cluster,
                resources,
                deadline,
                keys=keys,
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )

    def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, ConfigChanges],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[ConfigResource, None]:
        """Change some settings of each resource and leave the others: {name: value, or None for the
        default}, or a list of AlterConfigOp. All changes of a resource are made, or none.

        Errors of items: INVALID_CONFIG, UnsupportedVersionError before Kafka 2.3, and so on.
        Raises OptionError for an invalid change.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return configs.incremental_alter_configs(
                cluster, changes, deadline, validate_only=validate_only
            )

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, ListedOffset]:
        """List the offset that each partition's spec selects, -1 if there is no such record. With
        isolation_level="read_committed" the latest is where the first open transaction begins."""
        with self._call(timeout_s) as (cluster, deadline):
            return offsets.list_offsets_each(
                cluster, specs, deadline, isolation_level=isolation_level
            )


for _base in Admin.__mro__:
    if issubclass(_base, AdminCalls):
        for _name, _member in vars(_base).items():
            if isfunction(_member):  # a TypeError about its arguments names it
                _member.__qualname__ = f"Admin.{_name}"
