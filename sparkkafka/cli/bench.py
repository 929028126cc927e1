"""`bench`: measure how fast this machine writes to a cluster and reads from it."""

from __future__ import annotations

import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import typer
from typer import Option

from sparkkafka.cli.commands import MAX_REPLICAS, AsJson, session_of, topic_names
from sparkkafka.cli.read import Bound, ReadPlan, TopicReader
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import print_json, print_table
from sparkkafka.cli.write import ProgressBar, producer_settings
from sparkkafka.client.producer.futures import TableDelivery
from sparkkafka.client.producer.producer import Producer
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.errors import OptionError
from sparkkafka.protocol.records.arrow import from_numpy

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True)
class Load:
    """The load of a benchmark: records of `size_bytes`, until `records` or `seconds` is reached.
    `partitions` and `replication` are those of a temporary topic; None is the broker's default."""

    records: int
    size_bytes: int
    seconds: float
    partitions: int
    replication: int | None = None


def _summary(
    records: int, seconds: float, size_bytes: int, latencies_s: list[float]
) -> dict[str, Any]:
    """Return the measures of writing, or of reading, for output. Latencies are those of batches."""
    # By nearest rank: measured latencies, never one between two.
    percentiles = np.percentile(latencies_s or [0.0], [50, 95, 99, 100], method="inverted_cdf")
    names = ("p50", "p95", "p99", "max")
    return {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_second": round(records / max(seconds, 1e-9)),
        "mb_per_second": round(size_bytes / max(seconds, 1e-9) / 1e6, 2),
        **{
            f"latency_{name}_ms": round(float(latency_s) * 1000, 2)
            for name, latency_s in zip(names, percentiles, strict=True)
        },
    }


def _random_records(load: Load) -> pa.RecordBatch:
    """Return a batch of up to 256 KB or 10,000 records, to be sent again and again. Its random
    values compress to three quarters of their size, like those of most topics."""
    rows = max(1, min(10_000, (256 << 10) // load.size_bytes, load.records))
    letters = np.random.default_rng().integers(32, 96, rows * load.size_bytes, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(load.size_bytes)
    buffers = [None, from_numpy(offsets).buffers()[1], pa.py_buffer(letters)]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers)
    return pa.RecordBatch.from_arrays([values], names=["value"])


def write_load(session: Session, topic: str, load: Load, progress: ProgressBar) -> dict[str, Any]:
    """Write the load to a topic as fast as brokers acknowledge it, and measure that. Raises the
    error of the first batch that fails."""
    batch = _random_records(load)
    latencies_s: list[float] = []
    deliveries: deque[TableDelivery] = deque()  # not acknowledged at the last check
    settings = producer_settings(session.timeout_s)
    if not session.has_timeout:  # a slow cluster is measured, too
        del settings["delivery.timeout.ms"]
    with session.admin(session.new_deadline()) as admin:
        admin.describe_topic(topic)  # raises if it is missing
    with Producer(settings | session.settings("producer")) as producer:
        producer.partitions_for(topic)  # connects
        started_at_s = time.perf_counter()
        sent = 0
        while sent < load.records and time.perf_counter() - started_at_s < load.seconds:
            rows = batch.slice(0, load.records - sent)
            sent_at_s = time.perf_counter()
            delivery = producer.send_table(rows, topic)

            def note_latency(_: object, sent_at_s: float = sent_at_s) -> None:
                latencies_s.append(time.perf_counter() - sent_at_s)

            delivery.add_callback(note_latency)
            deliveries.append(delivery)
            while deliveries and deliveries[0].done():
                deliveries.popleft().result()  # raises the batch's error
            sent += rows.num_rows
            progress.update(sent)
        producer.flush()
        for delivery in deliveries:
            delivery.result()
        seconds = time.perf_counter() - started_at_s
    return _summary(sent, seconds, sent * load.size_bytes, latencies_s)


def read_load(session: Session, topic: str, load: Load, progress: ProgressBar) -> dict[str, Any]:
    """Read the topic from its beginning, as many records as were written."""
    plan = ReadPlan(topic, until=Bound("latest"), count=load.records, seconds=load.seconds)
    latencies_s: list[float] = []
    records = size_bytes = 0
    with TopicReader(session.settings("consumer"), plan, session.timeout_s) as reader:
        reader.look_up_bounds()
        started_at_s = wait_began_at_s = time.perf_counter()
        for batch in reader.batches():
            latencies_s.append(time.perf_counter() - wait_began_at_s)
            records += batch.num_rows
            size_bytes += batch.column("value").nbytes + batch.column("key").nbytes
            progress.update(records)
            wait_began_at_s = time.perf_counter()
        seconds = time.perf_counter() - started_at_s
    return _summary(records, seconds, size_bytes, latencies_s)


@contextmanager
def temporary_topic(session: Session, load: Load) -> Iterator[str]:
    """Create a topic, and delete it at the end, also after an error."""
    from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic

    name = f"sparkkafka-bench-{uuid.uuid4().hex[:12]}"
    with session.admin(session.new_deadline()) as admin:
        new = NewTopic(name, load.partitions, load.replication or BROKER_DEFAULT)
        admin.create_topics([new]).all()
    try:
        yield name
    finally:
        with session.admin(session.new_deadline()) as admin:
            admin.delete_topics([name]).all()


@app.command("bench")
def bench(
    context: typer.Context,
    records: int = Option(100_000, min=1, help="Stop after this many records."),
    size: int = Option(100, min=1, max=100_000_000, help="Bytes of a value."),
    seconds: float = Option(
        30.0, metavar="SECONDS", min=0.1, help="Stop each direction after this time."
    ),
    partitions: int | None = Option(
        None, min=1, max=INT32_MAX, help="Partitions of the new topic.", show_default="1"
    ),
    replication: int | None = Option(
        None,
        min=1,
        max=MAX_REPLICAS,
        help="Replicas of the new topic.",
        show_default="the broker's",
    ),
    topic: str | None = Option(
        None, autocompletion=topic_names, help="Write to and read from this topic, and keep it."
    ),
    as_json: AsJson = False,
) -> None:
    """Measure the throughput and latency of writing to a cluster and reading from it.

    \b
      sparkkafka -b localhost:9092 bench                       100,000 records of 100 bytes
      sparkkafka -b localhost:9092 bench --records 1000000 --size 1000 --partitions 6
      sparkkafka --profile test bench --seconds 30 -X compression.type=zstd --json

    It creates a topic and deletes it at the end. With --topic it writes to that topic, and reads as
    many records from its beginning. The latency of a write is the time from the call to the
    acknowledgement of a batch of records, that of a read the wait for the next batch. MB/s are
    1,000,000 bytes of keys and values per second.
    """
    session = session_of(context)
    if topic is not None and (partitions is not None or replication is not None):
        raise OptionError("--partitions and --replication are for a new topic: remove --topic")
    if records * size > 100 << 30:
        raise OptionError(f"--records {records:,} of {size:,} bytes are more than 100 GB")
    load = Load(records, size, seconds, partitions or 1, replication)
    with nullcontext(topic) if topic is not None else temporary_topic(session, load) as name:
        with ProgressBar("write", sys.stderr.isatty(), load.records) as progress:
            written = write_load(session, name, load, progress)
        load = replace(load, records=written["records"])
        with ProgressBar("read", sys.stderr.isatty(), load.records) as progress:
            read = read_load(session, name, load, progress)
    results = {"write": written, "read": read}
    if as_json:
        print_json(results)
        return
    # A row for each measure: eight columns are wider than a terminal.
    rows = []
    for name, value in written.items():
        label = name.replace("_per_second", "/s").replace("mb", "MB").replace("_", " ")
        rows.append((label, value, read[name]))
    print_table(("measure", *results), rows)
