"""What the tests of upserts share: changes after those of the page, and a query that was killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException

from sparkkafka.client import Producer

CHANGES = [
    ("1", b'{"item": "lamp", "price": 16}'),
    ("4", b'{"item": "rug", "price": 70}'),
    ("2", None),
    ("9", None),
    ("1", b'{"item": "lamp", "price": 15}'),
]
"""A new key, two updates of a key, and tombstones of a known and of an unknown key."""

AFTER_CHANGES = [
    {"key": "1", "item": "lamp", "price": 15.0},
    {"key": "4", "item": "rug", "price": 70.0},
]


def start_after_a_kill(
    page: Mapping[str, Any], servers: str, topic: str, *writes: Callable[[Any, int], None]
) -> None:
    """Start the page's query again as after a kill between the table's commit and the
    checkpoint's: it repeats the last micro-batch, then it reads `CHANGES`. Each function is called
    twice for each micro-batch."""
    checkpoint = Path(page["folder"], "checkpoint")
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    with Producer({"bootstrap.servers": servers}) as producer:
        for key, value in CHANGES:
            producer.send(topic, value, key=key.encode())
    written = []

    def write_twice(batch: Any, batch_id: int) -> None:
        for write in writes:
            write(batch, batch_id)
            write(batch, batch_id)
        written.append(batch_id)

    query = (
        page["orders"]
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert written == [0, 1]  # 0 is the page's


def assert_a_record_without_a_key_is_an_error(page: Mapping[str, Any]) -> None:
    columns = "key string, value struct<item: string, price: double>, partition int, offset bigint"
    batch = page["spark"].createDataFrame([("1", None, 0, 6), (None, None, 0, 7)], columns)
    with pytest.raises(SparkRuntimeException, match="no key in partition 0 at offset 7"):
        page["latest"](batch).collect()
