"""Control batches, which end transactions, and which batches a consumer may see because of them."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable

from sparkkafka.errors import BatchTooLargeError, CorruptRecordError, DecodeError
from sparkkafka.protocol.records.batches import CONTROL_FLAG, RecordBatch, at_offset
from sparkkafka.protocol.wire.primitives import Reader

# ControlRecordType.java. Other types (KRaft's) exist and mean nothing to a consumer.
ABORT_MARKER = 0
COMMIT_MARKER = 1
NO_CONTROL_TYPE = -1

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_MAX_CONTROL_PAYLOAD_BYTES = 1 << 20


class AbortedTransactions:
    """Which batches of one fetch answer a consumer may see (`CompletedFetch.java`).

    `aborted` is the answer's list of (producer id, first offset), in any order, with entries of
    transactions that began before the fetch offset; None or empty for read_uncommitted. One
    object serves one answer: the broker sends each answer the list that fits it.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] | None) -> None:
        # Redpanda does not sort the list.
        self._pending = [(first_offset, producer_id) for producer_id, first_offset in aborted or ()]
        heapq.heapify(self._pending)
        self._aborting: set[int] = set()

    def visible_of(self, batches: Iterable[RecordBatch]) -> list[RecordBatch]:
        """Those of the batches that are `visible`."""
        if self._pending or self._aborting:
            return [batch for batch in batches if self.visible(batch)]
        # Small batches come by the thousand, and nothing but markers is to be left out.
        return [batch for batch in batches if not batch.attributes & CONTROL_FLAG]

    def visible(self, batch: RecordBatch) -> bool:
        """Whether its records are for the reader. Ask for every batch, in offset order.

        Control batches never are. Raises CorruptRecordError for an unreadable marker that could
        end an aborted transaction.
        """
        # Event order: a producer's aborted transaction starts at or before this batch, its ABORT
        # marker ends it, and its next transaction may be a committed one. So entries become
        # active by the batch's last offset before its own marker is looked at.
        while self._pending and self._pending[0][0] <= batch.last_offset:
            self._aborting.add(heapq.heappop(self._pending)[1])
        if batch.is_control:
            if batch.producer_id in self._aborting and control_type(batch) == ABORT_MARKER:
                self._aborting.discard(batch.producer_id)
            return False
        # A producer may also write outside of transactions; only transactional batches abort.
        return not (batch.is_transactional and batch.producer_id in self._aborting)


def control_type(batch: RecordBatch) -> int:
    """Type of a control batch's first record: ABORT_MARKER, COMMIT_MARKER, or another number.

    NO_CONTROL_TYPE if compaction has removed the record. Raises CorruptRecordError if there is a
    record without a readable key (`ControlRecordType.java`: i16 version, i16 type).
    """
    if not batch.record_count:
        return NO_CONTROL_TYPE
    try:
        reader = Reader(batch.payload(_MAX_CONTROL_PAYLOAD_BYTES))
    except BatchTooLargeError as error:  # no setting allows more, and no broker writes so much
        raise CorruptRecordError(
            f"control batch of more than {_MAX_CONTROL_PAYLOAD_BYTES} bytes",
            error.position,
            offset=batch.base_offset,
        ) from error
    try:
        reader.varint()  # length
        reader.int8()  # attributes
        reader.varlong()  # timestamp delta
        reader.varint()  # offset delta
        key = reader.span(reader.varint())
        if len(key) < _CONTROL_KEY.size:
            raise DecodeError(f"control record with a key of {len(key)} bytes", reader.pos)
        version, kind = _CONTROL_KEY.unpack_from(key)
        if version < 0:
            raise DecodeError(f"control record of version {version}", reader.pos)
    except CorruptRecordError:
        raise
    except DecodeError as error:
        raise at_offset(CorruptRecordError, error, batch.base_offset) from error
    return int(kind)
