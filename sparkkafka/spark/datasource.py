"""`KafkaDataSource`, which Spark calls for schemas, readers and writers.

Readers and writers are imported only when they are needed, and constructors do not touch the
network: Spark makes a DataSource in several short-lived Python processes per query.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader

from sparkkafka.config.options import (
    ReadOptions,
    parse_read_options,
    parse_stream_options,
    parse_stream_write_options,
    parse_write_options,
)
from sparkkafka.config.parsed_options import warn, without_unused_values
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.logs import set_up_logging
from sparkkafka.spark.delegation_tokens import with_token

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sparkkafka.spark.read.reader import KafkaBatchReader
    from sparkkafka.spark.schema import ReadColumn
    from sparkkafka.spark.stream.reader import FailedStreamReader, KafkaStreamReader
    from sparkkafka.spark.write.writer import KafkaBatchWriter, KafkaStreamWriter


class KafkaDataSource(DataSource):
    """Reads topics into DataFrames and writes DataFrames to topics: `format("pykafka")`.

    Options, columns and defaults are those of Spark's `kafka` format; docs/ lists them.

        df = (
            spark.read.format("pykafka")
            .option("kafka.bootstrap.servers", "host:9092")
            .option("subscribe", "orders")
            .load()
        )
        (
            df.write.format("pykafka")
            .option("kafka.bootstrap.servers", "host:9092")
            .option("topic", "copy")
            .mode("append")
            .save()
        )

    Columns of a read, all nullable: key binary, value binary, topic string, partition int, offset
    bigint, timestamp timestamp, timestampType int; with includeHeaders=true also headers
    array<struct<key: string, value: binary>>. `.schema("value string, offset bigint")` chooses
    among them, key and value also as strings. With valueFormat (keyFormat) avro, protobuf or json
    the column has the type of its schema, of which `.schema(…)` can name some fields. With envelope
    (debezium, maxwell …) the columns are those of the table whose changes the records are, and
    change. Columns of a write: value (required), key, headers, topic, partition, timestamp.
    """

    options: Mapping[str, str]  # type: ignore[assignment]  # read-only: nothing may change them

    def __init__(self, options: Any) -> None:
        # Spark pickles this object to its workers, without values that nothing reads: an unknown
        # kafka.* property may hold a secret.
        super().__init__(without_unused_values(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, as `spark.read.format` takes it."""
        return "pykafka"

    def schema(self) -> StructType:
        """Return the columns of a read, or of a table that SQL writes to without naming columns.

        With valueFormat or keyFormat this looks up the schemas in the registry; without them the
        columns depend only on includeHeaders.
        """
        from sparkkafka.spark.schema import spark_schema

        formats = (self.options.get(f"{column}format", "") for column in ("value", "key"))
        if any(name.strip().lower() not in ("", "binary") for name in formats):
            set_up_logging()
            if any(name in self.options for name in ("subscribe", "subscribepattern", "assign")):
                from sparkkafka.spark.read.typed_columns import typed_schema

                return typed_schema(self.options)
            from sparkkafka.spark.write.encoding import written_schema

            return written_schema(self.options)
        headers = str(self.options.get("includeheaders", "false")).strip().lower()
        return spark_schema(include_headers=headers == "true")

    def _columns(self, schema: StructType, options: ReadOptions) -> tuple[ReadColumn, ...]:
        """Return the columns of a read that the schema names."""
        if options.formats is None:
            from sparkkafka.spark.schema import columns_of_schema

            return columns_of_schema(schema)
        from sparkkafka.spark.read.typed_columns import typed_columns

        return typed_columns(schema, options, options.formats)

    def reader(self, schema: StructType) -> KafkaBatchReader:
        """Return the reader of a batch query, with `pushFilters` only if filterPushdown=true, and
        with `pushLimit` only if limitPushdown=true. Raises OptionError, also for an option that
        this version of Spark has no means for."""
        from sparkkafka.spark.read.reader import KafkaBatchReader

        set_up_logging()
        options = parse_read_options(with_token(self.options))
        columns = self._columns(_spark_types(schema), options)
        for option, is_set, method, release, what in (
            ("filterPushdown", options.filter_pushdown, "pushFilters", "4.1", "filters"),
            ("limitPushdown", options.limit_pushdown, "pushLimit", "4.4", "limits"),
        ):
            if is_set and not hasattr(DataSourceReader, method):
                raise OptionError(
                    f"{option}=true needs Spark {release} or later: earlier versions pass no "
                    f"{what} to Python sources. Remove the option"
                )
        if options.bind_offsets == "plan" and not hasattr(DataSourceReader, "pushFilters"):
            raise OptionError(
                "bindOffsets=plan needs Spark 4.1 or later: Spark 4.0 plans each query of a "
                "DataFrame anew. Remove the option, and read with the options that "
                "sparkkafka.resolve_offsets returns"
            )
        if not (options.filter_pushdown or options.limit_pushdown):
            return KafkaBatchReader(options, columns)
        from sparkkafka.spark.read import pushdown

        if not options.limit_pushdown:
            return pushdown.FilterPushdownReader(options, columns)
        if not options.filter_pushdown:
            return pushdown.LimitPushdownReader(options, columns)
        return pushdown.PushdownReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """Return the writer of a batch query. Raises OptionError for `overwrite`."""
        from sparkkafka.client.deadline import Deadline
        from sparkkafka.client.net.connecting import check_servers
        from sparkkafka.spark.pyspark_internals import freeze_loaded_objects
        from sparkkafka.spark.write.writer import KafkaBatchWriter

        set_up_logging()
        if overwrite:
            raise OptionError(
                "Kafka topics can only be appended to, so mode('overwrite') and INSERT OVERWRITE "
                "are refused: use mode('append')"
            )
        options = parse_write_options(with_token(self.options))
        writer = KafkaBatchWriter(options, _spark_types(schema))
        # Tasks would wait for a wrong address several times as long, because they must outlive
        # brokers that restart.
        check_servers(options.client, Deadline(options.client.first_contact_ms))
        if writer.uses_internals:
            freeze_loaded_objects()
        return writer

    def streamReader(self, schema: StructType) -> KafkaStreamReader | FailedStreamReader:
        """Return the reader of a streaming query: of the class that fits this version of Spark; for
        wrong options one that raises the error at Spark's first call."""
        set_up_logging()
        try:
            options = parse_stream_options(with_token(self.options))
            columns = self._columns(schema, options)
        except KafkaError as error:
            from sparkkafka.spark.stream.reader import FailedStreamReader

            return FailedStreamReader(error)
        if find_spec("pyspark.sql.streaming.datasource"):  # Spark 4.2
            from sparkkafka.spark.stream.reader import StreamReaderSpark42

            return StreamReaderSpark42(options, columns)
        from sparkkafka.spark.stream.reader import StreamReaderSpark40

        limits = options.stream
        if limits.max_offsets_per_trigger is not None or limits.max_bytes_per_trigger is not None:
            warn(
                "limit of a trigger",
                "before Spark 4.2, triggers availableNow and once run one micro-batch: "
                "maxOffsetsPerTrigger and maxBytesPerTrigger then leave the rest unread. Remove "
                "them for these triggers",
            )
        return StreamReaderSpark40(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Return the writer of a micro-batch. `overwrite` means output mode complete: as with the
        JVM connector, each micro-batch's whole result is appended."""
        from sparkkafka.spark.pyspark_internals import freeze_loaded_objects
        from sparkkafka.spark.write.writer import KafkaStreamWriter

        set_up_logging()
        writer = KafkaStreamWriter(parse_stream_write_options(with_token(self.options)), schema)
        if writer.uses_internals:
            freeze_loaded_objects()
        return writer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self.options))})"  # names only


def _spark_types(schema: StructType) -> StructType:
    """Return the schema that Spark passes. Sail passes a schema of Arrow instead."""
    if hasattr(schema, "fields"):
        return schema
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


DefaultSource = KafkaDataSource
