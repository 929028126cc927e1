"""A connection's writing: many parts, slow readers, deadlines. Reading is in test_cluster.py."""

from __future__ import annotations

import socket
import threading

import pytest

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import KafkaTimeoutError
from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import PartitionProduceData, ProduceRequest, TopicProduceData


@pytest.fixture
def pair():
    """A connection whose other end is a plain socket with a small buffer."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection = Connection(ours, "peer", 1, ClientOptions(bootstrap_servers=(), client_id="c"))
    yield connection, theirs
    connection.close()
    theirs.close()


def request(partitions: int, size_bytes: int) -> ProduceRequest:
    rows = [
        PartitionProduceData(index=i, records=[b"head", bytes([i % 251]) * size_bytes, b""])
        for i in range(partitions)
    ]
    return ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=rows)])


def test_a_request_in_several_system_calls_arrives_in_order(pair):
    connection, peer = pair
    # Three parts for each partition: more than one call to the system takes.
    sent = request(200, 20_000)
    expected = Framing("c").send(sent, 9)[1]
    received = bytearray()

    def read() -> None:
        while len(received) < len(expected):
            received.extend(peer.recv(65_536))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    connection.send(sent, Deadline(30_000), version=9)
    reader.join(30)
    assert received == expected


def test_a_peer_that_does_not_read_is_given_up(pair):
    connection, _ = pair
    with pytest.raises(KafkaTimeoutError, match="no response within"):
        connection.send(request(10, 100_000), Deadline(200), version=9)
    assert not connection.is_open
