"""Offsets of streaming queries in a consumer group, where lag tools and other clients see them.

Spark keeps a stream's offsets in its checkpoint, and those count. A source is told of a finished
batch only when the next one begins, and of the last one never; a listener is told at once.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import commit_offsets
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import GroupOptions, parse_group_options
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.spark.read.planning import compile_pattern
from sparkkafka.spark.stream.progress import Offsets, read_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 10_000
"""How long one commit may keep Spark's other listeners waiting."""


def commit_to_group(
    spark: SparkSession, options: Mapping[str, Any], query: str | None = None
) -> GroupCommitter:
    """Commit the offsets of finished micro-batches to the consumer group `kafka.group.id`.

    `options` are those of the stream: kafka.bootstrap.servers and kafka.group.id are needed, and
    if it says what is read (subscribe, subscribePattern or assign), no other topic is committed.
    `query` is the name or the id of one query; without it every query of the session that reads
    Kafka counts. Call it before the query starts. `spark.streams.removeListener(…)` with what
    this returns ends it. Spark tells its listeners of a batch a moment after it is over; a program
    that ends at once is held until they have heard of the last one, and `flush(query)` of what this
    returns commits at once (over Spark Connect: call it before the program ends).

    A commit that fails is a warning, and is tried again with the next batch or at the query's end:
    the checkpoint, not the group, decides where a query goes on. Raises OptionError.
    """
    given = parse_group_options(options)
    if not given.group_id:
        raise OptionError("commit_to_group needs the name of the group: set kafka.group.id")
    committer = GroupCommitter(given, query)
    spark.streams.addListener(committer)
    atexit.register(_let_listeners_finish, spark)
    return committer


def _let_listeners_finish(spark: SparkSession) -> None:
    """Wait until Spark's listeners have heard of all batches, if the session is still there."""
    try:
        context = spark._jsparkSession.sparkContext()
        if not context.isStopped():
            context.listenerBus().waitUntilEmpty(COMMIT_TIMEOUT_MS)
    except Exception as error:  # a Connect session, a JVM that is gone, a timeout: too late anyway
        log.debug("did not wait for Spark's listeners: %s", error)


class GroupCommitter(StreamingQueryListener):
    """See `commit_to_group`."""

    def __init__(self, options: GroupOptions, query: str | None = None) -> None:
        self._options = options
        self._query = query
        what = options.subscription
        # Compiled here, so that what is wrong with it is said before the query starts.
        self._pattern = compile_pattern(what.pattern) if what and what.pattern else None
        self._lock = threading.Lock()
        self._committed: Offsets = {}
        self._pending: dict[str, Offsets] = {}  # by run id of a query: what the group is to have

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
        # Where several queries read a partition, what all of them have read.
        wanted = {
            tp: min(other[tp] for other in self._pending.values() if tp in other)
            for tp in self._pending.get(run, {})
        }
        changed = {tp: offset for tp, offset in wanted.items() if self._committed.get(tp) != offset}
        if not changed:
            return
        group_id = self._options.group_id or ""
        try:
            # A connection for each commit: none is left idle between batches that are far apart.
            with Cluster(self._options.client) as cluster:
                commit_offsets(cluster, group_id, changed, deadline=Deadline(COMMIT_TIMEOUT_MS))
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
