"""The verdict on each error code of a Produce response."""

from __future__ import annotations

import pytest

from sparkkafka.client.producer.produce_errors import WRITTEN, Action, decide
from sparkkafka.errors import ErrorCode


def verdict(code, **facts):
    given = {
        "record_count": 5,
        "is_head": True,
        "maybe_written": False,
        "attempts_left": True,
        **facts,
    }
    return decide(code, **given)


@pytest.mark.parametrize("code", sorted(set(ErrorCode) - WRITTEN), ids=lambda code: code.name)
def test_every_code_has_a_verdict_that_agrees_with_kafkas_table(code):
    special = {
        ErrorCode.MESSAGE_TOO_LARGE: Action.SPLIT,
        ErrorCode.RECORD_LIST_TOO_LARGE: Action.SPLIT,
        ErrorCode.UNKNOWN_PRODUCER_ID: Action.NEW_PRODUCER_ID,
    }
    expected = special.get(code, Action.RETRY if code.retriable else Action.FAIL)
    assert verdict(code).action is expected


def test_codes_that_leave_open_whether_the_batch_is_written():
    """Those that a broker may give after it has appended the records."""
    perhaps = {code.name for code in ErrorCode if verdict(code).maybe_written}
    assert perhaps == {
        "UNKNOWN_SERVER_ERROR",
        "NOT_LEADER_OR_FOLLOWER",  # lost its place while acks=all waited
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "KAFKA_STORAGE_ERROR",
    }


def test_without_attempts_left_a_retriable_code_is_final():
    assert verdict(ErrorCode.NOT_ENOUGH_REPLICAS, attempts_left=False).action is Action.FAIL


def test_a_number_that_nobody_knows_is_final():
    assert verdict(9999) == (Action.FAIL, False)


def test_out_of_order_is_expected_behind_a_failed_batch_only():
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert verdict(code, is_head=False).action is Action.AFTER_PREDECESSOR
    assert verdict(code, is_head=True).action is Action.FAIL


def test_a_batch_that_may_be_written_never_gets_another_producer_id():
    assert verdict(ErrorCode.UNKNOWN_PRODUCER_ID, maybe_written=True).action is Action.FAIL


def test_a_single_record_cannot_be_split():
    assert verdict(ErrorCode.MESSAGE_TOO_LARGE, record_count=1).action is Action.FAIL
