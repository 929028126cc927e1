"""What Spark's short-lived Python processes import: they start anew for each query or task, so what
they do not need they must not load."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

HEAVY = ("numpy", "pandas", "pyarrow")


def loaded_by(code: str, data: bytes = b"") -> set[str]:
    """The heavy modules that a new Python has loaded after it ran `code`."""
    report = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        input=data,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return set(run.stdout.decode().split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import sparkkafka",
        "from sparkkafka.spark.datasource import KafkaDataSource as K; K({}).schema()",
        # Planning a read talks to brokers, so the client is loaded, but no codec of records, and no
        # messages of groups.
        """
import sparkkafka.spark.read.reader
import sparkkafka.spark.stream.planner
import sys
assert "sparkkafka.protocol.messages.groups" not in sys.modules
""",
        # Planning and committing a write need neither codec nor client, but for one connection.
        """
from pyspark.sql.types import StructType
from sparkkafka.spark.datasource import KafkaDataSource
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}", "topic": "t"}
    writer = KafkaDataSource(options).writer(StructType().add("value", "string"), False)
writer.commit([])
import sys
assert "sparkkafka.client.cluster.cluster" not in sys.modules
""",
        """
from pyspark.sql.types import StructType
from sparkkafka.spark.datasource import KafkaDataSource
options = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}
writer = KafkaDataSource(options).streamWriter(StructType().add("value", "string"), False)
writer.commit([], 0)
import sys
assert "sparkkafka.client.cluster.cluster" not in sys.modules
""",
    ],
)
def test_the_driver_s_processes_stay_light(code: str) -> None:
    assert loaded_by(code) == set()


@pytest.mark.slow
def test_tasks_with_a_schema_do_without_pandas() -> None:
    pytest.importorskip("pandas")
    assert loaded_by(TYPED) == {"numpy", "pyarrow"}


@pytest.mark.slow
def test_tasks_do_without_pandas() -> None:
    """pyarrow imports pandas for `pa.array(ndarray)` and `to_numpy`: half a second a worker."""
    pytest.importorskip("pandas")
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "key": pa.array([b"a", None, b"c"]),
            "value": pa.array([b"x", b"yy", None]),
            "partition": pa.array([None, 2, None], pa.int32()),
            "topic": pa.array(["t", "u", "t"]),
            "headers": pa.array([[("h", b"1")], None, []], headers),
        }
    )
    sink = pa.BufferOutputStream()  # made here: pa.array of a list imports pandas as well
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    loaded = loaded_by(ROUND_TRIP, sink.getvalue().to_pybytes())
    assert loaded == {"numpy", "pyarrow"}


ROUND_TRIP = """
import sys
import pyarrow as pa
import sparkkafka.spark.read.read_task as read_task
import sparkkafka.spark.write.write_task
from sparkkafka.protocol.columns.columns import Selection
from sparkkafka.protocol.columns.decode import decode_batches
from sparkkafka.protocol.columns.encode import encode_batches, sliced
from sparkkafka.protocol.records.batches import batch_parts, split_batches
from sparkkafka.client.consumer.record import RecordBlock
from sparkkafka.client.arguments import InputColumns
from sparkkafka.client.producer.producer_records import InputRows
from sparkkafka.client.producer.partitioner import Partitioner
from sparkkafka.config.options import ProducerOptions
from sparkkafka.spark.schema import default_columns

batch = pa.ipc.open_stream(sys.stdin.buffer).read_next_batch()
columns = InputColumns(key=0, value=1, partition=2, topic=3, headers=4)
router = Partitioner(ProducerOptions(), lambda names: dict.fromkeys(names, 3), sticky_bytes=100)
columns_of_a_read = default_columns(True)
rows = 0
partitioned = router.partition_rows(InputRows.of(batch, columns), 1000)
low = 0
for tp, high in zip(partitioned.tps, partitioned.run_ends):
    data = b""
    for encoded in encode_batches(sliced(partitioned.columns, low, high), max_batch_bytes=1000):
        data += b"".join(batch_parts(encoded))
    low = high
    shaper = read_task.BatchShaper(tp, columns_of_a_read)
    decoded = decode_batches(split_batches(data), Selection(0, 10))
    for shaped in shaper.batches(decoded):
        rows += shaped.num_rows
    for record in RecordBlock(tp, decoded, 10).records(0, len(decoded)):  # what poll gives
        assert record.headers in ((), (("h", b"1"),))
assert rows == 3
# Declaring Admin's messages takes a quarter of the time of importing what a write needs.
assert "sparkkafka.protocol.messages.admin" not in sys.modules
assert "sparkkafka.protocol.messages.groups" not in sys.modules
"""

TYPED = """
import numpy as np
import pyarrow as pa
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.options import parse_read_options
from sparkkafka.protocol.columns.columns import DecodedRecords
from sparkkafka.protocol.records.arrow import binary_array
from sparkkafka.schemas.avro import format as avro
from sparkkafka.schemas.column import ColumnEncoder, ColumnPlan, EncodePlan
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.values import Schema
from sparkkafka.spark.read.read_task import BatchShaper
from sparkkafka.spark.read.decoding import BAD_RECORD_ARROW_TYPE, TaskDecoder
from sparkkafka.spark.schema import ReadColumn

text = '''{"type": "record", "name": "R", "fields": [
    {"name": "a", "type": "long"}, {"name": "b", "type": ["null", "string"]}]}'''
schema = Schema("avro", text)
kind = avro.arrow_type(schema)
options = parse_read_options({
    "kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t", "valueFormat": "avro",
    "valueSchema": text, "onBadRecord": "column",
})
plan = ColumnPlan("value", "avro", "confluent", schema, kind, schema_id=7)
columns = (
    ReadColumn("value", arrow_type=kind, plans=(("t", plan),)),
    ReadColumn("bad_record", arrow_type=BAD_RECORD_ARROW_TYPE),
)
payloads = binary_array([bytes([0, 0, 0, 0, 7, 4, 2, 2, 120]), bytes([0, 0, 0, 0, 7]), None, b"?"])
records = DecodedRecords(np.arange(4), np.arange(4), np.zeros(4, np.int32), None, payloads, None)
with TaskDecoder(options, options.formats, columns) as decoder:
    shaper = BatchShaper(TopicPartition("t", 0), columns, decoder=decoder)
    (batch,) = shaper.batches(records)
assert batch.column(0)[0].as_py() == {"a": 2, "b": "x"}, batch
assert batch.column(1).null_count == 2
encoder = ColumnEncoder(EncodePlan("value", "avro", "confluent", schema, WriterId(7)))
assert encoder.encode(batch.column(0), None)[0][0].as_py() == payloads[0].as_py()
"""
