"""Plans the next micro-batch, and reads it if it is small, while Spark writes to its checkpoint.

Between `latestOffset` and `partitions` Spark writes the offsets of the batch to a file, which takes
45 ms on a local disk and more on others. The process that plans would wait meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sparkkafka.client.deadline import CloseSignal
from sparkkafka.spark.stream.micro_batch import Offsets

_T = TypeVar("_T")

HEAD_START_S = 0.001
"""Spark gets the answer that it waits for first: two threads of Python do not run at once."""

CUT_S, STOP_S = 0.1, 2.0


class PlanAhead(Generic[_T]):
    """Calls `make` with start and end of a micro-batch in a thread, one batch at a time.

    Whoever shares what `make` uses calls `wait` before.
    """

    def __init__(self, make: Callable[[Offsets, Offsets], _T]) -> None:
        self._make = make
        self._thread: threading.Thread | None = None
        self._range: tuple[Offsets, Offsets] | None = None
        self._made: _T | None = None
        self._error: BaseException | None = None

    def begin(self, start: Offsets, end: Offsets) -> None:
        """Returns immediately, unless another batch is being planned."""
        self.wait()
        self._range, self._made, self._error = (start, end), None, None
        self._thread = threading.Thread(
            target=self._run, args=(start, end), name="sparkkafka-plan-ahead", daemon=True
        )
        self._thread.start()

    def _run(self, start: Offsets, end: Offsets) -> None:
        time.sleep(HEAD_START_S)
        try:
            self._made = self._make(start, end)
        except BaseException as error:
            self._error = error

    def wait(self, limit_s: float | None = None) -> None:
        """`make` ends by its own deadlines."""
        if self._thread is not None:
            self._thread.join(limit_s)

    def stop(self, close_signal: CloseSignal) -> None:
        """Give up what is being planned, with all its waits."""
        if self._thread is None or not self._thread.is_alive():
            return
        close_signal.close_in(0)
        self.wait(CUT_S)
        if self._thread.is_alive():
            close_signal.cut_sockets()
            self.wait(STOP_S)

    def take(self, start: Offsets, end: Offsets) -> _T:
        """What was made of that micro-batch; it is made now if another one was, or none. Raises
        what `make` raises."""
        self.wait()
        made, error, of = self._made, self._error, self._range
        self._thread = self._range = self._made = self._error = None
        if of == (start, end):
            if error is not None:
                raise error
            if made is not None:
                return made
        return self._make(start, end)
