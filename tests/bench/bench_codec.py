"""How fast one core decodes and encodes records: `python tests/bench/bench_codec.py [--quick]`.

Prints a table of million records and GB (of encoded payload) a second, best and median of several
rounds, in processor time (other work on the machine counts less), without network, checksum or
compression. Not a test: pytest does not collect this file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns import (
    RecordColumns,
    decode_batches,
    decode_chunks,
    encode_batches,
)
from sparkkafka.protocol.records import RecordBatch, build_batch, split_batches

KILO, MEGA = 16384, 1 << 20


def columns(sizes: str, total_bytes: int) -> RecordColumns:
    """Values of one size or of a distribution, no keys unless the name says so."""
    random = np.random.default_rng(1)
    name, _, extra = sizes.partition("+")
    if name == "lognormal":
        lengths = np.clip(random.lognormal(5, 1, 1_000_000), 10, 2048).astype(np.int64)
    elif "-" in name:
        low, high = map(int, name.split("-"))
        lengths = random.integers(low, high, 1_000_000)
    else:
        lengths = np.full(10_000_000, int(name))
    count = min(int(np.searchsorted(np.cumsum(lengths + 8), total_bytes)), 2_000_000)
    ends = np.cumsum(lengths[:count])
    text = random.integers(32, 127, int(ends[-1]), dtype=np.uint8)
    if "binary" in extra:
        text = random.integers(0, 256, int(ends[-1]), dtype=np.uint8)
    offsets = np.append(0, ends).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    values = pa.Array.from_buffers(pa.binary(), count, buffers)
    keys = None
    if "key" in extra:
        keys = pa.array([b"key-%08d" % i for i in range(count)], pa.binary())
    headers = None
    if "headers" in extra:
        pair = [{"key": "trace", "value": b"0123456789abcdef"}, {"key": "kind", "value": b"order"}]
        headers = pa.array([pair] * count)
    timestamps = 1_700_000_000_000 + np.arange(count) // 100
    return RecordColumns(keys, values, headers, timestamps)


def response(data: RecordColumns, batch_bytes: int) -> list[list[RecordBatch]]:
    """Fetch responses of about 4 MB each, batches one after the other in one buffer."""
    answers: list[list[RecordBatch]] = []
    group = []
    size = 0
    offset = 0
    for encoded in [*encode_batches(data, max_batch_bytes=batch_bytes), None]:
        if encoded is not None:
            group.append(encoded)
            size += len(encoded.payload)
        if encoded is None or size >= 4 * MEGA:
            whole = bytearray()
            for batch in group:
                whole += build_batch(
                    batch.payload,
                    record_count=batch.record_count,
                    base_timestamp=batch.base_timestamp,
                    max_timestamp=batch.max_timestamp,
                    base_offset=offset,
                )
                offset += batch.record_count
            answers.append(split_batches(whole))
            group, size = [], 0
    return answers


def measure(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    times = []
    work()
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    parser.add_argument("--only", default="", help="only sizes that contain this text")
    arguments = parser.parse_args()
    total = 16 * MEGA if arguments.quick else 64 * MEGA
    rounds = 3 if arguments.quick else 7
    wanted = frozenset({"key", "value", "timestamp"})
    print(f"numpy {np.__version__}, pyarrow {pa.__version__}; M records/s and GB/s, best (median)")
    print(f"{'sizes':22} {'batch':>6} {'decode':>24} {'in one piece':>14} {'encode':>24}")
    names = ["10", "100", "1000", "10000", "50-150", "10-2048", "lognormal", "10+binary"]
    names += ["100+key", "lognormal+key+binary", "100+key+headers"]
    for name in names:
        if arguments.only not in name:
            continue
        data = columns(name, total)
        count = len(data.timestamps_ms)
        columns_wanted = wanted | {"headers"} if "headers" in name else wanted
        for batch_bytes in (KILO, MEGA):
            answers = response(data, batch_bytes)
            size = sum(len(batch.data) for answer in answers for batch in answer)

            def decode(answers=answers, columns_wanted=columns_wanted) -> None:
                for answer in answers:
                    for _ in decode_chunks(
                        answer, start_offset=0, end_offset=1 << 60, wanted=columns_wanted
                    ):
                        pass

            def decode_whole(answers=answers, columns_wanted=columns_wanted) -> None:
                for answer in answers:
                    decode_batches(
                        answer, start_offset=0, end_offset=1 << 60, wanted=columns_wanted
                    )

            def encode(data=data, batch_bytes=batch_bytes) -> None:
                # As the sink does it: one Arrow batch after the other.
                for low in range(0, len(data.timestamps_ms), 65536):
                    encode_batches(
                        RecordColumns(
                            *(None if c is None else c.slice(low, 65536) for c in data[:3]),
                            data.timestamps_ms[low : low + 65536],
                        ),
                        max_batch_bytes=batch_bytes,
                    )

            cells = []
            for work in (decode, decode_whole, encode):
                best, median = measure(work, rounds)
                cells.append(
                    f"{count / best / 1e6:6.2f} ({count / median / 1e6:5.2f}) "
                    f"{size / best / 1e9:5.2f} GB/s"
                )
            print(
                f"{name:22} {'16 KB' if batch_bytes == KILO else '1 MB':>6} "
                f"{cells[0]:>24} {cells[1][:14]:>14} {cells[2]:>24}",
                flush=True,
            )


if __name__ == "__main__":
    main()
