"""What the benchmarks' pages say is what was measured: medians, verdicts, one source for all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sparkkafka.schemas.column import format_module
from sparkkafka.schemas.values import Schema
from tests.bench import cases, report, schema_data
from tests.bench.data import KILO_BATCH, Topic, make_columns, timestamp_ms, value_lengths
from tests.bench.report import Report
from tests.bench.results import WORKER_RSS_TARGET_MB, Row
from tests.bench.stream_rows import quantile

ROOT = Path(__file__).parents[2]
JSON = ROOT / "docs" / "benchmarks.json"


def a_row(**changes) -> Row:
    given = {
        "group": "read",
        "name": "100 B",
        "unit": "rows/s",
        "rival": "JVM connector",
        "ours": [3e6, 2e6, 4e6],
        "theirs": [1e6, 2e6, 1e6],
        "target": 2.0,
    }
    return Row(**{**given, **changes})


def a_report(*rows: Row) -> Report:
    return Report({"date": "2026-01-01", "CPU": "a | b"}, list(rows))


@pytest.fixture(scope="module")
def published() -> Report:
    return Report.from_json(JSON.read_text("utf-8"))


# --- rows ---------------------------------------------------------------------------------------


def test_a_row_is_judged_by_the_median_of_its_pairs_ratios():
    row = a_row()  # 3, 1 and 4 times: not the ratio of the medians, which is 3e6 / 1e6 by chance
    assert row.ratio == 3
    assert row.spread == (1, 4)
    row = a_row(ours=[1e6, 5e6, 9e6], theirs=[1e6, 10e6, 3e6])
    assert row.ratio == 1  # the medians' would be 5/3


def test_of_seconds_fewer_are_better():
    row = a_row(unit="s", ours=[0.5], theirs=[1.0])
    assert row.ratio == 2


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({"target": None}, None),
        ({"target": 3.0}, True),
        ({"target": 3.1}, False),
        ({"target": 3e6, "target_kind": "absolute"}, True),
        ({"target": 3.1e6, "target_kind": "absolute"}, False),
        (
            {
                "target": 0.5,
                "target_kind": "difference",
                "unit": "s",
                "ours": [1.0],
                "theirs": [0.5],
            },
            True,
        ),
        (
            {
                "target": 0.5,
                "target_kind": "difference",
                "unit": "s",
                "ours": [1.1],
                "theirs": [0.5],
            },
            False,
        ),
    ],
)
def test_targets(changes, met):
    row = a_row(**changes)
    assert row.met is met
    verdict = report.cells(row)[5]
    assert verdict == {True: "met", False: "MISSED", None: ""}[met]


def test_memory_has_a_target_of_its_own():
    assert a_row().rss_met is None
    assert report.cells(a_row())[6] == ""
    assert report.cells(a_row(worker_rss_mb=WORKER_RSS_TARGET_MB))[6] == "150 MB"
    assert report.cells(a_row(worker_rss_mb=151.0))[6] == "151 MB, MISSED"


@pytest.mark.parametrize(
    ("figures", "unit", "words"),
    [
        ([1_234_567.0], "rows/s", "1.23M rows/s"),
        ([123_456.0], "rows/s", "123K rows/s"),
        ([1_234.0], "rows/s", "1234 rows/s"),
        ([0.3, 0.2, 0.4], "s", "0.30 s"),
        ([207.4], "ms", "207 ms"),
        ([0.0123], "M records/s", "0.0123 M records/s"),
    ],
)
def test_figures_are_medians_in_short(figures, unit, words):
    assert report.cells(a_row(ours=figures, theirs=figures, unit=unit))[1] == words


# --- pages --------------------------------------------------------------------------------------


def test_json_keeps_everything():
    rows = [a_row(), a_row(worker_rss_mb=12.3, note="why", target_kind="absolute", target=None)]
    before = a_report(*rows)
    assert Report.from_json(before.to_json()) == before


def test_markdown_shows_misses_plainly_and_keeps_its_columns():
    text = report.markdown_table([a_row(name="a|b", target=9.0), a_row(worker_rss_mb=400.0)])
    lines = text.splitlines()
    assert "**missed**" in lines[2]
    assert "400 MB, **missed**" in lines[3]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}


def test_the_summary_counts_targets_and_memory():
    rows = [a_row(), a_row(target=9.0, worker_rss_mb=10.0), a_row(target=None, worker_rss_mb=500.0)]
    words = report.summary(rows)
    assert "1 of 2 speed targets" in words
    assert "1 of 2 rows take" in words


def test_the_page_holds_each_group_and_note():
    made = a_report(a_row(), a_row(group="write", note="said of it"))
    assert "## Where it ran\n\n| | |\n|---|---|\n| date | 2026-01-01 |" in report.page(made)
    page = report.rows_section(made)
    assert page.index("## Read") < page.index("## Write")
    assert "- 100 B (JVM connector): said of it" in page


def test_a_readme_without_markers_is_an_error():
    with pytest.raises(ValueError, match="benchmarks"):
        report.update_readme("# sparkkafka\n", a_report())


def test_the_readme_keeps_what_stands_around_the_block():
    text = f"before\n{report.README_START}\nold\n{report.README_END}\nafter\n"
    shown = report.README_ROWS[0]
    made = report.update_readme(text, a_report(a_row(group=shown.group, name=shown.name)))
    assert made.startswith(f"before\n{report.README_START}\n| |")
    assert made.endswith(f"{report.README_END}\nafter\n")
    assert "old" not in made
    assert f"| {shown.text} | 3.00M rows/s | 1.00M rows/s, JVM connector | **3.0** |" in made


@pytest.mark.slow
def test_the_plot_can_be_drawn(tmp_path):
    rows = [a_row(), a_row(target=9.0), a_row(target=None), a_row(group="x", rival="other 1.2")]
    report.plot(a_report(*rows), tmp_path)
    for name in ("benchmarks.png", "benchmarks-dark.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


# --- a part measured again ----------------------------------------------------------------------


def test_later_rows_take_the_places_of_those_before_and_say_of_which_run_they_are():
    before = a_report(a_row(), a_row(name="1 KB"), a_row(group="client", rival="other 1.0"))
    later = a_report(
        a_row(ours=[9e6], theirs=[1e6]),
        a_row(name="10 KB"),
        a_row(group="streams"),
        a_row(group="client", rival="other 2.0"),
    )
    later.about = {"date": "2026-02-02", "commit": "abc1234", "CPU": "a | b", "pyspark": "5"}
    result = report.merged(before, later, ("read", "streams", "client"))
    assert result.about == before.about
    names = [(row.group, row.name, row.rival) for row in result.rows]
    assert names == [
        ("read", "100 B", "JVM connector"),
        ("read", "1 KB", "JVM connector"),
        ("read", "10 KB", "JVM connector"),
        ("streams", "100 B", "JVM connector"),
        ("client", "100 B", "other 2.0"),
    ]
    words = "2026-02-02 at commit abc1234; pyspark 5"
    assert [row.measured for row in result.rows] == [words, "", words, words, words]
    assert result.rows[0].ours == [9e6]
    assert Report.from_json(result.to_json()) == result
    page = report.rows_section(result)
    assert f"Measured in a separate run: 100 B; 10 KB ({words})." in page
    assert f"Measured in a separate run: All of these ({words})." in page


def test_rows_measured_with_the_rest_say_nothing_of_it():
    assert "separate run" not in report.rows_section(a_report(a_row()))


# --- what is published --------------------------------------------------------------------------


def test_the_published_pages_are_made_of_the_json(published):
    docs = ROOT / "docs"
    assert (docs / "benchmarks.md").read_text("utf-8") == report.page(published)


def test_readme_and_front_page_are_made_of_the_json(published):
    readme = (ROOT / "README.md").read_text("utf-8")
    assert report.update_readme(readme, published) == readme
    front_page = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert report.update_front_page(front_page, published) == front_page


def test_the_published_run_has_every_row_that_the_readme_wants(published):
    shown = [row for row, _ in report.published_rows(published, report.README_ROWS)]
    assert shown == list(report.README_ROWS)


def test_the_readme_has_six_rows_at_most():
    assert 1 <= len(report.README_ROWS) <= 6


def test_the_published_run_is_a_whole_one(published):
    measured = {(row.group, row.name) for row in published.rows}
    wanted = {(case.group, case.name) for case in cases.reads(quick=False)}
    wanted |= {(case.group, case.name) for case in cases.writes(quick=False)}
    wanted |= {(case.group, name) for case in cases.streams(quick=False) for name in case.names}
    if cases.EXACTLY_ONCE not in {group for group, _ in measured}:  # a group that is new
        wanted = {row for row in wanted if row[0] != cases.EXACTLY_ONCE}
    assert wanted <= measured
    assert published.about["command"] == "make bench"
    assert all(len(row.ours) == len(row.theirs) >= 1 for row in published.rows)


# --- cases and data -----------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_the_rows_of_a_topic_follow_each_other_and_have_names_of_their_own(quick):
    chosen = list(cases.reads(quick=quick))
    names = [(case.group, case.name) for case in chosen]
    assert len(set(names)) == len(names)
    topics = [case.topic for case in chosen]
    seen = [topic for i, topic in enumerate(topics) if i == 0 or topics[i - 1] != topic]
    assert len(set(seen)) == len(seen)
    assert {case.group for case in chosen} <= set(cases.GROUPS)
    assert all(case.topic.rows % case.topic.partitions == 0 for case in chosen)


def test_streams_end_with_a_whole_batch_and_have_names_of_their_own():
    chosen = list(cases.streams(quick=False))
    names = [name for case in chosen for name in case.names]
    assert len(set(names)) == 2 * len(chosen)
    for case in chosen:
        rows = case.batch_rows * (case.first_batches + case.batches)
        assert case.topic.rows == (0 if case.live else rows)
        assert case.batch_rows % case.partitions == 0


def test_exactly_once_is_measured_beside_our_own_default():
    writes = [case for case in cases.writes(quick=False) if case.is_transactional]
    assert [(case.value_bytes, case.rival, case.target) for case in writes] == [
        (100, cases.AT_LEAST_ONCE, 0.8),
        (1000, cases.AT_LEAST_ONCE, 0.8),
    ]
    to_kafka = [case for case in cases.streams(quick=False) if case.to_kafka]
    streams = [case for case in to_kafka if case.in_transactions]
    assert [(case.rival, case.target) for case in streams] == [
        (cases.AT_LEAST_ONCE, 150.0),
        (cases.JVM, None),
    ]
    assert {case.group for case in (*writes, *streams)} == {cases.EXACTLY_ONCE}
    assert streams[0].names[0] == "micro-batches, 400 rows of 100 B of 4 partitions, p50"
    (plain,) = [case for case in to_kafka if not case.in_transactions]
    assert (plain.group, plain.rival) == (cases.MICRO_BATCHES, cases.JVM)
    assert plain.name == "400 rows of 100 B of 4 partitions, to another topic"


@pytest.mark.parametrize(("share", "found"), [(0.5, 10), (0.95, 19), (1.0, 20)])
def test_quantiles_are_figures_that_were_measured(share, found):
    assert quantile([float(n) for n in range(20, 0, -1)], share) == found


def test_filters_by_time_leave_the_rows_that_they_say():
    by_time = [case for case in cases.reads(quick=False) if case.found is not None]
    assert {case.found for case in by_time} == {40_000, 20_000}
    for case in by_time:
        held = case.topic.rows // case.topic.partitions
        times_ms = np.array([timestamp_ms(n) for n in range(0, held, 100)])
        start_ms, *end_ms = map(int, re.findall(r"timestamp_millis\((\d+)\)", case.where))
        inside = (times_ms >= start_ms) & (times_ms < (end_ms or [2**62])[0])
        assert inside.sum() * 100 * case.topic.partitions == case.found


def test_names_of_topics_are_fit_for_kafka():
    assert re.fullmatch(r"[\w.-]{1,249}", Topic("uniform", 10, KILO_BATCH, "lz4").name)


@pytest.mark.parametrize("values", [10, "uniform", "lognormal"])
def test_values_have_the_sizes_that_were_asked_for(values):
    columns = make_columns(values, 1000)
    lengths = np.array([len(value) for value in columns.values.to_pylist()])
    assert len(lengths) == len(columns.keys) == len(columns.timestamps_ms) == 1000
    assert (lengths == value_lengths(values, 1000)).all()
    assert {len(key) for key in columns.keys.to_pylist()} == {8}
    assert lengths.min() >= 10
    assert lengths.max() <= 2048


@pytest.mark.slow
@pytest.mark.parametrize("form", schema_data.SCHEMAS)
def test_orders_are_the_same_in_each_format(form):
    """They are made by other libraries; ours reads them."""
    schema = Schema(form, schema_data.SCHEMAS[form])
    decoder = format_module(form).decoder(schema, None, None)
    decoded = decoder.decode(schema_data.payloads(form).slice(0, 1000))
    assert not len(decoded.bad_rows)
    assert decoded.values.to_pylist() == list(schema_data.orders()[:1000])
    framed = schema_data.framed(form, 7)[0].as_py()
    assert framed[:5] == b"\x00\x00\x00\x00\x07"
    assert framed.endswith(schema_data.payloads(form)[0].as_py())


def test_rows_of_schemas_stand_where_they_belong():
    assert cases.SCHEMAS in cases.GROUPS
    assert len(set(cases.SCHEMA_ROWS)) == len(cases.SCHEMA_ROWS)
