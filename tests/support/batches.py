"""Record batches by the codec of the package, for tests that look at one whole."""

from __future__ import annotations

from typing import Any

from sparkkafka.protocol.records.batches import batch_parts
from sparkkafka.protocol.wire.primitives import BytesLike


def build_batch(payload: BytesLike, **fields: Any) -> bytes:
    """Header and records in one piece; arguments as of `batch_parts`."""
    return b"".join(batch_parts(payload, **fields))
