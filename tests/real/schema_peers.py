"""Second clients of a Schema Registry: what confluent-kafka's serializers write and read.

For each format there are three versions of one schema, with values of each and the rows that a
reader of the newest one sees: a field has come (with a default), one has gone, one has a new name,
and one is wider than before.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.real.peers import Record, confluent_read, confluent_write
from tests.support.protoc import message_class

AVRO, PROTOBUF, JSON = "avro", "protobuf", "json"

ORDER = "shop.Order"
"""The Protobuf message, the second or third of its file."""

UTC = datetime.UTC
NOON = datetime.datetime(2026, 11, 24, 12, 0, 0, 123_000, UTC)


@dataclass(frozen=True)
class Version:
    """One version of a schema, values that its producer writes, and what the newest reads."""

    schema: str
    values: Sequence[Mapping[str, Any]]
    seen: Sequence[Mapping[str, Any]]


def versions(form: str) -> tuple[Version, Version, Version]:
    return {AVRO: _AVRO, PROTOBUF: _PROTOBUF, JSON: _JSON}[form]


# --- Avro ----------------------------------------------------------------------------------------


def _avro(*fields: Mapping[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields)}
    )


def _customer(*further: Mapping[str, Any]) -> dict[str, Any]:
    fields = [{"name": "city", "type": "string"}, *further]
    return {"type": "record", "name": "Customer", "fields": fields}


_PRICE = {
    "name": "price",
    "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
}
_AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}}
_ZIP = {"name": "zip", "type": ["null", "string"], "default": None}


def _size(*symbols: str) -> dict[str, Any]:
    form = {"type": "enum", "name": "Size", "symbols": list(symbols), "default": symbols[0]}
    return {"name": "size", "type": form}


_AVRO = (
    Version(
        _avro(
            {"name": "id", "type": "int"},
            {"name": "note", "type": "string"},
            {"name": "name", "type": "string"},
            {"name": "weight", "type": "float"},
            _PRICE,
            _AT,
            _TAGS,
            _size("S", "M"),
            {"name": "customer", "type": _customer()},
        ),
        [
            {
                "id": number,
                "note": "gone " * number,
                "name": f"näme {number}",
                "weight": number / 4,
                "price": Decimal(number * 101 - 500) / 100,
                "at": NOON + datetime.timedelta(milliseconds=number),
                "tags": [f"t{tag}" for tag in range(number % 4)],
                "size": "SM"[number % 2],
                "customer": {"city": f"city {number}"},
            }
            for number in range(20)
        ],
        [
            {
                "id": number,
                "title": f"näme {number}",
                "weight": number / 4,
                "price": Decimal(number * 101 - 500) / 100,
                "at": NOON + datetime.timedelta(milliseconds=number),
                "tags": [f"t{tag}" for tag in range(number % 4)],
                "size": "SM"[number % 2],
                "customer": {"city": f"city {number}", "zip": None},
                "quantity": 1,
                "discount": None,
            }
            for number in range(20)
        ],
    ),
    Version(
        _avro(
            {"name": "id", "type": "long"},
            {"name": "name", "type": "string"},
            {"name": "weight", "type": "float"},
            _PRICE,
            _AT,
            _TAGS,
            _size("S", "M", "L"),
            {"name": "customer", "type": _customer(_ZIP)},
            {"name": "quantity", "type": "int", "default": 1},
        ),
        [
            {
                "id": 2**40 + number,
                "name": f"second {number}",
                "weight": -number / 8,
                "price": Decimal("-99999999.99"),
                "at": NOON - datetime.timedelta(days=number * 400),
                "tags": [],
                "size": "SML"[number % 3],
                "customer": {"city": "", "zip": None if number % 2 else f"{number:05}"},
                "quantity": number * 1000,
            }
            for number in range(15)
        ],
        [
            {
                "id": 2**40 + number,
                "title": f"second {number}",
                "weight": -number / 8,
                "price": Decimal("-99999999.99"),
                "at": NOON - datetime.timedelta(days=number * 400),
                "tags": [],
                "size": "SML"[number % 3],
                "customer": {"city": "", "zip": None if number % 2 else f"{number:05}"},
                "quantity": number * 1000,
                "discount": None,
            }
            for number in range(15)
        ],
    ),
    Version(
        _avro(
            {"name": "id", "type": "long"},
            {"name": "title", "type": "string", "aliases": ["name"]},
            {"name": "weight", "type": "double"},
            _PRICE,
            _AT,
            _TAGS,
            _size("S", "M", "L"),
            {"name": "customer", "type": _customer(_ZIP)},
            {"name": "quantity", "type": "long", "default": 1},
            {"name": "discount", "type": ["null", "double"], "default": None},
        ),
        [
            {
                "id": -number,
                "title": "",
                "weight": 1e300,
                "price": Decimal("0.01"),
                "at": NOON,
                "tags": ["x", "", "ü"],
                "size": "L",
                "customer": {"city": "Köln", "zip": "50667"},
                "quantity": 2**50,
                "discount": None if number % 3 else number / 10,
            }
            for number in range(10)
        ],
        [
            {
                "id": -number,
                "title": "",
                "weight": 1e300,
                "price": Decimal("0.01"),
                "at": NOON,
                "tags": ["x", "", "ü"],
                "size": "L",
                "customer": {"city": "Köln", "zip": "50667"},
                "quantity": 2**50,
                "discount": None if number % 3 else number / 10,
            }
            for number in range(10)
        ],
    ),
)

# --- Protobuf ------------------------------------------------------------------------------------

_HEAD = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
"""
_PROTOBUF = (
    Version(
        f"""{_HEAD}
message Customer {{ string city = 1; }}
message Order {{
  int32 id = 1;
  string name = 2;
  string note = 3;
  float weight = 4;
  repeated int32 sizes = 5;
  Customer customer = 6;
  google.protobuf.Timestamp at = 7;
}}
""",
        [
            {
                "id": number - 3,
                "name": f"näme {number}",
                "note": "gone",
                "weight": number / 4,
                "sizes": list(range(number % 4)),
                "customer": {"city": f"city {number}"},
                "at": "2026-11-24T12:00:00.123Z",
            }
            for number in range(20)
        ],
        [
            {
                "id": number - 3,
                "title": f"näme {number}",
                "weight": number / 4,
                "sizes": list(range(number % 4)),
                "customer": {"city": f"city {number}", "zip": None},
                "at": NOON,
                "quantity": 0,
                "prices": {},
                "color": "RED",
            }
            for number in range(20)
        ],
    ),
    Version(
        f"""{_HEAD}
message Customer {{ string city = 1; optional string zip = 2; }}
message Order {{
  reserved 3;
  int64 id = 1;
  string name = 2;
  float weight = 4;
  repeated int32 sizes = 5;
  Customer customer = 6;
  google.protobuf.Timestamp at = 7;
  uint32 quantity = 8;
}}
""",
        [
            {"id": 2**40 + number, "name": "second", "customer": {"zip": ""}, "quantity": number}
            for number in range(15)
        ],
        [
            {
                "id": 2**40 + number,
                "title": "second",
                "weight": 0.0,
                "sizes": [],
                "customer": {"city": "", "zip": ""},
                "at": None,
                "quantity": number,
                "prices": {},
                "color": "RED",
            }
            for number in range(15)
        ],
    ),
    Version(
        f"""{_HEAD}
enum Color {{ RED = 0; GREEN = 1; }}
message Customer {{ string city = 1; optional string zip = 2; }}
message Order {{
  reserved 3;
  int64 id = 1;
  string title = 2;
  float weight = 4;
  repeated int32 sizes = 5;
  Customer customer = 6;
  google.protobuf.Timestamp at = 7;
  uint32 quantity = 8;
  map<string, double> prices = 9;
  Color color = 10;
}}
""",
        [
            {"title": "x", "prices": {"a": 1.5, "b": float(number)}, "color": "GREEN"}
            for number in range(10)
        ],
        [
            {
                "id": 0,
                "title": "x",
                "weight": 0.0,
                "sizes": [],
                "customer": None,
                "at": None,
                "quantity": 0,
                "prices": {"a": 1.5, "b": float(number)},
                "color": "GREEN",
            }
            for number in range(10)
        ],
    ),
)


# --- JSON ----------------------------------------------------------------------------------------


def _json(**properties: Any) -> str:
    return json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Order",
            "type": "object",
            "properties": properties,
        }
    )


_TEXT, _INTEGER, _NUMBER = ({"type": name} for name in ("string", "integer", "number"))
_JSON = (
    Version(
        _json(id=_INTEGER, name=_TEXT, note=_TEXT, weight=_INTEGER),
        [
            {"id": number, "name": f'nä"me {number}', "note": "gone", "weight": number}
            for number in range(20)
        ],
        [
            {
                "id": number,
                "name": f'nä"me {number}',
                "weight": float(number),
                "quantity": None,
                "customer": None,
                "tags": None,
            }
            for number in range(20)
        ],
    ),
    Version(
        _json(id=_INTEGER, name=_TEXT, weight=_NUMBER, quantity=_INTEGER),
        [{"id": 2**53, "name": "ü", "weight": 0.5, "quantity": -1}, {"id": 1}],
        [
            {
                "id": 2**53,
                "name": "ü",
                "weight": 0.5,
                "quantity": -1,
                "customer": None,
                "tags": None,
            },
            {
                "id": 1,
                "name": None,
                "weight": None,
                "quantity": None,
                "customer": None,
                "tags": None,
            },
        ],
    ),
    Version(
        _json(
            id=_INTEGER,
            name=_TEXT,
            weight=_NUMBER,
            quantity=_INTEGER,
            customer={"type": "object", "properties": {"city": _TEXT, "zip": _TEXT}},
            tags={"type": "array", "items": _TEXT},
        ),
        [{"id": 7, "customer": {"city": "Köln"}, "tags": ["a", ""]}],
        [
            {
                "id": 7,
                "name": None,
                "weight": None,
                "quantity": None,
                "customer": {"city": "Köln", "zip": None},
                "tags": ["a", ""],
            }
        ],
    ),
)


# --- writing and reading with confluent-kafka ----------------------------------------------------


@dataclass(frozen=True)
class SchemaPeer:
    """confluent-kafka at a broker and a registry. `in_headers`: schema ids go into headers."""

    servers: str
    registry_url: str
    in_headers: bool = False

    def client(self) -> SchemaRegistryClient:
        """To be closed by `with`."""
        return SchemaRegistryClient({"url": self.registry_url})

    def serializer(self, client: SchemaRegistryClient, form: str, schema: str) -> Any:
        """Registers the schema with its first value."""
        position = header_schema_id_serializer if self.in_headers else prefix_schema_id_serializer
        conf = {"auto.register.schemas": True, "schema.id.serializer": position}
        if form == AVRO:
            return AvroSerializer(client, schema, conf=conf)
        if form == JSON:
            return JSONSerializer(schema, client, conf=conf)
        kind = message_class(schema, ORDER)
        serialize = ProtobufSerializer(kind, client, {**conf, "use.deprecated.format": False})
        return lambda value, context: serialize(json_format.ParseDict(dict(value), kind()), context)

    def records(
        self, topic: str, form: str, schema: str, values: Iterable[Mapping[str, Any] | None]
    ) -> Iterator[Record]:
        """The values as records of the topic."""
        with self.client() as client:
            serialize = self.serializer(client, form, schema)
            for value in values:
                context = SerializationContext(topic, MessageField.VALUE, [])
                payload = None if value is None else serialize(value, context)
                yield Record(None, payload, tuple(context.headers))

    def write(self, topic: str, records: Iterable[Record], partition: int = 0) -> None:
        confluent_write(self.servers, topic, records, partition)

    def deserializer(
        self,
        client: SchemaRegistryClient,
        form: str,
        schema: str | None = None,
        message: str = ORDER,
    ) -> Any:
        """Gives plain values, as a reader of `schema` sees them; None: of the writer's own."""
        if form == AVRO:
            return AvroDeserializer(client, schema)
        if form == JSON:
            return JSONDeserializer(schema, schema_registry_client=client)
        if schema is None:
            raise ValueError("Protobuf needs its message")
        kind = message_class(schema, message)
        parse = ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)
        return lambda payload, context: _plain_message(parse(payload, context))

    def read(
        self, topic: str, form: str, schema: str | None = None, message: str = ORDER
    ) -> list[Any]:
        """All values of the topic's only partition, in order."""
        values = []
        with self.client() as client:
            deserialize = self.deserializer(client, form, schema, message)
            for row in confluent_read(self.servers, topic):
                context = SerializationContext(topic, MessageField.VALUE, list(row.headers or ()))
                values.append(deserialize(row.value, context))
        return values


def _plain_message(message: Message | None) -> dict[str, Any] | None:
    """A message as Spark shows it: no value where there is none, enums by their names."""
    if message is None:
        return None
    plain: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            plain[field.name] = dict(value)
        elif field.is_repeated:
            plain[field.name] = list(value)
        elif field.has_presence and not message.HasField(field.name):
            plain[field.name] = None
        elif field.message_type is None:
            names = field.enum_type.values_by_number if field.enum_type else None
            plain[field.name] = names[value].name if names else value
        elif field.message_type.full_name == "google.protobuf.Timestamp":
            plain[field.name] = value.ToDatetime(UTC)
        else:
            plain[field.name] = _plain_message(value)
    return plain


def plain(value: Any) -> Any:
    """Rows of Spark as dicts, and times in UTC: to be compared with `Version.seen`."""
    if hasattr(value, "asDict"):
        return {name: plain(item) for name, item in value.asDict().items()}
    if isinstance(value, datetime.datetime):
        return value.astimezone(UTC)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
