"""Kafka's error codes, and the package's exceptions.

    KafkaError
    ├── OptionError (ValueError)          an option or argument is wrong; names it and its value
    ├── DecodeError                       bytes do not follow the protocol; has a position
    │   ├── CorruptRecordError            the same inside records; names topic, partition, offset
    │   │   └── BatchTooLargeError        a batch unpacks to more than a setting allows
    │   └── BadRecordError                a key or value does not match its schema
    ├── EncodeError (ValueError)          a value cannot be encoded
    ├── UnsupportedVersionError           broker and client share no version of a request
    ├── KafkaConnectionError (OSError)    no connection, or it broke
    ├── AuthenticationError               one side does not trust the other; a retry does not help
    ├── KafkaTimeoutError (TimeoutError)  a deadline passed; the last failure is its cause
    ├── BrokerError                       a broker answered with an error code
    │   ├── UnknownTopicError             a topic or partition is missing, and waiting did not help
    │   ├── CommitFailedError             the group has rebalanced; others may have the partitions
    │   └── ProducerFencedError           another producer has the transactional.id: make a new one
    ├── AcknowledgeError                  records of a share group will be delivered again
    ├── ProduceError                      records of a partition were not (or perhaps not) written
    │   └── DeliveryTimeoutError (KafkaTimeoutError)  not acknowledged within delivery.timeout.ms
    ├── TransactionError                  a transaction was not committed
    ├── NoOffsetError                     a partition has no offset to read from
    │   └── LogTruncationError            records that were read are not in the log any more
    ├── ConsumerStateError (RuntimeError)  the consumer's state does not allow the call
    ├── SchemaError (ValueError)          a schema cannot be used; says where in it
    ├── RegistryError                     the Schema Registry refused, or answered with an error
    ├── CheckpointError                   a query's checkpoint is damaged, or must not be changed
    ├── WakeupError                       another thread ended the call with wakeup
    └── DataLossError                     requested records no longer exist

An error code is a row of a table (`ErrorCode`); an exception says where it occurred. Exceptions
contain no password: they are made of names, numbers and broker addresses.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

FINAL, RETRY, REFRESH = range(3)


class ErrorCode(enum.IntEnum):
    """Kafka's error codes: those of Kafka 4.4's `org.apache.kafka.common.protocol.Errors`, with a
    description for users of a Spark job: what went wrong, and what to do.

    A row: number, retry, text (with {prefix} before names of settings). FINAL: the same request
    fails again. RETRY: it may succeed later (Java's RetriableException). REFRESH: the same, with
    refreshed metadata (Java's InvalidMetadataException).
    """

    retriable: bool
    refresh: bool
    text: str

    def __new__(cls, number: int, retry: int, text: str) -> ErrorCode:
        """Make the member of a row."""
        row = int.__new__(cls, number)
        row._value_ = number
        row.retriable = retry >= RETRY
        row.refresh = retry == REFRESH
        row.text = text
        return row

    @property
    def description(self) -> str:
        """The meaning of the code, for users of Spark."""
        return error_description(self)

    # The facts on one line, a long description below; ruff would make five lines of such a row.
    # fmt: off
    UNKNOWN_SERVER_ERROR = (-1, FINAL,
        "the broker failed in a way that it has no code for; its own log says why")
    NONE = (0, FINAL, "no error")
    OFFSET_OUT_OF_RANGE = (1, FINAL,
        "the partition has no such offset: its records were deleted, the topic was recreated, or "
        "it lies beyond the end")
    CORRUPT_MESSAGE = (2, RETRY,
        "damaged records: bytes changed on the way or on disk; old brokers also say so for a "
        "record without key in a compacted topic")
    UNKNOWN_TOPIC_OR_PARTITION = (3, REFRESH,
        "the topic or partition does not exist, or this user may not see it (needs DESCRIBE on "
        "the topic)")
    INVALID_FETCH_SIZE = (4, FINAL,
        "the broker takes no fetch of this size; see {prefix}fetch.max.bytes and "
        "{prefix}max.partition.fetch.bytes")
    LEADER_NOT_AVAILABLE = (5, REFRESH,
        "no broker leads the partition now: an election is under way, or all its replicas are down")
    NOT_LEADER_OR_FOLLOWER = (6, REFRESH,
        "another broker leads the partition now; new metadata says which")
    REQUEST_TIMED_OUT = (7, RETRY,
        "the broker was not done within the request's timeout, as when replicas lag or are down; a "
        "write may still have happened")
    BROKER_NOT_AVAILABLE = (8, FINAL, "the broker that this is about is down")
    REPLICA_NOT_AVAILABLE = (9, REFRESH,
        "the partition has no usable replica on this broker yet, or its disk is offline")
    MESSAGE_TOO_LARGE = (10, FINAL,
        "larger than max.message.bytes of the topic (or message.max.bytes of the broker)")
    STALE_CONTROLLER_EPOCH = (11, FINAL,
        "between brokers: the request came from a controller that has been replaced")
    OFFSET_METADATA_TOO_LARGE = (12, FINAL,
        "the text stored with a committed offset is longer than the broker's "
        "offset.metadata.max.bytes")
    NETWORK_EXCEPTION = (13, REFRESH,
        "the connection broke before the response arrived; a write may still have happened")
    COORDINATOR_LOAD_IN_PROGRESS = (14, RETRY,
        "this broker has just become the coordinator and is still loading its state; this passes "
        "after a moment")
    COORDINATOR_NOT_AVAILABLE = (15, RETRY,
        "no broker acts as coordinator now: its internal topic is being created, or has no leader")
    NOT_COORDINATOR = (16, RETRY,
        "another broker is the coordinator of this group or transactional id now")
    INVALID_TOPIC_EXCEPTION = (17, FINAL,
        "a topic name has 1 to 249 characters of a-z A-Z 0-9 . _ - and is not '.' or '..'; "
        "Kafka's internal topics take no writes")
    RECORD_LIST_TOO_LARGE = (18, FINAL,
        "the batch does not fit into a log segment; lower {prefix}batch.size or raise "
        "segment.bytes of the topic")
    NOT_ENOUGH_REPLICAS = (19, RETRY,
        "fewer replicas in sync than the topic's min.insync.replicas, so nothing was written: "
        "start the other replicas' brokers (a full disk ends them)")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (20, RETRY,
        "written by the leader, but fewer replicas are in sync than min.insync.replicas; a second "
        "try may duplicate the records")
    INVALID_REQUIRED_ACKS = (21, FINAL,
        "the broker does not know this value of {prefix}acks; it takes all, 1 and 0")
    ILLEGAL_GENERATION = (22, FINAL,
        "the consumer group has a newer generation; the member rejoins")
    INCONSISTENT_GROUP_PROTOCOL = (23, FINAL,
        "the group's other members are of another kind, or share no partition assignor with this "
        "one")
    INVALID_GROUP_ID = (24, FINAL, "no consumer group can have this name; it must not be empty")
    UNKNOWN_MEMBER_ID = (25, FINAL,
        "the coordinator has removed this member from the group, or never had it; the member "
        "rejoins")
    INVALID_SESSION_TIMEOUT = (26, FINAL,
        "the broker allows no such session timeout; its bounds are group.min. and "
        "group.max.session.timeout.ms")
    REBALANCE_IN_PROGRESS = (27, FINAL, "the group is rebalancing; its members must rejoin first")
    INVALID_COMMIT_OFFSET_SIZE = (28, FINAL,
        "the offset could not be committed: its record is too large for the offsets topic")
    TOPIC_AUTHORIZATION_FAILED = (29, FINAL,
        "this user has no permission on the topic; grant READ to read it, WRITE to write it")
    GROUP_AUTHORIZATION_FAILED = (30, FINAL, "this user has no permission on the group; grant READ")
    CLUSTER_AUTHORIZATION_FAILED = (31, FINAL,
        "this user lacks a permission on the cluster (IDEMPOTENT_WRITE for idempotent producers "
        "before Kafka 2.8)")
    INVALID_TIMESTAMP = (32, FINAL,
        "a record's timestamp lies outside what the topic's message.timestamp.*.max.ms settings "
        "allow")
    UNSUPPORTED_SASL_MECHANISM = (33, FINAL,
        "this SASL mechanism is not among the broker's sasl.enabled.mechanisms; compare "
        "{prefix}sasl.mechanism")
    ILLEGAL_SASL_STATE = (34, FINAL,
        "steps of the login came in the wrong order, or a request came before its end")
    UNSUPPORTED_VERSION = (35, FINAL,
        "the broker does not support this version of the request: client or broker is too old")
    TOPIC_ALREADY_EXISTS = (36, FINAL,
        "the topic exists already, perhaps as one that is still being deleted")
    INVALID_PARTITIONS = (37, FINAL,
        "a topic has at least one partition, and can gain partitions but not lose any")
    INVALID_REPLICATION_FACTOR = (38, FINAL,
        "not possible with these brokers: a topic has at least 1 replica, and at most one per "
        "broker that is up")
    INVALID_REPLICA_ASSIGNMENT = (39, FINAL,
        "the replicas cannot be placed like that: unknown brokers, one named twice, or partitions "
        "left out")
    INVALID_CONFIG = (40, FINAL, "a setting does not exist, or cannot have this value")
    NOT_CONTROLLER = (41, RETRY, "another node is the controller now; the next attempt goes there")
    INVALID_REQUEST = (42, FINAL,
        "the broker cannot process the request, most likely because of a bug in this client; the "
        "broker's log has more")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (43, FINAL,
        "the topic's message format is too old for this (Kafka before 0.11)")
    POLICY_VIOLATION = (44, FINAL,
        "the cluster's operators forbid this by a policy (create.topic.policy, "
        "alter.config.policy)")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (45, FINAL,
        "the producer's sequence numbers have a gap: an earlier batch is missing from the "
        "partition")
    DUPLICATE_SEQUENCE_NUMBER = (46, FINAL,
        "this batch is in the partition already, so it is written")
    INVALID_PRODUCER_EPOCH = (47, FINAL,
        "a newer producer has taken over the transactional id, or the coordinator ended this "
        "one's transaction")
    INVALID_TXN_STATE = (48, FINAL,
        "the state of the transaction does not allow this, e.g. a commit while none is open")
    INVALID_PRODUCER_ID_MAPPING = (49, FINAL,
        "the transactional id has another producer id now, as after transactional.id.expiration.ms "
        "without use")
    INVALID_TRANSACTION_TIMEOUT = (50, FINAL,
        "choose a shorter transaction timeout: the broker's limit is its "
        "transaction.max.timeout.ms")
    CONCURRENT_TRANSACTIONS = (51, RETRY,
        "the coordinator is still completing the previous step of this transactional id; this "
        "passes after a moment")
    TRANSACTION_COORDINATOR_FENCED = (52, FINAL,
        "between brokers: the request came from a transaction coordinator that has been replaced")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (53, FINAL,
        "this user has no permission on the transactional id; grant WRITE and DESCRIBE")
    SECURITY_DISABLED = (54, FINAL,
        "the cluster has no authorizer, so there are no ACLs to show or change")
    OPERATION_NOT_ATTEMPTED = (55, FINAL,
        "not attempted, since another part of the same request failed")
    KAFKA_STORAGE_ERROR = (56, REFRESH,
        "the disk with the partition's log failed, or is full, on this broker; another replica "
        "takes over if there is one")
    LOG_DIR_NOT_FOUND = (57, FINAL,
        "the broker has no log directory of this path; see its log.dirs")
    SASL_AUTHENTICATION_FAILED = (58, FINAL,
        "login refused: the user name, password or token is wrong")
    UNKNOWN_PRODUCER_ID = (59, FINAL,
        "the broker has forgotten this producer, as when retention deleted all that it wrote")
    REASSIGNMENT_IN_PROGRESS = (60, FINAL,
        "the partition's replicas are being moved already; wait until that is done")
    DELEGATION_TOKEN_AUTH_DISABLED = (61, FINAL, "delegation tokens are disabled at the broker")
    DELEGATION_TOKEN_NOT_FOUND = (62, FINAL, "the broker has no such delegation token")
    DELEGATION_TOKEN_OWNER_MISMATCH = (63, FINAL,
        "only the owner or a renewer of a delegation token may do this to it")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (64, FINAL,
        "a connection without login, or with a delegation token as login, cannot manage such "
        "tokens")
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (65, FINAL,
        "this user has no permission on the delegation token")
    DELEGATION_TOKEN_EXPIRED = (66, FINAL, "the delegation token has expired; get a new one")
    INVALID_PRINCIPAL_TYPE = (67, FINAL,
        "the broker takes no principals of this type; the usual one is User")
    NON_EMPTY_GROUP = (68, FINAL, "the group still has members; stop them first")
    GROUP_ID_NOT_FOUND = (69, FINAL, "there is no consumer group of this name")
    FETCH_SESSION_ID_NOT_FOUND = (70, RETRY,
        "the broker has dropped the fetch session; the next fetch opens another")
    INVALID_FETCH_SESSION_EPOCH = (71, RETRY,
        "client and broker disagree on the state of their fetch session; the next fetch opens "
        "another")
    LISTENER_NOT_FOUND = (72, REFRESH,
        "the leader lacks the listener that the client uses; give all brokers the same listener "
        "names")
    TOPIC_DELETION_DISABLED = (73, FINAL,
        "no topic can be deleted in this cluster (delete.topic.enable=false)")
    FENCED_LEADER_EPOCH = (74, REFRESH,
        "a newer leader has been elected than the client knows; new metadata fixes this")
    UNKNOWN_LEADER_EPOCH = (75, RETRY,
        "the client knows a newer leader than this broker, which will learn it after a moment")
    UNSUPPORTED_COMPRESSION_TYPE = (76, FINAL,
        "the codec is newer than the request: zstd needs Kafka 2.1 or later on both sides")
    STALE_BROKER_EPOCH = (77, FINAL, "between brokers: the sender has restarted since it sent this")
    OFFSET_NOT_AVAILABLE = (78, RETRY,
        "the leader is new and does not know its end offset yet; this passes after a moment")
    MEMBER_ID_REQUIRED = (79, FINAL,
        "the coordinator assigned a member id; the member rejoins with it")
    PREFERRED_LEADER_NOT_AVAILABLE = (80, REFRESH,
        "the replica that should lead is down or not in sync, so it was not elected")
    GROUP_MAX_SIZE_REACHED = (81, FINAL,
        "the group takes no more members (group.max.size of the brokers)")
    FENCED_INSTANCE_ID = (82, FINAL,
        "another member took over this group.instance.id; each member needs its own")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, REFRESH, "no replica that may become leader is up")
    ELECTION_NOT_NEEDED = (84, REFRESH,
        "the partition already has the leader that an election would give it")
    NO_REASSIGNMENT_IN_PROGRESS = (85, FINAL,
        "no replicas of the partition are being moved, so there is nothing to cancel")
    GROUP_SUBSCRIBED_TO_TOPIC = (86, FINAL,
        "the group still reads the topic, so its offsets cannot be deleted; stop it first")
    INVALID_RECORD = (87, FINAL,
        "the broker refused the records; a compacted topic needs a key in each record")
    UNSTABLE_OFFSET_COMMIT = (88, RETRY,
        "an open transaction has not committed these offsets yet; this passes when it ends")
    THROTTLING_QUOTA_EXCEEDED = (89, RETRY,
        "a quota on creating and deleting topics or partitions is used up; try again later")
    PRODUCER_FENCED = (90, FINAL,
        "another producer has begun to use this transactional id; give each writer one of its own")
    RESOURCE_NOT_FOUND = (91, FINAL,
        "what the request names does not exist, e.g. the user of a SCRAM password")
    DUPLICATE_RESOURCE = (92, FINAL, "the request names the same thing twice")
    UNACCEPTABLE_CREDENTIAL = (93, FINAL,
        "the broker requires a better password, or another number of iterations")
    INCONSISTENT_VOTER_SET = (94, FINAL,
        "between controllers: one of the two is not a voter for the other")
    INVALID_UPDATE_VERSION = (95, FINAL,
        "the update is based on outdated state, or asks for a level that the cluster does not have")
    FEATURE_UPDATE_FAILED = (96, FINAL,
        "the cluster's feature levels could not be changed; the controller's log says why")
    PRINCIPAL_DESERIALIZATION_FAILURE = (97, FINAL,
        "between brokers: one could not read the user that another passed on; see "
        "principal.builder.class")
    SNAPSHOT_NOT_FOUND = (98, FINAL, "between controllers: the requested snapshot no longer exists")
    POSITION_OUT_OF_RANGE = (99, FINAL, "between controllers: a read beyond the end of a snapshot")
    UNKNOWN_TOPIC_ID = (100, REFRESH,
        "this broker has no topic of this id: deleted, recreated, or not known here yet")
    DUPLICATE_BROKER_REGISTRATION = (101, FINAL,
        "between brokers: two of them have the same node.id")
    BROKER_ID_NOT_REGISTERED = (102, FINAL, "no broker of this id has joined the cluster")
    INCONSISTENT_TOPIC_ID = (103, REFRESH,
        "the topic was recreated: its id in the log or a Fetch response is not the requested one")
    INCONSISTENT_CLUSTER_ID = (104, FINAL, "the request was meant for a cluster with another id")
    TRANSACTIONAL_ID_NOT_FOUND = (105, FINAL, "the cluster has no such transactional id")
    FETCH_SESSION_TOPIC_ID_ERROR = (106, RETRY,
        "topic ids came and went within a fetch session, as in an upgrade of brokers; the next "
        "fetch opens another")
    INELIGIBLE_REPLICA = (107, FINAL,
        "between brokers: a replica cannot be in sync, since its broker is shutting down or fenced")
    NEW_LEADER_ELECTED = (108, FINAL,
        "between brokers: the change was made, and has given the partition another leader")
    OFFSET_MOVED_TO_TIERED_STORAGE = (109, FINAL,
        "the offset is no longer on the leader's disk, only in tiered storage")
    FENCED_MEMBER_EPOCH = (110, FINAL,
        "this member's epoch is outdated, and the group continues without it; it rejoins as a new "
        "member")
    UNRELEASED_INSTANCE_ID = (111, FINAL,
        "the member that last used this group.instance.id has not left; stop it, or wait for its "
        "session to end")
    UNSUPPORTED_ASSIGNOR = (112, FINAL,
        "the brokers do not have the requested partition assignor; see group.consumer.assignors")
    STALE_MEMBER_EPOCH = (113, FINAL,
        "the group has a newer epoch; the member learns it with the next heartbeat, then retries")
    MISMATCHED_ENDPOINT_TYPE = (114, FINAL,
        "a request for controllers went to a broker, or the reverse; check the bootstrap servers")
    UNSUPPORTED_ENDPOINT_TYPE = (115, FINAL,
        "this node has no information about endpoints of that type")
    UNKNOWN_CONTROLLER_ID = (116, FINAL, "the cluster has no controller of this id")
    UNKNOWN_SUBSCRIPTION_ID = (117, FINAL,
        "client metrics were sent for a subscription that has changed; the client requests the new "
        "one")
    TELEMETRY_TOO_LARGE = (118, FINAL,
        "client metrics take more than the broker's telemetry.max.bytes")
    INVALID_REGISTRATION = (119, FINAL,
        "between brokers: the controller refuses to register a broker, e.g. for its listeners or "
        "features")
    TRANSACTION_ABORTABLE = (120, FINAL,
        "this transaction can only be aborted; the transactional id stays usable")
    INVALID_RECORD_STATE = (121, FINAL,
        "share groups: the record can no longer be acknowledged, e.g. since its lock expired")
    SHARE_SESSION_NOT_FOUND = (122, RETRY,
        "share groups: the broker has dropped the session; the next fetch opens another")
    INVALID_SHARE_SESSION_EPOCH = (123, RETRY,
        "share groups: client and broker disagree on the state of their session; the next fetch "
        "opens another")
    FENCED_STATE_EPOCH = (124, FINAL,
        "between brokers: state of a share group came from an owner that has been replaced")
    INVALID_VOTER_KEY = (125, FINAL,
        "between controllers: a vote was meant for another directory id than this node's")
    DUPLICATE_VOTER = (126, FINAL, "the controller to add is one of the voters already")
    VOTER_NOT_FOUND = (127, FINAL, "the controller to change or remove is none of the voters")
    INVALID_REGULAR_EXPRESSION = (128, FINAL,
        "the broker cannot read the pattern of a subscription; it takes RE2 syntax")
    REBOOTSTRAP_REQUIRED = (129, FINAL,
        "the broker requires the client to reconnect to its bootstrap servers")
    STREAMS_INVALID_TOPOLOGY = (130, FINAL,
        "Kafka Streams: the description of the application's topology contradicts itself")
    STREAMS_INVALID_TOPOLOGY_EPOCH = (131, FINAL,
        "Kafka Streams: the group cannot take a topology of this epoch")
    STREAMS_TOPOLOGY_FENCED = (132, FINAL,
        "Kafka Streams: other instances run a newer topology; update this one")
    SHARE_SESSION_LIMIT_REACHED = (133, RETRY,
        "share groups: the broker keeps no more sessions open (group.share.max.share.sessions); "
        "try again later")
    GROUP_DELETION_FAILED = (134, FINAL,
        "the group could not be deleted; the broker's message says why")
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (135, FINAL,
        "Kafka Streams: the broker could not store the description of the topology")
    CONTROLLER_ID_NOT_REGISTERED = (136, FINAL,
        "between controllers: no controller of this id is registered")
    # fmt: on


_BY_NUMBER: dict[int, ErrorCode] = {int(row): row for row in ErrorCode}


def error_name(code: int) -> str:
    """Return Kafka's name of an error code; `UNKNOWN_ERROR_CODE` for a number not in the table."""
    row = _BY_NUMBER.get(code)
    return row.name if row is not None else "UNKNOWN_ERROR_CODE"


def error_description(code: int, prefix: str = "") -> str:
    """Return what the code means, as a clause without a period. `prefix` is that of the reader's
    names of settings ("kafka." in Spark)."""
    row = _BY_NUMBER.get(code)
    if row is None:
        return "not among the codes of Kafka 4.4"
    return row.text.format(prefix=prefix)


def is_retriable(code: int) -> bool:
    """Return whether the same request may succeed later (Java's RetriableException). Unknown codes
    are not retriable."""
    row = _BY_NUMBER.get(code)
    return row is not None and row.retriable


def needs_metadata(code: int) -> bool:
    """Return whether metadata must be refreshed before a retry (Java's
    InvalidMetadataException)."""
    row = _BY_NUMBER.get(code)
    return row is not None and row.refresh


class PartitionOutcome(NamedTuple):
    """What happened to one partition's records when a producer ended."""

    written_records: int
    not_written_records: int
    unknown_records: int
    """Sent, and neither acknowledged nor refused. With acks=0 all records that were sent."""


class KafkaError(Exception):
    """Base of all errors of this package.

    `code` identifies the error, to compare, count and log: the number of Kafka's or the registry's
    error, if one was returned, else a name, one for each class. Codes never change.
    `retriable` says whether the same request may succeed later without a change by the user.
    `partitions` is set if the error ended a producer: {(topic, partition): outcome} of all its
    records.
    """

    code: int | str = "KAFKA_ERROR"
    retriable: bool = False
    partitions: Mapping[tuple[str, int], PartitionOutcome] = {}

    def add_outcomes(self, partitions: Mapping[tuple[str, int], PartitionOutcome]) -> None:
        """Add the outcomes of a producer's records to `partitions` and to the message, once."""
        if partitions and not self.partitions:
            self.partitions = dict(partitions)
            self.args = (f"{self}; {_outcomes_text(partitions)}", *self.args[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and multiprocessing pickle exceptions, which by default fails for keyword arguments:
        # rebuild them from their state.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[KafkaError], args: tuple[Any, ...], state: dict[str, Any]) -> KafkaError:
    """Return the error that was pickled with these."""
    error = cls.__new__(cls, *args)  # not __init__, which may have other arguments
    error.args = args
    error.__dict__.update(state)
    return error


class OptionError(KafkaError, ValueError):
    """An option, or an argument of the public API, is missing, unknown, or has a bad value."""

    code = "INVALID_OPTION"


class DecodeError(KafkaError):
    """Bytes do not follow the protocol. `position` counts in the decoded buffer, or is None."""

    code = "DECODE_FAILED"

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position})")
        self.position = position


class CorruptRecordError(DecodeError):
    """Record data is damaged. Names topic, partition and offset if they are known."""

    code = "CORRUPT_RECORD"

    def __init__(
        self,
        message: str,
        position: int | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        where = _where(topic, partition)
        if offset is not None:
            where = f"{where} offset {offset}" if where else f"offset {offset}"
        super().__init__(f"{where}: {message}" if where else message, position)
        self.reason = message
        self.topic, self.partition, self.offset = topic, partition, offset
        self.next_offset: int | None = None
        """The offset after the damaged batch, if it is known: seek there to skip it."""

    def at(self, topic: str, partition: int, offset: int | None = None) -> CorruptRecordError:
        """Return the same error with topic and partition; `offset` is used if it has none."""
        located = type(self)(
            self.reason,
            self.position,
            topic=topic,
            partition=partition,
            offset=self.offset if self.offset is not None else offset,
        )
        located.next_offset = self.next_offset
        return located


class BatchTooLargeError(CorruptRecordError):
    """A batch, or a record in it, takes more memory than max.decompressed.batch.bytes allows.

    If it is not damaged, it can be read with a higher limit.
    """

    code = "BATCH_TOO_LARGE"


class BadRecordError(DecodeError):
    """A key or value does not match its schema. The message names topic, partition, offset, the
    schema's id and the field."""

    code = "BAD_RECORD"


class EncodeError(KafkaError, ValueError):
    """A value cannot be encoded: it is out of range, or the version lacks the field."""

    code = "ENCODE_FAILED"


class UnsupportedVersionError(KafkaError):
    """Broker and client have no version of this request in common."""

    code = "NO_COMMON_VERSION"


class KafkaConnectionError(KafkaError, OSError):
    """A connection could not be made, or it broke. The message names host and port."""

    code = "CONNECTION_FAILED"

    retriable = True


class AuthenticationError(KafkaError):
    """The broker refused the client's identity, or failed to prove its own. A retry does not
    help."""

    code = "AUTHENTICATION_FAILED"


class KafkaTimeoutError(KafkaError, TimeoutError):
    """A deadline passed. The last failure before it is the `__cause__`, and in the message.

    The same call may succeed later (Java's TimeoutException, which is retriable too).
    """

    code = "TIMED_OUT"

    retriable = True


class BrokerError(KafkaError):
    """A broker answered with an error code, which may be missing in the table.

    `where` is the request and its subject. `message` is the broker's own; without one it is the
    table's description, in which settings have the `prefix`.
    """

    code: int
    _retriable: bool | None = None  # None: as Kafka's table says

    def __init__(
        self, code: int, where: str = "", message: str | None = None, *, prefix: str = ""
    ) -> None:
        self.code = code
        self.where = where
        self.broker_message = message
        text = f"error {code} {error_name(code)}"
        if where:
            text += f" from {where}"
        super().__init__(f"{text}: {message or error_description(code, prefix)}")

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return is_retriable(self.code) if self._retriable is None else self._retriable

    @property
    def name(self) -> str:
        return error_name(self.code)


class UnknownTopicError(BrokerError):
    """A topic or partition does not exist.

    A broker's UNKNOWN_TOPIC_OR_PARTITION is retriable, since brokers learn of new topics one after
    another. This error is raised after waiting for that, so it is final. `topics` are the missing
    ones, if the error is about whole topics.
    """

    topics: tuple[str, ...] = ()
    _retriable = False


class CommitFailedError(BrokerError):
    """Offsets were not committed: this member's generation is over, or its group is rebalancing.

    A retry does not help (Java's CommitFailedException and RebalanceInProgressException): call
    `poll`, which rejoins the group, and continue with its records. Records whose offsets were not
    committed may be read again, here or by another member.
    """

    _retriable = False


class AcknowledgeError(KafkaError):
    """Acknowledgements of a share group's records were refused, or did not arrive.

    `errors` has the reasons by (topic, partition). The records will be delivered again, here or to
    another member, unless the brokers did receive the acknowledgement.
    """

    code = "ACKNOWLEDGE_FAILED"

    def __init__(self, errors: Mapping[tuple[str, int], KafkaError]) -> None:
        first = next(iter(errors.values()))
        more = f" ({counted(len(errors), 'partition')} in all)" if len(errors) > 1 else ""
        super().__init__(f"{first}{more}")
        self.errors = dict(errors)


class ProducerFencedError(BrokerError):
    """Another producer has taken over the transactional.id of this producer, or the brokers have
    ended a transaction that was open for too long.

    Close the producer and make a new one. (After a TransactionError the transaction can be aborted,
    and the producer continues.)
    """

    _retriable = False


class Written(enum.Enum):
    """Whether records whose delivery failed are written (librdkafka's message status)."""

    NO = "not written"
    YES = "written"
    UNKNOWN = "possibly written"


class ProduceError(KafkaError):
    """Records of one partition could not be delivered.

    `written` says whether a retry by the caller may duplicate them. `partition` is -1 if none was
    chosen yet. `code` is the broker's, if it refused them.
    """

    code: int | str = "PRODUCE_FAILED"

    def __init__(
        self, message: str, *, topic: str, partition: int, written: Written, code: int | None = None
    ) -> None:
        where = _where(topic, partition if partition >= 0 else None)
        super().__init__(f"{where}: {message} (records {written.value})")
        self.topic, self.partition, self.written = topic, partition, written
        if code is not None:
            self.code = code


class DeliveryTimeoutError(ProduceError, KafkaTimeoutError):
    """Records of one partition were not acknowledged within delivery.timeout.ms (KIP-91).

    Sending them again may succeed, but may duplicate them if `written` is UNKNOWN.
    """

    code = "DELIVERY_TIMED_OUT"


class TransactionError(KafkaError):
    """A transaction was not committed; the message says what is visible and what to do."""

    code = "TRANSACTION_FAILED"


class NoOffsetError(KafkaError):
    """A partition has no valid position, and auto.offset.reset=none; or it has no offset in tiered
    storage to seek to."""

    code = "NO_OFFSET"

    def __init__(self, message: str, *, topic: str, partition: int) -> None:
        super().__init__(f"{_where(topic, partition)}: {message}")
        self.topic, self.partition = topic, partition


class LogTruncationError(NoOffsetError):
    """Records that were read are not in the partition any more (an unclean leader election), and
    auto.offset.reset=none (KIP-320).

    `offset` is the position, `end_offset` the first offset that has another record now, or none.
    """

    code = "LOG_TRUNCATED"

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, end_offset: int
    ) -> None:
        super().__init__(message, topic=topic, partition=partition)
        self.offset, self.end_offset = offset, end_offset


class ConsumerStateError(KafkaError, RuntimeError):
    """The consumer's state does not allow the call: it is closed or used by another thread, the
    partition is not assigned, or it both subscribes and assigns."""

    code = "ILLEGAL_STATE"


class SchemaError(KafkaError, ValueError):
    """A schema cannot be used: it cannot be parsed, refers to something that is missing, or needs
    something that is not supported. The message names the position in it."""

    code = "INVALID_SCHEMA"


class RegistryError(KafkaError):
    """The Schema Registry refused a request. `status` is that of HTTP, None without a response;
    `code` is the registry's own (40401: no such subject), if there is one."""

    code: int | str = "REGISTRY_FAILED"

    def __init__(
        self, message: str, *, status: int | None = None, code: int | str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        if code is not None:
            self.code = code


class CheckpointError(KafkaError):
    """The checkpoint of a streaming query cannot be read, or must not be changed as requested.

    The message names the file, or what prevents the change. Nothing was changed, unless the message
    says so.
    """

    code = "CHECKPOINT_FAILED"


class WakeupError(KafkaError):
    """`Consumer.wakeup` ended the call that was waiting. Nothing is lost."""

    code = "WAKEUP"


class DataLossError(KafkaError):
    """Requested records no longer exist (retention, deletion, a recreated topic)."""

    code = "DATA_LOSS"


def _outcomes_text(partitions: Mapping[tuple[str, int], PartitionOutcome]) -> str:
    """Return the totals of all partitions as text, and the first partitions with records that are
    not, or perhaps not, written."""
    total = PartitionOutcome(*map(sum, zip(*partitions.values(), strict=True)))
    count = len(partitions)
    text = f"{counted(count, 'partition')} so far: {_counts_text(total)}"
    shown = some(
        f"{topic}-{partition} ({_counts_text(outcome)})"
        for (topic, partition), outcome in sorted(partitions.items())
        if outcome.not_written_records or outcome.unknown_records
    )
    return f"{text}: {shown}" if shown else text


def _counts_text(outcome: PartitionOutcome) -> str:
    """Return the counts that are not 0 as text: "7 records written, 2 not written"."""
    labels = ("records written", "not written", "unknown whether written")
    counts = [f"{n:,} {label}" for n, label in zip(outcome, labels, strict=True) if n]
    return ", ".join(counts) or "no records"


def some(values: Iterable[object], limit: int = 5, separator: str = ", ") -> str:
    """Return the first values as text, and how many more there are: "a, b and 7 more". Empty
    without values."""
    items = list(values)
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(map(str, items[:limit])) + more


def exclusive(one: str, other: str, hint: str = "remove one") -> OptionError:
    """Return the error for two options that exclude each other."""
    return OptionError(f"{one} and {other} exclude each other: {hint}")


def shortened(text: str) -> str:
    """Return the text in quotes, cut to 200 characters if it is longer."""
    if len(text) <= 200:
        return repr(text)
    return f"{text[:200]!r}… ({len(text)} characters)"


def printable(text: str, other: str = " ") -> str:
    """Return a text from outside with `other` in place of each character that is not printable,
    such as those that move a terminal's cursor."""
    return "".join(char if char.isprintable() else other for char in text)


def counted(count: int, what: str) -> str:
    """Return a count with its noun `what`: "1 record", "1,234 records"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_SPARK_HINTS: list[str] = []


def spark_hint(text: str) -> str:
    """Mark a part of a message as useful to users of Spark only, and return it. The message
    contains it as it is."""
    _SPARK_HINTS.append(text)
    return text


def without_spark_hints(message: str) -> str:
    """Return a message without the parts that `spark_hint` has marked, for users of the command."""
    for hint in _SPARK_HINTS:
        message = message.replace(hint, "")
    return message


def _where(topic: str | None, partition: int | None) -> str:
    """Return "topic T partition P" for a message, as far as it is known; "" without a topic."""
    if topic is None:
        return ""
    return f"topic {topic}" if partition is None else f"topic {topic} partition {partition}"


@contextmanager
def needs_extra(
    needs: str, extra: str, *packages: str, error: type[Exception] = ImportError, note: str = ""
) -> Iterator[None]:
    """Raise `error` if an import in this block fails. The message is `needs` (what needs what), how
    to install the extra, and `note`.

    With `packages`, only if one of these is missing; other ImportErrors are raised as they are.
    """
    try:
        yield
    except ImportError as missing:
        if packages and (missing.name or "").partition(".")[0] not in packages:
            raise
        raise error(f"{needs}: pip install 'sparkkafka[{extra}]'{note}") from missing
