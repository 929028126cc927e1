"""What Java's client takes, ours takes: the same settings on the same listeners."""

from __future__ import annotations

import pytest

from tests.docs.snippets import page
from tests.real.secured import Secured
from tests.real.security_sets import BEGIN, END, table, tried

pytestmark = pytest.mark.real


def test_what_java_takes_is_taken(secured: Secured) -> None:
    outcomes = tried(secured)
    assert [row for row in outcomes if row.java == "" and row.ours] == []
    assert [row for row in outcomes if row.java is None and row.ours] == []
    assert len([row for row in outcomes if row.java == ""]) >= 40
    shown = page("docs/security-java.md").partition(BEGIN)[2].partition(END)[0]
    assert table(outcomes) == shown
