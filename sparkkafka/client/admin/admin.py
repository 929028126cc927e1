"""Admin: topics, settings, groups, offsets, transactions, users, ACLs, quotas and the cluster.

Each method takes the lock and a deadline. A module beside this one checks the arguments and sends
the requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from sparkkafka.client.admin import (
    acls,
    groups,
    quotas,
    scram,
    share_groups,
    tokens,
    topics,
    transactions,
)
from sparkkafka.client.admin import brokers as broker_calls
from sparkkafka.client.admin import partitions as partition_calls
from sparkkafka.client.admin.acls import AclBinding, AclBindingFilter
from sparkkafka.client.admin.brokers import (
    ClusterDescription,
    FeatureMetadata,
    FeatureUpdate,
    LogDirDescription,
)
from sparkkafka.client.admin.groups import ConsumerGroupDescription, GroupListing
from sparkkafka.client.admin.partitions import NewPartitions, PartitionReassignment
from sparkkafka.client.admin.scram import ScramCredentialInfo
from sparkkafka.client.admin.share_groups import ShareGroupDescription, ShareGroupOffset
from sparkkafka.client.admin.tokens import DelegationToken
from sparkkafka.client.admin.topics import NewTopic, TopicDescription, TopicListing
from sparkkafka.client.arguments import NotPickled
from sparkkafka.client.cluster import configs, offsets
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import ConfigChanges, ConfigEntry, ConfigResource
from sparkkafka.client.cluster.offsets import ListedOffset, OffsetSpec
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.group import committed_offsets
from sparkkafka.client.metrics import Metrics, NetworkMetrics
from sparkkafka.client.net.connecting import address_text
from sparkkafka.client.values import Listing, OffsetAndMetadata, Results, TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import KafkaError


class Admin(NotPickled):
    """Administers a Kafka cluster. The names are those of Java's Admin in snake_case.

        with Admin({"bootstrap.servers": "broker:9092"}) as admin:
            admin.create_topics([NewTopic("orders", partitions=6)]).all()
            admin.describe_topic("orders").partitions[0].leader

    `config` has Kafka's settings by their names (bootstrap.servers, security.protocol, …). Nothing
    is on the network before the first call.

    A call on several items returns `Results`: each item has its value, or an error of its own,
    which is raised only when the item is read: `.all()` returns all values or raises the first
    error, `[item]` returns one value or raises its error, `.errors` has the errors. "By topic name"
    in a method's description says what the items are. Lists of groups and transactions are a
    `Listing`, with the errors of brokers that did not answer beside it.

    Each call waits at most `timeout_s`, by default default.api.timeout.ms, and retries failures
    that may pass until then: a moved leader, controller or coordinator, a broken connection, a
    broker that starts. If a response is lost, the retry counts what the first attempt has done as
    success. Errors are KafkaErrors: BrokerError with Kafka's code, and the ACL to grant if the
    request was denied; KafkaTimeoutError with the last failure; OptionError for a bad argument,
    before anything is sent.

    Several threads may use one Admin; their calls wait for each other.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises OptionError for a setting that is missing, unknown or has a bad value."""
        self._metrics = NetworkMetrics()
        self._cluster = Cluster(parse_admin_settings(config), metrics=self._metrics)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        servers = ",".join(
            address_text(host, port) for host, port in self._cluster.options.bootstrap_servers
        )
        return f"<Admin {servers}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Close the connections, after a call that another thread is in. May be called again."""
        with self._lock:
            self._closed = True
            self._cluster.close()

    def metrics(self) -> Metrics:
        """Return requests, bytes and connections under Kafka's names; see `Consumer.metrics`."""
        with self._metrics.lock:
            return {"admin-client-metrics": self._metrics.figures(time.monotonic())}

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        """Take the lock, so that calls of other threads wait, and yield the cluster and the call's
        deadline. Raises KafkaError if this Admin is closed."""
        with self._lock:
            if self._closed:
                raise KafkaError("this Admin is closed: make a new one")
            yield self._cluster, deadline_of(timeout_s) or self._cluster.deadline()

    # --- topics, settings, records

    def create_topics(
        self,
        new_topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Create topics and wait until all their partitions have leaders. By topic name.

        `validate_only` creates nothing, it only checks. Errors of items: TOPIC_ALREADY_EXISTS,
        INVALID_REPLICATION_FACTOR, INVALID_CONFIG, … OptionError for a name that is there twice.
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
        configs = {} if configs is None else configs
        new = NewTopic(name, partitions, replication_factor, configs=configs)
        self.create_topics([new], timeout_s=timeout_s).all()

    def delete_topics(
        self, topic_names: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete topics and wait until brokers no longer show them. By topic name. Errors of items:
        UnknownTopicError, TOPIC_DELETION_DISABLED, and so on."""
        with self._call(timeout_s) as (cluster, deadline):
            return topics.delete_topics(cluster, topic_names, deadline)

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

        `totals` has the new total of each topic. Keys may then go to other partitions than before.
        Errors of items: INVALID_PARTITIONS if there are as many already, UnknownTopicError, …
        """
        with self._call(timeout_s) as (cluster, deadline):
            return partition_calls.create_partitions(
                cluster, totals, deadline, validate_only=validate_only
            )

    def describe_topics(
        self,
        topic_names: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, TopicDescription]:
        """Describe topics: partitions with leaders, replicas and in-sync replicas. By topic name. A
        topic that does not exist is an UnknownTopicError, without a wait."""
        with self._call(timeout_s) as (cluster, deadline):
            return topics.describe_topics(
                cluster,
                topic_names,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )

    def describe_topic(self, name: str, *, timeout_s: float | None = None) -> TopicDescription:
        """Describe one topic; its error is raised."""
        return self.describe_topics([name], timeout_s=timeout_s)[name]

    def list_topics(
        self, *, include_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicListing]:
        """List all topics that this user may see, sorted by name. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return topics.list_topics(cluster, deadline, include_internal=include_internal)

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

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, int]:
        """Delete the records before an offset (-1: all that exist now) in each partition. The value
        is the first offset that is left. Errors of items: OFFSET_OUT_OF_RANGE beyond the end,
        POLICY_VIOLATION if compacted, …"""
        with self._call(timeout_s) as (cluster, deadline):
            return partition_calls.delete_records(cluster, before, deadline)

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

    def list_groups(
        self,
        *,
        states: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Listing[GroupListing]:
        """List groups of all kinds (KIP-1043): as `list_consumer_groups`, and share groups,
        Streams' and Connect's. `types` are classic, consumer, share and streams."""
        with self._call(timeout_s) as (cluster, deadline):
            return groups.list_groups(cluster, deadline, states=states, types=types)

    def list_consumer_groups(
        self,
        *,
        states: Iterable[str] | None = None,
        types: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Listing[GroupListing]:
        """List the consumer groups of all brokers, or only those in some states (Stable, Empty, …;
        Kafka 2.6) or of some types (classic, consumer; Kafka 3.8).

        A broker that fails is in `errors`, and what it coordinates is missing. Raises KafkaError if
        all brokers fail, OptionError for an unknown state or type.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return groups.list_consumer_groups(cluster, deadline, states=states, types=types)

    def describe_consumer_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ConsumerGroupDescription]:
        """Describe groups of either protocol: state, and members with their partitions. By group
        id. A group that does not exist is a BrokerError GROUP_ID_NOT_FOUND."""
        with self._call(timeout_s) as (cluster, deadline):
            return groups.describe_consumer_groups(
                cluster,
                group_ids,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )

    def describe_consumer_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescription:
        """Describe one group; its error is raised."""
        return self.describe_consumer_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_consumer_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete groups without members, with all their offsets. By group id. Errors of items:
        NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on."""
        with self._call(timeout_s) as (cluster, deadline):
            return groups.delete_consumer_groups(cluster, group_ids, deadline)

    def list_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, OffsetAndMetadata | None]:
        """List the group's committed offsets: all, or those of `partitions` (None: it has none).
        `require_stable` waits for open transactions that are about to change them. Raises
        KafkaError if `partitions` is None and the coordinator does not answer."""
        with self._call(timeout_s) as (cluster, deadline):
            return committed_offsets.list_consumer_group_offsets(
                cluster, group_id, partitions, deadline, require_stable=require_stable
            )

    def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Set the offsets from which a group resumes reading. It must have no members; if it does
        not exist, it is created. Errors of items: UNKNOWN_MEMBER_ID if it has members,
        UnknownTopicError, and so on. Raises OptionError for a negative offset."""
        with self._call(timeout_s) as (cluster, deadline):
            return committed_offsets.alter_consumer_group_offsets(
                cluster, group_id, offsets, deadline
            )

    def delete_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Delete committed offsets of a group. Errors of items: GROUP_SUBSCRIBED_TO_TOPIC while
        members subscribe to the topic, UnsupportedVersionError before Kafka 2.4, and so on."""
        with self._call(timeout_s) as (cluster, deadline):
            return committed_offsets.delete_consumer_group_offsets(
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
        with self._call(timeout_s) as (cluster, deadline):
            return groups.remove_members_from_consumer_group(
                cluster, group_id, instance_ids, deadline, reason=reason
            )

    def list_share_groups(
        self, *, states: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Listing[GroupListing]:
        """List the share groups of all brokers, or only those in some states (Stable, Empty).
        Share groups need Kafka 4.1.

        A broker that fails is in `errors`, and what it coordinates is missing. Raises KafkaError if
        all brokers fail, OptionError for an unknown state.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return share_groups.list_share_groups(cluster, deadline, states=states)

    def describe_share_groups(
        self,
        group_ids: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, ShareGroupDescription]:
        """Describe share groups: state, and members with their partitions. By group id. A group
        that does not exist, or is of another kind, is a BrokerError GROUP_ID_NOT_FOUND."""
        with self._call(timeout_s) as (cluster, deadline):
            return share_groups.describe_share_groups(
                cluster,
                group_ids,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )

    def describe_share_group(
        self, group_id: str, *, timeout_s: float | None = None
    ) -> ShareGroupDescription:
        """Describe one group; its error is raised."""
        return self.describe_share_groups([group_id], timeout_s=timeout_s)[group_id]

    def delete_share_groups(
        self, group_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete groups without members, with all their offsets. By group id. Errors of
        items: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, and so on."""
        return self.delete_consumer_groups(group_ids, timeout_s=timeout_s)

    def list_share_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, ShareGroupOffset | None]:
        """List the group's offsets: in all partitions that it has read, or in `partitions` (None:
        it has not begun there). Raises KafkaError if the group does not exist or cannot be read."""
        with self._call(timeout_s) as (cluster, deadline):
            return share_groups.list_share_group_offsets(cluster, group_id, partitions, deadline)

    def alter_share_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Set the offsets from which a group resumes reading; it must exist and have no members.
        Errors of items: NON_EMPTY_GROUP, UnknownTopicError, … Raises OptionError for a negative
        offset."""
        with self._call(timeout_s) as (cluster, deadline):
            return share_groups.alter_share_group_offsets(cluster, group_id, offsets, deadline)

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Delete the offsets of topics in a group without members: it then begins as in new topics.
        By topic. Errors of items: NON_EMPTY_GROUP, UnknownTopicError, and so on."""
        with self._call(timeout_s) as (cluster, deadline):
            return share_groups.delete_share_group_offsets(cluster, group_id, topics, deadline)

    def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        open_for_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        timeout_s: float | None = None,
    ) -> Listing[transactions.TransactionListing]:
        """List the transactional ids of all brokers (Kafka 3.0): those in some states (Ongoing,
        Empty, …), of some producer ids, whose transaction is open for longer than `open_for_ms`
        (Kafka 3.8), or that a regular expression of RE2 matches as a whole (Kafka 4.1).

        `open_for_ms` leaves out transactions that are not open (Empty, CompleteCommit, …); brokers,
        and so other clients, list these too.

        A broker that fails is in `errors`. Raises KafkaError if all brokers fail.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return transactions.list_transactions(
                cluster,
                deadline,
                states=states,
                producer_ids=producer_ids,
                open_for_ms=open_for_ms,
                transactional_id_pattern=transactional_id_pattern,
            )

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, transactions.TransactionDescription]:
        """Describe transactions: state, producer, age and partitions (Kafka 3.0). By transactional
        id. One that is not known is a BrokerError TRANSACTIONAL_ID_NOT_FOUND."""
        with self._call(timeout_s) as (cluster, deadline):
            return transactions.describe_transactions(cluster, transactional_ids, deadline)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> Results[TopicPartition, tuple[transactions.ProducerState, ...]]:
        """Describe the producers that each partition's leader knows, and the offset since which
        their transactions are open (Kafka 2.8)."""
        with self._call(timeout_s) as (cluster, deadline):
            return transactions.describe_producers(cluster, partitions, deadline)

    def abort_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout_s: float | None = None
    ) -> transactions.ProducerState:
        """Abort the transaction that is open in a partition since `start_offset`, as
        `describe_producers` returns it. Returns the producer whose transaction it was.

        This is for a hanging transaction, which blocks readers with read_committed and which its
        coordinator no longer knows: the leader writes an abort marker into this partition without a
        request to the coordinator. A transaction that is still in progress would be aborted in this
        partition only, and may be committed in others: use `fence_producers` for it. Raises
        BrokerError INVALID_TXN_STATE if no open transaction began there, other KafkaErrors.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return transactions.abort_transaction(cluster, partition, start_offset, deadline)

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, transactions.FencedProducer]:
        """Fence the producers with these ids, and abort their open transactions. By
        transactional id."""
        with self._call(timeout_s) as (cluster, deadline):
            return transactions.fence_producers(cluster, transactional_ids, deadline)

    def describe_acls(
        self, acl_filter: AclBindingFilter = acls.ALL, *, timeout_s: float | None = None
    ) -> list[AclBinding]:
        """List the ACLs that a filter matches, or all, sorted. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return acls.describe_acls(cluster, acl_filter, deadline)

    def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout_s: float | None = None
    ) -> Results[AclBinding, None]:
        """Create ACLs. One that exists already is no error; brokers obey them a moment later.
        Errors of items: SECURITY_DISABLED, … Raises OptionError for what cannot be an ACL."""
        with self._call(timeout_s) as (cluster, deadline):
            return acls.create_acls(cluster, bindings, deadline)

    def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout_s: float | None = None
    ) -> Results[AclBindingFilter, list[AclBinding]]:
        """Delete all ACLs that each filter matches. By filter: the deleted ACLs, without those of
        an attempt whose response was lost, or an error if one was not deleted. Raises
        OptionError."""
        with self._call(timeout_s) as (cluster, deadline):
            return acls.delete_acls(cluster, filters, deadline)

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> Results[str, tuple[ScramCredentialInfo, ...]]:
        """Return mechanism and iterations of each user's SCRAM passwords (Kafka 2.7).

        `users` None: of all users that have one; a failure then raises KafkaError. A named user
        without a password has the error RESOURCE_NOT_FOUND."""
        with self._call(timeout_s) as (cluster, deadline):
            return scram.describe_user_scram_credentials(cluster, users, deadline)

    def alter_user_scram_credentials(
        self, alterations: Iterable[scram.Alteration], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Set passwords (UserScramCredentialUpsertion), salted here, and delete them
        (UserScramCredentialDeletion). By user.

        Errors of items: RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, … of the first change that
        failed. Raises OptionError, also for a reference that is not there.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return scram.alter_user_scram_credentials(cluster, alterations, deadline)

    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> DelegationToken:
        """Create a delegation token for this user, or for an owner (User:alice; Kafka 3.3, needs
        CREATE_TOKENS on the user). `renewers` may renew it beside its owner. It ends for good after
        `max_lifetime_ms` (None: delegation.token.max.lifetime.ms of the brokers).

        Raises OptionError, and KafkaError: DELEGATION_TOKEN_AUTH_DISABLED,
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for a connection without a login, …
        """
        with self._call(timeout_s) as (cluster, deadline):
            return tokens.create_delegation_token(
                cluster, deadline, owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms
            )

    def renew_delegation_token(
        self,
        token: DelegationToken,
        *,
        renew_period_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Extend a token to `renew_period_ms` from now (None: delegation.token.expiry.time.ms of
        the brokers), but not beyond its `max_timestamp_ms`. Returns when it ends, ms since 1970.
        Raises KafkaError: DELEGATION_TOKEN_EXPIRED, …"""
        with self._call(timeout_s) as (cluster, deadline):
            return tokens.renew_delegation_token(
                cluster, token, deadline, renew_period_ms=renew_period_ms
            )

    def expire_delegation_token(
        self,
        token: DelegationToken,
        *,
        expiry_period_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """End a token: after `expiry_period_ms`, or (None) now. Returns when it ends, ms since
        1970. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return tokens.expire_delegation_token(
                cluster, token, deadline, expiry_period_ms=expiry_period_ms
            )

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> list[DelegationToken]:
        """List the tokens of these owners (User:alice), or all that this user may see: its own,
        those it may renew, and those on which it has DESCRIBE. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return tokens.describe_delegation_tokens(cluster, owners, deadline)

    # --- the cluster

    def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout_s: float | None = None
    ) -> ClusterDescription:
        """Describe the cluster: id, controller, and live brokers with their racks. Raises
        KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_cluster(
                cluster, deadline, include_authorized_operations=include_authorized_operations
            )

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> Results[int, dict[str, LogDirDescription]]:
        """Describe the log directories of all brokers, or these. By node id, then by path."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_log_dirs(cluster, brokers, deadline)

    def describe_client_quotas(
        self, quota_filter: quotas.ClientQuotaFilter = quotas.ALL, *, timeout_s: float | None = None
    ) -> dict[quotas.ClientQuotaEntity, dict[str, float]]:
        """Describe the quotas of users, client ids and addresses (Kafka 2.6) that a filter matches,
        or all. By entity, then by name: producer_byte_rate and consumer_byte_rate are bytes a
        second, request_percentage per cent of a thread. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return quotas.describe_client_quotas(cluster, quota_filter, deadline)

    def alter_client_quotas(
        self,
        alterations: Iterable[quotas.ClientQuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[quotas.ClientQuotaEntity, None]:
        """Set quotas, and remove those that are None (Kafka 2.6). By entity. Errors of items:
        INVALID_REQUEST for a name or value that brokers do not take, … Raises OptionError."""
        with self._call(timeout_s) as (cluster, deadline):
            return quotas.alter_client_quotas(
                cluster, alterations, deadline, validate_only=validate_only
            )

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Begin to move the replicas of partitions to these brokers, the preferred leader first;
        None cancels a reassignment (Kafka 2.4). It has ended when `list_partition_reassignments` no
        longer lists the partition.

        Errors of items: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, … Raises
        OptionError.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return partition_calls.alter_partition_reassignments(cluster, reassignments, deadline)

    def list_partition_reassignments(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, PartitionReassignment]:
        """List the partitions, of these or of all, whose replicas are moving. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return partition_calls.list_partition_reassignments(cluster, partitions, deadline)

    def elect_leaders(
        self,
        election_type: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders (Kafka 2.4) of these partitions, or (None) of all that need it: KafkaError
        is raised if that request fails. PREFERRED makes the first replica the leader; UNCLEAN any
        live replica, and records that it does not have are lost.

        Errors of items: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, … Raises OptionError.
        """
        with self._call(timeout_s) as (cluster, deadline):
            return partition_calls.elect_leaders(cluster, election_type, partitions, deadline)

    def describe_features(self, *, timeout_s: float | None = None) -> FeatureMetadata:
        """Describe the levels of features, such as metadata.version: those that the cluster uses,
        and those that a broker could use. Empty before Kafka 2.7. Raises KafkaError."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_features(cluster, deadline)

    def update_features(
        self,
        updates: Mapping[str, FeatureUpdate],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[str, None]:
        """Set the levels of features (Kafka 2.7). By feature; brokers from 4.0 on update all or
        none. Errors of items: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, … Raises
        OptionError."""
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.update_features(
                cluster, updates, deadline, validate_only=validate_only
            )
