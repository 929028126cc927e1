"""What runs of the benchmarks leave: bundles, and the tables and pictures that are made of them.

A bundle is the JSON of one run of one part: the machine, all versions, the settings of both sides,
and the seconds of each run. Pages are made of bundles only; `verify.py` recomputes their figures.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkkafka.plot import MARKERS, colours_of
from tests.bench.results import WORKER_RSS_TARGET_MB, Row, median_difference
from tests.tools.pictures import save_both

MATRIX_GROUPS = ("decode ", "encode ")
"""How the names of groups begin whose tables have a column for each rival."""
GROWTH_AXES = {
    "growth by partitions": "partitions",
    "growth by size of records": "bytes of a value",
    "growth by tasks": "tasks",
}
"""Groups of the part "growth", and the setting of the topic that grows."""

BUNDLES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PARTS = ("spark", "schemas", "decoders", "growth", "client")
"""Each is measured in a process of its own and leaves a bundle; the page has their groups in this
order."""

README_START, README_END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
FIGURES_START, FIGURES_END = "<!-- figures -->", "<!-- /figures -->"


@dataclass(frozen=True)
class PublishedRow:
    """A row that README or docs/client-others.md shows, in the words of a user. `rival` is how the
    rival's name starts where a row has several."""

    group: str
    name: str
    text: str
    rival: str = ""


README_ROWS = (
    PublishedRow("read", "100 B, 1 MB batches, noop", "reading 100-byte records"),
    PublishedRow("read", "1 KB, 1 MB batches, noop", "reading 1 KB records"),
    PublishedRow("write", "100 B, defaults", "writing 100-byte records"),
    PublishedRow(
        "micro-batches",
        "live end, 4 rows of 100 B of 4 partitions, p50",
        "a micro-batch at the end of a topic",
    ),
    PublishedRow("schemas", "read Avro, 10 fields, noop", "reading Avro with a registry"),
    PublishedRow(
        "client",
        "write 100 B, 4 partitions",
        "`Producer.send_table` of 100-byte records",
        "confluent-kafka",
    ),
)
FRONT_PAGE_ROWS = (README_ROWS[0], README_ROWS[2], README_ROWS[3])
_SYNC_RIVALS, _AIO_RIVALS = ("confluent-kafka", "kafka-python"), ("aiokafka", "confluent-kafka")
OTHERS_ROWS = tuple(
    PublishedRow("client library", name, text, rival)
    for name, text, rivals in (
        (
            "Consumer.poll of 256 B, 4 partitions, rival tuned, all cores",
            "`Consumer.poll`, 256 B",
            ("confluent-kafka",),
        ),
        (
            "Consumer.poll of 100 B, 4 partitions, one core",
            "`Consumer.poll`, 100 B, one core",
            ("kafka-python",),
        ),
        (
            "Consumer.poll_arrow of 256 B, 4 partitions, rival tuned, all cores",
            "`Consumer.poll_arrow`, 256 B",
            ("confluent-kafka",),
        ),
        (
            "Producer.send of 100 B, 4 partitions, one core",
            "`Producer.send`, 100 B, one core",
            _SYNC_RIVALS,
        ),
        (
            "send of 100 B, default batches, acks=1",
            "`Producer.send`, 100 B, default batches, `acks=1`",
            _SYNC_RIVALS,
        ),
        (
            "send().result() of 100 B, one after the other, linger.ms=0",
            "`send(…).result()`, one after the other",
            _SYNC_RIVALS,
        ),
        *(
            (f"{name} {size}", f"{text}, {size}", _AIO_RIVALS)
            for name, text in (
                ("AsyncProducer.send_nowait of", "`AsyncProducer.send_nowait`"),
                ("AsyncProducer.send in 100 tasks of", "`await send` in 100 tasks"),
                ("async for record in AsyncConsumer of", "`async for record in AsyncConsumer`"),
            )
            for size in ("100 B", "1 KB")
        ),
        ("await send of 100 B, p50", "`await send`, one after the other, median", _AIO_RIVALS),
    )
    for rival in rivals
)

_HEAD = ("what", "pykafka", "rival", "ratio: median (from to)", "target", "speed", "worker memory")
_PACKAGES = (
    *("sparkkafka", "pyspark", "pyarrow", "numpy", "confluent-kafka", "kafka-python"),
    *("fastavro", "protobuf", "pyruhvro", "ptars", "orjson"),
)


@dataclass
class Bundle:
    """All rows of a run of a part, and where they come from. `about` is flat text by name."""

    part: str
    about: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> str:
        """One line a row, without what is at its default."""
        empty = dataclasses.asdict(Row("", "", "", ""))
        rows = []
        for row in self.rows:
            named = dataclasses.asdict(_rounded(row)).items()
            given = {name: value for name, value in named if value != empty[name]}
            rows.append(json.dumps(given, ensure_ascii=False))
        about = json.dumps(self.about, indent=1, ensure_ascii=False)
        lines = ",\n".join(rows)
        return f'{{"part": "{self.part}",\n"about": {about},\n"rows": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> Bundle:
        document: dict[str, Any] = json.loads(text)
        rows = [Row(**{"rival": "", **row}) for row in document["rows"]]
        return cls(document["part"], document["about"], rows)


def read_bundles(folder: Path = BUNDLES) -> list[Bundle]:
    """The committed bundle of each part."""
    paths = [folder / f"{part}.json" for part in PARTS]
    return [Bundle.from_json(path.read_text("utf-8")) for path in paths if path.exists()]


def all_rows(bundles: Sequence[Bundle]) -> list[Row]:
    return [row for bundle in bundles for row in bundle.rows]


def by_group(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by their heading, both in the order of the first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


# --- one row -------------------------------------------------------------------------------------


def cells(row: Row) -> tuple[str, ...]:
    """The row's texts, one for each of the table's columns."""
    verdict = {True: "met", False: "MISSED", None: ""}[row.met]
    memory = ""
    if row.worker_rss_mb is not None:
        memory = f"{row.worker_rss_mb:.0f} MB" + ("" if row.rss_met else ", MISSED")
    return (
        row.name,
        _figure(row.ours, row.unit),
        f"{_figure(row.theirs, row.unit)} {row.rival}" if row.rival else "",
        _ratio_words(row),
        _target_words(row),
        verdict,
        memory,
    )


def _ratio_words(row: Row) -> str:
    if not row.rival:
        return ""
    low, high = row.spread
    spread = f"({low:.2f} to {high:.2f})" if len(row.ratios) > 1 else "(one pair)"
    words = f"{row.ratio:.2f} {spread}"
    if row.target_kind == "difference":
        return f"{words}, {median_difference(row.ours, row.theirs):+.2f} {row.unit}"
    return words


def _target_words(row: Row) -> str:
    if row.target is None:
        return ""
    if row.target_kind == "absolute":
        return _figure([row.target], row.unit)
    if row.target_kind == "difference":
        return f"at most {row.target:+g} {row.unit}"
    return f"{row.target:g} times"


def _figure(figures: Sequence[float], unit: str) -> str:
    middle = statistics.median(figures)
    if unit == "ms":
        return f"{middle:.0f} ms" if middle >= 10 else f"{middle:.2f} ms"
    if unit in ("s", "GB/s"):
        return f"{middle:.2f} {unit}" if middle >= 0.1 else f"{middle:.3g} {unit}"
    if middle >= 1e6:
        return f"{middle / 1e6:.2f}M {unit}"
    return f"{middle / 1e3:.0f}K {unit}" if middle >= 1e4 else f"{middle:.0f} {unit}"


def _rounded(row: Row) -> Row:
    def six_digits(figures: list[float]) -> list[float]:
        return [float(f"{figure:.6g}") for figure in figures]

    memory = None if row.worker_rss_mb is None else round(row.worker_rss_mb, 1)
    ours, theirs = six_digits(row.ours_s), six_digits(row.theirs_s)
    return dataclasses.replace(row, ours_s=ours, theirs_s=theirs, worker_rss_mb=memory)


# --- pages ---------------------------------------------------------------------------------------


def plain_table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    lines = []
    table = {group: [cells(row) for row in some] for group, some in by_group(rows).items()}
    everything = [_HEAD, *(row for some in table.values() for row in some)]
    widths = [max(len(row[i]) for row in everything) for i in range(len(_HEAD))]
    for group, some in table.items():
        lines.append(f"\n{group}")
        for row in (_HEAD, *some):
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
    lines += ["", summary(rows)]
    return "\n".join(lines)


def markdown_table(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    for row in rows:
        texts = [text.replace("|", "\\|") for text in cells(row)]
        lines.append(f"| {' | '.join(texts)} |".replace("MISSED", "**missed**"))
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """How many targets are met, and which are not."""
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    looked_at = [row for row in rows if row.rss_met is not None]
    fat = [row for row in looked_at if not row.rss_met]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} speed targets are met."]
    if looked_at:
        lines.append(
            f"{len(looked_at) - len(fat)} of {len(looked_at)} rows take at most "
            f"{WORKER_RSS_TARGET_MB:.0f} MB in a worker."
        )
    return " ".join(lines)


def matrix_table(rows: Sequence[Row]) -> str:
    """A line for each name and a column for each rival, with the ratios only."""
    rivals = list(dict.fromkeys(row.rival for row in rows))
    found = {(row.name, row.rival): row for row in rows}
    targets = {row.rival: f", target {row.target:g}" for row in rows if row.target is not None}
    heads = [f"{rival}{targets.get(rival, '')}" for rival in rivals]
    lines = [f"| what | pykafka | {' | '.join(heads)} |", "|" + "---|" * (len(rivals) + 2)]
    for name in dict.fromkeys(row.name for row in rows):
        beside = [found.get((name, rival)) for rival in rivals]
        ours = next(_figure(row.ours, row.unit) for row in beside if row is not None)
        ratios = ["cannot" if row is None else _ratio_words(row) for row in beside]
        for number, row in enumerate(beside):
            if row is not None and row.met is False:
                ratios[number] += " **missed**"
        lines.append(f"| {name} | {ours} | {' | '.join(ratios)} |")
    return "\n".join(lines) + "\n"


def page(bundles: Sequence[Bundle]) -> str:
    """docs/benchmarks.md: how it is measured, the plots, the machine, and every row."""
    memory = next((b.about["worker memory"] for b in bundles if "worker memory" in b.about), "")
    parts = [_PAGE_HEAD.format(memory=memory), summary(all_rows(bundles))]
    parts.append(_picture("benchmarks", "Ratios by group and rival"))
    if any(bundle.part == "growth" for bundle in bundles):
        parts.append(_GROWTH_HEAD)
        parts.append(_picture("growth-speed", "Rows per second by partitions, sizes and tasks"))
        parts.append(_picture("growth-memory", "Memory of a worker by partitions, sizes and tasks"))
    parts += [_RUNS_HEAD, _runs_table(bundles)]
    return "\n".join(parts) + "\n" + rows_section(all_rows(bundles))


def _picture(name: str, text: str) -> str:
    shown = (("", "light"), ("-dark", "dark"))
    lines = [f"![{text}]({name}{file}.png#gh-{mode}-mode-only)\n" for file, mode in shown]
    return "\n" + "\n".join(lines)


def _runs_table(bundles: Sequence[Bundle]) -> str:
    """A line for each fact. Where parts differ, their values are named."""
    lines = ["| | |", "|---|---|"]
    links = ", ".join(f"[{bundle.part}](benchmarks/{bundle.part}.json)" for bundle in bundles)
    lines.append(f"| bundles | {links} |")
    for name in dict.fromkeys(name for bundle in bundles for name in bundle.about):
        parts: dict[str, list[str]] = {}
        for bundle in bundles:
            if name in bundle.about:
                parts.setdefault(bundle.about[name], []).append(bundle.part)
        values = [f"{value} ({', '.join(some)})" for value, some in parts.items()]
        everywhere = [bundle.part for bundle in bundles] == parts.get(next(iter(parts)))
        lines.append(f"| {name} | {next(iter(parts)) if everywhere else '; '.join(values)} |")
    return "\n".join(lines) + "\n"


def rows_section(rows: Sequence[Row]) -> str:
    """All rows, by group."""
    parts = [_ROWS_HEAD]
    for group, some in by_group(rows).items():
        table = matrix_table(some) if is_matrix(some) else markdown_table(some)
        parts.append(f"### {group[0].upper()}{group[1:]}\n\n{table}")
        notes: dict[str, list[str]] = {}
        for row in some:
            if row.note:
                notes.setdefault(row.note, []).append(f"{row.name} ({row.rival})")
        # Whatever all rows of a rival share is said once.
        for note, names in notes.items():
            rivals = {row.rival for row in some if row.note == note}
            if is_matrix(some) and len(rivals) == 1:
                names = sorted(rivals)
            parts.append(f"- {'; '.join(names)}: {note}\n")
    return "\n".join(parts)


def is_matrix(rows: Sequence[Row]) -> bool:
    """Whether a group's table has a column for each rival: its rows are one library's."""
    return rows[0].group.startswith(MATRIX_GROUPS)


def update_readme(text: str, bundles: Sequence[Bundle]) -> str:
    """The README's text with its table made current."""
    return _with_table(text, bundles, README_ROWS, "pykafka")


def update_others(text: str, bundles: Sequence[Bundle]) -> str:
    """The text of docs/client-others.md with its table of figures made current."""
    return _with_table(text, bundles, OTHERS_ROWS, "sparkkafka")


def _with_table(
    text: str, bundles: Sequence[Bundle], chosen: Sequence[PublishedRow], ours: str
) -> str:
    lines = [f"| | {ours} | the other | times as fast |", "|---|---|---|---|"]
    for published, row in published_rows(bundles, chosen):
        figures = f"{_figure(row.ours, row.unit)} | {_figure(row.theirs, row.unit)}, {row.rival}"
        lines.append(f"| {published.text} | {figures} | **{row.ratio:.1f}** |")
    return _replaced(text, README_START, README_END, "\n".join(lines) + "\n")


def update_front_page(text: str, bundles: Sequence[Bundle]) -> str:
    """The text of docs/index.md with its three figures made current."""
    lines = ['<div class="figures" markdown>']
    for published, row in published_rows(bundles, FRONT_PAGE_ROWS):
        lines += [
            "<div markdown>",
            f"**{row.ratio:.1f} times** as fast as the {row.rival}: {published.text}",
        ]
        lines.append("</div>")
    about = bundles[0].about
    lines += [
        "</div>",
        "",
        f"Medians of {about['date']} on {about['cores']} cores ({about['CPU']}) with one broker "
        f"({about['Kafka broker']}), sparkkafka {about['sparkkafka']}, PySpark {about['pyspark']}: "
        "[how it is measured, and all rows](benchmarks.md). `make bench` measures it again.",
    ]
    return _replaced(text, FIGURES_START, FIGURES_END, "\n".join(lines) + "\n")


def _replaced(text: str, start: str, end: str, content: str) -> str:
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {start} … {end} in the text")
    return f"{before}{start}\n{content}{end}{after}"


def published_rows(
    bundles: Sequence[Bundle], chosen: Sequence[PublishedRow]
) -> Iterator[tuple[PublishedRow, Row]]:
    """The rows of the bundles that a page shows, in its order."""
    for published in chosen:
        for row in all_rows(bundles):
            if (row.group, row.name) == (published.group, published.name) and (
                row.rival.startswith(published.rival)
            ):
                yield published, row
                break


_GROWTH_HEAD = """\
## Growth

Each run reads one topic in a session of `local[4]`: at most four tasks at a time, on two cores. The
JVM connector has no row above 64 partitions, because it waits half a second at the end of each.
"Tiny topics" is a batch read of topics of one partition and one row: a task for each.

A run is one `availableNow` query of about 130 MB and lasts about two seconds, most of them the
start of the query. pykafka's start takes nearly a second longer than the JVM connector's, a third
of which [can be avoided](performance.md#start-of-sessions-and-queries). So records of 1 KB and
more, of which there are few, are read slower in such a short query. The rows of "Read" are long
ones.
"""

_RUNS_HEAD = """\
## Where it ran

Each part of the benchmarks is a run of its own. Its bundle has the facts below, the settings of
both sides, the seconds of each run, and the counts and sums that were compared.
"""

_ROWS_HEAD = """\
## All rows

A ratio is the median of the ratios of neighbouring runs, with the smallest and the largest in
parentheses. Above 1, pykafka is faster. [Where the time goes](performance.md).
"""

_PAGE_HEAD = """\
# Benchmarks

`make bench` measures [all rows](#all-rows), one part after the other (`make bench BENCH=schemas`:
one part). Each part writes a bundle, and this page is made of the bundles.
`python tests/bench/verify.py docs/benchmarks/*.json` recomputes the figures of this page, of the
README and of the front page from them, and compares the counts and sums in them. `make bench-quick`
measures some of the rows in less than three minutes and writes nothing.

## How it is measured

**Setup**

- One real broker and one Spark session (`local[2]`) with both connectors run on one machine. Topics
  have 4 partitions unless the row says otherwise.
- Both connectors read or write the same bytes with the same `kafka.*` settings.
- The JVM connector's jars (names below) are the newest complete set that was available. They are a
  little older than Spark itself.
- The client rows measure without Spark, against other Python clients.
- The broker's logs and the checkpoints are in memory (tmpfs) where 12 GB are free ("files" below),
  and each run of a write has a new topic, made after the last one was removed
  ([why](performance.md#writes-through-spark)).

**Checks**

- For each topic, both sides must return the count and the sum of the CRC-32 of all values that were
  written. Micro-batches are only counted.
- After writes, confluent-kafka reads the records of the last run back. Their count and sum must be
  those of the rows that were to be written.
- Decoders and encoders are measured after the results of both sides were found equal.

**Runs and ratios**

- Runs alternate: `pykafka`, rival, `pykafka`, rival. The result of a row is the **median of the
  ratios of neighbouring runs**; above 1, pykafka is faster. The smallest and the largest ratio are
  in parentheses.
- Absolute figures (rows/s) depend on the machine and its load. They are medians too, so their
  quotient is not the median ratio.
- Most rows have two to five pairs of runs. **Rows with "one pair" have many or long runs, but are
  only as reliable as one run.**
- A run lasts from `load()` to the end of the job, planning included: one to a few seconds.
  "Latency" has the time of jobs that read next to nothing. Its target is in seconds: how much
  longer than the JVM connector pykafka may take. Each run of "a new session" is the first job of a
  Spark session in a process of its own, which is up before the time starts.
- **Much of the lead in short reads comes from a pause of the JVM connector**: its task waits up to
  0.5 s (`fetch.max.wait.ms`) when it reaches the end of a partition that gets no new records. The
  rows "all but the last 5 %" stop before that end, where neither connector waits, so they compare
  only the speed. The rows of "Growth" show the effect of the pause with many partitions.

**Data**

- `noop` is Spark's sink that drops rows. `sum(length(value))` processes every value.
- "16 KB batches": the topic was written with `batch.size=16384`.
- Values are text that looks like JSON. zstd compresses batches of it by a factor of 1.6 (10 B) to
  4.6 (10 KB). Keys have 8 bytes.
- Writes come from a DataFrame that is cached in memory. "Tuned" is, for both connectors,
  `kafka.linger.ms=20`, `kafka.batch.size=1048576`, `kafka.max.request.size=8388608` and
  `kafka.buffer.memory=67108864`.

**Groups of rows**

- "Spark's Arrow transfer alone" compares pykafka with a source that passes the same prebuilt batch
  to Spark again and again, and with a sink that drops its rows. No source or sink in Python can be
  faster ([where the time goes](performance.md)).
- Rows of "a part" count the rows that they return (offsets) or process (select, where).
- "Value alone by schema" compares `.schema("value binary")` with pykafka's own read of all columns
  of the same topic.
- "By time" is the same `where` on 2M rows on both sides. The JVM connector reads all of them, and
  rows/s counts all of them on both sides. Times ascend in each partition. In the middle of a topic,
  pykafka can only stop at the end time because `maxTimestampDisorderMs` is set.
- The records of "Schemas" are orders of ten fields (long, double, text, text or null, timestamp,
  enum, array of three, record, int, boolean; 64 B as Avro) with a registry's schema id before each.
  pykafka reads and writes with `valueFormat`. The JVM connector reads bytes, which Spark's
  `from_avro` or `from_json` decodes, and writes the bytes of `to_avro`. All columns go to `noop`.
- "Decode" and "encode" are without Kafka and Spark, in seconds of the processor: 2,500 to 10,000
  payloads of a shape in memory become Arrow columns in one call, and columns payloads. fastavro and
  orjson work with Python rows, so their time includes pyarrow's conversion of rows. Of upb only
  parsing and serializing counts, without columns.
- "Decode … in Spark" reads the same shapes from a topic: pykafka with `valueFormat`, the JVM
  connector with `from_avro` or `from_json`. `from_protobuf` has no row: Maven had no jar of
  spark-protobuf for Spark 4.0 to 4.3 when this was written.
- "Micro-batches" are those of one streaming query (`Trigger.AvailableNow`, `maxOffsetsPerTrigger`,
  `noop`) over a topic that is already full, in batches of 16 KB. The figures are the median and the
  95th percentile of `durationMs.triggerExecution` of 30 micro-batches after the first 8 (60 for
  those to another topic). Each pair is one query of each side. Most of this time is Spark's: a plan
  and two files for each micro-batch on both sides, and for pykafka the communication with a Python
  process ([where the time goes](performance.md#micro-batches)).
- "Live end": the rows of a micro-batch arrive in one request while the query waits for them, and
  the next rows arrive when the micro-batch is over. Here the JVM connector's offset lookup waits
  behind a fetch of its own, which waits for records.
- "Exactly-once" compares `deliveryGuarantee=exactly-once` with pykafka's default, `at-least-once`,
  in writes as above and in micro-batches from one topic to another, where it may add at most 150 ms
  to the median. The JVM connector has no such guarantee; its rows are at-least-once.

**Memory**

- Worker memory is the peak of the largest of Spark's Python workers, minus that of a worker that
  only passed Arrow batches through ({memory}). Target: 150 MB.

## Result
"""


def write_pages(root: Path) -> None:
    """Make the page, its pictures and the figures of README and front page of the bundles."""
    bundles = read_bundles()
    docs = root / "docs"
    (docs / "benchmarks.md").write_text(page(bundles), "utf-8")
    plot(bundles, docs)
    for path, update in (
        (root / "README.md", update_readme),
        (docs / "index.md", update_front_page),
        (docs / "client-others.md", update_others),
    ):
        path.write_text(update(path.read_text("utf-8"), bundles), "utf-8")


# --- the plot ------------------------------------------------------------------------------------


def plot(bundles: Sequence[Bundle], folder: Path) -> None:
    """Draw a bar for each group and rival: the median of its rows' ratios, with a line from the
    smallest to the largest; and the two pictures of growth. Light and dark, into the folder."""
    ratios: dict[str, list[float]] = {}
    for row in all_rows(bundles):
        if row.rival and row.group not in GROWTH_AXES:
            ratios.setdefault(f"{row.group} / {row.rival}", []).append(row.ratio)
    save_both("benchmarks", lambda: _draw_ratios(ratios), folder)
    growth = [row for row in all_rows(bundles) if row.group in GROWTH_AXES]
    if growth:
        save_both("growth-speed", lambda: _draw_growth(growth, of_memory=False), folder)
        save_both("growth-memory", lambda: _draw_growth(growth, of_memory=True), folder)


def _draw_growth(rows: Sequence[Row], *, of_memory: bool) -> None:
    from matplotlib import pyplot

    _, panels = pyplot.subplots(1, len(GROWTH_AXES), figsize=(8, 3), sharey=of_memory)
    for axes, (group, setting) in zip(panels, GROWTH_AXES.items(), strict=True):
        some = [row for row in rows if row.group == group]
        for number, name in enumerate(("pykafka", "JVM connector")):
            points = [
                (int(row.settings["topic"][setting]), value)
                for row in some
                if (value := _growth_value(row, of_memory, name)) is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker=MARKERS[number], label=name)
        axes.set_title(setting, fontsize=10)
        if setting != "tasks":
            axes.set_xscale("log")
        else:
            axes.set_xticks(range(1, 5))
        if of_memory:
            axes.axhline(WORKER_RSS_TARGET_MB, linestyle=":", color=axes.xaxis.label.get_color())
            axes.set_ylim(0, WORKER_RSS_TARGET_MB * 1.1)
        else:
            axes.set_yscale("log")
            axes.grid(which="minor", visible=False)
    unit = "MB in the largest worker,\nbeyond an idle one" if of_memory else "rows/s"
    panels[0].set_ylabel(unit)
    if not of_memory:
        panels[0].legend(fontsize=9)


def _growth_value(row: Row, of_memory: bool, name: str) -> float | None:
    if of_memory:
        return row.worker_rss_mb if name == "pykafka" else None
    figures = row.ours if name == "pykafka" else row.theirs
    return statistics.median(figures) if figures else None


def _draw_ratios(ratios: dict[str, list[float]]) -> None:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(8, 0.9 + 0.26 * len(ratios)))
    medians = [statistics.median(values) for values in ratios.values()]
    colours = colours_of(axes)
    positions = range(len(ratios))
    # Bars begin at 1, so that what is slower than its rival goes to the left.
    widths = [median - 1 for median in medians]
    axes.barh(positions, widths, left=1, color=[colours[median < 1] for median in medians])
    text_colour = axes.xaxis.label.get_color()
    axes.hlines(positions, [*map(min, ratios.values())], [*map(max, ratios.values())], text_colour)
    for position, (median, values) in enumerate(zip(medians, ratios.values(), strict=True)):
        axes.text(max(1, *values) * 1.06, position, f"{median:.1f}", va="center", fontsize=9)
    axes.set_xscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(positions, ratios, fontsize=9)
    axes.set_ylim(len(ratios) - 0.4, -0.6)
    axes.axvline(1, color=text_colour, linewidth=0.9)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.set_xlabel("times as fast as the rival\n(bar: median row; line: smallest to largest)")


# --- where it ran --------------------------------------------------------------------------------


def about(command: str, more: Mapping[str, str]) -> dict[str, str]:
    """Date, versions and machine. Without names of hosts or users: this is published. `more`: facts
    of the part that is measured."""
    import psutil

    facts = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "command": command}
    facts["commit"] = _commit()
    facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    for name in _PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts |= more
    facts["Python"] = platform.python_version()
    facts["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    facts["CPU"] = _cpu_model()
    facts["cores"] = str(os.cpu_count())
    facts["RAM"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return facts


def _commit() -> str:
    """The short hash, and whether code differs from it: pages are made anew after each part."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        pages = (":(top,exclude)docs", ":(top,exclude)README.md")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *pages)
        return git("rev-parse", "--short", "HEAD") + " with changes" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # a copy without git


def java_version(java: Path) -> str:
    response = subprocess.run(
        [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
    )
    match = re.search(r'version "([^"]+)"', response.stderr + response.stdout)
    return match[1] if match else "unknown"


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or "unknown"
