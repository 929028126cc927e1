"""Reports of processes and tasks: valid, bounded, never blocking. Hostile ones are dropped."""

from __future__ import annotations

import hashlib
import json
import pickle
import socket
from typing import Any

import pytest

from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.config.options import (
    parse_read_options,
    parse_stream_write_options,
    parse_write_options,
)
from sparkkafka.errors import OptionError
from sparkkafka.monitoring.aggregator import MetricAggregator
from sparkkafka.monitoring.listener import Receiver
from sparkkafka.spark import metric_reports
from sparkkafka.spark.metric_reports import (
    BadReportError,
    Count,
    Report,
    datagrams,
    parse_report,
    task_report,
)
from tests.support.waiting import wait_until

KEY = bytes(range(16))
QUERY = "4db3e04b-33f1-467a-bb97-8d725e549d96"


def report(partitions: int = 1) -> Report:
    made = Report(QUERY, prefix="mine")
    for partition in range(partitions):
        made.add(Count.RECORDS, 10, "t", partition)
        made.add(Count.BAD, partition, "t", partition)
    made.add(Count.COMMITTED, 3)
    return made


def test_a_report_survives_the_round_trip() -> None:
    (datagram,) = datagrams(report(2), KEY)
    found = parse_report(datagram, KEY)
    assert found == report(2)
    assert found.counts == {("t", 0): {"records": 10}, ("t", 1): {"records": 10, "bad": 1}}
    assert not Report() and not list(datagrams(Report(), KEY))


def test_a_long_report_takes_several_datagrams() -> None:
    long = Report(QUERY)
    for number in range(metric_reports.MAX_ROWS):
        long.add(Count.RECORDS, 2**40, "t" * 200, number)
    pieces = list(datagrams(long, KEY))
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= metric_reports.MAX_BYTES
    together = Report(QUERY)
    for piece in pieces:
        together.add_report(parse_report(piece, KEY))
    assert together == long


def test_a_report_of_very_many_partitions_has_sums_by_topic() -> None:
    (datagram,) = datagrams(report(1_000), KEY)
    counts = parse_report(datagram, KEY).counts
    assert counts == {("t", metric_reports.ALL_PARTITIONS): {"records": 10_000, "bad": 499_500}}


def signed(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16, key=KEY).digest() + body


def tree(**more: Any) -> bytes:
    sound = {"v": 1, "n": "", "query": QUERY, "ends": "", "prefix": "", "totals": {}, "rows": []}
    return signed(json.dumps(sound | more).encode())


def test_invalid_reports_are_refused() -> None:
    assert parse_report(tree(), KEY) == Report(QUERY)
    (good,) = datagrams(report(), KEY)
    flipped = bytes([good[0] ^ 1]) + good[1:]
    for datagram in (b"", good[:10], good[:-1], flipped, good[:-2] + b"x}", b"{}" * 20):
        with pytest.raises(BadReportError, match="signature"):
            parse_report(datagram, KEY)
    row = {"records": 1}
    hostile = [
        signed(b"\xff"), signed(b"[" * 1_000), signed(b"[]"), signed(b"{}"), signed(b"1"),
        tree(v=2), tree(query="../etc"), tree(query=None), tree(ends="x"), tree(rows=None),
        tree(rows=[["t", 0]]), tree(rows=[["", 0, row]]), tree(rows=[["a b", 0, row]]),
        tree(rows=[["t" * 250, 0, row]]), tree(rows=[["t", -2, row]]),
        tree(rows=[["t", True, row]]),
        tree(rows=[["t", 2**31, row]]), tree(rows=[["t", 0, {"records": -1}]]),
        tree(rows=[["t", 0, {"records": 1.5}]]), tree(rows=[["t", 0, {"records": True}]]),
        tree(rows=[["t", 0, {"records": 2**63}]]), tree(rows=[["t", 0, {"other": 1}]]),
        tree(rows=[["t", 0, [1]]]), tree(totals={"rows": 1}), tree(totals={"committed": "1"}),
        tree(totals=[]),
    ]  # fmt: skip
    for datagram in hostile:
        with pytest.raises(BadReportError):
            parse_report(datagram, KEY)


def test_a_receiver_counts_each_report_once_and_drops_the_rest() -> None:
    aggregator = MetricAggregator()
    aggregator.query_started(QUERY, "q")
    receiver = Receiver(aggregator, "127.0.0.1", 0)
    try:
        address = receiver.address
        assert "***" in repr(address) and address.key.hex() not in repr(address)
        (datagram,) = datagrams(report(), address.key)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for data in (datagram, datagram, b"x", b"y" * 3_000):
                sock.sendto(data, (address.host, address.port))
        report().send(address)
        report().send(address._replace(key=KEY))

        def found() -> dict[str, float]:
            return {
                f"{row.metric.field}{row.labels.get('reason', '')}": row.value
                for row in aggregator.samples()
            }

        wait_until(lambda: found().get("droppedsignature") == 3, "all of them")
        assert found()["records"] == 20  # two equal reports both count
        assert found()["droppedrepeated"] == 1
        assert found()["received"] == 2
        with pytest.raises(OptionError, match=f"reports_port={address.port}"):
            Receiver(aggregator, "127.0.0.1", address.port)
    finally:
        receiver.close()
    for host in ("no such host", "0.0.0.0", "::", "a" * 64):
        with pytest.raises(OptionError, match=f"reports_host='{host}'"):
            Receiver(aggregator, host, 0)
    report().send(address)  # without a listener nothing happens


def test_sending_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(metric_reports.socket, "socket", refuse)
    report().send(MetricsAddress("127.0.0.1", 1, KEY))
    report().send(None)


@pytest.mark.parametrize(
    ("error", "left"),
    [(None, {"records", "retries", "dead"}), (GeneratorExit, {"records", "retries", "dead"}),
     (ValueError, {"retries", "dead"})],
)  # fmt: skip
def test_what_a_read_task_reports(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None, left: set[str]
) -> None:
    sent: list[Report] = []
    monkeypatch.setattr(Report, "send", lambda self, address: sent.append(self))

    def task() -> None:
        with task_report(MetricsAddress("127.0.0.1", 1, KEY)) as counted:
            for name in (Count.RECORDS, Count.RETRIES, Count.DEAD):
                counted.add(name, 1, "t", 0)
            if error is not None:
                raise error

    if error is None:
        task()
    else:
        with pytest.raises(error):
            task()
    assert [row.counts["t", 0].keys() for row in sent] == [left]


def test_the_option() -> None:
    given = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
    for host in ("127.0.0.1", "[::1]"):
        text = f"{host}:9/{KEY.hex()}"
        address = parse_read_options(given | {"metricsAddress": text}).metrics_address
        assert address == MetricsAddress(host.strip("[]"), 9, KEY)
        assert address.text == text
    write = {"kafka.bootstrap.servers": "h:9092", "topic": "t", "metricsAddress": text}
    for parse in (parse_write_options, parse_stream_write_options):
        options = parse(write)
        assert options.metrics_address == address
        assert KEY.hex() not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
    assert KEY.hex() not in repr(parse_read_options(given | {"metricsAddress": text}))
    for bad in ("", "host:9/" + KEY.hex(), "1.2.3.4:0/" + KEY.hex(), "1.2.3:9/" + KEY.hex(),
                "1.2.3.4:70000/" + KEY.hex(), "1.2.3.4:9", "1.2.3.4:9/12"):  # fmt: skip
        with pytest.raises(
            OptionError, match=r"metricsAddress must be the value in sparkkafka\.metrics"
        ) as e:
            parse_read_options(given | {"metricsAddress": bad})
        assert KEY.hex() not in str(e.value)
