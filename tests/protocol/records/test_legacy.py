"""Message sets of magic 0 and 1: against kafka-python, hand-packed bytes, and Java's rules."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Sequence

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from sparkkafka.errors import CorruptRecordError
from sparkkafka.protocol.records.batches import RecordBatch, first_batch_size, split_batches
from sparkkafka.protocol.records.compression import Codec
from tests.support import reference
from tests.support.properties import examples
from tests.support.reference import Record

MIB = 1 << 20
LOG_APPEND_TIME = 8


def message(
    offset: int,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    *,
    magic: int = 1,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    """One message, packed by hand: kafka-python's builder cannot make broken or stamped ones."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrap(
    offset: int,
    messages: Sequence[bytes],
    *,
    magic: int = 1,
    codec: Codec = Codec.GZIP,
    timestamp: int = 1000,
    attributes: int = 0,
) -> bytes:
    data = b"".join(messages)
    value = {
        Codec.GZIP: gzip.compress,
        Codec.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
        Codec.LZ4: lambda data: lz4.frame.compress(data, store_size=False),
    }[codec](data)
    return message(
        offset, None, value, magic=magic, timestamp=timestamp, attributes=attributes | codec
    )


def rows(batches: Sequence[RecordBatch]) -> list[Record]:
    """Records by the scalar codec: what the package's column decoder has to make of the batches."""
    out: list[Record] = []
    for batch in batches:
        out += reference.decode_payload(
            bytes(batch.payload(MIB)),
            record_count=batch.record_count,
            base_offset=batch.base_offset,
            last_offset_delta=batch.last_offset_delta,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            log_append_time=batch.is_log_append_time,
        )
    return out


def offsets(data: bytes) -> list[int]:
    return [record.offset for record in rows(split_batches(data))]


some_messages = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=300),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=examples(100))
@given(st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)]), some_messages)
def test_kafka_python_writes_and_reads_the_same(
    kind: tuple[int, int], content: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    magic, codec = kind
    builder = MemoryRecordsBuilder(magic=magic, compression_type=codec, batch_size=MIB)
    for timestamp, key, value in content:
        builder.append(timestamp=timestamp, key=key, value=value)
    builder.close()
    data = bytes(builder.buffer())
    if codec:
        # As the broker does: give the wrapper its last message's offset (not under the CRC).
        data = struct.pack(">q", len(content) - 1) + data[8:]
    batches = split_batches(data)
    assert len(batches) == 1
    assert batches[0].magic == magic
    assert batches[0].codec is Codec.NONE
    assert batches[0].size_bytes == len(data)
    assert batches[0].next_offset == len(content)
    theirs: list[Record] = []
    their_batches = MemoryRecords(data)
    while their_batches.has_next():
        theirs += [
            Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value)
            for r in their_batches.next_batch()
        ]
    assert rows(batches) == theirs
    assert theirs == [
        Record(offset, timestamp if magic else -1, key, value)
        for offset, (timestamp, key, value) in enumerate(content)
    ]


def test_hand_packed_messages_are_kafka_pythons() -> None:
    for magic in (0, 1):
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=MIB)
        builder.append(5, timestamp=77, key=b"key", value=None)
        want = message(5, b"key", None, magic=magic, timestamp=77)
        assert bytes(builder.build()) == want


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_magic_1_inner_offsets_are_relative(codec: Codec) -> None:
    """The wrapper has the offset of its last message: 107 - 7 = 100 is the base."""
    kept = [message(i) for i in (2, 3, 7)]  # compaction has taken some
    data = wrap(107, kept, codec=codec)
    assert offsets(data) == [102, 103, 107]
    assert split_batches(data)[-1].next_offset == 108


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_magic_0_inner_offsets_are_absolute(codec: Codec) -> None:
    data = wrap(107, [message(i, magic=0) for i in (102, 103, 107)], magic=0, codec=codec)
    assert offsets(data) == [102, 103, 107]
    assert {record.timestamp for record in rows(split_batches(data))} == {-1}
    assert split_batches(data)[0].timestamp_type == -1


def test_wrapper_offset_0_means_no_base() -> None:
    """Some versions of librdkafka leave the wrapper's offset at 0 (AbstractLegacyRecordBatch)."""
    data = wrap(0, [message(i) for i in range(3)])
    assert offsets(data) == [0, 1, 2]
    assert split_batches(data)[-1].next_offset == 3


def test_wrapper_offset_below_its_last_message() -> None:
    with pytest.raises(CorruptRecordError, match=r"offset 1: .*below its last message's 2"):
        split_batches(wrap(1, [message(i) for i in range(3)]))


def test_wrapper_that_reaches_beyond_its_last_message() -> None:
    """Going on behind the last message would fetch the same wrapper for ever."""
    batches = split_batches(wrap(9, [message(i, magic=0) for i in (4, 5)], magic=0))
    assert [record.offset for record in rows(batches)] == [4, 5]
    assert batches[-1].next_offset == 10


def test_uncompressed_messages_share_a_batch() -> None:
    data = b"".join(message(i, timestamp=1000 - i) for i in (5, 6, 9, 12))
    (batch,) = split_batches(data)
    assert (batch.base_offset, batch.next_offset, batch.record_count) == (5, 13, 4)
    assert (batch.size_bytes, batch.partition_leader_epoch) == (len(data), -1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.is_control, batch.is_transactional) == (False, False)
    assert [record.timestamp for record in rows([batch])] == [995, 994, 991, 988]
    assert batch.max_timestamp == 995


def test_several_batches_where_one_cannot_hold_them() -> None:
    far = 2**31 + 10
    for data, count in [
        (message(0) + message(far), 2),  # an offset delta has 32 bits
        (message(0, timestamp=-(2**63)) + message(1, timestamp=2**63 - 1), 2),
        (message(0, magic=0) + message(1, magic=1) + message(2, magic=0), 3),
        (wrap(far, [message(0, magic=0), message(far, magic=0)], magic=0), 2),
        (message(0) + message(1, attributes=LOG_APPEND_TIME), 2),
        (message(0) + wrap(2, [message(0), message(1)]) + message(3), 3),
    ]:
        batches = split_batches(data)
        assert len(batches) == count
        assert sum(batch.size_bytes for batch in batches) == len(data)
        assert len(rows(batches)) == sum(batch.record_count for batch in batches)
    for data in (
        message(5) + message(5),
        message(5) + message(4),
        wrap(5, [message(1), message(1)]),
    ):
        with pytest.raises(CorruptRecordError, match="after offset 5"):
            split_batches(data)
    batches = split_batches(message(0) + message(far))
    assert [record.offset for record in rows(batches)] == [0, far]


# --- timestamps -----------------------------------------------------------------------------------


def test_wrapper_with_log_append_time_stamps_all_inside() -> None:
    data = wrap(
        12, [message(i, timestamp=i) for i in range(3)], timestamp=777, attributes=LOG_APPEND_TIME
    )
    (batch,) = split_batches(data)
    assert batch.is_log_append_time
    assert batch.timestamp_type == 1
    assert [(r.offset, r.timestamp) for r in rows([batch])] == [(10, 777), (11, 777), (12, 777)]


def test_wrapper_with_create_time_leaves_them() -> None:
    data = wrap(
        2, [message(i, timestamp=i, attributes=LOG_APPEND_TIME) for i in range(3)], timestamp=777
    )
    (batch,) = split_batches(data)
    assert batch.timestamp_type == 0
    assert [record.timestamp for record in rows([batch])] == [0, 1, 2]


def test_log_append_time_of_single_messages() -> None:
    stamps = [5, 5, 9, 9, 5]
    data = b"".join(
        message(i, timestamp=stamp, attributes=LOG_APPEND_TIME) for i, stamp in enumerate(stamps)
    )
    batches = split_batches(data)
    assert [batch.record_count for batch in batches] == [2, 2, 1]
    assert all(batch.is_log_append_time for batch in batches)
    assert [record.timestamp for record in rows(batches)] == stamps


def test_missing_timestamps() -> None:
    data = message(0, timestamp=-1) + message(1, timestamp=50) + message(2, timestamp=-1)
    assert [record.timestamp for record in rows(split_batches(data))] == [-1, 50, -1]


# --- around it ------------------------------------------------------------------------------------


def test_null_and_empty() -> None:
    fields = [(None, None), (b"", b""), (None, b""), (b"", None)]
    for magic in (0, 1):
        data = b"".join(message(i, *pair, magic=magic) for i, pair in enumerate(fields))
        for whole in (data, wrap(3, [data], magic=magic)):
            assert [(r.key, r.value) for r in rows(split_batches(whole))] == fields


def test_old_and_new_segments_in_one_response() -> None:
    new = reference.encode_batch([Record(9, 5, b"k", b"v")], base_offset=9)
    data = message(6, magic=0) + wrap(8, [message(0), message(1)]) + new
    batches = split_batches(data + new[:40])
    assert [(b.magic, b.base_offset, b.next_offset) for b in batches] == [
        (0, 6, 7),
        (1, 7, 9),
        (2, 9, 10),
    ]


def test_last_message_cut_at_every_byte() -> None:
    first, second = message(0), wrap(2, [message(0), message(1)])
    whole = first + second
    for cut in range(len(whole) + 1):
        data = whole[:cut]
        count = (cut >= len(first)) + 2 * (cut == len(whole))
        assert offsets(data) == [0, 1, 2][:count]
        assert first_batch_size(data) == (len(first) if cut >= 12 else None)


def test_end_offset() -> None:
    bad = bytearray(message(4))
    bad[-1] ^= 1
    data = message(0) + wrap(3, [message(i) for i in range(3)]) + bytes(bad)
    assert [b.next_offset for b in split_batches(data, end_offset=1)] == [1]
    for end_offset in (2, 3, 4):
        assert split_batches(data, end_offset=end_offset)[-1].next_offset == 4
    with pytest.raises(CorruptRecordError, match="offset 4: CRC-32 of the message"):
        split_batches(data, end_offset=5)


def test_crcs_of_wrapper_and_inner_messages() -> None:
    inner = bytearray(message(1, value=b"value"))
    inner[-1] ^= 1
    data = wrap(5, [message(0), bytes(inner)])
    with pytest.raises(
        CorruptRecordError, match=r"offset 5: in a compressed message set: .*CRC-32"
    ):
        split_batches(data)
    assert len(rows(split_batches(data, check_crcs=False))) == 2
    outer = bytearray(message(0))
    outer[-1] ^= 1
    with pytest.raises(CorruptRecordError) as caught:
        split_batches(outer)
    assert (caught.value.position, caught.value.offset) == (12, 0)


def test_unpacked_bytes_are_bounded_over_the_response() -> None:
    """Wrappers that fit alone, but not together: the rest waits for the next fetch."""
    inner = [message(0, value=bytes(1000))]
    size = len(inner[0])
    data = b"".join(wrap(i, inner) for i in range(10))
    assert len(split_batches(data)) == 10
    assert len(split_batches(data, max_payload_bytes=3 * size + 5)) == 3
    assert len(split_batches(data, max_payload_bytes=size)) == 1
    new = reference.encode_batch([Record(10, 5, b"k", b"v")], base_offset=10)
    assert len(split_batches(data + new, max_payload_bytes=size)) == 1
    with pytest.raises(CorruptRecordError, match=f"more than the {size - 1} bytes"):
        split_batches(data, max_payload_bytes=size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_bomb_of_unlike_messages_takes_bounded_memory(wrapped: bool) -> None:
    """All are of another format than the one before, so each becomes a batch of its own."""
    tiny = [message(n, None, None, magic=n % 2) for n in range(40_000)]
    data = wrap(40_000 - 1, tiny, magic=0) if wrapped else b"".join(tiny)
    tracemalloc.start()
    try:
        if wrapped:
            with pytest.raises(CorruptRecordError, match="unlike messages take more"):
                split_batches(data, max_payload_bytes=4 * MIB)
        else:
            assert 4000 < len(split_batches(data, max_payload_bytes=4 * MIB)) < 5000
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (wrap(0, [wrap(0, [message(0)])]), "compressed message inside"),
        (message(3, None, None, attributes=1), "value is null"),
        (message(3, None, b"", attributes=1), "no gzip data"),
        (wrap(3, []), "no message inside"),
        (wrap(3, [message(0)[:-1]]), "cut short"),
        (wrap(3, [reference.encode_batch([Record(0, 0, b"", b"")])]), "format 2 inside"),
        (message(3, None, b"x", attributes=4), "codec 4"),
        (message(3, None, b"x", attributes=7), "codec 7"),
        (message(-1), "message offset -1"),
        (message(2**63 - 1), "message offset"),
        (wrap(2**63 - 2, [message(2**63 - 1, magic=0)], magic=0), "message offset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_sets(data: bytes, text: str) -> None:
    with pytest.raises(CorruptRecordError, match=text) as caught:
        split_batches(data)
    assert caught.value.position == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_bytes_behind_the_value(magic: int) -> None:
    data = bytearray(message(7, magic=magic) + b"more")
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
    with pytest.raises(CorruptRecordError, match="offset 7: 4 bytes follow the value"):
        split_batches(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [-(2**31), -2, 2, 100, 2**31 - 1])
def test_impossible_field_sizes(magic: int, size: int) -> None:
    start = 26 if magic else 18
    for position in (start, start + 5):
        data = bytearray(message(7, b"k", b"v", magic=magic))
        struct.pack_into(">i", data, position, size)
        struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
        with pytest.raises(CorruptRecordError, match="offset 7"):
            split_batches(data)
