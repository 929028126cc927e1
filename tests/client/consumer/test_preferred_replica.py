"""Reading from a replica of one's own rack (KIP-392), and that replica's ways to fail."""

from __future__ import annotations

import logging

import pytest

from sparkkafka.client.consumer import subscription_state
from sparkkafka.errors import DataLossError, ErrorCode, KafkaTimeoutError
from sparkkafka.protocol.messages import FetchableTopicResponse, FetchResponse, PartitionData
from sparkkafka.testing.fake.faults import CutFrame, Delay, Drop, Garbage
from tests.client.support import fill, numbers, open_cluster, read_range, reader

SMALL = {"max_partition_fetch_bytes": 1_200, "client_rack": "c"}
LEADER, NEAR = 0, 2


@pytest.fixture
def fake(fake_cluster_factory):
    """Broker 0 leads, broker 2 is in rack c."""
    return filled(fake_cluster_factory)


def filled(factory, **options):
    fake = factory(3, racks=["a", "b", "c"], rack_aware=True, **options)
    fake.create_topic("t")
    assert fake.leader("t", 0) == LEADER
    fill(fake, "t", 1_000, batch_size=500, linger_ms=0)
    fake.clear_requests()
    return fake


def read(fake, *, end: int = 1_000, metadata_max_age_ms: int = 300_000, **config):
    with open_cluster(fake, metadata_max_age_ms=metadata_max_age_ms) as cluster:
        return read_range(cluster, "t", 0, end, **(SMALL | config))


def fetched_from(fake) -> list[int]:
    return [request.broker for request in fake.requests_of("Fetch")]


def empty(high_watermark: int) -> FetchResponse:
    row = PartitionData(partition_index=0, high_watermark=high_watermark, records=b"")
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


def test_the_leader_sends_us_to_the_replica_and_all_comes_from_there(fake, caplog):
    with caplog.at_level(logging.INFO):
        assert read(fake) == numbers(1_000)
    first, *others = fetched_from(fake)
    assert first == LEADER
    assert set(others) == {NEAR}
    assert len(others) > 10
    assert {request.message.rack_id for request in fake.requests_of("Fetch")} == {"c"}
    assert "reading from broker 2" in caplog.text


@pytest.mark.parametrize("rack", ["", "a", "nowhere"])
def test_other_racks_read_from_the_leader(fake, rack):
    assert read(fake, client_rack=rack) == numbers(1_000)
    assert set(fetched_from(fake)) == {LEADER}


def test_a_broker_before_racks(fake_cluster_factory):
    fake = filled(fake_cluster_factory, kafka_version="2.1")
    assert read(fake) == numbers(1_000)
    assert set(fetched_from(fake)) == {LEADER}


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    "action",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        Drop.BEFORE,
        Drop.AFTER,
        CutFrame(40),
        Garbage(b"\x00\x00\x00\x10" + b"\xff" * 16),
    ],
    ids=repr,
)
def test_a_replica_that_fails_is_left_for_the_leader(fake, action, nth):
    """Whatever it is: nothing is lost and nothing read twice."""
    rule = fake.fault(action, api="Fetch", broker=NEAR, nth=nth, times=None)
    assert read(fake) == numbers(1_000)
    assert rule.fired == 1
    assert fetched_from(fake)[-1] == LEADER


def test_the_replica_dies(fake):
    fake.fault(lambda _: fake.broker_down(NEAR), api="Fetch", broker=NEAR, nth=4)
    assert read(fake) == numbers(1_000)
    assert fetched_from(fake)[-1] == LEADER


def test_the_replica_is_dead_and_nobody_has_noticed(fake):
    """The leader still names it: a reader that kept requesting it would get nothing."""
    fake.broker_down(NEAR, move_leaders=False)
    assert read(fake) == numbers(1_000)
    assert set(fetched_from(fake)) == {LEADER}
    named = [r for r in fake.requests_of("Fetch") if r.version > 10]
    assert len(named) == 1


def test_a_replica_that_metadata_does_not_know(fake):
    def unknown(request):
        row = PartitionData(partition_index=0, preferred_read_replica=77, records=b"")
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])

    fake.fault(unknown, api="Fetch")
    assert read(fake) == numbers(1_000)
    assert set(fetched_from(fake)) == {LEADER}


def test_a_replica_that_does_not_answer(fake):
    fake.fault(Delay(20_000, before=True), api="Fetch", broker=NEAR, nth=3)
    with open_cluster(fake, request_timeout_ms=300) as cluster:
        assert read_range(cluster, "t", 0, 1_000, fetch_max_wait_ms=100, **SMALL) == numbers(1_000)


def test_a_replica_that_lags_is_no_data_loss(fake, caplog):
    """Its high watermark stays below the offsets that are read."""
    fake.fault(lambda _: empty(50), api="Fetch", broker=NEAR, nth=2, times=None)
    with open_cluster(fake) as cluster:
        config = SMALL | {"poll_timeout_ms": 2_000, "fetch_max_wait_ms": 50}
        with reader(cluster, "t", 0, 1_000, fail_on_data_loss=False, **config) as source:
            values = [value for _, records in source for value in records.values.to_pylist()]
    assert "are gone" not in caplog.text
    assert values == numbers(1_000)
    assert fetched_from(fake)[-1] == LEADER


def test_a_replica_that_lags_for_a_moment_is_waited_for(fake):
    fake.fault(lambda _: empty(50), api="Fetch", broker=NEAR, nth=2, times=3)
    assert read(fake) == numbers(1_000)
    assert fetched_from(fake).count(LEADER) == 1


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, None])
def test_loss_is_believed_if_the_leader_says_so(fake, code):
    if code is not None:
        fake.fault(code, api="Fetch", broker=NEAR, times=None)
    fake.advance_log_start("t", 0, 300)
    with pytest.raises(DataLossError, match=r"t-0: offsets 0 to 299 are gone.*\[300, 1000\)"):
        read(fake)
    assert LEADER in fetched_from(fake)[1:]


def test_a_log_that_ends_below_the_range_is_seen_at_the_leader(fake):
    with pytest.raises(DataLossError, match="ends at 1000"):
        read(fake, end=1_100, poll_timeout_ms=1_200, fetch_max_wait_ms=20)
    assert fetched_from(fake)[-1] == LEADER


def test_nothing_anywhere_ends_in_a_timeout(fake):
    fake.fault(lambda _: empty(1_000), api="Fetch", broker=NEAR, times=None)
    fake.fault(Delay(20_000, before=True), api="Fetch", broker=LEADER, nth=2, times=None)
    with pytest.raises(KafkaTimeoutError, match=r"t-0.* 1 s"):
        read(fake, poll_timeout_ms=1_000, fetch_max_wait_ms=20)


def test_the_leader_is_asked_again_when_its_word_is_old(fake):
    """As long as metadata: metadata.max.age.ms, at least a second."""
    fake.fault(Delay(150), api="Fetch", broker=NEAR, times=None)
    assert read(fake, metadata_max_age_ms=0) == numbers(1_000)
    runs = [
        node
        for n, node in enumerate(fetched_from(fake))
        if n == 0 or fetched_from(fake)[n - 1] != node
    ]
    assert len(runs) >= 4
    assert runs[:4] == [LEADER, NEAR, LEADER, NEAR]


def test_after_a_while_the_replica_gets_another_chance(fake, monkeypatch):
    monkeypatch.setattr(subscription_state, "LEADER_ONLY_MS", 300)
    fake.fault(Drop.BEFORE, api="Fetch", broker=NEAR, nth=2)
    fake.fault(Delay(40), api="Fetch", broker=LEADER, times=None)
    assert read(fake) == numbers(1_000)
    assert fetched_from(fake)[-1] == NEAR


def test_the_leader_moves_while_a_replica_is_read(fake):
    fake.fault(lambda _: fake.move_leader("t", 0, 1), api="Fetch", broker=NEAR, nth=3)
    assert read(fake) == numbers(1_000)


def test_the_replica_becomes_the_leader(fake):
    fake.fault(lambda _: fake.broker_down(LEADER), api="Fetch", broker=NEAR, nth=3)
    fake.fault(lambda _: fake.move_leader("t", 0, NEAR), api="Fetch", broker=NEAR, nth=4)
    assert read(fake) == numbers(1_000)
