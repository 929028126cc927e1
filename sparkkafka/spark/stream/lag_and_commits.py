"""Offsets in the progress of streaming queries: how far behind a query is, and its consumer group.

Spark reports the offsets of each source as JSON; those of Kafka sources are {"topic": {"0": 23}}.
In PySpark 4.0 and 4.1 a query's own `lastProgress` has the text of a Python dictionary instead.

A stream starts from the offsets in its checkpoint; a consumer group only shows them to lag tools
and other clients. Spark informs a source of a finished batch when the next batch begins, and never
of the last batch, but informs a listener immediately.
"""

from __future__ import annotations

import ast
import atexit
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import list_offsets
from sparkkafka.client.deadline import Deadline, deadline_of
from sparkkafka.client.group.committed_offsets import commit_stored
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.config.options import GroupOptions, parse_group_options
from sparkkafka.config.source import offsets_of_tree
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.protocol.constants import LATEST
from sparkkafka.spark.delegation_tokens import with_token
from sparkkafka.spark.read.planning import compile_pattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]

# Spark's class name is the same for every Python source, so it does not identify ours.
_MAY_BE_KAFKA = ("PythonMicroBatchStream", "KafkaV2[")

# Spark 4.0 and 4.1 show the end of the batch as latestOffset of a Python source.
_LATEST_IS_REPORTED = find_spec("pyspark.sql.streaming.datasource") is not None


class KafkaProgress(NamedTuple):
    """What a progress report says of one Kafka source: the ends of the batch, and of the log if
    that is known; where the batch began, None of a query's first; and how many rows Spark took."""

    read: Offsets
    latest: Offsets | None
    start: Offsets | None
    rows: int


COMMIT_TIMEOUT_MS = 10_000
"""How long one commit may keep Spark's other listeners waiting."""


def lag(
    query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any] | str | None,
    options: Mapping[str, Any] | None = None,
    *,
    timeout_s: float | None = None,
) -> Offsets:
    """How many offsets the query's last micro-batch left unread, by partition.

    `query` is a streaming query, one of its progress reports, or such a report as a dictionary or
    as JSON; of several Kafka sources each partition counts once, with its largest lag. Empty if
    there was no batch yet.

    Without `options` the lag is measured against the end of the log before the batch, which Spark
    4.2 and later reports, except for a batch repeated after a restart; without it this raises
    OptionError. With the query's `options` (`kafka.bootstrap.servers`, …) the brokers are asked
    now, for at most `timeout_s` (by default kafka.default.api.timeout.ms), and errors of that
    lookup are raised.

    Sources that are not Kafka's do not count. OptionError too if a source may be Kafka's and its
    offsets cannot be read.
    """
    sources = kafka_sources(query)
    if options is not None:
        ends = _ends_now(options, sources, deadline_of(timeout_s))
        sources = [source._replace(latest=ends) for source in sources]
    behind = _behind(sources)
    if behind is None:
        why = (
            "its last batch is one that was repeated after a restart"
            if _LATEST_IS_REPORTED
            else "Spark 4.2 and later does"
        )
        raise OptionError(
            f"the progress of this query does not say where the logs end ({why}); pass the "
            "query's options to ask the brokers: lag(query, options)"
        )
    return behind


def reported_lag(progress: Any) -> Offsets | None:
    """As `lag` without options; None if the report does not say where the logs end."""
    return _behind(kafka_sources(progress))


def _behind(sources: Iterable[KafkaProgress]) -> Offsets | None:
    behind: Offsets = {}
    for read, ends, *_ in sources:
        if ends is None:
            return None
        for tp, offset in read.items():
            if tp in ends:
                behind[tp] = max(behind.get(tp, 0), ends[tp] - offset)
    return dict(sorted(behind.items()))


def read_until(progress: Any) -> Offsets:
    """The offsets that the reported batch has read up to, of all Kafka sources of the query.

    Where two sources read one partition, the smaller one. Raises OptionError if the offsets of a
    source that may be Kafka's cannot be read.
    """
    until: Offsets = {}
    for read, *_ in kafka_sources(progress):
        for tp, offset in read.items():
            until[tp] = min(offset, until.get(tp, offset))
    return until


def kafka_sources(query: Any) -> list[KafkaProgress]:
    """Of each Kafka source of a query or a report. Raises OptionError as `lag`."""
    progress = report_of(getattr(query, "lastProgress", query))
    if progress is None:
        return []
    found = []
    for source in field_of(progress, "sources") or ():
        description = str(field_of(source, "description"))
        read = _offsets(field_of(source, "endOffset"), description)
        if read is not None:
            latest = None
            if _LATEST_IS_REPORTED:
                latest = _offsets(field_of(source, "latestOffset"), description)
            start = _offsets(field_of(source, "startOffset"), description)
            rows = field_of(source, "numInputRows")
            found.append(KafkaProgress(read, latest, start, int(rows or 0)))
    return found


def report_of(progress: Any) -> Any:
    """A report of progress; one that is JSON becomes a dictionary. Raises OptionError."""
    try:
        report = json.loads(progress) if isinstance(progress, str) else progress
    except ValueError:
        report = ()
    if report is not None and field_of(report, "sources") is None:
        raise OptionError(
            "this takes a query, a report of its progress, or that as JSON, not "
            f"{repr(progress)[:100]}"
        )
    return report


def field_of(holder: Any, name: str) -> Any:
    """What a report says under this name, whatever form it has; None if it says nothing."""
    # Over Connect a report is a dictionary too, and that lacks what the attribute numInputRows adds
    # up.
    found = getattr(holder, name, None)
    return holder.get(name) if found is None and isinstance(holder, Mapping) else found


def _offsets(value: Any, description: str) -> Offsets | None:
    """None for what is not the offsets of a Kafka source, or none at all."""
    try:
        tree = _parsed(value) if isinstance(value, str) else value
    except ValueError:
        if any(name in description for name in _MAY_BE_KAFKA):
            raise OptionError(
                f"the progress of this query reports offsets of the source {description} that "
                f"cannot be read: {value[:200]!r} is neither JSON nor a dictionary of Python's"
            ) from None
        return None
    if not isinstance(tree, Mapping):
        return None
    try:
        return {TopicPartition(*key): at for key, at in offsets_of_tree(tree).items()}
    except OptionError:  # another source's
        return None


def _parsed(text: str) -> Any:
    """What JSON stands for, or the text of a Python value (see the top). Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _ends_now(
    options: Mapping[str, Any], sources: Iterable[KafkaProgress], deadline: Deadline | None
) -> Offsets:
    parsed = parse_group_options(with_token(options))
    with Cluster(parsed.client) as cluster:
        listed = list_offsets(
            cluster,
            {tp: LATEST for read, *_ in sources for tp in read},
            isolation_level=parsed.isolation_level,
            deadline=deadline,
        )
    return {tp: row.offset for tp, row in listed.items()}


# --- a consumer group that follows --------------------------------------------------------------


def commit_to_group(
    spark: SparkSession, options: Mapping[str, Any], query: str | None = None
) -> GroupCommitter:
    """Commit the offsets of finished micro-batches to the consumer group `kafka.group.id`.

    `options` are those of the stream: kafka.bootstrap.servers and kafka.group.id are needed, and
    if it says what is read (subscribe, subscribePattern or assign), no other topic is committed.
    `query` is the name or the id of one query; without it every query of the session that reads
    Kafka counts. Call it before the query starts; `spark.streams.removeListener(…)` with the
    result ends it. Spark informs its listeners a moment after a batch: at exit the program waits
    for them, and `flush(query)` of the result commits immediately (over Spark Connect call it
    before the program ends).

    A failed commit is a warning, and is tried again with the next batch or at the query's end: the
    checkpoint, not the group, decides where a query goes on. Raises OptionError.
    """
    parsed = parse_group_options(with_token(options))
    if not parsed.group_id:
        raise OptionError("commit_to_group needs the name of the group: set kafka.group.id")
    committer = GroupCommitter(parsed, query)
    spark.streams.addListener(committer)
    atexit.register(wait_for_listeners, spark)
    return committer


def wait_for_listeners(spark: SparkSession) -> None:
    """Wait until Spark's listeners have received all events, if the session still exists."""
    try:
        context = spark._jsparkSession.sparkContext()
        if not context.isStopped():
            context.listenerBus().waitUntilEmpty(COMMIT_TIMEOUT_MS)
    except Exception as error:  # a Connect session, a JVM that has exited, a timeout
        log.debug("did not wait for Spark's listeners: %s", error)


class GroupCommitter(StreamingQueryListener):
    """See `commit_to_group`."""

    def __init__(self, options: GroupOptions, query: str | None = None) -> None:
        self._options = options
        self._query = query
        what = options.subscription
        # Compiled here, so that a bad pattern is an error before the query starts.
        self._pattern = compile_pattern(what.pattern) if what and what.pattern else None
        self._lock = threading.Lock()
        self._committed: Offsets = {}
        self._pending: dict[str, Offsets] = {}  # by run id of a query: offsets to commit

    def __repr__(self) -> str:
        return f"GroupCommitter(group_id={self._options.group_id!r}, query={self._query!r})"

    @property
    def committed(self) -> Offsets:
        """What was committed so far, by partition."""
        with self._lock:
            return dict(self._committed)

    def flush(self, query: StreamingQuery) -> None:
        """Commit now what the query's last batch has read.

        Raises OptionError if the query's report of it cannot be read.
        """
        progress = query.lastProgress
        if progress is not None:
            self._note(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do before the first batch is over."""

    def onQueryProgress(self, event: Any) -> None:
        try:
            self._note(event.progress)
        except OptionError as error:
            log.warning(
                "offsets of query %s were not committed to group %s (the query is not affected): "
                "%s",
                event.progress.name or event.progress.id,
                self._options.group_id,
                error,
            )

    def _note(self, progress: Any) -> None:
        if self._query not in (None, progress.name, str(progress.id)):
            return
        run = str(progress.runId)
        with self._lock:
            self._pending[run] = {
                tp: offset for tp, offset in read_until(progress).items() if self._reads(tp)
            }
            self._commit(run)

    def onQueryIdle(self, event: Any) -> None:
        with self._lock:
            self._commit(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None:
        run = str(event.runId)
        with self._lock:
            self._commit(run)
            self._pending.pop(run, None)

    def _reads(self, tp: TopicPartition) -> bool:
        """Whether the options mean this partition; yes if they do not say what is read."""
        what = self._options.subscription
        if what is None:
            return True
        if self._pattern is not None:
            return self._pattern.search(tp.topic) is not None
        return tp.topic in what.topics or tp in what.partitions

    def _commit(self, run: str) -> None:
        # If several queries read a partition, the offset that all of them have reached.
        reached = {
            tp: min(other[tp] for other in self._pending.values() if tp in other)
            for tp in self._pending.get(run, {})
        }
        changed = {
            tp: offset for tp, offset in reached.items() if self._committed.get(tp) != offset
        }
        if not changed:
            return
        group_id = self._options.group_id or ""
        try:
            # A connection for each commit: none is left idle between batches that are far apart.
            with Cluster(self._options.client) as cluster:
                offsets = {tp: OffsetAndMetadata(offset) for tp, offset in changed.items()}
                commit_stored(cluster, group_id, offsets, deadline=Deadline(COMMIT_TIMEOUT_MS))
        except KafkaError as error:
            log.warning(
                "offsets of %d partitions were not committed to group %s (the query is not "
                "affected; tried again after its next batch): %s",
                len(changed),
                group_id,
                error,
            )
            return
        self._committed |= changed
