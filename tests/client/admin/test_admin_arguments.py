"""Arguments of Admin of the wrong kind: an OptionError that names the argument and the right form,
before anything is sent. And those of a kind that is near enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparkkafka.client import (
    Admin,
    AlterConfigOp,
    ClientQuotaAlteration,
    ClientQuotaEntity,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from sparkkafka.client.cluster.request_driver import ToBroker
from sparkkafka.errors import OptionError
from tests.client.support import settings

TP = TopicPartition("orders", 0)
ORDERS = ConfigResource("topic", "orders")
HUGE = 10**400  # more than the float of the request can be


def test_a_new_topic_takes_its_numbers_by_position(fake_cluster: Any) -> None:
    """As in Java, confluent-kafka and kafka-python."""
    assert NewTopic("x", 3, 1) == NewTopic("x", partitions=3, replication_factor=1)
    assert NewTopic("x", 3) == NewTopic("x", partitions=3)
    with Admin(settings(fake_cluster)) as admin:
        admin.create_topics([NewTopic("x", 3, 1)]).all()
        assert len(admin.describe_topic("x").partitions) == 3


def test_numbers_and_bools_of_settings_become_text(fake_cluster: Any) -> None:
    with Admin(settings(fake_cluster)) as admin:
        # The fake has not all of these settings; what counts is what it was sent.
        given: dict[str, Any] = {"retention.ms": 3_600_000, "preallocate": True}
        given["segment.ms"] = np.int64(7)
        admin.create_topics([NewTopic("a", configs=given)])
        admin.create_topic("orders", configs={"min.insync.replicas": 1})
        admin.create_partitions({"orders": np.int64(4)}).all()  # type: ignore[dict-item]
        assert len(admin.describe_topic("orders").partitions) == 4
    created = [request.message.topics[0] for request in fake_cluster.requests_of("CreateTopics")]
    assert [{row.name: row.value for row in topic.configs} for topic in created] == [
        {"retention.ms": "3600000", "preallocate": "true", "segment.ms": "7"},
        {"min.insync.replicas": "1"},
    ]


def test_changes_of_settings_become_text_too(
    fake_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []  # the fake has no such request

    def take(_: Any, items: Any, api: Any, *__: Any) -> None:
        sent.extend(api.build(list(items), 1).resources[0].configs)

    monkeypatch.setattr(ToBroker, "call_each", take)
    with Admin(settings(fake_cluster)) as admin:
        changes: dict[str, Any] = {"retention.ms": 5, "preallocate": False, "segment.ms": None}
        admin.incremental_alter_configs({ORDERS: changes})
        admin.incremental_alter_configs({ORDERS: [AlterConfigOp("retention.ms", 6)]})  # type: ignore[arg-type]
    assert [(row.name, row.config_operation, row.value) for row in sent] == [
        ("retention.ms", 0, "5"),
        ("preallocate", 0, "false"),
        ("segment.ms", 1, None),
        ("retention.ms", 0, "6"),
    ]


Act = Callable[[Any], Any]  # of an Admin, with what its types forbid

WRONG: list[tuple[Act, str]] = [
    # topics
    (lambda _: NewTopic("z", configs={"retention.ms": 0.5}), "topic z, retention.ms: .*text"),  # type: ignore[dict-item]
    (lambda _: NewTopic("z", configs={"retention.ms": None}), "topic z, retention.ms: .*None"),  # type: ignore[dict-item]
    (lambda _: NewTopic("z", configs="a=b"), "topic z: configs is a dict"),  # type: ignore[arg-type]
    (lambda _: NewTopic("z", "3"), "topic z: partitions is a whole number, got '3'"),  # type: ignore[arg-type]
    (lambda _: NewTopic("z", 3, True), "topic z: replication_factor is a whole number"),
    (lambda _: NewTopic(5), "topic's name is a name as text, got 5"),  # type: ignore[arg-type]
    (lambda admin: admin.create_topic("z", partitions="3"), "topic z: partitions"),
    (lambda admin: admin.create_topics("orders2"), r"new_topics .*\[NewTopic\(\"orders\"\)\]"),
    (
        lambda admin: admin.create_topics(["orders2"]),
        r"\[NewTopic\(\"orders\"\)\], got 'orders2' in it",
    ),
    (lambda admin: admin.create_topics([5]), "new_topics is a list such as .* got 5 in it"),
    (lambda admin: admin.create_topics(NewTopic("orders2")), "new_topics is a list: write"),
    (lambda admin: admin.create_partitions({"orders": "6"}), "topic orders: .* number, got '6'"),
    (lambda admin: admin.create_partitions({"orders": NewPartitions("6")}), "topic orders: "),  # type: ignore[arg-type]
    (lambda admin: admin.create_partitions(["orders"]), 'totals is a dict such as {"orders": 6}'),
    (lambda admin: admin.create_partitions({5: 6}), "each key of totals"),
    (lambda admin: admin.delete_topics(5), "topic_names is a list of names, got 5"),
    (lambda admin: admin.delete_topics(b"x"), "topic_names is a list of names, got b'x'"),
    (lambda admin: admin.describe_topics([None]), "topic_names .* None in it"),
    (lambda admin: admin.describe_topic(TP), "topic_names"),
    # settings
    (lambda admin: admin.describe_configs(ORDERS), r"resources is a list: write \["),
    (lambda admin: admin.describe_configs("orders"), "resources is a list such as"),
    (lambda admin: admin.describe_configs(["orders"]), "a resource is ConfigResource.*'orders'"),
    (lambda admin: admin.describe_configs([("broker", 1)]), "a resource is ConfigResource"),
    (lambda admin: admin.describe_configs([ORDERS], keys="retention.ms"), "keys is a list"),
    (
        lambda admin: admin.incremental_alter_configs({ORDERS: {"retention.ms": 0.5}}),
        "topic orders, retention.ms: .*got 0.5",
    ),
    (
        lambda admin: admin.incremental_alter_configs({ORDERS: [AlterConfigOp("a", b"b")]}),  # type: ignore[arg-type]
        "topic orders, a: .*got b'b'",
    ),
    (lambda admin: admin.incremental_alter_configs({ORDERS: "a=b"}), "what changes of topic or"),
    (
        lambda admin: admin.incremental_alter_configs({ORDERS: ["a"]}),
        "AlterConfigOp.*got 'a' in it",
    ),
    (lambda admin: admin.incremental_alter_configs({ORDERS: {5: "a"}}), "a setting of topic ord"),
    (lambda admin: admin.incremental_alter_configs({"orders": {}}), "a resource is ConfigResource"),
    (lambda admin: admin.incremental_alter_configs([ORDERS]), "changes is a dict such as"),
    # records and offsets
    (lambda admin: admin.list_offsets({TP: -1}), r"orders-0: .*OffsetSpec\.latest\(\).*got -1"),
    (lambda admin: admin.list_offsets([TP]), "specs is a dict such as"),
    (lambda admin: admin.list_offsets({"orders": OffsetSpec.latest()}), "specs: a partition is"),
    (lambda admin: admin.list_offsets({("orders", "0"): OffsetSpec.latest()}), "of topic orders"),
    (lambda _: OffsetSpec.for_timestamp("now"), "timestamp_ms, a timestamp in milliseconds"),  # type: ignore[arg-type]
    (lambda admin: admin.delete_records({TP: "5"}), "orders-0: the offset is a whole number"),
    (lambda admin: admin.delete_records([TP]), "before is a dict"),
    # groups
    (lambda admin: admin.describe_consumer_group(None), "group_ids"),
    (lambda admin: admin.list_consumer_group_offsets(["g"]), "group_id is a name as text"),
    (lambda admin: admin.list_consumer_group_offsets("g", TP), r"partitions is a list: write \["),
    (lambda admin: admin.list_consumer_group_offsets("g", ["t"]), "partitions: a partition is"),
    (lambda admin: admin.alter_consumer_group_offsets("g", {TP: "5"}), "offset '5' of orders-0"),
    (lambda admin: admin.alter_consumer_group_offsets("g", [TP]), "offsets is a dict"),
    (lambda admin: admin.delete_consumer_group_offsets("g", "orders"), "partitions is a list"),
    (lambda admin: admin.remove_members_from_consumer_group("g", "i"), "instance_ids is a list"),
    (lambda admin: admin.list_consumer_groups(states=5), "states is a list of names"),
    # transactions and brokers
    (lambda admin: admin.fence_producers("x"), r"transactional_ids .*\['x'\]"),
    (lambda admin: admin.describe_transactions([5]), "transactional_ids .* 5 in it"),
    (lambda admin: admin.describe_transactions(["a", ""]), "a transactional id is not empty"),
    (lambda admin: admin.fence_producers([""]), "a transactional id is not empty"),
    (
        lambda admin: admin.alter_client_quotas(
            [ClientQuotaAlteration(ClientQuotaEntity({"user": "a"}), {"producer_byte_rate": HUGE})]
        ),
        "producer_byte_rate of user a is a number, or None, got 1000",
    ),
    (lambda admin: admin.describe_producers(TP), r"partitions is a list: write \["),
    (lambda admin: admin.abort_transaction("orders", 5), "partition: a partition is"),
    (lambda admin: admin.abort_transaction(TP, "5"), "orders-0: start_offset"),
    (lambda admin: admin.list_transactions(open_for_ms="10"), "open_for_ms is a whole number"),
    (
        lambda admin: admin.list_transactions(open_for_ms=-1),
        "open_for_ms is a whole number of 0 or more",
    ),
    (lambda admin: admin.list_transactions(producer_ids=5), "producer_ids is a list of whole num"),
    (lambda admin: admin.list_transactions(transactional_id_pattern=5), "transactional_id_patt"),
    (lambda admin: admin.describe_log_dirs(1), r"brokers is a list of whole numbers, such as \[1"),
    (lambda admin: admin.describe_log_dirs(["1"]), "each of brokers is a whole number, got '1'"),
    (lambda admin: admin.list_topics(timeout_s="5"), "timeout_s is a number of seconds.* got '5'"),
]


def test_what_is_of_the_wrong_kind_is_an_error_that_says_so(fake_cluster: Any) -> None:
    with Admin(settings(fake_cluster)) as admin:
        for act, message in WRONG:
            with pytest.raises(OptionError, match=message):
                act(admin)
        assert fake_cluster.requests == []


def test_a_wrong_keyword_names_admin(fake_cluster: Any) -> None:
    with Admin(settings(fake_cluster)) as admin:
        with pytest.raises(TypeError, match=r"^Admin\.create_topic\(\) got an unexpected keyword"):
            admin.create_topic("x", replicas=1)  # type: ignore[call-arg]
