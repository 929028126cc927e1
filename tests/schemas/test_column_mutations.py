"""Any change of a framed payload is a good row or a bad one, and never harms its neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.config.kinds import CONFLUENT, HEADERS
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    EncodePlan,
    compile_for_tasks,
    format_module,
)
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Schema
from tests.schemas.small_registry import SmallRegistry, small_registry
from tests.support.properties import examples

TEXTS = {
    "avro": json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": "long"},
                {"name": "s", "type": ["null", "string"], "default": None},
                {"name": "l", "type": {"type": "array", "items": "string"}},
            ],
        }
    ),
    "protobuf": 'syntax = "proto3"; message R { int64 a = 1; optional string s = 2; '
    "repeated string l = 3; }",
    "json": json.dumps(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "s": {"type": "string"},
                "l": {"type": "array", "items": {"type": "string"}},
            },
        }
    ),
}
FORMATS = list(TEXTS)
ROWS = [{"a": 1, "s": "x", "l": ["p", "q"]}, {"a": -(2**40), "s": None, "l": []}]


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        for number, format in enumerate(FORMATS, 1):
            assert one.add("s", TEXTS[format], format.upper()) == number
        yield one


def decoder(registry: SmallRegistry, format: str, framing: str) -> ColumnDecoder:
    client = RegistryClient(RegistryOptions(url=registry.url, max_retries=0))
    schema = Schema(format, TEXTS[format])
    plan = ColumnPlan(
        column="value",
        format=format,
        framing=framing,
        reader=schema,
        type=format_module(format).arrow_type(schema),
        schema_id=FORMATS.index(format) + 1,
        compiled=compile_for_tasks(schema),
    )
    return ColumnDecoder(plan, lambda: client)


def written(format: str, framing: str) -> tuple[pa.Array, pa.Array | None]:
    schema = Schema(format, TEXTS[format])
    kind = format_module(format).arrow_type(schema)
    plan = EncodePlan("value", format, framing, schema, WriterId(FORMATS.index(format) + 1))
    return ColumnEncoder(plan).encode(pa.array(ROWS, kind), None)


def mutated(payload: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for what, position, data in changes:
        at = position % (len(payload) + 1)
        if what == "cut":
            payload = payload[:at]
        elif what == "insert":
            payload = payload[:at] + data + payload[at:]
        elif what == "drop":
            payload = payload[:at] + payload[at + 1 :]
        else:
            payload = payload[:at] + data[:1] + payload[at + 1 :]
    return payload


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["cut", "insert", "drop", "set"]),
        st.integers(0, 200),
        st.binary(min_size=1, max_size=11),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("framing", [CONFLUENT, HEADERS])
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=examples(20))
@given(changes=CHANGES, others=st.lists(CHANGES, max_size=3))
def test_mutations(
    registry: SmallRegistry,
    format: str,
    framing: str,
    changes: Any,
    others: Any,
) -> None:
    payloads, headers = written(format, framing)
    good = payloads.to_pylist()
    rows = [good[0]]
    for item in [changes, *others]:
        rows += [mutated(good[len(rows) % 2], item), good[1]]
    if headers is not None:
        # Half of the time it is the frame that is damaged.
        frame = headers.to_pylist()[0][0]["value"]
        given = [frame if n % 4 else mutated(frame, changes) for n in range(len(rows))]
        given = [frame if row in good else value for row, value in zip(rows, given, strict=True)]
        headers = pa.array([[("__value_schema_id", item)] for item in given], headers.type)
    found = decoder(registry, format, framing).decode(pa.array(rows, pa.binary()), headers)
    found.values.validate(full=True)
    bad = [item.row for item in found.bad]
    assert bad == sorted(set(bad))
    values = found.values.to_pylist()
    expected = dict(zip(good, ROWS, strict=True))
    for number, (row, value) in enumerate(zip(rows, values, strict=True)):
        if row in expected:
            assert number not in bad
            assert value == expected[row]
        else:
            assert (value is None) == (number in bad) or format == "json"
    assert all(item.reason for item in found.bad)
