"""The SQL for Delta and Iceberg. Neither runs on this Spark, but it parses the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DataType

from sparkkafka.cdc.merge_sql import HistoryMerge, Merge, check_types
from sparkkafka.cdc.spark_tables import _number_keys, _widened
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


def test_a_merge_reads_only_files_that_may_have_the_keys_of_numbers(spark: Any) -> None:
    merge = Merge(**{**NAMES, "key_ranges": {"ta`x": (-(2**63), 2**63 - 1)}})  # type: ignore[arg-type]
    bounds = "t.`ta``x` BETWEEN -9223372036854775808 AND 9223372036854775807"
    history = HistoryMerge(**vars(merge))
    for text in (merge.spark_merge(None), history.spark_merge(None), history.spark_rows(False)):
        assert bounds in text
        spark._jsparkSession.sessionState().sqlParser().parsePlan(text)


def test_only_keys_that_are_integers_on_both_sides_have_a_range(spark: Any) -> None:
    # Without ANSI, Spark casts a column of strings to the type of each bound: '5000000000' >= 0
    # would not hold.
    rows = spark.createDataFrame([], "A bigint, B int, C string, D smallint")
    merge = Merge(**{**NAMES, "keys": ("A", "B", "C", "D")})  # type: ignore[arg-type]
    target = spark.createDataFrame([], "a string, b bigint, c bigint, d decimal(10, 0)").schema
    types = {field.name: field.dataType for field in target}
    assert _number_keys(merge, rows, types) == ["B"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_bounds_of_a_key_have_all_its_values_and_change_seldom(keys: list[int]) -> None:
    low, high = _widened(min(keys), max(keys))
    assert -(2**63) <= low <= min(keys) <= max(keys) <= high < 2**63
    assert high - low <= 4 * (max(keys) - min(keys)) + 1


def test_bounds_stay_while_keys_grow() -> None:
    bounds = {_widened(first, first + 1_000) for first in range(0, 100_000, 100)}
    assert len(bounds) == 98


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
