"""Every exception of the package, and Kafka's error code table.

    KafkaError
    ├── OptionError (ValueError)          an option or argument is wrong; names it and its value
    ├── DecodeError                       bytes do not follow the protocol; has a position
    │   └── CorruptRecordError            the same inside records; names topic, partition, offset
    ├── EncodeError (ValueError)          a value cannot be put on the wire
    ├── UnsupportedVersionError           broker and client share no version of a request
    ├── KafkaConnectionError (OSError)    no connection, or it broke
    ├── KafkaTimeoutError (TimeoutError)  a deadline passed; the last failure is its cause
    ├── BrokerError                       a broker answered with an error code
    │   └── UnknownTopicError             a topic or partition is missing, and waiting did not help
    ├── ProduceError                      records of a partition were not (or perhaps not) written
    └── DataLossError                     records that were asked for are no longer there

An error is a table row (`ErrorCode`), an exception says where it happened. Nothing here prints a
password: exceptions are built from names, numbers and broker addresses only.
"""

from __future__ import annotations

import enum
from typing import Any


class KafkaError(Exception):
    """Base of all errors of this package.

    `retriable` says whether the same request may succeed later without a change by the user.
    """

    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword arguments do not survive pickle by default; Spark and
        # multiprocessing pickle them, so they are rebuilt from their state.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[KafkaError], args: tuple[Any, ...], state: dict[str, Any]) -> KafkaError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class OptionError(KafkaError, ValueError):
    """An option, or an argument of the public API, is missing, unknown, or has a bad value."""


class DecodeError(KafkaError):
    """Bytes do not follow the protocol. `position` counts in the decoded buffer, or is None."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position})")
        self.position = position


class CorruptRecordError(DecodeError):
    """Record data is damaged. Names topic, partition and offset as far as they are known."""

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

    def at(self, topic: str, partition: int, offset: int | None = None) -> CorruptRecordError:
        """The same error, with the place filled in by a caller that knows it."""
        return CorruptRecordError(
            self.reason,
            self.position,
            topic=topic,
            partition=partition,
            offset=self.offset if self.offset is not None else offset,
        )


class EncodeError(KafkaError, ValueError):
    """A value cannot be put on the wire: out of range, or a field the version lacks."""


class UnsupportedVersionError(KafkaError):
    """Broker and client have no version of this request in common."""


class KafkaConnectionError(KafkaError, OSError):
    """A connection could not be made, or it broke. The message names host and port."""

    retriable = True


class KafkaTimeoutError(KafkaError, TimeoutError):
    """A deadline passed. The last failure before it is the `__cause__`, and in the message."""


class BrokerError(KafkaError):
    """A broker answered with an error code. The number survives even if it is not in the table."""

    def __init__(self, code: int, where: str = "", message: str | None = None) -> None:
        self.code = code
        self.where = where
        self.broker_message = message
        text = f"error {code} {error_name(code)}"
        if where:
            text += f" from {where}"
        if message:
            text += f": {message}"
        elif code in _HINTS:
            text += f": {_HINTS[code]}"
        super().__init__(text)

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return is_retriable(self.code)

    @property
    def name(self) -> str:
        return error_name(self.code)


class UnknownTopicError(BrokerError):
    """A topic or partition does not exist.

    A broker's UNKNOWN_TOPIC_OR_PARTITION is retriable, since brokers learn of new topics one by
    one; this error is raised once waiting for that has not helped, so it is final.
    """

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return False


class Written(enum.Enum):
    """What is known about records whose delivery failed (librdkafka's message status)."""

    NO = "not written"
    YES = "written"
    UNKNOWN = "possibly written"


class ProduceError(KafkaError):
    """Records of one partition could not be delivered.

    `written` tells whether a retry by the caller may duplicate them.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        written: Written,
        code: int | None = None,
    ) -> None:
        super().__init__(f"{_where(topic, partition)}: {message} (records {written.value})")
        self.topic, self.partition, self.written, self.code = topic, partition, written, code


class DataLossError(KafkaError):
    """Records that were asked for are gone (retention, deletion, a recreated topic)."""


def _where(topic: str | None, partition: int | None) -> str:
    if topic is None:
        return ""
    return f"topic {topic}" if partition is None else f"topic {topic} partition {partition}"


class ErrorCode(enum.IntEnum):
    """Kafka's error codes (`org.apache.kafka.common.protocol.Errors`).

    Columns: number, retriable (Java's RetriableException), refresh metadata before the retry.
    """

    retriable: bool
    refresh: bool

    def __new__(cls, number: int, retriable: bool = False, refresh: bool = False) -> ErrorCode:
        row = int.__new__(cls, number)
        row._value_ = number
        row.retriable = retriable
        row.refresh = refresh
        return row

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2, True
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, True
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5, True, True
    NOT_LEADER_OR_FOLLOWER = 6, True, True
    REQUEST_TIMED_OUT = 7, True
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, True, True
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13, True, True
    COORDINATOR_LOAD_IN_PROGRESS = 14, True
    COORDINATOR_NOT_AVAILABLE = 15, True
    NOT_COORDINATOR = 16, True
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19, True
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41, True
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51, True
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, True, True
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70, True
    INVALID_FETCH_SESSION_EPOCH = 71, True
    LISTENER_NOT_FOUND = 72, True, True
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74, True, True
    UNKNOWN_LEADER_EPOCH = 75, True
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78, True
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, True
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, True
    ELECTION_NOT_NEEDED = 84, True, True
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88, True
    THROTTLING_QUOTA_EXCEEDED = 89, True
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100, True, True
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103, True, True
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122, True
    INVALID_SHARE_SESSION_EPOCH = 123, True
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133, True


_BY_NUMBER: dict[int, ErrorCode] = {int(row): row for row in ErrorCode}

# What a person can do about the codes that mean "you", not "the broker".
_HINTS: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist, or this user "
    "may not see it (needs DESCRIBE on the topic)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user has no permission on the topic; grant READ "
    "to read it, WRITE to write it",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user has no permission on the group; grant READ",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user lacks a permission on the cluster "
    "(IDEMPOTENT_WRITE for idempotent producers before Kafka 2.8)",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user has no permission on the "
    "transactional id; grant WRITE and DESCRIBE",
    ErrorCode.MESSAGE_TOO_LARGE: "larger than max.message.bytes of the topic (or "
    "message.max.bytes of the broker)",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a topic name has 1 to 249 characters of a-z A-Z 0-9 . _ - "
    "and is not '.' or '..'",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas in sync than the topic's min.insync.replicas",
    ErrorCode.INVALID_RECORD: "the broker refused the records; a compacted topic needs a key in "
    "each record",
    ErrorCode.INVALID_TIMESTAMP: "a timestamp lies outside what message.timestamp.*.max.ms allows",
}


def error_name(code: int) -> str:
    """Kafka's name of an error code, or `UNKNOWN_ERROR_CODE` for a number not in the table."""
    row = _BY_NUMBER.get(code)
    return row.name if row is not None else "UNKNOWN_ERROR_CODE"


def is_retriable(code: int) -> bool:
    """Java's retriable flag. Unknown codes are not retriable."""
    row = _BY_NUMBER.get(code)
    return row is not None and row.retriable


def needs_metadata(code: int) -> bool:
    """Whether metadata must be refreshed before a retry."""
    row = _BY_NUMBER.get(code)
    return row is not None and row.refresh
