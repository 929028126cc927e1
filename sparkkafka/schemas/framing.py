"""Which schema a payload was written with: a frame before the payload, or in a header.

A frame, as Confluent's serializers write it:

    0x00  schema id, 4 bytes, big-endian        or   0x01  GUID of the schema, 16 bytes
    with Protobuf alone: the message's indexes, zigzag varints with their count first; the one byte
    0 stands for the first message of the file

It stands before the payload, or as the value of the header `__value_schema_id` (`__key_schema_id`),
which is looked for first. Of several such headers the last one counts, as in Java.

Here is how frames are written; `unframing` reads them.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.protocol.columns.columns import HEADERS_TYPE, validity
from sparkkafka.protocol.records.arrow import (
    binary_array,
    from_numpy,
    is_valid,
    or_zero,
    repeat_text,
)
from sparkkafka.protocol.wire.varints import zigzag_bytes
from sparkkafka.schemas.values import FIRST_MESSAGE

MAGIC_ID = 0
MAGIC_GUID = 1
ID_BYTES = 5
GUID_BYTES = 17

MAX_INDEXES = 32
"""How deep a message may be nested in others. Protobuf's own compiler has the same limit."""


@dataclass(frozen=True, slots=True)
class WriterId:
    """What a frame says. None for both: there is no frame."""

    schema_id: int | None = None
    guid: bytes | None = None
    message: tuple[int, ...] = FIRST_MESSAGE

    def __str__(self) -> str:
        if self.guid is not None:
            return f"schema GUID {uuid.UUID(bytes=self.guid)}"
        return "no schema id" if self.schema_id is None else f"schema id {self.schema_id}"


NO_FRAME = WriterId()


def header_name(column: str) -> str:
    """Of the header that holds the frame of this column (`KEY` or `VALUE`)."""
    return f"__{column}_schema_id"


# --- writing ------------------------------------------------------------------------------------


def frame_of(writer: WriterId, *, with_indexes: bool) -> bytes:
    """The frame's bytes. A GUID comes before an id."""
    if writer.guid is not None:
        frame = bytes([MAGIC_GUID]) + writer.guid
    elif writer.schema_id is not None:
        frame = bytes([MAGIC_ID]) + writer.schema_id.to_bytes(4, "big")
    else:
        return b""
    return frame + _indexes_bytes(writer.message) if with_indexes else frame


def _indexes_bytes(message: tuple[int, ...]) -> bytes:
    if message == FIRST_MESSAGE:
        return b"\0"
    return b"".join(zigzag_bytes(number) for number in (len(message), *message))


def with_header(
    headers: pa.Array | None, column: str, frame: bytes, payloads: pa.Array
) -> pa.Array:
    """The headers of rows, and behind them the frame in a header where there is a payload.

    `headers` is a list of (key, value) structs for each row, null for none; None: no row has any.
    """
    count = len(payloads)
    added = is_valid(payloads).astype(np.int64)
    kind = HEADERS_TYPE.value_type
    if headers is None:
        names = values = None
        old = np.zeros(count, np.int64)
    else:
        old = or_zero(pc.list_value_length(headers)).astype(np.int64)
        entries = headers.flatten()
        names, values = (
            entries.flatten()[entries.type.get_field_index(name)] for name in ("key", "value")
        )
    before = int(old.sum())
    all_names = _joined(names, repeat_text(header_name(column), 1))
    all_values = _joined(values, binary_array([frame]))
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(old + added, out=offsets[1:])
    places = np.full(int(offsets[-1]), before, np.int64)
    is_old = np.ones(len(places), np.bool_)
    is_old[offsets[1:][added > 0] - 1] = False
    places[is_old] = np.arange(before)
    indexes = from_numpy(places)
    entries = pa.StructArray.from_arrays(
        [all_names.take(indexes), all_values.take(indexes)], fields=list(kind)
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        count,
        [validity(np.diff(offsets) > 0), pa.py_buffer(offsets)],
        children=[entries],
    )


def _joined(first: pa.Array | None, last: pa.Array) -> pa.Array:
    if first is None:
        return last
    return pa.concat_arrays([first.cast(last.type), last])
