"""The JSON of the page, from the snapshots that a thread takes.

Responses are limited in size: lists have at most MAX_ROWS rows, and `total` says how many there
are.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from sparkkafka.cli import snapshots
from sparkkafka.cli.checkpoint import batch_documents
from sparkkafka.cli.session import Session
from sparkkafka.cli.ui.server import NotFoundError, Query
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import list_lags, settings_without_group
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import KafkaError, OptionError

if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer

PREFIX: Final = "__connect.errors."
"""The prefix of headers that say why a record is bad. Kafka Connect and `deadLetter.topic` write
them."""
PREVIEW_BYTES: Final = 256
"""The part of a key, value or header that is shown."""


class DeadLetterReader:
    """Reads the last records of topics, without a group; one thread at a time."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        fixed = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": "262144",  # only the last records are shown
        }
        self._settings = settings_without_group(settings, fixed)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close(0)

    def read(self, ends: Mapping[TopicPartition, int], count: int) -> list[dict[str, Any]]:
        """Return the last `count` records before these ends, the latest first. Records that do not
        arrive within 5 s are left out. Raises KafkaError."""
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
    """Return a record of a dead-letter topic for JSON."""
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
    for cut in range(4):  # the limit may have cut a character, of four bytes at most
        try:
            return shown[: len(shown) - cut].decode() + more
        except UnicodeDecodeError:
            if not more:
                break
    return f"0x{shown[: PREVIEW_BYTES // 2].hex()}{more}"


MAX_ROWS: Final = 1_000
DEFAULT_ROWS: Final = 100
CURVES: Final = 5
"""The number of topics, or groups, in a plot of the overview."""
MAX_LETTERS: Final = 30
MAX_NAMED: Final = 10
"""Maximum number of topics that are read because their names look like dead letters."""
END_S: Final = 0.5
"""How long the end of the command waits for a thread."""
CACHED_S: Final = 5.0
"""For how long checkpoints and dead letters that were read are shown to all browsers."""


class _Cache:
    """Caches a document that is slow to make, for CACHED_S. One thread at a time makes it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made_at_s = -CACHED_S
        self._document: Any = None

    def document(self) -> Any:
        """Return the document, made again if it is older than CACHED_S."""
        with self._lock:
            if time.monotonic() - self._made_at_s >= CACHED_S:
                self._document = self._make()
                self._made_at_s = time.monotonic()
            return self._document

    def close(self) -> bool:
        """Wait until no thread makes the document, at most END_S, and let none make it again.
        Return whether that was in time."""
        return self._lock.acquire(timeout=END_S)


class Watcher:
    """Takes a snapshot every `every_s` seconds in a thread. Use it under `with`, which takes the
    first snapshot and raises KafkaError if that fails. If a later one fails, `snapshot` stays and
    `failure` has the error."""

    snapshot: snapshots.Snapshot

    def __init__(self, collector: snapshots.Collector, every_s: float) -> None:
        self._collector = collector
        self.every_s = every_s
        self.failure = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="sparkkafka-ui-snapshots", daemon=True
        )

    def __enter__(self) -> Self:
        self.snapshot = self._collector.collect()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.set()
        self._collector.interrupt()
        self._thread.join(timeout=END_S)

    def _watch(self) -> None:
        """Take a snapshot every `every_s`, until the watcher is closed. Runs in its own thread."""
        while not self._closing.wait(self.every_s):
            try:
                self.snapshot, self.failure = self._collector.collect(), ""
            except KafkaError as error:
                self.failure = str(error)

    def curves(self, **names: Iterable[str]) -> dict[str, Any]:
        """Return the curves of these topics or groups: see `History.curves`."""
        return self._collector.history.curves(names)


class Responses:
    """Makes the documents of the page: `documents` has a function for each path. Use it under
    `with`: it has connections of its own."""

    def __init__(
        self,
        watcher: Watcher,
        session: Session,
        checkpoints: Sequence[str],
        dead_letters: Sequence[str],
    ) -> None:
        self._watcher = watcher
        self._locations = list(dict.fromkeys(checkpoints))
        self._topics = list(dict.fromkeys(dead_letters))
        self._admin = session.admin(session.new_deadline())
        self._reader = DeadLetterReader(session.settings("consumer"))
        self._checkpoints_cache = _Cache(self._checkpoints)
        self._letters_cache = _Cache(self._dead_letters)
        self.documents: Mapping[str, Callable[[Query], Any]] = {
            "/api/state": self._state,
            "/api/overview": self._overview,
            "/api/topics": self._topic_rows,
            "/api/topic": self._topic,
            "/api/groups": self._group_rows,
            "/api/group": self._group,
            "/api/checkpoints": lambda query: self._checkpoints_cache.document(),
            "/api/dead-letters": lambda query: self._letters_cache.document(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # The thread that makes a document may wait long for a broker or a file system. The process
        # ends without waiting for it.
        self._admin.interrupt()
        if self._checkpoints_cache.close():
            self._admin.close()
        if self._letters_cache.close():
            self._reader.close()

    # --- cluster

    # Each of these makes the document of a path. `query` has the parameters of the URL.

    def _state(self, query: Query) -> dict[str, Any]:
        """The document of the cluster and its last snapshot."""
        watcher, snapshot = self._watcher, self._watcher.snapshot
        return {
            "cluster_id": snapshot.cluster_id,
            "time_ms": snapshot.time_ms,
            "took_s": round(snapshot.took_s, 3),
            "every_s": watcher.every_s,
            "rates_s": snapshot.rates_s,
            "failure": watcher.failure,
        }

    def _overview(self, query: Query) -> dict[str, Any]:
        """Return the totals and the brokers, and the CURVES topics and groups with the largest
        rates and lags."""
        watcher, snapshot = self._watcher, self._watcher.snapshot
        fastest = sorted(snapshot.topics, key=snapshots.TOPIC_ORDERS["rate"])
        behind = sorted(snapshot.groups, key=snapshots.GROUP_ORDERS["lag"])
        topics = [row.topic for row in fastest[:CURVES]]
        groups = [row.group for row in behind[:CURVES]]
        return {
            "problems": snapshot.problems,
            "totals": snapshot.totals,
            "brokers": [vars(row) for row in snapshot.brokers],
            "topics": [vars(row) for row in fastest[:CURVES]],
            "groups": [_without_topics(row) for row in behind[:CURVES]],
            "curves": watcher.curves(records=["", *topics], bytes=["", *topics], lag=["", *groups]),
        }

    def _topic_rows(self, query: Query) -> dict[str, Any]:
        return _choose_rows(
            self._watcher.snapshot.topics, query, "topic", snapshots.TOPIC_ORDERS, vars
        )

    def _topic(self, query: Query) -> dict[str, Any]:
        """The document of one topic (`name` of the query): its partitions, its readers, its
        curves."""
        snapshot, name = self._watcher.snapshot, query.get("name", "")
        row = _row_of(snapshot.topics, "topic", name)
        partitions = sorted(tp for tp in snapshot.leaders if tp.topic == name)
        rows = [
            {
                "partition": tp.partition,
                "leader": snapshot.leaders[tp],
                "end": snapshot.ends.get(tp),
                "records_per_s": snapshot.rates.get(tp),
                "size_bytes": snapshot.sizes.get(tp),
            }
            for tp in partitions
        ]
        readers: list[dict[str, Any]] = sorted(
            (
                {"group": group.group, "lag": group.lag_by_topic[name]}
                for group in snapshot.groups
                if name in group.lag_by_topic
            ),
            key=lambda reader: (-reader["lag"], reader["group"]),
        )
        return {
            "row": vars(row),
            "curves": self._watcher.curves(records=[name], bytes=[name]),
            "partitions": {"total": len(rows), "rows": rows[:MAX_ROWS]},
            "groups": {"total": len(readers), "rows": readers[:DEFAULT_ROWS]},
        }

    def _group_rows(self, query: Query) -> dict[str, Any]:
        rows = self._watcher.snapshot.groups
        return _choose_rows(rows, query, "group", snapshots.GROUP_ORDERS, _without_topics)

    def _group(self, query: Query) -> dict[str, Any]:
        """The document of one group (`name` of the query): its partitions, those with most lag
        first."""
        snapshot, name = self._watcher.snapshot, query.get("name", "")
        row = _row_of(snapshot.groups, "group", name)
        partitions = [
            {**tp._asdict(), "committed": offset, "end": end, "lag": end and max(0, end - offset)}
            for tp, offset in sorted(snapshot.committed.get(name, {}).items())
            for end in (snapshot.ends.get(tp),)
        ]
        partitions.sort(key=lambda row: -(row["lag"] or 0))
        return {
            "row": vars(row),
            "curves": self._watcher.curves(lag=[name]),
            "partitions": {"total": len(partitions), "rows": partitions[:DEFAULT_ROWS]},
        }

    # --- checkpoints and dead letters

    def _checkpoints(self) -> dict[str, Any]:
        """Return the document of all checkpoints of --checkpoint."""
        self._admin.restart_deadline()
        return {"checkpoints": [self._checkpoint(location) for location in self._locations]}

    def _checkpoint(self, location: str) -> dict[str, Any]:
        """Describe a checkpoint: its last batches, and the lag of its query."""
        from sparkkafka.checkpoints.against_kafka import next_offsets
        from sparkkafka.checkpoints.logs import Checkpoint

        errors: list[KafkaError] = []
        document: dict[str, Any] = {"location": location}
        try:
            checkpoint = Checkpoint(location)
            document["stateful"] = checkpoint.is_stateful
            document["batches"] = [
                {
                    "batch": row["batch"],
                    "finished": row["finished"],
                    "planned_ms": row["planned_ms"],
                    "records": snapshots.sum_of(
                        partition["records"]
                        for source in row["sources"]
                        for partition in source["partitions"]
                    ),
                    "topics": sorted(
                        {
                            partition["topic"]
                            for source in row["sources"]
                            for partition in source["partitions"]
                        }
                    ),
                }
                for row in reversed(batch_documents(checkpoint, count=10, errors=errors))
            ]
            document["query_id"] = checkpoint.query_id
            lags = list_lags(self._admin, next_offsets(checkpoint, self._admin))
            lags.sort(key=lambda row: -(row.lag or 0))
            document["lag"] = snapshots.sum_of(row.lag for row in lags)
            document["partitions"] = {
                "total": len(lags),
                "rows": [
                    {
                        **row.partition._asdict(),
                        "next": row.committed,
                        "end": row.latest,
                        "lag": row.lag,
                        "lost": row.gone,
                    }
                    for row in lags[:DEFAULT_ROWS]
                ],
            }
        except KafkaError as error:
            errors.append(error)
        # A file that was read twice has two equal errors.
        document["errors"] = list({str(error): None for error in errors})
        return document

    def _dead_letters(self) -> dict[str, Any]:
        """Return the last records of the topics of --dead-letters, and of those that are named
        like dead letters and have headers with a reason."""
        snapshot = self._watcher.snapshot
        likely = (
            row.topic
            for row in snapshot.topics
            if re.search("dead|dlq|dlt", row.topic.lower()) and row.topic not in self._topics
        )
        documents = []
        for name in [*self._topics, *islice(likely, MAX_NAMED)]:
            ends = {tp: end for tp, end in snapshot.ends.items() if tp.topic == name}
            document: dict[str, Any] = {
                "topic": name,
                "records": sum(ends.values()),
                "letters": [],
                "error": "" if ends else f"there is no topic {name!r}, or it has no leader",
            }
            try:
                document["letters"] = self._reader.read(ends, MAX_LETTERS)
            except KafkaError as error:
                document["error"] = str(error)
            if name in self._topics or any(
                letter["reason"] is not None for letter in document["letters"]
            ):
                documents.append(document)
        return {"topics": documents}


def _without_topics(row: snapshots.GroupRow) -> dict[str, Any]:
    """Return a group for a list: with the topic of its largest lag, and the number of topics."""
    document = {**vars(row), "topics": len(row.lag_by_topic)}
    by_topic = document.pop("lag_by_topic")
    document["topic"] = max(by_topic, key=lambda name: (by_topic[name], name), default=None)
    return document


def _row_of(rows: Iterable[Any], kind: str, name: str) -> Any:
    """Return the row of a topic or group (`kind`). Raises NotFoundError."""
    for row in rows:
        if getattr(row, kind) == name:
            return row
    raise NotFoundError(f"there is no {kind} {name!r} (any more)")


def _choose_rows(
    rows: Iterable[Any],
    query: Query,
    kind: str,
    orders: Mapping[str, Callable[[Any], Any]],
    document_of: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the rows of topics or groups (`kind`) whose names contain the filter, in one of the
    `orders`, by default the first: at most `limit` of them from `start` on, and the total."""
    sort = query.get("sort", next(iter(orders)))
    if sort not in orders:
        raise OptionError(f"sort is one of {', '.join(orders)}")
    text = query.get("filter", "").lower()
    chosen = sorted((row for row in rows if text in getattr(row, kind).lower()), key=orders[sort])
    numbers = []
    for name, default in (("start", 0), ("limit", DEFAULT_ROWS)):
        text = query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise OptionError(f"{name} is a whole number")
        numbers.append(int(text))
    start, limit = numbers
    shown = chosen[start : start + min(limit, MAX_ROWS)]
    return {"total": len(chosen), "start": start, "rows": [document_of(row) for row in shown]}
