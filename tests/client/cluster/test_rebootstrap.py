"""Back to bootstrap.servers when the brokers that a client knows are of no use (KIP-899, KIP-1102).

Two clusters stand for one that has moved: `old` has what the client knows, `new` the only entry of
bootstrap.servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.errors import BrokerError, ErrorCode, KafkaTimeoutError
from sparkkafka.protocol.messages import MetadataResponse
from sparkkafka.testing.fake.faults import ErrorResponse
from tests.client.support import settings
from tests.support.options import parse_client_options

NOT_NOW = ErrorResponse(ErrorCode.LEADER_NOT_AVAILABLE, top_level=True)
GO_AWAY = ErrorResponse(ErrorCode.REBOOTSTRAP_REQUIRED, top_level=True)


@pytest.fixture
def old(fake_cluster_factory) -> Any:
    return fake_cluster_factory(2)


@pytest.fixture
def new(fake_cluster_factory) -> Any:
    return fake_cluster_factory(1)


@pytest.fixture
def cluster_of(old, new) -> Iterator[Any]:
    """A client that knows the brokers of `old`, by settings."""
    opened: list[Cluster] = []

    def make(**config: Any) -> Cluster:
        options = parse_client_options(settings(new, **config))
        host, port = old.address(0).split(":")
        opened.append(Cluster(options, try_first=(host, int(port))))
        opened[-1].all_topics()
        assert opened[-1].cluster_id == old.cluster_id
        assert not new.requests
        return opened[-1]

    yield make
    for cluster in opened:
        cluster.close()


def go_down(fake: Any) -> None:
    for broker in fake.broker_ids:
        fake.broker_down(broker)


def test_no_broker_that_is_known_answers(cluster_of, old, new):
    cluster = cluster_of()
    go_down(old)
    cluster.all_topics()
    assert cluster.cluster_id == new.cluster_id


def test_without_recovery_only_brokers_that_are_known_are_asked(cluster_of, old, new):
    cluster = cluster_of(metadata_recovery_strategy="NONE", default_api_timeout_ms=500)
    go_down(old)
    with pytest.raises(KafkaTimeoutError, match=old.address(0)):
        cluster.all_topics()
    assert not new.requests
    old.broker_up(1)
    cluster.all_topics()


def test_a_broker_says_that_the_cluster_is_elsewhere(cluster_of, old, new):
    cluster = cluster_of()
    old.fault(GO_AWAY, api="Metadata", times=None)
    cluster.all_topics()
    assert cluster.cluster_id == new.cluster_id
    assert list(cluster.brokers) == new.broker_ids
    old.clear_requests()
    cluster.all_topics()
    assert not old.requests


def test_a_broker_says_so_and_the_settings_forbid_it(cluster_of, old, new):
    cluster = cluster_of(metadata_recovery_strategy="none")
    old.fault(GO_AWAY, api="Metadata", times=None)
    with pytest.raises(BrokerError, match=r"REBOOTSTRAP_REQUIRED.*metadata\.recovery\.strategy"):
        cluster.all_topics()
    assert not new.requests


@pytest.mark.parametrize("patience_ms", [0, 200])
def test_brokers_that_give_no_metadata_for_long_are_forgotten(cluster_of, old, new, patience_ms):
    cluster = cluster_of(metadata_recovery_rebootstrap_trigger_ms=patience_ms)
    old.fault(NOT_NOW, api="Metadata", times=None)
    cluster.all_topics()
    assert cluster.cluster_id == new.cluster_id


def test_brokers_that_give_no_metadata_for_a_moment_are_asked_again(cluster_of, old, new):
    cluster = cluster_of()
    old.fault(NOT_NOW, api="Metadata", times=3)
    cluster.all_topics()
    assert cluster.cluster_id == old.cluster_id
    assert not new.requests


def test_a_response_that_names_no_brokers_is_none(cluster_of, old):
    cluster = cluster_of()

    def no_brokers(request):
        return MetadataResponse(cluster_id=old.cluster_id)

    old.fault(no_brokers, api="Metadata", times=2)
    cluster.all_topics()
    assert len(cluster.brokers) == 2
