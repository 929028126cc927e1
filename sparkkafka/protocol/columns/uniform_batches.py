"""Batches of records of one size: one of them is read, and the others are compared with it.

A producer of such records makes batches of one layout. Then records lie in a grid: one step from a
batch to the next, another one from a record to the next, so that a field of all of them is a view
of two dimensions. Comparing lengths and copying values out of the grid takes half as long as
reading every field and gathering pieces from anywhere.

Nothing is assumed: every byte that determines a place is compared with that of the batch that was
read (the model), which `read_fields` found sound. Where one differs the caller reads all records.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkkafka.protocol.columns import record_starts
from sparkkafka.protocol.columns.columns import (
    DamageError,
    Fields,
    Grid,
    GridPart,
    GridRows,
    Pieces,
    read_fields,
)
from sparkkafka.protocol.records.varint_columns import Bytes, Ints, read, unzigzag
from sparkkafka.protocol.wire.varints import VARLONG_BITS, BadVarintError

_FEW_BATCHES = 4  # below, reading a model costs more than it saves
_FEW_RECORDS = 16  # of one shape in a row, on average
_BATCHES_PER_CHANGE = 8  # from uniform to not uniform and back, on average
# Parts are batches of equal counts and distances, times shapes of records in them. Each part takes
# as long as reading the fields of so many records; a few always pay, also in small answers.
_ROWS_PER_PART = 1024
_FEW_PARTS = 4
_MAX_MODEL_BYTES = 256 << 10
_WINDOW = 8  # bytes that are compared in one step

# Models of the last answers, by bytes and records: the next answer mostly has copies of the same
# one. Reading it again takes longer than comparing a thousand records.
_KEPT_MODELS = 16
_MAX_KEPT_RECORDS = 4096
_kept: dict[tuple[int, int], _Model] = {}
_keeping = threading.Lock()  # consumers of several threads share them


class _Window(NamedTuple):
    """Eight bytes of each record from `at` on: masked with `mask`, copies have `expected`."""

    at: int
    mask: np.uint64
    expected: NDArray[np.uint64]


class _Run(NamedTuple):
    """Records [first, last) of the model: of one size, each field at the same place in all."""

    first: int
    last: int
    begin: int
    """Of the first of them, in the batch."""
    size: int
    windows: list[_Window]
    timestamp_at: int
    timestamp_bytes: int
    key_at: int
    value_at: int


class _Model(NamedTuple):
    sizes: Ints
    """Bytes of the first 0, 1, 2, … records."""
    offset_deltas: Ints
    key_length: int
    value_length: int
    runs: list[_Run]


class Range(NamedTuple):
    """Consecutive batches [first, last), which all look like copies of the model, or all do not."""

    first: int
    last: int
    uniform: bool


class UniformBatches:
    """What `find` found."""

    def __init__(
        self,
        data: Bytes,
        begins: Ints,
        counts: Ints,
        model: _Model,
        uniform: NDArray[np.bool_],
        most_rows: int,
    ) -> None:
        self._data = data
        self._begins = begins
        self._counts = counts
        self._model = model
        self._uniform = uniform
        self._most_rows = most_rows

    def ranges(self) -> Iterator[Range]:
        """All batches in order; of uniform ones not too many at a time."""
        rows_before = np.cumsum(self._counts) - self._counts
        cuts = (np.flatnonzero(self._uniform[1:] != self._uniform[:-1]) + 1).tolist()
        for first, last in zip([0, *cuts], [*cuts, len(self._counts)], strict=True):
            if not self._uniform[first]:
                yield Range(first, last, uniform=False)
                continue
            while first < last:
                limit = int(rows_before[first]) + self._most_rows - len(self._model.offset_deltas)
                stop = min(last, int(np.searchsorted(rows_before, limit, "right")))
                yield Range(first, stop, uniform=True)
                first = stop

    def fields(self, first: int, last: int) -> Fields | None:
        """Fields of all records of these batches; None if one is no copy after all, or if reading
        is faster for so many parts. Raises BadVarintError for damaged timestamps."""
        model = self._model
        begins, counts = self._begins[first:last], self._counts[first:last]
        steps = np.diff(begins, append=2 * begins[-1] - begins[-2:][0])
        differs = (counts[1:] != counts[:-1]) | (steps[1:] != steps[:-1])
        cuts = (np.flatnonzero(differs) + 1).tolist()
        rows = int(counts.sum())
        if _are_too_many((len(cuts) + 1) * len(model.runs), rows):
            return None
        timestamp_deltas, offset_deltas = np.empty(rows, np.int64), np.empty(rows, np.int64)
        keys: list[GridRows] = []
        values: list[GridRows] = []
        row = 0
        for low, high in zip([0, *cuts], [*cuts, last - first], strict=True):
            begin, step, count = int(begins[low]), int(steps[low]), int(counts[low])
            for run in model.runs:
                records = min(run.last, count) - run.first
                if records <= 0:
                    break
                grid = GridPart(begin + run.begin, high - low, step, records, run.size)
                if not _is_copy(self._data, grid, run):
                    return None
                place = GridRows(row, count, run.first, grid)
                place.of(timestamp_deltas)[...] = _timestamp_deltas(self._data, grid, run)
                place.of(offset_deltas)[...] = model.offset_deltas[run.first : run.first + records]
                keys.append(place._replace(part=grid.moved(run.key_at)))
                values.append(place._replace(part=grid.moved(run.value_at)))
            row += count * (high - low)
        return Fields(
            timestamp_deltas,
            offset_deltas,
            Grid(rows, model.key_length, keys),
            Grid(rows, model.value_length, values),
            None,
        )


def _are_too_many(parts: int, rows: int) -> bool:
    return (parts - _FEW_PARTS) * _ROWS_PER_PART > rows


def _is_like(data: Bytes, begin: int, model: _Model) -> bool:
    """Whether the batch there, which has the model's size, is a copy."""
    return all(
        _is_copy(data, GridPart(begin + run.begin, 1, 0, run.last - run.first, run.size), run)
        for run in model.runs
    )


def _is_copy(data: Bytes, grid: GridPart, run: _Run) -> bool:
    for at, mask, expected in run.windows:
        found = grid.moved(at).view(data, np.uint64) & mask
        if not (found == expected[: grid.records]).all():
            return False
    return True


def _timestamp_deltas(data: Bytes, grid: GridPart, run: _Run) -> Ints:
    """`_is_copy` has seen how many bytes each has. Raises BadVarintError."""
    place = grid.moved(run.timestamp_at)
    if run.timestamp_bytes == 1:
        return unzigzag(place.view(data, np.uint8))
    if run.timestamp_bytes == 2:
        raw = place.moved(1).view(data, np.uint8).astype(np.uint16)
        raw <<= 7
        raw |= place.view(data, np.uint8) & 0x7F
        return unzigzag(raw, overwrite=True)
    deltas, _ = read(data, place.positions(), VARLONG_BITS)
    return deltas.reshape(grid.batches, grid.records)


def find(
    data: Bytes, begins: Ints, ends: Ints, counts: Ints, *, most_rows: int
) -> UniformBatches | None:
    """Most batches as copies of one of them, None if they do not look alike.

    Arguments as for `record_starts.find`; `most_rows` is how many are decoded together. Models are
    kept for later calls, if this call's middle batch is a copy of them.
    """
    sizes = ends - begins
    middle = len(begins) // 2  # the first and the last one are the likeliest to be shorter
    size, count = int(sizes[middle]), int(counts[middle])
    number = int(np.count_nonzero((sizes == size) & (counts == count)))
    if number < _FEW_BATCHES or 2 * number < len(begins):
        return None
    if count > most_rows or size > _MAX_MODEL_BYTES:
        return None
    one = slice(middle, middle + 1)
    model = _kept.get((size, count))
    if model is None or not _is_like(data, int(begins[middle]), model):
        model = _read_model(data, begins[one], ends[one], counts[one])
        if model is None:
            return None
        if count <= _MAX_KEPT_RECORDS:
            with _keeping:
                while len(_kept) >= _KEPT_MODELS:
                    del _kept[next(iter(_kept))]
                _kept[size, count] = model
    if _are_too_many(len(model.runs), min(int(counts.sum()), most_rows)):
        return None
    # Shorter ones (a producer was flushed) have the model's first records.
    uniform = (counts <= count) & (sizes == model.sizes.take(counts, mode="clip"))
    changes = int(np.count_nonzero(uniform[1:] != uniform[:-1]))
    if changes * _BATCHES_PER_CHANGE > len(begins):
        return None
    return UniformBatches(data, begins, counts, model, uniform, most_rows)


def _read_model(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> _Model | None:
    """The one batch of these arrays; None if its records are not of one size, have headers, or are
    damaged."""
    layout = record_starts.find(data, begins, ends, counts)
    if not layout.sound.all():
        return None
    begin = int(begins[0])
    whole = data[begin : int(ends[0])]
    starts, bodies, record_ends = layout.starts - begin, layout.bodies - begin, layout.ends - begin
    try:
        fields = read_fields(whole, bodies, record_ends)
    except (DamageError, BadVarintError):
        return None
    keys, values = fields.keys, fields.values
    if fields.headers is not None or not isinstance(keys, Pieces) or not isinstance(values, Pieces):
        return None
    key_length, value_length = int(keys.lengths[0]), int(values.lengths[0])
    if (keys.lengths != key_length).any() or (values.lengths != value_length).any():
        return None
    offset_at = read(whole, bodies + 1, VARLONG_BITS)[1]
    shapes = np.stack([record_ends, bodies, offset_at, keys.at, values.at]) - starts
    cuts = (np.flatnonzero((shapes[:, 1:] != shapes[:, :-1]).any(axis=0)) + 1).tolist()
    if (len(cuts) + 1) * _FEW_RECORDS > len(starts) or int(shapes[0].min()) < _WINDOW:
        return None
    runs = []
    for first, last in zip([0, *cuts], [*cuts, len(starts)], strict=True):
        size, body, offset, key, value = shapes[:, first].tolist()
        mask = np.full(size, 0xFF, np.uint8)  # of the bits that say where something lies
        mask[body] = 0
        mask[body + 1 : offset] = 0x80
        mask[key : key + max(key_length, 0)] = 0
        mask[value : value + max(value_length, 0)] = 0
        grid = GridPart(int(starts[first]), 1, 0, last - first, size)
        runs.append(
            _Run(
                first, last, grid.begin, size, _windows(whole, grid, mask),
                body + 1, offset - body - 1, key, value,
            )
        )  # fmt: skip
    sizes = np.append(0, record_ends)
    return _Model(sizes, fields.offset_deltas, key_length, value_length, runs)


def _windows(data: Bytes, grid: GridPart, mask: Bytes) -> list[_Window]:
    """Those that hold all bits of `mask`, which is as long as a record."""
    windows: list[_Window] = []
    covered = 0
    for place in np.flatnonzero(mask).tolist():
        if place < covered:
            continue
        at = min(place, len(mask) - _WINDOW)
        bits = mask[at : at + _WINDOW].copy().view(np.uint64)[0]
        expected = grid.moved(at).view(data, np.uint64)[0] & bits
        windows.append(_Window(at, bits, expected))
        covered = at + _WINDOW
    return windows
