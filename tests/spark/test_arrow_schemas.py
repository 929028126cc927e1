"""Sail passes schemas of Arrow where Spark passes its own. tests/compat runs Sail itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkkafka.spark.datasource import KafkaDataSource
from sparkkafka.testing.fake.cluster import FakeCluster


def test_a_write_and_a_read_with_schemas_of_arrow(fake_cluster: FakeCluster) -> None:
    fake_cluster.create_topic("t")
    servers = {"kafka.bootstrap.servers": fake_cluster.bootstrap_servers}
    batch = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})
    schema: Any = batch.schema
    writer = KafkaDataSource({**servers, "topic": "t"}).writer(schema, False)
    writer.commit([writer.write(iter([batch]))])
    columns: Any = pa.schema({"value": pa.string(), "offset": pa.int64()})
    reader = KafkaDataSource({**servers, "subscribe": "t"}).reader(columns)
    (partition,) = reader.partitions()
    rows = [row for found in reader.read(partition) for row in found.to_pylist()]
    assert rows == [{"value": "1", "offset": 0}, {"value": "2", "offset": 1}]
