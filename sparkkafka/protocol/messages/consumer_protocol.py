"""Subscriptions and assignments, which consumers send each other in JoinGroup and SyncGroup.

To brokers these are bytes. Each member sends its subscription, once per assignor; the member that
the broker makes leader reads all of them and answers with one assignment for each. Any of them
may be a Java client, librdkafka or kafka-python, of any age, so the layout is that of Java's
`ConsumerProtocol`: a version, then ConsumerProtocolSubscription or ConsumerProtocolAssignment of
Kafka's message JSON. A version above the highest known is read as that one, since newer versions
only add fields at the end, and bytes after the last known field are skipped.

Inside a subscription an assignor may have bytes of its own (`user_data`): those of Java's
StickyAssignor and CooperativeStickyAssignor are here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkkafka.errors import DecodeError, EncodeError
from sparkkafka.protocol.constants import NO_GENERATION
from sparkkafka.protocol.wire import schema as wire
from sparkkafka.protocol.wire.codec import decode, decode_from, encode
from sparkkafka.protocol.wire.primitives import BytesLike, Reader

PROTOCOL_TYPE = "consumer"
"""The protocol type of JoinGroup whose members use this."""


MIN_VERSION = 0
MAX_VERSION = 3

Partition = tuple[str, int]
"""Topic and partition number."""


@wire.struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = wire.string()
    partitions: list[int] = wire.array(wire.INT32)


@wire.data(versions=(MIN_VERSION, MAX_VERSION))
class ConsumerProtocolSubscription(wire.Message):
    """The topics of one member, and from version 1 on the partitions that it owns."""

    topics: list[str] = wire.array(wire.STRING)
    user_data: bytes | None = wire.nullable_bytes()
    owned_partitions: list[TopicPartitions] = wire.array(TopicPartitions, since=1, ignorable=True)
    generation_id: int = wire.int32(NO_GENERATION, since=2, ignorable=True)
    rack_id: str | None = wire.nullable_string(None, since=3, ignorable=True)


@wire.data(versions=(MIN_VERSION, MAX_VERSION))
class ConsumerProtocolAssignment(wire.Message):
    """The partitions that one member gets. All versions are alike."""

    assigned_partitions: list[TopicPartitions] = wire.array(TopicPartitions)
    user_data: bytes | None = wire.nullable_bytes()


@wire.data(versions=(0, 1))
class StickyAssignorUserData(wire.Message):
    """The `user_data` of Java's StickyAssignor and librdkafka. It has no version number."""

    previous_assignment: list[TopicPartitions] = wire.array(TopicPartitions)
    generation: int = wire.int32(NO_GENERATION, since=1, ignorable=True)


@wire.data(versions=(0, 0))
class CooperativeStickyAssignorUserData(wire.Message):
    """The `user_data` of Java's CooperativeStickyAssignor."""

    generation: int = wire.int32(NO_GENERATION)


class Subscription(NamedTuple):
    """A member's subscription. `version` is the one on the wire, perhaps above MAX_VERSION.

    `generation_id` is NO_GENERATION where the version or the member has none; `rack_id` is None
    where there is none, also for an empty one, as in Java.
    """

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None
    owned: tuple[Partition, ...]
    generation_id: int
    rack_id: str | None


class Assignment(NamedTuple):
    """A member's assignment. `version` is the one on the wire, perhaps above MAX_VERSION."""

    version: int
    partitions: tuple[Partition, ...]
    user_data: bytes | None


class StickyUserData(NamedTuple):
    """A member's last assignment, and the generation of the group in which it got that."""

    previous: tuple[Partition, ...]
    generation_id: int


def encode_subscription(
    topics: Iterable[str],
    *,
    user_data: bytes | None = None,
    owned: Iterable[Partition] = (),
    generation_id: int = NO_GENERATION,
    rack_id: str | None = None,
    version: int = MAX_VERSION,
) -> bytes:
    """Encode a subscription as Java does, with sorted topics and owned partitions.

    What `version` has no field for is left out. Raises EncodeError for values that do not fit.
    """
    if isinstance(topics, str):  # its letters, otherwise
        raise EncodeError(f"topics is a list of names: write [{topics!r}], not {topics!r}")
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_group_by_topic(sorted(owned)),
        generation_id=generation_id,
        rack_id=rack_id,
    )
    return _encode(message, version)


def decode_subscription(encoded: BytesLike) -> Subscription:
    """Decode a member's subscription. Raises DecodeError for bytes that are none.

    kafka-go and old Sarama write version 1 or later and end after `user_data`: such a subscription
    is read as version 0, without owned partitions.
    """
    reader = Reader(encoded)
    version = _read_version(ConsumerProtocolSubscription, reader)
    body = reader.pos
    try:
        message = decode_from(reader, ConsumerProtocolSubscription, min(version, MAX_VERSION))
    except DecodeError as error:
        try:
            message = decode(ConsumerProtocolSubscription, 0, encoded, pos=body)
        except DecodeError:
            raise error from None
    return Subscription(
        version=version,
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned=_flatten(message.owned_partitions),
        generation_id=message.generation_id,
        rack_id=message.rack_id or None,
    )


def encode_assignment(
    partitions: Iterable[Partition], *, user_data: bytes | None = None, version: int = MAX_VERSION
) -> bytes:
    """Encode an assignment as Java does, with topics in the order in which they first come.

    Raises EncodeError for values that do not fit.
    """
    message = ConsumerProtocolAssignment(
        assigned_partitions=_group_by_topic(partitions), user_data=user_data
    )
    return _encode(message, version)


def decode_assignment(encoded: BytesLike) -> Assignment:
    """Decode a member's assignment. Raises DecodeError for bytes that are none, or that assign a
    negative partition."""
    reader = Reader(encoded)
    version = _read_version(ConsumerProtocolAssignment, reader)
    # Later versions may only add fields at the end, which are not read.
    message = decode_from(reader, ConsumerProtocolAssignment, min(version, MAX_VERSION))
    partitions = _flatten(message.assigned_partitions)
    for topic, partition in partitions:
        if partition < 0:
            raise DecodeError(f"the assignment has partition {partition} of topic {topic}")
    return Assignment(version, partitions, message.user_data)


def encode_sticky_user_data(partitions: Iterable[Partition], generation_id: int) -> bytes:
    """Encode the `user_data` of the assignor sticky, version 1."""
    previous = _group_by_topic(partitions)
    message = StickyAssignorUserData(previous_assignment=previous, generation=generation_id)
    return encode(message, 1)


def decode_sticky_user_data(encoded: BytesLike) -> StickyUserData:
    """Decode the `user_data` of the assignor sticky: version 1, or else 0, as Java tries them.

    Raises DecodeError for bytes that are neither.
    """
    try:
        message = decode_from(Reader(encoded), StickyAssignorUserData, 1)
    except DecodeError:
        message = decode_from(Reader(encoded), StickyAssignorUserData, 0)
    return StickyUserData(_flatten(message.previous_assignment), message.generation)


def encode_cooperative_user_data(generation_id: int) -> bytes:
    """Encode the `user_data` of the assignor cooperative-sticky: the generation."""
    return encode(CooperativeStickyAssignorUserData(generation=generation_id), 0)


def decode_cooperative_generation(encoded: BytesLike) -> int:
    """Decode the generation in the `user_data` of the assignor cooperative-sticky.

    Java writes four bytes, the generation. librdkafka writes what it writes for sticky, which is
    longer and begins with the number of topics. Raises DecodeError for other bytes.
    """
    reader = Reader(encoded)
    if reader.remaining > 4:
        return decode_sticky_user_data(encoded).generation_id
    return decode_from(reader, CooperativeStickyAssignorUserData, 0).generation


def _encode(message: wire.Message, version: int) -> bytes:
    """Return the version (int16) followed by the message in that version."""
    body = encode(message, version)
    return version.to_bytes(2, "big") + body


def _read_version(cls: type[wire.Message], reader: Reader) -> int:
    """Read the version before a message of type `cls`. Raises DecodeError for a negative one."""
    try:
        version = reader.int16()
    except DecodeError as error:
        raise DecodeError(f"{cls.__name__} without a version", error.position) from None
    if version < MIN_VERSION:
        raise DecodeError(f"{cls.__name__} of version {version}", 0)
    return version


def _group_by_topic(partitions: Iterable[Partition]) -> list[TopicPartitions]:
    """Group partitions by topic, in the order in which the topics first come. Raises EncodeError
    for what is not a pair."""
    numbers_by_topic: dict[str, list[int]] = {}
    for pair in partitions:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise EncodeError(f"partitions are pairs such as ('orders', 0), got {pair!r}")
        numbers_by_topic.setdefault(pair[0], []).append(pair[1])
    return [
        TopicPartitions(topic=topic, partitions=numbers)
        for topic, numbers in numbers_by_topic.items()
    ]


def _flatten(topics: Iterable[TopicPartitions]) -> tuple[Partition, ...]:
    """Return the (topic, partition) pairs of all topics."""
    return tuple((topic.topic, number) for topic in topics for number in topic.partitions)
