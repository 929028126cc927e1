"""Batches of records of one size: one batch is read, and the others are compared with it.

A producer of such records makes batches that differ only in keys, values and timestamps. Their
records lie in a grid, with one distance from batch to batch and one from record to record, so that
a field of all records is a numpy view of two dimensions. Comparing the lengths and copying the
values out of the grid takes half as long as reading each field of each record.

Nothing is assumed: every byte that determines a position is compared with that of the batch that
was read (the model), which `read_fields` has checked. If one differs, the caller reads all records.

Records of one shape (size, and distance of each field from the record's begin) in a row are a run
of the model. Batches of one record count and one distance in a row are a series. The records of one
run in the batches of one series lie in one grid (`GridPart`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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
    Spans,
    read_fields,
)
from sparkkafka.protocol.records.varint_columns import Bytes, Flags, Ints, read, unzigzag
from sparkkafka.protocol.wire.varints import VARLONG_BITS, BadVarintError

_WORD_BYTES = 8  # bytes that are compared in one step

# Models of the last responses, by the batch's bytes and records: the next response mostly has
# copies of the same. Reading a model takes longer than comparing a thousand records.
_MAX_MODELS = 16
_models: dict[tuple[int, int], _Model] = {}
_models_lock = threading.Lock()  # consumers in several threads share the models


class _MaskedWord(NamedTuple):
    """Eight bytes of each record of a run, from byte `at` of the record on. Those of a copy, masked
    with `mask`, equal `expected`, which has a number for each record."""

    at: int
    mask: np.uint64
    expected: NDArray[np.uint64]


class _Run(NamedTuple):
    """Records [first, last) of the model, which have one shape. `…_at` count from the begin of a
    record."""

    first: int
    last: int
    begin: int
    """Where the first of them begins in the batch."""
    size: int
    words: list[_MaskedWord]
    timestamp_at: int
    timestamp_bytes: int
    key_at: int
    value_at: int


class _Model(NamedTuple):
    """What was read of one batch: the others are compared with it."""

    sizes: Ints
    """Bytes of the first 0, 1, 2, … records."""
    offset_deltas: Ints
    key_length: int
    value_length: int
    runs: list[_Run]


class Range(NamedTuple):
    """Consecutive batches [first, last): all look like copies of the model (`uniform`), or none
    does."""

    first: int
    last: int
    uniform: bool


class _Series(NamedTuple):
    """Consecutive batches of one record count, each at one distance from the one before it."""

    begin: int
    """Where the records of the first batch begin."""
    step: int
    """The distance from batch to batch."""
    batches: int
    records: int
    """The record count of each batch."""


class UniformBatches(NamedTuple):
    """Batches that are decoded together, most of which look like copies of the model.

    `begins`, `counts` and `uniform` (whether it looks like a copy) have an entry for each batch.
    """

    data: Bytes
    begins: Ints
    counts: Ints
    model: _Model
    uniform: Flags
    max_rows: int

    def ranges(self) -> Iterator[Range]:
        """Yield all batches in order: uniform ones in ranges of at most `max_rows` records, and the
        others between two uniform ones as one range."""
        rows_before = np.cumsum(self.counts) - self.counts
        # `cuts` are the batches where uniform ones begin or end.
        cuts = (np.flatnonzero(self.uniform[1:] != self.uniform[:-1]) + 1).tolist()
        for first, last in zip([0, *cuts], [*cuts, len(self.counts)], strict=True):
            if not self.uniform[first]:
                yield Range(first, last, uniform=False)
                continue
            while first < last:
                # A batch that begins by `limit` ends in time: none has more records than the model.
                limit = int(rows_before[first]) + self.max_rows - len(self.model.offset_deltas)
                stop = min(last, int(np.searchsorted(rows_before, limit, "right")))
                yield Range(first, stop, uniform=True)
                first = stop

    def read_fields(self, first: int, last: int) -> Fields | None:
        """Return the fields of all records of the uniform batches [first, last). They lie in grids:
        one for each run of the model (records of one shape) in each series of batches (of one
        record count, at one distance).

        None if a batch is not a copy after all, or if the grids are so many that reading each
        record is faster. Raises BadVarintError for damaged timestamps."""
        model, series = self.model, self._series(first, last)
        rows = int(self.counts[first:last].sum())
        if _has_too_many_grids(len(series) * len(model.runs), rows):
            return None
        timestamp_deltas, offset_deltas = np.empty(rows, np.int64), np.empty(rows, np.int64)
        keys: list[GridRows] = []
        values: list[GridRows] = []
        row = 0  # the first one of the series
        for begin, step, batches, batch_records in series:
            for run in model.runs:
                records = min(run.last, batch_records) - run.first
                if records <= 0:
                    break  # these batches are shorter than the model
                # Where the records of this run and series are in the data, and among the rows.
                grid = GridPart(begin + run.begin, records, run.size, batches, step)
                rows_of_grid = GridRows(row, batch_records, run.first, grid)
                if not _has_copies_of_run(self.data, grid, run):
                    return None
                deltas = model.offset_deltas[run.first : run.first + records]
                rows_of_grid.view(offset_deltas)[...] = deltas
                deltas = _read_timestamp_deltas(self.data, grid, run)
                rows_of_grid.view(timestamp_deltas)[...] = deltas
                keys.append(rows_of_grid._replace(part=grid.shifted(run.key_at)))
                values.append(rows_of_grid._replace(part=grid.shifted(run.value_at)))
            row += batches * batch_records
        return Fields(
            timestamp_deltas,
            offset_deltas,
            Grid(rows, model.key_length, keys),
            Grid(rows, model.value_length, values),
            None,
        )

    def _series(self, first: int, last: int) -> list[_Series]:
        """Return the batches [first, last) as series."""
        begins, counts = self.begins[first:last], self.counts[first:last]
        # The distance to the next batch; for the last one, that of the batch before it (0 if there
        # is only one batch).
        steps = np.diff(begins, append=2 * begins[-1] - begins[-2:][0])
        differs = (counts[1:] != counts[:-1]) | (steps[1:] != steps[:-1])
        cuts = (np.flatnonzero(differs) + 1).tolist()
        return [
            _Series(int(begins[low]), int(steps[low]), high - low, int(counts[low]))
            for low, high in zip([0, *cuts], [*cuts, last - first], strict=True)
        ]


def _has_too_many_grids(grids: int, rows: int) -> bool:
    """Return whether copying out of this many grids takes longer than reading the fields of `rows`
    records."""
    # Copying out of one grid takes as long as reading the fields of 1,024 records; the first four
    # always pay, also in small responses.
    return (grids - 4) * 1024 > rows


def _is_copy_of_model(data: Bytes, begin: int, model: _Model) -> bool:
    """Return whether the batch at `begin`, which has the model's size, is a copy of the model."""
    return all(
        _has_copies_of_run(data, GridPart(begin + run.begin, run.last - run.first, run.size), run)
        for run in model.runs
    )


def _has_copies_of_run(data: Bytes, grid: GridPart, run: _Run) -> bool:
    """Return whether the records that begin at `grid` agree with those of the model's run in all
    bits that determine the position or length of a field."""
    for at, mask, expected in run.words:
        actual = grid.shifted(at).view(data, np.uint64) & mask
        if not (actual == expected[: grid.records]).all():
            return False
    return True


def _read_timestamp_deltas(data: Bytes, grid: GridPart, run: _Run) -> Ints:
    """Read the timestamp delta of each record that begins at `grid`: [batch, record].
    `_has_copies_of_run` has checked how many bytes each has. Raises BadVarintError."""
    field = grid.shifted(run.timestamp_at)
    if run.timestamp_bytes == 1:
        return unzigzag(field.view(data, np.uint8))
    if run.timestamp_bytes == 2:
        raw = field.shifted(1).view(data, np.uint8).astype(np.uint16)
        raw <<= 7
        raw |= field.view(data, np.uint8) & 0x7F
        return unzigzag(raw, overwrite=True)
    deltas, _ = read(data, field.positions(), VARLONG_BITS)
    return deltas.reshape(grid.batches, grid.records)


def find_uniform(
    data: Bytes, begins: Ints, ends: Ints, counts: Ints, *, max_rows: int
) -> UniformBatches | None:
    """Find the batches that look like copies of the middle one, the model; None if they are too
    few, so that reading each record is faster.

    `begins` and `ends` delimit each batch's uncompressed records in `data`; `counts` are the record
    counts of the batch headers. At most `max_rows` records are decoded at a time. Models are kept
    for later calls whose middle batch is a copy of them.
    """
    sizes = ends - begins
    middle = len(begins) // 2  # the first and the last one are the likeliest to be shorter
    size, count = int(sizes[middle]), int(counts[middle])
    alike = int(np.count_nonzero((sizes == size) & (counts == count)))
    # For fewer batches, reading a model costs more than it saves.
    if alike < 4 or 2 * alike < len(begins):
        return None
    if count > max_rows or size > 256 << 10:  # batches of 256 KiB need no help
        return None
    middle_batch = slice(middle, middle + 1)
    model = _models.get((size, count))
    if model is None or not _is_copy_of_model(data, int(begins[middle]), model):
        model = _read_model(data, begins[middle_batch], ends[middle_batch], counts[middle_batch])
        if model is None:
            return None
        if count <= 4096:  # a model has arrays of as many entries
            with _models_lock:
                while len(_models) >= _MAX_MODELS:
                    del _models[next(iter(_models))]
                _models[size, count] = model
    if _has_too_many_grids(len(model.runs), min(int(counts.sum()), max_rows)):
        return None
    # Shorter ones (a producer was flushed) have the model's first records.
    uniform = (counts <= count) & (sizes == model.sizes.take(counts, mode="clip"))
    changes = int(np.count_nonzero(uniform[1:] != uniform[:-1]))
    # Changes from uniform to not uniform batches and back must be rare.
    if changes * 8 > len(begins):
        return None
    return UniformBatches(data, begins, counts, model, uniform, max_rows)


def _read_model(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> _Model | None:
    """Read the model from the only batch of these arrays; None if its records have different sizes
    or headers, or are damaged."""
    bounds = record_starts.find_records(data, begins, ends, counts)
    if not bounds.proven.all():
        return None
    begin = int(begins[0])
    whole = data[begin : int(ends[0])]  # positions below count from its begin
    starts, bodies, record_ends = bounds.starts - begin, bounds.bodies - begin, bounds.ends - begin
    try:
        fields = read_fields(whole, bodies, record_ends)
    except (DamageError, BadVarintError):
        return None
    keys, values = fields.keys, fields.values
    if fields.headers is not None or not isinstance(keys, Spans) or not isinstance(values, Spans):
        return None
    key_length, value_length = int(keys.lengths[0]), int(values.lengths[0])
    if (keys.lengths != key_length).any() or (values.lengths != value_length).any():
        return None
    _, offset_at = read(whole, bodies + 1, VARLONG_BITS)  # after the timestamp delta
    # The shape of each record, as a column: see `_make_run`. `cuts` are the records where it
    # changes.
    shapes = np.stack([record_ends, bodies, offset_at, keys.at, values.at]) - starts
    cuts = (np.flatnonzero((shapes[:, 1:] != shapes[:, :-1]).any(axis=0)) + 1).tolist()
    # Runs need 16 records on average.
    if (len(cuts) + 1) * 16 > len(starts) or int(shapes[0].min()) < _WORD_BYTES:
        return None
    runs = [
        _make_run(whole, starts, first, last, shapes[:, first].tolist(), key_length, value_length)
        for first, last in zip([0, *cuts], [*cuts, len(starts)], strict=True)
    ]
    sizes = np.append(0, record_ends)
    return _Model(sizes, fields.offset_deltas, key_length, value_length, runs)


def _make_run(
    data: Bytes,
    starts: Ints,
    first: int,
    last: int,
    shape: Sequence[int],
    key_length: int,
    value_length: int,
) -> _Run:
    """Return the run of the model's records [first, last), which begin at `starts`. Their `shape`:
    the size of a record, and where in it the attributes, the offset delta, the key and the value
    begin."""
    size, body, offset, key, value = shape
    # The bits of a record that determine positions: not the attributes, key and value, and of the
    # timestamp only the high bits, which say how many bytes it has.
    mask = np.full(size, 0xFF, np.uint8)
    mask[body] = 0
    mask[body + 1 : offset] = 0x80
    mask[key : key + max(key_length, 0)] = 0
    mask[value : value + max(value_length, 0)] = 0
    grid = GridPart(int(starts[first]), last - first, size)
    words = _make_words(data, grid, mask)
    timestamp_bytes = offset - body - 1
    return _Run(first, last, grid.begin, size, words, body + 1, timestamp_bytes, key, value)


def _make_words(data: Bytes, grid: GridPart, mask: Bytes) -> list[_MaskedWord]:
    """Return what copies are compared with: words of eight bytes that cover all bits of `mask`
    (which is as long as a record), each with its value in every record of the model at `grid`."""
    words: list[_MaskedWord] = []
    covered = 0
    for position in np.flatnonzero(mask).tolist():
        if position < covered:
            continue
        at = min(position, len(mask) - _WORD_BYTES)
        bits = mask[at : at + _WORD_BYTES].copy().view(np.uint64)[0]
        expected = grid.shifted(at).view(data, np.uint64)[0] & bits
        words.append(_MaskedWord(at, bits, expected))
        covered = at + _WORD_BYTES
    return words
