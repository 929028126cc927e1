"""Kafka's records as Arrow columns: what the rest of the package imports.

`columns_decode` turns record batches into columns, `columns_encode` columns into the payload of
record batches; `varints`, `record_starts`, `record_fields`, `field_places` and `alike_batches` hold
their numpy machinery, `record_damage` words for damaged bytes. Whole batches with header and
checksum are the matter of `records`.
"""

from __future__ import annotations

from sparkkafka.protocol.columns.chunks import (
    ALL_COLUMNS,
    CHUNK_RECORDS,
    HEADERS,
    HEADERS_TYPE,
    KEY,
    TIMESTAMP,
    VALUE,
    DecodedRecords,
)
from sparkkafka.protocol.columns.decode import decode_batches, decode_chunks
from sparkkafka.protocol.columns.encode import (
    EncodedBatch,
    RecordColumns,
    blob_offsets,
    encode_batches,
    encode_runs,
    record_sizes,
    run_sizes,
    size_estimate,
    sliced,
    split_encoded,
)

__all__ = [
    "ALL_COLUMNS",
    "CHUNK_RECORDS",
    "HEADERS",
    "HEADERS_TYPE",
    "KEY",
    "TIMESTAMP",
    "VALUE",
    "DecodedRecords",
    "EncodedBatch",
    "RecordColumns",
    "blob_offsets",
    "decode_batches",
    "decode_chunks",
    "encode_batches",
    "encode_runs",
    "record_sizes",
    "run_sizes",
    "size_estimate",
    "sliced",
    "split_encoded",
]
