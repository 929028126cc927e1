"""The newest Kafka's protocol, read out of its jar, against this project's declarations."""

from __future__ import annotations

import pytest

from sparkkafka.testing.kafka.process import UnavailableError
from sparkkafka.testing.pytest_plugin import _not_available
from tests.tools import drift


@pytest.fixture(scope="module", autouse=True)
def newest() -> drift.NewestProtocol:
    try:
        return drift.newest_protocol()
    except UnavailableError as error:
        _not_available("Kafka", str(error))


def test_the_page_of_the_newest_kafka_is_read_whole(newest: drift.NewestProtocol) -> None:
    assert len(newest.layouts) >= 79
    assert newest.layouts["Fetch"].keys() >= {("Request", 4), ("Response", 4)}
    assert newest.errors["UNKNOWN_TOPIC_ID", 100][0] is True


def test_nothing_is_missing_without_a_reason() -> None:
    found = list(drift.gaps())
    for gap in found:
        print(f"{gap.name}: {drift.ACCEPTED.get(gap.name, gap.text)}")
    assert {gap.name for gap in found} == set(drift.ACCEPTED)


def test_the_layout_of_each_version_is_that_of_the_jar() -> None:
    assert list(drift.differences()) == []
