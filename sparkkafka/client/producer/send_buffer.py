"""Between the user's threads and the I/O thread: checked records in chunks, buffer.memory, waking,
and the partitions of a chunk's records."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_partition
from sparkkafka.client.deadline import Deadline, Waker
from sparkkafka.client.metrics.sending import SendMetrics
from sparkkafka.client.producer.futures import NoticeBoard, RecordFutures
from sparkkafka.client.producer.partitioner import Block, InputRows, Partitioner
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import ProducerSettings
from sparkkafka.config.options import ProducerOptions
from sparkkafka.errors import KafkaError, KafkaTimeoutError, OptionError
from sparkkafka.protocol.columns.encode import RecordFields
from sparkkafka.protocol.partitioning import NO_PARTITION
from sparkkafka.protocol.records.arrow import Headers, binary_array, headers_array

CHUNK_BATCHES = 16
MIN_CHUNK_BYTES = 64 * 2**10
MAX_CHUNK_BYTES = 2**20
WIDE_CHUNK_BYTES = 8 * 2**20  # of a topic whose records go to hundreds of partitions
MAX_WAKES = 8  # for one batch
BUFFER_SHARE = 4  # buffer.memory holds at least so many chunks
SLOW = "the brokers take records too slowly"
LOOK_MS = 3_000  # for partitions that may have been added
MAX_SINGLE_RECORDS = 16
HEADER_OVERHEAD_BYTES = 10  # two lengths of a header
_GIVEN_UP = -2  # in place of a partition

RECORD_BYTES = 21  # the most that a record's own numbers take (Java's MAX_RECORD_OVERHEAD)


class Chunk(RecordFutures):
    """Records of one topic, in order, and their outcomes.

    The first one came at `since_s` (monotonic); they count as `size_bytes` of buffer.memory.
    """

    __slots__ = ("since_s", "size_bytes")

    def __init__(self, topic: str, board: NoticeBoard) -> None:
        super().__init__(topic, board)
        self.since_s = time.monotonic()
        self.size_bytes = 0

    @property
    def open_count(self) -> int:
        """The number of records without an outcome."""
        return self._length() if self.left < 0 else self.left

    def _length(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Take no more records. Called once, by the I/O thread."""
        raise NotImplementedError

    def rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        """Columns, times in milliseconds, and partitions (NO_PARTITION for records that name none)
        or None. Called once: the chunk forgets its records."""
        raise NotImplementedError


class RecordChunk(Chunk):
    """Records that came one by one. `send` appends to its lists; times are seconds since 1970.

    At `wake_bytes` the I/O thread is woken for it, at `full_bytes` it takes no more records.
    """

    __slots__ = (
        "full_bytes",
        "given_times_ms",
        "headers",
        "keys",
        "partitions",
        "times_s",
        "values",
        "wake_bytes",
    )

    def __init__(self, topic: str, board: NoticeBoard, wake_bytes: int, full_bytes: int) -> None:
        super().__init__(topic, board)
        self.full_bytes = full_bytes
        self.wake_bytes = wake_bytes
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times_s: list[float] = []
        # Few records have these; by the record's place.
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.given_times_ms: dict[int, int] = {}

    def _length(self) -> int:
        return len(self.values)

    def forget(self, place: int, size_bytes: int) -> None:
        """Remove what there is of the last record, at `place`."""
        del self.values[place:], self.keys[place:], self.times_s[place:]
        for found in (self.headers, self.partitions, self.given_times_ms):
            found.pop(place, None)
        self.size_bytes = size_bytes

    def close(self) -> None:
        times_ms = (np.array(self.times_s, np.float64) * 1000).astype(np.int64)
        if self.given_times_ms:
            _put(times_ms, self.given_times_ms)
        self.times_s = []
        self.given_times_ms = {}
        self.begin(times_ms)

    def rows(self) -> tuple[InputRows, NDArray[np.int64], NDArray[np.int64] | None]:
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers, self.headers = self.headers, {}
        partitions = None
        if self.partitions:
            partitions = np.full(len(values), NO_PARTITION, np.int64)
            _put(partitions, self.partitions)
            self.partitions = {}
        columns = InputRows(
            length=len(values),
            keys=None if keys.count(None) == len(keys) else binary_array(keys),
            values=binary_array(values),
            headers=headers_array(headers, len(values)) if headers else None,
            topics=None,
            fixed_topic=self.topic,
            partitions=None,
        )
        return columns, self._times_ms, partitions


class SendBuffer:
    """Open chunks by topic, and chunks that are ready for the I/O thread.

    `lock` guards all of it. Ctrl-C may come between any two steps of a user's thread: then a chunk
    may be both open and ready, or not be counted, until `take` puts that right. It is never in
    neither place. The I/O thread takes a chunk that is full, has waited for linger.ms, or
    fills a batch, and all chunks on a flush. While it is busy, chunks grow: the busier it is, the
    less each record costs.
    """

    def __init__(self, options: ProducerOptions, board: NoticeBoard, metrics: SendMetrics) -> None:
        self.lock = threading.Lock()
        self._metrics = metrics
        self._room = threading.Condition(self.lock)
        self._board = board
        self._linger_s = options.linger_ms / 1000
        self._batch_bytes = options.batch_size
        self._max_block_ms = options.max_block_ms
        self.limit_bytes = options.buffer_memory
        wanted = min(max(CHUNK_BATCHES * options.batch_size, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self.chunk_bytes = max(
            1, min(max(wanted, options.batch_size), options.buffer_memory // BUFFER_SHARE)
        )
        """The size of a full chunk whose records go to few partitions."""
        self._largest_chunk_bytes = max(
            self.chunk_bytes, min(WIDE_CHUNK_BYTES, options.buffer_memory // BUFFER_SHARE)
        )
        self._full_bytes: dict[str, int] = {}
        # By topic, what its fullest pending batch lacks: a chunk of this size wakes the I/O thread.
        self._missing_bytes: dict[str, int] = {}
        self.open: dict[str, RecordChunk] = {}
        self.ready: deque[Chunk] = deque()
        self.unfinished: set[Chunk] = set()
        """Chunks with records that have no outcome yet: open, ready and taken ones."""
        self.used_bytes = 0
        """Of records that the I/O thread has not taken."""
        self.io_bytes = 0
        """Of records that it has; it alone sets this."""
        self.flushes = 0
        self._blocked = 0
        self.is_sleeping = False
        self._is_woken = False
        self._refusal: Callable[[], KafkaError] | None = None
        self._waker = Waker()

    # --- the users' side; with the lock held -----------------------------------------------------

    def refuse(self, reason: Callable[[], KafkaError] | None) -> None:
        """Take no records from now on; `reason` makes the error. None: take them again."""
        self._refusal = reason
        self._room.notify_all()

    def check(self) -> None:
        """Raise the error of a buffer that takes no records."""
        if self._refusal is not None:
            raise self._refusal()

    def open_chunk(self, topic: str) -> RecordChunk:
        """A new chunk of a topic that has no open one. Raises as `check`."""
        self.check()
        wake_bytes = self._missing_bytes.get(topic, self._batch_bytes)
        full_bytes = self.full_bytes(topic)
        chunk = RecordChunk(topic, self._board, min(wake_bytes, full_bytes), full_bytes)
        self.open[topic] = chunk
        self.unfinished.add(chunk)
        self.wake()
        return chunk

    def full_bytes(self, topic: str) -> int:
        return self._full_bytes.get(topic, self._largest_chunk_bytes)

    def full(self, topic: str, chunk: RecordChunk) -> None:
        self.ready.append(chunk)
        del self.open[topic]
        self.wake()

    def worth_waking(self) -> None:
        if self.is_sleeping:
            self.wake()

    def roll_all(self) -> None:
        """Make all open chunks ready, in the order in which they were opened."""
        self.ready.extend(self.open.values())
        self.open.clear()

    def add(self, chunk: Chunk) -> None:
        """Add a whole chunk, behind all earlier records."""
        self.check()
        self.roll_all()
        self.ready.append(chunk)
        self.unfinished.add(chunk)
        self.used_bytes += chunk.size_bytes
        self.wake()

    def make_room(self, size_bytes: int, trouble: Callable[[], str]) -> None:
        """Wait until `size_bytes` fit or the buffer is empty, at most max.block.ms. `trouble` says
        why nothing is delivered, if that is known.

        Raises KafkaTimeoutError, KafkaError if the buffer is closed meanwhile.
        """
        self.check()
        deadline = Deadline(self._max_block_ms)
        words = ""
        if threading.current_thread() is self._board.io_thread:
            words = "; a callback cannot wait for it, since it runs in the thread that sends"
        since_s, in_vain = time.monotonic(), False
        self._blocked += 1
        try:
            while (used := self.held_bytes()) and used + size_bytes > self.limit_bytes:
                self.wake()
                if words or deadline.expired:
                    why = trouble()
                    raise KafkaTimeoutError(
                        f"{'records cannot be sent' if why else SLOW}: {used} bytes wait, the next "
                        f"takes {size_bytes}, and buffer.memory={self.limit_bytes} had no room for "
                        f"max.block.ms={self._max_block_ms}{words}{why}"
                    )
                self._room.wait(deadline.remaining_s())
                self.check()
        except KafkaTimeoutError:
            in_vain = True
            raise
        finally:
            self._blocked -= 1
            self._metrics.has_waited(since_s, in_vain=in_vain)

    def held_bytes(self) -> int:
        """Bytes of records without an outcome.

        The I/O thread sets `io_bytes` at the end of its turn, perhaps long after the last outcome:
        a caller that has seen this outcome must find room.
        """
        taken = self.unfinished.difference(self.open.values(), self.ready)
        return self.used_bytes + (0 if all(chunk.all_done for chunk in taken) else self.io_bytes)

    def wake(self) -> None:
        if self.is_sleeping:
            self.is_sleeping = False
            self._is_woken = True
            self._waker.wake()

    def set_forked(self) -> None:
        """In the child of a fork there is no I/O thread, and nobody to release the lock."""
        self.lock = threading.Lock()
        self._room = threading.Condition(self.lock)
        self.open.clear()
        self.is_sleeping = False

    # --- the I/O thread's side ------------------------------------------------------------------

    @property
    def wake_fd(self) -> int:
        """Readable when there is work for the thread."""
        return self._waker.fileno()

    @property
    def waiting_threads(self) -> int:
        """How many callers wait for room."""
        return self._blocked

    @property
    def hurries(self) -> bool:
        """Whether a caller waits, so that nothing may linger."""
        return bool(self._blocked or self.flushes)

    def take(self) -> list[Chunk]:
        """Take all chunks. Their bytes are the I/O thread's from here on."""
        if not (self.open or self.ready):
            return []
        with self.lock:
            self.roll_all()
            taken = list(dict.fromkeys(self.ready))
            self.ready.clear()
            self.unfinished.update(taken)
            self.io_bytes += sum(chunk.size_bytes for chunk in taken)
            self.used_bytes = 0
        for chunk in taken:
            chunk.close()
        return taken

    def expect(self, topic: str, missing_bytes: int, spread: int) -> None:
        """The topic's fullest pending batch lacks `missing_bytes`, and its last chunk went to
        `spread` partitions."""
        # Each partition of a chunk has a cost, which the records of a larger chunk share. Chunks
        # get larger only while the I/O thread is busy.
        full_bytes = min(
            max(self.chunk_bytes, spread * self._batch_bytes), self._largest_chunk_bytes
        )
        # Records spread over partitions: waking for every few bytes would be too often.
        wanted = max(missing_bytes, self._batch_bytes // MAX_WAKES)
        with self.lock:
            if wanted < self._batch_bytes:
                self._missing_bytes[topic] = wanted
            else:
                self._missing_bytes.pop(topic, None)
            self._full_bytes[topic] = full_bytes
            chunk = self.open.get(topic)
            if chunk is not None:
                chunk.full_bytes = full_bytes
                chunk.wake_bytes = min(wanted, full_bytes)

    def sleep_s(self, commands: Callable[[], bool]) -> float | None:
        """How long nothing is due, None for ever; the I/O thread sleeps from here on. `commands`
        says whether there is anything else to do."""
        with self.lock:
            now_s = time.monotonic()
            if (
                self.ready
                or commands()
                or (self.hurries and self.open)
                or any(chunk.size_bytes >= chunk.wake_bytes for chunk in self.open.values())
            ):
                return 0.0
            if self._is_woken:
                self._is_woken = False
                self._waker.drain()
            self.is_sleeping = True
            if not self.open:
                return None
            oldest_s = min(chunk.since_s for chunk in self.open.values())
            return max(0.0, oldest_s + self._linger_s - now_s)

    def freed(self, io_bytes: int, finished: list[Chunk]) -> None:
        """The I/O thread has `io_bytes` now, and these chunks are done."""
        with self.lock:
            self.io_bytes = io_bytes
            self.unfinished.difference_update(finished)
            if self._blocked:
                self._room.notify_all()

    def close(self) -> None:
        with self.lock:
            self._waker.close()
            self.is_sleeping = False


class RecordRouter:
    """Chooses the partition of each record of a chunk, as Java's producer or librdkafka does.

    Records that ask for a partition that does not exist, and those for which the user's callable
    fails, are given up; the others of their chunk go on.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._partitioner = settings.partitioner
        self._router = Partitioner.of(
            settings.producer,
            lambda names: {name: self._count(name) for name in names},
            cluster.partition_count,
        )

    def block(self, chunk: Chunk) -> Block | None:
        """The chunk's records by partition, None if all were given up; `rows` are their places. The
        cluster knows the topic."""
        rows, times_ms, partitions = chunk.rows()
        kept: NDArray[np.int64] | None = None
        if self._partitioner is not None:
            partitions = self._ask(chunk, rows, partitions)
        if partitions is not None:
            self._check(chunk, partitions)
            if (partitions == _GIVEN_UP).any():
                kept = np.flatnonzero(partitions != _GIVEN_UP)
                rows, partitions, times_ms = rows.take(kept), partitions[kept], times_ms[kept]
        if not rows.length:
            return None
        block = self._router.checked_block(rows, partitions, times_ms)
        if kept is None:
            return block
        places = block.rows
        at = slice(places.start, places.stop) if isinstance(places, range) else places
        return block._replace(rows=kept[at])

    def takes_single(self, chunk: RecordChunk) -> bool:
        """Whether `single` is for this chunk: it has a few records, and their partitions exist."""
        if self._partitioner is not None or len(chunk.values) > MAX_SINGLE_RECORDS:
            return False
        if not chunk.partitions:
            return True
        return max(chunk.partitions.values()) < self._count(chunk.topic)

    def single(self, chunk: RecordChunk) -> Iterator[tuple[int, RecordFields, int]]:
        """Each record's partition, its fields, and its encoded bytes at most. The cluster knows the
        topic; the chunk forgets its records."""
        values, chunk.values = chunk.values, []
        keys, chunk.keys = chunk.keys, []
        topic = chunk.topic
        count = self._count(topic)
        for index, (value, key, timestamp_ms) in enumerate(
            zip(values, keys, chunk._times_ms.tolist(), strict=True)
        ):
            headers = chunk.headers.get(index, ())
            partition = chunk.partitions.get(index)
            if partition is None:
                partition = self._router.partition(topic, key, value, count)
            size_bytes = RECORD_BYTES + len(value or b"") + len(key or b"")
            if headers:
                size_bytes += sum(
                    HEADER_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
                    for name, content in headers
                )
            yield partition, RecordFields(key, value, headers, timestamp_ms), size_bytes
        chunk.headers, chunk.partitions = {}, {}

    def _count(self, topic: str) -> int:
        count = self._cluster.partition_count(topic)
        if count is None:
            raise RuntimeError(f"routing for topic {topic} before it is known")
        return count

    def _ask(
        self, chunk: Chunk, rows: InputRows, partitions: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Ask the user's callable for each record without a partition."""
        partitioner, topic = self._partitioner, chunk.topic
        if partitions is None:
            partitions = np.full(rows.length, NO_PARTITION, np.int64)
        count = self._count(topic)
        for place in np.flatnonzero(partitions == NO_PARTITION).tolist():
            key = None if rows.keys is None else rows.keys[place].as_py()
            error: KafkaError | None = None
            try:
                chosen = partitioner(topic, key, rows.values[place].as_py(), count)  # type: ignore[misc]
            except (Exception, SystemExit) as failure:
                error = OptionError(
                    f"the callable partitioner.class failed for a record of topic {topic}: "
                    f"{type(failure).__name__}: {failure}"
                )
                error.__cause__ = failure
            else:
                if type(chosen) is int and 0 <= chosen < count:
                    partitions[place] = chosen
                    continue
                error = OptionError(
                    f"the callable partitioner.class returned {chosen!r} for a record of topic "
                    f"{topic}: it must be a whole number from 0 to {count - 1}"
                )
            partitions[place] = _GIVEN_UP
            chunk.failed(range(place, place + 1), error)
        return partitions

    def _check(self, chunk: Chunk, partitions: NDArray[np.int64]) -> None:
        """Give up records for partitions that do not exist, even after another look."""
        topic = chunk.topic
        if int(partitions.max()) >= self._count(topic):
            with contextlib.suppress(KafkaError):  # then what is known counts
                self._cluster.look_up([topic], Deadline(LOOK_MS))
        count = self._cluster.partition_count(topic)
        if count is None:
            return
        for number in np.unique(partitions[partitions >= count]).tolist():
            places = np.flatnonzero(partitions == number)
            partitions[places] = _GIVEN_UP
            error = no_partition(TopicPartition(topic, number), count)
            chunk.failed(places, error, partition=number)


def _put(target: NDArray[np.int64], found: Mapping[int, int]) -> None:
    at = np.fromiter(found.keys(), np.int64, len(found))
    target[at] = np.fromiter(found.values(), np.int64, len(found))
