"""Packages that are installed only with an extra."""

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
    """Raise `error`, with what is needed and what to install, if an import fails in this block.

    With `packages` only for one of these.
    """
    try:
        yield
    except ImportError as missing:
        if packages and (missing.name or "").partition(".")[0] not in packages:
            raise
        raise error(f"{needs}: pip install 'sparkkafka[{extra}]'{note}") from missing
