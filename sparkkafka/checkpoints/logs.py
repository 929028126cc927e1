"""The logs of a streaming query's checkpoint: which batches are planned, which are finished.

The layout of Spark 2 to 4.3 (OffsetSeqLog, CommitLog, StreamMetadata in Spark's sources):

    metadata       {"id": "<query id>"}
    offsets/N      "v1", a line of JSON about the batch, then one line for each source: where
                   batch N ends; "-" for a source that has no offset yet. In "v2" a line begins
                   with the source's name and a colon. Written before batch N runs.
    commits/N      "v1" or "v2" and a line of JSON. Written when batch N is finished.
    sources/I/0    the first offsets of source I, in a query of the JVM connector
    state/         the state of stateful operators

The line of a Kafka source is {"topic": {"0": 23}}, from this connector and from the JVM connector.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from sparkkafka.checkpoints.storage import Storage, StorageEntry, storage_of
from sparkkafka.client.values import Offsets
from sparkkafka.config.source import offsets_of_tree, tree_of_offsets
from sparkkafka.errors import CheckpointError, OptionError, some

OFFSETS, COMMITS, METADATA, SOURCES, STATE = "offsets", "commits", "metadata", "sources", "state"

NO_OFFSET_TEXT = "-"


class SourceOffsets(NamedTuple):
    """One source's line in a plan. `name` is the source's index, or in version 2 its name.

    `text` is the line, without the name. `offsets` is None for a source that is not Kafka's.
    """

    name: str
    text: str
    offsets: Offsets | None

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({tp.topic for tp in self.offsets or ()}))

    @property
    def may_be_kafka(self) -> bool:
        """Whether it is a Kafka source, or has no offset yet."""
        return self.offsets is not None or self.text == NO_OFFSET_TEXT


@dataclass(frozen=True)
class Plan:
    """A file of offsets/: the end of a batch. `batch_metadata` is its line of JSON, parsed."""

    batch_id: int
    version: int
    batch_metadata_text: str
    batch_metadata: Mapping[str, Any] = field(compare=False)
    sources: tuple[SourceOffsets, ...] = ()

    @property
    def planned_ms(self) -> int | None:
        """When the batch was planned, in ms since 1970; None if it is not known."""
        return _positive_or_none(self.batch_metadata.get("batchTimestampMs"))

    @property
    def watermark_ms(self) -> int | None:
        """The watermark with which the batch ran, in ms since 1970; None without a watermark."""
        return _positive_or_none(self.batch_metadata.get("batchWatermarkMs"))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of Spark that the checkpoint keeps."""
        conf = self.batch_metadata.get("conf")
        return conf if isinstance(conf, dict) else {}

    def source(self, name: str) -> SourceOffsets | None:
        """Return the source of this name; None if the plan has none."""
        return next((source for source in self.sources if source.name == name), None)

    def text(self) -> str:
        """Return the file's content."""
        lines = [f"v{self.version}", self.batch_metadata_text]
        lines += (
            f"{source.name}:{source.text}" if self.version >= 2 else source.text
            for source in self.sources
        )
        return "\n".join(lines)


class NextStart(NamedTuple):
    """What a query does when it is started with this checkpoint.

    `kind` is one of three:

    - "new": no batch was planned. The query starts as its options say.
    - "repeat": batch `batch_id` is planned and not finished. It runs again, to the same `end`.
    - "next": the query plans batch `batch_id`, which begins at the end of the last one.

    `start` is the plan with the offsets at which the batch begins.
    """

    kind: Literal["new", "repeat", "next"]
    batch_id: int
    start: Plan | None
    end: Plan | None = None


class Checkpoint:
    """The checkpoint of a streaming query, in a folder or at a URL.

        checkpoint = Checkpoint("/data/checkpoints/orders")   # or s3://, gs://, abfss://, hdfs://
        checkpoint.plan(checkpoint.planned[-1]).sources[0].offsets

    The constructor lists the folders, and methods read files. Nothing is changed. The constructor
    raises CheckpointError if there is no checkpoint; methods raise it for a file that cannot be
    read, and name the file.
    """

    def __init__(self, location: str | Path | Storage) -> None:
        storage = location if isinstance(location, Storage) else storage_of(location)
        self.storage = storage
        names = {entry.name for entry in storage.entries()}
        if not names & {OFFSETS, METADATA}:
            raise CheckpointError(
                f"{storage.location_of()} is not the checkpoint of a query: there is neither "
                f"{METADATA} nor {OFFSETS}/ in it"
                + ("" if names else " (it is empty, or does not exist)")
            )
        self._has_state_folder = STATE in names
        self.offset_files = storage.entries(OFFSETS)
        self.commit_files = storage.entries(COMMITS)
        self.planned = _batch_ids(self.offset_files)
        """The planned batches whose files Spark still keeps, ascending."""
        self.committed = _batch_ids(self.commit_files)
        """The finished batches whose files Spark still keeps, ascending."""

    def reload(self) -> Checkpoint:
        """Return the same checkpoint with its folders listed again."""
        return Checkpoint(self.storage)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.storage.location_of()}>"

    @property
    def location(self) -> str:
        return self.storage.location_of()

    @property
    def query_id(self) -> str:
        """The query's id, from the file metadata. Raises CheckpointError."""
        where, content = self.storage.location_of(METADATA), self.storage.read(METADATA)
        if content is None:
            raise CheckpointError(
                f"{where} is missing: Spark would give the query a new id, and sinks would take "
                "its batches for those of another query. Copy the file back from a backup"
            )
        if len(content) > 1 << 16:  # Spark writes some 50 bytes
            raise CheckpointError(f"{where} holds no id of a query: it has {len(content):,} bytes")
        metadata = _parse_json(_decode_text(content, where).strip(), where)
        query_id = metadata.get("id") if isinstance(metadata, dict) else None
        if not isinstance(query_id, str) or not query_id:
            raise CheckpointError(f"{where} holds no id of a query: {beginning_of(content)}")
        return query_id

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state: of aggregates, joins or deduplication."""
        return self._has_state_folder and bool(self.storage.entries(STATE))

    def plan(self, batch_id: int) -> Plan:
        """Parse the plan of a batch. Raises CheckpointError if its file is missing, incomplete, or
        not what Spark writes."""
        name = f"{OFFSETS}/{batch_id}"
        return parse_plan(batch_id, self._content(name), self.storage.location_of(name))

    def commit(self, batch_id: int) -> str:
        """Return the text of a commit, the file that says that the batch is finished. Raises the
        errors of `plan`."""
        name = f"{COMMITS}/{batch_id}"
        where = self.storage.location_of(name)
        text = _decode_text(self._content(name), where)
        lines = text.removesuffix("\n").split("\n")
        _parse_version(lines[0], where)
        _parse_batch_metadata(lines, where)
        return text

    def initial_offsets(self, source: str) -> Offsets | None:
        """Return the first offsets of a source of the JVM connector, from its file in sources/;
        None if there is no such file, as with this connector, or if it cannot be parsed."""
        name = f"{SOURCES}/{source}/0"
        content = self.storage.read(name)
        # KafkaSourceInitialOffsetWriter writes a zero byte (SPARK-19517), "v1", the offsets.
        if content is None or not content.startswith(b"\0v"):
            return None
        lines = _decode_text(content[1:], self.storage.location_of(name)).split("\n", 1)
        return None if len(lines) < 2 else kafka_offsets(lines[1])

    def next_start(self) -> NextStart:
        """Return what the next start does, by Spark's rules
        (MicroBatchExecution.populateStartOffsets).

        Raises CheckpointError if files that Spark then reads are damaged or missing.
        """
        if not self.planned:
            return NextStart("new", 0, None)
        last = self.planned[-1]
        plan = self.plan(last)
        # Spark always reads the plan before the last one, and does not start without it.
        before = self.plan(last - 1) if last > 0 else None
        for text in damaged_source_messages(before, plan):
            where = self.storage.location_of(f"{OFFSETS}/{last}")
            raise CheckpointError(f"{where} is damaged: {text}")
        if self.committed and self.committed[-1] == last:
            self.commit(last)
            return NextStart("next", last + 1, plan)
        return NextStart("repeat", last, before, plan)

    def _content(self, name: str) -> bytes:
        """Read a file. Raises CheckpointError if it is missing."""
        content = self.storage.read(name)
        if content is None:
            raise CheckpointError(f"{self.storage.location_of(name)} is missing")
        return content


def damaged_source_messages(before: Plan | None, plan: Plan) -> list[str]:
    """Return a message for each source that has Kafka offsets in the plan `before`, and something
    else in this one. That is damage: Spark lists the sources in the same order in each plan."""
    messages = []
    for old in before.sources if before is not None else ():
        new = plan.source(old.name)
        if old.offsets is not None and new is not None and not new.may_be_kafka:
            messages.append(
                f"source {new.name} has offsets of Kafka in the plan before, and none here: "
                f"{beginning_of(new.text)}"
            )
    return messages


def offsets_of_next_batch(checkpoint: Checkpoint, next_start: NextStart) -> dict[str, Offsets]:
    """Return the offsets at which the next batch begins, by source, as far as they are known."""
    if next_start.start is not None:
        offsets_by_source = {source.name: source.offsets for source in next_start.start.sources}
    else:
        # No batch is finished. Sources of the JVM connector have stored their first offsets.
        offsets_by_source = {
            source.name: checkpoint.initial_offsets(source.name)
            for source in (next_start.end.sources if next_start.end is not None else ())
            if source.offsets is not None
        }
    return {name: offsets for name, offsets in offsets_by_source.items() if offsets is not None}


# --- parsing ------------------------------------------------------------------------------------


def parse_plan(batch_id: int, content: bytes, where: str) -> Plan:
    """Parse a file of offsets/. Raises CheckpointError, which begins with `where`."""
    # Spark writes no line end after the last line, and reads as many lines as there are.
    lines = _decode_text(content, where).removesuffix("\n").split("\n")
    version = _parse_version(lines[0], where)
    if len(lines) < 3:
        raise _damage_error(where, content)
    metadata = _parse_batch_metadata(lines, where)
    sources = []
    for index, line in enumerate(lines[2:]):
        name = str(index)
        if version >= 2:
            name, colon, line = line.partition(":")
            if not colon:
                raise CheckpointError(
                    f"{where}: a line has no name of a source: {beginning_of(name)}"
                )
        offsets = None
        if line != NO_OFFSET_TEXT:
            _parse_json(line, where)  # the offset of any source is JSON
            offsets = kafka_offsets(line)
        sources.append(SourceOffsets(name, line, offsets))
    if len({source.name for source in sources}) < len(sources):
        raise CheckpointError(f"{where}: two lines are of the same source")
    return Plan(batch_id, version, lines[1], metadata, tuple(sources))


def _parse_batch_metadata(lines: list[str], where: str) -> dict[str, Any]:
    """Parse the second line of a file, if there is one (OffsetSeqMetadata and CommitMetadata in
    Spark)."""
    metadata = _parse_json(lines[1], where) if len(lines) > 1 and lines[1].strip() else {}
    if not isinstance(metadata, dict):
        raise CheckpointError(
            f"{where}: its second line is not a JSON object: {beginning_of(lines[1])}"
        )
    return metadata


def kafka_offsets(text: str) -> Offsets | None:
    """Parse the offsets in a source's line of a plan; None if the source is not Kafka's."""
    try:
        tree = json.loads(text, object_pairs_hook=_dict_of_unique_names)
        return dict(sorted(offsets_of_tree(tree).items()))
    except (ValueError, RecursionError, OptionError):
        return None


def kafka_line(offsets: Offsets) -> str:
    """Format offsets as the line of a Kafka source in a plan. Both connectors read it."""
    return json.dumps(tree_of_offsets(offsets), separators=(",", ":"))


def _dict_of_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary. Raises ValueError if two values have the same name."""
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("two values have the same name")
    return names


def _batch_ids(entries: list[StorageEntry]) -> tuple[int, ...]:
    """Return the numbers of the batches that the files of a log are named after, ascending. Like
    Spark, this skips other names, but not folders."""
    return tuple(sorted(int(entry.name) for entry in entries if is_batch(entry.name)))


def is_batch(name: str) -> bool:
    """Return whether a batch's file can have this name: a number that fits into Java's long."""
    return name.isascii() and name.isdecimal() and len(name) <= 18 and str(int(name)) == name


def _parse_version(line: str, where: str) -> int:
    """Parse the first line of a file, "v1" or "v2". Raises CheckpointError."""
    version = re.fullmatch(r"v([0-9]{1,9})", line.strip())
    if version is None:
        raise _damage_error(where, line.encode())
    if int(version[1]) > 2:
        raise CheckpointError(
            f"{where} has the format {line}, which is newer than those of this release (v1, v2): "
            "use a newer sparkkafka"
        )
    return int(version[1])


def _decode_text(content: bytes, where: str) -> str:
    """Decode UTF-8. Raises CheckpointError, which begins with `where`."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _damage_error(where, content) from None


def _parse_json(text: str, where: str) -> Any:
    """Parse JSON. Raises CheckpointError, which begins with `where`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # int() refuses numbers of more than 4300 digits with a ValueError too.
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(
            f"{where} is damaged: {beginning_of(text)} is not JSON ({why})"
        ) from None


def _damage_error(where: str, content: bytes) -> CheckpointError:
    """Return the error for a file whose content is not what Spark writes."""
    if not content:
        return CheckpointError(f"{where} is damaged: it is empty")
    return CheckpointError(
        f"{where} is damaged: it holds {beginning_of(content)}, not what Spark writes"
    )


def beginning_of(content: bytes | str) -> str:
    """Return the beginning of a content that cannot be parsed, for an error."""
    return repr(content[:100]) + ("…" if len(content) > 100 else "")


def _positive_or_none(value: Any) -> int | None:
    """Return a positive number of 64 bits, None for any other value."""
    return value if type(value) is int and 0 < value < 1 << 63 else None


def kafka_source(plan: Plan, name: str | None = None) -> SourceOffsets:
    """Return the Kafka source of a plan. `name` is needed if there are several. Raises
    CheckpointError."""
    sources = [source for source in plan.sources if source.offsets is not None]
    texts = [f"{source.name} ({some(source.topics) or 'no topics yet'})" for source in sources]
    if name is not None:
        source = plan.source(name)
        if source is None or source.offsets is None:
            what = "is not a Kafka source" if source else "is not a source"
            raise CheckpointError(
                f"{name!r} {what} of batch {plan.batch_id}; its Kafka sources are "
                f"{some(texts) or 'none'}"
            )
        return source
    if len(sources) != 1:
        raise CheckpointError(
            f"the query has {len(sources)} Kafka sources: name one of them, "
            f"{some(texts, separator=' or ')}"
            if sources
            else f"batch {plan.batch_id} has no Kafka source"
        )
    return sources[0]


# --- backups ----------------------------------------------------------------------------------

BACKUPS: Final = "backups"
MARKER: Final = "_SUCCESS"
"""Hadoop's and Spark's name for an empty file that says: this folder is complete."""


class Backup(NamedTuple):
    """A copy of a checkpoint's logs. `name` is its folder in the checkpoint: backups/TIME.

    Several files cannot be written in one step, and object stores cannot rename. So MARKER is
    written last: a backup without it is incomplete. A reset changes nothing before it has written
    MARKER, so an incomplete backup can be deleted.
    """

    name: str
    is_complete: bool


def back_up(checkpoint: Checkpoint) -> str:
    """Copy the files that a reset may change and those that belong to them: metadata, offsets/,
    commits/, and the first offsets of JVM sources. Return the name of the copy in the checkpoint.

    Raises CheckpointError, and then leaves an incomplete backup.
    """
    storage = checkpoint.storage
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    existing = {entry.name for entry in storage.entries(BACKUPS)}
    candidates = chain([now], (f"{now}-{number}" for number in count(2)))
    folder = f"{BACKUPS}/{next(name for name in candidates if name not in existing)}"
    names = [METADATA, f".{METADATA}.crc"]
    for log, files in ((OFFSETS, checkpoint.offset_files), (COMMITS, checkpoint.commit_files)):
        names += [f"{log}/{entry.name}" for entry in files if entry.is_file]
    for entry in storage.entries(SOURCES):
        if not entry.is_file:
            names += [f"{SOURCES}/{entry.name}/{name}" for name in ("0", ".0.crc")]
    for name in names:
        content = storage.read(name)
        if content is not None:
            storage.write(f"{folder}/{name}", content, checksum=False)
    storage.write(f"{folder}/{MARKER}", b"", checksum=False)
    return folder


def backups_of(storage: Storage) -> list[Backup]:
    """Return a checkpoint's backups, the oldest first. Raises CheckpointError."""
    names = [f"{BACKUPS}/{entry.name}" for entry in storage.entries(BACKUPS) if not entry.is_file]
    return [Backup(name, storage.read(f"{name}/{MARKER}") is not None) for name in names]


def incomplete_backup_notes(backups: list[Backup]) -> list[str]:
    """Return a note that names the incomplete backups; empty without any."""
    incomplete = [backup.name for backup in backups if not backup.is_complete]
    if not incomplete:
        return []
    return [
        f"incomplete (no {MARKER} in it): {some(incomplete)}. The reset stopped before it changed "
        "anything: copy nothing back from there, delete it"
    ]
