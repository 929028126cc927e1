"""Why a broker refused a batch for good: facts of the batch beside the topic's settings."""

from __future__ import annotations

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import topic_configs
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.sender.errors import TOO_LARGE
from sparkkafka.client.sender.partition_queue import ProducerBatch
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import ErrorCode, KafkaError

ASK_MS = 3_000  # the job has failed already: its error must not wait for long

SIZE_SETTINGS = ("max.message.bytes",)
TIME_SETTINGS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",  # the one before Kafka 3.6, gone since 4.0
)


def refusal_facts(cluster: Cluster, tp: TopicPartition, batch: ProducerBatch, code: int) -> str:
    """What to say after the broker's words, "" if there is nothing to add.

    Asks for the topic's settings where they decide; a user who may not see them gets told so.
    """
    if code in TOO_LARGE:
        return (
            f": one record of {batch.size_bytes} bytes, sent as a batch of {batch.wire_bytes}, is "
            f"above {_settings(cluster, tp, SIZE_SETTINGS)}; raise that, compress "
            f"({cluster.options.prefix}compression.type), or write smaller records"
        )
    if code == ErrorCode.INVALID_TIMESTAMP:
        encoded = batch.encoded
        return (
            f": the batch begins at timestamp {encoded.base_timestamp} ms, its latest is "
            f"{encoded.max_timestamp} ms, and the topic takes what keeps to "
            f"{_settings(cluster, tp, TIME_SETTINGS)}; change that, or drop the "
            f"{'column ' if cluster.options.prefix else ''}timestamp to write with the time of "
            "writing"
        )
    return ""


def _settings(cluster: Cluster, tp: TopicPartition, names: tuple[str, ...]) -> str:
    """`name=value, name=value` as the topic has them."""
    try:
        found = topic_configs(cluster, tp.topic, names, deadline=Deadline(ASK_MS))
    except KafkaError as error:
        return f"the topic's {' and '.join(names[:2])} (not known here: {error})"
    return "the topic's " + ", ".join(f"{name}={found[name]}" for name in names if name in found)
