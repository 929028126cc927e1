"""`bench`: how fast this machine writes to and reads from the user's own cluster."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from sparkkafka.cli.commands import MAX_PARTITIONS, MAX_REPLICAS, session_of
from sparkkafka.cli.read import EARLIEST, LATEST, Place, ReadPlan, TopicReader
from sparkkafka.cli.session import DEFAULT_TIMEOUT_S, Session
from sparkkafka.cli.tables import print_json, print_table
from sparkkafka.cli.write import bounded
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkkafka.client.producer.tables import TableDelivery

app = typer.Typer(rich_markup_mode=None)

HELP: Final = """Measure writing to a cluster and reading from it, within bounds.

\b
  sparkkafka -b localhost:9092 bench                       100,000 records of 100 bytes
  sparkkafka -b localhost:9092 bench --records 1000000 --size 1000 --partitions 6
  sparkkafka --profile test bench --seconds 30 -X compression.type=zstd --json

It makes a topic of its own and deletes it. --topic names another: it is written to, and as many
records are read from its beginning. Latency is from handing a
batch of records over to their acknowledgement, or from asking to having a batch. Batches are of
512 KB, unless -X batch.size says something else.
"""

_BATCH_BYTES: Final = 256 << 10
_MAX_BATCH_ROWS: Final = 10_000
_PERCENTILES: Final = (50, 95, 99, 100)
_MAX_BYTES: Final = 100 << 30


@dataclass(frozen=True)
class Load:
    """What is written. Ends with `records` or `seconds`, whichever comes first."""

    records: int
    size_bytes: int
    seconds: float
    partitions: int
    replication: int | None = None


@dataclass(frozen=True)
class Measured:
    """One direction. Latencies are of batches, in ms: the percentiles 50, 95, 99 and the worst."""

    records: int
    seconds: float
    bytes: int
    latency_ms: tuple[float, ...]

    @property
    def row(self) -> dict[str, Any]:
        seconds = max(self.seconds, 1e-9)
        names = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_max_ms")
        return {
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.records / seconds),
            "mb_per_second": round(self.bytes / seconds / 1e6, 2),
            **{name: round(ms, 2) for name, ms in zip(names, self.latency_ms, strict=True)},
        }


def _measured(records: int, size_bytes: int, seconds: float, latencies: list[float]) -> Measured:
    # The nearest rank: a latency that was measured, and not one between two.
    ordered = sorted(latencies) or [0.0]
    ranks = [max(0, -(-len(ordered) * percent // 100) - 1) for percent in _PERCENTILES]
    return Measured(
        records, seconds, records * size_bytes, tuple(ordered[rank] * 1000 for rank in ranks)
    )


def _batch(load: Load) -> pa.RecordBatch:
    """Values that a codec makes three quarters of, as text in most topics."""
    import pyarrow as pa

    from sparkkafka.protocol.records.arrow import from_numpy

    rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // load.size_bytes, load.records))
    letters = np.random.default_rng().integers(32, 96, rows * load.size_bytes, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(load.size_bytes)
    buffers = [None, from_numpy(offsets).buffers()[1], pa.py_buffer(letters)]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers)
    return pa.RecordBatch.from_arrays([values], names=["value"])


def write_load(session: Session, topic: str, load: Load) -> Measured:
    """Writes the load as fast as it is acknowledged."""
    from sparkkafka.client.producer.producer import Producer

    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
    batch = _batch(load)
    latencies: list[float] = []
    handles: list[TableDelivery] = []
    settings = bounded(timeout_s)
    if session.timeout_s is None:  # a slow cluster is to be measured, not given up
        del settings["delivery.timeout.ms"]
    with session.admin(Deadline(timeout_s * 1000)) as admin:
        admin.describe_topic(topic)
    with Producer(settings | session.settings("producer")) as producer:
        producer.partitions_for(topic)  # connects
        begun_s = time.perf_counter()
        sent = 0
        while sent < load.records and time.perf_counter() - begun_s < load.seconds:
            rows = batch.slice(0, load.records - sent)
            handed_s = time.perf_counter()
            handle = producer.send_table(rows, topic)
            handle.add_callback(_noting(latencies, handed_s))
            handles = [one for one in handles if not _is_written(one)] + [handle]
            sent += rows.num_rows
        producer.flush()
        for handle in handles:
            handle.result()
        seconds = time.perf_counter() - begun_s
    return _measured(sent, load.size_bytes, seconds, latencies)


def _noting(latencies: list[float], since_s: float) -> Callable[[object], None]:
    return lambda _: latencies.append(time.perf_counter() - since_s)


def _is_written(handle: TableDelivery) -> bool:
    """False while it is under way. Raises its error."""
    if not handle.done():
        return False
    handle.result()
    return True


def read_load(session: Session, topic: str, load: Load, start: Place) -> Measured:
    """Reads what is there, up to as much as was written."""
    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S
    plan = ReadPlan(
        topic, start=start, until=Place(LATEST), count=load.records, seconds=load.seconds
    )
    latencies: list[float] = []
    records = 0
    size_bytes = 0
    with TopicReader(session.settings("consumer"), plan, timeout_s) as reader:
        reader.bind()
        begun_s = asked_s = time.perf_counter()
        for batch in reader.batches():
            latencies.append(time.perf_counter() - asked_s)
            records += batch.num_rows
            size_bytes += batch.column("value").nbytes + batch.column("key").nbytes
            asked_s = time.perf_counter()
        seconds = time.perf_counter() - begun_s
    found = _measured(records, 0, seconds, latencies)
    return dataclasses.replace(found, bytes=size_bytes)


@contextmanager
def own_topic(session: Session, load: Load) -> Iterator[str]:
    """A new topic, deleted at the end, also after an error."""
    from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic

    name = f"sparkkafka-bench-{uuid.uuid4().hex[:12]}"
    timeout_s = session.timeout_s or DEFAULT_TIMEOUT_S

    def deadline() -> Deadline:
        return Deadline(timeout_s * 1000)

    with session.admin(deadline()) as admin:
        new = NewTopic(name, load.partitions, load.replication or BROKER_DEFAULT)
        admin.create_topics([new]).all()
    try:
        yield name
    finally:
        with session.admin(deadline()) as admin:
            admin.delete_topics([name]).all()


@app.command("bench", help=HELP)
def bench(
    context: typer.Context,
    records: Annotated[
        int, typer.Option("--records", min=1, help="Stop after so many records.")
    ] = 100_000,
    size: Annotated[
        int, typer.Option("--size", min=1, max=100_000_000, help="Bytes of a value.")
    ] = 100,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Stop each direction after this time.")
    ] = 30.0,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, max=MAX_PARTITIONS, help="Of the new topic. [default: 1]"
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            min=1,
            max=MAX_REPLICAS,
            help="Replicas of the new topic. [default: broker's]",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Write to and read from this topic, and keep it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    session = session_of(context)
    if topic is not None and (partitions is not None or replication is not None):
        raise OptionError("--partitions and --replication are for a new topic: remove --topic")
    if records * size > _MAX_BYTES:
        raise OptionError(
            f"--records {records:,} of {size:,} bytes are more than {_MAX_BYTES >> 30} GB"
        )
    load = Load(records, size, seconds, partitions or 1, replication)
    if topic is not None:
        found = _both(session, topic, load)
    else:
        with own_topic(session, load) as name:
            found = _both(session, name, load)
    if as_json:
        print_json({name: measured.row for name, measured in found.items()})
        return
    # A row for each measure: eight headings beside each other are wider than a terminal.
    sides = [measured.row for measured in found.values()]
    rows = [(name.replace("_", " "), *(side[name] for side in sides)) for name in sides[0]]
    print_table(("measure", *found), rows)


def _both(session: Session, topic: str, load: Load) -> dict[str, Measured]:
    written = write_load(session, topic, load)
    there = dataclasses.replace(load, records=written.records)
    return {"write": written, "read": read_load(session, topic, there, Place(EARLIEST))}
