"""One whole column: many writers in one batch, bad rows in their places, and back."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkkafka.config.kinds import AVRO, CONFLUENT, HEADERS, JSON, NO_FRAMING, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import EncodeError, KafkaError, RegistryError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.schemas.arrays import as_type
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    EncodePlan,
    decoder_of,
    format_module,
)
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Schema
from tests.schemas.small_registry import SmallRegistry, small_registry


def record(*fields: tuple[str, Any, Any]) -> dict[str, Any]:
    """(name, type, default; ... for none)."""
    return {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": name, "type": kind, **({} if default is ... else {"default": default})}
            for name, kind, default in fields
        ],
    }


VERSIONS = [
    record(("a", "int", ...)),
    record(("a", "long", ...), ("b", ["null", "string"], None)),
    record(("c", "double", 0.5), ("b", ["null", "string"], None), ("a", "long", ...)),
]
TEXTS = [json.dumps(version) for version in VERSIONS]
READER = Schema(AVRO, TEXTS[2])


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        for text in TEXTS:
            one.add("s", text)
        yield one


@pytest.fixture(scope="module")
def client(registry: SmallRegistry) -> RegistryClient:
    return RegistryClient(RegistryOptions(url=registry.url, max_retries=0))


def datum(version: int, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(VERSIONS[version]), value)
    return out.getvalue()


def framed(version: int, value: Any) -> bytes:
    return b"\0" + (version + 1).to_bytes(4, "big") + datum(version, value)


def decoder(client: RegistryClient | None, **more: Any) -> ColumnDecoder:
    plan = ColumnPlan(
        column="value",
        format=AVRO,
        framing=more.pop("framing", CONFLUENT),
        reader=more.pop("reader", READER),
        type=more.pop("type", avro.arrow_type(READER)),
        **{"schema_id": 3, "subject": "s", **more},
    )
    return ColumnDecoder(plan, None if client is None else lambda: client)


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


ROWS = st.one_of(
    st.none(),
    st.tuples(st.just(0), st.fixed_dictionaries({"a": st.integers(-(2**31), 2**31 - 1)})),
    st.tuples(
        st.just(1),
        st.fixed_dictionaries(
            {"a": st.integers(-(2**63), 2**63 - 1), "b": st.none() | st.text(max_size=3)}
        ),
    ),
    st.tuples(
        st.just(2),
        st.fixed_dictionaries(
            {
                "c": st.floats(allow_nan=False),
                "b": st.none() | st.text(max_size=3),
                "a": st.integers(0, 9),
            }
        ),
    ),
    st.binary(max_size=12),
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rows=st.lists(ROWS, max_size=20))
def test_each_row_is_what_its_own_writer_wrote(client: RegistryClient, rows: list[Any]) -> None:
    payloads, expected, loose = [], [], set()
    for number, row in enumerate(rows):
        if isinstance(row, tuple):
            version, value = row
            payloads.append(framed(version, value))
            expected.append({"c": 0.5, "b": None, **value})
        else:
            payloads.append(row)
            expected.append(None)
            loose.add(number)
    found = decoder(client).decode(binary(payloads), None)
    found.values.validate(full=True)
    bad = {item.row for item in found.bad}
    assert [item.row for item in found.bad] == sorted(bad)
    assert bad <= loose
    values = found.values.to_pylist()
    for number, (value, wanted) in enumerate(zip(values, expected, strict=True)):
        if number not in loose:
            assert value == wanted
        elif payloads[number] is None:
            assert value is None
            assert number not in bad
        else:
            assert (value is None) == (number in bad)


def test_bad_rows_have_their_writers(client: RegistryClient) -> None:
    payloads = binary(
        [b"x", framed(0, {"a": 1}), framed(1, {"a": 1, "b": None})[:-1], b"\0\0\0\0\x63"]
    )
    found = decoder(client).decode(payloads, None)
    assert [(item.row, item.writer) for item in found.bad] == [
        (0, WriterId()),
        (2, WriterId(2)),
        (3, WriterId(99)),
    ]
    assert found.bad[2].reason == "the registry does not know schema id 99"
    assert found.values.to_pylist()[1] == {"c": 0.5, "b": None, "a": 1}


def test_a_writer_s_schema_is_asked_for_once(
    client: RegistryClient, registry: SmallRegistry
) -> None:
    one = decoder(client)
    payloads = binary([framed(0, {"a": 1}), framed(2, {"c": 1.0, "b": None, "a": 1})])
    one.decode(payloads, None)
    before = len(registry.requests)
    one.decode(payloads, None)
    decoder(client).decode(payloads, None)
    assert len(registry.requests) == before


def test_nobody_to_ask() -> None:
    found = decoder(None).decode(
        binary([framed(0, {"a": 1}), framed(2, {"c": 1.0, "b": None, "a": 1})]), None
    )
    assert [item.row for item in found.bad] == [0]
    assert "there is no registry" in found.bad[0].reason
    assert found.values.to_pylist()[1] == {"c": 1.0, "b": None, "a": 1}


def test_a_registry_that_refuses_is_an_error(registry: SmallRegistry) -> None:
    with small_registry() as other:
        one = decoder(RegistryClient(RegistryOptions(url=other.url, max_retries=0)))
        other.refuse = 403
        with pytest.raises(RegistryError):
            one.decode(binary([framed(0, {"a": 1})]), None)
    with pytest.raises(KafkaError):
        one.decode(binary([framed(0, {"a": 1})]), None)


@pytest.mark.parametrize("status", [403, 404])
def test_one_id_that_is_refused_among_many(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is the registry's error, whatever the ids beside it are. Status 404 without a code
    of the registry is somebody else's: a proxy before a registry that is away."""
    with small_registry() as other:
        for text in TEXTS:
            other.add("s", text)
        usual = other.respond

        def respond(method: str, path: str, body: Any) -> tuple[int, Any]:
            if "/ids/77?" in path:
                return status, {"error_code": status, "message": "no"}
            return usual(method, path, body)

        monkeypatch.setattr(other, "respond", respond)
        one = decoder(RegistryClient(RegistryOptions(url=other.url, max_retries=0)))
        payloads = [framed(0, {"a": 1}), framed(1, {"a": 1, "b": None})]
        payloads += [b"\0" + number.to_bytes(4, "big") for number in range(3, 100)]
        with pytest.raises(RegistryError, match=f"the schema with id 77 with status {status}"):
            one.decode(binary(payloads), None)
        payloads.pop(76)
        found = one.decode(binary(payloads), None)
        assert [bad.writer.schema_id for bad in found.bad] == [3, *range(4, 77), *range(78, 100)]
        assert found.values.to_pylist()[:2] == [{"c": 0.5, "b": None, "a": 1}] * 2


def test_the_schemas_of_many_ids_are_not_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders are small; the texts that they are made of need not be."""
    requests: list[WriterId] = []
    held: list[int] = []
    ask, make = ColumnDecoder._fetch_schema, ColumnDecoder._make_decoder

    def asking(self: ColumnDecoder, writer: WriterId) -> Any:
        requests.append(writer)
        return ask(self, writer)

    def making(self: ColumnDecoder, writer: WriterId, schema: Any) -> Any:
        held.append(len(requests) - len(held))
        return make(self, writer, schema)

    monkeypatch.setattr(ColumnDecoder, "_fetch_schema", asking)
    monkeypatch.setattr(ColumnDecoder, "_make_decoder", making)
    with small_registry() as other:
        for number in range(100):
            other.add("s", json.dumps(record((f"a{number}", "int", ...))))
        one = decoder(RegistryClient(RegistryOptions(url=other.url, max_retries=0)), schema_id=None)
        payloads = [b"\0" + number.to_bytes(4, "big") + b"\2" for number in range(1, 101)]
        one.decode(binary(payloads), None)
    assert len(requests) == len(held) == 100
    assert max(held) <= 64


def test_an_id_that_was_not_there_is_asked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command and functions keep their decoders, perhaps for days."""
    with small_registry() as other:
        one = decoder(RegistryClient(RegistryOptions(url=other.url, max_retries=0)))
        payloads = binary([framed(0, {"a": 1})])
        for _ in range(2):
            assert len(one.decode(payloads, None).bad) == 1
        assert len(other.requests) == 1
        other.add("s", TEXTS[0])
        now_s = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 61)
        assert not one.decode(payloads, None).bad


def test_a_schema_of_another_format_or_that_does_not_resolve(
    client: RegistryClient, registry: SmallRegistry
) -> None:
    json_id = registry.add("s", "{}", JSON.upper())
    other_id = registry.add("s", json.dumps(record(("a", "string", ...))))
    payloads = [b"\0" + item.to_bytes(4, "big") + b"\2" for item in (json_id, other_id)]
    found = decoder(client).decode(binary(payloads), None)
    first, second = found.bad
    assert "json" in first.reason
    assert f"schema id {other_id} cannot be read" in second.reason


def test_times_of_writers_with_other_units(client: RegistryClient, registry: SmallRegistry) -> None:
    """One topic, one instant, written in each unit; a date is not an instant."""
    kinds = ["timestamp-millis", "timestamp-micros", "timestamp-nanos"]
    kinds = [{"type": "long", "logicalType": name} for name in kinds]
    kinds.append({"type": "int", "logicalType": "date"})
    texts = [json.dumps(record(("at", kind, ...))) for kind in kinds]
    ids = [registry.add("times", text) for text in texts]
    payloads = []
    for number, schema_id in zip([-1, -1000, -1_000_000, 19_676], ids, strict=True):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "long", number)
        payloads.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    micros, nanos = Schema(AVRO, texts[1]), Schema(AVRO, texts[2])
    for reader, kind, number in [
        (micros, avro.arrow_type(micros), -1000),
        (nanos, avro.arrow_type(nanos), -1_000_000),
    ]:
        one = decoder(client, reader=reader, type=kind, schema_id=None, subject="times")
        found = one.decode(binary(payloads), None)
        times = found.values.field("at").cast(pa.int64()).to_pylist()
        assert times[:3] == [number] * 3
        (bad,) = found.bad
        assert bad.row == 3
        assert "int (date) of the writer's Avro schema cannot be read as" in bad.reason


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_guid_that_the_registry_cannot_look_up(registry: SmallRegistry, status: int) -> None:
    """Any 17 bytes with a 1 before them look like one, so it is a bad row, not a failed read."""
    with small_registry() as other:
        other.refuse = status
        one = decoder(RegistryClient(RegistryOptions(url=other.url, max_retries=0)))
        found = one.decode(binary([b"\1" + b"g" * 20]), None)
    (bad,) = found.bad
    assert "67676767-6767" in bad.reason


PROTO = 'syntax = "proto3"; message M {{ {} a = 1; }}'


def test_a_protobuf_writer_whose_bytes_mean_something_else(
    client: RegistryClient, registry: SmallRegistry
) -> None:
    """sint32 and int32 share a wire type but not their numbers: read as the other, -1 is 1."""
    texts = [PROTO.format(kind) for kind in ("int32", "sint32", "int64")]
    ids = [registry.add("p", text, PROTOBUF.upper()) for text in texts]
    reader = Schema(PROTOBUF, texts[0])
    plan = ColumnPlan(
        "value", PROTOBUF, CONFLUENT, reader, protobuf.arrow_type(reader), schema_id=ids[0]
    )
    payloads = [b"\0" + item.to_bytes(4, "big") + b"\0" + b"\x08\x01" for item in ids]
    found = ColumnDecoder(plan, lambda: client).decode(binary(payloads), None)
    assert found.values.to_pylist() == [{"a": 1}, None, {"a": 1}]
    (bad,) = found.bad
    assert "field a (number 1) is sint32 in the writer's schema" in bad.reason


def test_ids_in_headers_alone(client: RegistryClient) -> None:
    headers = pa.array([[("__value_schema_id", b"\0\0\0\0\1")], None], HEADERS_TYPE)
    found = decoder(client, framing=HEADERS).decode(
        binary([datum(0, {"a": 4}), framed(0, {"a": 4})]), headers
    )
    assert found.values.to_pylist() == [{"c": 0.5, "b": None, "a": 4}, None]
    assert [item.row for item in found.bad] == [1]


def test_topics_of_one_schema_share_its_decoder() -> None:
    kind = avro.arrow_type(READER)
    plans = [
        ColumnPlan("value", AVRO, CONFLUENT, READER, kind, subject=f"{topic}-value", schema_id=3)
        for topic in ("t", "u")
    ]
    assert decoder_of(plans[0]) is decoder_of(plans[1])


def test_bare_payloads_and_target_fields() -> None:
    kind = pa.struct([("b", pa.string())])
    found = decoder(None, framing=NO_FRAMING, target=kind, type=kind).decode(
        binary([datum(2, {"c": 1.0, "b": "x", "a": 1}), None]), None
    )
    assert found.values.to_pylist() == [{"b": "x"}, None]


# --- types --------------------------------------------------------------------------------------


def test_types_change_without_a_copy() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    own = pa.struct(
        [
            pa.field("l", pa.list_(pa.field("item", inner, nullable=False))),
            pa.field("m", pa.map_(pa.string(), inner)),
        ]
    )
    rows = [
        {"l": [{"x": 1}], "m": [("k", {"x": 2})]},
        None,
        {"l": None, "m": []},
        {"l": [], "m": None},
    ]
    loose = pa.struct([pa.field("x", pa.int64())])
    kind = pa.struct(
        [
            pa.field("l", pa.list_(pa.field("element", loose)), metadata={"a": "b"}),
            pa.field("m", pa.map_(pa.field("key", pa.string(), False), pa.field("value", loose))),
        ]
    )
    for array in (pa.array(rows, own), pa.array([*rows, *rows], own).slice(4)):
        changed = as_type(array, kind)
        changed.validate(full=True)
        assert changed.type.equals(kind, check_metadata=True)
        assert changed.to_pylist() == rows


def test_other_nested_types_are_cast() -> None:
    for array, kind in (
        (pa.array([[1], None, [2, 3]], pa.large_list(pa.int64())), pa.list_(pa.int64())),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64())),
    ):
        changed = as_type(array, kind)
        changed.validate(full=True)
        assert changed.to_pylist() == array.to_pylist()


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", [CONFLUENT, HEADERS, NO_FRAMING])
def test_what_was_written_is_read(client: RegistryClient, framing: str) -> None:
    rows = [{"c": 1.5, "b": "x", "a": 1}, None, {"c": -1.0, "b": None, "a": 2**40}]
    values = pa.array(rows, avro.arrow_type(READER))
    writer = WriterId() if framing == NO_FRAMING else WriterId(3)
    encoder = ColumnEncoder(EncodePlan("value", AVRO, framing, READER, writer))
    payloads, headers = encoder.encode(values, None)
    assert payloads.type == pa.binary()
    assert (headers is not None) == (framing == HEADERS)
    found = decoder(client, framing=framing).decode(payloads, headers)
    assert not found.bad
    assert found.values.to_pylist() == rows


def test_what_cannot_be_written() -> None:
    kind = pa.struct([("c", pa.float64()), ("b", pa.string()), ("a", pa.int64())])
    values = pa.array([{"c": 1.0, "a": 1}, {"c": 1.0, "a": None}], kind)
    encoder = ColumnEncoder(EncodePlan("value", AVRO, NO_FRAMING, READER))
    with pytest.raises(EncodeError, match=r"column value, row 11 of this task: field a"):
        encoder.encode(values, None, 10)


@pytest.mark.parametrize("name", [AVRO, JSON, PROTOBUF])
def test_texts_with_offsets_of_64_bits_are_written(name: str) -> None:
    """As Spark has them with spark.sql.execution.arrow.useLargeVarTypes."""

    def column_of(text: pa.DataType, data: pa.DataType) -> pa.Array:
        fields = [("s", text), ("l", pa.list_(text)), ("m", pa.map_(text, text)), ("b", data)]
        rows = [{"s": "a", "l": ["x"], "m": [("k", "v")], "b": b"z"}, None]
        return pa.array(rows, pa.struct(fields))

    small = column_of(pa.string(), pa.binary())
    schema = format_module(name).schema_of(small.type, "M")
    encoder = ColumnEncoder(EncodePlan("value", name, NO_FRAMING, schema))
    expected, _ = encoder.encode(small, None)
    written, _ = encoder.encode(column_of(pa.large_string(), pa.large_binary()), None)
    assert written.equals(expected) and written[0].as_py()


# --- words --------------------------------------------------------------------------------------


def test_types_have_spark_s_names() -> None:
    pytest.importorskip("pyspark")
    from sparkkafka.schemas.values import type_name
    from sparkkafka.spark.arrow_types import from_arrow_type, to_arrow_type

    scalars = [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        pa.duration("us"), pa.null(), pa.decimal128(10, 2),
    ]  # fmt: skip
    kinds = [
        *scalars,
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.map_(pa.string(), pa.int32()))])),
    ]
    for kind in kinds:
        assert type_name(kind) == from_arrow_type(kind).simpleString()
        assert to_arrow_type(from_arrow_type(kind), "x").equals(kind)
