"""What is written down of a decision, and read again."""

from __future__ import annotations

import dataclasses
import json
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.errors import DecodeError
from sparkkafka.spark.decision_text import (
    MAX_TEXT_CHARS,
    Decision,
    TaskTransaction,
    WriterNames,
    latest_decision,
)

EMPTY = Decision(
    query_id=str(uuid.UUID(int=5)),
    run="0123456789ab",
    batch_id=7,
    number=12,
    application="host",
    transactions=(),
)

TASKS = st.builds(
    TaskTransaction,
    task=st.integers(0, 100_000),
    attempt=st.integers(0, 50),
    producer_id=st.integers(0, (1 << 63) - 1),
    producer_epoch=st.integers(0, 32_767),
)


def of(*tasks: TaskTransaction) -> Decision:
    return dataclasses.replace(EMPTY, transactions=tasks)


@given(
    st.lists(TASKS, max_size=30, unique_by=lambda row: row[:2]),
    st.integers(300, MAX_TEXT_CHARS),
    st.randoms(),
)
def test_what_is_written_is_read(tasks: list[TaskTransaction], most: int, dice: random.Random):
    decision = of(*tasks)
    texts = decision.texts(most)
    assert all(len(text.encode()) <= most for text in texts)
    dice.shuffle(texts)
    assert latest_decision(texts) == decision


@pytest.mark.parametrize("application", ["", "café ✓ " * 50, 'a"b\\c'])
def test_any_host_name_fits(application: str):
    decision = dataclasses.replace(of(TaskTransaction(1, 0, 5, 6)), application=application)
    (text,) = decision.texts()
    assert len(text.encode()) <= MAX_TEXT_CHARS
    assert latest_decision([text]) == dataclasses.replace(decision, application=application[:100])


def test_three_hundred_tasks_fit_in_one_decision():
    tasks = [TaskTransaction(n, 0, 40_000 + n, 1000 + n) for n in range(300)]
    assert len(of(*tasks).texts()) == 1


def test_the_highest_number_counts():
    old = dataclasses.replace(EMPTY, number=3, batch_id=90)
    assert latest_decision([*old.texts(), *EMPTY.texts()]) == EMPTY
    assert latest_decision([]) is None


def test_a_missing_piece_is_an_error():
    texts = of(*[TaskTransaction(n, 0, n, n) for n in range(300)]).texts(500)
    assert len(texts) > 3
    with pytest.raises(
        DecodeError, match=r"batch 7 is incomplete: only pieces .* Was a topic deleted"
    ):
        latest_decision(texts[:1] + texts[2:])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[1]",
        "not json",
        json.dumps({**json.loads(EMPTY.texts()[0]), "v": 2}),
        json.dumps({**json.loads(EMPTY.texts()[0]), "batch": "7"}),
        json.dumps({**json.loads(EMPTY.texts()[0]), "tasks": None}),
        json.dumps({**json.loads(EMPTY.texts()[0]), "tasks": "1.2.3"}),
        json.dumps({**json.loads(EMPTY.texts()[0]), "tasks": "1.2.3.$"}),
        json.dumps({**json.loads(EMPTY.texts()[0]), "of": 10**12}),
    ],
)
def test_text_that_is_no_decision_is_an_error(text: str):
    with pytest.raises(DecodeError):
        latest_decision([text])


def test_names():
    names = WriterNames.of_query(None, "q-1", str(uuid.UUID(int=1 << 127)))
    assert names == ("sparkkafka-q-1", "800000000000")
    assert names.transactional_id(3, 1) == "sparkkafka-q-1-800000000000-3-1"
    assert names.decisions == "sparkkafka-q-1-decisions"
    job = WriterNames.of_job("orders", uuid.UUID(int=3).hex)
    assert job.transactional_id(0, 0) == f"orders-job{uuid.UUID(int=3).hex}-0-0"


@pytest.mark.parametrize(
    ("transactional_id", "ours"),
    [
        ("orders-0123456789ab-0-0", True),
        ("orders-ffffffffffff-15-3", True),
        ("orders-decisions", False),
        ("orders-eu-0123456789ab-0-0", False),
        ("orders-0123456789ab-0", False),
        ("orders-0123456789ab-0-0-0", False),
        ("orders-0123456789abc-0-0", False),
        ("xorders-0123456789ab-0-0", False),
        ("orders", False),
        (WriterNames.of_job("orders", uuid.UUID(int=3).hex).transactional_id(0, 0), False),
    ],
)
def test_which_ids_belong_to_a_query(transactional_id: str, ours: bool):
    assert WriterNames("orders", "aaaaaaaaaaaa").is_of_query(transactional_id) is ours
