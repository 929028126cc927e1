"""confluent-kafka's Protobuf serializer and deserializer, with the registry that it has for tests:
what it registers we compile, what it writes we read, and what we write it reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema
from tests.schemas.protobuf import oracle
from tests.schemas.protobuf.protos import ALL3, MIDDLE
from tests.schemas.protobuf.test_protobuf_decode import CASES_JSON, with_json

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CONTEXT = SerializationContext("orders", MessageField.VALUE)


def registered(client: Any, subject: str, version: int) -> Schema:
    """The schema as the registry has it, with all that it refers to."""
    found = client.get_version(subject, version).schema
    references = tuple(
        (item.name, registered(client, item.subject, item.version))
        for item in found.references or ()
    )
    return Schema(PROTOBUF, found.schema_str, references)


@pytest.mark.parametrize(
    ("schema", "name"), [(ALL3, "all3.All"), (MIDDLE, "middle.Stop")], ids=["all3", "middle"]
)
def test_confluent_s_messages_both_ways(schema: Schema, name: str) -> None:
    truth = oracle.Oracle(schema, name)
    client = SchemaRegistryClient.new_client({"url": f"mock://{name}"})
    serializer = ProtobufSerializer(truth.message, client, {"auto.register.schemas": True})
    deserializer = ProtobufDeserializer(truth.message, {})
    messages = [truth.message(), truth.message()]
    if name == "all3.All":
        messages[0].f_int64 = 1 << 40
        messages[0].w_struct["a"] = "b"
        messages[0].m_fixed_stop[3].at.lat = 0.25
        messages[1].c_time.seconds = 5
        messages[1].w_decimal.value = b"\x01\x00"
        messages[1].w_decimal.scale = 2
    else:
        messages[0].at.lon = 1.5
        messages[1].name = "end"
    framed = [serializer(message, CONTEXT) for message in messages]
    assert {data[0] for data in framed} == {0} and {data[5] for data in framed} == {0}
    seen = registered(client, "orders-value", 1)
    indexes = protobuf.message_indexes(seen, name)
    decoder = protobuf.decoder(seen, None, None, message=indexes)
    assert decoder.type == protobuf.arrow_type(schema)
    values = decoder.decode(pa.array([data[6:] for data in framed], pa.binary())).values
    rows = with_json(oracle.rows_of(values), decoder.type, CASES_JSON)
    for row, message in zip(rows, messages, strict=True):
        expected = truth.value(message.SerializeToString(), decoder.type)
        assert oracle.comparable(row, decoder.type) == oracle.comparable(expected, decoder.type)
    written = protobuf.encoder(seen, decoder.type, message=indexes).encode(values)
    for payload, message in zip(written.to_pylist(), messages, strict=True):
        got = deserializer(b"\0\0\0\0\1\0" + payload, CONTEXT)
        if name == "all3.All" and got.HasField("w_decimal"):
            assert got.w_decimal.precision == 3  # the value's own, which the test left out
            got.w_decimal.ClearField("precision")
        assert got == message
