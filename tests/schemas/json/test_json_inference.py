"""Types of samples."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.json.format import decoder, infer
from sparkkafka.schemas.values import Schema


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        ([b"1", b"null"], pa.int64()),
        ([b"1", b"2.0"], pa.float64()),
        ([b"true"], pa.bool_()),
        ([b"-0"], pa.int64()),
        ([b"1", b"true"], pa.string()),
        ([b'"2024-01-02"'], pa.string()),
        ([b"9223372036854775808"], pa.decimal128(38, 0)),
        ([b"9" * 39], pa.float64()),
        ([b"9" * 5000, b"1e400"], pa.string()),
        ([b"[1, 2.5]", b"[]"], pa.list_(pa.float64())),
        ([b"[]"], pa.list_(pa.string())),
        ([b"{}"], pa.string()),
        ([b"broken", b"1"], pa.int64()),
        (
            [b'{"b":1,"a":null}', b'{"c":{"x":1}}', b'{"c":{"y":true},"a":[{"q":1},{"r":2}]}'],
            pa.struct(
                [
                    ("b", pa.int64()),
                    ("a", pa.list_(pa.struct([("q", pa.int64()), ("r", pa.int64())]))),
                    ("c", pa.struct([("x", pa.int64()), ("y", pa.bool_())])),
                ]
            ),
        ),
        ([b'{"a":{"x":1}}', b'{"a":2}'], pa.struct([("a", pa.string())])),
    ],
)
def test_types(samples: list[bytes], kind: pa.DataType) -> None:
    assert infer(samples) == kind
    good = [sample for sample in samples if sample != b"broken"]
    read = decoder(Schema("json", ""), None, kind).decode(pa.array(good, pa.binary()))
    assert read.reasons == ()


def test_objects_whose_names_are_data_become_maps() -> None:
    samples = [json.dumps({f"k{n}": n if n % 2 else n / 7}).encode() for n in range(3000)]
    assert infer(samples) == pa.map_(pa.string(), pa.float64())


def test_deep_samples_stay_text() -> None:
    kind = infer([b'{"a":' * 100 + b"1" + b"}" * 100])
    depth = 0
    while pa.types.is_struct(kind):
        kind, depth = kind.field(0).type, depth + 1
    assert (kind, depth) == (pa.string(), 33)


@pytest.mark.parametrize("samples", [[], [b"null"], [b"{", b""]])
def test_nothing_to_infer_from(samples: list[bytes]) -> None:
    with pytest.raises(SchemaError, match=f"of {len(samples)} samples none is JSON with a value"):
        infer(samples)
