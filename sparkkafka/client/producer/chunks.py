"""Records on their way from the user's threads to the I/O thread: lists, then Arrow columns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkkafka.client.producer.futures import NoticeBoard, RecordFutures
from sparkkafka.client.sender.rows import Rows
from sparkkafka.protocol.partitioning.partitioner import NO_PARTITION
from sparkkafka.protocol.records.arrow import from_numpy

Headers = Sequence[tuple[str, bytes | None]]


class Chunk(RecordFutures):
    """Records of one topic, in their order, with what becomes of them.

    `since_s` is when the first one came (monotonic), `size_bytes` what they count in buffer.memory.
    """

    __slots__ = ("since_s", "size_bytes")

    def __init__(self, topic: str, board: NoticeBoard) -> None:
        super().__init__(topic, board)
        self.since_s = time.monotonic()
        self.size_bytes = 0

    @property
    def open_count(self) -> int:
        """How many records are neither delivered nor given up."""
        return self._length() if self.left < 0 else self.left

    def _length(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """No record is added any more. Called once, by the I/O thread."""
        raise NotImplementedError

    def rows(self) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None]:
        """Columns, times in milliseconds and, if any record names one, partitions (else
        NO_PARTITION). To be asked for once: the records are forgotten."""
        raise NotImplementedError


class RecordChunk(Chunk):
    """Records that came one by one. `send` appends to its lists; times are seconds since 1970.

    With `wake_bytes` it is worth the I/O thread's while, with `full_bytes` it takes no more.
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
        # Few records have these: by the record's number.
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.given_times_ms: dict[int, int] = {}

    def _length(self) -> int:
        return len(self.values)

    def forget(self, place: int, size_bytes: int) -> None:
        """Whatever there is of the last record, which would have been at `place`."""
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

    def rows(self) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None]:
        values, self.values = self.values, []
        keys, self.keys = self.keys, []
        headers, self.headers = self.headers, {}
        partitions = None
        if self.partitions:
            partitions = np.full(len(values), NO_PARTITION, np.int64)
            _put(partitions, self.partitions)
            self.partitions = {}
        columns = Rows(
            length=len(values),
            keys=None if keys.count(None) == len(keys) else binary_array(keys),
            values=binary_array(values),
            headers=headers_array(headers, len(values)) if headers else None,
            topics=None,
            fixed_topic=self.topic,
            partitions=None,
        )
        return columns, self._times_ms, partitions


class TableChunk(Chunk):
    """Rows of a table, of one topic."""

    __slots__ = ("_given_partitions", "_rows")

    def __init__(
        self,
        board: NoticeBoard,
        rows: Rows,
        times_ms: NDArray[np.int64],
        partitions: NDArray[np.int64] | None,
        size_bytes: int,
    ) -> None:
        super().__init__(rows.fixed_topic or "", board)
        self._rows: Rows | None = rows
        self._times_ms = times_ms
        self._given_partitions = partitions
        self.size_bytes = size_bytes

    def _length(self) -> int:
        return len(self._times_ms)

    def close(self) -> None:
        self.begin(self._times_ms)

    def rows(self) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None]:
        rows, self._rows = self._rows, None
        if rows is None:
            raise RuntimeError("the rows were taken already")
        return rows, self._times_ms, self._given_partitions


def _put(target: NDArray[np.int64], found: Mapping[int, int]) -> None:
    at = np.fromiter(found.keys(), np.int64, len(found))
    target[at] = np.fromiter(found.values(), np.int64, len(found))


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """The same as an Arrow array. (`pa.array` of a list would import pandas.)"""
    count = len(values)
    bitmap = None
    if None in values:
        valid = np.fromiter((value is not None for value in values), np.bool_, count)
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        values = [value or b"" for value in values]
    data = b"".join(values)  # type: ignore[arg-type]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])  # type: ignore[arg-type]
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data or bytes(1))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def headers_array(headers: Mapping[int, Headers], count: int) -> pa.Array:
    """A list of (key, value) structs for each of `count` records; those without have none."""
    sizes = np.zeros(count + 1, np.int32)
    order = sorted(headers)
    for place in order:
        sizes[place + 1] = len(headers[place])
    pairs: Iterable[tuple[str, bytes | None]] = itertools.chain.from_iterable(
        headers[place] for place in order
    )
    flat = list(pairs)
    names: Any = binary_array([name.encode() for name, _ in flat]).view(pa.string())
    contents = binary_array([content for _, content in flat])
    structs = pa.StructArray.from_arrays([names, contents], names=["key", "value"])
    offsets = from_numpy(np.cumsum(sizes, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, structs)
