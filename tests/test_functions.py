"""What the functions say before a query runs."""

from __future__ import annotations

import datetime
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from sparkkafka import functions
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.errors import BadRecordError, EncodeError, OptionError, SchemaError
from sparkkafka.functions import (
    from_avro,
    from_protobuf,
    to_avro,
    to_protobuf,
    unwrap_debezium,
)
from sparkkafka.spark.read.typed_columns import column_plan
from tests.schemas.envelopes.debezium_records import avro_envelope, payload
from tests.schemas.small_registry import (
    SmallRegistry,
    open_registry_clients,
    small_registry,
)


def test_spark_4_0_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"need pandas on Spark 4\.0: pip install 'pandas<3'"):
        from_avro("v", {"valueFraming": "none"}, schema='"int"')


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        yield one


@pytest.mark.parametrize("function", [to_avro, to_protobuf])
@pytest.mark.parametrize("option", ["auto.register.schemas", "normalize.schemas"])
def test_what_is_registered_must_be_given(
    registry: SmallRegistry, function: Callable[..., object], option: str
) -> None:
    given = {"schema.registry.url": registry.url, option: "true"}
    with pytest.raises(OptionError, match=rf"{option}=true needs a schema, .* set type= "):
        function("v", given, subject="s")
    assert not registry.requests


def test_a_schema_in_place_of_the_options() -> None:
    with pytest.raises(OptionError, match=r"got a str\. Pass a schema by its name: schema=…, "):
        to_avro("v", '"string"')  # type: ignore[arg-type]


def test_an_error_has_no_bytes_of_the_payload() -> None:
    column = ColumnFormat(column="value", format="avro", schema='"string"', framing="none")
    formats = FormatOptions(value=column)
    decode = functions._DecodeFunction(column_plan(formats, None, None), None, null_for_bad=False)
    with pytest.raises(BadRecordError, match=r"a payload of 7 bytes: .*onBadRecord=null") as caught:
        decode(pa.array([b"\x20secret"]))
    assert b"secret".hex(" ") not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_errors_of_writes_name_the_column_and_the_argument(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Callable[[pa.Array], pa.Array]] = []
    monkeypatch.setattr(functions, "_make_udf", lambda encode, *_: lambda _: made.append(encode))
    enum = '{"type": "enum", "name": "E", "symbols": ["A"]}'
    to_avro("v", {"valueFraming": "none"}, schema=enum, type=StringType())
    with pytest.raises(EncodeError, match=r"^column v, row 1 of this batch: "):
        made[0](pa.array(["A", "B"]))
    given = {"schema.registry.url": registry.url}
    with pytest.raises(OptionError, match="valueSchema its argument schema"):
        to_avro("v", given, subject="s", type=StringType())


def test_a_schema_that_contains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option has Spark's name and place; the type is what a read has."""
    kinds: list[str] = []

    def apply(function: Any, kind: Any, given: pa.DataType) -> Any:
        kinds.append(kind.simpleString())
        return lambda _: function

    monkeypatch.setattr(functions, "_make_udf", apply)
    person = 'syntax = "proto3"; message Person { string name = 1; Person bff = 2; }'
    bare = {"valueFraming": "none"}
    with pytest.raises(SchemaError, match=r"max\.depth to .* \(type= of a function\) name"):
        from_protobuf("v", bare, schema=person)
    two = {**bare, "recursive.fields.max.depth": 2}
    decode = from_protobuf("v", two, schema=person)
    assert kinds == ["struct<name:string,bff:struct<name:string,bff:string>>"]
    payload = b"\x0a\x01a\x12\x0a\x0a\x01b\x12\x05\x0a\x03xyz"
    values = decode(pa.array([payload], pa.binary()))
    inner = {"name": "b", "bff": '{"name":"xyz"}'}
    assert values.to_pylist() == [{"name": "a", "bff": inner}]
    encode = to_protobuf("v", two, schema=person)
    assert encode(values).to_pylist() == [payload]
    with pytest.raises(OptionError, match=r"max\.depth has no effect beside the argument type"):
        to_protobuf("v", two, schema=person, type=StringType())


def test_clients_of_the_registry_are_closed(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "_make_udf", lambda *_: lambda _: None)
    registry.add("s", '"string"')
    options = {"schema.registry.url": registry.url}
    open_clients = open_registry_clients(monkeypatch)
    to_avro("v", options, subject="s")
    assert not open_clients
    from_avro("v", options, subject="s")
    # The plan contains one: tasks look up the schemas of the payloads' ids.
    assert len(open_clients) == 1


def test_unwrapped_envelopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The struct has the columns of a read with envelope=debezium, and a tombstone its kind."""
    kinds: list[str] = []

    def apply(function: Any, kind: Any, given: pa.DataType) -> Any:
        kinds.append(kind.simpleString())
        return lambda _: pickle.loads(pickle.dumps(function))

    monkeypatch.setattr(functions, "_make_udf", apply)
    change = StructType().add("op", "string").add("kind", "string").add("position", "string")
    columns = StructType().add("id", "long").add("born", "date").add("change", change)
    unwrap = unwrap_debezium("value", "json", {"onBadRecord": "null"}, type=columns)
    assert kinds == [
        "struct<id:bigint,born:date,change:struct<op:string,kind:string,position:string>>"
    ]
    records = [payload("c", None, {"id": 1, "born": 1}, lsn=7), payload("x", None, None)]
    payloads = [json.dumps(record).encode() for record in records]
    rows = unwrap(pa.array([*payloads, None], pa.binary())).to_pylist()
    born = datetime.date(1970, 1, 2)
    nothing = {"id": None, "born": None}
    assert rows == [
        {"id": 1, "born": born, "change": {"op": "c", "kind": "row", "position": f"{7:020}"}},
        {**nothing, "change": {"op": None, "kind": None, "position": None}},
        {**nothing, "change": {"op": None, "kind": "tombstone", "position": None}},
    ]
    text = json.dumps(avro_envelope([("id", "long")]))
    unwrap_debezium("value", "avro", {"valueFraming": "none"}, schema=text)
    assert kinds[1].startswith("struct<id:bigint,change:struct<op:string,kind:string,ts_ms:bigint,")
    with pytest.raises(BadRecordError, match="'x' is none of c, u, d, r, t, m"):
        unwrap_debezium("value", "json", type=columns)(pa.array(payloads, pa.binary()))
    keys = StructType().add("id", "long").add("change", StructType().add("key", columns))
    with pytest.raises(OptionError, match="a function has no key"):
        unwrap_debezium("value", "json", type=keys)
    with pytest.raises(OptionError, match="json without a schema needs the type"):
        unwrap_debezium("value", "json")
