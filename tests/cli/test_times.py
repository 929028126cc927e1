"""Times at a prompt mean the same moment in every verb, on every machine."""

from __future__ import annotations

import time

import pytest

from sparkkafka.cli.commands import timestamp_ms_of
from sparkkafka.cli.read import Bound, parse_bound


@pytest.fixture(autouse=True)
def far_east(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1769860800000", 1769860800000),
        ("2026-01-31T12:00", 1769860800000),
        ("2026-01-31T12:00:00.001Z", 1769860800001),
        ("2026-01-31T13:00+01:00", 1769860800000),
        ("1970-01-01", 0),
    ],
)
def test_without_a_zone_it_is_utc(text, expected_ms):
    assert timestamp_ms_of(text, "--to-time") == expected_ms
    assert parse_bound(f"@{text}", "--from") == Bound("time", expected_ms)


def test_how_long_ago():
    expected_ms = (time.time() - 7200) * 1000
    assert parse_bound("@-2h", "--from").number == pytest.approx(expected_ms, abs=60_000)
