"""Decides on a broker's error for a batch: the action, the error's message, and what is written.

`decide` has a table, and a few rules that depend on the batch's history. As in librdkafka's table
of produce errors, the action is independent of whether the records may be written.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.producer.partition_queue import ProducerBatch
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaError,
    ProduceError,
    Written,
    counted,
    is_retriable,
)


class Action(enum.Enum):
    """What becomes of a batch."""

    SPLIT = "send it again in parts"
    AFTER_PREDECESSOR = "send it again after the batch before it"
    NEW_PRODUCER_ID = "send it again under a new producer id"
    RETRY = "send it again as it is"
    FAIL = "give up"


class BatchDecision(NamedTuple):
    """`maybe_written`: the batch may be in the log in spite of this error."""

    action: Action
    maybe_written: bool


# The batch is in the log. A duplicate is the copy of an attempt whose response was lost.
WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})

# The batch was refused as a whole; smaller ones may be taken.
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

# A leader that loses its role, or its disk, while acks=all waits, answers so about records that
# it has appended; NETWORK_EXCEPTION means that a broker lost the leader in a request for us;
# UNKNOWN_SERVER_ERROR may come after the append.
MAYBE_WRITTEN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def decide(
    code: int,
    *,
    record_count: int,
    is_head: bool,
    maybe_written: bool,
    attempts_left: bool,
    transactional: bool = False,
) -> BatchDecision:
    """Return what to do with a batch for which the broker's response has this error code, which is
    none of WRITTEN.

    `is_head`: every earlier batch of the partition is acknowledged, or need not be waited for.
    `maybe_written`: an earlier attempt may have reached the log. `attempts_left`: `retries` allows
    another one. `transactional`: the producer id belongs to a transaction and cannot change.

    A head that is out of order comes here only if the Sender's `_recover_out_of_order` gave it up.
    """
    may_be_appended = code in MAYBE_WRITTEN
    if code in TOO_LARGE and record_count > 1:
        # The broker checks the size before it looks for a duplicate, and would not recognise the
        # parts of a batch that an earlier attempt has written.
        return BatchDecision(Action.FAIL if maybe_written else Action.SPLIT, maybe_written)
    if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_head:
        # Its predecessor failed and goes again first.
        return BatchDecision(Action.AFTER_PREDECESSOR, may_be_appended)
    if code == ErrorCode.UNKNOWN_PRODUCER_ID and not maybe_written and not transactional:
        # The broker dropped the producer's state with its last records (retention, DeleteRecords;
        # KIP-360), so this batch is not written.
        return BatchDecision(Action.NEW_PRODUCER_ID, may_be_appended)
    if is_retriable(code) and attempts_left:
        return BatchDecision(Action.RETRY, may_be_appended)
    return BatchDecision(Action.FAIL, may_be_appended)


def too_large(
    topic: str, partition: int | None, size_bytes: int, options: ProducerOptions, prefix: str = ""
) -> ProduceError:
    """Return the error of a record that is too large for a request or the buffer. `prefix` stands
    before names of settings: "kafka." in Spark."""
    limit = (
        f"{prefix}max.request.size={options.max_request_size} allows; raise it (and "
        "max.message.bytes of the topic), or send smaller records"
        if size_bytes > options.max_request_size
        else f"{prefix}buffer.memory={options.buffer_memory} holds; raise it"
    )
    return ProduceError(
        f"a record takes {size_bytes} bytes, more than {limit}",
        topic=topic,
        partition=-1 if partition is None else partition,
        written=Written.NO,
        code=ErrorCode.MESSAGE_TOO_LARGE,
    )


def batch_error(
    batch: ProducerBatch, text: str, cause: KafkaError | None, error_type: type[ProduceError]
) -> ProduceError:
    """Return the error, of this class (`error_type`), for a batch that cannot be delivered."""
    queue = batch.queue
    if queue.last_error is not None and str(queue.last_error) not in text:
        text += f"; the last failure: {queue.last_error}"
    text += f"; records in this batch: {batch.encoded.record_count}"
    # A batch that expired was not refused, whatever an earlier attempt met.
    code = cause.code if isinstance(cause, BrokerError) and error_type is ProduceError else None
    written = Written.UNKNOWN if batch.has_unknown_outcome else Written.NO
    topic, partition = queue.tp
    error = error_type(text, topic=topic, partition=partition, written=written, code=code)
    error.__cause__ = cause
    return error


def refusal_text(
    batch: ProducerBatch, error: BrokerError, options: ProducerOptions, prefix: str, facts: str
) -> str:
    """Return the message for a batch that a broker finally refused. `prefix` stands before names
    of settings; `facts` is what `refusal_facts` returned."""
    text = str(error)
    if error.code in TOO_LARGE and batch.encoded.record_count > 1:
        text += (
            ": an earlier attempt, which may have been written, got no response (was "
            "max.message.bytes lowered since?), so the batch cannot be sent in smaller parts"
        )
    elif error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        text += (
            ": the partition lost records that it had acknowledged (an unclean leader election? "
            "a topic that was recreated?); records before this batch are missing"
        )
    elif is_retriable(error.code):
        text += f" ({counted(batch.attempts, 'attempt')}, {prefix}retries={options.retries})"
    elif error.code == ErrorCode.POLICY_VIOLATION:
        text += (
            ": Azure Event Hubs says so of a write that it throttles for longer than "
            f"{prefix}request.timeout.ms; raise that, or its throughput units"
        )
    return text + facts


def with_codec_reason(error: BrokerError, codec: str, prefix: str) -> BrokerError:
    """Return the error of a batch. If the broker does not support the compression codec of the
    batch, the error's reason says that."""
    if codec == "none":
        return error
    setting = f"{prefix}compression.type"
    reason = f"the broker does not take {setting}={codec}: set another codec"
    if error.code == ErrorCode.INVALID_REQUEST:
        reason = (
            "the broker does not say what is wrong with the batch. Some brokers say so of a codec "
            f"that they do not take: set another {setting} than {codec}. If that does not help, "
            "the broker's log has the reason"
        )
    elif error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and codec != "gzip":
        # learn.microsoft.com/azure/event-hubs/apache-kafka-troubleshooting-guide. Kafka before 4.0
        # says so of a topic with an old message format, whatever the codec is.
        reason += " (Azure Event Hubs takes gzip and none)"
    elif error.code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
        return error
    if error.broker_message:
        reason = f"{error.broker_message}: {reason}"
    return BrokerError(error.code, error.where, reason)


def refusal_facts(cluster: Cluster, tp: TopicPartition, batch: ProducerBatch, code: int) -> str:
    """Return the facts about a refused batch that explain the error code, to be added to the
    broker's message; "" if there are none.

    For a record that is too large or a wrong timestamp it looks up the topic's settings (and says
    so if the user may not see them).
    """
    if code in TOO_LARGE and batch.encoded.record_count == 1:
        return (
            f": one record of {batch.size_bytes} bytes, sent as a batch of {batch.wire_bytes}, is "
            f"above {_settings_text(cluster, tp, ['max.message.bytes'])}; raise that, compress "
            f"({cluster.options.prefix}compression.type), or write smaller records"
        )
    if code == ErrorCode.INVALID_TIMESTAMP:
        encoded = batch.encoded
        # The last setting is the one before Kafka 3.6; Kafka 4.0 dropped it.
        names = [f"message.timestamp.{kind}.max.ms" for kind in ("before", "after", "difference")]
        return (
            f": the batch begins at timestamp {encoded.base_timestamp} ms, its latest is "
            f"{encoded.max_timestamp} ms, and the topic takes what keeps to "
            f"{_settings_text(cluster, tp, names)}; change that, or drop the "
            f"{'column ' if cluster.options.prefix else ''}timestamp to write with the time of "
            "writing"
        )
    return ""


def _settings_text(cluster: Cluster, tp: TopicPartition, names: list[str]) -> str:
    """Return the topic's settings of these names, for a message: name=value, name=value."""
    # Not at the top: it imports all messages of Admin.
    from sparkkafka.client.cluster.configs import ConfigResource, describe_configs

    topic = ConfigResource("topic", tp.topic)
    try:
        # The job has failed: its error must not wait long.
        settings = describe_configs(cluster, [topic], Deadline(3_000), keys=names)[topic]
    except KafkaError as error:
        return f"the topic's {' and '.join(names[:2])} (not known here: {error})"
    return "the topic's " + ", ".join(
        f"{name}={settings[name].value}" for name in names if name in settings
    )
