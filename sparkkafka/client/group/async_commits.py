"""Commits that nobody waits for: made in a thread, one after the other, in the order of the calls.

So an earlier one never overtakes a later one, though each is tried again until its deadline (Java
tries once, since its commits are under way together). The thread lives while there is something to
commit. Callbacks run where the consumer is used: in poll, commit and close, as in Java.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import CloseSignal, Deadline
from sparkkafka.client.group.group_metadata import Commit
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition, some_partitions
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import KafkaError

log = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[
    [dict[TopicPartition, OffsetAndMetadata], Exception | None], object
]

CUT_S = 1.0
"""So long a thread that is told to end may take."""


class _Job(NamedTuple):
    commit: Commit
    offsets: Offsets
    deadline: Deadline
    callback: CommitCallback | None


class AsyncCommits:
    """Of one consumer. `done` is called, in another thread, when a commit has come to its end."""

    def __init__(self, options: ClientOptions, done: Callable[[], None]) -> None:
        self._close_signal = CloseSignal()
        self._cluster = Cluster(options, close_signal=self._close_signal)
        self._tell = done
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()  # the first one is under way
        self._ended: deque[tuple[_Job, Exception | None]] = deque()
        self._runs = False

    def submit(
        self, commit: Commit, offsets: Offsets, deadline: Deadline, callback: CommitCallback | None
    ) -> None:
        """Commit when all that was submitted before has come to its end."""
        with self._changed:
            self._jobs.append(_Job(commit, offsets, deadline, callback))
            if self._runs:
                return
            self._runs = True
        threading.Thread(target=self._run, name="kafka-commits", daemon=True).start()

    def wait(self, deadline: Deadline) -> bool:
        """Whether all have come to their end, within the deadline."""
        if not self._runs:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._runs, deadline.remaining_s())

    def run_callbacks(self) -> None:
        """Of those that have ended, in their order. Raises what a callback raises; the next call
        goes on after it."""
        while self._ended:
            job, error = self._ended.popleft()
            if job.callback is not None:
                job.callback(dict(job.offsets), error)
            elif error is not None:
                log.warning(
                    "the asynchronous commit of %s failed: %s", some_partitions(job.offsets), error
                )

    def close(self) -> None:
        """Give up what is not committed yet: its callbacks are told so, by `run_callbacks`."""
        self._close_signal.close_in(0)
        if not self.wait(Deadline(CUT_S * 100)):
            self._close_signal.cut_sockets()
        if self.wait(Deadline(CUT_S * 1000)):
            self._cluster.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._runs = False
                    self._changed.notify_all()
                    return
                job = self._jobs[0]
            error: Exception | None = None
            try:
                job.commit(self._cluster, job.offsets, job.deadline.until(self._close_signal))
            except KafkaError as failure:
                error = failure
            except Exception as bug:
                log.exception("an asynchronous commit failed")
                error = bug
            with self._changed:
                self._jobs.popleft()
                self._ended.append((job, error))
            self._tell()
