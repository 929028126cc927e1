"""One table's changes in the shapes that connectors wrote: MySQL with Maxwell, Canal and Debezium,
Oracle with GoldenGate, and Postgres with Debezium.

The shapes are those of the captured files in Flink's tests of these formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.schemas.small_registry import SmallRegistry
from tests.spark.read.test_change_forms import TOPIC, read
from tests.spark.typed_support import Topics

Row = dict[str, Any]

HAMMER, ROCKS = (
    {"id": 1, "name": "hammer", "weight": 1.0},
    {"id": 2, "name": "rocks", "weight": 5.3},
)
STEPS: list[tuple[str, Row | None, Row | None]] = [
    ("c", None, HAMMER),
    ("c", None, ROCKS),
    ("u", HAMMER, HAMMER | {"name": "mallet"}),
    ("u", ROCKS, ROCKS | {"weight": 5.0, "name": None}),
    ("d", ROCKS | {"weight": 5.0, "name": None}, None),
]
"""Operation, row before, row after; the last three are one transaction of MySQL."""


def old_of(before: Row, after: Row) -> Row:
    return {name: value for name, value in before.items() if after[name] != value}


def maxwell() -> Iterator[Row]:
    """Without a position, which Maxwell does not write by default. The last row of a transaction
    has `commit`, the others `xoffset`."""
    for number, (op, before, after) in enumerate(STEPS):
        kind = {"c": "insert", "u": "update", "d": "delete"}[op]
        record = {"database": "test", "table": "product", "type": kind, "ts": 1_596_684_883}
        record |= {"xid": 1, "xoffset": number} if number in (2, 3) else {"xid": 1, "commit": True}
        record |= {"data": after or before, "primary_key_columns": ["id"]}
        yield record | ({"old": old_of(before, after)} if before and after else {})


def canal() -> Iterator[Row]:
    """All values are text, and rows that were changed by one statement are in one record."""

    def record(kind: str, rows: list[Row], old: list[Row] | None = None) -> Row:
        texts = [
            items and [{key: value and str(value) for key, value in item.items()} for item in items]
            for items in (rows, old)
        ]
        types = {"id": "INTEGER", "name": "VARCHAR(255)", "weight": "DOUBLE"}
        codes = {"id": 4, "name": 12, "weight": 8}
        record = {"data": texts[0], "database": "inventory", "es": 1_589_373_515_000, "id": 3}
        record |= {"isDdl": False, "mysqlType": types, "old": texts[1], "pkNames": ["id"]}
        return record | {"sql": "", "sqlType": codes, "table": "p", "ts": 1, "type": kind}

    pairs = [(before, after) for _, before, after in STEPS[2:4] if before and after]
    yield record("INIT", [HAMMER])  # a row that was there before, as Alibaba's services write it
    yield record("INSERT", [ROCKS])
    yield record("UPDATE", [after for _, after in pairs], [old_of(*pair) for pair in pairs])
    ddl = {"isDdl": True, "mysqlType": None, "pkNames": None, "sqlType": None, "data": None}
    yield record("CREATE", []) | ddl | {"sql": "CREATE TABLE other (id INT)", "table": "other"}
    yield record("DELETE", [STEPS[4][1] or {}])


def ogg() -> Iterator[Row]:
    """A side that there is not is missing or null."""
    for number, (op, before, after) in enumerate(STEPS):
        record = {"table": "OGG.TBL_TEST", "pos": f"{143 + number:023}", "primary_keys": ["id"]}
        record |= {"before": before} if before else {}
        record |= {"after": after} if after or before else {}
        kind = {"c": "I", "u": "U", "d": "D"}[op]
        yield record | {"op_type": kind, "op_ts": "2020-05-13 15:40:06.000000"}


def debezium() -> Iterator[Row]:
    """Postgres with the default replica identity, here of a table without a key: no row before."""
    for number, (op, _, after) in enumerate(STEPS):
        source = {"connector": "postgresql", "txId": 601, "lsn": 34_078_720 + number, "xmin": None}
        record = {"before": None, "after": after, "source": source, "op": op, "ts_ms": 1}
        yield record | {"transaction": None}


@pytest.fixture
def topics(fake_cluster: Any, registry: SmallRegistry) -> Topics:
    fake_cluster.create_topic(TOPIC)
    return Topics(fake_cluster, registry)


@pytest.mark.parametrize("form", [maxwell, canal, ogg, debezium], ids=lambda form: form.__name__)
def test_the_rows_of_captured_shapes(topics: Topics, form: Any) -> None:
    infer = {} if form is canal else {"valueSchema": "infer"}
    found = read(topics, form.__name__, list(form()), **infer)
    changes = [row.pop("change") for row in found]
    expected = [(op, after or before) for op, before, after in STEPS]
    if form is canal:
        expected[0] = ("r", HAMMER)
        assert changes.pop(4)["kind"] == "schema_change"
        assert found.pop(4) == dict.fromkeys(HAMMER)
    if form is debezium:
        expected[4] = ("d", dict.fromkeys(HAMMER))
    assert [(change["op"], row) for change, row in zip(changes, found, strict=True)] == expected
    assert {change["kind"] for change in changes} == {"row"}
    if form is not debezium:
        assert [change["key"]["id"] for change in changes] == [1, 2, 1, 2, 2]
    if form in (ogg, debezium):
        positions = [change["position"] for change in changes]
        assert positions == sorted(set(positions))


def test_the_last_row_of_a_transaction_of_maxwell_is_the_last(topics: Topics) -> None:
    """Rows of one event have one position, and `commit` is in the place of the last `xoffset`."""
    records = [record | {"position": "binlog.000012:7"} for record in list(maxwell())[2:]]
    found = read(topics, "maxwell", records, valueSchema="infer")
    positions = [row["change"]["position"] for row in found]
    assert positions == sorted(set(positions))
