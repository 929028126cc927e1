"""The SQL for Delta and Iceberg. Neither runs on this Spark, but it parses the text."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import DataType

from sparkkafka.cdc.merge_sql import HistoryMerge, Merge, check_types
from sparkkafka.errors import OptionError

pytestmark = pytest.mark.spark

NAMES = {
    "target": "shop.orders",
    "changes": "v",
    "keys": ("id", "ta`x"),
    "columns": ("id", "ta`x", "it's"),
    "unsent_columns": frozenset({"it's"}),
    "quote": "`",
}


@pytest.mark.parametrize("truncate", [None, "00000000000000000012 0000000000"])
def test_spark_parses_the_statements(spark: Any, truncate: str | None) -> None:
    merge = Merge(**NAMES)  # type: ignore[arg-type]
    parser = spark._jsparkSession.sessionState().sqlParser()
    plan = parser.parsePlan(merge.spark_merge(truncate)).toString()
    assert "MergeIntoTable" in plan
    by_source = "WHEN NOT MATCHED BY SOURCE" in merge.spark_merge(truncate)
    assert by_source == (truncate is not None)
    assert "InsertIntoStatement" in parser.parsePlan(merge.remember_deletes).toString()
    parser.parsePlan(merge.spark_rows(truncate is not None))
    history = HistoryMerge(**{**NAMES, "columns": (*merge.columns, "valid_from")})  # type: ignore[arg-type]
    assert "MergeIntoTable" in parser.parsePlan(history.spark_merge(truncate)).toString()
    assert (
        "WithWindowDefinition"
        in parser.parsePlan(history.spark_rows(truncate is not None)).toString()
    )


def test_the_table_of_deletes_is_beside_the_target() -> None:
    for target, deletes in (
        ("orders", "orders__deletes"),
        ("a.b.`or ders`", "a.b.`or ders__deletes`"),
        ('shop."Orders"', 'shop."Orders__deletes"'),
    ):
        assert Merge(**{**NAMES, "target": target}).deletes == deletes  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["{}", "array<{}>", "map<string, {}>", "struct<x: int, n: {}>"])
def test_a_type_in_a_type_that_would_round_is_an_error(form: str) -> None:
    merge = Merge(**{**NAMES, "columns": ("n",)})  # type: ignore[arg-type]
    old, same, wider = (
        DataType.fromDDL(form.format(type)) for type in ("decimal(9, 2)", "int", "decimal(9, 3)")
    )
    check_types(merge, {"n": same}, {"n": old})
    with pytest.raises(OptionError, match="would be rounded or cut"):
        check_types(merge, {"n": wider}, {"n": old})
