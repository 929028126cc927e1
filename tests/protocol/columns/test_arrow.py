"""Numpy to Arrow and back against pyarrow's own ways."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.protocol.records.arrow import from_numpy, is_valid, or_zero, repeat_text, to_numpy


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16, np.bool_])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_from_numpy(kind, step):
    values = (np.arange(20) % 3).astype(kind)[::step]
    assert from_numpy(values).equals(pa.array(values))
    assert from_numpy(values[:0]).equals(pa.array(values[:0]))


def test_from_numpy_as_timestamps():
    values = np.array([0, 1, -1], np.int64)
    kind = pa.timestamp("us", tz="UTC")
    assert from_numpy(values, kind).equals(pa.array(values).cast(kind))


def test_memory_is_shared():
    values = np.arange(5)
    array = from_numpy(values)
    assert array.buffers()[1].address == values.ctypes.data
    assert to_numpy(array).ctypes.data == values.ctypes.data


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint32()])
def test_to_numpy(kind):
    array = pa.array(list(range(20)), kind)
    for part in (array, array.slice(3, 9), array.slice(20)):
        assert to_numpy(part).dtype == kind.to_pandas_dtype()
        assert to_numpy(part).tolist() == part.to_pylist()


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3, None, 5, 6, 7, 8, 9, None]),
        pa.array([b"a", None, b"", b"d"], pa.binary()),
        pa.array([None, None], pa.null()),
        pa.array([], pa.int32()),
        pa.array([[1], None, []]),
        pa.array([{"a": 1}, None]),
        pa.array(["x", None, "x"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_is_valid(array):
    for part in (array, array.slice(1), array.slice(len(array))):
        assert is_valid(part).tolist() == part.is_valid().to_pylist()


def test_or_zero():
    array = pa.array([1, None, -3, None, 5, 6, 7, 8, 9, None], pa.int32())
    for part in (array, array.slice(1), array.slice(4, 5), array.slice(len(array))):
        assert or_zero(part).tolist() == part.fill_null(0).to_pylist()
        assert or_zero(part).dtype == np.int32


@pytest.mark.parametrize("text", ["", "t", "größer", "x" * 249])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_repeat_text(text, count):
    array = repeat_text(text, count)
    array.validate(full=True)
    assert array.equals(pa.repeat(pa.scalar(text), count))
