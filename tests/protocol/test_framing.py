"""Frames, headers, version choice, correlation ids; headers are compared with kafka-python's."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sparkkafka.errors import DecodeError, EncodeError, UnsupportedVersionError
from sparkkafka.protocol.framing import Framing, decode_request, encode_response
from sparkkafka.protocol.messages import (
    REQUESTS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from sparkkafka.protocol.wire.schema import Message, Request, Response
from tests.protocol.kafka_oracle import (
    Generator,
    each_version,
    peer_class,
    to_peer,
)

EVERYTHING = {cls.API_KEY: (cls.MIN_VERSION, cls.MAX_VERSION) for cls in REQUESTS.values()}


@pytest.fixture
def framing() -> Framing:
    made = Framing("client-ü")
    made.versions = EVERYTHING
    return made


@pytest.mark.slow
@each_version
def test_frames_equal_kafka_pythons(cls: type[Message], version: int) -> None:
    message = Generator(1).message(cls, version)
    peer = to_peer(message, version)
    peer.with_header(correlation_id=0, client_id="client-ü")
    theirs = bytes(peer.encode(header=True, framed=True))
    if isinstance(message, Request):
        correlation_id, frame = Framing("client-ü").send(message, version)
        assert correlation_id == 0
    else:
        assert isinstance(message, Response)
        frame = encode_response(message, version, 0)
    assert frame == theirs


@each_version
def test_requests_and_responses_arrive(cls: type[Message], version: int) -> None:
    message = Generator(2).message(cls, version)
    framing = Framing("c")
    if isinstance(message, Request):
        correlation_id, frame = framing.send(message, version)
        served = decode_request(frame[4:])
        assert served == (cls.API_KEY, version, correlation_id, "c", message)
    else:
        assert isinstance(message, Response)
        correlation_id, _ = framing.send(message.REQUEST(), version)
        frame = encode_response(message, version, correlation_id)
        assert framing.frame_length(frame[:4]) == len(frame) - 4
        assert framing.receive(frame[4:]) == (correlation_id, message)


@pytest.mark.slow
@each_version
def test_frames_cut_at_every_byte(cls: type[Message], version: int) -> None:
    message = Generator(3, full=True, small=True).message(cls, version)
    if isinstance(message, Request):
        payload = Framing("c").send(message, version)[1][4:]
        for size in range(len(payload)):
            with pytest.raises(DecodeError) as caught:
                decode_request(payload[:size])
            assert caught.value.position is not None
        return
    assert isinstance(message, Response)
    payload = encode_response(message, version, 0)[4:]
    for size in range(len(payload)):
        framing = Framing("c")
        framing.send(message.REQUEST(), version)
        with pytest.raises(DecodeError) as caught:
            framing.receive(payload[:size])
        assert caught.value.position is not None


@pytest.mark.parametrize("version", [8, 9])
def test_headers_flipped_at_every_byte(version: int) -> None:
    request = MetadataRequest(topics=[])
    payload = bytearray(Framing("c").send(request, version)[1][4:])
    for at, byte in enumerate(payload):
        for mask in (0x01, 0x80, 0xFF):
            payload[at] = byte ^ mask
            try:
                decode_request(payload)
            except DecodeError as error:
                assert error.position is not None
        payload[at] = byte


def test_null_client_id() -> None:
    _, frame = Framing(None).send(ApiVersionsRequest(), 0)
    assert frame.hex(" ") == "00 00 00 0a 00 12 00 00 00 00 00 00 ff ff"
    assert decode_request(frame[4:]).client_id is None


# Correlation ids


def test_a_correlation_id_is_int32() -> None:
    with pytest.raises(EncodeError, match="2147483648 is not int32"):
        encode_response(MetadataResponse(), 4, 2**31)


def test_responses_come_in_order(framing: Framing) -> None:
    first, _ = framing.send(MetadataRequest(topics=None), 4)
    second, _ = framing.send(FetchRequest(), 12)
    assert (first, second, framing.in_flight) == (0, 1, 2)
    response = MetadataResponse(controller_id=3)
    assert framing.receive(encode_response(response, 4, first)[4:]) == (first, response)
    assert framing.in_flight == 1
    response = framing.receive(encode_response(FetchResponse(session_id=5), 12, second)[4:])
    assert response == (second, FetchResponse(session_id=5))
    assert framing.in_flight == 0


def test_wrong_correlation_id(framing: Framing) -> None:
    framing.send(MetadataRequest(), 4)
    framing.send(FetchRequest(), 4)
    frame = encode_response(FetchResponse(), 4, 1)
    with pytest.raises(DecodeError, match=r"request 1 where the one to 0 \(Metadata\) is due"):
        framing.receive(frame[4:])


def test_response_to_nothing(framing: Framing) -> None:
    with pytest.raises(DecodeError, match="no request is in flight"):
        framing.receive(bytes(8))


def test_correlation_ids_begin_again(framing: Framing) -> None:
    framing._next_correlation_id = 2**31 - 1
    assert framing.send(ApiVersionsRequest(), 0)[0] == 2**31 - 1
    assert framing.send(ApiVersionsRequest(), 0)[0] == 0


def test_produce_without_acks_has_no_response(framing: Framing) -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=[b"a", b"b"])]
            )
        ]
    )
    silent, frame = framing.send(request, expect_response=False)
    assert framing.in_flight == 0
    assert b"\x03ab" in frame
    spoken, _ = framing.send(request)
    assert spoken == silent + 1
    response = encode_response(ProduceResponse(), ProduceRequest.MAX_VERSION, spoken)
    assert framing.receive(response[4:]) == (spoken, ProduceResponse())


def test_a_request_that_cannot_be_sent_changes_nothing(framing: Framing) -> None:
    with pytest.raises(EncodeError):
        framing.send(FetchRequest(max_wait_ms=2**31))
    with pytest.raises(UnsupportedVersionError):
        framing.send(FetchRequest(), 99)
    assert framing.in_flight == 0
    assert framing.send(FetchRequest())[0] == 0


def test_records_are_views_of_the_payload(framing: Framing) -> None:
    message = Generator(5, full=True).message(FetchResponse, 12)
    message.responses[0].partitions[0].records = b"RECORDS"
    framing.send(FetchRequest(), 12)
    payload = bytearray(encode_response(message, 12, 0)[4:])
    _, decoded = framing.receive(payload)
    view = decoded.responses[0].partitions[0].records
    payload[payload.index(b"RECORDS")] = ord("X")
    assert view == b"XECORDS"


# Versions


def test_highest_common_version(framing: Framing) -> None:
    framing.versions = {1: (0, 10), 3: (0, 13), 0: (3, 3), 18: (0, 4)}
    assert framing.choose_version(FetchRequest) == 10
    assert framing.choose_version(MetadataRequest) == 13
    assert framing.choose_version(ProduceRequest) == 3
    _, frame = framing.send(FetchRequest())
    assert struct.unpack_from(">hh", frame, 4) == (1, 10)


@pytest.mark.parametrize("offered", [(0, 3), (13, 17)])
def test_no_common_version(framing: Framing, offered: tuple[int, int]) -> None:
    framing.versions = {1: offered}
    with pytest.raises(UnsupportedVersionError) as caught:
        framing.choose_version(FetchRequest)
    for message in ("Fetch", f"{offered[0]} to {offered[1]}", "4 to 12"):
        assert message in str(caught.value)


def test_api_that_the_broker_lacks(framing: Framing) -> None:
    framing.versions = {1: (0, 10)}
    with pytest.raises(UnsupportedVersionError, match=r"DescribeCluster .* not offered .* 0 to 2"):
        framing.choose_version(DescribeClusterRequest)


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (DescribeClusterRequest, "broker, Kafka 2.8 or later has it;"),
        (FetchRequest, "broker, although every supported Kafka has it;"),
    ],
)
def test_an_api_that_is_missing_at_an_old_broker_or_at_a_service(
    framing: Framing, api: Any, reason: str
) -> None:
    framing.versions = {3: (0, 10)}
    with pytest.raises(UnsupportedVersionError, match=reason):
        framing.choose_version(api)


def test_before_the_versions_are_known() -> None:
    framing = Framing("c")
    assert framing.choose_version(ApiVersionsRequest) == ApiVersionsRequest.USUAL_VERSION
    with pytest.raises(UnsupportedVersionError, match=r"Metadata: .* ApiVersions comes first"):
        framing.send(MetadataRequest())


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_refused_api_versions_is_answered_in_version_0(version: int) -> None:
    """KIP-511: since 2.4 the body lists the range of ApiVersions, before that it is empty."""
    for rows in ([ApiVersion(api_key=18, min_version=0, max_version=3)], []):
        framing = Framing("c")
        correlation_id, _ = framing.send(ApiVersionsRequest(), version)
        refused = ApiVersionsResponse(error_code=35, api_keys=rows)
        frame = encode_response(refused, 0, correlation_id)
        assert framing.receive(frame[4:]) == (correlation_id, refused)


def test_bytes_behind_a_response_are_left_alone() -> None:
    """As by Java's client. librdkafka's mock cluster ends its Metadata with one too many."""
    framing = Framing("c")
    correlation_id, _ = framing.send(MetadataRequest(), 12)
    frame = encode_response(MetadataResponse(controller_id=3), 12, correlation_id)
    assert framing.receive(frame[4:] + b"\0")[1].controller_id == 3


def test_requests_that_a_broker_does_not_know() -> None:
    header = struct.pack(">hhih1s", 18, 99, 7, 1, b"c")
    assert decode_request(header + b"anything") == (18, 99, 7, "c", None)
    header = struct.pack(">hhih1s", 4242, 0, 7, 1, b"c")
    assert decode_request(header + b"anything") == (4242, 0, 7, "c", None)


def test_kafka_python_reads_our_error_35() -> None:
    frame = encode_response(ApiVersionsResponse(error_code=35), 0, 9)
    peer = peer_class(ApiVersionsResponse).decode(frame, version=3, header=True, framed=True)
    assert peer.error_code == 35


# Frame sizes


@pytest.mark.parametrize("size", [4, 5, 1000, 2**28])
def test_frame_sizes(size: int) -> None:
    assert Framing("c").frame_length(size.to_bytes(4, "big")) == size


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"\x80\x00\x00\x00", "frame of -2147483648 bytes"),
        (b"\x00\x00\x00\x00", "frame of 0 bytes"),
        (b"\x00\x00\x00\x03", "frame of 3 bytes"),
        (b"\x10\x00\x00\x01", "frame of 268435457 bytes, the limit is 268435456"),
        (b"\x7f\xff\xff\xff", "the limit is 268435456"),
        (b"HTTP", "HTTP.*not a Kafka listener"),
        (b"http", "HTTP.*not a Kafka listener"),
        (b"<!DO", "HTML.*not a Kafka listener"),
        (b"<htm", "HTML.*not a Kafka listener"),
        (b"<HTM", "HTML.*not a Kafka listener"),
        (b"<?xm", "HTML.*not a Kafka listener"),
        (b" \t<h", "HTML.*not a Kafka listener"),
        (b"   <", "HTML.*not a Kafka listener"),
        (b"<\x00\x01\x02", "is this a Kafka listener"),
        (b"    ", "is this a Kafka listener"),
        (b"\x15\x03\x01\x00", "TLS.*security.protocol"),
        (b"\x15\x03\x03\x00", "TLS.*security.protocol"),
        (b"\x16\x03\x03\x00", "TLS.*security.protocol"),
        (b"SSH-", "SSH"),
        (b"\x00\x00\x01", "need 4 bytes, have 3"),
    ],
)
def test_prefixes_that_are_not_kafkas(prefix: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message) as caught:
        Framing("c").frame_length(prefix)
    assert caught.value.position == 0


def test_own_limit() -> None:
    framing = Framing("c", max_frame_bytes=100)
    assert framing.frame_length(b"\0\0\0\x64") == 100
    with pytest.raises(DecodeError, match="the limit is 100"):
        framing.frame_length(b"\0\0\0\x65")
    # With a limit that high the same bytes are a size, and no guess is made.
    assert Framing("c", max_frame_bytes=2**31 - 1).frame_length(b"HTTP") == 0x48545450


def test_large_records_stand_in_the_frame_as_they_are(framing):
    small, large = bytes(100), bytes(range(256)) * 256
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[
                    PartitionProduceData(index=0, records=[b"head", large]),
                    PartitionProduceData(index=1, records=small),
                    PartitionProduceData(index=2, records=large),
                ],
            )
        ]
    )
    for version in (3, 9):
        _, parts = framing.send_parts(request, version)
        assert sum(part is large or getattr(part, "obj", None) is large for part in parts) == 2
        frame = b"".join(parts)
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        message = decode_request(frame[4:]).message
        found = [bytes(row.records) for row in message.topic_data[0].partition_data]
        assert found == [b"head" + large, small, large]
