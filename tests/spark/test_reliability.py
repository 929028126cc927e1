"""No fault loses or doubles a row beyond what its guarantee allows, errors tell the truth, and
docs/reliability.md says what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkkafka.errors import DataLossError
from tests.spark import fault_cases
from tests.spark.fault_cases import TRANSACTIONS, WRITING, outcomes_of
from tests.spark.fault_runs import ROWS, Case, Guarantee

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
RUNS = [(case, guarantee) for case in WRITING + TRANSACTIONS for guarantee in case.guarantees]


@pytest.mark.parametrize(
    ("case", "guarantee"), RUNS, ids=[f"{case.name}-{row.name}" for case, row in RUNS]
)
def test_a_fault(case: Case, guarantee: Guarantee) -> None:
    for outcome in outcomes_of(case.name, guarantee):
        if guarantee in case.unnoticed:
            assert outcome.lost > 0 and outcome.error is None, "better than the table says"
            continue
        if case.told_lost:
            assert outcome.lost > 0
            assert isinstance(outcome.error, DataLossError) or "lost" in str(outcome.error)
        else:
            assert outcome.lost == 0
            assert outcome.lies == ()
        if guarantee is not Guarantee.NOT_IDEMPOTENT:
            assert outcome.in_order
            assert outcome.doubled == 0
        elif not case.may_double:
            assert outcome.doubled == 0
        assert outcome.open == 0, "readers of read_committed would wait"
        if guarantee is Guarantee.EXACTLY_ONCE:
            assert outcome.visible == (0 if outcome.error else ROWS)


def test_names_are_unique():
    names = [case.name for case in WRITING + TRANSACTIONS]
    assert len(set(names)) == len(names)


def test_the_document_says_what_comes_out():
    text = DOCUMENT.read_text("utf-8")
    current = fault_cases.update(text)
    changed = sorted(set(current.splitlines()) ^ set(text.splitlines()))
    assert changed == [], "run: python -m tests.spark.fault_cases docs/reliability.md"
