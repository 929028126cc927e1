"""Copies of a checkpoint's logs, in the checkpoint, where Spark does not look.

Neither a folder of files nor a prefix of an object store comes into being at once, and object
stores rename nothing. So a marker is written last: a backup without it is in part. As nothing of
the checkpoint is changed before the marker is there, such a backup is of no use to anybody.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from sparkkafka.checkpoints.logs import COMMITS, METADATA, OFFSETS, SOURCES, Checkpoint
from sparkkafka.checkpoints.storage import Storage
from sparkkafka.errors import some

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
