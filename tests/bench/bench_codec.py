"""How fast one core decodes and encodes records: `python tests/bench/bench_codec.py [--quick]`.

Prints a table of million records and GB (of encoded payload) a second, best and median of several
rounds, for more shapes of records than `codec_rows.py` and without a rival. In processor time
(other work on the machine counts less), without network, checksum or compression. Not a test:
pytest does not collect this file.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_batches
from tests.bench.codec_rows import BATCH_NAMES, WANTED, columns, decode, encode, responses
from tests.bench.turns import quiet


def measure(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    times = []
    with quiet():
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
    total_bytes, rounds = (16 << 20, 3) if arguments.quick else (64 << 20, 7)
    print(f"numpy {np.__version__}, pyarrow {pa.__version__}; M records/s and GB/s, best (median)")
    print(f"{'sizes':22} {'batch':>6} {'decode':>24} {'in one piece':>14} {'encode':>24}")
    names = ["10", "100", "1000", "10000", "50-150", "10-2048", "lognormal", "10+binary"]
    names += ["100+key", "lognormal+key+binary", "100+key+headers"]
    for name in names:
        if arguments.only not in name:
            continue
        data = columns(name, total_bytes)
        count = len(data.timestamps_ms)
        wanted = WANTED | {"headers"} if "headers" in name else WANTED
        for batch_bytes, batch_name in BATCH_NAMES.items():
            fetched = responses(data, batch_bytes)
            size = sum(response.payload_bytes for response in fetched)

            def decode_whole(fetched=fetched, wanted=wanted) -> None:
                for response in fetched:
                    decode_batches(response.batches, Selection(0, 1 << 60, wanted))

            cells = []
            for work in (
                lambda fetched=fetched, wanted=wanted: decode(fetched, wanted),
                decode_whole,
                lambda data=data, batch_bytes=batch_bytes: encode(data, batch_bytes),
            ):
                best, median = measure(work, rounds)
                cells.append(
                    f"{count / best / 1e6:6.2f} ({count / median / 1e6:5.2f}) "
                    f"{size / best / 1e9:5.2f} GB/s"
                )
            print(
                f"{name:22} {batch_name:>6} {cells[0]:>24} {cells[1][:14]:>14} {cells[2]:>24}",
                flush=True,
            )


if __name__ == "__main__":
    main()
