"""Debezium's own Postgres connector: what it writes becomes the database's tables again.

10,000 random changes as JSON and as Avro, of all types of columns, with changes of keys, truncates,
and columns that are added in the middle; then the same with a driver that is killed three times.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkkafka import cdc
from sparkkafka.client import Admin
from sparkkafka.testing.kafka.ports import ReservedPorts
from tests.real.drivers import driver, wait_for_start
from tests.real.postgres_changes import (
    RandomChanges,
    change_during_snapshots,
    create_mirrors,
    create_tables,
    differing_rows,
)
from tests.real.streams import Job
from tests.support.debezium_connector import JSON, ConnectWorker, avro, postgres_settings
from tests.support.postgres_server import find_postgres, postgres_server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import psycopg  # in functions: each process of the tests imports all test modules

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.soak]

TABLES = ("goods", "notes")
FORMS = ("json", "avro")
CHANGES = 10_000
KILLS = 3
FOLLOW_S = 300.0


@dataclass
class Captured:
    """A database whose changes are in topics; the first part of their names is the format."""

    database: str
    servers: str
    registry: str

    def options(self, form: str, table: str) -> dict[str, str]:
        """The options of a read of a table's changes."""
        found = {"subscribe": f"{form}.public.{table}", "envelope": "debezium", "valueFormat": form}
        return found | ({"schema.registry.url": self.registry} if form == "avro" else {})

    def changes(self, spark: SparkSession, form: str, table: str) -> DataFrame:
        options = self.options(form, table) | {"kafka.bootstrap.servers": self.servers}
        return spark.read.format("pykafka").options(**options).load()


@pytest.fixture(scope="module")
def captured(
    kafka_cluster: Any, schema_registry: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    """The changes of a database, made while Debezium follows them."""
    programs = find_postgres()
    if programs is None:
        pytest.skip("no Postgres was found: `apt-get install postgresql`")
    import psycopg

    seed = int(os.environ.get("SPARKKAFKA_SEED") or time.time_ns() % 1_000_000)
    print(f"SPARKKAFKA_SEED={seed}")  # pytest shows it if a test fails
    servers = kafka_cluster.bootstrap_servers
    converters = {"json": JSON, "avro": avro(schema_registry.url)}
    with ExitStack() as stack:
        port = stack.enter_context(ReservedPorts()).take()
        database = stack.enter_context(postgres_server(programs, port=port))
        folder = tmp_path_factory.mktemp("connect-worker")
        worker = stack.enter_context(ConnectWorker(servers, folder))

        def start() -> None:
            for form, settings in converters.items():
                own = postgres_settings(port, form, skipped_operations="none")
                worker.start(form, own | settings)

        with psycopg.connect(database) as db:
            create_tables(db)
            changes = RandomChanges(db, seed)
            changes.make(CHANGES // 100)  # the snapshots have them
            change_during_snapshots(database, start, len(converters))
            for _ in range(2):
                changes.make(CHANGES // 4)
                changes.truncate()
            changes.make(CHANGES // 4)
            changes.alter()
            changes.make(CHANGES // 4)
            db.execute("CREATE TABLE marker (id int PRIMARY KEY); INSERT INTO marker VALUES (1)")
        with Admin({"bootstrap.servers": servers}) as admin:
            for form in converters:
                wait_until(
                    lambda topic=f"{form}.public.marker": topic in admin.list_topics(),
                    "the last change is in Kafka",
                    FOLLOW_S,
                )
                worker.stop(form)
        yield Captured(database, servers, schema_registry.url)


@contextmanager
def mirrors(captured: Captured) -> Iterator[psycopg.Connection]:
    """A connection to the database, in which the schema `mirror` has empty tables."""
    import psycopg

    with psycopg.connect(captured.database, autocommit=True) as db:
        create_mirrors(db, "mirror")
        yield db
        db.execute("DROP SCHEMA mirror CASCADE")


def assert_same_rows(db: psycopg.Connection) -> None:
    for table in TABLES:
        (rows,) = db.execute(f"SELECT count(*) FROM public.{table}").fetchone() or (0,)
        assert rows > 100
        found = differing_rows(db, "mirror", table)
        assert found == [], f"{len(found)} of {rows} rows of {table} differ: {found[:2]}"
        print(f"{table}: {rows} rows, none differs")


@pytest.mark.parametrize("form", FORMS)
def test_the_changes_become_the_database_s_tables(
    form: str, captured: Captured, spark: SparkSession
) -> None:
    import psycopg

    connect = partial(psycopg.connect, captured.database)
    with mirrors(captured) as db:
        for table in TABLES:
            changes = captured.changes(spark, form, table)
            batch = cdc.latest(changes, deletes="keep")
            cdc.apply(batch, f"mirror.{table}", connect=connect)
            rows = cdc.latest(changes).count()
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (rows,)
            # All changes once more: none is newer than what the table has.
            cdc.apply(changes, f"mirror.{table}", connect=connect)
        assert_same_rows(db)


@pytest.mark.parametrize("form", FORMS)
def test_the_driver_is_killed(
    form: str, captured: Captured, spark: SparkSession, tmp_path: Path
) -> None:
    luck = random.Random(1)
    with mirrors(captured) as db:
        for table in TABLES:
            folder = tmp_path / table
            folder.mkdir()
            job = Job(
                captured.servers,
                str(folder),
                captured.options(form, table) | {"maxOffsetsPerTrigger": "700"},
                database=captured.database,
                table=f"mirror.{table}",
            )
            for _ in range(KILLS if table == "goods" else 0):
                _, before = job.batches()
                with driver(job) as process:
                    wait_for_start(process, job)
                    wait_until(partial(_has_finished, job, before), "a batch is finished")
                    time.sleep(luck.uniform(0, 2))
                    assert process.poll() is None, "the driver ended by itself"
            job.run_to_end(spark, seconds=FOLLOW_S)
            print(f"{table}: {job.batches()} micro-batches planned and finished")
        assert_same_rows(db)


def _has_finished(job: Job, before: int) -> bool:
    return job.batches()[1] > before
