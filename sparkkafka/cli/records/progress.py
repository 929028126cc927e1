"""A bar on a terminal's stderr while records go; nothing in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self


class Progress:
    """Counts, and shows what it counts if it is `shown`; use it under `with`.

    The bar is of bytes if `total_bytes` is known, else it shows records.
    """

    def __init__(self, what: str, shown: bool) -> None:
        self._what = what
        self._bar: Any = None
        self._task: Any = None
        self._records = 0
        self._bytes = 0
        self.total_bytes: int | None = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[records]} records"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.__enter__()
            self._task = self._bar.add_task(self._what, total=None, records="0")
        return self

    def __exit__(self, *details: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*details)

    @property
    def records(self) -> int:
        """How many have gone."""
        return self._records

    @records.setter
    def records(self, count: int) -> None:
        self._records = count
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=self.total_bytes,
                completed=self._bytes,
                records=f"{count:,}",
            )

    def counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks, their bytes counted."""
        for chunk in chunks:
            self._bytes += len(chunk)
            yield chunk
