"""Frames of AWS Glue, Apicurio, Azure and Avro's single objects, for whole columns."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import KafkaError, RegistryError, SchemaError
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.schemas import framings
from sparkkafka.schemas.avro.schema import fingerprint
from sparkkafka.schemas.column import (
    ColumnDecoder,
    ColumnEncoder,
    ColumnPlan,
    EncodePlan,
    format_module,
)
from sparkkafka.schemas.framings import CONTENT_ID, FINGERPRINT, GLOBAL_ID, WriterId
from sparkkafka.schemas.registry.client import RegistryClient, connect
from sparkkafka.schemas.registry.rest_service import MAX_RESPONSE_BYTES
from sparkkafka.schemas.values import BASE_BUDGET, Schema, TooManyRowsError
from tests.schemas.cloud_registries import CloudRegistry, cloud_registry
from tests.schemas.small_registry import small_registry
from tests.support.loopback_server import HttpResponse, LoopbackServer

ORDER = Schema(
    AVRO,
    json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}),
)
OTHER = Schema(AVRO, ORDER.text.replace('"long"', '"int"'))
GUID = uuid.UUID("0a1b2c3d-4e5f-4a7b-8c9d-0e1f2a3b4c5d").bytes
TYPE = format_module(AVRO).arrow_type(ORDER)
ROWS = [{"id": 1}, None, {"id": 2}, {"id": 3}]
WRITERS = {
    "glue": WriterId(guid=GUID),
    "glue-zlib": WriterId(guid=GUID),
    "apicurio": WriterId(1 << 40, kind=GLOBAL_ID),
    "apicurio-content-id": WriterId(7, kind=CONTENT_ID),
    "apicurio-headers": WriterId(9, kind=GLOBAL_ID),
    "azure": WriterId(guid=GUID),
    "single-object": WriterId(fingerprint(ORDER), kind=FINGERPRINT),
    "confluent": WriterId(5),
    "headers": WriterId(guid=GUID),
}


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRegistry]:
    with cloud_registry(monkeypatch) as registry:
        yield registry


def encode(framing: str, rows: list[Any] = ROWS) -> tuple[pa.Array, pa.Array | None]:
    plan = EncodePlan("value", AVRO, framing, ORDER, WRITERS[framing])
    return ColumnEncoder(plan).encode(pa.array(rows, TYPE), None)


def decode(
    framing: str, payloads: pa.Array, headers: pa.Array | None, client: Any = None, **more: Any
) -> Any:
    plan = ColumnPlan("value", AVRO, framing, ORDER, TYPE, **more)
    return ColumnDecoder(plan, client and (lambda: client)).decode(payloads, headers)


class Anything(RegistryClient):
    """A registry that has the same schema for each id of one kind, and notes the ids."""

    def __init__(self, id_kind: str = "") -> None:
        self.id_kind = id_kind
        self.ids: list[Any] = []
        self.schema = ORDER

    @property
    def address(self) -> str:
        return "here"

    def by_id(self, schema_id: int, subject: Any = None, format: Any = None) -> Schema:
        self.ids.append(schema_id)
        return self.schema

    def by_guid(self, guid: bytes, format: Any = None) -> Schema:
        self.ids.append(guid)
        return self.schema

    def by_content_id(self, content_id: int, format: Any = None) -> Schema:
        self.ids.append(content_id)
        return self.schema


@pytest.mark.parametrize(
    ("framing", "reads"),
    [
        *((framing, "same") for framing in WRITERS),
        *((framing, "auto") for framing in WRITERS if not framing.startswith("apicurio")),
        ("apicurio-headers", "auto"),
    ],
)
def test_what_is_written_is_read(framing: str, reads: str) -> None:
    writer = WRITERS[framing]
    registry = Anything(writer.kind or "")
    payloads, headers = encode(framing)
    found = decode(framing if reads == "same" else "auto", payloads, headers, registry)
    assert (found.values.to_pylist(), found.bad) == (ROWS, [])
    if framing != "single-object":
        assert registry.ids == [writer.guid or writer.schema_id]


def test_the_bytes_are_those_of_the_other_serializers() -> None:
    body = encode("single-object")[0][0].as_py()[10:]
    assert encode("glue")[0][0].as_py() == b"\3\0" + GUID + body
    packed = encode("glue-zlib")[0][0].as_py()
    assert (packed[:18], zlib.decompress(packed[18:])) == (b"\3\5" + GUID, body)
    assert encode("apicurio")[0][0].as_py() == b"\0\0\0\1\0\0\0\0\0" + body
    little = fingerprint(ORDER).to_bytes(8, "little")
    assert encode("single-object")[0][0].as_py() == b"\xc3\1" + little + body
    for framing, name, value in (
        ("azure", "content-type", b"avro/binary+" + GUID.hex().encode()),
        ("apicurio-headers", "apicurio.value.globalId", (9).to_bytes(8, "big")),
    ):
        payloads, headers = encode(framing)
        assert headers is not None
        assert payloads[0].as_py() == body
        assert headers.to_pylist()[:2] == [[{"key": name, "value": value}], None]


NESTED = Schema(
    PROTOBUF,
    """syntax = "proto3"; package p; message Z { int64 id = 1; }
    message B {
      message C { int64 id = 1; }
      message A { message D { map<string, int64> m = 1; } }
    }""",
)
"""By AWS Glue's numbers: B, B.A, B.A.D, B.A.D.MEntry, B.C, Z. The example of MessageIndexFinder,
with a map and with a message that is first in the file and last by name."""


@pytest.mark.parametrize("framing", ["glue", "glue-zlib"])
@pytest.mark.parametrize(("message", "number"), [((0,), 5), ((1, 0), 4), ((1, 1, 0), 2)])
def test_protobuf_of_glue(framing: str, message: tuple[int, ...], number: int) -> None:
    kind = format_module(PROTOBUF).arrow_type(NESTED, message=message)
    rows = [{"m": [("a", 1)]} if number == 2 else {"id": 1}, None]
    writer = WriterId(guid=GUID, message=message)
    encoder = ColumnEncoder(EncodePlan("value", PROTOBUF, framing, NESTED, writer))
    payloads, _ = encoder.encode(pa.array(rows, kind), None)
    frame, packed = payloads[0].as_py()[:18], payloads[0].as_py()[18:]
    assert frame[2:] == GUID
    assert (zlib.decompress(packed) if frame[1] else packed)[0] == number
    head = b"\3\0" + GUID
    bad = [head, head + b"\x80", head + b"\x06", head + b"\1", head + b"\xff" * 9]
    column = pa.concat_arrays([payloads, pa.array(bad, pa.binary()), payloads])
    for guid in (GUID, b"0" * 16):  # the reader's schema, and one that is looked up
        plan = ColumnPlan("value", PROTOBUF, framing, NESTED, kind, message=message, guid=guid)
        registry = Anything()
        registry.schema = NESTED
        decoder = ColumnDecoder(plan, lambda registry=registry: registry)
        assert [row.row for row in decoder.decode(pa.array([head, None]), None).bad] == [0]
        found = decoder.decode(column, None)
        assert found.values.to_pylist() == [*rows, *[None] * len(bad), *rows]
        assert [row.row for row in found.bad] == [2, 3, 4, 5, 6]
        reasons = [row.reason for row in found.bad]
        assert "the number of its message is cut off" in reasons[0]
        assert "message number 6 of 6" in reasons[2]
        assert "it is a message p.B.A " in reasons[3]


def test_auto_reads_records_of_all_framings_in_their_order() -> None:
    payloads, all_headers, expected = [], [], []
    for number, framing in enumerate(["glue", "confluent", "azure", "single-object", "glue-zlib"]):
        row = {"id": number}
        written, headers = encode(framing, [row])
        payloads += [*written.to_pylist(), b"\x08bare", None]
        all_headers += [headers and headers.to_pylist()[0], [{"key": "content-type"}], []]
        expected += [row, None, None]
    registry = Anything()
    found = decode("auto", pa.array(payloads), pa.array(all_headers, HEADERS_TYPE), registry)
    assert found.values.to_pylist() == expected
    assert [bad.row for bad in found.bad] == [1, 4, 7, 10, 13]
    assert "set valueFraming to the serializer's" in found.bad[0].reason


def test_auto_looks_up_no_id_in_another_registry() -> None:
    """The number of a global id means something else in Confluent's API."""
    for framing, kind in (("apicurio-headers", ""), ("confluent", GLOBAL_ID)):
        registry = Anything(kind)
        found = decode("auto", *encode(framing), registry)
        assert [bad.row for bad in found.bad] == [0, 2, 3]
        assert "is not an id of here: set schema.registry.url" in found.bad[0].reason
        assert not registry.ids
    found = decode("auto", *encode("apicurio-content-id"), registry)
    assert "set valueFraming to apicurio or apicurio-content-id" in found.bad[0].reason
    assert not registry.ids


@pytest.mark.parametrize("framing", ["glue", "apicurio", "single-object"])
def test_frames_that_are_broken_are_bad_rows(framing: str) -> None:
    good = encode(framing)[0]
    payloads = pa.array([good[0].as_py(), b"", good[2].as_py()[:9], b"\x7b" * 30, None])
    if framing == "apicurio":
        payloads = pa.array([good[0].as_py(), b"", good[2].as_py()[:8], b"\x7b" * 30, None])
    found = decode(framing, payloads, None, Anything(GLOBAL_ID))
    assert found.values.to_pylist() == [{"id": 1}, None, None, None, None]
    assert [bad.row for bad in found.bad] == [1, 2, 3]
    assert all(f"(valueFraming={framing})" in bad.reason for bad in found.bad)


@pytest.mark.parametrize("framing", ["azure", "apicurio-headers"])
def test_a_record_without_the_header_is_bad(framing: str) -> None:
    payloads, headers = encode(framing)
    assert headers is not None
    rows = headers.to_pylist()
    rows[2] = [{"key": rows[0][0]["key"], "value": b"broken"}]
    rows[3] = None
    found = decode(framing, payloads, pa.array(rows, HEADERS_TYPE), Anything(GLOBAL_ID))
    assert found.values.to_pylist() == [{"id": 1}, None, None, None]
    assert [bad.row for bad in found.bad] == [2, 3]
    assert "the record has no header" in found.bad[1].reason


def test_several_schemas_of_one_column() -> None:
    class Two(Anything):
        def by_guid(self, guid: bytes, format: Any = None) -> Schema:
            return ORDER if guid == GUID else OTHER

    body = encode("glue")[0][0].as_py()[18:]
    payloads = [b"\3\0" + GUID + body, b"\3\0" + bytes(16) + body, b"\3\0" + GUID + body]
    found = decode("glue", pa.array(payloads), None, Two())
    assert (found.values.to_pylist(), found.bad) == ([{"id": 1}] * 3, [])


def test_a_schema_whose_guid_is_known_needs_no_request() -> None:
    payloads, _ = encode("glue")
    assert decode("glue", payloads, None, guid=GUID).values.to_pylist() == ROWS


def test_zlib_bombs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framings, "MAX_UNPACKED", 1 << 20)
    head = b"\3\5" + GUID
    good = encode("glue-zlib")[0][0].as_py()
    payloads = pa.array(
        [
            head + zlib.compress(bytes(2 << 20)),
            good,
            good[:-2],
            head + b"no zlib",
            head,
            good + b"x",
        ]
    )
    found = decode("glue", payloads, None, guid=GUID)
    assert found.values.to_pylist() == [None, {"id": 1}, None, None, None, None]
    reasons = [bad.reason.partition(" (")[0] for bad in found.bad]
    assert reasons[0] == "it has more than 1048576 bytes when it is decompressed with zlib"
    assert reasons[1] == reasons[3] == "its zlib stream is cut off"
    assert reasons[2].startswith("it cannot be decompressed with zlib: ")
    assert reasons[4] == "there are bytes after the end of its zlib stream"
    monkeypatch.setattr(framings, "MAX_UNPACKED", 64 << 20)
    bomb = head + zlib.compress(bytes(BASE_BUDGET // 4))
    with pytest.raises(TooManyRowsError):
        decode("glue", pa.array([bomb] * 3), None, guid=GUID)


def test_json_needs_no_header_and_no_registry() -> None:
    schema = Schema(JSON, '{"type": "object", "properties": {"id": {"type": "integer"}}}')
    kind = format_module(JSON).arrow_type(schema)
    text = b'{"id": 7}'
    for framing, payload in (
        ("glue", b"\3\0" + GUID + text),
        ("glue", b"\3\5" + GUID + zlib.compress(text)),
        ("apicurio", bytes(7) + b"\1\1" + text),
        ("auto", b"\0\0\0\0\1" + text),
    ):
        decoder = ColumnDecoder(ColumnPlan("value", JSON, framing, schema, kind))
        found = decoder.decode(pa.array([payload, text, None]), None)
        assert found.values.to_pylist() == [{"id": 7}, {"id": 7}, None]


def test_a_fingerprint_is_looked_up_among_the_versions_of_the_subject() -> None:
    writer = WriterId(fingerprint(OTHER))
    plan_of_writer = EncodePlan("value", AVRO, "single-object", OTHER, writer)
    written_type = pa.struct([pa.field("id", pa.int32(), nullable=False)])
    payloads, _ = ColumnEncoder(plan_of_writer).encode(pa.array(ROWS, written_type), None)
    with small_registry() as small:
        small.add("t-value", ORDER.text)
        small.add("t-value", OTHER.text)
        client = RegistryClient(RegistryOptions(url=small.url))
        plan = ColumnPlan("value", AVRO, "single-object", ORDER, TYPE, subject="t-value")
        found = ColumnDecoder(plan, lambda: client).decode(payloads, None)
        bad = ColumnDecoder(plan, lambda: client).decode(
            pa.array([b"\xc3\1" + bytes(8) + b"\2"]), None
        )
    assert (found.values.to_pylist(), found.bad) == (ROWS, [])
    assert bad.bad[0].reason == (
        "no version of subject 't-value' has schema fingerprint 0x0000000000000000"
    )
    alone = decode("single-object", pa.array([b"\xc3\1" + bytes(8) + b"\2"]), None)
    assert "is not that of valueSchema" in alone.bad[0].reason


# --- registries ---------------------------------------------------------------------------------


class _Dripping(LoopbackServer):
    def understand(self, *_: Any) -> Any:
        return None

    def respond(self, request: Any) -> HttpResponse:
        return HttpResponse(drip=True)


def test_glue_byte_by_byte(clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    with _Dripping(None) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", server.url)
        client = connect(
            RegistryOptions(url="glue://us-west-1/shop", request_timeout_ms=300, max_retries=0)
        )
        with pytest.raises(RegistryError, match=r"bytes that take more than 0\.3 s"):
            client.versions("orders")


def test_glue_by_boto3(clouds: CloudRegistry) -> None:
    options = RegistryOptions(url="glue://eu-central-1/shop", retries_wait_ms=0)
    client = connect(options)
    clouds.pending = 2
    clouds.refusals = [(500, "InternalServiceException")]
    first = client.register("orders", ORDER)
    assert first.guid is not None
    assert client.register("orders", OTHER).version == 2
    assert client.lookup("orders", ORDER) == replace(first, version=None)
    assert client.lookup("orders", Schema(AVRO, '"int"')) is None
    assert (client.latest("orders").version, client.versions("orders")) == (2, (1, 2))
    assert client.version("orders", 1) == first
    clouds.requests.clear()
    assert connect(options).by_guid(first.guid, AVRO) == ORDER
    assert connect(options).by_guid(first.guid) == ORDER
    assert clouds.requests == ["GetSchemaVersion"]
    assert repr(client) == "GlueClient(glue://eu-central-1/shop)"
    for call, message in (
        (lambda: client.latest("none"), "has no such schema 'none'"),
        (lambda: client.by_guid(bytes(16)), "is not in glue://eu-central-1/shop"),
        (lambda: client.by_guid(first.guid or b"", JSON), "is avro, not json"),
    ):
        with pytest.raises(Exception, match=message):
            call()
    clouds.refusals = [(400, "AccessDeniedException")]
    with pytest.raises(Exception, match="needs the right glue:GetSchemaVersion"):
        client.latest("orders")
    clouds.status = "FAILURE"
    with pytest.raises(Exception, match="not compatible with the versions before it"):
        client.register("orders", Schema(AVRO, '"string"'))


def test_wrong_responses_of_glue(clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one client of boto3, which takes long to be made."""
    pytest.importorskip("boto3")
    responses: list[tuple[Any, str]] = [
        ([1, 2], "is not a response of AWS Glue"),
        (None, "is not a response of AWS Glue"),
        ("text", "is not a response of AWS Glue"),
        ({"SchemaVersionId": 7, "DataFormat": {}}, "without"),
        ({"SchemaVersionId": str(uuid.UUID(bytes=GUID)), "DataFormat": "XML"}, "without 'XML'"),
        ({"SchemaDefinition": "x" * MAX_RESPONSE_BYTES}, f"more than {MAX_RESPONSE_BYTES} bytes"),
    ]
    registry = connect(RegistryOptions(url="glue://eu-west-1/shop", max_retries=0))
    for response, reason in responses:
        monkeypatch.setattr(clouds, "glue", lambda *_, response=response: (200, response))
        for request in (lambda: registry.by_guid(GUID), lambda: registry.latest("Order")):
            with pytest.raises(RegistryError, match=f"^glue://eu-west-1/shop answers .*{reason}"):
                request()
    lists: list[tuple[Any, str]] = [
        ({"Schemas": [], "NextToken": "again"}, "without an end, within 0.3 s"),
        ({"Schemas": [{}]}, "without numbers"),
        ({"Schemas": [{"VersionNumber": True}]}, "without numbers"),
    ]
    registry = connect(RegistryOptions(url="glue://eu-west-1/shop", api_timeout_ms=300))
    for response, reason in lists:
        monkeypatch.setattr(clouds, "glue", lambda *_, response=response: (200, response))
        with pytest.raises(KafkaError, match=f"^glue://eu-west-1/shop lists .* 'Order' {reason}"):
            registry.versions("Order")


def test_glue_answers_with_another_schema(
    clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    other = clouds.add("orders", ORDER.text)
    monkeypatch.setattr(clouds, "glue", lambda action, body: (200, clouds._version(other)))
    with pytest.raises(RegistryError, match="with another one"):
        connect(RegistryOptions(url="glue://eu-west-1/shop")).by_guid(GUID)


def test_azure(clouds: CloudRegistry) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/$schemaGroups/shop"))
    first = client.register("Order", ORDER)
    assert first.guid is not None
    client.register("Order", OTHER)
    assert client.lookup("Order", ORDER) == first
    assert client.lookup("Order", Schema(AVRO, '"int"')) is None
    assert client.latest("Order").schema == OTHER
    assert client.by_guid(first.guid, AVRO) == ORDER
    with pytest.raises(Exception, match=r"no such schema 'None'.*no such schema"):
        client.latest("None")
    with pytest.raises(Exception, match="is not in http"):
        client.by_guid(bytes(16))


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"Schema-Id": "f" * 32}, '"long"', "with another one"),
        ({"Schema-Id": ""}, '"long"', "without the header Schema-Id"),
        ({"Content-Type": "text/html"}, '"long"', "with 'text/html', not with JSON"),
        ({"Content-Type": "application/json; serialization=Json"}, "{}", "is json, not avro"),
        ({}, "", "with nothing, not JSON"),
        ({}, "[" * 100_000, "not JSON"),
    ],
)
def test_wrong_responses_of_azure(
    clouds: CloudRegistry, headers: dict[str, str], body: str, reason: str
) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/$schemaGroups/shop", max_retries=0))
    guid = uuid.UUID(clouds.add("Order", ORDER.text)).bytes
    clouds.schemas[str(uuid.UUID(bytes=guid))] = "Order", body, "AVRO"
    clouds.headers = headers
    with pytest.raises((RegistryError, SchemaError), match=reason):
        client.by_guid(guid, AVRO)
    clouds.headers = {}
    clouds.schemas[str(uuid.UUID(bytes=guid))] = "Order", ORDER.text, "AVRO"
    if reason != "is json, not avro":  # a response that is none is not kept
        assert client.by_guid(guid, AVRO) == ORDER


@pytest.mark.parametrize("body", ["7", "{}", '{"Value": 7}', '{"Value": [true]}'])
def test_versions_of_azure_are_a_list_of_numbers(
    clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/$schemaGroups/shop"))
    monkeypatch.setattr(clouds, "azure", lambda *_: (200, body, ""))
    for request in (lambda: client.versions("Order"), lambda: client.latest("Order")):
        with pytest.raises(RegistryError, match="without a list"):
            request()


def test_pages_of_azures_versions(clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/$schemaGroups/shop"))
    path, query = "/$schemaGroups/shop/schemas/Order/versions", "api-version=2022-10"
    pages = {
        f"{path}?{query}": {
            "Value": [1],
            "NextLink": f"https://other.host{path}?{query}&token=a%2F",
        },
        f"{path}?{query}&token=a%2F": {"Value": [3, 2], "NextLink": None},
    }
    monkeypatch.setattr(clouds, "azure", lambda _, at, *__: (200, json.dumps(pages[at]), ""))
    assert client.versions("Order") == (1, 2, 3)
    for link in ("https://h/elsewhere?a=b", 7, f"{path}", f"{path}?a=\u00fc", "http://["):
        pages[f"{path}?{query}"]["NextLink"] = link
        with pytest.raises(RegistryError, match="as the link to its next page"):
            client.versions("Order")
    for page in (
        {"Value": [1], "NextLink": f"{path}?{query}"},
        {"Value": list(range(100_001)), "NextLink": f"{path}?{query}&token=a%2F"},
    ):
        pages[f"{path}?{query}"] = page
        with pytest.raises(RegistryError, match="without an end"):
            client.versions("Order")


def test_the_type_of_an_artifact_of_apicurio_is_checked(clouds: CloudRegistry) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/apis/registry/v3/groups/shop"))
    clouds.add("orders", '{"openapi": "3.0.2"}', "OPENAPI")
    clouds.add("order", '{"type": "object"}', "JSON")
    for number, format, reason in (
        (1, AVRO, "is OPENAPI, not avro"),
        (2, AVRO, "is json, not avro: set valueFormat"),
        (1, JSON, "is OPENAPI, not json"),
    ):
        with pytest.raises(SchemaError, match=f"global id {number} .*{reason}"):
            client.by_id(number, None, format)
    assert client.by_id(2, None, JSON).format == JSON


def test_apicurios_third_version(clouds: CloudRegistry) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/apis/registry/v3/groups/shop"))
    client.register("other", OTHER)
    first = client.register("orders", ORDER)
    assert (first.id, first.content_id, first.version) == (2, 102, 1)
    assert client.lookup("orders", ORDER) == first == client.latest("orders", AVRO)
    assert client.lookup("orders", Schema(AVRO, '"int"')) is None
    assert (client.versions("orders"), client.version("orders", 1)) == ((1,), first)
    assert client.by_id(2, None, AVRO) == client.by_content_id(102, AVRO) == ORDER
    with pytest.raises(Exception, match=r"no such schema 'none'.*No such artifact"):
        client.latest("none")
    with pytest.raises(Exception, match="has no schemas with GUIDs"):
        client.by_guid(bytes(16))


def test_names_of_apicurios_versions_that_are_no_numbers(
    clouds: CloudRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(RegistryOptions(url=f"{clouds.url}/apis/registry/v3/groups/shop"))
    rows = [{"version": name} for name in ("2", "1.0.0", "9" * 5_000, "1", None)]
    monkeypatch.setattr(clouds, "apicurio", lambda *_: (200, json.dumps({"versions": rows})))
    assert client.versions("orders") == (1, 2)
