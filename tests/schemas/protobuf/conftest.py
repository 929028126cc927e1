"""Errors of our own code must not look like a broken schema."""

from __future__ import annotations

import pytest

from sparkkafka.schemas import schema_errors


@pytest.fixture(autouse=True)
def no_boundary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors than the package's own are seen as they are, except with `with_boundary`."""
    if "with_boundary" not in request.fixturenames:
        monkeypatch.setattr(schema_errors, "DAMAGE_ERRORS", ())


@pytest.fixture
def with_boundary() -> None:
    """For schemas that are broken on purpose."""
