"""The package's exceptions, and Kafka's error codes from `error_codes`.

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
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparkkafka.error_codes import (
    ErrorCode,
    error_description,
    error_name,
    is_retriable,
    needs_metadata,
)

__all__ = [
    "AcknowledgeError",
    "AuthenticationError",
    "BadRecordError",
    "BatchTooLargeError",
    "BrokerError",
    "CheckpointError",
    "CommitFailedError",
    "ConsumerStateError",
    "CorruptRecordError",
    "DataLossError",
    "DecodeError",
    "DeliveryTimeoutError",
    "EncodeError",
    "ErrorCode",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogTruncationError",
    "NoOffsetError",
    "OptionError",
    "PartitionOutcome",
    "ProduceError",
    "ProducerFencedError",
    "RegistryError",
    "SchemaError",
    "TransactionError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "WakeupError",
    "Written",
    "error_description",
    "error_name",
    "is_retriable",
    "needs_metadata",
]


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
    """Another producer has taken over this one's transactional.id, or the brokers have ended a
    transaction that was open for too long.

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
    """Return the totals of all partitions as text, and the first partitions that have records that
    are not written, or of which that is not known."""
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


def counted(count: int, what: str) -> str:
    """Return a count with its noun `what`: "1 record", "2 records"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


_SPARK_HINTS: list[str] = []


def spark_hint(text: str) -> str:
    """Mark a part of a message as useful to users of Spark only, and return it. The message
    contains it as it is."""
    _SPARK_HINTS.append(text)
    return text


def without_spark_hints(message: str) -> str:
    """Remove the parts of a message that `spark_hint` has marked: the command is not Spark."""
    for hint in _SPARK_HINTS:
        message = message.replace(hint, "")
    return message


def _where(topic: str | None, partition: int | None) -> str:
    """Return "topic T partition P" for a message, as far as it is known; "" without a topic."""
    if topic is None:
        return ""
    return f"topic {topic}" if partition is None else f"topic {topic} partition {partition}"
