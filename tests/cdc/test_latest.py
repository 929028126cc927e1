"""`cdc.latest`: the last change of each key, in the order of the source."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F

from sparkkafka import cdc
from sparkkafka.cdc.net_changes import (
    DELETED,
    OUT_OF_ORDER,
    POSITION,
    TRUNCATED,
    UNAVAILABLE,
    Changes,
    lower_bound,
    newer,
)
from sparkkafka.errors import OptionError
from tests.cdc.source_table import START, SourceTable, frame, row_of

pytestmark = pytest.mark.spark


def table(rows: list[Any]) -> dict[Any, Any]:
    return {(row.id, row.part): row_of(row.note, row.amount, row.tags) for row in rows}


@pytest.mark.parametrize(
    ("toast", "one_record", "flat"),
    [(True, False, False), (False, True, False), (True, False, True)],
)
def test_latest_of_a_whole_topic_is_the_table(
    spark: Any, toast: bool, one_record: bool, flat: bool
) -> None:
    source = SourceTable(1, toast=toast, one_record=one_record, flat=flat)
    source.change(150)
    source.partitions = 3  # keys move: from here on the offsets do not say what is newer
    source.change(150)
    assert len(source.rows) > 3
    rows = cdc.latest(frame(spark, source.records)).collect()
    assert table(rows) == source.rows
    assert all(not row.change.unavailable for row in rows)


def test_latest_of_a_compacted_topic_is_the_table(spark: Any) -> None:
    source = SourceTable(3)
    source.change(200)
    last = {}
    for record in source.records:
        if record[-1][7] is not None:
            last[record[-1][7]] = record
    assert any(record[-1][1] == "tombstone" for record in last.values())
    truncates = [record for record in source.records if record[-1][1] == "truncate"]
    rows = cdc.latest(frame(spark, [*last.values(), *truncates])).collect()
    assert table(rows) == source.rows


def record(
    offset: int,
    op: str | None,
    position: str | None,
    note: str | None = None,
    kind: str = "row",
    unavailable: list[str] | None = None,
    partition: int = 0,
    key: tuple[int, str] | None = (1, "a"),
    old_key: tuple[int, str] | None = None,
) -> tuple[Any, ...]:
    row = (*key, note, None, None) if kind == "row" and key else (None,) * 5
    kafka = ("topic", partition, offset, None)
    return (*row, (op, kind, 1, None, position, None, None, key, old_key, unavailable, *kafka))


def test_many_columns_that_may_be_unsent(spark: Any) -> None:
    changes = [record(0, "c", "1", "first"), record(1, "u", "2", unavailable=["note", "c7"])]
    wide = frame(spark, changes).withColumns({f"c{index}": F.lit("x") for index in range(40)})
    count = F.when(F.col("change.op") == "c", 7)  # GoldenGate omits numbers too
    unavailable = F.array_append("change.unavailable", "count")
    change = F.col("change").withField("unavailable", F.when(count.isNull(), unavailable))
    [row] = cdc.latest(wide.withColumn("count", count).withColumn("change", change)).collect()
    assert (row.note, row.c7, row["count"], row.change.unavailable) == ("first", "x", 7, [])


def test_a_change_after_a_snapshot_s_row_is_newer(spark: Any) -> None:
    """Its transaction was open when the snapshot began, so it is earlier in the source's log."""
    changes = [
        record(5, "r", "100", "of the snapshot"),
        record(6, "u", "090", "later"),
        # But not before it, and not in another partition, where no offset says what is newer.
        record(14, "u", "090", "a", key=(2, "a")),
        record(15, "r", "100", "of the snapshot", key=(2, "a")),
        record(25, "r", "100", "of the snapshot", key=(3, "a")),
        record(26, "u", "090", "a", key=(3, "a"), partition=1),
    ]
    rows = cdc.latest(frame(spark, changes)).orderBy("id").collect()
    assert [row.note for row in rows] == ["later", "of the snapshot", "of the snapshot"]


def test_deletes_are_kept_if_asked(spark: Any) -> None:
    changes = frame(
        spark,
        [
            record(0, "c", "1", "old"),
            record(1, "d", "2"),
            record(2, None, None, kind="tombstone"),
            record(3, "t", "3", kind="truncate", key=None),
        ],
    )
    rows = cdc.latest(changes, deletes="keep").collect()
    assert [(row.id, row.change.kind) for row in rows] == [(None, "truncate")]
    assert cdc.latest(changes).collect() == []
    (row,) = cdc.latest(changes.where("change.offset < 3"), deletes="keep").collect()
    assert (row.id, row.part, row.note, row.change.kind) == (1, "a", None, "tombstone")


def test_a_value_that_is_not_sent_comes_from_the_same_row(spark: Any) -> None:
    changes = []
    for key in ((1, "a"), (2, "a")):
        changes += [
            record(0, "c", "1", "of the deleted row", key=key),
            record(1, "d", "2", key=key),
            # The key of another row, changed.
            record(2, "c", "3", None, unavailable=["note"], key=key),
        ]
    changes += [
        record(3, "u", "4", "known", key=key),
        record(4, "u", "5", None, unavailable=["note"], key=key),
    ]
    rows = cdc.latest(frame(spark, changes)).orderBy("id").collect()
    assert [(row.note, row.change.unavailable) for row in rows] == [
        *((None, ["note"]), ("known", [])),
    ]


def test_positions_decide_and_offsets_break_ties(spark: Any) -> None:
    changes = [
        record(9, "c", "1", "older", partition=0),
        record(0, "u", "2", "newer", partition=1),
        record(9, "u", None, "later", key=(2, "a")),
        record(8, "u", None, "earlier", key=(2, "a")),
    ]
    rows = cdc.latest(frame(spark, changes)).orderBy("id").collect()
    assert [row.note for row in rows] == ["newer", "later"]


def test_rows_of_one_record_take_each_other_s_keys(spark: Any) -> None:
    """MySQL's UPDATE … SET id = id + 1 ORDER BY id DESC, in one record of Canal."""
    first, second, third = ((id, "a") for id in (1, 2, 3))
    changes = frame(
        spark,
        [
            record(0, "c", None, "first", key=first),
            record(1, "c", None, "second", key=second),
            record(2, "u", None, "second", key=third, old_key=second),
            record(2, "u", None, "first", key=second, old_key=first),
        ],
    )
    rows = cdc.latest(changes).collect()
    assert sorted((row.id, row.note) for row in rows) == [(2, "first"), (3, "second")]
    history = Changes.of(changes, None).history().orderBy("id", POSITION).collect()
    assert [(row.id, None if row[DELETED] else row.note) for row in history] == [
        *((1, "first"), (1, None), (2, "second"), (2, "first"), (3, "second")),
    ]


def test_a_change_without_a_position_is_after_the_record_before_it(spark: Any) -> None:
    """Maxwell's bootstrap has none."""
    changes = []
    for key in ((1, "a"), (2, "a"), (3, "a")):
        changes += [
            record(1, "d", "5", key=key),
            record(2, "r", None, "again", key=key),
            record(3, "r", None, "last", key=key),
            record(4, "u", "6", "newer", key=key),
        ][: key[0] + 1]
    rows = cdc.latest(frame(spark, changes)).orderBy("id").collect()
    assert [row.note for row in rows] == ["again", "last", "newer"]


def test_changes_with_one_position_are_one_version(spark: Any) -> None:
    """Oracle's SCN may be that of several changes."""
    changes = [
        record(0, "c", "7", "first"),
        record(1, "u", "7", "second", unavailable=["tags"]),
        record(2, "c", "7", "deleted", key=(2, "a")),
        record(3, "d", "7", key=(2, "a")),
    ]
    history = Changes.of(frame(spark, changes), None).history(["tags"]).orderBy("id").collect()
    assert [(row.id, row.note, row[DELETED], row[UNAVAILABLE]) for row in history] == [
        *((1, "second", False, ""), (2, None, True, "")),
    ]


def test_the_shorter_way_has_the_same_rows_or_says_that_it_has_not(spark: Any) -> None:
    random = Random(5)
    kinds = ("row", "row", "row", "tombstone")
    changes = []
    for key in range(300):
        partition = key % 2
        for _ in range(random.randrange(1, 6)):
            kind = random.choice(kinds)
            moved = random.random() < 0.1
            late = random.random() < 0.2
            offset = len(changes)
            position = f"{offset - 3 * late:04}" if kind == "row" and key % 5 else None
            change = record(
                offset,
                random.choice("cudr") if kind == "row" else None,
                position,
                f"note {offset}",
                kind,
                ["tags"] if random.random() < 0.1 else None,
                1 - partition if moved else partition,
                (key, "a"),
            )
            changes.append((*change[:5], (*change[5][:13], START)))
    truncate = record(9999, "t", "9999", kind="truncate", key=None)
    net = Changes.of(frame(spark, [*changes, truncate]), None)
    # Of a deleted row only the key is used.
    values = [F.when(~F.col(DELETED), F.col(name)) for name in ("note", UNAVAILABLE)]
    columns = ["id", POSITION, DELETED, TRUNCATED, *values]
    rows = {row.id: row for row in net.net().select(columns).collect()}
    in_order = net.net_in_order().select(*columns, OUT_OF_ORDER).collect()
    same = [row for row in in_order if not row[OUT_OF_ORDER]]
    assert len(rows) == len(in_order) == 301
    assert 150 < len(same) < 300
    assert [row[:-1] for row in same] == [tuple(rows[row.id]) for row in same]


def test_a_lower_bound_is_that_of_newer_changes_only(spark: Any) -> None:
    sequences = [
        f"{position} {partition:010} {offset:019} {time}"
        for position in ("", "0004", "0005")
        for partition, offset in ((0, 4), (0, 6), (1, 5))
        for time in ("0000000000005", "-000000000005")
        if position or time[0] == "0"
    ]
    texts = spark.createDataFrame([(text,) for text in sequences], "text string")
    pairs = texts.toDF("s").crossJoin(texts.toDF("d"))
    is_newer, bound = newer("s", "d"), lower_bound("s")
    facts = pairs.selectExpr(f"{bound} > d", "s > d", is_newer).distinct().collect()
    assert {tuple(fact) for fact in facts} == {
        *((True, True, True), (False, True, True), (False, True, False)),
        *((False, False, True), (False, False, False)),
    }


def test_errors_say_what_to_do(spark: Any) -> None:
    changes = frame(spark, [record(7, "c", "1", key=None)])
    for call, message in (
        (lambda: cdc.latest(spark.range(1)), "no column 'change', .* change struct<op string, "),
        (lambda: cdc.latest(changes, "id"), r"keys='id' is a string.*\['id'\]"),
        (lambda: cdc.latest(changes, ["no"]), "'no' is not in the row's columns id, part, note"),
        (lambda: cdc.latest(changes, deletes="no"), "deletes='no' is unknown"),
        (lambda: cdc.latest(changes.drop("id"), None), "'id' is not in the row's columns"),
        (
            lambda: cdc.latest(changes.withColumn("change", changes.change.dropFields("kind"))),
            r"change has no field kind\. Add to change in .schema\(…\): kind string; or leave",
        ),
        (
            lambda: cdc.latest(changes.withColumn("change", changes.change.dropFields("key"))),
            r"no change.key. Name the table's key: keys=",
        ),
    ):
        with pytest.raises(OptionError, match=message):
            call()
    with pytest.raises(SparkRuntimeException, match="partition 0 at offset 7 has no value"):
        cdc.latest(changes).collect()
    not_a_number = frame(spark, [record(7, "c", "1")]).withColumn("x", F.lit(float("nan")))
    with pytest.raises(SparkRuntimeException, match="has no value, or NaN, for the key x"):
        cdc.latest(not_a_number, ["x"]).collect()
