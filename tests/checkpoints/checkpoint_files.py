"""Checkpoints as Spark writes them, for tests: with the contents of Spark 4.3."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from sparkkafka.checkpoints.storage import checksums

QUERY = "f2704490-0f3e-4bee-9984-4c0d96309d5d"
LONG_AGO_S = 1_700_000_000

CONF = {"spark.sql.shuffle.partitions": "2"}


def plan_text(*sources: str, planned_ms: int = LONG_AGO_S * 1000, version: int = 1) -> str:
    """Return a file of offsets/; `sources` are the lines of the sources."""
    about = {"batchWatermarkMs": 0, "batchTimestampMs": planned_ms, "conf": CONF}
    return "\n".join([f"v{version}", json.dumps(about, separators=(",", ":")), *sources])


def kafka_line(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return the line of this connector's source; the JVM connector's has no spaces."""
    return json.dumps(
        {topic: {str(n): at for n, at in rows.items()} for topic, rows in offsets.items()}
    )


COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def make_checkpoint(
    folder: Path,
    plans: Mapping[int, Any],
    committed: Iterable[int],
    *,
    sums: bool = True,
) -> Path:
    """`plans` by batch: the text of a file, or offsets of the topic "t" by partition. The files
    are old; `sums` puts Hadoop's checksums beside them."""
    put(folder / "metadata", f'{{"id":"{QUERY}"}}', sums=sums)
    for batch, plan in plans.items():
        text = plan if isinstance(plan, str) else plan_text(kafka_line({"t": plan}))
        put(folder / "offsets" / str(batch), text, sums=sums)
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    for batch in committed:
        put(folder / "commits" / str(batch), COMMIT, sums=sums)
    return folder


def put(path: Path, text: str, *, sums: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    if sums:
        beside = path.with_name(f".{path.name}.crc")
        beside.write_bytes(checksums(text.encode()))
        os.utime(beside, (LONG_AGO_S, LONG_AGO_S))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below the folder, without backups."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "backups" not in path.relative_to(folder).parts
    }


def use_as_hdfs(folder: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every hdfs:// URL name this local folder."""

    class Local:
        @staticmethod
        def from_uri(url: str) -> tuple[fs.FileSystem, str]:
            return fs.LocalFileSystem(), str(folder)

    monkeypatch.setattr(fs, "FileSystem", Local)
