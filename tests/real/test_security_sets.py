"""What Java's client takes, ours takes: the same settings on the same listeners."""

from __future__ import annotations

import pytest

from tests.docs.snippets import page
from tests.real.secured import Secured
from tests.real.security_table import BEGIN, END, table, tried

pytestmark = pytest.mark.real

REFUSED = (
    "no truststore",
    "another authority",
    "a truststore that does not exist",
    "truststore: a wrong password",
    "a certificate for another name",
    "a certificate that has expired",
    "no client certificate, on a listener that requires one",
    "a keystore that cannot be opened, on a listener that does not request it",
    "a wrong password",
    "no login",
    "a mechanism that the listener does not support",
    "a login module that does not exist",
    "sasl.jaas.config without the semicolon",
)
"""Both turn these away."""


def test_what_java_takes_is_taken(secured: Secured) -> None:
    outcomes = tried(secured)
    assert [row for row in outcomes if row.java == "" and row.ours] == []
    assert [row for row in outcomes if row.java is None and row.ours] == []
    assert len([row for row in outcomes if row.java == ""]) >= 60
    assert [row.name for row in outcomes if row.java and row.ours] == [*REFUSED]
    shown = page("docs/security.md").partition(BEGIN)[2].partition(END)[0]
    assert table(outcomes) == shown
