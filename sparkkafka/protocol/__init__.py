"""Kafka's protocol without I/O: bytes in, values out. What stands here is public.

docs/low-level.md shows how to use it. Requests and responses are in
`sparkkafka.protocol.messages`. The modules beside this one are the machinery, and may change. Names
are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkkafka.protocol.framing import Framing as Framing
    from sparkkafka.protocol.framing import decode_request as decode_request
    from sparkkafka.protocol.framing import encode_response as encode_response
    from sparkkafka.protocol.messages.consumer_protocol import Assignment as Assignment
    from sparkkafka.protocol.messages.consumer_protocol import Subscription as Subscription
    from sparkkafka.protocol.messages.consumer_protocol import (
        decode_assignment as decode_assignment,
    )
    from sparkkafka.protocol.messages.consumer_protocol import (
        decode_subscription as decode_subscription,
    )
    from sparkkafka.protocol.messages.consumer_protocol import (
        encode_assignment as encode_assignment,
    )
    from sparkkafka.protocol.messages.consumer_protocol import (
        encode_subscription as encode_subscription,
    )
    from sparkkafka.protocol.records.batches import AbortedTransactions as AbortedTransactions
    from sparkkafka.protocol.records.batches import RecordBatch as RecordBatch
    from sparkkafka.protocol.records.batches import control_type as control_type
    from sparkkafka.protocol.records.batches import split_batches as split_batches
    from sparkkafka.protocol.records.compression import Codec as Codec
    from sparkkafka.protocol.records.compression import OutputTooLargeError as OutputTooLargeError
    from sparkkafka.protocol.records.compression import compress as compress
    from sparkkafka.protocol.records.compression import decompress as decompress
    from sparkkafka.protocol.records.compression import register_codec as register_codec
    from sparkkafka.protocol.single import *  # noqa: F403
    from sparkkafka.protocol.wire.codec import decode as decode
    from sparkkafka.protocol.wire.codec import encode as encode
    from sparkkafka.protocol.wire.schema import layout as layout


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

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    """Return all public names for completion, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
