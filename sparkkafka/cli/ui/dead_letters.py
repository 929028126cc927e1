"""The last records of a topic of dead letters, with the reasons in their headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import settings_without_group
from sparkkafka.client.values import TopicPartition

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer

PREFIX: Final = "__connect.errors."
"""What the names of headers begin with that say why a record is bad: those of Kafka Connect, which
`deadLetter.topic` writes too."""
PREVIEW_BYTES: Final = 256
"""The part of a key, value or header that is shown."""


class DeadLetterReader:
    """Reads the last records of topics, without a group. Use it under `with`; one thread at a
    time."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        fixed = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": "262144",
        }
        self._settings = settings_without_group(settings, fixed)
        self._consumer: Consumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._consumer is not None:
            self._consumer.close(0)

    def read(self, ends: Mapping[TopicPartition, int], count: int) -> list[dict[str, Any]]:
        """Return the last `count` records of these partitions, the last one first. What does not
        come within READ_S is left out. Raises KafkaError."""
        # Not at the top: it loads Arrow.
        from sparkkafka.client.consumer.consumer import Consumer

        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        consumer, deadline = self._consumer, Deadline(5_000)
        pending = {tp: end for tp, end in ends.items() if end > 0}
        letters: list[dict[str, Any]] = []
        consumer.assign({tp: max(0, end - count) for tp, end in pending.items()})
        while pending and not deadline.expired:
            table = consumer.poll_arrow(min(deadline.remaining_s(), 0.2), 1_000)
            # As a number: Python has no times after the year 9999, which a producer may write.
            times = table.schema.get_field_index("timestamp")
            micros = table.column(times).cast("int64")
            letters += map(_letter, table.set_column(times, "timestamp", micros).to_pylist())
            letters.sort(key=lambda row: (row["time_ms"], row["offset"]), reverse=True)
            del letters[count:]
            pending = {
                tp: end
                for tp, end in pending.items()
                if consumer.position(tp, deadline.remaining_s()) < end
            }
        consumer.assign({})
        return letters


def _letter(row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a record for JSON."""
    headers = {header["key"]: header["value"] for header in row["headers"] or ()}
    errors = {
        name.removeprefix(PREFIX): _preview(value)
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    reason = errors.pop("exception.message", None)
    if reason is None and "error" in headers:
        reason = _preview(headers["error"])
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "time_ms": max(0, row["timestamp"] or 0) // 1000,
        "key": _preview(row["key"]),
        "value": _preview(row["value"]),
        "reason": reason,
        "errors": errors,
    }


def _preview(value: bytes | None) -> str | None:
    """Return the beginning of bytes as text: as hex if they are not UTF-8."""
    if value is None:
        return None
    shown, more = value[:PREVIEW_BYTES], "…" if len(value) > PREVIEW_BYTES else ""
    for cut in range(4):  # the limit may have cut a character
        try:
            return shown[: len(shown) - cut].decode() + more
        except UnicodeDecodeError:
            if not more:
                break
    return f"0x{shown[: PREVIEW_BYTES // 2].hex()}{more}"


def named_like_dead_letters(topics: Iterable[str]) -> list[str]:
    """Return the topics whose name says that they may hold dead letters."""
    words = ("dead", "dlq", "dlt")
    return [name for name in topics if any(word in name.lower() for word in words)]
