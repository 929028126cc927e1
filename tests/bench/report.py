"""What a run of the benchmarks leaves: a table, JSON, a plot, and a block of the README.

JSON is the source: the pages are made of it alone, and a test holds them to it.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkkafka.plot.canvas import colours_of
from tests.bench.results import WORKER_RSS_TARGET_MB, Row, median_difference
from tests.tools.pictures import save_both

README_START, README_END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
FIGURES_START, FIGURES_END = "<!-- figures -->", "<!-- /figures -->"


@dataclass(frozen=True)
class PublishedRow:
    """A row that README shows, in the words of a user. `rival` is how the rival's name starts where
    a row has several."""

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

_HEAD = ("what", "pykafka", "rival", "ratio: median (from to)", "target", "speed", "worker memory")
_PACKAGES = ("sparkkafka", "pyspark", "pyarrow", "numpy", "confluent-kafka", "kafka-python")


@dataclass
class Report:
    """All rows of a run and where they come from. `about` is flat text by name."""

    about: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    def to_json(self) -> str:
        rows = [dataclasses.asdict(_rounded(row)) for row in self.rows]
        return json.dumps({"about": self.about, "rows": rows}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        document: dict[str, Any] = json.loads(text)
        return cls(document["about"], [Row(**row) for row in document["rows"]])

    @property
    def groups(self) -> dict[str, list[Row]]:
        """Rows by their heading, both in the order of the first appearance."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.group, []).append(row)
        return groups


def merged(published: Report, later: Report, group_order: Sequence[str]) -> Report:
    """The published rows with those of a later, partial run in their places; new ones come last in
    their group. `about` stays that of the published run: later rows say themselves what they are
    of."""
    words = _later_words(later.about, published.about)
    renewed = {_key(row): dataclasses.replace(row, measured=words) for row in later.rows}
    rows = [renewed.pop(_key(row), row) for row in published.rows]
    order = {group: number for number, group in enumerate(group_order)}
    rows = sorted([*rows, *renewed.values()], key=lambda row: order.get(row.group, len(order)))
    return Report(published.about, rows)


def _key(row: Row) -> tuple[str, str, str]:
    return row.group, row.name, row.rival.split()[0]  # a rival's version may be a newer one


def _later_words(later: dict[str, str], before: dict[str, str]) -> str:
    """Date and commit of a run, and in what else it differs from the one before."""
    of_the_run = {"date", "command", "commit", "load before", "worker memory"}
    changed = [
        f"{name} {value}"
        for name, value in later.items()
        if name not in of_the_run and before.get(name) != value
    ]
    words = f"{later['date']} at commit {later.get('commit', 'unknown')}"
    if "load before" in later:
        words += f", load {later['load before']} before it began"
    return "; ".join([words, *changed])


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
        f"{_figure(row.theirs, row.unit)} {row.rival}",
        _ratio_words(row),
        _target_words(row),
        verdict,
        memory,
    )


def _ratio_words(row: Row) -> str:
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
        return f"{row.target:g} {row.unit}"
    if row.target_kind == "difference":
        return f"at most {row.target:+g} {row.unit}"
    return f"{row.target:g} times"


def _figure(figures: Sequence[float], unit: str) -> str:
    middle = statistics.median(figures)
    if unit == "ms":
        return f"{middle:.0f} ms"
    if unit != "rows/s":
        return f"{middle:.2f} {unit}" if middle >= 0.1 else f"{middle:.3g} {unit}"
    if middle >= 1e6:
        return f"{middle / 1e6:.2f}M rows/s"
    return f"{middle / 1e3:.0f}K rows/s" if middle >= 1e4 else f"{middle:.0f} rows/s"


def _rounded(row: Row) -> Row:
    def four_digits(figures: list[float]) -> list[float]:
        return [float(f"{figure:.4g}") for figure in figures]

    memory = None if row.worker_rss_mb is None else round(row.worker_rss_mb, 1)
    ours, theirs = four_digits(row.ours), four_digits(row.theirs)
    return dataclasses.replace(row, ours=ours, theirs=theirs, worker_rss_mb=memory)


# --- pages ---------------------------------------------------------------------------------------


def plain_table(report: Report) -> str:
    """For a terminal."""
    lines = []
    table = {group: [cells(row) for row in rows] for group, rows in report.groups.items()}
    everything = [_HEAD, *(row for rows in table.values() for row in rows)]
    widths = [max(len(row[i]) for row in everything) for i in range(len(_HEAD))]
    for group, rows in table.items():
        lines.append(f"\n{group}")
        for row in (_HEAD, *rows):
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
    lines += ["", summary(report.rows)]
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


def page(report: Report) -> str:
    """docs/benchmarks.md: how it is measured, the plot, the machine, and every row."""
    parts = [_PAGE_HEAD.format(memory=report.about.get("worker memory", "")), summary(report.rows)]
    for file, shown in (("benchmarks", "light"), ("benchmarks-dark", "dark")):
        parts.append(f"\n![Ratios by group and rival]({file}.png#gh-{shown}-mode-only)\n")
    parts.append("## Where it ran\n\n| | |\n|---|---|")
    parts += [f"| {name} | {value} |" for name, value in report.about.items()]
    return "\n".join(parts) + "\n\n" + rows_section(report)


def rows_section(report: Report) -> str:
    """All rows, by group."""
    parts = [_ROWS_HEAD]
    for group, rows in report.groups.items():
        parts.append(f"### {group[0].upper()}{group[1:]}\n\n{markdown_table(rows)}")
        notes: dict[str, list[str]] = {}
        for row in rows:
            if row.note:
                notes.setdefault(row.note, []).append(f"{row.name} ({row.rival})")
        if notes:
            lines = (f"- {'; '.join(names)}: {note}" for note, names in notes.items())
            parts.append("\n".join(lines) + "\n")
        parts += [f"{line}\n" for line in _measured_lines(rows)]
    return "\n".join(parts)


def update_readme(text: str, report: Report) -> str:
    """The README's text with its table made current."""
    lines = ["| | pykafka | the other | times as fast |", "|---|---|---|---|"]
    for published, row in published_rows(report, README_ROWS):
        figures = f"{_figure(row.ours, row.unit)} | {_figure(row.theirs, row.unit)}, {row.rival}"
        lines.append(f"| {published.text} | {figures} | **{row.ratio:.1f}** |")
    return _replaced(text, README_START, README_END, "\n".join(lines) + "\n")


def update_front_page(text: str, report: Report) -> str:
    """The text of docs/index.md with its three figures made current."""
    lines = ['<div class="figures" markdown>']
    for published, row in published_rows(report, FRONT_PAGE_ROWS):
        lines += ["<div markdown>", f"**{row.ratio:.1f} times** the {row.rival}: {published.text}"]
        lines.append("</div>")
    about = report.about
    again = any(row.measured for _, row in published_rows(report, FRONT_PAGE_ROWS))
    lines += [
        "</div>",
        "",
        f"Medians of {about['date']} on {about['cores']} cores ({about['CPU']}) with one broker "
        f"({about['Kafka broker']}), sparkkafka {about['sparkkafka']}, PySpark {about['pyspark']}: "
        "[how it is measured, and all rows](benchmarks.md)"
        f"{', some of them measured again later' * again}. `make bench` measures it again.",
    ]
    return _replaced(text, FIGURES_START, FIGURES_END, "\n".join(lines) + "\n")


def _replaced(text: str, start: str, end: str, content: str) -> str:
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {start} … {end} in the text")
    return f"{before}{start}\n{content}{end}{after}"


def _measured_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each separate run, with the names of the rows that it measured."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if row.measured:
            runs.setdefault(row.measured, []).append(row)
    lines = []
    for words, those in runs.items():
        names = dict.fromkeys(row.name for row in those)
        all_of_them = len(those) == len(rows)
        which = "All of these" if all_of_them else "; ".join(names)
        lines.append(f"Measured in a separate run: {which} ({words}).")
    return lines


def published_rows(
    report: Report, chosen: Sequence[PublishedRow]
) -> Iterator[tuple[PublishedRow, Row]]:
    """The rows of the report that a page shows, in its order."""
    for published in chosen:
        for row in report.rows:
            if (row.group, row.name) == (published.group, published.name) and (
                row.rival.startswith(published.rival)
            ):
                yield published, row
                break


_ROWS_HEAD = """\
## All rows

A ratio is the median of the ratios of neighbouring runs, with the smallest and the largest in
parentheses. Above 1, pykafka is faster. [Where the time goes](performance.md).
"""

_PAGE_HEAD = """\
# Benchmarks

`make bench` measures [all rows](#all-rows) and writes this page from
[the figures](benchmarks.json). `make bench-quick` measures some of the rows in less than three
minutes and writes nothing. A note below a table names the rows that
`tests/bench/run.py --only … --write` measured again later.

## How it is measured

**Setup**

- One real broker and one Spark session (`local[2]`) with both connectors run on one machine. Topics
  have 4 partitions unless the row says otherwise.
- Both connectors read or write the same bytes with the same `kafka.*` settings. For each topic both
  must return the count and the sum of lengths that were written. After writes, the topics' records
  are counted.
- The JVM connector's jars (names below) are the newest complete set that was available. They are a
  little older than Spark itself.
- The client rows measure without Spark, against other Python clients.

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
  longer than the JVM connector pykafka may take.
- **Much of the lead in short reads comes from a pause of the JVM connector**: its task waits up to
  0.5 s (`fetch.max.wait.ms`) when it reaches the end of a partition that gets no new records. The
  rows "all but the last 5 %" stop before that end, where neither connector waits, so they compare
  only the speed. The rows of "Growth" show the effect of the pause with many partitions and with
  many rows.

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
  "Decode" is without Kafka and Spark: values in memory, for pykafka in batches of 8,192 as in a
  read task.
- "Micro-batches" are those of one streaming query (`Trigger.AvailableNow`, `maxOffsetsPerTrigger`,
  `noop`, checkpoint on the local disk) over a topic that is already full, in batches of 16 KB. The
  figures are the median and the 95th percentile of `durationMs.triggerExecution` of 30
  micro-batches after the first 8 (60 for those to another topic). Each pair is one query of each
  side. Most of this time is Spark's: a plan and two files for each micro-batch on both sides, and
  for pykafka the communication with a Python process
  ([where the time goes](performance.md#micro-batches)).
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


# --- the plot ------------------------------------------------------------------------------------


def plot(report: Report, folder: Path) -> None:
    """Draw a bar for each group and rival: the median of its rows' ratios, with a line from the
    smallest to the largest. Writes benchmarks.png and benchmarks-dark.png into the folder."""
    ratios: dict[str, list[float]] = {}
    for group, rows in report.groups.items():
        for row in rows:
            ratios.setdefault(f"{group} / {row.rival}", []).append(row.ratio)
    save_both("benchmarks", lambda: _draw_ratios(ratios), folder)


def _draw_ratios(ratios: dict[str, list[float]]) -> None:
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(8, 0.9 + 0.26 * len(ratios)))
    medians = [statistics.median(values) for values in ratios.values()]
    colours = colours_of(axes)
    places = range(len(ratios))
    # Bars begin at 1, so that what is slower than its rival goes to the left.
    widths = [median - 1 for median in medians]
    axes.barh(places, widths, left=1, color=[colours[median < 1] for median in medians])
    text_colour = axes.xaxis.label.get_color()
    axes.hlines(places, [*map(min, ratios.values())], [*map(max, ratios.values())], text_colour)
    for place, (median, values) in enumerate(zip(medians, ratios.values(), strict=True)):
        axes.text(max(1, *values) * 1.06, place, f"{median:.1f}", va="center", fontsize=9)
    axes.set_xscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(places, ratios, fontsize=9)
    axes.set_ylim(len(ratios) - 0.4, -0.6)
    axes.axvline(1, color=text_colour, linewidth=0.9)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.set_xlabel("times as fast as the rival\n(bar: median row; line: smallest to largest)")


# --- where it ran --------------------------------------------------------------------------------


def about(command: str, *, kafka: str, connector: Sequence[Path], java: Path) -> dict[str, str]:
    """Date, versions and machine. Without names of hosts or users: this is published."""
    import psutil

    facts = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "command": command}
    facts["commit"] = _commit()
    facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    facts |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    facts["Kafka broker"] = kafka
    facts["JVM connector's jars"] = ", ".join(sorted(path.stem for path in connector))
    facts["Java"] = _java_words(java)
    facts["Python"] = platform.python_version()
    facts["system"] = f"{platform.system()} {platform.machine()}"
    facts["CPU"] = _cpu_model()
    facts["cores"] = str(os.cpu_count())
    facts["RAM"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return facts


def _commit() -> str:
    """The short hash, and whether files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + " with changes" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # a copy without git


def _java_words(java: Path) -> str:
    answer = subprocess.run(
        [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
    )
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match[1] if match else "unknown"


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or "unknown"
