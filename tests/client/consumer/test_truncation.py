"""An unclean leader takes records away that were read, and others get their offsets (KIP-320)."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.values import OffsetAndMetadata, TopicPartition
from sparkkafka.errors import DataLossError, ErrorCode, LogTruncationError
from sparkkafka.protocol.messages import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from sparkkafka.testing.fake.faults import ErrorResponse
from tests.client.support import numbers, open_cluster, reader, settings, write
from tests.support.waiting import wait_until

TP = TopicPartition("t", 0)
BATCHES = {"batch_size": 500, "linger_ms": 0}
READ = 100
KEPT = 60
LATER = 80


@pytest.fixture
def filled(fake_cluster_factory) -> FakeCluster:
    return fill(fake_cluster_factory(2))


def fill(fake: FakeCluster) -> FakeCluster:
    fake.create_topic("t")
    write(fake, "t", READ, per_send=10, **BATCHES)
    return fake


def lose(fake: FakeCluster, *, later: int = LATER) -> int:
    """The other broker leads, with less; `later` more records are written. Where the logs part."""
    fake.truncate("t", 0, KEPT)
    fake.move_leader("t", 0, 1 - fake.leader("t", 0))
    end = fake.log("t", 0).end_offset
    assert 0 < end <= KEPT
    write(fake, "t", later, per_send=10, **BATCHES)
    return end


SMALL = {"max_partition_fetch_bytes": 500}


def lost_in_the_middle(fake: FakeCluster) -> None:
    """At the second Fetch, of small responses, all records are lost, and more come."""

    def strike(request):
        fake.truncate("t", 0, 0)
        fake.move_leader("t", 0, 1 - fake.leader("t", 0))
        write(fake, "t", READ + 20, per_send=10, **BATCHES)

    fake.fault(strike, api="Fetch", nth=2)


def consumer(fake: FakeCluster, **config: Any) -> Consumer:
    quick = {"auto_offset_reset": "none", "fetch_max_wait_ms": 20}
    return Consumer(settings(fake, **quick | config))


def poll(source: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        records = source.poll(30)
        assert len(records), f"only {len(found)} records"
        found += [record.value for record in records]
    return found


def test_without_a_reset_policy_it_is_an_error_until_the_user_seeks(filled):
    with consumer(filled) as source:
        source.assign({TP: 0})
        assert poll(source, READ) == numbers(READ)
        end = lose(filled)
        for _ in range(2):
            message = (
                rf"topic t partition 0: .*before offset {READ} .*epoch 0 ends at offset {end}\."
            )
            with pytest.raises(LogTruncationError, match=message) as raised:
                poll(source, 1)
        error = raised.value
        assert (error.topic, error.partition, error.offset, error.end_offset) == (*TP, READ, end)
        source.seek(TP, end)
        assert poll(source, LATER) == numbers(LATER)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_with_a_reset_policy_it_goes_on_where_the_logs_part(filled, policy, caplog):
    with consumer(filled, auto_offset_reset=policy) as source, caplog.at_level(logging.WARNING):
        source.assign({TP: 0})
        poll(source, READ)
        end = lose(filled)
        assert poll(source, LATER) == numbers(LATER)
    assert f"t-0: records before offset {READ} that were read are gone" in caplog.text
    assert f"continuing from offset {end}" in caplog.text


def test_a_log_that_only_grew_is_read_on(filled):
    with consumer(filled) as source:
        source.assign({TP: 0})
        poll(source, READ)
        filled.move_leader("t", 0, 1 - filled.leader("t", 0))
        write(filled, "t", LATER, per_send=10, **BATCHES)
        filled.clear_requests()
        assert poll(source, LATER) == numbers(LATER)
        requested = [row.message.topics[0].partitions[0] for row in filled.requests_of("Fetch")]
        assert 0 in [row.last_fetched_epoch for row in requested]


def test_records_that_nobody_has_seen_are_fetched_anew(filled, caplog):
    """A response says that they are gone while they wait for poll."""
    filled.create_topic("quiet")
    gone = PartitionData(
        partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=1), records=b""
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[gone])])
    rule = filled.fault(lambda request: response, api="Fetch", topic="t", nth=2)
    caplog.set_level(logging.INFO, "sparkkafka")
    with consumer(filled, max_poll_records=1, **SMALL) as source:
        source.assign({TP: 0, TopicPartition("quiet", 0): 0})
        seen = poll(source, 1)
        source.pause([TP])  # poll reads responses only when it has no buffered records
        end_s = time.monotonic() + 30
        while "fetching again from offset 1" not in caplog.text:
            assert time.monotonic() < end_s
            assert not source.poll(0.1)
        source.resume([TP])
        assert seen + poll(source, READ - 1) == numbers(READ)
    assert rule.fired == 1


@pytest.mark.parametrize("by", ["commit", "auto", "seek"])
def test_a_position_with_a_leader_epoch_is_checked_when_it_is_taken_up(filled, by):
    group = {"group_id": "g", "enable_auto_commit": by == "auto"}
    with consumer(filled, **group) as source:
        source.assign({TP: 0})
        poll(source, READ)
        if by == "commit":
            source.commit()
    with consumer(filled, **group) as source:
        at = source.committed([TP])[TP]
        assert at == (None if by == "seek" else OffsetAndMetadata(READ, leader_epoch=0))
        lose(filled)
        source.assign({TP: OffsetAndMetadata(READ, leader_epoch=0)} if by == "seek" else [TP])
        with pytest.raises(LogTruncationError, match="topic t partition 0"):
            poll(source, 1)


def test_within_a_response_of_two_epochs_the_epoch_is_not_known(filled):
    filled.move_leader("t", 0, 1 - filled.leader("t", 0))
    write(filled, "t", LATER, per_send=10, **BATCHES)
    with consumer(filled, group_id="g", max_poll_records=10) as source:
        source.assign({TP: 0})
        for count, epoch in ((10, None), (READ + LATER - 10, 1)):
            poll(source, count)
            source.commit()
            at = source.committed([TP])[TP]
            assert at is not None
            assert at.leader_epoch == epoch


@pytest.mark.parametrize("version", ["2.1", "4.0"])
def test_an_older_broker_is_believed(fake_cluster_factory, version):
    fake = fill(fake_cluster_factory(2, kafka_version=version))
    with consumer(fake) as source:
        source.assign({TP: 0})
        poll(source, READ)
        end = lose(fake)
        if version == "2.1":
            assert poll(source, LATER + end - READ) == numbers(LATER)[READ - end :]
        else:
            with pytest.raises(LogTruncationError):
                poll(source, 1)


def test_a_leader_that_does_not_know_the_epoch_is_asked_without_it(filled):
    """Kafka answers this if it cannot determine the offset, although the log has it."""

    def refused(request):
        row = request.message.topics[0].partitions[0]
        return ErrorResponse(ErrorCode.OFFSET_OUT_OF_RANGE) if row.last_fetched_epoch >= 0 else None

    with consumer(filled) as source:
        source.assign({TP: 0})
        poll(source, READ)
        filled.move_leader("t", 0, 1 - filled.leader("t", 0))
        write(filled, "t", LATER, per_send=10, **BATCHES)
        filled.fault(refused, api="Fetch", times=None)
        assert poll(source, LATER) == numbers(LATER)


@pytest.mark.parametrize("wrong", ["diverging", "out of range"])
def test_a_confused_broker_is_not_asked_again_and_again(filled, wrong):
    """It says after each request that what it has listed, or kept, is gone."""
    diverging = PartitionData(
        partition_index=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=1), records=b""
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[diverging])])
    action = (
        ErrorResponse(ErrorCode.OFFSET_OUT_OF_RANGE) if wrong != "diverging" else lambda _: response
    )
    rule = filled.fault(action, api="Fetch", times=None)
    slow = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    with consumer(filled, auto_offset_reset="earliest", **slow) as source:
        source.assign({TP: 1})
        wait_until(lambda: source.poll(0.05) or rule.fired)
        assert not source.poll(0.5)
    assert rule.fired == 1


# --- ranges -----------------------------------------------------------------------------------


def test_a_range_whose_first_records_are_gone_is_data_loss(filled):
    lost_in_the_middle(filled)
    with open_cluster(filled) as cluster, reader(cluster, "t", 0, READ, **SMALL) as source:
        with pytest.raises(DataLossError, match=r"t-0: records before offset \d+ that were read"):
            list(source)


def test_a_range_goes_on_where_loss_is_allowed(filled, caplog):
    lost_in_the_middle(filled)
    found: list[Any] = []
    with (
        open_cluster(filled) as cluster,
        reader(cluster, "t", 0, READ, fail_on_data_loss=False, **SMALL) as source,
    ):
        for _, records in source:
            found += records.values.to_pylist()
    assert found == numbers(READ)
    assert source.lost[TP] > 0
    assert "that were read are gone" in caplog.text
