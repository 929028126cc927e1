"""Columns with a schema: our reads and writes beside Spark's own functions, and our decoders beside
confluent-kafka's deserializers.

The JVM connector reads bytes and Spark's `from_avro`, or `from_json`, makes columns of them: of the
value without the five bytes of Confluent's frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkkafka.testing.registry import SchemaRegistry
from tests.bench import data
from tests.bench.cases import (
    DECODE_AVRO,
    DECODE_PROTOBUF,
    JVM,
    PARTITIONS,
    PYKAFKA,
    READ_AVRO,
    READ_FEW,
    READ_JSON,
    SCHEMAS,
    WRITE_AVRO,
)
from tests.bench.library_rows import one_core
from tests.bench.results import Row
from tests.bench.rivals import CONFLUENT
from tests.bench.schema_data import (
    AVRO,
    AVRO_SCHEMA,
    DDL,
    FEW_DDL,
    JSON,
    JSON_SCHEMA,
    PROTOBUF,
    PROTOBUF_SCHEMA,
    Filled,
    filled,
    framed,
    orders,
    payloads,
)
from tests.bench.schema_data import SCHEMAS as TEXTS
from tests.bench.turns import take_turns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tests.bench.worker_memory import WorkerMemory

READ_TARGET, FEW_TARGET = 1.5, 1.5
JSON_TARGET = WRITE_TARGET = 1.0
DECODE_TARGETS = {AVRO: 10.0, PROTOBUF: 8.0}

ALL_FIELDS = f"{PYKAFKA}, all fields"
_BATCH_ROWS = 8192  # as the reader hands them over
_BLOCKS, _RIVAL_ROWS = 8, 20_000  # of one core's work
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

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Those of `SCHEMA_ROWS`."""
        if READ_AVRO in names or READ_FEW in names:
            yield from self._avro_reads(names)
        if READ_JSON in names:
            yield self._json_read()
        if WRITE_AVRO in names:
            yield self._avro_write()
        with one_core():
            for form, name in ((AVRO, DECODE_AVRO), (PROTOBUF, DECODE_PROTOBUF)):
                if name in names:
                    yield self._decode(form, name)

    # --- reads ----------------------------------------------------------------------------------

    def _avro_reads(self, names: Sequence[str]) -> Iterator[Row]:
        from pyspark.sql.avro.functions import from_avro
        from pyspark.sql.functions import expr

        topic = "bench-schemas-avro"
        schema_id = self._registry.register(f"{topic}-value", AVRO_SCHEMA)
        with filled(self._servers, topic, framed(AVRO, schema_id), self._rows) as held:
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
        with filled(self._servers, topic, payloads(JSON), self._rows) as held:
            value = from_json(col("value").cast("string"), f"struct<{DDL}>")
            self._renew_workers(lambda: self._ours(held, JSON))
            return self._read_row(
                READ_JSON,
                JSON_TARGET,
                held,
                lambda: self._ours(held, JSON),
                lambda: self._theirs(held, value),
            )

    def _ours(self, held: Filled, form: str, schema: str = "") -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": held.name,
            "valueFormat": form,
        }
        if form == JSON:
            options |= {"valueSchema": JSON_SCHEMA, "valueFraming": "none"}
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
        for frame in (ours(), theirs()):
            self._check(frame, held)
        row = Row(SCHEMAS, name, "rows/s", rival, target=target)
        return self._in_turns(row, lambda: _noop(ours()), lambda: _noop(theirs()), held.rows)

    def _check(self, frame: DataFrame, held: Filled) -> None:
        found = frame.selectExpr("count(value.id)", "sum(value.id)").first()
        if found is None or tuple(found) != (held.rows, held.ids):
            raise AssertionError(f"{held.name}: {found} instead of {held.rows, held.ids}")

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
        finally:
            frame.unpersist(blocking=True)
            for topic in topics:
                data.remove_topic(self._servers, topic)
        return row

    # --- decoders alone -------------------------------------------------------------------------

    def _decode(self, form: str, name: str) -> Row:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroDeserializer
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        from sparkkafka.schemas.values import Schema
        from tests.support.protoc import message_class

        topic = f"bench-schemas-decode-{form}"
        schema_id = self._registry.register(f"{topic}-value", TEXTS[form], form.upper())
        block = framed(form, schema_id)
        decode = our_decoder(Schema(form, TEXTS[form]))
        found = pa.concat_arrays([decode(piece) for piece in _spans(block)])
        if found.field("id").to_pylist() != [order["id"] for order in orders()]:
            raise AssertionError(f"wrong ids of {form}")

        # Seconds of the processor: neither side waits for anything.
        def ours() -> float:
            begin = time.process_time()
            for _ in range(_BLOCKS):
                for piece in _spans(block):
                    decode(piece)
            return _BLOCKS * len(block) / 1e6 / (time.process_time() - begin)

        few = block.slice(0, _RIVAL_ROWS).to_pylist()
        context = SerializationContext(topic, MessageField.VALUE, [])
        with SchemaRegistryClient({"url": self._registry.url}) as client:
            if form == AVRO:
                deserialize: Any = AvroDeserializer(client)
            else:
                kind = message_class(PROTOBUF_SCHEMA, "shop.Order")
                # Without a registry, which it asks for a form that Apicurio's does not have.
                deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False})

            def theirs() -> float:
                begin = time.process_time()
                for payload in few:
                    deserialize(payload, context)
                return len(few) / 1e6 / (time.process_time() - begin)

            row = Row(
                SCHEMAS,
                name,
                "M records/s",
                CONFLUENT,
                target=DECODE_TARGETS[form],
            )
            return take_turns(row, ours, theirs, self._pairs + 2, self._say, collects=True)

    # --- both -----------------------------------------------------------------------------------

    def _renew_workers(self, ours: Callable[[], DataFrame]) -> None:
        self._memory.renew_workers()
        _noop(ours())

    def _in_turns(
        self, row: Row, ours: Callable[[], None], theirs: Callable[[], None], rows: int
    ) -> Row:
        self._memory.reset()
        for _ in range(self._pairs_of(self._pairs)):
            with self._memory.watch():
                row.ours.append(rows / _seconds(ours))
            row.theirs.append(rows / _seconds(theirs))
        row.worker_rss_mb = self._memory.beyond_idle_mb
        return row


def our_decoder(schema: Any) -> Callable[[pa.Array], pa.Array]:
    """What a read task does with a batch of values whose frames all have one id."""
    from sparkkafka.config.kinds import CONFLUENT as PREFIX
    from sparkkafka.schemas.column import ColumnDecoder, ColumnPlan, format_module

    class OneWriter:
        def by_id(self, _schema_id: int, _subject: str | None, _format: str) -> Any:
            return schema

        def by_guid(self, _guid: bytes) -> Any:
            return schema

    kind = format_module(schema.format).arrow_type(schema)
    plan = ColumnPlan(
        column="value", format=schema.format, framing=PREFIX, reader=schema, type=kind
    )
    decoder = ColumnDecoder(plan, OneWriter)

    def decode(values: pa.Array) -> pa.Array:
        decoded = decoder.decode(values, None)
        if decoded.bad:
            raise AssertionError(f"bad records: {decoded.bad[0].reason}")
        return decoded.values

    return decode


def _spans(block: pa.Array) -> Sequence[pa.Array]:
    return [block.slice(low, _BATCH_ROWS) for low in range(0, len(block), _BATCH_ROWS)]


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
