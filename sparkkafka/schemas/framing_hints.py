"""Recognizes the framing of records that other serializers wrote, which are bad records here.

Only bad rows are examined, since good rows may have the same first bytes. The reason of a row names
its framing, and a warning, once in a process, says how such records can be read.

Sources: AWSSchemaRegistryConstants (AWS Glue), Legacy8ByteIdHandler and KafkaSerdeHeaders
(Apicurio), Azure's KafkaAvroSerializer, Avro's specification ("Single-object encoding", "Object
Container Files"), RFC 1952 (gzip).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config import kinds
from sparkkafka.config.parsed_options import warn
from sparkkafka.protocol.records.arrow import from_numpy
from sparkkafka.schemas.vendor_framings import AZURE_TYPE

_GLUE: Final = {b"\x03\x00": "", b"\x03\x05": ", compressed with zlib"}


class _OtherFraming(NamedTuple):
    """A framing of another serializer. `name` and `detail` (of one record) are for the reason.
    `hint` says how such records are read, with {} for the column; `framings` are the values of
    valueFraming that read them."""

    name: str
    detail: str
    hint: str
    framings: tuple[str, ...] = ()


def name_framings(
    reasons: Mapping[int, str],
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    *,
    framing: str,
    is_json: bool,
) -> dict[int, str]:
    """Add the framing's name to the reasons of bad rows where it is recognized; log a hint.

    `payloads` is binary, `headers` of HEADERS_TYPE, or None to use none. `framing`: that of the
    read, whose frames are not foreign; bare payloads (none) may begin with zeros. `is_json`: the
    column is read as JSON, so plain JSON is not a foreign framing.
    """
    framed = framing != kinds.NO_FRAMING
    # pa.array would import pandas, which no task needs.
    rows = from_numpy(np.fromiter(reasons, np.int64))
    heads = pc.binary_slice(payloads, 0, 18).take(rows).to_pylist()
    tails = pc.binary_slice(payloads, -16).take(rows).to_pylist()
    by_headers = {} if headers is None or not framed else _recognize_headers(headers, rows, column)
    named = {}
    recognized: dict[str, _OtherFraming] = {}
    for index, (row, reason) in enumerate(reasons.items()):
        foreign = by_headers.get(index)
        if foreign is None and framed:
            foreign = _recognize_apicurio(heads[index] or b"")
        if foreign is None:
            foreign = _recognize_bytes(heads[index] or b"", tails[index] or b"", is_json)
        if (
            foreign is None
            or framing in foreign.framings
            or (framing == kinds.AUTO and foreign.framings)
        ):
            named[row] = reason
            continue
        detail = f" ({foreign.detail})" if foreign.detail else ""
        named[row] = f"{reason}; it looks like {foreign.name}{detail}"
        recognized[foreign.name] = foreign
    for foreign in recognized.values():
        warn(
            f"{column} framed as {foreign.name}",
            f"column {column}: records look like {foreign.name}. {foreign.hint.format(column)}",
        )
    return named


def _recognize_apicurio(head: bytes) -> _OtherFraming | None:
    """Recognize Apicurio's frame with an id of 8 bytes: it looks like schema id 0, which no
    registry assigns."""
    if head[:5] == bytes(5) and len(head) >= 9 and any(head[5:9]):
        return _OtherFraming(
            "Apicurio's framing with ids of 8 bytes",
            f"id {int.from_bytes(head[1:9], 'big')}",
            f"{{0}}Framing={kinds.APICURIO} reads them, with "
            f"schema.registry.url=…/apis/registry/v3 (v2 for Apicurio 2); {kinds.APICURIO_CONTENT} "
            "if the serializers use content ids",
            (kinds.APICURIO, kinds.APICURIO_CONTENT, kinds.APICURIO_HEADERS),
        )
    return None


def _recognize_bytes(head: bytes, tail: bytes, is_json: bool) -> _OtherFraming | None:
    """Recognize a framing by the first and last bytes of a payload."""
    if head[:2] in _GLUE and len(head) >= 18:
        version = f"schema version {uuid.UUID(bytes=head[2:18])}{_GLUE[head[:2]]}"
        return _OtherFraming(
            "AWS Glue's framing",
            version,
            f"{{0}}Framing={kinds.GLUE} reads them, with schema.registry.url=glue://region/registry",
            (kinds.GLUE, kinds.GLUE_ZLIB),
        )
    if head.startswith(b"\xc3\x01") and len(head) >= 10:
        fingerprint = int.from_bytes(head[2:10], "little")
        return _OtherFraming(
            "Avro's single-object encoding",
            f"schema fingerprint 0x{fingerprint:016x}",
            f"{{0}}Framing={kinds.SINGLE_OBJECT} reads them, with the schema in {{0}}Schema",
            (kinds.SINGLE_OBJECT,),
        )
    if head.startswith(b"Obj\x01"):
        return _OtherFraming(
            "an Avro file",
            "",
            "Each record is a whole file with a schema of its own: read the column as binary, and "
            "each file with a library for Avro",
        )
    if head.startswith(b"\x1f\x8b\x08"):  # 8 is deflate, the only method there is
        return _OtherFraming(
            "gzip",
            "",
            "The producer has compressed each record, beside Kafka's own compression: read the "
            "column as binary, and unpack it before it is decoded",
        )
    if not is_json and head.lstrip()[:1] in (b"{", b"[") and tail.rstrip()[-1:] in (b"}", b"]"):
        return _OtherFraming("plain JSON", "", "{}Format=json reads it")
    return None


def _recognize_headers(headers: pa.Array, rows: pa.Array, column: str) -> dict[int, _OtherFraming]:
    """Recognize framings by the headers of rows: index in `rows` -> framing."""
    row_headers = headers.take(rows)
    names, values = row_headers.flatten().flatten()
    id_names = ("globalId", "contentId", "contentHash", "artifactId")
    ids = {f"apicurio.{column}.{name}": name for name in id_names}
    at = pc.indices_nonzero(pc.is_in(names, pa.array([*ids, "content-type"], names.type)))
    framings = {}
    for index, name, value in zip(
        pc.list_parent_indices(row_headers).take(at).to_pylist(),
        names.take(at).to_pylist(),
        values.take(at).to_pylist(),
        strict=True,
    ):
        if name in ids:
            framings[index] = _OtherFraming(
                "Apicurio's framing in headers",
                f"{ids[name]} {_id_text(value or b'')}",
                f"{{0}}Framing={kinds.APICURIO_HEADERS} reads them, with schema.registry.url="
                "…/apis/registry/v3 (v2 for Apicurio 2)",
                (kinds.APICURIO, kinds.APICURIO_CONTENT, kinds.APICURIO_HEADERS),
            )
        elif value is not None and value.startswith(AZURE_TYPE):
            framings[index] = _OtherFraming(
                "the framing of Azure's Schema Registry in headers",
                f"schema id {_printable(value[len(AZURE_TYPE) :])}",
                f"{{0}}Framing={kinds.AZURE} reads them, with schema.registry.url=https://NAMESPACE."
                "servicebus.windows.net/$schemaGroups/GROUP",
                (kinds.AZURE,),
            )
    return framings


def _id_text(value: bytes) -> str:
    """Return an id as text: a number of 4 or 8 bytes, or the text of a name or hash."""
    return str(int.from_bytes(value, "big")) if len(value) in (4, 8) else _printable(value)


def _printable(value: bytes) -> str:
    """Return the beginning of a text, for messages."""
    text = value[:64].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "�" for char in text)
