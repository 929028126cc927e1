"""Packages that a plain install does not bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(argument: str, package: str, extra: str) -> Iterator[None]:
    """Raises ImportError, which says what to install, if the package is not here."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("prometheus_client", "opentelemetry"):
            raise
        raise ImportError(
            f"sparkkafka.metrics({argument}=…) needs {package}, which is not here: pip install "
            f"'sparkkafka[{extra}]'"
        ) from None
