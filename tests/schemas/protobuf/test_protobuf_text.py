"""The .proto of a column's type: what is written with it is read as it was."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.errors import OptionError
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.protobuf.types import schema_of
from tests.support.properties import examples

EVERYTHING = pa.struct(
    [
        pa.field("flag", pa.bool_()),
        pa.field("tiny", pa.int8()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("took", pa.duration("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("by_name", pa.map_(pa.string(), pa.struct([("x", pa.float32())]))),
        pa.field("ship_to", pa.struct([("zip", pa.int32()), ("raw", pa.binary())])),
    ]
)
TEXT = """\
syntax = "proto3";

package shop.v1;

import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";

message Order {
  optional bool flag = 1;
  optional int32 tiny = 2;
  int64 id = 3;
  confluent.type.Decimal price = 4 [(confluent.field_meta) = { params: \
[{ key: "precision", value: "10" }, { key: "scale", value: "2" }] }];
  google.type.Date day = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Timestamp local = 7;
  google.protobuf.Duration took = 8;
  repeated string tags = 9;
  map<string, ByName> by_name = 10;
  ShipTo ship_to = 11;
  message ByName {
    optional float x = 1;
  }
  message ShipTo {
    optional int32 zip = 1;
    optional bytes raw = 2;
  }
}
"""


def test_the_text_is_this_one() -> None:
    assert schema_of(EVERYTHING, "shop.v1.Order").text == TEXT


NAMES = ["a", "b", "A", "a_b", "google", "confluent", "message", "string", "Type", "_x", "a1", "M"]
scalars = st.sampled_from(
    [
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.decimal128(9, 4),
    ]
)


def structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    columns = st.lists(
        st.tuples(st.sampled_from(NAMES), inner), min_size=1, max_size=4, unique_by=_json_name
    )
    return columns.map(pa.struct)


def _json_name(pair: tuple[str, Any]) -> str:
    return pair[0].replace("_", "").lower()


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    one = scalars | structs(inner)
    keys = st.sampled_from([pa.string(), pa.int32(), pa.int64(), pa.bool_()])
    return one | one.map(pa.list_) | st.builds(pa.map_, keys, one)


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(kind=structs(st.recursive(scalars, deeper, max_leaves=6)))
def test_any_type_can_be_written_and_read(kind: Any) -> None:
    schema = schema_of(kind, "p.google.M")
    assert schema == schema_of(kind, "p.google.M")
    read = protobuf.arrow_type(schema)
    assert plain(read) == plain(kind)
    values = pa.nulls(3, kind)
    written = protobuf.encoder(schema, kind).encode(values)
    assert protobuf.decoder(schema, None, kind).decode(written).values.equals(values)


def plain(kind: pa.DataType) -> Any:
    """Without nullability and the names of items."""
    if pa.types.is_struct(kind):
        return [(field.name, plain(field.type)) for field in kind]
    if pa.types.is_list(kind):
        return ["list", plain(kind.value_type)]
    if pa.types.is_map(kind):
        return ["map", plain(kind.key_type), plain(kind.item_type)]
    return kind


@pytest.mark.parametrize(
    ("kind", "name", "expected_error"),
    [
        (pa.int32(), "M", "Protobuf writes a struct"),
        (pa.struct([("a b", pa.int32())]), "M", "column a b: 'a b' is not a name in Protobuf"),
        (pa.struct([("a", pa.int32())]), "my-topic", "the message: 'my-topic' is not a name"),
        (pa.struct([("a", pa.int32()), ("A", pa.int32())]), "M", "columns a and A"),
        (pa.struct([("a", pa.list_(pa.list_(pa.int32())))]), "M", "no arrays of arrays"),
        (pa.struct([("a", pa.map_(pa.float64(), pa.int32()))]), "M", "key of a map"),
        (
            pa.struct([("a", pa.struct([("b", pa.map_(pa.string(), pa.list_(pa.int32())))]))]),
            "M",
            r"column a\.b: Protobuf has no maps of arrays",
        ),
        (pa.struct([("a", pa.null())]), "M", "column a: Protobuf has no type for void"),
    ],
)
def test_types_that_protobuf_lacks(kind: Any, name: str, expected_error: str) -> None:
    with pytest.raises(OptionError, match=expected_error):
        schema_of(kind, name)
