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
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
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
    produce = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="orders",
                partition_data=[PartitionProduceData(records=[bytes(61), bytes(100)])],
            )
        ]
    )
    produced = encode(
        ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name="orders", partition_responses=[PartitionProduceResponse()]
                )
            ]
        ),
        11,
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
    producing = best_us(lambda: encode(produce, 11), 300)
    print(f"encode Produce v11, 1 partition:       {producing:8.1f} us")
    answering = best_us(lambda: decode(ProduceResponse, 11, produced), 300)
    print(f"decode its response:                   {answering:8.1f} us")
    decoding = best_us(lambda: decode(MetadataResponse, 12, metadata), 3)
    print(f"decode Metadata v12, 1,000 partitions: {decoding:8.1f} us")


if __name__ == "__main__":
    main()
