"""Names of bootstrap servers: all their addresses in turn, or the canonical names of those."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from sparkkafka.client.net.connecting import RESOLVE_CANONICAL, BootstrapServers
from sparkkafka.errors import KafkaTimeoutError
from tests.client.support import open_cluster, settings
from tests.support.options import parse_client_options

REAL = socket.getaddrinfo


class Resolver:
    """What names and addresses lead to; others are looked up as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, list[str]] = {}
        self.addresses: dict[str, str] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)
        monkeypatch.setattr(socket, "gethostbyaddr", self.gethostbyaddr)

    def getaddrinfo(self, host: str, port: Any, **kind: Any) -> list[Any]:
        self.asked.append(host)
        if host.endswith(".test") and host not in self.names:
            raise socket.gaierror("Name or service not known")
        found: list[Any] = []
        for address in self.names.get(host, [host]):
            found += REAL(address, port, **kind)
        return found

    def gethostbyaddr(self, address: str) -> tuple[str, list[str], list[str]]:
        self.asked.append(address)
        if address not in self.addresses:
            raise socket.herror("Unknown host")
        return self.addresses[address], [], [address]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


def servers(given: str, lookup: str = RESOLVE_CANONICAL) -> BootstrapServers:
    return BootstrapServers(parse_client_options(settings(given, client_dns_lookup=lookup)))


def test_a_name_stands_for_the_canonical_names_of_all_its_addresses(resolver):
    resolver.names = {
        "all.test": ["10.0.0.1", "10.0.0.2", "fd00::3", "10.0.0.4", "10.0.0.5"],
        "one.test": ["10.0.0.1"],
        "two.test": ["10.0.0.9", "10.0.0.2"],
        "three.test": ["fd00::3"],
        "liar.test": ["10.9.9.9"],
    }
    resolver.addresses = {
        "10.0.0.1": "one.test",
        "10.0.0.2": "two.test",
        "fd00::3": "three.test",
        "10.0.0.4": "liar.test",  # a name that does not lead back is not believed, as in Java
    }
    assert servers("all.test:9092,one.test:9092,one.test:9093").addresses() == [
        ("one.test", 9092),
        ("two.test", 9092),
        ("three.test", 9092),
        ("10.0.0.4", 9092),
        ("10.0.0.5", 9092),  # has no name
        ("one.test", 9093),
    ]


def test_looked_up_once_and_again_only_after_a_failure(resolver):
    resolver.names = {"all.test": ["10.0.0.1"], "one.test": ["10.0.0.1"]}
    resolver.addresses = {"10.0.0.1": "one.test"}
    both = servers("all.test:1,late.test:2")
    assert both.addresses() == [("one.test", 1), ("late.test", 2)]
    resolver.names["late.test"] = ["10.0.0.1"]
    assert both.addresses() == [("one.test", 1), ("one.test", 2)]
    resolver.asked.clear()
    assert both.addresses() == [("one.test", 1), ("one.test", 2)]
    assert resolver.asked == []


def test_by_default_nothing_is_looked_up_beforehand(resolver):
    assert servers("all.test:1,[::1]:2", "use_all_dns_ips").addresses() == [
        ("all.test", 1),
        ("::1", 2),
    ]
    assert resolver.asked == []


@pytest.mark.parametrize("lookup", ["use_all_dns_ips", RESOLVE_CANONICAL])
def test_addresses_that_fail_are_passed_over(resolver, fake_cluster_factory, lookup):
    """Nobody listens at the first two of a name's addresses."""
    fake = fake_cluster_factory(1)
    fake.create_topic("t")
    resolver.names = {"all.test": ["127.0.0.2", "127.0.0.3", "127.0.0.1"]}
    port = fake.address(0).rpartition(":")[2]
    with open_cluster(f"all.test:{port}", client_dns_lookup=lookup) as cluster:
        assert list(cluster.topics(["t"])) == ["t"]


def test_canonical_names_are_what_is_connected_to(resolver, fake_cluster_factory):
    fake = fake_cluster_factory(1)
    resolver.names = {"all.test": ["127.0.0.1"], "own.test": ["127.0.0.1"]}
    resolver.addresses = {"127.0.0.1": "own.test"}
    port = fake.address(0).rpartition(":")[2]
    with open_cluster(f"all.test:{port}", client_dns_lookup=RESOLVE_CANONICAL) as cluster:
        assert cluster.any_connection(cluster.deadline()).host == "own.test"


@pytest.mark.parametrize("lookup", ["use_all_dns_ips", RESOLVE_CANONICAL])
def test_a_failure_names_each_address(resolver, lookup):
    resolver.names = {"all.test": ["127.0.0.2", "127.0.0.3"]}
    with open_cluster(
        "all.test:1,gone.test:1", client_dns_lookup=lookup, default_api_timeout_ms=2_000
    ) as cluster:
        with pytest.raises(KafkaTimeoutError) as raised:
            cluster.topics(["t"])
    for message in ("127.0.0.2", "127.0.0.3", "gone.test:1: the host name cannot be resolved"):
        assert message in str(raised.value)
