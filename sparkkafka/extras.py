"""Packages that a plain install does not bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(
    needs: str,
    extra: str,
    *packages: str,
    error: type[Exception] = ImportError,
    note: str = "",
) -> Iterator[None]:
    """For imports: raises `error`, which says what is needed and what to install, if one of
    `packages` is not here; without `packages`, whatever is missing."""
    try:
        yield
    except ImportError as missing:
        if packages and (missing.name or "").partition(".")[0] not in packages:
            raise
        raise error(f"{needs}: pip install 'sparkkafka[{extra}]'{note}") from missing
