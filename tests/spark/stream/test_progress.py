"""The live display of a query: what it says, where, and when it ends. No Spark session."""

from __future__ import annotations

import re
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import sparkkafka
from sparkkafka.errors import KafkaConnectionError, OptionError
from sparkkafka.spark.stream import progress as progress_module

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9"}


def report(batch: int, read: int = 5, end: Any = 1_205, **more: Any) -> dict[str, Any]:
    latest = end if isinstance(end, str) else {"t": {"0": end}}
    source = {
        "description": "PythonMicroBatchStream@1",
        "endOffset": {"t": {"0": read}},
        "latestOffset": latest,
    }
    return {
        "batchId": batch,
        "numInputRows": 8_000,
        "batchDuration": 1_260,
        "processedRowsPerSecond": 6_349.2,
        "sources": [source],
        **more,
    }


class Query:
    """Has these reports one after the other, and is over with the last one."""

    def __init__(self, *reports: Any, error: Exception | None = None, name: str | None = "q"):
        self._reports = list(reports)
        self._error = error
        self.name = name
        self.id = "0123456789abcdef"
        self.status = {"message": "Processing new data"}
        self.looks = 0
        self.recentProgress: list[Any] = []

    @property
    def isActive(self) -> bool:
        return len(self._reports) > 1

    @property
    def lastProgress(self) -> Any:
        self.looks += 1
        found = self._reports.pop(0) if self.isActive else self._reports[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def exception(self) -> Exception | None:
        return self._error


def shown(capsys: pytest.CaptureFixture[str], query: Query, *more: Any, **options: Any) -> str:
    sparkkafka.progress(query, *more, interval_s=0.1, **options)
    return capsys.readouterr().out


LINE = "q  batch 1  8,000 rows in 1.3 s  6,349 rows/s  lag 1,200  Processing new data"


def test_in_a_pipe_each_batch_has_a_line(capsys: Any) -> None:
    lines = shown(capsys, Query(None, report(1), report(1), report(2, 1_205))).splitlines()
    assert lines[0] == "q  no batch has finished yet  Processing new data"
    assert lines[1] == LINE
    assert lines[2:] == ["q  batch 2  8,000 rows in 1.3 s  6,349 rows/s  lag 0  ended"]


def test_on_a_terminal_one_line_is_written_anew_and_fits(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    text = shown(capsys, Query(report(1), report(2), name="a\x1b[2Jname"))
    first, last = text.removeprefix("\r").split("\r")
    assert first.removesuffix("\x1b[K") == "a?[2Jname  batch 1  8,000 rows in 1...."
    assert last.endswith("\x1b[K\n")


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What a notebook shows one after the other in one output."""
    display = pytest.importorskip("IPython.display")
    outputs: list[dict[str, str]] = []

    def made(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id, outputs) == (True, True, [])
        outputs.append(data)
        return SimpleNamespace(update=lambda data, raw: outputs.append(data))

    monkeypatch.setattr(display, "display", made)
    shell = SimpleNamespace(kernel="one")
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    return outputs


def test_in_a_notebook_one_output_changes(outputs: list[dict[str, str]]) -> None:
    sparkkafka.progress(Query(report(1), report(2), name="<q>"), interval_s=0.1)
    assert len(outputs) == 2
    assert outputs[0]["text/plain"] == LINE.replace("q ", "<q> ", 1)
    assert outputs[1]["text/html"].startswith("<div>&lt;q&gt; ")
    assert "lag <b>1,200</b>" in outputs[1]["text/html"]


def points(html: str) -> list[int]:
    """Return the number of points of each curve."""
    return [len(line.split()) for line in re.findall(r'<polyline points="([^"]*)"', html)]


def timed(second: int, **more: Any) -> dict[str, Any]:
    return report(second, timestamp=f"2026-01-31T06:00:{second:02}.500Z", **more)


def test_a_notebook_has_curves_from_the_first_report_on(outputs: list[dict[str, str]]) -> None:
    query = Query(None, timed(3), timed(3), timed(4, processedRowsPerSecond=None))
    query.recentProgress = [timed(1), timed(2, end="null")]
    sparkkafka.progress(query, interval_s=0.1)
    # The rows per second of batches 1 to 3, the lag of batches 1, 3 and 4.
    assert [points(output["text/html"]) for output in outputs] == [[2, 2], [3, 2], [3, 2], [3, 3]]
    assert "06:00:01" in outputs[-1]["text/html"]
    assert "06:00:04 UTC" in outputs[-1]["text/html"]


def test_a_lag_that_is_looked_up_is_a_point_each_time(
    outputs: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "lag", lambda report, options, *, timeout_s: {})
    sparkkafka.progress(Query(*[timed(1)] * 4), OPTIONS, interval_s=0.1)
    assert points(outputs[-1]["text/html"]) == [2, 4]  # a curve with one point is a line


def test_a_query_without_a_report_has_no_curves(outputs: list[dict[str, str]]) -> None:
    sparkkafka.progress(Query(None))
    assert "svg" not in outputs[-1]["text/html"]


def test_it_ends_at_its_deadline(capsys: Any) -> None:
    query = Query(*[report(1)] * 1_000)
    assert shown(capsys, query, timeout_s=0.3).splitlines() == [LINE] * 2
    assert query.isActive


def test_the_error_of_the_query_is_raised_as_it_is(capsys: Any) -> None:
    error = RuntimeError("what Spark says")
    with pytest.raises(RuntimeError) as raised:
        shown(capsys, Query(None, error=error))
    assert raised.value is error
    assert capsys.readouterr().out == "q  no batch has finished yet  failed\n"


def test_an_interrupt_leaves_the_query_and_spark_s_handler_alone(capsys: Any) -> None:
    """Spark's handler of SIGINT, which cancels all jobs, does not run."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        handler = signal.getsignal(signal.SIGINT)
        timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        timer.start()
        lines = shown(capsys, Query(*[report(1)] * 1_000), timeout_s=60).splitlines()
        timer.join()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert lines[-1].endswith("interrupted: the query is still running")
    assert heard == []


@pytest.mark.parametrize("row", [report(1, end="null"), report(1, end="null", batchDuration=None)])
def test_a_lag_that_nobody_tells(row: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "  lag ?  " in shown(capsys, Query(row))
    waits: list[float] = []

    def away(report: Any, options: Any, *, timeout_s: float) -> Any:
        waits.append(timeout_s)
        raise KafkaConnectionError("away")

    monkeypatch.setattr(progress_module, "lag", away)
    assert "  lag ?  " in shown(capsys, Query(row), OPTIONS)
    assert all(0 < wait <= 1 for wait in waits)


def test_rows_that_spark_does_not_report(capsys: Any) -> None:
    nan = report(3, numInputRows=0, processedRowsPerSecond=float("nan"))
    query = Query(nan, name=None)
    assert shown(capsys, query) == "01234567  batch 3  0 rows in 1.3 s  lag 1,200  ended\n"


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (
            "Getting offsets from org.apache.spark.sql.execution.datasources.v2.python."
            "PythonMicroBatchStreamWithTriggerAvailableNow@ea82654",
            "Getting offsets",
        ),
        (
            "Getting offsets from KafkaV2[Subscribe[t]]",
            "Getting offsets from KafkaV2[Subscribe[t]]",
        ),
        (
            "Terminated with exception: " + "x" * 200,
            "Terminated with exception: " + "x" * 30 + "...",
        ),
    ],
)
def test_states_of_spark_are_short_and_name_no_class(message: str, state: str, capsys: Any) -> None:
    query = Query(report(1), report(1))
    query.status = {"message": message}
    assert shown(capsys, query).splitlines()[0].endswith(f"  lag 1,200  {state}")


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("no query", {}, r"takes a streaming query, not str"),
        (Query(report(1)), {"timeout_s": -1}, "timeout_s is a number of seconds"),
        (Query(report(1)), {"interval_s": "1"}, "interval_s is a number of seconds"),
        (Query(report(1)), {"options": {"subscribe": "t"}}, "kafka.bootstrap.servers"),
    ],
)
def test_wrong_use(query: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sparkkafka.progress(query, **options)
