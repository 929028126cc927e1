"""Columns with a schema: our reads and writes beside Spark's own functions.

The JVM connector reads bytes and Spark's `from_avro`, or `from_json`, makes columns of them: of the
value without the five bytes of Confluent's frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkkafka.testing.registry import SchemaRegistry
from tests.bench import data
from tests.bench.cases import (
    JVM,
    PARTITIONS,
    PYKAFKA,
    READ_AVRO,
    READ_CHANGES,
    READ_FEW,
    READ_JSON,
    SCHEMA_ROWS,
    SCHEMAS,
    WRITE_AVRO,
)
from tests.bench.checks import SPARK_SUMS, WrongResultError, compare, ends, read_back
from tests.bench.results import WRITTEN, Row
from tests.bench.schema_data import (
    AVRO,
    AVRO_SCHEMA,
    DDL,
    FEW_DDL,
    JSON,
    JSON_SCHEMA,
    Filled,
    changes,
    filled,
    framed,
    order_ids,
    orders,
    payloads,
)
from tests.bench.shape_rows import TITLES
from tests.bench.shapes import BLOCK_ROWS, SHAPES, Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tests.bench.worker_memory import WorkerMemory

READ_TARGET, FEW_TARGET = 1.5, 1.5
JSON_TARGET = WRITE_TARGET = 1.0

ALL_FIELDS = f"{PYKAFKA}, all fields"
_SHAPE_ROWS = 200_000


def _sums_of(shape: Shape) -> tuple[str, str]:
    """SQL of a count and a sum of hashes. Entries of maps are sorted: from_avro has no order."""
    fields = [
        f"array_sort(map_entries(value.{name}))"
        if isinstance(kind, dict) and kind["type"] == "map"
        else f"value.{name}"
        for name, kind in shape.fields
    ]
    return "count(value)", f"sum(crc32(cast(to_json(struct({', '.join(fields)})) as binary)))"


_JVM_COLUMNS = ("key", "topic", "partition", "offset", "timestamp", "timestampType")


class SchemaBench:
    """Rows of the group `SCHEMAS`. `pairs_of`: how many pairs of runs a row gets."""

    def __init__(
        self,
        spark: SparkSession,
        servers: str,
        registry: SchemaRegistry,
        memory: WorkerMemory,
        say: Callable[[str], None],
        pairs_of: Callable[[int], int],
        *,
        quick: bool,
    ) -> None:
        self._spark, self._servers, self._registry = spark, servers, registry
        self._memory, self._say, self._pairs_of = memory, say, pairs_of
        self._rows = 100_000 if quick else 1_000_000
        self._pairs = 2 if quick else 3

    def work(
        self, wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
        """What measures `SCHEMA_ROWS` and reads of the eight shapes, as Avro and as JSON, of those
        whose "group: name" is wanted."""
        names = [name for name in SCHEMA_ROWS if wanted(f"{SCHEMAS}: {name}")]
        avro = [name for name in names if name in (READ_AVRO, READ_FEW)]
        if avro:
            yield "; ".join(avro), lambda: self._avro_reads(avro)
        if READ_JSON in names:
            yield READ_JSON, lambda: iter([self._json_read()])
        if WRITE_AVRO in names:
            yield WRITE_AVRO, lambda: iter([self._avro_write()])
        if READ_CHANGES in names:
            yield READ_CHANGES, lambda: iter([self._change_read()])
        for form in (AVRO, JSON):
            group = f"decode {TITLES[form]} in Spark"
            for shape in SHAPES:
                if wanted(f"{group}: {shape.name}"):
                    yield (
                        f"{group}: {shape.name}",
                        lambda group=group, shape=shape, form=form: iter(
                            [self._shape_read(group, shape, form)]
                        ),
                    )

    def _shape_read(self, group: str, shape: Shape, form: str) -> Row:
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.functions import col, expr, from_json

        rival = f"{JVM}, from_{form}"
        row = Row(group, shape.name, "rows/s", rival)
        topic = f"bench-shapes-{form}-{SHAPES.index(shape)}"
        text, head = shape.texts[form], b""
        if form == AVRO:
            schema_id = self._registry.register(f"{topic}-value", text)
            head = b"\x00" + schema_id.to_bytes(4, "big")
        values = pa.array([head + payload for payload in shape.payloads(form)], pa.binary())
        rows = _SHAPE_ROWS * shape.block_rows // BLOCK_ROWS
        with filled(self._servers, topic, values, rows, ids=None) as held:
            ours = self._ours(held, form, json_schema=text)
            if form == AVRO:
                value = from_avro(expr("substring(value, 6)"), text)
            else:
                value = from_json(col("value").cast("string"), ours.schema["value"].dataType)
            theirs = self._theirs(held, value)
            for side, frame in ((PYKAFKA, ours), (JVM, theirs)):
                row.checks[side] = list(frame.selectExpr(*_sums_of(shape)).first() or ())
            compare({**row.checks, "rows": [held.rows, row.checks[JVM][1]]}, row.name)
            self._renew_workers(lambda: self._ours(held, form, json_schema=text))
            row.settings[PYKAFKA] = self._settings(form)
            return self._in_turns(
                row,
                lambda: _noop(self._ours(held, form, json_schema=text)),
                lambda: _noop(self._theirs(held, value)),
                held.rows,
            )

    # --- reads ----------------------------------------------------------------------------------

    def _avro_reads(self, names: Sequence[str]) -> Iterator[Row]:
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.functions import expr

        topic = "bench-schemas-avro"
        schema_id = self._registry.register(f"{topic}-value", AVRO_SCHEMA)
        with filled(self._servers, topic, framed(AVRO, schema_id), self._rows, order_ids()) as held:
            value = from_avro(expr("substring(value, 6)"), AVRO_SCHEMA)
            self._renew_workers(lambda: self._ours(held, AVRO))
            if READ_AVRO in names:
                yield self._read_row(
                    READ_AVRO,
                    READ_TARGET,
                    held,
                    lambda: self._ours(held, AVRO),
                    lambda: self._theirs(held, value),
                )
            if READ_FEW not in names:
                return
            everything = self._ours(held, AVRO, f"value struct<{DDL}>")
            self._check(everything, held)
            yield self._read_row(
                READ_FEW,
                FEW_TARGET,
                held,
                lambda: self._ours(held, AVRO, f"value struct<{FEW_DDL}>"),
                lambda: self._ours(held, AVRO, f"value struct<{DDL}>"),
                rival=ALL_FIELDS,
            )
            two = "id", "price"
            yield self._read_row(
                READ_FEW,
                None,
                held,
                lambda: self._ours(held, AVRO, f"value struct<{FEW_DDL}>"),
                lambda: self._theirs(held, value).select(
                    expr(f"struct({', '.join(f'value.{name}' for name in two)})").alias("value")
                ),
            )

    def _json_read(self) -> Row:
        from pyspark.sql.functions import col, from_json

        topic = "bench-schemas-json"
        with filled(self._servers, topic, payloads(JSON), self._rows, order_ids()) as held:
            value = from_json(col("value").cast("string"), f"struct<{DDL}>")
            self._renew_workers(lambda: self._ours(held, JSON))
            return self._read_row(
                READ_JSON,
                JSON_TARGET,
                held,
                lambda: self._ours(held, JSON),
                lambda: self._theirs(held, value),
            )

    def _change_read(self) -> Row:
        """Changes as rows, beside from_json and select."""
        from pyspark.sql.functions import col, from_json
        from pyspark.sql.types import DataType, StructType

        change = "change: struct<op: string, position: string>"
        columns = DataType.fromDDL(f"struct<{DDL}, {change}>")
        row = f"struct<{DDL}>"
        envelope = f"before: {row}, after: {row}, source: struct<lsn: bigint>, op: string"
        value = from_json(col("value").cast("string"), f"struct<{envelope}>")
        settings = {**self._settings(JSON), "envelope": "debezium"}
        topic = "bench-schemas-changes"
        with filled(self._servers, topic, changes(), self._rows, order_ids()) as held:

            def ours() -> DataFrame:
                reader = self._spark.read.format(PYKAFKA).options(**settings)
                reader = reader.option("kafka.bootstrap.servers", self._servers)
                assert isinstance(columns, StructType)
                return reader.option("subscribe", topic).schema(columns).load()

            def theirs() -> DataFrame:
                found = self._theirs(held, value)
                return found.select("value.after.*", "value.op", "value.source.lsn")

            found_row = Row(SCHEMAS, READ_CHANGES, "rows/s", JVM, target=JSON_TARGET)
            found_row.checks = {
                PYKAFKA: self._check(ours(), held, "id"),
                JVM: self._check(theirs(), held, "id"),
                WRITTEN: [held.rows, held.ids],
            }
            found_row.settings[PYKAFKA] = settings
            self._renew_workers(ours)
            return self._in_turns(
                found_row, lambda: _noop(ours()), lambda: _noop(theirs()), held.rows
            )

    def _settings(self, form: str) -> dict[str, str]:
        return {"valueFormat": form, "valueFraming": "none" if form == JSON else "confluent"}

    def _ours(
        self, held: Filled, form: str, schema: str = "", json_schema: str = JSON_SCHEMA
    ) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": held.name,
            **self._settings(form),
        }
        if form == JSON:
            options["valueSchema"] = json_schema
        else:
            options["schema.registry.url"] = self._registry.url
        reader = self._spark.read.format(PYKAFKA).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def _theirs(self, held: Filled, value: Column) -> DataFrame:
        reader = (
            self._spark.read.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", held.name)
        )
        return reader.load().select(value.alias("value"), *_JVM_COLUMNS)

    def _read_row(
        self,
        name: str,
        target: float | None,
        held: Filled,
        ours: Callable[[], DataFrame],
        theirs: Callable[[], DataFrame],
        rival: str = JVM,
    ) -> Row:
        row = Row(SCHEMAS, name, "rows/s", rival, target=target)
        for side, frame in ((PYKAFKA, ours()), (rival, theirs())):
            row.checks[side] = self._check(frame, held)
        row.checks[WRITTEN] = [held.rows, held.ids]
        row.settings[PYKAFKA] = self._settings(JSON if name == READ_JSON else AVRO)
        return self._in_turns(row, lambda: _noop(ours()), lambda: _noop(theirs()), held.rows)

    def _check(self, frame: DataFrame, held: Filled, field: str = "value.id") -> list[int | None]:
        """The count and the sum of the field id."""
        found = frame.selectExpr(f"count({field})", f"sum({field})").first()
        if found is None or tuple(found) != (held.rows, held.ids):
            raise WrongResultError(f"{held.name}: {found} instead of {held.rows, held.ids}")
        return list(found)

    # --- writes ---------------------------------------------------------------------------------

    def _avro_write(self) -> Row:
        from pyspark.sql.avro.functions import from_avro, to_avro
        from pyspark.sql.functions import expr

        topics = "bench-schemas-write-ours", "bench-schemas-write-theirs"
        schema_id = self._registry.register(f"{topics[0]}-value", AVRO_SCHEMA)
        head = f"unhex('00{schema_id:08x}')"
        block = self._spark.createDataFrame(pa.Table.from_pylist(list(orders()), _arrow_schema()))
        times = self._rows // len(orders())
        frame = (
            block.crossJoin(self._spark.range(times).withColumnRenamed("id", "number"))
            .repartition(PARTITIONS)
            .selectExpr(f"struct({', '.join(orders()[0])}) as value")
            .persist()
        )
        rows = frame.count()
        with data.open_cluster(self._servers) as cluster:
            for topic in topics:
                data.make_topic(cluster, topic, PARTITIONS)
        ours = {
            "valueFormat": AVRO,
            "valueSchema": AVRO_SCHEMA,
            "schema.registry.url": self._registry.url,
        }
        encoded = frame.select(to_avro("value", AVRO_SCHEMA).alias("value")).selectExpr(
            f"concat({head}, value) as value"
        )
        runs = [0, 0]

        def write(number: int) -> None:
            source, form = (frame, PYKAFKA) if number == 0 else (encoded, "kafka")
            writer = source.write.format(form).options(**(ours if number == 0 else {}))
            writer = writer.option("kafka.bootstrap.servers", self._servers)
            writer.option("topic", topics[number]).mode("append").save()
            runs[number] += 1

        try:
            self._memory.renew_workers()
            write(0)
            write(1)
            row = Row(SCHEMAS, WRITE_AVRO, "rows/s", JVM, target=WRITE_TARGET)
            self._in_turns(row, lambda: write(0), lambda: write(1), rows)
            ids = sum(order["id"] for order in orders()) * times
            for number, topic in enumerate(topics):
                held = Filled(topic, rows * runs[number], ids * runs[number])
                value = from_avro(expr("substring(value, 6)"), AVRO_SCHEMA)
                self._check(self._theirs(held, value), held)
            # Both topics have the same bytes.
            first = encoded.selectExpr(*SPARK_SUMS).first()
            row.checks[WRITTEN] = list(first or ())
            for number, side in enumerate((PYKAFKA, JVM)):
                starts = ends(self._servers, topics[number], PARTITIONS)
                write(number)
                back = read_back(self._servers, topics[number], starts)
                row.checks |= {f"{program}, of {side}": n for program, n in back.items()}
            compare(row.checks, row.name)
            row.settings[PYKAFKA] = self._settings(AVRO)
        finally:
            frame.unpersist(blocking=True)
            for topic in topics:
                data.remove_topic(self._servers, topic)
        return row

    # --- both -----------------------------------------------------------------------------------

    def _renew_workers(self, ours: Callable[[], DataFrame]) -> None:
        self._memory.renew_workers()
        _noop(ours())

    def _in_turns(
        self, row: Row, ours: Callable[[], None], theirs: Callable[[], None], rows: int
    ) -> Row:
        self._memory.reset()
        row.work = [rows, rows]
        for _ in range(self._pairs_of(self._pairs)):
            with self._memory.watch():
                row.ours_s.append(_seconds(ours))
            row.theirs_s.append(_seconds(theirs))
        row.worker_rss_mb = self._memory.beyond_idle_mb
        return row


def _arrow_schema() -> pa.Schema:
    customer = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    return pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("name", pa.string()),
            ("note", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("status", pa.string()),
            ("tags", pa.list_(pa.int64())),
            ("customer", customer),
            ("quantity", pa.int32()),
            ("active", pa.bool_()),
        ]
    )


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
