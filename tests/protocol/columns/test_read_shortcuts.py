"""Short cuts of reading against the long way round: batches without markers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.protocol.records.batches import AbortedTransactions, RecordBatch, split_batches
from tests.support import reference
from tests.support.properties import examples


def batch(base_offset: int, producer_id: int, attributes: int, key: bytes) -> bytes:
    records = [reference.Record(base_offset, 0, key, b"")]
    return reference.encode_batch(
        records, base_offset=base_offset, attributes=attributes, producer_id=producer_id
    )


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from((0, 0x10, 0x30)),  # plain, transactional, marker
            st.sampled_from((b"\0\0\0\0", b"\0\0\0\1")),  # abort, commit
        ),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=4),
)
def test_visible_batches_at_once_and_one_by_one(
    rows: list[tuple[int, int, bytes]], aborted: list[tuple[int, int]]
) -> None:
    batches = split_batches(b"".join(batch(n, *row) for n, row in enumerate(rows)))
    assert all(type(item) is RecordBatch for item in batches)
    one_by_one = AbortedTransactions(aborted)
    expected = [item for item in batches if one_by_one.visible(item)]
    assert AbortedTransactions(aborted).visible_batches(batches) == expected
    assert AbortedTransactions(None).visible_batches(batches) == [
        item for item in batches if not item.is_control
    ]
