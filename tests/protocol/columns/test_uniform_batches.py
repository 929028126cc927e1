"""Batches as copies of one of them: the same rows and the same errors as without."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.columns import decode, uniform_batches
from sparkkafka.protocol.columns.columns import CHUNK_RECORDS, Grid, GridPart, GridRows, Selection
from sparkkafka.protocol.columns.decode import decode_batches, decode_chunks
from sparkkafka.protocol.records.batches import RecordBatch
from tests.protocol.record_cases import NOW, equal_records, response, to_records
from tests.support.properties import examples
from tests.support.reference import Record

pytestmark = pytest.mark.slow

END = 2**62

TIMES_MS = {
    "all the same": lambda index: NOW,
    "growing slowly": lambda index: NOW + index // 3,
    "two bytes from some on": lambda index: NOW + index,
    "three bytes": lambda index: NOW + index * 10_000,
    "back and forth": lambda index: NOW + (index * 7919) % 50 - 25,
    "far back": lambda index: NOW if not index else -(2**62) - index,
}


def groups_of(
    counts: list[int], *, key: bytes | None, value: int | None, times: str, step: int
) -> list[list[Record]]:
    """Batches of records of one size; values tell them apart."""
    found: list[list[Record]] = []
    offset = 0
    for count in counts:
        rows = []
        for index in range(count):
            content = None if value is None else f"{offset:{value}d}".encode()[:value]
            rows.append(Record(offset, TIMES_MS[times](index), key, content))
            offset += step
        found.append(rows)
    return found


def decoded(batches: list[RecordBatch], start: int = 0, end: int = END) -> list[Record]:
    return to_records(decode_batches(batches, Selection(start, end)))


@settings(max_examples=examples(120))
@given(st.data())
def test_rows_are_those_of_the_slow_twin(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([16, 63, 64, 65, 150]))
    counts = data.draw(
        st.lists(st.sampled_from([count] * 6 + [1, 7, count - 1]), min_size=4, max_size=20)
    )
    groups = groups_of(
        counts,
        key=data.draw(st.sampled_from([None, b"", b"12345678"])),
        value=data.draw(st.sampled_from([None, 0, 1, 50, 60, 100, 300])),
        times=data.draw(st.sampled_from(sorted(TIMES_MS))),
        step=data.draw(st.sampled_from([1, 1, 3])),
    )
    if data.draw(st.booleans()):  # one record of the same size that is another one
        batch = data.draw(st.sampled_from(groups))
        position = data.draw(st.integers(0, len(batch) - 1))
        other = data.draw(st.sampled_from(["key", "value", "time"]))
        row = batch[position]
        if other == "key":
            batch[position] = row._replace(key=None if row.key == b"" else b"")
        elif other == "value":
            batch[position] = row._replace(value=None if row.value == b"" else b"")
        else:
            batch[position] = row._replace(timestamp=row.timestamp + 70)
    records = [row for group in groups for row in group]
    batches = response(groups)
    assert decoded(batches) == records
    first = data.draw(st.sampled_from(records)).offset
    last = data.draw(st.sampled_from(records)).offset
    assert decoded(batches, first, last) == [r for r in records if first <= r.offset < last]
    time = data.draw(st.sampled_from(records)).timestamp
    pieces = decode_chunks(batches, Selection(0, END, times_ms=(time, time)))
    assert [row for piece in pieces for row in to_records(piece)] == [
        row for row in records if row.timestamp == time
    ]


def responses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether copies were found, each time that somebody asks for their fields."""
    found: list[bool] = []
    way = uniform_batches.UniformBatches.read_fields

    def read_fields(self: uniform_batches.UniformBatches, first: int, last: int) -> object:
        response = way(self, first, last)
        found.append(response is not None)
        return response

    monkeypatch.setattr(uniform_batches.UniformBatches, "read_fields", read_fields)
    return found


@pytest.mark.parametrize(
    ("value", "times"),
    [*((100, times) for times in sorted(TIMES_MS)), (None, "three bytes"), (0, "all the same")],
)
def test_copies_are_found(monkeypatch: pytest.MonkeyPatch, value: int | None, times: str) -> None:
    """Also beside shorter batches, as a producer that is flushed leaves them."""
    found = responses(monkeypatch)
    read = []
    way = decode.read_fields
    monkeypatch.setattr(
        decode, "read_fields", lambda *args: read.append(len(args[1])) or way(*args)
    )
    counts = [150] * 60 + [34] + [150] * 40 + [7]
    groups = groups_of(counts, key=b"12345678", value=value, times=times, step=1)
    assert decoded(response(groups)) == [row for group in groups for row in group]
    assert found == [True]
    assert read == []


@pytest.mark.parametrize(
    "what",
    [
        "few batches",
        "sizes of records vary",
        "sizes of batches vary",
        "headers",
        "more records than are decoded together",
        "large batches",
        "many shapes of records",
        "many shorter batches",
    ],
)
def test_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    found = responses(monkeypatch)
    counts = {
        "few batches": [150] * 3,
        "sizes of batches vary": list(range(100, 120)),
        "many shapes of records": [640] * 10,
        "more records than are decoded together": [CHUNK_RECORDS + 1] * 4,
        "many shorter batches": ([16] * 15 + [8]) * 20,
    }.get(what, [150] * 4)
    size = {"large batches": 4000, "more records than are decoded together": 0}.get(what, 20)
    groups = groups_of(counts, key=None, value=size, times="all the same", step=1)
    for group in groups:
        if what == "sizes of records vary":
            group[:] = [row._replace(value=b"x" * (n * 7 % 50)) for n, row in enumerate(group)]
        if what == "many shapes of records":
            group[:] = [
                row._replace(timestamp=NOW + n // 20 % 2 * 70) for n, row in enumerate(group)
            ]
        if what == "headers":
            group[:] = [row._replace(headers=(("a", b"b"),)) for row in group]
    assert decoded(response(groups)) == [row for group in groups for row in group]
    assert True not in found
    assert found == [] or what == "many shorter batches"


def test_after_a_batch_that_is_no_copy_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = responses(monkeypatch)
    groups = [equal_records(1000, 100, first) for first in range(0, 40_000, 1000)]
    groups[25][500] = groups[25][500]._replace(key=b"")
    assert decoded(response(groups)) == [row for group in groups for row in group]
    assert found == [True, False]


def test_pieces_are_no_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = responses(monkeypatch)
    batches = response([equal_records(700, 10, first) for first in range(0, 70_000, 700)])
    pieces = list(decode_chunks(batches, Selection()))
    most = CHUNK_RECORDS // 700 * 700
    assert [len(piece) for piece in pieces] == [most] * 4 + [70_000 - 4 * most]
    assert found == [True] * 5


def test_batches_apart_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them stood markers, or batches of aborted transactions."""
    found = responses(monkeypatch)
    groups = [equal_records(100, 10, first) for first in range(0, 16_000, 100)]
    kept = [n for n in range(160) if n not in (20, 21, 40)]
    batches = response(groups)
    assert decoded([batches[n] for n in kept]) == [row for n in kept for row in groups[n]]
    assert found == [True]


def test_models_are_kept_for_the_next_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform_batches._models.clear()
    read = []
    way = uniform_batches._read_model
    monkeypatch.setattr(uniform_batches, "_read_model", lambda *args: read.append(1) or way(*args))

    def four(size: int) -> list[RecordBatch]:
        return response([equal_records(100, size, first) for first in range(0, 400, 100)])

    shapes = [four(size) for size in range(10, 10 + uniform_batches._MAX_MODELS)]
    for _ in range(3):
        for batches in shapes:
            decoded(batches)
    assert len(read) == len(shapes)
    decoded(four(99))
    decoded(shapes[-1])
    assert len(read) == len(shapes) + 1
    assert len(uniform_batches._models) == uniform_batches._MAX_MODELS
    empty = groups_of([100] * 4, key=None, value=0, times="all the same", step=1)
    null = groups_of([100] * 4, key=None, value=None, times="all the same", step=1)
    for groups in (empty, null, empty):  # of one size
        assert decoded(response(groups)) == [row for group in groups for row in group]


def outcome(batches: list[RecordBatch]) -> object:
    try:
        return decoded(batches)
    except CorruptRecordError as error:
        return str(error), error.offset, error.position


@pytest.mark.parametrize(("key", "times"), [(None, "three bytes"), (b"12", "all the same")])
def test_every_changed_byte_is_seen(
    monkeypatch: pytest.MonkeyPatch, key: bytes | None, times: str
) -> None:
    groups = groups_of([80] * 6, key=key, value=5, times=times, step=1)
    batches = response(groups)
    way = uniform_batches.find_uniform
    payload = bytes(batches[4].data)
    size = len(payload) // 80
    positions = [
        *range(2 * size),
        *range(70 * size, 72 * size),
        *range(len(payload) - 3, len(payload)),
    ]
    damaged = 0
    for position in positions:
        # Half of the values at each position, in turn.
        values = (0, 0x7F, 0xFF, payload[position] ^ 1), (1, 2, 0x80, payload[position] ^ 0x80)
        for byte in values[position % 2]:
            changed = bytearray(payload)
            changed[position] = byte
            some = [*batches]
            some[4] = batches[4]._replace(data=memoryview(bytes(changed)))
            monkeypatch.setattr(uniform_batches, "find_uniform", way)
            fast = outcome(some)
            monkeypatch.setattr(uniform_batches, "find_uniform", lambda *args, **kwargs: None)
            assert fast == outcome(some), (position, byte)
            damaged += isinstance(fast, tuple)
    assert damaged > len(positions)


def test_a_grid_of_two_parts() -> None:
    """Three batches of three records: two of four bytes, one of six."""
    data = np.arange(60, dtype=np.uint8)
    parts = [
        GridRows(0, 3, 0, GridPart(1, 2, 4, batches=3, batch_step=20)),
        GridRows(0, 3, 2, GridPart(9, 1, 6, batches=3, batch_step=20)),
    ]
    rows = Grid(9, 2, parts).take(pa.py_buffer(data)).to_pylist()
    begins = [1, 5, 9, 21, 25, 29, 41, 45, 49]
    assert [list(row) for row in rows] == [[begin, begin + 1] for begin in begins]
    keep = np.array([True, False, False] * 3)
    kept = Grid(9, 2, parts).take(pa.py_buffer(data), keep)
    assert kept.to_pylist() == rows[::3]
    assert Grid(9, -1, parts).take(pa.py_buffer(data)).to_pylist() == [None] * 9
    assert Grid(9, 0, parts).take(pa.py_buffer(data)).to_pylist() == [b""] * 9
    with pytest.raises(ValueError, match="size of buffer"):
        GridPart(1, 2, 18, batches=3, batch_step=20).view(data, np.uint8, bytes_each=2)


def test_threads_share_the_models_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consumers, two threads: when a model was to be forgotten while the other thread kept a
    new one, `next(iter(_models))` raised RuntimeError. Here the switch comes just there."""

    class Kept(dict):
        """The first who looks for the oldest model goes on when the other has taken one away."""

        def __iter__(self):
            found = super().__iter__()
            if not looking.is_set():
                looking.set()
                is_taken.wait(0.3)  # in vain, if only one at a time may do this
            return found

        def __delitem__(self, key) -> None:
            super().__delitem__(key)
            is_taken.set()
            time.sleep(0.1)

        def pop(self, key, default=None):
            found = super().pop(key, default)
            is_taken.set()
            time.sleep(0.1)
            return found

    looking, is_taken = threading.Event(), threading.Event()
    monkeypatch.setattr(uniform_batches, "_models", Kept())
    shapes = [
        response(groups_of([40] * 8, key=None, value=20 + n, times="all the same", step=1))
        for n in range(uniform_batches._MAX_MODELS + 2)
    ]
    for some in shapes[:-2]:
        decoded(some)
    assert len(uniform_batches._models) == uniform_batches._MAX_MODELS
    failures: list[BaseException] = []

    def read(some: list[RecordBatch]) -> None:
        try:
            decoded(some)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(some,)) for some in shapes[-2:]]
    threads[0].start()
    assert looking.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
    assert not failures
    assert len(uniform_batches._models) == uniform_batches._MAX_MODELS
