"""Admin's calls about transactions: what they ask of brokers, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from sparkkafka.client import Admin, Deadline, TopicPartition
from sparkkafka.client.producer.transactions import add_partitions
from sparkkafka.errors import BrokerError, ErrorCode
from tests.client.producer.test_transactions import end, init
from tests.client.support import open_cluster, settings

# --- fencing ----------------------------------------------------------------------------------


def timeouts(cluster: Any) -> list[int]:
    requests = cluster.requests_of("InitProducerId")
    return [request.message.transaction_timeout_ms for request in requests]


@pytest.mark.parametrize(("timeout_s", "sent_ms"), [(None, 3000), (2, 2000), (60, 3000)])
def test_fencing_gives_the_coordinator_time_to_replicate(
    fake_cluster: Any, timeout_s: float | None, sent_ms: int
) -> None:
    """KAFKA-16570: with 1 ms a coordinator with replicas has never stored it in time."""
    with Admin(settings(fake_cluster, request_timeout_ms=3000)) as admin:
        admin.fence_producers(["tx"], timeout_s=timeout_s).all()
    assert timeouts(fake_cluster) == [sent_ms]


def test_fencing_keeps_to_what_the_broker_allows(fake_cluster_factory: Any) -> None:
    strict = fake_cluster_factory(1, max_transaction_timeout_ms=700)
    with Admin(settings(strict, request_timeout_ms=3000)) as admin:
        assert admin.fence_producers(["a", "b"]).errors == {}
        assert timeouts(strict) == [3000, 700, 3000, 700]
        strict.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeConfigs", times=None)
        error = admin.fence_producers(["a"]).errors["a"]
    assert isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert "transaction.max.timeout.ms is below 3000 ms" in str(error)
    assert "set a lower request.timeout.ms" in str(error)


# --- listing ----------------------------------------------------------------------------------


def test_open_for_lists_only_what_is_open(fake_cluster: Any) -> None:
    """Brokers also list what ended, or never began: by their clock that is open since 1970."""
    fake_cluster.create_topic("t")
    with open_cluster(fake_cluster) as cluster:
        rows = init(cluster, "empty", "ended", "open")
        for row in rows[1:]:
            add_partitions(cluster, row, [TopicPartition("t", 0)], cluster.deadline())
        end(cluster, rows[1])
    with Admin(settings(fake_cluster)) as admin:
        listed = {row.transactional_id: row.state for row in admin.list_transactions()}
        assert listed == {"empty": "Empty", "ended": "CompleteCommit", "open": "Ongoing"}
        deadline = Deadline(5_000)
        while not (found := admin.list_transactions(open_for_ms=0)):
            assert not deadline.expired  # it is open since less than a millisecond
        assert [row.transactional_id for row in found] == ["open"]
        assert not admin.list_transactions(open_for_ms=0, states=["Empty"])
