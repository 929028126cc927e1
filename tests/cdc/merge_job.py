"""Random changes into tables of Delta or Iceberg, which need a Spark that has their jars.

`python -m tests.cdc.merge_job FORMAT JARS FOLDER` applies batches in any order, some of them
twice, and fails unless the tables have the source's rows and versions.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkkafka import cdc
from tests.cdc.source_table import SourceTable, frame, row_of, versions_of

EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
CATALOGS = {
    "delta": ("spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),
    "iceberg": ("shop", "org.apache.iceberg.spark.SparkCatalog"),
}
COLUMNS = "id int, part string, note string, amount decimal(10, 2), tags array<string>"
ENDS = "valid_from timestamp, valid_to timestamp, is_current boolean"


def session(format: str, jars: str, folder: Path) -> SparkSession:
    catalog, class_name = CATALOGS[format]
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", EXTENSIONS[format])
        .config(f"spark.sql.catalog.{catalog}", class_name)
        .config(f"spark.sql.catalog.{catalog}.type", "hadoop")
        .config(f"spark.sql.catalog.{catalog}.warehouse", str(folder / "iceberg"))
        .config("spark.sql.warehouse.dir", str(folder / "delta"))
        .getOrCreate()
    )


def main(format: str, jars: str, folder: str) -> None:
    spark = session(format, jars, Path(folder))
    schema = f"{CATALOGS[format][0]}.default"
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {schema}")
    for scd, toast in ((1, False), (1, True), (2, False), (2, True)):
        table = f"{schema}.orders_{scd}_{toast}"
        columns = COLUMNS if scd == 1 else f"{COLUMNS}, {ENDS}"
        # A column may have the name of a relation of the SQL.
        columns += ", _position string, s string"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING {format}")
        source = SourceTable(
            337 if toast else 4, toast=toast, one_record=not toast, snapshots=toast
        )
        source.change(50)
        if not toast:  # a value that is not sent must not come before the value
            source.partitions = 3
        source.change(50)
        batches = source.batches(150)
        order = [*batches, batches[0]]
        if not toast:
            source.random.shuffle(order)
        for batch in order:
            changes = frame(spark, batch).withColumn("s", F.col("note"))
            cdc.apply(changes, table, scd=scd)
        rows = [tuple(row) for row in spark.table(table).collect()]
        if scd == 1:
            assert {row[:2]: row_of(*row[2:5]) for row in rows} == source.rows, table
        else:
            assert versions_of([row[:8] for row in rows]) == source.versions(), table
        assert len(source.rows) > 3


if __name__ == "__main__":
    main(*sys.argv[1:])
