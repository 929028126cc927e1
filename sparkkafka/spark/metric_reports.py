"""Reports of the driver's processes and tasks to `sparkkafka.metrics`, in small datagrams.

Spark gives Python sources and tasks no way to report numbers, and they do not run in the user's
process, where the listener is. So each sends its counts to `metricsAddress` by UDP, which never
waits; a lost report only makes the metrics too low.

A datagram is 16 bytes of a keyed BLAKE2b over the rest, and the rest is JSON. A report of many
partitions takes several datagrams.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pyspark import TaskContext

from sparkkafka.config.kinds import MetricsAddress

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""The property that Spark's StreamExecution sets for the tasks of a query."""

VERSION: Final = 1
MAC_BYTES: Final = 16
MAX_BYTES: Final = 1_200
"""The size of a datagram that no network fragments."""
MAX_ROWS: Final = 64
"""The maximum number of partitions in a report. With more, counts are summed by topic, so that a
report costs only a fraction of a millisecond."""
ALL_PARTITIONS: Final = -1


class Count(StrEnum):
    """What is counted: the names in a report."""

    # by topic and partition
    RECORDS = "records"
    BYTES = "bytes"
    LOST = "lost"
    BAD = "bad"
    DEAD = "dead"
    ROWS = "rows"
    OFFSETS = "offsets"
    # of a partition, or of the query: retries of planning
    RETRIES = "retries"
    # of the query
    WRITTEN_BYTES = "written_bytes"
    WRITE_RETRIES = "write_retries"
    COMMITTED = "committed"
    ABORTED = "aborted"


OF_QUERY: Final = frozenset(
    {Count.RETRIES, Count.WRITTEN_BYTES, Count.WRITE_RETRIES, Count.COMMITTED, Count.ABORTED}
)
BY_PARTITION: Final = frozenset(Count) - OF_QUERY | {Count.RETRIES}
"""The names that the totals of a query, and the counts of a partition, may have."""

_MAX_PREFIX_CHARS = 1_000

Counts = dict[tuple[str, int], dict[str, int]]
"""By (topic, partition): the counts of that partition by name."""


class BadReportError(ValueError):
    """A datagram is not a report of this package."""


@dataclass
class Report:
    """Counts of one process. `query` is the query's id, "" if there is none or it is unknown.

    The process that plans micro-batches does not know the query's id. Instead, `ends` identifies
    the batch (`ends_key`). `prefix` is that of the query's transactional ids, "" if the report is
    not of an exactly-once write. `counts` are those of partitions, `totals` those of the query.
    """

    query: str = ""
    ends: str = ""
    prefix: str = ""
    counts: Counts = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int, topic: str = "", partition: int = 0) -> None:
        """Add `count` to the count with this name: of one partition or, without a topic, of the
        query."""
        if not count:
            return
        row = self.counts.setdefault((topic, partition), {}) if topic else self.totals
        row[name] = row.get(name, 0) + count

    def add_report(self, other: Report) -> None:
        """Add the counts of the other report."""
        for (topic, partition), row in other.counts.items():
            for name, count in row.items():
                self.add(name, count, topic, partition)
        for name, count in other.totals.items():
            self.add(name, count)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the counts that have another name than one of these."""
        names_to_keep = frozenset(names)
        for row in (*self.counts.values(), self.totals):
            for name in row.keys() - names_to_keep:
                del row[name]

    def __bool__(self) -> bool:
        return bool(self.totals) or any(self.counts.values())

    def send(self, address: MetricsAddress | None) -> None:
        """Send the report if there is an address and a count. Never raises, never waits."""
        if address is None or not self:
            return
        try:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                for datagram in datagrams(self, address.key):
                    sock.sendto(datagram, (address.host, address.port))
        except OSError as error:  # no route, or a full buffer: the metrics miss these counts
            log.debug("a report for sparkkafka.metrics was not sent: %s", error)


@contextmanager
def task_report(address: MetricsAddress | None) -> Iterator[Report]:
    """Yield the report of a read task, and send it at the end if there is an address.

    If the task fails, only its effects outside of Spark are reported, since Spark runs it again.
    """
    report = Report(query_id())
    try:
        yield report
    except GeneratorExit:  # Spark wants no more rows
        raise
    except BaseException:
        report.keep_only((Count.RETRIES, Count.DEAD))
        raise
    finally:
        report.send(address)


def query_id() -> str:
    """Return the id of the query that this task belongs to, "" outside of a query."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) or "") if context is not None else ""


def ends_key(ends: Iterable[tuple[str, int, int]], *, is_first: bool = False) -> str:
    """Return a hash of the offsets at which a micro-batch ends, (topic, partition, offset).

    `is_first`, for the first batch of a query, is part of the hash: another query may have reached
    the same end before.
    """
    text = json.dumps([is_first, sorted(ends)])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# --- datagrams ----------------------------------------------------------------------------------


def datagrams(report: Report, key: bytes) -> Iterator[bytes]:
    """Yield the report as datagrams, each of which can be parsed without the others. The first one
    has the totals."""
    head: dict[str, Any] = {"v": VERSION, "query": report.query}
    head |= {"ends": report.ends, "prefix": report.prefix[:_MAX_PREFIX_CHARS]}
    rows = [
        _dump([topic, partition, row])
        for (topic, partition), row in _sum_by_topic_if_many(report).items()
        if row
    ]
    totals, next_row = report.totals, 0
    while next_row < len(rows) or totals:
        # Random, since the receiver drops a datagram that it has seen before.
        opening = _dump({**head, "n": os.urandom(6).hex(), "totals": totals})[:-1] + ',"rows":['
        fitting: list[str] = []
        size_bytes = MAC_BYTES + len(opening) + len("]}")
        while next_row < len(rows) and (
            not fitting or size_bytes + len(rows[next_row]) < MAX_BYTES
        ):
            size_bytes += len(rows[next_row]) + len(",")
            fitting.append(rows[next_row])
            next_row += 1
        body = f"{opening}{','.join(fitting)}]}}".encode()
        yield _mac(body, key) + body
        totals = {}


def _sum_by_topic_if_many(report: Report) -> Counts:
    """Return the counts by partition, or by topic if there are more than MAX_ROWS partitions."""
    if len(report.counts) <= MAX_ROWS:
        return report.counts
    summed = Report()
    for (topic, _), row in report.counts.items():
        for name, count in row.items():
            summed.add(name, count, topic, ALL_PARTITIONS)
    return summed.counts


def parse_report(datagram: bytes, key: bytes) -> Report:
    """Parse a datagram. Raises BadReportError if its MAC or any of its contents is wrong."""
    mac, body = datagram[:MAC_BYTES], datagram[MAC_BYTES:]
    if len(mac) < MAC_BYTES or not hmac.compare_digest(mac, _mac(body, key)):
        raise BadReportError("signature")
    try:
        return _parse_tree(json.loads(body))
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise BadReportError("form") from error


def _parse_tree(tree: Any) -> Report:
    """Parse the JSON of a datagram. Raises BadReportError, TypeError, KeyError, ValueError."""
    if tree["v"] != VERSION:
        raise BadReportError("version")
    report = Report(
        _checked_text(tree["query"], "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|"),
        _checked_text(tree["ends"], "[0-9a-f]{16}|"),
        str(tree["prefix"])[:_MAX_PREFIX_CHARS],
    )
    for topic, partition, row in tree["rows"]:
        _checked_text(topic, "[a-zA-Z0-9._-]{1,249}")
        if type(partition) is not int or not ALL_PARTITIONS <= partition < 2**31:
            raise BadReportError("partition")
        report.counts[topic, partition] = _checked_counts(row, BY_PARTITION)
    report.totals = _checked_counts(tree["totals"], OF_QUERY)
    return report


def _checked_text(value: Any, pattern: str) -> str:
    """Return the text if it matches the pattern. Raises BadReportError."""
    if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
        raise BadReportError("text")
    return value


def _checked_counts(row: Mapping[str, Any], names: frozenset[str]) -> dict[str, int]:
    """Return the counts if their names are among these. Raises BadReportError."""
    if not isinstance(row, dict) or not row.keys() <= names:
        raise BadReportError("names")
    # type() rather than isinstance(): True is an int, too.
    if not all(type(count) is int and 0 <= count <= 2**62 for count in row.values()):
        raise BadReportError("numbers")
    return dict(row)


def _mac(body: bytes, key: bytes) -> bytes:
    """Return the keyed hash that precedes a datagram's body."""
    return hashlib.blake2b(body, digest_size=MAC_BYTES, key=key).digest()


def _dump(value: Any) -> str:
    """Return JSON without white space."""
    return json.dumps(value, separators=(",", ":"))
