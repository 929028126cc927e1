"""Datums into columns and back, held against fastavro: any schema, any values, any damage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.avro import skip
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS
from tests.schemas.avro.avro_cases import (
    decode,
    decoded,
    oracle,
    plain,
    schema,
    schemas,
    values,
    written,
)
from tests.support.properties import examples

SLOW = settings(max_examples=examples(50), suppress_health_check=list(HealthCheck))


@pytest.fixture(params=[1, None, 10**9], ids=["by steps", "as always", "one by one"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are followed by steps of NumPy, or one by one."""
    if request.param is not None:
        monkeypatch.setattr(skip, "_MIN_VECTOR", request.param)


@st.composite
def tables(draw: st.DrawFn, *, nulls: bool = True) -> tuple[Any, list[bytes | None]]:
    """A schema and payloads of it."""
    definition = draw(schemas(nulls=nulls))
    rows = draw(st.lists(st.one_of(st.none(), values(definition)), max_size=6))
    return definition, [None if row is None else written(definition, row) for row in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@SLOW
@given(tables())
def test_reads_what_fastavro_writes(table: tuple[Any, list[bytes | None]]) -> None:
    definition, payloads = table
    assert decoded(definition, payloads) == [
        None if payload is None else oracle(definition, payload) for payload in payloads
    ]


@pytest.mark.slow
@SLOW
@given(tables(), st.data())
def test_fastavro_reads_what_it_writes(
    table: tuple[Any, list[bytes | None]], data: st.DataObject
) -> None:
    definition, payloads = table
    column = decode(definition, payloads).values
    low = data.draw(st.integers(0, len(payloads)))
    some = column.slice(low, data.draw(st.integers(0, len(payloads))))
    encoded = avro.encoder(schema(definition), column.type).encode(some)
    encoded.validate(full=True)
    assert encoded.type == pa.binary()
    again = [None if p is None else oracle(definition, p) for p in encoded.to_pylist()]
    assert plain(pa.concat_arrays([some])) == again
    assert decoded(definition, encoded.to_pylist()) == again


# What fastavro takes and we do not: words of our reasons.
STRICTER = (
    "a boolean of",  # any byte but 0 is true for fastavro
    "more than 32 bits",  # fastavro reads int as long
    "more than 64 bits",
    "a block of",  # the size of a block is not looked at
    "a decimal of",  # digits beyond the precision, or no bytes
    "branch -",  # a negative index counts from the end, in Python
    "symbol -",
    "is out of range",  # a time that is beyond 64 bits in microseconds
)


def damaged(payload: bytes, data: st.DataObject) -> bytes:
    """A few bytes changed, put in, or taken out."""
    made = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(made)))
        byte = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF, 0x10]))
        what = data.draw(st.sampled_from(["change", "insert", "delete", "cut"]))
        if what == "insert":
            made.insert(at, byte)
        elif what == "cut":
            del made[at:]
        elif at < len(made):
            if what == "change":
                made[at] = byte
            else:
                del made[at]
    return bytes(made)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@settings(SLOW, max_examples=examples(100))
@given(tables(nulls=False), st.data())
def test_damage_is_a_good_row_or_a_bad_one(
    table: tuple[Any, list[bytes | None]], data: st.DataObject
) -> None:
    definition, payloads = table
    positions = [row for row, payload in enumerate(payloads) if payload]
    if not positions:
        return
    row = data.draw(st.sampled_from(positions))
    payloads[row] = damaged(payloads[row] or b"", data)
    result = decode(definition, payloads)
    got = plain(result.values)
    alone = decode(definition, [payloads[row]])
    many = decode(definition, [payloads[row]] * MAX_OWN_REASONS)
    assert set(many.reasons) == set(result.reasons) == set(alone.reasons)
    assert plain(many.values) == [got[row]] * MAX_OWN_REASONS
    assert plain(alone.values) == [got[row]]
    for other, payload in enumerate(payloads):
        if other != row:
            assert got[other] == (None if payload is None else oracle(definition, payload))
    try:
        value = oracle(definition, payloads[row] or b"")
    except Exception as error:
        assert result.bad_rows.tolist() == [row], error
        assert got[row] is None
    else:
        if result.reasons:
            assert any(words in result.reasons[0] for words in STRICTER), (result.reasons, value)
            assert result.bad_rows.tolist() == [row]
            assert got[row] is None
        else:
            assert got[row] == value


@pytest.mark.slow
@SLOW
@given(tables(), st.data())
def test_a_part_of_the_fields_is_as_in_all(
    table: tuple[Any, list[bytes | None]], data: st.DataObject
) -> None:
    """Fields that are skipped are not read, but the others are as if they were."""
    definition, payloads = table
    if payloads and data.draw(st.booleans()):
        payloads[0] = damaged(payloads[0] or b"\0", data)
    full = decode(definition, payloads)
    wanted = part_of(full.values.type, data)
    some = decode(definition, payloads, wanted=wanted)
    assert some.values.type == wanted
    bad = set(full.bad_rows.tolist())
    assert bad >= set(some.bad_rows.tolist())
    more = [narrowed(value, wanted) for value in plain(full.values)]
    for row, less in enumerate(plain(some.values)):
        if row not in bad:
            assert less == more[row]


def is_union(kind: pa.DataType) -> bool:
    return bool(kind.num_fields) and all(field.name.startswith("member") for field in kind)


def part_of(kind: pa.DataType, data: st.DataObject) -> pa.DataType:
    if pa.types.is_struct(kind) and not is_union(kind):
        fields = data.draw(st.permutations(list(kind)))[: data.draw(st.integers(0, 3))]
        return pa.struct([field.with_type(part_of(field.type, data)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(part_of(kind.value_type, data)))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), kind.item_field.with_type(part_of(kind.item_type, data)))
    return kind


def narrowed(value: Any, wanted: pa.DataType) -> Any:
    """The wanted fields alone, of a value in the form of `plain`."""
    if value is None:
        return None
    if pa.types.is_struct(wanted) and not is_union(wanted):
        return {field.name: narrowed(value[field.name], field.type) for field in wanted}
    if pa.types.is_list(wanted):
        return [narrowed(each, wanted.value_type) for each in value]
    if pa.types.is_map(wanted):
        return {key: narrowed(each, wanted.item_type) for key, each in value.items()}
    return value
