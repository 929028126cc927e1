"""Which Kafka has which version of a request, against what kafka-python knows of brokers."""

from __future__ import annotations

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from sparkkafka.client.cluster import offsets
from sparkkafka.errors import EncodeError, UnsupportedVersionError
from sparkkafka.protocol.framing import Framing
from sparkkafka.protocol.messages import (
    REQUESTS,
    DescribeClusterRequest,
    FetchRequest,
    ListOffsetsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from sparkkafka.protocol.wire.codec import encode
from sparkkafka.protocol.wire.schema import Message, first_kafka
from tests.tools.drift import NEWEST_KAFKA

OLDEST = (2, 1)


@pytest.mark.parametrize("api_key", list(REQUESTS))
def test_each_version_is_of_the_release_that_kafka_python_says(api_key: int) -> None:
    request = REQUESTS[api_key]
    for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
        having = [
            release
            for release, offered in BROKER_API_VERSIONS.items()
            if release >= OLDEST and offered.get(api_key, (0, -1))[1] >= version
        ]
        # What kafka-python does not know is new: test_newest_kafka.py says that Kafka has it.
        expected = "Kafka {}.{}".format(*(min(having) if having else NEWEST_KAFKA.split(".")[:2]))
        assert first_kafka(request, version) == expected


def test_what_no_kafka_has() -> None:
    assert first_kafka(FetchRequest, 99) == ""
    assert first_kafka(Message) == ""


def test_a_value_that_the_version_has_no_field_for_names_the_kafka_that_has() -> None:
    request = TxnOffsetCommitRequest(transactional_id="t", group_instance_id="g")
    with pytest.raises(
        EncodeError, match=r"group_instance_id: .*since version 3\); Kafka 2\.5 or later"
    ):
        encode(request, 2)


def test_a_request_that_the_broker_lacks_names_the_kafka_that_has_it() -> None:
    framing = Framing("c")
    framing.versions = {WriteTxnMarkersRequest.API_KEY: (0, 0)}
    with pytest.raises(UnsupportedVersionError, match=r"DescribeCluster .*, Kafka 2\.8 or later"):
        framing.choose_version(DescribeClusterRequest)
    with pytest.raises(UnsupportedVersionError, match=r"versions 0 to 0.*Kafka 2\.8 or later"):
        framing.choose_version(WriteTxnMarkersRequest)


def test_kinds_of_offsets_name_no_older_kafka_than_the_version_needs() -> None:
    for version, text in offsets._NEEDED_VERSIONS.values():
        named = tuple(map(int, text.split()[1].split(".")))
        needed = tuple(map(int, first_kafka(ListOffsetsRequest, version).split()[1].split(".")))
        assert named >= needed
