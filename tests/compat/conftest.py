"""One Kafka and one Spark: `tests.tools.compat` runs these tests with each, and makes tables of it.

SPARKKAFKA_COMPAT_KAFKA is the broker's version (the newest by itself), and SPARKKAFKA_COMPAT_CELLS
a file that gets a line of JSON for each test.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import Admin, NewTopic
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.jars import KAFKA_VERSION, kafka_jars
from tests.real.kfake import KFAKE, kfake
from tests.real.old_kafka import JARS, OldKafka
from tests.real.tansu import TANSU, tansu

KAFKA = os.environ.get("SPARKKAFKA_COMPAT_KAFKA", KAFKA_VERSION)
LIMITATIONS = {
    TANSU: {
        "test_transactions": (
            "gone",
            "isolation.level=read_committed returns records of aborted transactions, to librdkafka "
            "too",
        ),
        "test_administration": (
            "offset=0",
            "offsets by time are those of a batch's start, and deleting records closes the "
            "connection",
        ),
        "test_exactly_once": (
            "transaction.max.timeout.ms of broker 111 cannot be read",
            "OffsetFetch returns no metadata of offsets, which keeps a micro-batch's decision, and "
            "requests for the broker's transaction.max.timeout.ms close the connection",
        ),
    }
}
"""What a broker by other hands lacks, by test: a part of the failure, and what the page says."""

_WITH_ZOOKEEPER = {"2.1.1": JARS, "2.8.2": kafka_jars("2.8.2")}


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    if KAFKA == TANSU:
        with tansu() as address:
            yield address
    elif KAFKA == KFAKE:
        with kfake() as address:
            yield address
    elif KAFKA in _WITH_ZOOKEEPER:
        with OldKafka(_WITH_ZOOKEEPER[KAFKA]) as old:
            yield old.bootstrap_servers
    else:
        with KafkaCluster(kafka_version=KAFKA) as cluster:
            yield cluster.bootstrap_servers


@pytest.fixture
def topics(servers: str, request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """`topics("in", "out")`: new ones of two partitions, with names of this test's own."""

    def make(*ends: str) -> list[str]:
        names = [f"{request.node.name}-{end}".replace("[", "-").replace("]", "") for end in ends]
        with Admin({"bootstrap.servers": servers}) as admin:
            admin.create_topics([NewTopic(name, 2, 1) for name in names]).all()
        return names

    return make


@pytest.fixture
def hole(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """`hole(error)`: what is tested is not there, and this is what a user sees instead."""

    def note(error: object) -> None:
        text = str(error).strip().splitlines()[0]
        request.node.hole = re.sub(r"127\.0\.0\.1:\d+: |topic test_\S+: ", "", text)

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    broker = LIMITATIONS.get(KAFKA, {})
    known = broker.get(item.originalname) if report.when == "call" else None  # type: ignore[attr-defined]
    if known is not None and call.excinfo is None:
        report.outcome, report.longrepr = "failed", f"{KAFKA} can do it: change LIMITATIONS"
    elif known is not None and known[0] in str(call.excinfo and call.excinfo.value):
        report.outcome, item.hole = "passed", known[1]  # type: ignore[attr-defined]
    path = os.environ.get("SPARKKAFKA_COMPAT_CELLS")
    if path and (report.when == "call" or report.failed):
        cell = {
            "feature": (item.function.__doc__ or item.name).strip(),  # type: ignore[attr-defined]
            "passed": report.passed,
            "gap": getattr(item, "hole", None),
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(cell) + "\n")
    return report
