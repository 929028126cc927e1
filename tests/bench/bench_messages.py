"""How long messages take to encode and decode. Run: python tests/bench/bench_messages.py"""

from __future__ import annotations

import gc
import timeit
from collections.abc import Callable

from sparkkafka.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from sparkkafka.protocol.wire.codec import decode, encode


def best_us(statement: Callable[[], object], number: int) -> float:
    gc.disable()
    try:
        return min(timeit.repeat(statement, number=number, repeat=7)) / number * 1e6
    finally:
        gc.enable()


def main() -> None:
    fetch = FetchRequest(
        topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=i) for i in range(3)])]
    )
    partitions = [
        MetadataResponsePartition(partition_index=i, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
        for i in range(1000)
    ]
    metadata = encode(
        MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)]), 12
    )
    print(
        f"encode Fetch v12, 3 partitions:        {best_us(lambda: encode(fetch, 12), 300):8.1f} us"
    )
    decoding = best_us(lambda: decode(MetadataResponse, 12, metadata), 3)
    print(f"decode Metadata v12, 1,000 partitions: {decoding:8.1f} us")


if __name__ == "__main__":
    main()
