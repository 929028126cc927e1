"""Settings of Consumer, Producer and Admin: Java's names, Java's defaults, errors by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sparkkafka.config.client_settings import (
    CONSUMER_ROWS,
    PRODUCER_ROWS,
    parse_admin_settings,
    parse_consumer_settings,
    parse_producer_settings,
)
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.config.options import parse_read_options
from sparkkafka.config.parsed_options import HINTS
from sparkkafka.errors import OptionError
from tests.support.options import parse_client_options

SERVERS = {"bootstrap.servers": "h:1"}


def consumer(**more: Any) -> Any:
    return parse_consumer_settings(SERVERS | {k.replace("__", "."): v for k, v in more.items()})


def producer(**more: Any) -> Any:
    return parse_producer_settings(SERVERS | {k.replace("__", "."): v for k, v in more.items()})


def test_defaults_are_those_of_javas_clients() -> None:
    options = consumer(group__id="g")
    assert options.auto_offset_reset == "latest"
    assert options.enable_auto_commit
    assert (options.session_timeout_ms, options.heartbeat_interval_ms) == (45_000, 3_000)
    assert options.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert options.fetch.max_partition_fetch_bytes == 2**20
    sending = producer().producer
    assert (sending.buffer_memory, sending.linger_ms, sending.acks) == (2**25, 5, -1)
    assert sending.batch_size == 512 * 2**10  # not Java's 16 KiB: docs/client.md
    assert sending.enable_idempotence
    assert producer().client.default_api_timeout_ms == 60_000


def test_values_may_be_of_pythons_types() -> None:
    options = consumer(group__id="g", enable__auto__commit=False, max__poll__records=7)
    assert not options.enable_auto_commit
    assert options.max_poll_records == 7
    assert producer(acks=1, linger__ms=0).producer.acks == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("range", ("range",)),
        ("cooperative-sticky, roundrobin", ("cooperative-sticky", "roundrobin")),
        ("org.apache.kafka.clients.consumer.StickyAssignor", ("sticky",)),
    ],
)
def test_assignors_by_either_name(text: str, names: tuple[str, ...]) -> None:
    options = consumer(group__id="g", partition__assignment__strategy=text)
    assert options.partition_assignment_strategy == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group.instance.id": "i"}, "group.instance.id needs a group"),
        ({"group.id": ""}, "group.id is empty"),
        ({"enable.auto.commit": "true"}, "enable.auto.commit=true needs a group"),
        (
            {"group.id": "g", "heartbeat.interval.ms": 9, "session.timeout.ms": 9},
            "heartbeat.interval.ms=9 must be less than session.timeout.ms=9",
        ),
        (
            {"group.id": "g", "group.protocol": "consumer", "session.timeout.ms": 9},
            "session.timeout.ms cannot be set when group.protocol=consumer",
        ),
        ({"group.id": "g", "group.remote.assignor": "range"}, "needs group.protocol=consumer"),
        ({"auto.offset.reset": "smallest"}, "auto.offset.reset must be"),
        ({"auto.offset.reset": "by_duration:P1M"}, "auto.offset.reset must be"),
        ({"auto.offset.reset": "by_duration:5m"}, "auto.offset.reset must be"),  # as in Java
        ({"partition.assignment.strategy": "mine"}, "partition.assignment.strategy must be"),
        ({"auto.ofset.reset": "x"}, "did you mean 'auto.offset.reset'"),
        ({"value.deserializer": "x"}, "Keys and values are read as binary"),
    ],
)
def test_refused_consumers(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_consumer_settings(SERVERS | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transactional.id": ""}, "transactional.id is empty"),
        ({"transactional.id": "t", "acks": 1}, "transactional.id needs the idempotent producer"),
        ({"key.serializer": "x"}, "Keys and values are written as they are"),
        ({"value_serializer": str.encode}, "no serializers: encode keys and values before send"),
        ({"partitioner.class": "mine"}, "partitioner.class must be"),
    ],
)
def test_refused_producers(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_producer_settings(SERVERS | given)


def test_timeouts_of_zero_are_no_limit() -> None:
    none = {"request.timeout.ms": 0, "default.api.timeout.ms": "0"}
    parsed = parse_producer_settings(SERVERS | none)
    limits = parsed.client.request_timeout_ms, parsed.client.default_api_timeout_ms
    assert (*limits, parsed.producer.delivery_timeout_ms) == (INT32_MAX,) * 3
    none = {"delivery.timeout.ms": 0}
    assert parse_producer_settings(SERVERS | none).producer.delivery_timeout_ms == INT32_MAX


def test_a_partitioner_may_be_a_callable() -> None:
    def mine(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        return 0

    assert producer(partitioner__class=mine).partitioner is mine
    assert producer(partitioner__class="murmur2").producer.partitioner == "murmur2"


def test_settings_of_another_client_are_passed_over_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse_admin_settings(SERVERS | {"auto.offset.reset": "earliest"})
    assert "auto.offset.reset has no effect: it is for another kind of client" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("message.timeout.ms", "it is delivery.timeout.ms here"),
        ("metadata.broker.list", "it is bootstrap.servers here"),
        ("debug", "SPARKKAFKA_LOGGING"),
        ("bootstrap_servers", "did you mean 'bootstrap.servers'"),
        ("group_id", "did you mean 'group.id'"),
        ("on_conect", "did you mean 'on_connect'"),
    ],
)
def test_names_of_other_clients(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_consumer_settings(SERVERS | {name: "x"})


def test_every_name_of_the_hints_is_one_that_there_is_not() -> None:
    everything = CONSUMER_ROWS.keys() | PRODUCER_ROWS.keys()
    for theirs, words in HINTS.items():
        assert theirs not in everything
        ours = re.match(r"it is ([a-z.]+[a-z])", words)
        assert ours is None or ours[1] in everything, ours


def test_a_list_may_be_a_list() -> None:
    assert consumer(
        group__id="g", partition__assignment__strategy=["sticky", "range"]
    ).partition_assignment_strategy == ("sticky", "range")
    for parse in (parse_admin_settings, parse_client_options):
        given = parse({"bootstrap.servers": "a,[::1],b:2"}).bootstrap_servers
        assert given == (("a", 9092), ("::1", 9092), ("b", 2))
    spark = parse_read_options({"kafka.bootstrap.servers": "a,[::1]", "subscribe": "t"})
    assert spark.client.bootstrap_servers == (("a", 9092), ("::1", 9092))
    settings = parse_admin_settings({"bootstrap.servers": ["a:1", "b:2"]})
    assert settings.bootstrap_servers == (("a", 1), ("b", 2))


def test_no_settings_at_all_say_nothing_of_sql() -> None:
    with pytest.raises(OptionError) as caught:
        parse_producer_settings({})
    assert "bootstrap.servers" in str(caught.value)
    assert "TABLE" not in str(caught.value)


@pytest.mark.usefixtures("no_warnings_so_far")
def test_topics_are_created_by_the_way_only_where_that_is_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not consumer().client.allow_auto_create_topics
    assert consumer(allow__auto__create__topics=True).client.allow_auto_create_topics
    assert not caplog.text
    parse_admin_settings(SERVERS | {"allow.auto.create.topics": True})
    assert "for another kind of client" in caplog.text
