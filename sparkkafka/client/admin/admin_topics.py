"""Admin's calls about topics, their settings, records and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkkafka.client.admin import record_deletion, topic_descriptions, topics
from sparkkafka.client.admin.admin_base import AdminBase
from sparkkafka.client.admin.topic_descriptions import TopicDescription, TopicListing
from sparkkafka.client.admin.topics import NewPartitions, NewTopic
from sparkkafka.client.arguments import flag, names
from sparkkafka.client.cluster import configs, offset_specs
from sparkkafka.client.cluster.configs import ConfigChanges, ConfigEntry, ConfigResource
from sparkkafka.client.cluster.offset_specs import OffsetSpec
from sparkkafka.client.cluster.offsets import ListedOffset
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.values import TopicPartition


class AdminTopics(AdminBase):
    """See `Admin`."""

    # --- topics -----------------------------------------------------------------------------------

    def create_topics(
        self,
        new_topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Create topics and wait until all their partitions have leaders. By topic name.

        `validate_only` creates nothing and tells whether it would work. Errors of items:
        TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, and so on. Raises
        OptionError for a name that is given twice.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return topics.create_topics(cluster, new_topics, deadline, validate_only=validate_only)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = topics.BROKER_DEFAULT,
        replication_factor: int = topics.BROKER_DEFAULT,
        configs: Mapping[str, topics.ConfigValue] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Create one topic; its error is raised. Numbers left out are the broker's defaults."""
        new = NewTopic(
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs={} if configs is None else configs,
        )
        self.create_topics([new], timeout_s=timeout_s).all()

    def delete_topics(
        self, topic_names: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete topics and wait until brokers no longer show them. By topic name.

        Errors of items: UnknownTopicError, TOPIC_DELETION_DISABLED, and so on.
        """
        chosen = names(topic_names, "topic_names")
        with self._call(timeout_s) as (cluster, deadline):
            return topics.delete_topics(cluster, chosen, deadline)

    def delete_topic(self, name: str, *, timeout_s: float | None = None) -> None:
        """Delete one topic; its error is raised."""
        self.delete_topics([name], timeout_s=timeout_s).all()

    def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Give topics more partitions and wait until all have leaders. By topic name.

        `totals` says how many each shall have in all; keys keep their partitions no longer then.
        Errors of items: INVALID_PARTITIONS if there are as many already, UnknownTopicError, …
        """
        with self._call(timeout_s) as (cluster, deadline):
            return topics.create_partitions(cluster, totals, deadline, validate_only=validate_only)

    def describe_topics(
        self,
        topic_names: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, TopicDescription]:
        """Partitions with leaders, replicas, replicas in sync. By topic name.

        A topic that does not exist is an UnknownTopicError at once.
        """
        flag(include_authorized_operations, "include_authorized_operations")
        chosen = names(topic_names, "topic_names")
        with self._call(timeout_s) as (cluster, deadline):
            return topic_descriptions.describe_topics(
                cluster,
                chosen,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )

    def describe_topic(self, name: str, *, timeout_s: float | None = None) -> TopicDescription:
        """One topic; its error is raised."""
        return self.describe_topics([name], timeout_s=timeout_s)[name]

    def list_topics(
        self, *, include_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicListing]:
        """All topics that this user may see, by name, in order. Raises KafkaError."""
        flag(include_internal, "include_internal")
        with self._call(timeout_s) as (cluster, deadline):
            return topic_descriptions.list_topics(
                cluster, deadline, include_internal=include_internal
            )

    # --- settings ---------------------------------------------------------------------------------

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Iterable[str] | None = None,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout_s: float | None = None,
    ) -> Results[ConfigResource, dict[str, ConfigEntry]]:
        """Settings by name, of each resource: all, or those of `keys` that it has.

            resource = ConfigResource("topic", "orders")
            admin.describe_configs([resource])[resource]["retention.ms"].value

        Raises OptionError for a resource that cannot be one.
        """
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
        """Change some settings of each resource, all of them or none, and leave the others.

            orders = ConfigResource("topic", "orders")
            admin.incremental_alter_configs({orders: {"retention.ms": "3600000"}}).all()
            admin.incremental_alter_configs({orders: {"retention.ms": None}}).all()   # the default
            more = AlterConfigOp("cleanup.policy", "compact", "append")
            admin.incremental_alter_configs({orders: [more]}).all()

        Errors of items: INVALID_CONFIG, UnsupportedVersionError before Kafka 2.3, and so on.
        Raises OptionError for what cannot be a change.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return configs.incremental_alter_configs(
                cluster, changes, deadline, validate_only=validate_only
            )

    # --- records and offsets ----------------------------------------------------------------------

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, int]:
        """Delete the records before an offset; the value is the first offset that is left.

        -1 deletes all that the partition has at this moment. Errors of items: OFFSET_OUT_OF_RANGE
        beyond the end, POLICY_VIOLATION for a compacted topic, and so on.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return record_deletion.delete_records(cluster, before, deadline)

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, ListedOffset]:
        """The offset that each partition's spec asks for, -1 if there is no such record.

            admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.latest()})

        With isolation_level="read_committed" the latest offset is where the first open
        transaction begins.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return offset_specs.list_offsets(
                cluster, specs, deadline, isolation_level=isolation_level
            )
