"""What the benchmarks' pages say is what was measured: medians, verdicts, and a bundle for all."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka.schemas.column import format_module
from sparkkafka.schemas.values import Schema
from tests.bench import cases, checks, report, schema_data, shape_rows, verify
from tests.bench.data import KILO_BATCH, Topic, make_columns, timestamp_ms, value_lengths
from tests.bench.report import Bundle
from tests.bench.results import WORKER_RSS_TARGET_MB, WRITTEN, Row
from tests.bench.shapes import AVRO, JSON, PROTOBUF, SHAPES, plain
from tests.bench.stream_rows import quantile

ROOT = Path(__file__).parents[2]
BUNDLES = sorted(report.BUNDLES.glob("*.json"))


def a_row(ours=(3e6, 2e6, 4e6), theirs=(1e6, 2e6, 1e6), **changes) -> Row:
    """One with these figures."""
    unit = changes.get("unit", "rows/s")
    work = [] if unit in ("s", "ms") else [1e6, 1e6]
    scale = {"s": 1.0, "ms": 1e3}.get(unit)
    seconds = [[x / scale if scale else 1e6 / x for x in side] for side in (ours, theirs)]
    given = {
        "group": "read",
        "name": "100 B",
        "unit": "rows/s",
        "rival": "JVM connector",
        "work": work,
        "ours_s": seconds[0],
        "theirs_s": seconds[1],
        "target": 2.0,
        "checks": {WRITTEN: [9, 7], "pykafka": [9, 7]},
    }
    return Row(**{**given, **changes})


def bundles(*rows: Row) -> list[Bundle]:
    return [Bundle("spark", {"date": "2026-01-01", "CPU": "a | b"}, list(rows))]


@pytest.fixture(scope="module")
def published() -> list[Bundle]:
    return report.read_bundles()


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
        ([985.0], "records/s", "985 records/s"),
    ],
)
def test_figures_are_medians_in_short(figures, unit, words):
    assert report.cells(a_row(ours=figures, theirs=figures, unit=unit))[1] == words


# --- pages --------------------------------------------------------------------------------------


def test_json_keeps_everything():
    rows = [
        a_row(settings={"pykafka": {"kafka.linger.ms": "20"}}),
        a_row(worker_rss_mb=12.3, note="why", target_kind="absolute", target=None, rival=""),
    ]
    (before,) = bundles(*rows)
    text = before.to_json()
    assert Bundle.from_json(text) == Bundle.from_json(Bundle.from_json(text).to_json())
    assert Bundle.from_json(text).rows[1].note == "why"
    assert Bundle.from_json(text).rows[0].ratio == pytest.approx(3, rel=1e-5)
    assert len(text.splitlines()) == 7 + len(rows)  # a line for each row


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
    made = bundles(a_row(), a_row(group="write", note="said of it"))
    assert "## Where it ran" in report.page(made)
    assert "| date | 2026-01-01 |" in report.page(made)
    page = report.rows_section(made[0].rows)
    assert page.index("## Read") < page.index("## Write")
    assert "- 100 B (JVM connector): said of it" in page


def test_facts_that_differ_name_their_parts():
    first, second = bundles()[0], Bundle("client", {"date": "2026-02-02", "CPU": "a | b"})
    page = report.page([first, second])
    assert "| date | 2026-01-01 (spark); 2026-02-02 (client) |" in page
    assert "| CPU | a | b |" in page


def test_decoders_have_a_column_for_each_rival():
    group = "decode Avro"
    rows = [
        a_row(group=group, rival="x 1.0", target=0.5),
        a_row(group=group, rival="y 2.0", target=None, ours=[1e6], theirs=[2e6]),
        a_row(group=group, rival="x 1.0", name="1 KB", target=4.0),
    ]
    assert report.rows_section(rows).splitlines()[-4:] == [
        "| what | pykafka | x 1.0, target 4 | y 2.0 |",
        "|---|---|---|---|",
        "| 100 B | 3.00M rows/s | 3.00 (1.00 to 4.00) | 0.50 (one pair) |",
        "| 1 KB | 3.00M rows/s | 3.00 (1.00 to 4.00) **missed** | cannot |",
    ]


def test_a_readme_without_markers_is_an_error():
    with pytest.raises(ValueError, match="benchmarks"):
        report.update_readme("# sparkkafka\n", bundles())


def test_the_readme_keeps_what_stands_around_the_block():
    text = f"before\n{report.README_START}\nold\n{report.README_END}\nafter\n"
    shown = report.README_ROWS[0]
    made = report.update_readme(text, bundles(a_row(group=shown.group, name=shown.name)))
    assert made.startswith(f"before\n{report.README_START}\n| |")
    assert made.endswith(f"{report.README_END}\nafter\n")
    assert "old" not in made
    assert f"| {shown.text} | 3.00M rows/s | 1.00M rows/s, JVM connector | **3.0** |" in made


@pytest.mark.slow
def test_the_plot_can_be_drawn(tmp_path):
    rows = [a_row(), a_row(target=9.0), a_row(target=None), a_row(group="x", rival="other 1.2")]
    grown = [
        a_row(group=group, worker_rss_mb=20.0, settings={"topic": {setting: str(size)}})
        for group, setting in report.GROWTH_AXES.items()
        for size in (1, 4)
    ]
    report.plot(bundles(*rows, *grown), tmp_path)
    for name in ("benchmarks", "growth-speed", "growth-memory"):
        for mode in ("", "-dark"):
            assert (tmp_path / f"{name}{mode}.png").read_bytes().startswith(b"\x89PNG")


# --- what is published --------------------------------------------------------------------------


def test_the_published_pages_are_made_of_the_bundles(published):
    docs = ROOT / "docs"
    assert (docs / "benchmarks.md").read_text("utf-8") == report.page(published)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert report.update_readme(readme, published) == readme
    front_page = (docs / "index.md").read_text("utf-8")
    assert report.update_front_page(front_page, published) == front_page
    others = (docs / "client-others.md").read_text("utf-8")
    assert report.update_others(others, published) == others


def test_the_published_figures_can_be_recomputed_from_the_bundles(capsys):
    assert verify.main(list(map(str, BUNDLES))) == 0
    assert "all figures of the docs are those of" in capsys.readouterr().out


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The published pages and bundles, to be damaged."""
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/index.md", "docs/benchmarks.md", "docs/client-others.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(report.BUNDLES, tmp_path / "docs" / "benchmarks")
    return tmp_path


def verified(root: Path) -> int:
    paths = map(str, sorted((root / "docs" / "benchmarks").glob("*.json")))
    return verify.main([*paths, "--root", str(root)])


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("README.md", r"\*\*(\d+\.\d)\*\* \|"),
        ("docs/index.md", r"\*\*(\d+\.\d) times"),
        ("docs/client-others.md", r"\*\*(\d+\.\d)\*\* \|"),
        ("docs/benchmarks.md", r"rows/s JVM connector \| (\d+\.\d\d) \("),
        ("docs/benchmarks.md", r"\| (\d+) MB \|"),
    ],
)
def test_a_figure_that_no_bundle_has_is_found(checkout, file, pattern, capsys):
    path = checkout / file
    text = path.read_text("utf-8")
    match = re.search(pattern, text)
    assert match
    other = str(float(match[1]) * 1.1 + 0.1)
    path.write_text(text[: match.start(1)] + other + text[match.end(1) :], "utf-8")
    assert verified(checkout) == 1
    assert Path(file).name in capsys.readouterr().err


def test_a_row_that_no_bundle_has_is_found(checkout, capsys):
    path = checkout / "docs" / "benchmarks" / "spark.json"
    bundle = json.loads(path.read_text("utf-8"))
    taken = bundle["rows"].pop(0)
    path.write_text(json.dumps(bundle), "utf-8")
    assert verified(checkout) == 1
    assert f"{taken['name']} ({taken['rival']}) is in no bundle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("checks_of_row", "words"),
    [
        ({WRITTEN: [9, 7], "confluent-kafka 2": [9, 8]}, "different counts or sums"),
        ({WRITTEN: [9, 7]}, "fewer than two programs"),
        ({WRITTEN: [9, 7], "pykafka": [9, 7]}, "did not read back"),
    ],
)
def test_sums_that_differ_or_lack_are_found(checkout, checks_of_row, words, capsys):
    (bundle,) = bundles(a_row(group="write", checks=checks_of_row))
    path = checkout / "docs" / "benchmarks" / "more.json"
    path.write_text(bundle.to_json(), "utf-8")
    assert verified(checkout) == 1
    assert f"more.json: write: 100 B: {words}" in capsys.readouterr().err.replace(
        "the programs found ", ""
    ).replace(f"{verify.SECOND_PROGRAM} ", "")


def test_sums_of_hashes_are_zlibs():
    assert checks.sums([b"", b"123456789"]) == [2, 0xCBF43926]
    with pytest.raises(checks.WrongResultError, match="a topic"):
        checks.compare({WRITTEN: [1, 2], "pykafka": [1, 3]}, "a topic")


def test_the_published_run_has_every_row_that_the_readme_wants(published):
    shown = [row for row, _ in report.published_rows(published, report.README_ROWS)]
    assert shown == list(report.README_ROWS)


def test_the_readme_has_six_rows_at_most():
    assert 1 <= len(report.README_ROWS) <= 6


def test_the_published_run_is_a_whole_one(published):
    measured = {(row.group, row.name) for row in report.all_rows(published)}
    expected = {(case.group, case.name) for case in cases.reads(quick=False)}
    expected |= {(case.group, case.name) for case in cases.writes(quick=False)}
    expected |= {(case.group, name) for case in cases.streams(quick=False) for name in case.names}
    expected |= set(shape_rows.names())
    expected |= {("latency", name) for name in cases.FIRST_ROWS.values()}
    expected |= {(cases.SCHEMAS, name) for name in cases.SCHEMA_ROWS}
    expected |= {(f"decode {form} in Spark", s.name) for form in ("Avro", "JSON") for s in SHAPES}
    expected |= {(case.group, case.name) for case in cases.growth(quick=False)}
    expected |= {
        (cases.TINY_TOPICS, f"{count:,} topics of one row") for count in cases.TINY_TOPIC_COUNTS
    }
    assert expected <= measured


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


@pytest.mark.parametrize("form", [AVRO, PROTOBUF, JSON])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_the_same_in_each_format(shape, form):
    """Payloads are made by other libraries; ours reads them."""
    few = replace(shape, block_rows=50)
    decoder = format_module(form).decoder(Schema(form, few.texts[form]), None, None)
    decoded = decoder.decode(pa.array(few.payloads(form), pa.binary()))
    assert not len(decoded.bad_rows)
    assert plain(decoded.values, few.fields) == few.rows
