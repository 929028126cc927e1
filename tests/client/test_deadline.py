"""Deadlines end waits; the retry loop raises what cannot be mended and gives up in time."""

from __future__ import annotations

import errno
import socket
import threading
import time

import pytest

from sparkkafka.client import Producer
from sparkkafka.client.deadline import Backoff, CloseSignal, Deadline, Retry
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)


def test_a_deadline_counts_down_and_never_below_zero():
    deadline = Deadline(10_000)
    assert 9.0 < deadline.remaining_s() <= 10.0
    assert not deadline.expired
    assert Deadline(0).expired
    assert Deadline(-5).remaining_s() == 0.0


def test_the_sooner_of_two_deadlines_wins():
    deadline = Deadline(10_000)
    assert deadline.sooner(60_000) is deadline
    assert deadline.sooner(100).remaining_s() <= 0.1


def test_backoff_doubles_with_jitter_up_to_its_maximum():
    backoff = Backoff(100, 1_000)
    for nominal in (100, 200, 400, 800, 1_000, 1_000):
        assert 0.8 * nominal <= backoff.next_ms() <= min(1.2 * nominal, 1_000)
    backoff.reset()
    assert backoff.next_ms() <= 120


def test_backoff_survives_any_number_of_failures():
    backoff = Backoff(1, 1_000)
    waits = [backoff.next_ms() for _ in range(5_000)]
    assert max(waits) == 1_000


def test_an_error_that_is_not_retriable_is_raised_as_it_is():
    error = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Metadata of topic t")
    with pytest.raises(BrokerError) as raised:
        Retry(Deadline(10_000), Backoff(1, 1), "x").after(error)
    assert raised.value is error


def test_giving_up_names_the_operation_and_the_last_failure():
    retry = Retry(Deadline(30), Backoff(10, 10), "listing offsets")
    last = KafkaConnectionError("127.0.0.1:1: cannot connect")
    with pytest.raises(KafkaTimeoutError, match=r"listing offsets.*127\.0\.0\.1:1") as raised:
        for _ in range(100):
            retry.after(last)
    assert raised.value.__cause__ is last


def test_a_part_that_was_retried_until_its_deadline_is_not_retried():
    failure = KafkaConnectionError("b:9092: cannot connect")
    given_up = KafkaTimeoutError("Metadata: gave up after 1 s; the last failure: cannot connect")
    given_up.__cause__ = failure
    assert given_up.retriable
    with pytest.raises(KafkaTimeoutError) as raised:
        Retry(Deadline(60_000), Backoff(0, 0), "committing").after(given_up)
    assert raised.value is given_up


def test_an_attempt_that_the_deadline_cut_does_not_hide_what_was_said_before():
    deadline = Deadline(0)
    retry = Retry(Deadline(60_000), Backoff(0, 0), "committing")
    said = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "OffsetCommit of group 'g'")
    retry.after(said)
    cut = KafkaTimeoutError("127.0.0.1:1: no response within 0.1 s")
    retry.deadline = deadline
    with pytest.raises(KafkaTimeoutError, match="LOAD_IN_PROGRESS") as raised:
        retry.after(cut)
    assert raised.value.__cause__ is said


def test_a_client_without_file_descriptors_names_their_limit(monkeypatch):
    def fail():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", fail)
    with pytest.raises(KafkaError, match=r"Too many open files\. .*ulimit -n"):
        Producer({"bootstrap.servers": "127.0.0.1:1"})


def test_all_pauses_end_at_the_time_that_is_set() -> None:
    signal = CloseSignal()
    timer = threading.Timer(0.05, signal.close_in, (0.0,))
    timer.start()
    begin_s = time.monotonic()
    for _ in range(3):
        signal.pause(60)
    timer.join()
    assert time.monotonic() - begin_s < 50
    signal.pause(-1)
