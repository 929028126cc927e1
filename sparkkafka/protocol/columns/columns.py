"""Kafka's records as Arrow columns: what the rest of the package imports.

`decode` turns record batches into columns, `encode` columns into the payload of record batches.
`records.batches` deals with whole batches, with their header and checksum.
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
    Selection,
)
from sparkkafka.protocol.columns.decode import decode_batches, decode_chunks
from sparkkafka.protocol.columns.encode import (
    EncodedBatch,
    RecordColumns,
    encode_batches,
    encode_runs,
    record_sizes,
    run_sizes,
    size_estimate,
    sliced,
    split_encoded,
)
from sparkkafka.protocol.columns.input_columns import blob_offsets

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
    "Selection",
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
