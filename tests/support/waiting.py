"""Wait for an event, with a limit that a busy machine does not reach."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from sparkkafka.client.producer import futures

WAIT_S = 60.0

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], what: str = "", seconds: float = WAIT_S, poll_s: float = 0.05
) -> _T:
    """Return what `condition` returns once it is true; AssertionError after `seconds`."""
    until_s = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until_s, f"{what or 'it'}: not within {seconds:g} s"
        time.sleep(poll_s)
    return found


def finish(call: Callable[[], _T], seconds: float = WAIT_S) -> _T:
    """Return what `call` returns, or raise what it raises; TimeoutError after `seconds`.

    For a call that must end early although its own limits are longer than `seconds`.
    """
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(seconds)


def interrupt_main_thread(is_due: Callable[[], bool]) -> None:
    """Send Ctrl-C to the main thread once `is_due`, and it waits for a lock of `threading` or for
    the outcome of a Producer's record."""
    main_id = threading.main_thread().ident or 0
    files = (threading.__file__, futures.__file__)
    wait_until(lambda: is_due() and sys._current_frames()[main_id].f_code.co_filename in files)
    time.sleep(0.1)  # a signal just before the lock would be seen only after the wait
    signal.pthread_kill(main_id, signal.SIGINT)


class Hold:
    """A fault that holds requests back until `release`: `fake.fault(hold, api="Fetch")`.

    A test that ends up waiting for such a request fails: the fake cluster reports the error.
    """

    def __init__(self) -> None:
        self._released = threading.Event()

    def __call__(self, request: object) -> None:
        assert self._released.wait(WAIT_S), f"the test has never released {request}"

    def release(self) -> None:
        self._released.set()


@contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """Fail if the block needs more processor time. A busy machine does not make it longer."""
    begin_s = time.process_time()
    yield
    spent_s = time.process_time() - begin_s
    assert spent_s < limit_s, f"{spent_s:.2f} s of processor time, at most {limit_s:g} s expected"
