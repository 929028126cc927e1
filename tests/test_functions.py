"""What the functions say before a query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType

from sparkkafka import functions
from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.errors import BadRecordError, EncodeError, OptionError, SchemaError
from sparkkafka.functions import from_avro, from_protobuf, to_avro, to_protobuf
from sparkkafka.spark.read.typed_columns import column_plan
from tests.schemas.small_registry import (
    SmallRegistry,
    open_registry_clients,
    small_registry,
)


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


def test_an_error_has_no_bytes_of_the_payload() -> None:
    column = ColumnFormat(column="value", format="avro", schema='"string"', framing="none")
    formats = FormatOptions(value=column)
    decode = functions._DecodeFunction(column_plan(formats, None, None), None, null_for_bad=False)
    with pytest.raises(BadRecordError, match=r"a payload of 7 bytes .*onBadRecord=null") as caught:
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
