"""Subscriptions and assignments: Java's bytes, Kafka's JSON, kafka-python, and hostile bytes."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as PeerAssignment
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as PeerSubscription

from sparkkafka.errors import DecodeError, EncodeError, UnsupportedVersionError
from sparkkafka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    Partition,
    decode_assignment,
    decode_cooperative_generation,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)
from sparkkafka.protocol.wire.schema import Message
from tests.protocol.kafka_oracle import class_rows, json_rows, load_json
from tests.support.properties import examples

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "assignors.json").read_text())
VERSIONS = range(4)

EVERYTHING: dict[str, Any] = {
    "topics": ["a", "b"],
    "user_data": b"data",
    "owned": [("a", 0), ("a", 1), ("b", 7)],
    "generation_id": 5,
    "rack_id": "rack",
}

topics = st.text(st.characters(codec="utf-8"), max_size=8)
int32s = st.integers(-(2**31), 2**31 - 1)
partitions_of_topics = st.lists(st.tuples(topics, int32s), max_size=8)
user_data = st.none() | st.binary(max_size=20)


def partitions(texts: list[str]) -> list[Partition]:
    return [(topic, int(number)) for topic, _, number in (text.rpartition(":") for text in texts)]


def optional_bytes(row: dict[str, Any]) -> bytes | None:
    return bytes.fromhex(row["user_data"]) if "user_data" in row else None


# Java's bytes


@pytest.mark.parametrize("row", VECTORS["subscriptions"], ids=str)
def test_java_subscriptions(row: dict[str, Any]) -> None:
    encoded = bytes.fromhex(row["bytes"])
    version, owned = row["version"], partitions(row.get("owned", []))
    generation_id, rack_id = row.get("generation_id", -1), row.get("rack_id")
    assert encoded == encode_subscription(
        row["topics"],
        user_data=optional_bytes(row),
        owned=owned,
        generation_id=generation_id,
        rack_id=rack_id,
        version=version,
    )
    read = decode_subscription(encoded)
    assert read.version == version
    assert read.topics == tuple(sorted(row["topics"]))
    assert read.user_data == optional_bytes(row)
    assert read.owned == (tuple(sorted(owned)) if version >= 1 else ())
    assert read.generation_id == (generation_id if version >= 2 else -1)
    assert read.rack_id == (rack_id if version >= 3 else None)


@pytest.mark.parametrize("row", VECTORS["assignments"], ids=str)
def test_java_assignments(row: dict[str, Any]) -> None:
    encoded = bytes.fromhex(row["bytes"])
    given_partitions = partitions(row["partitions"])
    assert encoded == encode_assignment(
        given_partitions, user_data=optional_bytes(row), version=row["version"]
    )
    read = decode_assignment(encoded)
    assert read.version == row["version"]
    assert sorted(read.partitions) == sorted(given_partitions)
    assert read.user_data == optional_bytes(row)


@pytest.mark.parametrize("row", VECTORS["user_data"], ids=str)
def test_java_user_data(row: dict[str, Any]) -> None:
    encoded = bytes.fromhex(row["bytes"])
    had, generation_id = partitions(row["had"]), row["generation_id"]
    if row["assignor"] == "cooperative-sticky":
        assert encoded == encode_cooperative_user_data(generation_id)
        assert decode_cooperative_generation(encoded) == generation_id
    elif generation_id < 0:
        assert encoded == b""  # nothing before the first assignment
    else:
        # Which topic comes first is by Java's hashes.
        read = decode_sticky_user_data(encoded)
        assert sorted(read.previous) == sorted(had)
        assert read.generation_id == generation_id
        assert sorted(encoded) == sorted(encode_sticky_user_data(had, generation_id))


# Kafka's JSON, and kafka-python


@pytest.mark.parametrize("cls", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_declarations_are_those_of_the_json(cls: type[Message]) -> None:
    spec = load_json(cls.__name__)
    assert spec["validVersions"] == f"{cls.MIN_VERSION}-{cls.MAX_VERSION}"
    assert spec["flexibleVersions"] == "none"
    for version in VERSIONS:
        ours = [
            row._replace(wire_type=row.wire_type.replace("TopicPartitions", "TopicPartition"))
            for row in class_rows(cls, version)
        ]
        assert ours == list(json_rows(spec["fields"], version))


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_reads_and_writes_the_same(version: int) -> None:
    encoded = encode_subscription(**EVERYTHING, version=version)
    peer = PeerSubscription.decode(encoded)
    assert peer.topics == ["a", "b"]
    assert peer.user_data == b"data"
    if version >= 1:
        assert [(row.topic, row.partitions) for row in peer.owned_partitions] == [
            ("a", [0, 1]),
            ("b", [7]),
        ]
    assert PeerSubscription.encode(peer, version=version) == encoded

    encoded = encode_assignment([("b", 1), ("a", 0), ("b", 0)], user_data=b"x", version=version)
    peer = PeerAssignment.decode(encoded)
    assert [(row.topic, row.partitions) for row in peer.assigned_partitions] == [
        ("b", [1, 0]),
        ("a", [0]),
    ]
    assert PeerAssignment.encode(peer, version=version) == encoded


# Round trips


@pytest.mark.slow
@given(
    names=st.lists(topics, max_size=5),
    data=user_data,
    owned=partitions_of_topics,
    generation_id=int32s,
    rack_id=st.none() | topics,
    version=st.sampled_from(VERSIONS),
)
def test_subscription_round_trip(
    names: list[str],
    data: bytes | None,
    owned: list[Partition],
    generation_id: int,
    rack_id: str | None,
    version: int,
) -> None:
    read = decode_subscription(
        encode_subscription(
            names,
            user_data=data,
            owned=owned,
            generation_id=generation_id,
            rack_id=rack_id,
            version=version,
        )
    )
    assert read == (
        version,
        tuple(sorted(names)),
        data,
        tuple(sorted(owned)) if version >= 1 else (),
        generation_id if version >= 2 else -1,
        (rack_id or None) if version >= 3 else None,  # Java reads an empty rack as none
    )


@given(
    given_partitions=st.lists(st.tuples(topics, st.integers(0, 2**31 - 1)), max_size=8),
    data=user_data,
    version=st.sampled_from(VERSIONS),
)
def test_assignment_round_trip(
    given_partitions: list[Partition], data: bytes | None, version: int
) -> None:
    read = decode_assignment(encode_assignment(given_partitions, user_data=data, version=version))
    assert read.version == version
    assert sorted(read.partitions) == sorted(given_partitions)
    assert read.user_data == data


@given(had=partitions_of_topics, generation_id=int32s)
def test_user_data_round_trip(had: list[Partition], generation_id: int) -> None:
    read = decode_sticky_user_data(encode_sticky_user_data(had, generation_id))
    assert sorted(read.previous) == sorted(had)
    assert read.generation_id == generation_id
    encoded = encode_cooperative_user_data(generation_id)
    assert decode_cooperative_generation(encoded) == generation_id


# Other versions


@pytest.mark.parametrize("version", [4, 99, 0x7FFF])
def test_a_newer_version_is_read_as_the_highest_known(version: int) -> None:
    newer = struct.pack(">h", version)
    subscription = decode_subscription(newer + encode_subscription(**EVERYTHING)[2:] + b"more")
    assert subscription == decode_subscription(encode_subscription(**EVERYTHING))._replace(
        version=version
    )
    assignment = decode_assignment(newer + encode_assignment([("t", 3)])[2:] + b"more")
    assert assignment == (version, (("t", 3),), None)


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_after_the_last_field_are_skipped(version: int) -> None:
    encoded = encode_subscription(**EVERYTHING, version=version)
    assert decode_subscription(encoded + b"more") == decode_subscription(encoded)
    encoded = encode_assignment([("t", 3)], version=version)
    assert decode_assignment(encoded + b"more") == decode_assignment(encoded)


@pytest.mark.parametrize("version", [-1, -(2**15)])
def test_there_are_no_negative_versions(version: int) -> None:
    for decode in (decode_subscription, decode_assignment):
        with pytest.raises(DecodeError, match=f"of version {version} "):
            decode(struct.pack(">h", version) + bytes(20))


def test_versions_that_cannot_be_written() -> None:
    with pytest.raises(UnsupportedVersionError):
        encode_subscription(["t"], version=4)
    with pytest.raises(UnsupportedVersionError):
        encode_assignment([], version=4)


def test_sticky_user_data_of_version_0_has_no_generation() -> None:
    version_1 = encode_sticky_user_data([("t", 0), ("u", 1)], 4)
    assert decode_sticky_user_data(version_1[:-4]) == ((("t", 0), ("u", 1)), -1)


def test_librdkafka_has_sticky_user_data_for_cooperative_sticky() -> None:
    # Java would read the number of topics, 2, as the generation.
    assert decode_cooperative_generation(encode_sticky_user_data([("t", 0), ("u", 1)], 4)) == 4
    assert decode_cooperative_generation(encode_sticky_user_data([], 4)) == 4


# Values and bytes that are refused


def test_what_is_no_list_of_names_or_pairs() -> None:
    """A text would be taken for its letters, each of them a topic."""
    with pytest.raises(EncodeError, match=r"topics is a list of names: write \['orders'\]"):
        encode_subscription("orders")
    for wrong in ("orders", ["ab"], {"orders": [0]}, [("orders",)], [7]):
        with pytest.raises(EncodeError, match="partitions are pairs such as"):
            encode_assignment(wrong)  # type: ignore[arg-type]


def test_values_that_do_not_fit() -> None:
    with pytest.raises(EncodeError, match="topics"):
        encode_subscription(["x" * 40_000])
    with pytest.raises(EncodeError, match="partitions"):
        encode_assignment([("t", 2**31)])
    with pytest.raises(EncodeError, match="generation_id"):
        encode_subscription(["t"], generation_id=2**31)


def test_a_negative_partition_is_not_assigned() -> None:
    with pytest.raises(DecodeError, match="partition -1 of topic t"):
        decode_assignment(encode_assignment([("t", -1)]))


DECODERS: list[tuple[Callable[[bytes], object], list[bytes]]] = [
    (decode_subscription, [encode_subscription(**EVERYTHING, version=v) for v in VERSIONS]),
    (decode_assignment, [encode_assignment([("t", 3)], user_data=b"x", version=v) for v in (0, 3)]),
]


@pytest.mark.parametrize(("decode", "samples"), DECODERS)
def test_cut_at_every_byte(decode: Callable[[bytes], object], samples: list[bytes]) -> None:
    after_user_data = len(samples[0])  # see the next test; an assignment ends there
    for encoded in samples:
        for size in set(range(len(encoded))) - {after_user_data}:
            with pytest.raises(DecodeError, match="ConsumerProtocol"):
                decode(encoded[:size])


# What kafka-go 0.4.51 sends in JoinGroup for its assignors range and roundrobin, topic "orders".
KAFKA_GO = bytes.fromhex("0001 00000001 0006 6f7264657273 ffffffff")


def test_a_subscription_that_ends_before_the_owned_partitions() -> None:
    read = decode_subscription(KAFKA_GO)
    assert read == (1, ("orders",), None, (), -1, None)
    with pytest.raises(DecodeError, match="owned_partitions"):
        decode_subscription(KAFKA_GO + b"\0")
    with pytest.raises(DecodeError):
        decode_subscription(KAFKA_GO[:-1])


@pytest.mark.parametrize("decode", [decode for decode, _ in DECODERS])
@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("version", [1, 3])
def test_counts_that_lie_allocate_nothing(
    decode: Callable[[bytes], object], count: bytes, version: int
) -> None:
    hostile = struct.pack(">h", version) + count + b"\0\1t" * 10
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(hostile)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@settings(max_examples=examples(300))
@given(st.data())
def test_damaged_bytes(source: st.DataObject) -> None:
    decode, samples = source.draw(st.sampled_from(DECODERS))
    damaged = bytearray(source.draw(st.sampled_from(samples)))
    for _ in range(source.draw(st.integers(1, 4))):
        damaged[source.draw(st.integers(0, len(damaged) - 1))] = source.draw(st.integers(0, 255))
    only_a_decode_error(decode, bytes(damaged))


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        only_a_decode_error(decode, data)
        only_a_decode_error(decode, b"\0\3\0\0\0\1" + data)
    only_a_decode_error(decode_sticky_user_data, data)
    only_a_decode_error(decode_cooperative_generation, data)


def only_a_decode_error(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except DecodeError as error:
        assert error.position is None or 0 <= error.position <= len(data)
