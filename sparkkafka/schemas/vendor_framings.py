"""Reads and writes whole columns in any framing: Confluent's, and the frames of other serializers,
which are AWS Glue, Apicurio, Azure's Schema Registry and Avro's single-object encoding.

    0x03  0x00 or 0x05 (zlib)  schema version, 16 bytes                     glue, glue-zlib
        with Protobuf only: the message's number, a varint, compressed with the payload
    0x00  global id or content id, 8 bytes, big-endian                      apicurio, …-content-id
    0xC3  0x01  fingerprint, 8 bytes, little-endian                         single-object
    header apicurio.value.globalId or .contentId, 8 bytes, big-endian       apicurio…
    header content-type: avro/binary+ID, where ID is 32 hexadecimal digits  azure

With `auto` each record has one of these frames or Confluent's, which differ in their first bytes.
The exception are Apicurio's frames of 8 bytes, which do not show what kind of id they have: they
are bad. No registry assigns the id 0, so they are not taken for Confluent's.

Sources: AWSSchemaRegistryConstants and MessageIndexFinder (AWS Glue), Legacy8ByteIdHandler and
KafkaSerdeHeaders (Apicurio), Azure's KafkaAvroSerializer, Avro's specification ("Single-object
encoding").
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.config.kinds import (
    APICURIO,
    APICURIO_CONTENT,
    APICURIO_HEADERS,
    AUTO,
    AZURE,
    CONFLUENT,
    GLUE,
    GLUE_ZLIB,
    HEADERS,
    SINGLE_OBJECT,
)
from sparkkafka.protocol.columns.columns import gather
from sparkkafka.protocol.records.arrow import binary_array, bits, from_numpy, is_valid
from sparkkafka.protocol.records.varint_columns import Flags, Ints, read_unsigned, windows
from sparkkafka.schemas.arrays import scalar
from sparkkafka.schemas.confluent_framing import (
    CONTENT_ID,
    FINGERPRINT,
    GLOBAL_ID,
    NO_FRAME,
    NO_ROWS,
    Frames,
    Parse,
    Unframed,
    Unframer,
    WriterId,
    frame_of,
    frames_of,
    header_name,
    join_parts,
    last_headers,
    parse_frame,
    unframe_bare,
)
from sparkkafka.schemas.values import MemoryBudget

IN_HEADERS: Final = frozenset({HEADERS, APICURIO_HEADERS, AZURE})
"""Framings whose writes leave the payload bare and add a header."""

AZURE_TYPE: Final = b"avro/binary+"
MAX_UNPACKED: Final = 64 << 20
"""The most bytes of one decompressed payload."""

_GLUE_KINDS: Final = {b"\x03\x00": False, b"\x03\x05": True}
_SINGLE_MARK: Final = b"\xc3\x01"


# --- writing ------------------------------------------------------------------------------------


def frame_to_write(framing: str, writer: WriterId, *, with_indexes: bool) -> bytes:
    """Return the bytes of a frame, before the payload or in a header."""
    number, guid = writer.schema_id or 0, writer.guid or b""
    match framing:
        case "glue" | "glue-zlib":
            return (b"\x03\x05" if framing == GLUE_ZLIB else b"\x03\x00") + guid
        case "apicurio" | "apicurio-content-id":
            return b"\0" + number.to_bytes(8, "big")
        case "apicurio-headers":
            return number.to_bytes(8, "big")
        case "azure":
            return AZURE_TYPE + guid.hex().encode()
        case "single-object":
            return _SINGLE_MARK + number.to_bytes(8, "little")
    return frame_of(writer, with_indexes=with_indexes)


def header_to_write(framing: str, column: str) -> str:
    """Return the name of the header that a write adds."""
    if framing == AZURE:
        return "content-type"
    return f"apicurio.{column}.globalId" if framing == APICURIO_HEADERS else header_name(column)


def compress(payloads: pa.Array) -> pa.Array:
    """Compress each payload, as AWS Glue's serializer does; null stays null."""
    packed = [None if value is None else zlib.compress(value) for value in payloads.to_pylist()]
    return binary_array(packed)


# --- reading ------------------------------------------------------------------------------------


def unframe_column(
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    framing: str,
    *,
    with_indexes: bool = False,
    is_text: bool = False,
    budget: MemoryBudget | None = None,
) -> Unframed:
    """Group the payloads of a column by the schema that wrote them, with any framing but none.

    `payloads` is binary, null for no payload; `headers` of HEADERS_TYPE, or None to use none.
    `with_indexes`: frames have a message's indexes, or its number. `is_text`: payloads are JSON,
    which may have no frame; headers are not needed. `budget`: of the caller, for payloads that are
    decompressed. Raises TooManyRowsError.
    """
    has_numbers = with_indexes and framing not in (CONFLUENT, HEADERS)
    unframer = Unframer(payloads, column, with_indexes=with_indexes and not has_numbers)
    if is_text:
        unframed = _unframe_texts(unframer, payloads, column, framing)
    else:
        parsers = _header_parsers(column, with_indexes=with_indexes and not has_numbers)
        unframed = _unframe(unframer, payloads, headers, column, framing, parsers)
    if any(group.writer.is_zlib for group in unframed.groups):
        unframed = _decompress(unframed, budget or MemoryBudget(payloads))
    return _split_by_message(unframed) if has_numbers else unframed


def _unframe_texts(unframer: Unframer, payloads: pa.Array, column: str, framing: str) -> Unframed:
    """Group payloads of text (JSON), with or without a frame: no text begins with a byte below
    4."""
    is_bare = is_valid(payloads).copy()
    rows = np.flatnonzero(is_bare & (unframer.ends > unframer.starts))
    rows = rows[unframer.data[unframer.starts[rows]] < 4]
    if not len(rows):
        return unframe_bare(payloads)
    parts = [unframer.group(rows, _read_frames(unframer, rows, framing=framing, column=column))]
    is_bare[rows] = False
    bare = np.flatnonzero(is_bare)
    if len(bare):
        parts.append(Unframed([unframer.group_of_writer(NO_FRAME, bare)], NO_ROWS, []))
    return join_parts(parts)


def _unframe(
    unframer: Unframer,
    payloads: pa.Array,
    headers: pa.Array | None,
    column: str,
    framing: str,
    header_parsers: Sequence[HeaderParser],
) -> Unframed:
    """Group the payloads of a column by the schema that wrote them; payloads stay compressed."""
    has_no_frame = is_valid(payloads).copy()
    parts = []
    parsers = [parser for parser in header_parsers if framing in parser.framings]
    for rows, frames in _header_frames(unframer, headers, has_no_frame, parsers, framing):
        parts.append(unframer.group(rows, frames))
        has_no_frame[rows] = False
    remaining = np.flatnonzero(has_no_frame)
    if len(remaining) and framing in IN_HEADERS:
        reason = f"the record has no header {' or '.join(parser.name for parser in parsers)}"
        parts.append(Unframed([], remaining, [reason] * len(remaining)))
    elif len(remaining):
        frames = _read_frames(unframer, remaining, framing=framing, column=column)
        parts.append(unframer.group(remaining, frames, with_nulls=not parts))
    if not parts:
        return Unframed([], remaining, [])
    return parts[0] if len(parts) == 1 else join_parts(parts)


def _split_by_message(unframed: Unframed) -> Unframed:
    """Group payloads by AWS Glue's number of the message, which is before each."""
    parts = [unframed._replace(groups=[])]
    for group in unframed.groups:
        unframer = Unframer(group.payloads, "", with_indexes=False)
        rows = np.flatnonzero(is_valid(group.payloads))
        if not len(rows):
            continue
        data = unframer.data if len(unframer.data) else np.zeros(1, np.uint8)  # all are empty
        values, bodies, too_long = read_unsigned(data, unframer.starts[rows], 32)
        is_good = bodies <= unframer.ends[rows]
        if too_long is not None:
            is_good &= ~too_long
        numbers, indexes = np.unique(values[is_good], return_inverse=True)
        writer_indexes = np.full(len(rows), -1, np.int64)
        writer_indexes[is_good] = indexes
        reason = f"the number of its message is cut off ({group.writer})"
        frames = Frames(
            [replace(group.writer, message_number=number) for number in numbers.tolist()],
            None if len(numbers) == 1 and is_good.all() else writer_indexes,
            bodies,
            [reason] * int(len(rows) - is_good.sum()),
        )
        with_indexes = unframer.group(rows, frames, with_nulls=True)
        if group.rows is not None:
            with_indexes = Unframed(
                [
                    part._replace(rows=group.rows if part.rows is None else group.rows[part.rows])
                    for part in with_indexes.groups
                ],
                group.rows[with_indexes.bad_rows],
                with_indexes.reasons,
            )
        parts.append(with_indexes)
    return join_parts(parts)


def _decompress(unframed: Unframed, budget: MemoryBudget) -> Unframed:
    """Decompress the payloads of groups that are compressed."""
    parts = [unframed._replace(groups=[])]
    for group in unframed.groups:
        if not group.writer.is_zlib:
            parts.append(Unframed([group], NO_ROWS, []))
            continue
        values, reasons = _decompress_payloads(group.payloads, budget)
        bad = np.array([*reasons], np.int64)
        if group.rows is not None:
            bad = group.rows[bad]
        writer = replace(group.writer, is_zlib=False)
        texts = [f"{reason} ({writer})" for reason in reasons.values()]
        parts.append(Unframed([group._replace(writer=writer, payloads=values)], bad, texts))
    return join_parts(parts)


def _decompress_payloads(
    payloads: pa.Array, budget: MemoryBudget
) -> tuple[pa.Array, dict[int, str]]:
    """Decompress each payload: (payloads, why rows are bad). Raises TooManyRowsError if several
    rows need more memory than `budget` has."""
    unpacked: list[bytes | None] = []
    bad: dict[int, str] = {}
    for row, packed in enumerate(payloads.to_pylist()):
        value = None
        if packed is not None:
            stream = zlib.decompressobj()
            try:
                value = stream.decompress(packed, MAX_UNPACKED)
            except zlib.error as error:
                bad[row] = f"it cannot be decompressed with zlib: {error}"
            if value is not None and not stream.eof:
                is_long = len(value) == MAX_UNPACKED
                bad[row] = (
                    f"it has more than {MAX_UNPACKED} bytes when it is decompressed with zlib"
                    if is_long
                    else "its zlib stream is cut off"
                )
                value = None
            elif stream.unused_data:
                bad[row], value = "there are bytes after the end of its zlib stream", None
            elif value is not None and not budget.take(2 * len(value)):
                bad[row], value = "it takes too much memory when it is decompressed", None
        unpacked.append(value)
    return binary_array(unpacked), bad


# --- frames before payloads ---------------------------------------------------------------------


def _read_frames(unframer: Unframer, rows: Ints, *, framing: str, column: str) -> Frames:
    """Read the frames before the payloads of these rows."""
    if framing in (CONFLUENT, HEADERS):
        return unframer.read_frames(rows)
    if framing == AUTO:
        return _read_auto(unframer, rows, column)
    size, parse = _FRAMES["apicurio" if framing == APICURIO_HEADERS else framing]
    return _read_heads(unframer, rows, size, partial(_parse_or_advise, parse, framing, column))


def _read_heads(unframer: Unframer, rows: Ints, size: int, parse: Parse) -> Frames:
    """Read frames of `size` bytes, each of which `parse` gets once for all rows that have it."""
    starts = unframer.starts[rows]
    lengths = unframer.ends[rows] - starts
    if int(lengths.min()) >= size:  # the usual case: all rows have the same frame
        words = windows(unframer.data, ">u8")
        for at in {*range(0, size - 7, 8), size - 8}:
            heads = words[starts + at]
            if not (heads == heads[0]).all():
                break
        else:
            writer = parse(unframer.data[starts[0] : starts[0] + size].tobytes())
            if isinstance(writer, WriterId):
                return Frames([writer], None, starts + size, [])
    return frames_of(unframer.heads(rows, size), starts + size, parse)


def _parse_or_advise(parse: Parse, framing: str, column: str, head: bytes) -> WriterId | str:
    """Return the schema id in a frame, or why it has none, with the option that chose the
    framing."""
    parsed = parse(head)
    return parsed if isinstance(parsed, WriterId) else f"{parsed} ({column}Framing={framing})"


def _parse_glue(head: bytes) -> WriterId | str:
    if len(head) < 18 or head[:2] not in _GLUE_KINDS:
        return f"it begins with {_hex(head[:2])}, not with AWS Glue's 18 bytes"
    return WriterId(guid=head[2:], is_zlib=_GLUE_KINDS[head[:2]])


def _parse_apicurio(head: bytes, kind: str = GLOBAL_ID) -> WriterId | str:
    if len(head) < 9 or head[0]:
        return f"it begins with {_hex(head[:1])}, not with a zero byte and Apicurio's id of 8 bytes"
    return _apicurio_id(head[1:], kind)


def _apicurio_id(value: bytes, kind: str = GLOBAL_ID) -> WriterId | str:
    if len(value) != 8:
        return f"an id of Apicurio has {len(value)} bytes, not 8"
    return WriterId(int.from_bytes(value, "big"), kind=kind)


def _parse_single(head: bytes) -> WriterId | str:
    if len(head) < 10 or head[:2] != _SINGLE_MARK:
        return (
            f"it begins with {_hex(head[:2])}, not with the marker 0xc301 of Avro's single objects"
        )
    return WriterId(int.from_bytes(head[2:], "little"), kind=FINGERPRINT)


def _hex(data: bytes) -> str:
    return f"0x{data.hex()}" if data else "nothing"


_FRAMES: Final[dict[str, tuple[int, Parse]]] = {
    GLUE: (18, _parse_glue),
    GLUE_ZLIB: (18, _parse_glue),
    APICURIO: (9, _parse_apicurio),
    APICURIO_CONTENT: (9, partial(_parse_apicurio, kind=CONTENT_ID)),
    SINGLE_OBJECT: (10, _parse_single),
}
"""Size of a frame, and what parses it."""


def _read_auto(unframer: Unframer, rows: Ints, column: str) -> Frames:
    """Read frames of all kinds but Apicurio's, whose kind of id the bytes do not show."""
    starts = unframer.starts[rows]
    lengths = unframer.ends[rows] - starts
    sizes = np.full(len(rows), 5)  # of Confluent's
    some = np.flatnonzero(lengths >= 5)
    begins = windows(unframer.data, ">u2")[starts[some]]
    sizes[some[np.isin(begins, (0x0300, 0x0305))]] = 18  # AWS Glue's
    sizes[some[begins == 0xC301]] = 10  # Avro's single objects
    sizes[some[begins >> 8 == 1]] = 17  # Confluent's with a GUID
    heads = gather(pa.py_buffer(unframer.data), starts, np.minimum(lengths, sizes))
    return frames_of(heads, starts + sizes, partial(_parse_auto, column=column))


def _parse_auto(head: bytes, column: str) -> WriterId | str:
    """Return the writer that a frame of any kind names, or why it is none."""
    writer: WriterId | str = ""
    if head[:5] == bytes(5):
        return (
            f"it begins with zeros, perhaps Apicurio's id of 8 bytes: set {column}Framing to "
            f"{APICURIO} or {APICURIO_CONTENT}, as its serializers are configured"
        )
    if head[:2] in _GLUE_KINDS:
        writer = _parse_glue(head)
    elif head[:2] == _SINGLE_MARK:
        writer = _parse_single(head)
    elif len(head) >= 5 and head[0] <= 1:
        return parse_frame(head, column, with_indexes=False)
    if isinstance(writer, WriterId):
        return writer
    return (
        f"it has no frame that {column}Framing=auto knows: set {column}Framing to the "
        "serializer's, or to none if payloads are bare"
    )


# --- frames in headers --------------------------------------------------------------------------


class HeaderParser(NamedTuple):
    """A header that may have a frame: what parses its value, and the framings that read it."""

    name: str
    parse: Parse
    framings: frozenset[str]


def _header_parsers(column: str, *, with_indexes: bool) -> list[HeaderParser]:
    """Return the headers of all framings. `with_indexes`: Confluent's frames have indexes."""
    apicurio = frozenset({APICURIO, APICURIO_CONTENT, APICURIO_HEADERS, AUTO})
    confluent = partial(parse_frame, column=column, with_indexes=with_indexes, in_header=True)
    content_id = partial(_apicurio_id, kind=CONTENT_ID)
    parsers = [
        HeaderParser(header_name(column), confluent, frozenset({CONFLUENT, HEADERS, AUTO})),
        HeaderParser(f"apicurio.{column}.globalId", _apicurio_id, apicurio),
        HeaderParser(f"apicurio.{column}.contentId", content_id, apicurio),
    ]
    if column == "value":
        parsers.append(HeaderParser("content-type", _azure_id, frozenset({AZURE, AUTO})))
    return parsers


def _azure_id(value: bytes) -> WriterId | str:
    text = value.removeprefix(AZURE_TYPE).decode("ascii", "replace")
    if not value.startswith(AZURE_TYPE) or not re.fullmatch("[0-9a-fA-F]{32}", text):
        shown = value[:64].decode("utf-8", "replace")
        return f"the header content-type is {shown!r}, not avro/binary+ and an id of 32 digits"
    return WriterId(guid=uuid.UUID(text).bytes)


def _header_frames(
    unframer: Unframer,
    headers: pa.Array | None,
    has_payload: Flags,
    parsers: Sequence[HeaderParser],
    framing: str,
) -> Iterator[tuple[Ints, Frames]]:
    """Yield rows and their frames for each header that has frames. The caller clears `has_payload`
    of these rows, so that a row is yielded once."""
    if headers is None:
        return
    for name, parse, _ in parsers:
        with_header = last_headers(headers, name)
        if with_header is None:
            continue
        rows, values = with_header
        keep = has_payload[rows]
        if framing == AUTO and parse is _azure_id:
            is_azure = pc.starts_with(values.fill_null(scalar(b"")), pattern=AZURE_TYPE)
            keep = keep & bits(is_azure.buffers()[1], is_azure.offset, len(is_azure)).view(np.bool_)
        rows, values = rows[keep], values.filter(from_numpy(keep))
        if len(rows):
            yield rows, frames_of(values, unframer.starts[rows], parse)
