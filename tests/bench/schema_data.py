"""Orders of ten fields as Avro, Protobuf and JSON: made by other libraries than ours.

A block of some ten thousand orders that differ is written again and again.
"""

from __future__ import annotations

import datetime
import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.encode import RecordColumns
from tests.bench.cases import PARTITIONS
from tests.bench.data import make_topic, open_cluster, remove_topic
from tests.bench.shapes import AVRO, JSON, PROTOBUF
from tests.support.options import parse_producer_options
from tests.support.partition_producer import PartitionProducer

BLOCK_ROWS = 25_000

DDL = (
    "id: bigint, price: double, name: string, note: string, at: timestamp, status: string, "
    "tags: array<bigint>, customer: struct<city: string, zip: int>, quantity: int, active: boolean"
)
FEW_DDL = "id: bigint, price: double"
"""Two of the ten."""

AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "price", "type": "double"},
            {"name": "name", "type": "string"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "status",
                "type": {
                    "type": "enum",
                    "name": "Status",
                    "symbols": ["NEW", "PAID", "SENT", "RETURNED"],
                },
            },
            {"name": "tags", "type": {"type": "array", "items": "long"}},
            {
                "name": "customer",
                "type": {
                    "type": "record",
                    "name": "Customer",
                    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
                },
            },
            {"name": "quantity", "type": "int"},
            {"name": "active", "type": "boolean"},
        ],
    }
)

PROTOBUF_SCHEMA = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; PAID = 1; SENT = 2; RETURNED = 3; }
message Order {
  int64 id = 1;
  double price = 2;
  string name = 3;
  optional string note = 4;
  google.protobuf.Timestamp at = 5;
  Status status = 6;
  repeated int64 tags = 7;
  Customer customer = 8;
  int32 quantity = 9;
  bool active = 10;
}
message Customer { string city = 1; int32 zip = 2; }
"""

_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_INT = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {
            "id": _INTEGER,
            "price": {"type": "number"},
            "name": _TEXT,
            "note": {"type": ["null", "string"]},
            "at": {"type": "string", "format": "date-time"},
            "status": _TEXT,
            "tags": {"type": "array", "items": _INTEGER},
            "customer": {"type": "object", "properties": {"city": _TEXT, "zip": _INT}},
            "quantity": _INT,
            "active": {"type": "boolean"},
        },
    }
)

SCHEMAS = {AVRO: AVRO_SCHEMA, PROTOBUF: PROTOBUF_SCHEMA, JSON: JSON_SCHEMA}

_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_STATUSES = ("NEW", "PAID", "SENT", "RETURNED")


@lru_cache(maxsize=1)
def orders() -> tuple[dict[str, Any], ...]:
    """The block's rows; the same in each call."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyzü", k=6)) for _ in range(500)]
    return tuple(
        {
            "id": chance.randrange(2**40),
            "price": chance.random() * 1000,
            "name": " ".join(chance.choices(words, k=2)),
            "note": chance.choice(words) if chance.random() < 0.7 else None,
            "at": _START + datetime.timedelta(microseconds=chance.randrange(2**44)),
            "status": chance.choice(_STATUSES),
            "tags": [chance.randrange(10_000) for _ in range(3)],
            "customer": {"city": chance.choice(words), "zip": chance.randrange(100_000)},
            "quantity": chance.randrange(1, 20),
            "active": chance.random() < 0.5,
        }
        for _ in range(BLOCK_ROWS)
    )


def order_ids() -> np.ndarray:
    return np.array([order["id"] for order in orders()])


@lru_cache(maxsize=3)
def payloads(form: str) -> pa.Array:
    """The block's rows, without ids of schemas."""
    return pa.array({AVRO: _avro, PROTOBUF: _protobuf, JSON: _json}[form](), pa.binary())


def _avro() -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(json.loads(AVRO_SCHEMA))
    made = []
    for order in orders():
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        made.append(out.getvalue())
    return made


def _protobuf() -> list[bytes]:
    from tests.support.protoc import message_class

    kind: Any = message_class(PROTOBUF_SCHEMA, "shop.Order")
    made = []
    for order in orders():
        message = kind(**{**order, "at": None, "customer": None})
        message.at.FromDatetime(order["at"])
        message.customer.city, message.customer.zip = order["customer"].values()
        made.append(message.SerializeToString())
    return made


def _json() -> list[bytes]:
    return [
        json.dumps(
            {**order, "at": order["at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")}, ensure_ascii=False
        ).encode()
        for order in orders()
    ]


def changes() -> pa.Array:
    """Inserts of the block's rows as JSON, as Debezium's Postgres connector writes them without a
    schema."""
    texts = []
    for number, row in enumerate(payloads(JSON).to_pylist()):
        now_ms = 1_795_868_492_880 + number
        source = {
            **{"version": "3.6.1.Final", "connector": "postgresql", "name": "shop"},
            **{"ts_ms": now_ms, "snapshot": "false", "db": "shop", "schema": "public"},
            **{"table": "orders", "txId": 700 + number, "lsn": 23_000_000 + 100 * number},
        }
        rest = json.dumps({"source": source, "op": "c", "ts_ms": now_ms + 9}).encode()
        texts.append(b'{"before":null,"after":%s,%s' % (row, rest[1:]))
    return pa.array(texts, pa.binary())


def framed(form: str, schema_id: int) -> pa.Array:
    """The block with the id before each payload, as Confluent's serializers put it."""
    head = b"\x00" + schema_id.to_bytes(4, "big") + b"\x00" * (form == PROTOBUF)
    return pa.array([head + payload for payload in payloads(form).to_pylist()], pa.binary())


@dataclass(frozen=True)
class Filled:
    """A topic of orders, and what a whole read of it must give."""

    name: str
    rows: int
    ids: int
    """Sum of all ids."""


@contextmanager
def filled(
    servers: str, name: str, values: pa.Array, rows: int, ids: np.ndarray | None
) -> Iterator[Filled]:
    """A topic that has these values again and again, and exists only meanwhile. `ids`: theirs."""
    config = {
        "bootstrap.servers": servers,
        "batch.size": str(1 << 20),
        "linger.ms": "60000",
        "max.request.size": str(4 << 20),
        "buffer.memory": str(64 << 20),
    }
    ids = np.zeros(len(values), np.int64) if ids is None else ids
    total = made = 0
    options = parse_producer_options(config)
    with open_cluster(servers) as cluster, PartitionProducer(cluster, options) as producer:
        make_topic(cluster, name, PARTITIONS)
        while made < rows:
            for partition in range(PARTITIONS):
                count = min(len(values), (rows - made) // (PARTITIONS - partition))
                times = np.full(count, 1_700_000_000_000, np.int64)
                piece = values.slice(0, count)
                nothing = pa.nulls(count, pa.binary())
                producer.send(name, partition, RecordColumns(nothing, piece, None, times))
                total += int(ids[:count].sum())
                made += count
        producer.flush()
    try:
        yield Filled(name, made, total)
    finally:
        remove_topic(servers, name)
