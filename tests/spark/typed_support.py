"""A topic with framed records, a registry, and the options of a read of both."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from sparkkafka.protocol.columns.columns import HEADERS_TYPE
from sparkkafka.protocol.columns.encode import RecordColumns, encode_batches
from sparkkafka.protocol.records.batches import batch_parts
from sparkkafka.spark.datasource import KafkaDataSource
from tests.schemas.small_registry import SmallRegistry
from tests.spark.schemas import arrow_schema_of

ORDER_1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
ORDER_2 = {
    **ORDER_1,
    "fields": [
        *ORDER_1["fields"],
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def struct(**fields: DataType) -> StructType:
    made = StructType()
    for name, kind in fields.items():
        made.add(name, kind)
    return made


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


class Topics:
    """Records into the fake cluster, and options of a read."""

    def __init__(self, cluster: Any, registry: SmallRegistry) -> None:
        self.cluster, self.registry = cluster, registry

    def put(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Any] | None = None,
        partition: int = 0,
    ) -> None:
        columns = RecordColumns(
            None if keys is None else pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            None if headers is None else pa.array(headers, HEADERS_TYPE),
            np.full(len(values), 1_700_000_000_000, np.int64),
        )
        for batch in encode_batches(columns, max_batch_bytes=2**20):
            data = b"".join(batch_parts(batch))
            self.cluster.append(topic, partition, data, assign_offsets=True)

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "subscribe": topic,
            "valueFormat": "avro",
            "schema.registry.url": self.registry.url,
            **more,
        }

    def json_changes(self, topic: str, **more: str) -> dict[str, str]:
        """Options of a read of Debezium's changes as JSON, without a registry."""
        options = self.options(topic, valueFormat="json", envelope="debezium", **more)
        del options["schema.registry.url"]
        return options

    def read(
        self, options: dict[str, str], schema: StructType | None = None
    ) -> list[dict[str, Any]]:
        """As Spark does: schema, reader, and a pickled copy of it in a task."""
        source = KafkaDataSource(options)
        if schema is None:
            schema = StructType.fromJson(json.loads(KafkaDataSource(options).schema().json()))
        reader = source.reader(schema)
        rows: list[dict[str, Any]] = []
        for partition in reader.partitions():
            copy = pickle.loads(pickle.dumps(reader))
            for batch in copy.read(partition):
                assert arrow_schema_of(schema).equals(batch.schema)
                batch.validate(full=True)
                rows += batch.to_pylist()
        return rows
