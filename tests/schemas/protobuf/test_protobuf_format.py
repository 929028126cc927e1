"""The interface end to end: text -> type, decoder, encoder, and the .proto of a column."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema

ORDER = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    package shop;
    import "google/protobuf/timestamp.proto";
    message Order {
      int64 id = 1;
      double price = 2;
      string name = 3;
      optional string note = 4;
      google.protobuf.Timestamp at = 5;
      Status status = 6;
      repeated int32 tags = 7;
      Address address = 8;
      enum Status { NEW = 0; PAID = 1; }
      message Address { string street = 1; int32 zip = 2; }
    }
    message Other { bool flag = 1; }
    """,
)
ROWS = [
    {
        "id": 1,
        "price": 2.5,
        "name": "Ä",
        "note": "",
        "at": dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC),
        "status": "PAID",
        "tags": [1, -1, 300],
        "address": {"street": "s", "zip": 7},
    },
    None,
    {
        "id": 0,
        "price": 0.0,
        "name": "",
        "note": None,
        "at": None,
        "status": "NEW",
        "tags": [],
        "address": None,
    },
]


def test_what_is_written_is_read() -> None:
    kind = protobuf.arrow_type(ORDER)
    values = pa.array(ROWS, kind)
    payloads = protobuf.encoder(ORDER, kind).encode(values)
    assert payloads[2].as_py() == b""
    decoded = protobuf.decoder(ORDER, None, None).decode(payloads)
    assert decoded.values.type == kind
    assert decoded.values.to_pylist() == ROWS
    assert len(decoded.bad_rows) == 0


def test_bad_rows_are_named_and_harm_no_other() -> None:
    kind = protobuf.arrow_type(ORDER)
    good = protobuf.encoder(ORDER, kind).encode(pa.array(ROWS, kind)).to_pylist()
    payloads = [good[0], b"\x1a\x05ab", good[1], b"\x1a\x01\xff", good[0], b"\x42\x02\x0a\x09"]
    decoded = protobuf.decoder(ORDER, None, None).decode(pa.array(payloads, pa.binary()))
    assert decoded.bad_rows.tolist() == [1, 3, 5]
    assert decoded.values.to_pylist() == [ROWS[0], None, None, None, ROWS[0], None]
    assert decoded.reasons[0].startswith("field name: ")
    assert decoded.reasons[1] == "field name: its text is not UTF-8"
    assert decoded.reasons[2].startswith("field address.street: ")


def test_messages_by_name() -> None:
    assert protobuf.message_indexes(ORDER, "shop.Order.Address") == (0, 0)
    assert protobuf.message_indexes(ORDER, "Other") == (1,)
    assert protobuf.message_name(ORDER, (0, 0)) == "shop.Order.Address"
    with pytest.raises(OptionError, match=r"'Othr': did you mean Other\? It has Order, "):
        protobuf.message_indexes(ORDER, "Othr")
    with pytest.raises(SchemaError, match="do not exist"):
        protobuf.arrow_type(ORDER, message=(2,))


def test_the_proto_of_a_column() -> None:
    kind = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("amount", pa.decimal128(10, 2)),
            pa.field("day", pa.date32()),
            pa.field("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            pa.field("extra", pa.map_(pa.string(), pa.int32())),
        ]
    )
    schema = protobuf.schema_of(kind, "shop.Invoice")
    row = {
        "id": 1,
        "amount": decimal.Decimal("-12.34"),
        "day": dt.date(2024, 2, 29),
        "lines": [{"sku": "a"}, {"sku": None}],
        "extra": [("k", 1)],
    }
    payloads = protobuf.encoder(schema, kind).encode(pa.array([row], kind))
    decoded = protobuf.decoder(schema, None, kind).decode(payloads)
    assert decoded.values.to_pylist() == [row]
    assert schema.text == protobuf.schema_of(kind, "shop.Invoice").text


def test_compiled_schema_needs_no_protoc() -> None:
    assert protobuf.arrow_type(protobuf.compiled(ORDER)) == protobuf.arrow_type(ORDER)
