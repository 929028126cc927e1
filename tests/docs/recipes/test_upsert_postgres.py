"""Upserts into Postgres and SQLite: what the page says holds when a micro-batch is repeated."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.docs.recipes.upserts import (
    AFTER_CHANGES,
    assert_a_record_without_a_key_is_an_error,
    start_after_a_kill,
)
from tests.docs.snippets import blocks, page, run
from tests.support.postgres_server import find_postgres, postgres_server

PAGE = "docs/recipes/upsert-postgres.md"
DATABASE = "host=localhost dbname=shop user=shop"
RECORDS = (4, 1)
"""How many records the keys of `AFTER_CHANGES` have had."""


@pytest.fixture
def database() -> Iterator[str | None]:
    programs = find_postgres()
    if programs is None:
        yield None
        return
    with postgres_server(programs) as started:
        yield started


def expected() -> list[tuple[Any, ...]]:
    return [(*row.values(), count) for row, count in zip(AFTER_CHANGES, RECORDS, strict=True)]


@pytest.mark.real
@pytest.mark.spark
def test_a_repeated_micro_batch_is_counted_once(
    spark: Any,
    kafka_cluster: Any,
    database: str | None,
    capsys: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = page(PAGE)
    (in_postgres,) = (block for _, block in blocks(text) if "psycopg.connect" in block)
    # The page's query runs with SQLite, which needs no server.
    tab = r'^=== "Postgres"\n(?:\n|    .*\n)+'
    copy = tmp_path / PAGE
    copy.parent.mkdir(parents=True)
    copy.write_text(re.sub(tab, "", text, flags=re.MULTILINE), "utf-8")
    monkeypatch.setattr("tests.docs.snippets.ROOT", tmp_path)
    servers = kafka_cluster.bootstrap_servers
    names, _ = run(PAGE, capsys, servers)

    def rows(query: str = "SELECT * FROM orders ORDER BY key") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(names["database"])) as db:
            return db.execute(query).fetchall()

    shown = re.findall(r"^\| (\d) \| (\w+) \| (\d+) \| (\d) \|$", text, re.MULTILINE)
    assert len(shown) == 2
    assert rows() == [(key, item, float(price), int(count)) for key, item, price, count in shown]

    writes = [names["upsert"]]
    if database is not None:
        with_postgres = dict(names)
        exec(in_postgres.replace(DATABASE, database), with_postgres)
        writes.append(with_postgres["upsert"])
    start_after_a_kill(names, servers, "orders-to-sql", *writes)
    assert rows() == expected()
    assert [batch for _, batch in rows("SELECT * FROM batches")] == [1]
    assert_a_record_without_a_key_is_an_error(names)
    if database is None:
        pytest.skip("SQLite is right. No Postgres was found: `apt-get install postgresql`")
    import psycopg

    with psycopg.connect(database) as db:
        assert db.execute("SELECT * FROM orders ORDER BY key").fetchall() == expected()
        assert [row[1] for row in db.execute("SELECT * FROM batches").fetchall()] == [1]
