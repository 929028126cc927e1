"""Ids of schemas in headers, sound and broken, of keys and values: each row by itself is good or
bad, whatever stands beside it, and a dead letter is the record as it was."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from sparkkafka.errors import BadRecordError
from tests.schemas.small_registry import SmallRegistry, guid_of, small_registry
from tests.spark.typed_support import ORDER_1, Topics, framed

ROWS = 150
SEEDS = range(2)
DEAD = {"onBadRecord": "deadLetter", "deadLetter.topic": "dead"}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        one.guids = True
        one.add("orders-value", json.dumps(ORDER_1))
        one.add("orders-key", '"long"')
        one.add("texts-value", "{}", "JSON")
        yield one


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic("orders")
    fake_cluster.create_topic("dead", partitions=3)
    return Topics(fake_cluster, registry)


class Row(NamedTuple):
    """A record, and what is to be read of it; None in `bad`: nothing is wrong."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    wanted: dict[str, Any]
    bad: str | None


def guid_frame(number: int) -> bytes:
    return b"\1" + uuid.UUID(guid_of(number)).bytes


def made(choose: random.Random, number: int) -> Row:
    """A record of which key and value are each good or bad by themselves."""
    value = {"id": number, "who": f"w{number}"}
    datum, key_datum = framed(1, ORDER_1, value)[5:], framed(2, "long", number)[5:]
    headers: list[tuple[str, bytes | None]] = []
    bad: dict[str, bool] = {}
    raw: dict[str, bytes | None] = {}
    for column, own, schema_id in (("value", datum, 1), ("key", key_datum, 2)):
        name = f"__{column}_schema_id"
        other = 3 - schema_id
        good = choose.choice([guid_frame(schema_id), b"\0" + schema_id.to_bytes(4, "big")])
        broken = choose.choice(
            [
                None, b"", b"\1", good[:-1], good + b"\0", b"\2" + good[1:], good[1:],
                b"\1" + bytes(16), b"\0\0\0\0\x63", guid_frame(3), b"\0\0\0\0\3",
            ]
        )  # fmt: skip
        kind = choose.choice(
            ["good", "good", "broken", "two", "before", "no id", "null", "swapped"]
        )
        raw[column] = own
        bad[column] = kind in ("broken", "no id", "swapped")
        match kind:
            case "good":
                headers.append((name, good))
            case "broken":
                headers.append((name, broken))
            case "two":  # the last one counts
                headers += [(name, broken), ("x", b"\xff"), (name, good)]
            case "before":
                raw[column] = good + own
            case "no id":
                raw[column] = b"\xff" + own
            case "null":
                raw[column] = None
                headers += choose.choice([[], [(name, good)], [(name, broken)]])
            case "swapped":
                headers.append((name, choose.choice([guid_frame(other), b"\0\0\0\0%c" % other])))
                raw[column] = b"\x80"  # no varint ends here, so neither schema reads it
    wanted = {
        "value": None if raw["value"] is None or bad["value"] else value,
        "key": None if raw["key"] is None or bad["key"] else number,
    }
    which = next((column for column in ("value", "key") if bad[column]), None)
    return Row(raw["key"], raw["value"], headers, wanted, which)


def put(topics: Topics, rows: list[Row]) -> dict[str, str]:
    topics.put(
        "orders",
        [row.value for row in rows],
        keys=[row.key for row in rows],
        headers=[row.headers or None for row in rows],
    )
    return topics.options("orders", keyFormat="avro", includeHeaders="true")


def headers_of(row: dict[str, Any]) -> list[tuple[str, bytes | None]]:
    return [(item["key"], item["value"]) for item in row["headers"] or ()]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_by_itself(topics: Topics, seed: int) -> None:
    choose = random.Random(seed)
    rows = [made(choose, number) for number in range(ROWS)]
    options = put(topics, rows)
    for handling in ("null", "column"):
        found = topics.read({**options, "onBadRecord": handling})
        assert [{"value": item["value"], "key": item["key"]} for item in found] == [
            row.wanted for row in rows
        ]
        assert [headers_of(item) for item in found] == [row.headers for row in rows]
    for one, row in zip(found, rows, strict=True):
        reported = one["bad_record"]
        assert (reported is None) == (row.bad is None)
        if reported is not None:
            assert reported["error"].startswith(f"{row.bad}: ")
            assert reported["raw"] == (row.value if row.bad == "value" else row.key)

    found = topics.read({**options, **DEAD})
    good = [number for number, row in enumerate(rows) if row.bad is None]
    assert [item["offset"] for item in found] == good
    assert [{"value": item["value"], "key": item["key"]} for item in found] == [
        rows[number].wanted for number in good
    ]
    letters = topics.read(
        {
            "kafka.bootstrap.servers": topics.cluster.bootstrap_servers,
            "subscribe": "dead",
            "includeHeaders": "true",
        }
    )
    own = {number: row for number, row in enumerate(rows) if row.bad is not None}
    for letter in letters:
        headers = headers_of(letter)
        added = dict(headers[-7:])
        row = own.pop(int(added["__connect.errors.offset"]))
        assert (letter["key"], letter["value"], headers[:-7]) == (row.key, row.value, row.headers)
        assert added["__connect.errors.stage"] == f"{row.bad.upper()}_CONVERTER".encode()
    assert not own


def test_the_first_bad_row_fails_the_read(topics: Topics) -> None:
    rows = [made(random.Random(seed), seed) for seed in range(40)]
    options = put(topics, rows)
    first = next(number for number, row in enumerate(rows) if row.bad is not None)
    with pytest.raises(BadRecordError, match=rf"topic orders partition 0 offset {first} \("):
        topics.read(options)
