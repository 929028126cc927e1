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
    """Raise `error` if an import in this block fails. The message is `needs` (what needs what), how
    to install the extra, and `note`.

    With `packages`, only if one of these is missing; other ImportErrors are raised as they are.
    """
    try:
        yield
    except ImportError as missing:
        if packages and (missing.name or "").partition(".")[0] not in packages:
            raise
        raise error(f"{needs}: pip install 'sparkkafka[{extra}]'{note}") from missing
