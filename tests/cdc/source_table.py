"""A database's table and the topic that a connector fills from it, in plain Python.

`SourceTable` makes random changes. `records` are those of the topic, in the form of a read with
`envelope`; `rows` is what the table has in the end.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

SCHEMA = """id int, part string, note string, amount decimal(10, 2), tags array<string>,
change struct<
    op: string, kind: string, ts_ms: bigint, ts_us: bigint, position: string,
    source: struct<lsn: bigint>,
    transaction: struct<id: string, total_order: bigint, data_collection_order: bigint>,
    key: struct<id: int, part: string>, old_key: struct<id: int, part: string>,
    unavailable: array<string>,
    topic: string, partition: int, offset: bigint, timestamp: timestamp>"""

Key = tuple[int, str]
START = datetime(2026, 1, 1, tzinfo=UTC)


class SourceTable:
    """The keys are in `partitions` partitions, later in one more, as when a topic is given more.

    `one_record` changes of a key are one record with its old key, as Maxwell's; otherwise they are
    a delete, a tombstone and an insert, as Debezium's. `flat` deletes are only a tombstone. With
    `snapshots` there are also rows of snapshots, and changes of transactions that were open then.
    """

    def __init__(
        self,
        seed: int,
        *,
        toast: bool = False,
        one_record: bool = False,
        flat: bool = False,
        snapshots: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.toast, self.one_record, self.flat = toast, one_record, flat
        self.snapshots = snapshots
        self.rows: dict[Key, tuple[Any, ...]] = {}
        self.ended: list[tuple[Any, ...]] = []
        """The earlier versions of rows: key, values, and the log's numbers of start and end."""
        self.started: dict[Key, int] = {}
        self.partitions = 2
        self.records: list[tuple[Any, ...]] = []
        self.offsets = [0] * 3
        self.lsn = 0
        self.sent: list[tuple[Any, ...]] = []
        """What the connector sends again after a crash."""

    def change(self, count: int) -> None:
        for _ in range(count):
            self.lsn += 1
            kind = self.random.random()
            if kind < 0.02:
                self.send(None, "t", kind="truncate")
                for key in [*self.rows]:
                    self.set(key, None)
            elif kind < 0.06:
                self.crash()
            elif kind < 0.10 and self.snapshots:
                self.snapshot(self.new_key())
            elif kind < 0.10:
                self.send(None, None, kind="heartbeat")
            elif kind < 0.40 or not self.rows:
                self.insert(self.new_key())
            elif kind < 0.65:
                self.delete(self.random.choice(sorted(self.rows)))
            elif kind < 0.75:
                self.move(self.random.choice(sorted(self.rows)), self.new_key())
            else:
                self.update(self.random.choice(sorted(self.rows)))

    def new_key(self) -> Key:
        while (key := (self.random.randrange(50), self.random.choice("ab"))) in self.rows:
            pass
        return key

    def new_values(self) -> tuple[Any, ...]:
        amount = None if self.random.random() < 0.1 else f"{self.random.randrange(10**4) / 100:.2f}"
        return (f"note {self.lsn}", amount, [f"tag {self.lsn}"])

    def set(self, key: Key, values: tuple[Any, ...] | None) -> None:
        if key in self.rows:
            self.ended.append((key, self.rows.pop(key), self.started[key], self.lsn))
        if values is not None:
            self.rows[key], self.started[key] = values, self.lsn

    def versions(self) -> list[tuple[Any, ...]]:
        current = [(key, row, self.started[key], None) for key, row in self.rows.items()]
        return sorted([*self.ended, *current], key=lambda version: (version[0], version[2]))

    def insert(self, key: Key) -> None:
        self.set(key, self.new_values())
        self.send(key, "c", self.rows[key])

    def snapshot(self, key: Key) -> None:
        """A row of a snapshot, and a change that was written to the log before. The change is one
        of an open transaction, or (blocking snapshots) the row already has it."""
        if self.random.random() < 0.5:
            changed = self.lsn
            self.set(key, self.new_values())
            self.lsn += 1
            self.ended.append((key, self.rows[key], self.lsn, self.lsn))
            self.send(key, "r", self.rows[key])
            self.sent.clear()
            self.send(key, "c", self.rows[key], position=f"{changed:020}", time=changed)
            return
        opened = f"{self.lsn:020}"
        self.lsn += 1
        self.set(key, self.new_values())
        self.send(key, "r", self.rows[key])
        self.sent.clear()  # after a crash a connector makes another snapshot
        self.lsn += 1
        deletes = self.random.random() < 0.3
        self.set(key, None if deletes else self.new_values())
        values = self.rows.get(key, (None, None, None))
        self.send(key, "d" if deletes else "u", values, position=opened)

    def update(self, key: Key) -> None:
        unavailable = []
        note, amount, tags = self.new_values()
        if self.toast and self.random.random() < 0.6:
            unavailable = self.random.choice([["note"], ["tags"], ["note", "tags"]])
            old = self.rows[key]
            note = old[0] if "note" in unavailable else note
            tags = old[2] if "tags" in unavailable else tags
        self.set(key, (note, amount, tags))
        sent = (
            None if "note" in unavailable else note,
            amount,
            None if "tags" in unavailable else tags,
        )
        self.send(key, "u", sent, unavailable=unavailable)

    def delete(self, key: Key) -> None:
        self.set(key, None)
        if not self.flat:
            self.send(key, "d", (None, None, None))
        self.send(key, None, kind="tombstone", has_position=False)

    def move(self, key: Key, new: Key) -> None:
        if self.one_record:
            self.set(key, None)
            self.set(new, self.new_values())
            self.send(new, "u", self.rows[new], old_key=key)
        else:
            self.delete(key)
            self.insert(new)

    def crash(self) -> None:
        for sent in self.sent[-self.random.randrange(1, 9) :]:
            self.append(*sent)

    def send(
        self,
        key: Key | None,
        op: str | None,
        values: tuple[Any, ...] | None = None,
        *,
        kind: str = "row",
        has_position: bool = True,
        position: str = "",
        time: int = 0,
        old_key: Key | None = None,
        unavailable: list[str] | None = None,
    ) -> None:
        own = (position or f"{self.lsn:020}") if has_position else None
        row = (None,) * 5 if values is None else (*(key or ()), *values)
        self.sent.append((row, op, kind, time or self.lsn, own, key, old_key, unavailable or None))
        self.append(*self.sent[-1])

    def append(
        self,
        row: tuple[Any, ...],
        op: str | None,
        kind: str,
        lsn: int,
        position: str | None,
        key: Key | None,
        old_key: Key | None,
        unavailable: list[str] | None,
    ) -> None:
        # Python's hash of a text differs from process to process.
        partition = 0 if key is None else (key[0] * 7 + ord(key[1])) % self.partitions
        time = START + timedelta(milliseconds=len(self.records))
        offset = self.offsets[partition]
        self.offsets[partition] += 1
        kafka = ("topic", partition, offset, time)
        change = (op, kind, lsn, None, position, None, None, key, old_key, unavailable, *kafka)
        self.records.append((*row, change))

    def batches(self, size: int) -> list[list[tuple[Any, ...]]]:
        """Return the records in batches, each a range of offsets of each partition. The partitions
        do not keep in step."""
        of_partition: list[list[tuple[Any, ...]]] = [
            [record for record in self.records if record[-1][11] == partition]
            for partition in range(3)
        ]
        batches = []
        while any(of_partition):
            batch = []
            for records in of_partition:
                count = self.random.randrange(size)
                batch += records[:count]
                del records[:count]
            self.random.shuffle(batch)
            batches.append(batch)
        return batches


def frame(spark: Any, records: list[tuple[Any, ...]]) -> Any:
    rows = [
        (*row[:3], None if row[3] is None else Decimal(row[3]), row[4], change)
        for *row, change in records
    ]
    return spark.createDataFrame(rows, SCHEMA)


def row_of(note: Any, amount: Any, tags: Any) -> tuple[Any, ...]:
    """Return a row's values as the source has them."""
    tags = json.loads(tags) if isinstance(tags, str) else tags
    return (note, None if amount is None else str(amount), tags)


def versions_of(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of a table with history as `SourceTable.versions` does."""
    versions = []
    for id, part, note, amount, tags, start, end, current in rows:
        assert bool(current) == (end is None)
        times = [
            None if time is None else round(datetime.fromisoformat(str(time)).timestamp() * 1000)
            for time in (start, end)
        ]
        versions.append(((id, part), row_of(note, amount, tags), *times))
    return sorted(versions, key=lambda version: (version[0], version[2]))
