"""Random changes of two tables of Postgres, and whether other tables have the same rows.

`goods` has a column of each type, a key of two columns, and replica identity FULL. `notes` has the
default identity and a large text, which Postgres does not repeat when an update leaves it as it is.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import psycopg

WAIT_S: Final = 120.0

_EPOCH: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_TEXTS: Final = (
    "",
    "a",
    "O'Hara",
    'quoted "text"',
    "two\nlines\t",
    "größer 中文 🙂",
    "null",
    "\\x00",
)


def _time(luck: random.Random, digits: int = 6) -> datetime.datetime:
    found = _EPOCH + datetime.timedelta(microseconds=luck.randrange(-(10**15), 10**15))
    step = 10 ** (6 - digits)
    return found.replace(microsecond=found.microsecond // step * step)


def _number(luck: random.Random, digits: int, scale: int) -> str:
    text = str(luck.randrange(10**digits)).rjust(scale + 1, "0")
    return luck.choice(("", "-")) + text[: len(text) - scale] + "." + text[len(text) - scale :]


def _document(luck: random.Random) -> str:
    return json.dumps({"a": luck.randrange(9), "b": [luck.choice(_TEXTS[1:7])], "c": None})


Make = Callable[[random.Random], Any]

#: The type of each column but the keys, and how to make a value.
_COLUMNS: Final[dict[str, tuple[str, Make]]] = {
    "small": ("smallint", lambda luck: luck.randrange(-(2**15), 2**15)),
    "big": ("bigint", lambda luck: luck.randrange(-(2**63), 2**63)),
    "r": ("real", lambda luck: luck.choice((1.5, -0.0, "NaN", "Infinity", luck.random()))),
    "d": ("double precision", lambda luck: luck.choice((0.1, "-Infinity", luck.gauss(0, 1e9)))),
    "flag": ("boolean", lambda luck: luck.random() < 0.5),
    "n": ("numeric(10,2)", lambda luck: _number(luck, 10, 2)),
    "n38": ("numeric(38,9)", lambda luck: _number(luck, 38, 9)),
    "free": ("numeric", lambda luck: _number(luck, luck.randrange(1, 60), luck.randrange(9))),
    "cash": ("money", lambda luck: _number(luck, 15, 2)),
    "txt": ("text", lambda luck: luck.choice(_TEXTS)),
    "vc": ("varchar(20)", lambda luck: luck.choice(_TEXTS)),
    "ch": ("char(5)", lambda luck: luck.choice(("", "ab", "abcde"))),
    "bin": ("bytea", lambda luck: luck.randbytes(luck.randrange(9))),
    "dat": ("date", lambda luck: _time(luck).date()),
    "t3": ("time(3)", lambda luck: _time(luck, 3).time()),
    "t6": ("time", lambda luck: _time(luck).time()),
    "ttz": ("timetz", lambda luck: f"{_time(luck).time()}+02"),
    "ts3": ("timestamp(3)", lambda luck: _time(luck, 3).replace(tzinfo=None)),
    "ts6": ("timestamp", lambda luck: _time(luck).replace(tzinfo=None)),
    "tstz": ("timestamptz", _time),
    "iv": ("interval", lambda luck: datetime.timedelta(seconds=luck.randrange(-(10**7), 10**7))),
    "js": ("json", _document),
    "jsb": ("jsonb", _document),
    "u": ("uuid", lambda luck: f"{luck.getrandbits(128):032x}"),
    "x": ("xml", lambda luck: f"<a b='{luck.randrange(9)}'>text &amp; more</a>"),
    "mood": ("mood", lambda luck: luck.choice(("sad", "happy"))),
    "b1": ("bit(1)", lambda luck: luck.choice("01")),
    "b12": ("bit(12)", lambda luck: f"{luck.getrandbits(12):012b}"),
    "ia": ("int[]", lambda luck: [luck.randrange(9) for _ in range(luck.randrange(4))]),
    "ta": ("text[]", lambda luck: [luck.choice((None, *_TEXTS)) for _ in range(luck.randrange(4))]),
    "na": ("numeric(10,2)[]", lambda luck: f"{{{_number(luck, 9, 2)},NULL}}"),
    "da": ("date[]", lambda luck: [_time(luck).date()]),
    "ine": ("inet", lambda luck: f"10.0.{luck.randrange(256)}.1/24"),
    "mac": ("macaddr", lambda luck: f"08:00:2b:01:02:{luck.randrange(256):02x}"),
    "span": ("int4range", lambda luck: f"[{luck.randrange(5)},{5 + luck.randrange(5)})"),
    "hs": ("hstore", lambda luck: f'a=>{luck.randrange(9)}, "b c"=>NULL'),
    "p": ("point", lambda luck: f"({luck.random()},{luck.random()})"),
}
#: Columns that are not compared as they are: the type in the mirror, and what is compared.
_MIRRORED: Final = {
    "b1": ("boolean", "b1::int", "b1::int"),
    "b12": (
        "bytea",
        "b12::int",
        "CASE length(b12) WHEN 0 THEN 0 WHEN 1 THEN get_byte(b12, 0)"
        " ELSE get_byte(b12, 0) + 256 * get_byte(b12, 1) END",
    ),
    "hs": ("jsonb", "hstore_to_jsonb(hs)", "hs"),
    "p": ("jsonb", "ARRAY[p[0], p[1]]", "ARRAY[(p->>'x')::float8, (p->>'y')::float8]"),
    # Debezium sends no zeros at the end.
    "free": ("numeric", "trim_scale(free)", "trim_scale(free)"),
    "iv": ("interval", "extract(epoch FROM iv)", "extract(epoch FROM iv)"),
    "ttz": ("timetz", "ttz AT TIME ZONE 'UTC'", "ttz AT TIME ZONE 'UTC'"),
}
_ADDED: Final = "added"
_KEYS: Final = {"goods": ("region", "id"), "notes": ("id",)}
_LARGE: Final = 3000
"""Postgres stores longer values than 2,000 bytes apart."""


def create_tables(db: psycopg.Connection) -> None:
    """Create both tables, with some rows."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
    db.execute(
        "CREATE EXTENSION hstore; CREATE TYPE mood AS ENUM ('sad', 'happy');"
        f"CREATE TABLE goods (region text, id int, {columns}, PRIMARY KEY (region, id));"
        "ALTER TABLE goods REPLICA IDENTITY FULL;"
        "CREATE TABLE notes (id int PRIMARY KEY, title text, body text);"
        "ALTER TABLE notes ALTER COLUMN body SET STORAGE EXTERNAL"
    )
    db.commit()


def create_mirrors(db: psycopg.Connection, schema: str) -> None:
    """Create empty tables for the changes to be applied to, after the last change of columns."""
    types = {name: kind for name, (kind, _) in _COLUMNS.items()} | {"small": "int", _ADDED: "int"}
    types |= {name: kind for name, (kind, _, _) in _MIRRORED.items()}
    columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
    position = '_position text COLLATE "C"'
    db.execute(
        f"CREATE SCHEMA {schema};"
        f"CREATE TABLE {schema}.goods (region text, id int, {columns}, {position},"
        " PRIMARY KEY (region, id));"
        f"CREATE TABLE {schema}.notes (id int PRIMARY KEY, title text, body text, {position})"
    )


def differing_rows(db: psycopg.Connection, schema: str, table: str) -> list[Any]:
    """Return the rows that only the table or only its mirror has; texts of all columns."""
    names = ["title", "body"] if table == "notes" else [*_COLUMNS, _ADDED]
    same = [(name, name) for name in (*_KEYS[table], *names) if name not in _MIRRORED]
    other = [_MIRRORED[name][1:] for name in names if name in _MIRRORED]
    ours, theirs = (
        ", ".join(f"({t})::text" for t in side) for side in zip(*same, *other, strict=True)
    )
    first, second = f"SELECT {ours} FROM public.{table}", f"SELECT {theirs} FROM {schema}.{table}"
    found = []
    for query in (f"({first}) EXCEPT ALL ({second})", f"({second}) EXCEPT ALL ({first})"):
        found += db.execute(query).fetchall()
    return found


def change_during_snapshots(database: str, start: Callable[[], None], count: int) -> None:
    """Call `start`, which starts `count` connectors, and change a row of `notes` in a transaction
    that begins before their snapshots and commits after them. So this change is before the row of
    the snapshot in the database's log, and after it in the topic."""
    import psycopg

    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = %s::text::xid"
    consistent = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"
    with ExitStack() as stack:
        connections = (stack.enter_context(psycopg.connect(database)) for _ in range(3))
        first, second, third = connections
        watch = stack.enter_context(psycopg.connect(database, autocommit=True))
        watch.execute("INSERT INTO notes VALUES (0, 'of the snapshot', NULL)")

        def seen(query: str, *parameters: Any) -> bool:
            return watch.execute(query, parameters).fetchone() == (count,)

        def begin(db: psycopg.Connection) -> str:
            (found,) = db.execute("SELECT txid_current()::text").fetchone() or ("",)
            return str(found)

        # A slot waits for the transactions that are open when it is made, and once more for those
        # that are open then.
        open_first = begin(first)
        start()
        wait_until(lambda: seen(waiting, open_first), "the slots wait", WAIT_S)
        open_second = begin(second)
        first.commit()
        wait_until(lambda: seen(waiting, open_second), "the slots wait again", WAIT_S)
        third.execute("UPDATE notes SET title = 'later' WHERE id = 0")
        second.commit()
        wait_until(lambda: seen(consistent), "the slots are there", WAIT_S)
        third.commit()


class RandomChanges:
    """Makes changes of both tables in transactions of some changes each; some are rolled back."""

    def __init__(self, db: psycopg.Connection, seed: int) -> None:
        self._db, self._luck = db, random.Random(seed)
        self._keys: dict[str, list[tuple[Any, ...]]] = {"goods": [], "notes": []}
        self._columns = dict(_COLUMNS)
        self._number = 0

    def make(self, count: int) -> None:
        """Make so many changes."""
        left = count
        while left > 0:
            size = min(left, self._luck.randrange(1, 20))
            saved = {table: list(keys) for table, keys in self._keys.items()}
            for _ in range(size):
                self._change()
            if self._luck.random() < 0.05:
                self._db.rollback()
                self._keys = saved
            else:
                self._db.commit()
                left -= size

    def truncate(self) -> None:
        """Delete all rows of `goods`."""
        self._db.execute("TRUNCATE goods")
        self._db.commit()
        self._keys["goods"].clear()

    def alter(self) -> None:
        """Add a column, and make another one wider."""
        # Not with a default: rows that do not change would have it, and no change says so.
        self._db.execute(f"ALTER TABLE goods ADD COLUMN {_ADDED} int")
        self._columns[_ADDED] = ("int", lambda luck: luck.randrange(9))
        self._db.execute("ALTER TABLE goods ALTER COLUMN small TYPE int")
        self._db.commit()

    def _change(self) -> None:
        luck = self._luck
        table = "goods" if luck.random() < 0.8 else "notes"
        keys, kind = self._keys[table], luck.random()
        if kind < 0.45 or len(keys) < 5:
            self._insert(table, self._new_key(table))
            return
        index = luck.randrange(len(keys))
        key = keys[index]
        if kind < 0.75:
            columns = luck.sample(list(self._columns), 3) if table == "goods" else ["title"]
            if table == "notes" and luck.random() < 0.3:
                columns = ["body"]
            self._update(table, key, {name: self._value(name) for name in columns})
        elif kind < 0.82 and table == "goods":
            keys[index] = self._new_key(table)
            self._update(table, key, dict(zip(_KEYS[table], keys[index], strict=True)))
        else:
            self._delete(table, key)
            keys.pop(index)
            if kind > 0.97:  # a row of the same key, in the same transaction
                self._insert(table, key)

    def _new_key(self, table: str) -> tuple[Any, ...]:
        self._number += 1
        return (self._luck.choice("ab"), self._number) if table == "goods" else (self._number,)

    def _value(self, name: str) -> Any:
        luck = self._luck
        if name == "body":
            return luck.randbytes(_LARGE // 2).hex()
        if name == "title":
            return luck.choice(_TEXTS)
        return None if luck.random() < 0.15 else self._columns[name][1](luck)

    def _insert(self, table: str, key: tuple[Any, ...]) -> None:
        names = [*self._columns] if table == "goods" else ["title", "body"]
        values = [*key, *map(self._value, names)]
        marks = ", ".join(["%s"] * len(values))
        columns = ", ".join((*_KEYS[table], *names))
        self._db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)
        self._keys[table].append(key)

    def _update(self, table: str, key: tuple[Any, ...], values: dict[str, Any]) -> None:
        columns = ", ".join(f"{name} = %s" for name in values)
        where, parameters = self._where(table, key)
        self._db.execute(f"UPDATE {table} SET {columns} {where}", [*values.values(), *parameters])

    def _delete(self, table: str, key: tuple[Any, ...]) -> None:
        where, parameters = self._where(table, key)
        self._db.execute(f"DELETE FROM {table} {where}", parameters)

    def _where(self, table: str, key: tuple[Any, ...]) -> tuple[str, list[Any]]:
        return "WHERE " + " AND ".join(f"{name} = %s" for name in _KEYS[table]), list(key)
