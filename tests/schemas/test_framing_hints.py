"""Records of other serializers are bad records, whose reasons and whose hint name them."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config.kinds import AVRO, CONFLUENT, HEADERS, JSON, NO_FRAMING, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.schemas.column import ColumnDecoder, ColumnPlan, format_module
from sparkkafka.schemas.framings import name_framings
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Schema
from tests.schemas.small_registry import SmallRegistry, small_registry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
TEXT = json.dumps(ORDER)
VERSION = "0a1b2c3d-4e5f-4a7b-8c9d-0e1f2a3b4c5d"
PARSED = fastavro.parse_schema(ORDER)


def bare(number: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED, {"id": number, "item": "lamp"})
    return out.getvalue()


def avro_file() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, PARSED, [{"id": 1, "item": "lamp"}])
    return out.getvalue()


def long_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


GLUE = b"\x03\x00" + uuid.UUID(VERSION).bytes + bare()
SINGLE = b"\xc3\x01" + (0x1122334455667788).to_bytes(8, "little") + bare()
PAYLOADS = {
    "Glue": (GLUE, f"AWS Glue's framing (schema version {VERSION})"),
    "Glue, zlib": (
        b"\x03\x05" + GLUE[2:],
        f"AWS Glue's framing (schema version {VERSION}, compressed with zlib)",
    ),
    "Apicurio": (
        b"\0" + long_id(7) + bare(),
        "Apicurio's framing with ids of 8 bytes (id 7)",
    ),
    "single object": (
        SINGLE,
        "Avro's single-object encoding (schema fingerprint 0x1122334455667788)",
    ),
    "file": (avro_file(), "an Avro file"),
    "gzip": (gzip.compress(b"\0\0\0\0\1" + bare()), "gzip"),
    "JSON": (b' {"id": 1, "item": "lamp"}\n', "plain JSON"),
    "a list": (b"[1, 2]", "plain JSON"),
}
WITH_HEADERS = {
    "globalId": (
        ("apicurio.value.globalId", long_id(7)),
        "Apicurio's framing in headers (globalId 7)",
    ),
    "contentId": (
        ("apicurio.value.contentId", long_id(2**40)),
        f"Apicurio's framing in headers (contentId {2**40})",
    ),
    "artifactId": (
        ("apicurio.value.artifactId", b"orders\n"),
        "Apicurio's framing in headers (artifactId orders\N{REPLACEMENT CHARACTER})",
    ),
    "Azure": (
        ("content-type", b"avro/binary+64a1f0"),
        "the framing of Azure's Schema Registry in headers (schema id 64a1f0)",
    ),
}


pytestmark = pytest.mark.usefixtures("no_warnings_so_far")


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        one.add("t-value", TEXT)
        yield one


def decoder(registry: SmallRegistry, format: str = AVRO, framing: str = CONFLUENT) -> ColumnDecoder:
    text = {
        AVRO: TEXT,
        JSON: '{"type": "object", "properties": {"id": {"type": "integer"}}}',
        PROTOBUF: 'syntax = "proto3"; message Order { int64 id = 1; string item = 2; }',
    }[format]
    schema = Schema(format, text)
    kind = format_module(format).arrow_type(schema)
    plan = ColumnPlan("value", format, framing, schema, kind, subject="t-value")
    client = RegistryClient(RegistryOptions(url=registry.url, max_retries=0))
    return ColumnDecoder(plan, lambda: client)


def headers(*rows: list[tuple[str, bytes | None]] | None) -> pa.Array:
    return pa.array(
        [row and [{"key": key, "value": value} for key, value in row] for row in rows],
        HEADERS_TYPE,
    )


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_of_another_framing_is_named(
    registry: SmallRegistry, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    payload, words = PAYLOADS[name]
    good = b"\0\0\0\0\1" + bare()
    reader = decoder(registry)
    for _ in range(2):
        found = reader.decode(pa.array([good, None, payload, b"", payload]), None)
        assert [bad.row for bad in found.bad] == [2, 3, 4]
        assert found.bad[0].reason.endswith(f"; it looks like {words}")
        assert "looks like" not in found.bad[1].reason
    (record,) = caplog.records
    framing = words.partition(" (")[0]
    assert record.getMessage().startswith(f"column value: some records look like {framing}. ")


@pytest.mark.parametrize("framing", [CONFLUENT, HEADERS])
@pytest.mark.parametrize("name", WITH_HEADERS)
def test_headers_of_another_framing_are_named(
    registry: SmallRegistry, name: str, framing: str, caplog: pytest.LogCaptureFixture
) -> None:
    header, words = WITH_HEADERS[name]
    payloads = pa.array([bare(0), bare(), bare(), bare(), b"\0\0\0\0\1" + bare()])
    found = decoder(registry, framing=framing).decode(
        payloads,
        headers(
            [("other", None), header],
            None,
            [header, ("content-type", b"application/json"), ("x", b"")],
            [("content-type", None)],
            [],
        ),
    )
    named = [bad.row for bad in found.bad if bad.reason.endswith(f"; it looks like {words}")]
    assert named == [0, 2]
    assert sum("looks like" in bad.reason for bad in found.bad) == 2
    (record,) = caplog.records
    framing = "azure" if name == "Azure" else "apicurio-headers"
    assert f"valueFraming={framing} reads them" in record.getMessage()


def test_good_records_are_good_whatever_their_headers(registry: SmallRegistry) -> None:
    payloads = pa.array([b"\0\0\0\0\1" + bare()])
    found = decoder(registry).decode(payloads, headers([("content-type", b"avro/binary+x")]))
    assert found.bad == []


@pytest.mark.parametrize(
    ("format", "framing", "name", "is_named"),
    [
        (JSON, CONFLUENT, "Glue", True),
        (JSON, CONFLUENT, "gzip", True),
        (JSON, CONFLUENT, "Apicurio", True),
        (JSON, NO_FRAMING, "gzip", True),
        (JSON, NO_FRAMING, "a list", False),
        (PROTOBUF, CONFLUENT, "Glue", True),
        (PROTOBUF, CONFLUENT, "JSON", True),
        (PROTOBUF, NO_FRAMING, "JSON", True),
        (AVRO, NO_FRAMING, "file", True),
        (AVRO, NO_FRAMING, "JSON", True),
    ],
)
def test_other_formats(
    registry: SmallRegistry, format: str, framing: str, name: str, is_named: bool
) -> None:
    payload, words = PAYLOADS[name]
    (bad,) = decoder(registry, format, framing).decode(pa.array([payload]), None).bad
    assert bad.reason.endswith(f"; it looks like {words}") == is_named


@pytest.mark.parametrize(
    "payload",
    [
        b"n",
        b"\x03\x00" + bytes(15),
        b"\x03\x01" + bytes(30),
        b"\xc3\x01" + bytes(7),
        b"\x1f\x8b",
        b"{",
        b"{ not closed",
        b"Obj",
        bytes(30),
        b"\0\0\0\0\x63" + bare(),
    ],
)
def test_others_are_not_named(registry: SmallRegistry, payload: bytes) -> None:
    (bad,) = decoder(registry).decode(pa.array([payload]), None).bad
    assert "looks like" not in bad.reason


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([p for p, _ in PAYLOADS.values()])),
    st.data(),
)
def test_any_bytes_and_headers(payloads: list[bytes], data: st.DataObject) -> None:
    names = st.sampled_from(["apicurio.key.globalId", "content-type", "x"])
    values = st.none() | st.binary(max_size=12) | st.just(b"avro/binary+\xff\n")
    entries = st.none() | st.lists(st.tuples(names, values), max_size=3)
    rows = [data.draw(entries) for _ in payloads]
    reasons = dict.fromkeys(range(1, len(payloads), 2), "bad")
    found = name_framings(
        reasons,
        pa.array([b"sliced off", *payloads], pa.binary()).slice(1),
        headers(None, *rows).slice(1),
        "key",
        framing=CONFLUENT,
        is_json=False,
    )
    assert list(found) == list(reasons)
    assert all(reason.startswith("bad") and reason.isprintable() for reason in found.values())


def test_the_hint_is_of_the_column() -> None:
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkkafka.schemas.framings.warn", lambda *given: seen.append(given))
        for payload, _ in PAYLOADS.values():
            one = pa.array([payload])
            name_framings({0: "bad"}, one, None, "key", framing=CONFLUENT, is_json=False)
    texts = [text for _, text in seen]
    assert all(text.startswith("column key: ") for text in texts)
    assert any("keyFraming=glue reads them" in text for text in texts)
    assert any("keyFormat=json reads it" in text for text in texts)
