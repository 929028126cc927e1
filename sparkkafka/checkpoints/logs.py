"""What Spark's checkpoint of a streaming query says: which batch was planned, which is finished.

Layout, of Spark 2 to 4.3 (OffsetSeqLog, CommitLog, StreamMetadata in Spark's sources):

    metadata       {"id": "<query id>"}
    offsets/N      "v1", a line of JSON about the batch, then one line for each source: where
                   batch N ends; "-" for a source that has no offset yet. In "v2" a line begins
                   with the source's name and a colon. Written before batch N runs.
    commits/N      "v1" or "v2" and a line of JSON. Written when batch N is finished.
    sources/I/0    where a query of the JVM connector began (source I)
    state/         what stateful operators keep

A line of Kafka's is {"topic": {"0": 23}}, from this connector and from the JVM connector.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from sparkkafka.checkpoints.storage import Entry, Storage, storage_of
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.source import offsets_of_tree, tree_of_offsets
from sparkkafka.errors import CheckpointError, OptionError, some

MAX_METADATA_BYTES = 1 << 16  # Spark writes some 50

OFFSETS, COMMITS, METADATA, SOURCES, STATE = "offsets", "commits", "metadata", "sources", "state"

NO_OFFSET_TEXT = "-"
NEWEST_VERSION = 2
MAX_BATCH_DIGITS = 18  # so a number of a batch fits into Java's long
_BATCH = re.compile(rf"[0-9]{{1,{MAX_BATCH_DIGITS}}}")
_VERSION = re.compile(r"v([0-9]{1,9})")
_SHOWN = 100  # characters of what cannot be read, in an error

Offsets = Mapping[TopicPartition, int]


class SourceOffsets(NamedTuple):
    """One source's line in a plan. `name` is its place, or in version 2 its name.

    `text` is the line as it stands. `offsets` is None for a source that is not Kafka's.
    """

    name: str
    text: str
    offsets: Offsets | None

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({tp.topic for tp in self.offsets or ()}))

    @property
    def may_be_kafka(self) -> bool:
        """Whether it is Kafka's, or has not said anything yet."""
        return self.offsets is not None or self.text == NO_OFFSET_TEXT


@dataclass(frozen=True)
class Plan:
    """A file of offsets/: up to where a batch reads. `about` is its line of JSON, parsed."""

    batch_id: int
    version: int
    about_text: str
    about: Mapping[str, Any] = field(compare=False)
    sources: tuple[SourceOffsets, ...] = ()

    @property
    def planned_ms(self) -> int | None:
        """When the batch was planned, in ms since 1970; None if the file does not say so."""
        return _positive(self.about.get("batchTimestampMs"))

    @property
    def watermark_ms(self) -> int | None:
        """The watermark with which the batch ran, in ms since 1970; None without a watermark."""
        return _positive(self.about.get("batchWatermarkMs"))

    def source(self, name: str) -> SourceOffsets | None:
        return next((one for one in self.sources if one.name == name), None)

    def text(self) -> str:
        """The file's content."""
        lines = [f"v{self.version}", self.about_text]
        named = self.version >= 2
        lines += (f"{one.name}:{one.text}" if named else one.text for one in self.sources)
        return "\n".join(lines)


@dataclass(frozen=True)
class Commit:
    """A file of commits/: the batch is finished."""

    batch_id: int
    version: int
    text: str
    """The whole file."""
    about: Mapping[str, Any] = field(compare=False)

    @property
    def next_watermark_ms(self) -> int | None:
        return _positive(self.about.get("nextBatchWatermarkMs"))


class NextStart(NamedTuple):
    """What a query does when it is started with this checkpoint.

    "new": it begins where its options say (`initial` where a JVM source noted that). "again": batch
    `batch_id` was planned and is not finished: it runs again, to the same end. "on": it plans batch
    `batch_id`, which begins where the last one ended. `start` is the plan that says from where.
    """

    kind: Literal["new", "again", "on"]
    batch_id: int
    start: Plan | None
    end: Plan | None = None


class Checkpoint:
    """The checkpoint of a streaming query, in a folder or at a URL.

        checkpoint = Checkpoint("/data/checkpoints/orders")   # or s3://, gs://, abfss://, hdfs://
        checkpoint.plan(checkpoint.planned[-1]).sources[0].offsets

    Files are read when they are asked for, and never changed here. What was listed stays as it
    was; `again()` looks anew. Raises CheckpointError where there is no checkpoint, and for each
    file that cannot be read, which it names.
    """

    def __init__(self, location: str | Path, *, filesystem: Any = None) -> None:
        """`filesystem` is a pyarrow.fs.FileSystem, in which `location` is a path."""
        self._list(storage_of(location, filesystem))

    def again(self) -> Checkpoint:
        """The same checkpoint as it is now."""
        other = object.__new__(Checkpoint)
        other._list(self.storage)
        return other

    def _list(self, storage: Storage) -> None:
        self.storage = storage
        top = storage.entries()
        self.names = {one.name for one in top}
        if not self.names & {OFFSETS, METADATA}:
            raise CheckpointError(
                f"{storage.at()} is not the checkpoint of a query: there is neither {METADATA} nor "
                f"{OFFSETS}/ in it" + ("" if top else " (it is empty, or not there)")
            )
        self.offset_files = storage.entries(OFFSETS)
        self.commit_files = storage.entries(COMMITS)
        self.planned = _numbers(self.offset_files)
        """The batches that were planned and whose files Spark still keeps, ascending."""
        self.committed = _numbers(self.commit_files)
        """Those that are finished, as far as Spark keeps it, ascending."""

    def __repr__(self) -> str:
        return f"<Checkpoint {self.storage.at()}>"

    @property
    def location(self) -> str:
        return self.storage.at()

    @property
    def query_id(self) -> str:
        where, content = self.storage.at(METADATA), self.storage.read(METADATA)
        if content is None:
            raise CheckpointError(
                f"{where} is not there: Spark would give the query a new id, by which sinks "
                "do not know their batches. Copy it back from a backup"
            )
        if len(content) > MAX_METADATA_BYTES:
            raise CheckpointError(f"{where} holds no id of a query: it has {len(content):,} bytes")
        found = _json(_text(content, where).strip(), where)
        identity = found.get("id") if isinstance(found, dict) else None
        if not isinstance(identity, str) or not identity:
            raise CheckpointError(f"{where} holds no id of a query: {shortened(content)}")
        return identity

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state: aggregates, joins, what deduplication has seen."""
        return STATE in self.names and bool(self.storage.entries(STATE))

    def plan(self, batch_id: int) -> Plan:
        """Raises CheckpointError if the file is torn, not there, or not what Spark writes."""
        name = f"{OFFSETS}/{batch_id}"
        return parse_plan(batch_id, self._content(name), self.storage.at(name))

    def commit(self, batch_id: int) -> Commit:
        """Raises as `plan`."""
        name = f"{COMMITS}/{batch_id}"
        return parse_commit(batch_id, self._content(name), self.storage.at(name))

    def initial(self, source: str) -> Offsets | None:
        """Where a query of the JVM connector began; None if it says nothing of that."""
        name = f"{SOURCES}/{source}/0"
        content = self.storage.read(name)
        # KafkaSourceInitialOffsetWriter: a zero byte (SPARK-19517), "v1", the offsets.
        if content is None or not content.startswith(b"\0v"):
            return None
        lines = _text(content[1:], self.storage.at(name)).split("\n", 1)
        return None if len(lines) < 2 else kafka_offsets(lines[1])

    def next_start(self) -> NextStart:
        """What the next start does, by Spark's rules (MicroBatchExecution.populateStartOffsets).

        Raises CheckpointError if files that Spark reads then are torn or missing.
        """
        if not self.planned:
            return NextStart("new", 0, None)
        last = self.planned[-1]
        plan = self.plan(last)
        # Spark reads it in any case, and does not start without it.
        before = self.plan(last - 1) if last > 0 else None
        for one in no_longer_kafka(before, plan):
            where = self.storage.at(f"{OFFSETS}/{last}")
            words = NO_LONGER_KAFKA.format(one.name, shortened(one.text))
            raise CheckpointError(f"{where} is damaged: {words}")
        if self.committed and self.committed[-1] == last:
            self.commit(last)
            return NextStart("on", last + 1, plan)
        return NextStart("again", last, before, plan)

    def _content(self, name: str) -> bytes:
        content = self.storage.read(name)
        if content is None:
            raise CheckpointError(f"{self.storage.at(name)} is not there")
        return content


def no_longer_kafka(before: Plan | None, plan: Plan) -> list[SourceOffsets]:
    """Sources that have Kafka's offsets in the plan before, and something else in this one: Spark
    gives a query's sources in the same order each time, so it is damage."""
    found = []
    for old in before.sources if before is not None else ():
        now = plan.source(old.name)
        if old.offsets is None or now is None or now.offsets is not None:
            continue
        if now.text != NO_OFFSET_TEXT:
            found.append(now)
    return found


NO_LONGER_KAFKA = "source {} has offsets of Kafka in the plan before, and none here: {}"


def starting_offsets(checkpoint: Checkpoint, start: NextStart) -> dict[str, Offsets]:
    """From where the next batch reads, by source; empty for a source of which nothing says so."""
    if start.start is not None:
        return {one.name: one.offsets for one in start.start.sources if one.offsets is not None}
    # No batch is finished: a source of the JVM connector has noted where it begins.
    sources = start.end.sources if start.end is not None else ()
    found = {one.name: checkpoint.initial(one.name) for one in sources if one.offsets is not None}
    return {name: offsets for name, offsets in found.items() if offsets is not None}


# --- parsing ------------------------------------------------------------------------------------


def parse_plan(batch_id: int, content: bytes, where: str) -> Plan:
    """A file of offsets/. Raises CheckpointError, which begins with `where`."""
    # Spark writes no line end after the last line, and reads as many lines as there are.
    lines = _text(content, where).removesuffix("\n").split("\n")
    version = _version(lines[0], where)
    if len(lines) < 3:
        raise _torn(where, content)
    about = _json(lines[1], where) if lines[1].strip() else {}
    if not isinstance(about, dict):
        raise CheckpointError(f"{where}: its second line is no JSON object: {shortened(lines[1])}")
    sources = []
    for place, line in enumerate(lines[2:]):
        name = str(place)
        if version >= 2:
            name, colon, line = line.partition(":")
            if not colon:
                raise CheckpointError(
                    f"{where}: a line without the name of a source: {shortened(name)}"
                )
        offsets = None
        if line != NO_OFFSET_TEXT:
            # Any source's offset is JSON.
            _json(line, where)
            offsets = kafka_offsets(line)
        sources.append(SourceOffsets(name, line, offsets))
    if len({one.name for one in sources}) < len(sources):
        raise CheckpointError(f"{where}: a source is there twice")
    return Plan(batch_id, version, lines[1], about, tuple(sources))


def parse_commit(batch_id: int, content: bytes, where: str) -> Commit:
    """A file of commits/. Raises CheckpointError, which begins with `where`."""
    text = _text(content, where)
    lines = text.removesuffix("\n").split("\n")
    version = _version(lines[0], where)
    about = _json(lines[1], where) if len(lines) > 1 and lines[1].strip() else {}
    if not isinstance(about, dict):
        raise CheckpointError(f"{where}: its second line is no JSON object: {shortened(lines[1])}")
    return Commit(batch_id, version, text, about)


def kafka_offsets(text: str) -> Offsets | None:
    """The offsets in a source's line; None if it is not of a Kafka source."""
    try:
        tree = json.loads(text, object_pairs_hook=_no_doubles)
        return {TopicPartition(*key): at for key, at in sorted(offsets_of_tree(tree).items())}
    except (ValueError, RecursionError, OptionError):
        return None


def kafka_text(offsets: Offsets) -> str:
    """The line of a Kafka source; both connectors read it."""
    tree = tree_of_offsets({(tp.topic, tp.partition): at for tp, at in offsets.items()})
    return json.dumps(tree, separators=(",", ":"))


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _numbers(entries: list[Entry]) -> tuple[int, ...]:
    """The batches that files are named after. Spark skips all other names, but no folders."""
    return tuple(sorted(int(one.name) for one in entries if is_batch(one.name)))


def is_batch(name: str) -> bool:
    return _BATCH.fullmatch(name) is not None and str(int(name)) == name


def _version(line: str, where: str) -> int:
    found = _VERSION.fullmatch(line.strip())
    if found is None:
        raise _torn(where, line.encode())
    if int(found[1]) > NEWEST_VERSION:
        raise CheckpointError(
            f"{where} has the format {line}, which is newer than this release knows (v"
            f"{NEWEST_VERSION}): take a newer sparkkafka"
        )
    return int(found[1])


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _torn(where, content) from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # int() refuses numbers of more than 4300 digits with a ValueError too.
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(
            f"{where} is damaged: {shortened(text)} is not JSON ({why})"
        ) from None


def _torn(where: str, content: bytes) -> CheckpointError:
    if not content:
        return CheckpointError(f"{where} is damaged: it is empty")
    return CheckpointError(
        f"{where} is damaged: it holds {shortened(content)}, not what Spark writes"
    )


def shortened(content: bytes | str) -> str:
    cut = content[:_SHOWN]
    return repr(cut) + ("…" if len(content) > len(cut) else "")


def _positive(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 63 else None


def kafka_source(plan: Plan, name: str | None = None) -> SourceOffsets:
    """The Kafka source of a plan, `name` where there are several. Raises CheckpointError."""
    found = [one for one in plan.sources if one.offsets is not None]
    if name is not None:
        wanted = plan.source(name)
        if wanted is None or wanted.offsets is None:
            what = "is no source of Kafka" if wanted else "is no source"
            raise CheckpointError(
                f"{name!r} {what} of batch {plan.batch_id}; Kafka's are "
                f"{some(_described(one) for one in found) or 'none'}"
            )
        return wanted
    if len(found) != 1:
        raise CheckpointError(
            f"batch {plan.batch_id} has no source of Kafka"
            if not found
            else f"the query has {len(found)} sources of Kafka: say which one, "
            f"{some((_described(one) for one in found), between=' or ')}"
        )
    return found[0]


def _described(source: SourceOffsets) -> str:
    return f"{source.name} ({some(source.topics) or 'no topics yet'})"


# --- backups ----------------------------------------------------------------------------------

BACKUPS: Final = "backups"
MARKER: Final = "_SUCCESS"
"""Hadoop's and Spark's name for the same: all of this folder is written."""


class Backup(NamedTuple):
    """`name` is its folder in the checkpoint: backups/TIME."""

    name: str
    is_whole: bool


def back_up(checkpoint: Checkpoint) -> str:
    """Copies what a reset may change, and what belongs to it: metadata, offsets/, commits/, and
    where JVM sources began. Returns the folder's name in the checkpoint.

    Raises CheckpointError; what is copied then stays, as a backup in part.
    """
    storage = checkpoint.storage
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    taken = {one.name for one in storage.entries(BACKUPS)}
    chosen, count = now, 1
    while chosen in taken:
        count += 1
        chosen = f"{now}-{count}"
    folder = f"{BACKUPS}/{chosen}"
    names = [METADATA, f".{METADATA}.crc"]
    for part, files in ((OFFSETS, checkpoint.offset_files), (COMMITS, checkpoint.commit_files)):
        names += [f"{part}/{one.name}" for one in files if one.is_file]
    for one in storage.entries(SOURCES):
        names += [f"{SOURCES}/{one.name}/{name}" for name in ("0", ".0.crc") if not one.is_file]
    for name in names:
        content = storage.read(name)
        if content is not None:
            storage.write(f"{folder}/{name}", content, checksum=False)
    storage.write(f"{folder}/{MARKER}", b"", checksum=False)
    return folder


def backups_of(storage: Storage) -> list[Backup]:
    """Those of a checkpoint, the oldest first. Raises CheckpointError."""
    names = [f"{BACKUPS}/{one.name}" for one in storage.entries(BACKUPS) if not one.is_file]
    return [Backup(name, storage.read(f"{name}/{MARKER}") is not None) for name in names]


def part_words(backups: list[Backup]) -> list[str]:
    """What to know if some are in part."""
    parts = [name for name, is_whole in backups if not is_whole]
    if not parts:
        return []
    return [
        f"in part (no {MARKER} in it): {some(parts)}. The reset stopped before it changed "
        "anything: copy nothing back from there, delete it"
    ]
