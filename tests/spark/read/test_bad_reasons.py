"""Reasons of bad records whose words come from a stranger's schema: long, or no UTF-8."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkkafka.errors import BadRecordError, KafkaError
from sparkkafka.schemas.column import BadRow
from sparkkafka.schemas.framings import WriterId
from sparkkafka.schemas.registry import rest_service
from sparkkafka.spark.read.decoding import MAX_REASON, reason_of
from tests.schemas.small_registry import SmallRegistry
from tests.spark.typed_support import ORDER_1, Topics, framed

NAMES = {"surrogate": "\ud800" * 900, "long": "n" * 100_000}


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def topics(fake_cluster: Any, registry: SmallRegistry, request: Any) -> Topics:
    """Topic orders, whose second record has a schema with a type of that name."""
    made = Topics(fake_cluster, registry)
    registry.add("orders-value", json.dumps(ORDER_1))
    fields = [{"name": "id", "type": request.param}]
    strange = registry.add("other-value", json.dumps({**ORDER_1, "fields": fields}))
    made.cluster.create_topic("orders")
    made.cluster.create_topic("dead")
    made.put("orders", [framed(1, ORDER_1, {"id": 1, "who": "a"}), b"\0\0\0\0%c?" % strange])
    return made


def test_in_the_column(topics: Topics) -> None:
    good, bad = topics.read(topics.options("orders", onBadRecord="column"))
    assert good["bad_record"] is None
    error = bad["bad_record"]["error"]
    assert error.startswith("value: ")
    assert 50 < len(error) <= MAX_REASON
    assert "\\ud800\\ud800" in error or "nnnn" in error


def test_in_dead_letters(topics: Topics) -> None:
    more = {"deadLetter.topic": "dead"}
    assert len(topics.read(topics.options("orders", onBadRecord="deadLetter", **more))) == 1
    bootstrap = {"kafka.bootstrap.servers": topics.cluster.bootstrap_servers}
    (letter,) = topics.read({**bootstrap, "subscribe": "dead", "includeHeaders": "true"})
    headers = {item["key"]: item["value"] for item in letter["headers"]}
    reason = headers["__connect.errors.exception.message"].decode()
    assert 50 < len(reason) <= MAX_REASON


def test_in_an_error(topics: Topics) -> None:
    with pytest.raises(BadRecordError) as caught:
        topics.read(topics.options("orders"))
    assert len(str(caught.value).encode()) < 3 * MAX_REASON


def test_a_reason_is_cut_and_can_be_written() -> None:
    bad = [(name, BadRow(0, "\ud800é" * 5_000, WriterId(7))) for name in ("value", "key")]
    reason = reason_of(bad)
    assert reason.startswith("value: \\ud800é\\ud800é")
    assert reason.endswith("…")
    assert len(reason) == MAX_REASON
    assert reason_of([("key", BadRow(0, "short", WriterId(7)))]) == "key: short"


@pytest.mark.parametrize("handling", ["null", "column"])
def test_faults_of_the_registry_are_no_bad_records(
    fake_cluster: Any, registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch, handling: str
) -> None:
    topics = Topics(fake_cluster, registry)
    registry.add("orders-value", json.dumps(ORDER_1))
    large = registry.add("other-value", json.dumps({**ORDER_1, "doc": "x" * 5_000}))
    fake_cluster.create_topic("orders")
    topics.put("orders", [b"\0\0\0\0%c?" % large])
    with monkeypatch.context() as patch:
        patch.setattr(rest_service, "MAX_RESPONSE_BYTES", 4_000)
        with pytest.raises(KafkaError, match="longer than 4000 bytes"):
            topics.read(topics.options("orders", onBadRecord=handling))

    def refusing(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.startswith(f"/schemas/ids/{large}"):
            return 403, {"error_code": 40301, "message": "denied"}
        return SmallRegistry.respond(registry, method, path, body)

    monkeypatch.setattr(registry, "respond", refusing)
    with pytest.raises(KafkaError, match="40301"):
        topics.read(topics.options("orders", onBadRecord=handling))
