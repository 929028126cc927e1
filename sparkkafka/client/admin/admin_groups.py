"""Admin's calls about consumer groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkkafka.client.admin import group_offsets, listings
from sparkkafka.client.admin import groups as group_calls
from sparkkafka.client.admin.admin_base import AdminBase
from sparkkafka.client.admin.groups import ConsumerGroupDescription
from sparkkafka.client.admin.listings import GroupListing
from sparkkafka.client.arguments import flag, names, one_name
from sparkkafka.client.cluster.results import Listing, Results
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition


class AdminGroups(AdminBase):
    """See `Admin`."""

    def list_consumer_groups(
        self,
        *,
        states: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Listing[GroupListing]:
        """The consumer groups of all brokers, perhaps only those in some states (Stable, Empty, …;
        Kafka 2.6) or of some types (classic, consumer; Kafka 3.8).

        A broker that fails is in `errors`, and what it coordinates is missing. Raises the error
        that all brokers have in common, OptionError for a state or type that is none.
        """
        states = None if states is None else names(states, "states")
        types = None if types is None else names(types, "types")
        with self._call(timeout_s) as (cluster, deadline):
            return listings.list_consumer_groups(cluster, deadline, states=states, types=types)

    def describe_consumer_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ConsumerGroupDescription]:
        """State and members with their partitions, of groups of either protocol. By group id.

        A group that does not exist is a BrokerError GROUP_ID_NOT_FOUND.
        """
        flag(include_authorized_operations, "include_authorized_operations")
        chosen = names(group_ids, "group_ids")
        with self._call(timeout_s) as (cluster, deadline):
            return group_calls.describe_consumer_groups(
                cluster,
                chosen,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )

    def describe_consumer_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescription:
        """One group; its error is raised."""
        return self.describe_consumer_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_consumer_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete groups without members, with all their offsets. By group id.

        Errors of items: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on.
        """
        chosen = names(group_ids, "group_ids")
        with self._call(timeout_s) as (cluster, deadline):
            return group_calls.delete_consumer_groups(cluster, chosen, deadline)

    def list_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets: all, or those of `partitions` (None: it has none).

        `require_stable` waits for open transactions that are about to change them. Raises
        KafkaError if all are asked for and the coordinator does not tell.
        """
        one_name(group_id, "group_id")
        with self._call(timeout_s) as (cluster, deadline):
            return group_offsets.list_consumer_group_offsets(
                cluster, group_id, partitions, deadline, require_stable=require_stable
            )

    def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Set where a group goes on reading. The group is made if need be, and has no members.

        Errors of items: UNKNOWN_MEMBER_ID if it has members, UnknownTopicError, and so on. Raises
        OptionError for a negative offset.
        """
        one_name(group_id, "group_id")
        with self._call(timeout_s) as (cluster, deadline):
            return group_offsets.alter_consumer_group_offsets(cluster, group_id, offsets, deadline)

    def delete_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Delete committed offsets of a group.

        Errors of items: GROUP_SUBSCRIBED_TO_TOPIC while members subscribe to the topic,
        GROUP_ID_NOT_FOUND, UnsupportedVersionError before Kafka 2.4, and so on.
        """
        one_name(group_id, "group_id")
        with self._call(timeout_s) as (cluster, deadline):
            return group_offsets.delete_consumer_group_offsets(
                cluster, group_id, partitions, deadline
            )

    def remove_members_from_consumer_group(
        self,
        group_id: str,
        instance_ids: Iterable[str] | None,
        *,
        reason: str = "",
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Remove static members by their group.instance.id (KIP-345); None removes all members,
        and the results are by member id then.

        A consumer that still runs joins again, static or not: stop it first. Errors of items:
        UNKNOWN_MEMBER_ID, UnsupportedVersionError before Kafka 2.4, and so on.
        """
        chosen = None if instance_ids is None else names(instance_ids, "instance_ids")
        one_name(group_id, "group_id")
        one_name(reason, "reason")
        with self._call(timeout_s) as (cluster, deadline):
            return group_calls.remove_members_from_consumer_group(
                cluster, group_id, chosen, deadline, reason=reason
            )
