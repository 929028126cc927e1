"""Kafka's protocol without I/O: bytes in, values out. What stands here is public.

docs/low-level.md shows how to use it. Requests and responses are in
`sparkkafka.protocol.messages`. The modules beside this one are the machinery, and may change. Names
are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.protocol.framing import Framing, decode_request, encode_response
    from sparkkafka.protocol.messages.consumer_protocol import (
        Assignment,
        Subscription,
        decode_assignment,
        decode_subscription,
        encode_assignment,
        encode_subscription,
    )
    from sparkkafka.protocol.records.batches import (
        AbortedTransactions,
        RecordBatch,
        control_type,
        split_batches,
    )
    from sparkkafka.protocol.records.compression import (
        Codec,
        OutputTooLargeError,
        compress,
        decompress,
        register_codec,
    )
    from sparkkafka.protocol.single import (
        PlainRecord,
        crc32c,
        decode_records,
        decode_unsigned_varint,
        decode_varint,
        decode_varlong,
        encode_batch,
        encode_unsigned_varint,
        encode_varint,
        encode_varlong,
        murmur2,
        partition_of,
    )
    from sparkkafka.protocol.wire.codec import decode, encode
    from sparkkafka.protocol.wire.schema import layout

__all__ = [
    "AbortedTransactions",
    "Assignment",
    "Codec",
    "Framing",
    "OutputTooLargeError",
    "PlainRecord",
    "RecordBatch",
    "Subscription",
    "compress",
    "control_type",
    "crc32c",
    "decode",
    "decode_assignment",
    "decode_records",
    "decode_request",
    "decode_subscription",
    "decode_unsigned_varint",
    "decode_varint",
    "decode_varlong",
    "decompress",
    "encode",
    "encode_assignment",
    "encode_batch",
    "encode_response",
    "encode_subscription",
    "encode_unsigned_varint",
    "encode_varint",
    "encode_varlong",
    "layout",
    "murmur2",
    "partition_of",
    "register_codec",
    "split_batches",
]

_MODULES = {
    "records.compression": "Codec OutputTooLargeError compress decompress register_codec",
    "messages.consumer_protocol": "Assignment Subscription decode_assignment decode_subscription "
    "encode_assignment encode_subscription",
    "framing": "Framing decode_request encode_response",
    "records.batches": "AbortedTransactions RecordBatch control_type split_batches",
    "wire.codec": "decode encode",
    "wire.schema": "layout",
    "single": "PlainRecord crc32c decode_records decode_unsigned_varint decode_varint "
    "decode_varlong encode_batch encode_unsigned_varint encode_varint encode_varlong murmur2 "
    "partition_of",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    """Return all public names for completion, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
