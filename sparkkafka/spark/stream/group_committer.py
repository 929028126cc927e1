"""A consumer group whose committed offsets follow a streaming query, for lag tools.

A stream starts from the offsets in its checkpoint; a consumer group only shows them to lag tools
and other clients. Spark informs a source of a finished batch when the next batch begins, and never
of the last batch, but informs a listener immediately.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import commit_group_offsets
from sparkkafka.client.values import OffsetAndMetadata, Offsets, TopicPartition
from sparkkafka.config.options import GroupOptions, parse_group_options
from sparkkafka.errors import KafkaError, OptionError, UnknownTopicError
from sparkkafka.spark.delegation_tokens import with_token
from sparkkafka.spark.read.input_partitions import compile_pattern
from sparkkafka.spark.stream.progress import end_offsets

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 10_000
"""How long one commit may delay Spark's other listeners, and the program's exit."""


def commit_to_group(
    spark: SparkSession, options: Mapping[str, Any], query: str | None = None
) -> GroupCommitter:
    """Commit the offsets of finished micro-batches to the consumer group `kafka.group.id`.

    `options` are those of the stream: kafka.bootstrap.servers and kafka.group.id are needed. If
    they have subscribe, subscribePattern or assign, no other topic is committed. `query` is the
    name or the id of one query; without it every query of the session that reads Kafka is
    committed. Call this before the query starts; `spark.streams.removeListener(…)` with the result
    ends it.

    Spark informs its listeners a moment after a batch. At exit the program waits for them, and
    `flush(query)` of the result commits immediately (over Spark Connect call it before the program
    ends). A failed commit is a warning, and is repeated with the next batch or at the query's end:
    the checkpoint, not the group, decides where a query continues. If a topic is recreated after
    its first commit, offsets of the old topic are not committed to the new one (Kafka 2.8 and
    later). Raises OptionError.
    """
    if not isinstance(options, Mapping):
        raise OptionError(
            f"options is a {type(options).__name__}. Call commit_to_group(spark, options) with the "
            "stream's options as a dictionary"
        )
    parsed = parse_group_options(with_token(options))
    if not parsed.group_id:
        raise OptionError("commit_to_group needs the name of the group: set kafka.group.id")
    committer = GroupCommitter(parsed, query)
    spark.streams.addListener(committer)
    atexit.register(wait_for_listeners, spark)
    return committer


def wait_for_listeners(spark: SparkSession) -> None:
    """At the program's exit: wait until Spark's listeners have received all events, at most
    COMMIT_TIMEOUT_MS. A failure is only logged."""
    try:
        context = spark._jsparkSession.sparkContext()
        if not context.isStopped():
            context.listenerBus().waitUntilEmpty(COMMIT_TIMEOUT_MS)
    except Exception as error:  # a Connect session, a JVM that has exited, a timeout
        log.debug("did not wait for Spark's listeners: %s", error)


class GroupCommitter(StreamingQueryListener):
    """Commits the offsets of finished micro-batches to a group: the listener that `commit_to_group`
    returns."""

    def __init__(self, options: GroupOptions, query: str | None = None) -> None:
        self._options = options
        self._query = query
        self._pattern = None
        if options.subscription is not None and options.subscription.pattern:
            # Compiled here, so that a bad pattern is an error before the query starts.
            self._pattern = compile_pattern(options.subscription.pattern)
        self._lock = threading.Lock()
        self._committed: Offsets = {}
        self._pending: dict[str, Offsets] = {}  # by run id of a query: offsets to commit
        self._topic_ids: dict[str, bytes] = {}  # ids of the topics that the queries read
        self._recreated: dict[str, datetime] = {}  # when a commit noticed it

    def __repr__(self) -> str:
        return f"GroupCommitter(group_id={self._options.group_id!r}, query={self._query!r})"

    @property
    def committed(self) -> Offsets:
        """The offsets committed so far, by partition."""
        with self._lock:
            return dict(self._committed)

    def flush(self, query: StreamingQuery) -> None:
        """Commit the offsets of the query's last batch now.

        Raises OptionError if the query's report of it cannot be read.
        """
        progress = query.lastProgress
        if progress is not None:
            self._commit_progress(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing before the first batch has finished."""

    def onQueryProgress(self, event: Any) -> None:
        """Commit the offsets of a micro-batch that has finished. Options that do not fit are only
        logged."""
        try:
            self._commit_progress(event.progress)
        except OptionError as error:
            log.warning(
                "offsets of query %s were not committed to group %s (the query is not affected): "
                "%s",
                event.progress.name or event.progress.id,
                self._options.group_id,
                error,
            )

    def _commit_progress(self, progress: Any) -> None:
        """Commit the end offsets of a finished batch, if its query is the chosen one."""
        if self._query not in (None, progress.name, str(progress.id)):
            return
        run = str(progress.runId)
        started = datetime.fromisoformat(progress.timestamp)
        with self._lock:
            self._pending[run] = {
                tp: offset
                for tp, offset in end_offsets(progress).items()
                # A batch that began before may have the offsets of the old topic.
                if self._is_subscribed(tp)
                and started > self._recreated.get(tp.topic, datetime.min.replace(tzinfo=UTC))
            }
            self._commit(run)

    def onQueryIdle(self, event: Any) -> None:
        """Commit again what an earlier commit could not."""
        with self._lock:
            self._commit(str(event.runId))

    def onQueryTerminated(self, event: Any) -> None:
        """Commit what is not committed yet, and forget the query."""
        run = str(event.runId)
        with self._lock:
            self._commit(run)
            self._pending.pop(run, None)

    def _is_subscribed(self, tp: TopicPartition) -> bool:
        """Return whether the options subscribe to this partition, or to nothing."""
        subscription = self._options.subscription
        if subscription is None:
            return True
        if self._pattern is not None:
            return self._pattern.search(tp.topic) is not None
        return tp.topic in subscription.topics or tp in subscription.partitions

    def _commit(self, run: str) -> None:
        """Commit the offsets that this run of a query has reached and that are not committed yet. A
        failure is only logged. The caller holds the lock."""
        # If several queries read a partition, commit the offset that all of them have reached.
        reached = {
            tp: min(offsets[tp] for offsets in self._pending.values() if tp in offsets)
            for tp in self._pending.get(run, {})
        }
        changed = {
            tp: offset for tp, offset in reached.items() if self._committed.get(tp) != offset
        }
        if not changed:
            return
        group_id = self._options.group_id or ""
        try:
            # A new connection for each commit, since batches may be far apart.
            with Cluster(self._options.client) as cluster:
                offsets = {tp: OffsetAndMetadata(offset) for tp, offset in changed.items()}
                deadline = Deadline(COMMIT_TIMEOUT_MS)
                new = {tp.topic for tp in changed} - self._topic_ids.keys()
                if new:
                    cluster.topics(sorted(new), deadline)
                ids = {name: cluster.topic_id(name) for name in new} | self._topic_ids
                self._topic_ids = {name: known for name, known in ids.items() if known}
                topic_ids = {
                    tp: self._topic_ids[tp.topic] for tp in changed if tp.topic in self._topic_ids
                }
                try:
                    commit_group_offsets(
                        cluster, group_id, offsets, deadline=deadline, topic_ids=topic_ids
                    )
                except UnknownTopicError:
                    self._drop_recreated(cluster)
                    raise
        except KafkaError as error:
            log.warning(
                "offsets of %d partitions were not committed to group %s (the query is not "
                "affected; the commit is repeated after its next batch): %s",
                len(changed),
                group_id,
                error,
            )
            return
        self._committed |= changed

    def _drop_recreated(self, cluster: Cluster) -> None:
        """Drop the offsets of topics that were recreated, as the brokers do."""
        for topic, topic_id in list(self._topic_ids.items()):
            if cluster.was_recreated(topic, topic_id):
                del self._topic_ids[topic]
                self._recreated[topic] = datetime.now(UTC)
                for offsets in (self._committed, *self._pending.values()):
                    for tp in [tp for tp in offsets if tp.topic == topic]:
                        del offsets[tp]
