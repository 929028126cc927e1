"""`copy`: copy the records of a topic into another, of the same cluster or of another one."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from typer import Argument, Option

from sparkkafka.cli import commands
from sparkkafka.cli.read import Bound, ReadPlan, TopicReader, parse_bound
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import print_note
from sparkkafka.cli.write import ProgressBar, TopicWriter
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.errors import ErrorCode, KafkaError, OptionError, UnknownTopicError, counted
from sparkkafka.protocol.records.arrow import from_numpy, to_numpy

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class RateLimit(NamedTuple):
    """Limits a copy to this number of records per second, or of bytes (`of_bytes`)."""

    per_second: float
    of_bytes: bool

    def pace(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches in slices of at most a tenth of a second (at least one record). Wait
        before each as long as the rate requires."""
        due_at_s = 0.0  # the first slice is due at once
        for batch in batches:
            units = float(batch.num_rows)
            if self.of_bytes:
                units = batch.nbytes + 20 * batch.num_rows  # 20: a record's other fields
            seconds = units / self.per_second
            count = max(1, min(batch.num_rows, round(10 * seconds)))
            rows = -(-batch.num_rows // count)
            for start in range(0, batch.num_rows, rows):
                due_at_s = due_at_s or time.monotonic()
                time.sleep(max(0.0, due_at_s - time.monotonic()))
                part = batch.slice(start, rows)
                due_at_s += seconds * part.num_rows / batch.num_rows
                yield part


def parse_rate(text: str) -> RateLimit:
    """Parse 1000 (records a second), or 5MB or 500KB (bytes a second). Raises OptionError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]?B)?(?:/s)?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise OptionError(
            f"--rate-limit is records a second, as 1000, or bytes, as 500KB or 5MB; got {text!r}"
        )
    unit = (match[2] or "").upper()
    factor = {"KB": 10**3, "MB": 10**6, "GB": 10**9}.get(unit, 1)
    return RateLimit(float(match[1]) * factor, bool(unit))


def copy_topic(
    session: Session,
    plan: ReadPlan,
    target: Session,
    to_topic: str,
    *,
    by_key: bool = False,
    rate: RateLimit | None = None,
    new_topic: NewTopic | None = None,
) -> None:
    """Copy the records of a plan to the topic `to_topic` of the session `target`; at the end all
    are acknowledged. `new_topic` is created if `to_topic` does not exist.

    Raises OptionError if the target has too few partitions, and as read and write do.
    """
    timeout_s = session.timeout_s
    with ExitStack() as stack:
        reader = stack.enter_context(TopicReader(session.settings("consumer"), plan, timeout_s))
        progress = stack.enter_context(
            ProgressBar(f"copy {plan.topic} to {to_topic}", sys.stderr.isatty())
        )
        reader.look_up_bounds()
        progress.total = sum(reader.ends[tp] - reader.positions[tp] for tp in reader.ends) or None
        with target.admin(session.new_deadline()) as admin:
            if new_topic is not None:
                _create_missing(admin, new_topic)
            try:
                count = len(admin.describe_topic(to_topic).partitions)
            except UnknownTopicError as error:
                raise KafkaError(
                    f"topic {to_topic} does not exist, or you may not see it: check its name; "
                    f"--create creates it like {plan.topic}"
                ) from error
        needed = max((tp.partition for tp in reader.positions), default=0) + 1
        if not by_key and count < needed:
            raise OptionError(
                f"topic {to_topic} has {counted(count, 'partition')}, and no partition "
                f"{needed - 1} for the source's records: add partitions, or give --by-key"
            )
        writer = stack.enter_context(TopicWriter(target.settings("producer"), to_topic, timeout_s))
        batches = (_record_columns(batch, by_key) for batch in reader.batches())
        for batch in batches if rate is None else rate.pace(batches):
            writer.send(batch)
            progress.update(writer.sent)
    print_note(f"{counted(writer.written, 'record')} copied from {plan.topic} to {to_topic}")


def _new_topic_like(admin: Admin, source: str, name: str, replication_factor: int) -> NewTopic:
    """Return a new topic with the partition count of the source, and with the settings that were
    set for it."""
    resource = ConfigResource("topic", source)
    partitions = len(admin.describe_topic(source).partitions)
    entries = admin.describe_configs([resource]).all()[resource]
    # Settings with this ending name partitions and brokers of the source's cluster.
    configs = {
        name: entry.value
        for name, entry in entries.items()
        if entry.source == "DYNAMIC_TOPIC_CONFIG"
        and entry.value is not None
        and not name.endswith(".replication.throttled.replicas")
    }
    return NewTopic(name, partitions, replication_factor, configs=configs)


def _create_missing(admin: Admin, new_topic: NewTopic) -> None:
    """Create the topic if it does not exist, and say so."""
    results = admin.create_topics([new_topic])
    error = results.errors.get(new_topic.name)
    if error is None or error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        results.all()
        settings = f" and {', '.join(f'{k}={v}' for k, v in new_topic.configs.items())}"
        print_note(
            f"topic {new_topic.name} was created with "
            f"{counted(new_topic.partitions, 'partition')}{settings if new_topic.configs else ''}"
        )
    else:
        print_note(f"topic {new_topic.name} exists: records are added to those that it has")


def _cluster_id(session: Session) -> str | None:
    with session.admin(session.new_deadline()) as admin:
        return admin.describe_cluster().cluster_id


def _record_columns(batch: pa.RecordBatch, by_key: bool) -> pa.RecordBatch:
    """Return the columns of a batch that are written. `by_key`: without the partition, so that the
    target's partitioner chooses it. A record without a timestamp gets null, the time of writing."""
    names = ["key", "value", "headers", "timestamp"] + ([] if by_key else ["partition"])
    rows = batch.select(names)
    times = to_numpy(batch.column("timestamp").view(pa.int64()))
    if (times < 0).any():
        column = rows.column("timestamp")
        null = pa.nulls(1, column.type)[0]
        column = pc.if_else(from_numpy(np.asarray(times >= 0)), column, null)
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", column)
    return rows


@app.command("copy")
def copy(
    context: typer.Context,
    source: Annotated[
        str,
        Argument(metavar="SOURCE", help="The topic to read.", autocompletion=commands.topic_names),
    ],
    to_topic: Annotated[
        str,
        Argument(metavar="TARGET", help="The topic to write.", autocompletion=commands.topic_names),
    ],
    to_servers: str | None = Option(
        None, "--to-bootstrap-server", metavar="HOST:PORT,…", help="The cluster to write to."
    ),
    to_profile: str | None = Option(
        None,
        metavar="NAME",
        autocompletion=commands.profile_names,
        help="The profile of the cluster to write to.",
    ),
    create: bool = Option(
        False,
        "--create",
        help="If TARGET does not exist, create it with SOURCE's partition count and settings.",
    ),
    replication_factor: int | None = Option(
        None,
        min=1,
        max=commands.MAX_REPLICAS,
        help="Number of replicas of a topic that --create creates.",
        show_default="the broker's",
    ),
    start: str = Option("earliest", "-o", "--from", metavar="START", help="As in `read`."),
    until: str = Option("end", metavar="END", help="end, an offset, or @TIME."),
    follow: bool = Option(False, "--follow", help="Keep copying until Ctrl-C."),
    count: commands.Count = None,
    partitions: commands.Partitions = None,
    by_key: bool = Option(
        False,
        "--by-key",
        help="Choose the partition by the key; by default a record keeps its own.",
    ),
    rate_limit: str | None = Option(
        None, metavar="RATE", help="Maximum per second: records (1000) or bytes (5MB)."
    ),
) -> None:
    """Copy the records of a topic into another, with keys, headers and timestamps.

    \b
      sparkkafka -b one:9092 copy orders orders-test
      sparkkafka -b one:9092 copy orders orders --to-bootstrap-server two:9092 --rate-limit 5MB
      sparkkafka --profile prod copy orders orders --to-profile test --create --from -1000

    With --create a missing target gets SOURCE's partition count and the settings that were set for
    SOURCE. MB are 1,000,000 bytes. The copy ends at the current end of the topic (with --follow
    never), once all records are acknowledged.
    """
    session = commands.session_of(context)
    if to_servers is not None and to_profile is not None:
        raise OptionError("--to-bootstrap-server and --to-profile exclude each other: remove one")
    if replication_factor is not None and not create:
        raise OptionError("--replication-factor is for --create: give that too")
    end: Bound | None = parse_bound(until, "--until")
    if follow:
        if end != Bound("latest"):
            raise OptionError("--follow and --until exclude each other: remove one")
        end = None
    target = session
    if to_servers is not None or to_profile is not None:
        target = Session()
        if to_servers is not None:
            target.set_option("bootstrap_server", to_servers)
        if to_profile is not None:
            target.set_option("profile", to_profile)
    plan = ReadPlan(
        topic=source,
        partitions=None
        if partitions is None
        else commands.parse_partitions(partitions, "--partitions"),
        start=parse_bound(start, "--from"),
        until=end,
        count=count,
    )
    if source == to_topic and (target is session or _cluster_id(session) == _cluster_id(target)):
        raise OptionError(
            f"{source} would be copied into itself: name another topic, or another cluster with "
            "--to-bootstrap-server or --to-profile"
        )
    new_topic = None
    if create:
        with session.admin() as admin:
            replicas = replication_factor or BROKER_DEFAULT
            new_topic = _new_topic_like(admin, source, to_topic, replicas)
    copy_topic(
        session,
        plan,
        target,
        to_topic,
        by_key=by_key,
        rate=None if rate_limit is None else parse_rate(rate_limit),
        new_topic=new_topic,
    )
