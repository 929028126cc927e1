"""Deadlines, close signals and wakers, which end waits; and the retry loop of all operations but
the sender's, whose batches have deadlines of their own.

Every wait in `client` ends at a `Deadline`, so a call takes no longer than the deadline that its
caller passed. The only exception is the operating system's lookup of a host name.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import random
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparkkafka import errors

log = logging.getLogger(__name__)


MAX_WAIT_S = 1e8  # infinity is more than the operating system can wait
CUT_AFTER_S = 0.1  # after the deadline of `close`, connections that still wait are cut


class Deadline:
    """A point in monotonic time. Immutable, apart from its `close_signal`."""

    __slots__ = ("_at_s", "close_signal", "total_ms")

    def __init__(self, total_ms: float, close_signal: CloseSignal | None = None) -> None:
        # A deadline of NaN would never expire.
        if not isinstance(total_ms, int | float) or total_ms != total_ms or total_ms is True:
            raise errors.OptionError(f"total_ms is a number of milliseconds, got {total_ms!r}")
        self.total_ms = total_ms
        self._at_s = time.monotonic() + total_ms / 1000.0
        self.close_signal = close_signal

    @property
    def expired(self) -> bool:
        """Whether the time, or that of the close signal, is over."""
        signal = self.close_signal
        now_s = time.monotonic()
        return now_s >= self._at_s or (signal is not None and now_s >= signal.at_s)

    @property
    def text(self) -> str:
        """The length of the deadline for messages, rounded: 2,999.32 ms are "3 s"."""
        seconds = self.total_ms / 1000
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        at_s = self._at_s if self.close_signal is None else min(self._at_s, self.close_signal.at_s)
        return max(0.0, at_s - time.monotonic())

    def pause(self, wait_ms: float) -> None:
        """Sleep, at most until the deadline."""
        wait_s = min(wait_ms / 1000.0, self.remaining_s())
        if self.close_signal is None:
            time.sleep(wait_s)
        else:
            self.close_signal.pause(wait_s)

    def sooner(self, limit_ms: float) -> Deadline:
        """Return this deadline, or one `limit_ms` from now, whichever comes first."""
        remaining_ms = self.remaining_s() * 1000.0
        return self if remaining_ms <= limit_ms else Deadline(limit_ms, self.close_signal)

    def with_close_signal(self, close_signal: CloseSignal | None) -> Deadline:
        """Return this deadline with a signal that can end it earlier."""
        if close_signal is None or self.close_signal is close_signal:
            return self
        other = Deadline(self.total_ms, close_signal)
        other._at_s = self._at_s
        return other


def seconds_of(timeout_s: float, what: str = "timeout_s") -> float:
    """Return a user's timeout, at most MAX_WAIT_S. Raises OptionError, which calls it `what`."""
    # This also excludes NaN.
    if isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s >= 0:
        return min(timeout_s, MAX_WAIT_S)
    raise errors.OptionError(f"{what} is a number of seconds, at least 0; got {timeout_s!r}")


def deadline_of(timeout_s: float | None) -> Deadline | None:
    """Make a deadline of a user's argument; None (no limit) stays None. Raises OptionError."""
    return None if timeout_s is None else Deadline(seconds_of(timeout_s) * 1000)


class CloseSignal:
    """Ends all waits of a thread at a time that another thread sets.

    A wait for a socket that has begun does not notice the new time: `cut_sockets` ends it.
    """

    def __init__(self) -> None:
        self.at_s = math.inf
        self._time_is_set: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Not an Event, whose lock the same thread may hold when the garbage collector calls
        `close_in`."""
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def close_in(self, remaining_s: float) -> None:
        """Let the waits of all deadlines with this signal end after `remaining_s` at the latest."""
        self.at_s = min(self.at_s, time.monotonic() + remaining_s)
        self._time_is_set.put(None)

    def pause(self, wait_s: float) -> None:
        """Sleep, at most until the time that is set."""
        until_s = time.monotonic() + wait_s
        with contextlib.suppress(queue.Empty):
            self._time_is_set.put(self._time_is_set.get(timeout=max(0.0, wait_s)))
            time.sleep(max(0.0, min(until_s, self.at_s) - time.monotonic()))

    def watch(self, sock: socket.socket) -> None:
        """Add a socket that the thread may wait for, so that `cut_sockets` can end the wait."""
        with self._lock:
            self._sockets.add(sock)

    def cut_sockets(self) -> None:
        """Shut down all sockets: a wait for one ends with an error."""
        with self._lock:
            for sock in list(self._sockets):
                with contextlib.suppress(OSError):
                    # Not SSLSocket's own shutdown, which only the reading thread may call.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class Pollable(Protocol):
    """A connection on which a response is awaited."""

    @property
    def has_input(self) -> bool:
        """Whether bytes have arrived that the socket's descriptor does not report (TLS,
        re-authentication)."""

    @property
    def has_unsent(self) -> bool:
        """Whether a part of a request has not been sent yet."""

    def fileno(self) -> int: ...


PollableT = TypeVar("PollableT", bound=Pollable)


class Waker:
    """Ends the wait of a thread in `poll_connections`. Raises KafkaError if the process cannot open
    more files."""

    def __init__(self) -> None:
        try:
            self.receiver, self._sender = socket.socketpair()
        except OSError as error:
            raise errors.KafkaError(
                f"a client needs two file descriptors to wake its thread: {error.strerror}. Raise "
                "the limit of open files (ulimit -n), or close what the process does not need"
            ) from error
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, which is readable after `wake`; -1 when closed."""
        return self.receiver.fileno()

    def wake(self) -> None:
        """End the wait. Thread-safe."""
        # contextlib.suppress would take longer than the call.
        try:
            self._sender.send(b"\0")
        except OSError:  # full: already awake; closed: nothing waits
            return

    def drain(self) -> None:
        """Forget earlier calls of `wake`: the next wait ends only after a later call."""
        try:
            while len(self.receiver.recv(4096)) == 4096:  # there may be more
                pass
        except OSError:  # nothing is left
            return

    def close(self) -> None:
        self.receiver.close()
        self._sender.close()


def poll_connections(
    connections: Iterable[PollableT], wait_s: float, waker: Waker | None = None
) -> list[PollableT]:
    """Wait until one of these open connections has input or can send the rest of a request, or
    until `Waker.wake`; return the connections that are ready."""
    poll = select.poll()
    awaited: dict[int, PollableT] = {}
    ready = []
    for connection in connections:
        if connection.has_input:
            ready.append(connection)
            continue
        descriptor = connection.fileno()
        awaited[descriptor] = connection
        poll.register(descriptor, select.POLLIN | connection.has_unsent * select.POLLOUT)
    if waker is not None:
        poll.register(waker.receiver, select.POLLIN)
    for descriptor, _ in poll.poll(0 if ready else max(0.0, wait_s) * 1000):
        if descriptor in awaited:
            ready.append(awaited[descriptor])
        elif waker is not None:
            waker.drain()
    return ready


class Backoff:
    """Exponential waits: `initial_ms * 2**n` with a jitter of 20 %, at most `maximum_ms` (KIP-580,
    Java's ExponentialBackoff)."""

    def __init__(self, initial_ms: float, maximum_ms: float) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = max(initial_ms, maximum_ms)
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_ms(self) -> float:
        """Return the milliseconds to wait before the next attempt: more after each call."""
        # 2**30 is far above any maximum: the cap keeps the power from growing without bound.
        wait_ms = min(self._initial_ms * 2.0 ** min(self._failures, 30), self._maximum_ms)
        self._failures += 1
        # Jitter spreads clients that failed together; it protects nothing secret.
        return min(wait_ms * random.uniform(0.8, 1.2), self._maximum_ms)  # noqa: S311


def has_given_up(error: errors.KafkaError) -> bool:
    """Return whether an operation raised this error at its deadline, after retries."""
    return isinstance(error, errors.KafkaTimeoutError) and isinstance(
        error.__cause__, errors.KafkaError
    )


@dataclass(eq=False)
class Retry:
    """Retries one operation until its deadline. `what` names the operation in messages, `on_retry`
    is called before each wait for another attempt.

    >>> retry = Retry(deadline, Backoff(100, 1_000), "list offsets")     # doctest: +SKIP
    >>> while True:
    ...     try:
    ...         return attempt()
    ...     except KafkaError as error:
    ...         retry.after(error)
    """

    deadline: Deadline
    backoff: Backoff
    what: str
    on_retry: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.failures = 0
        self._started_at_s = time.monotonic()
        self._warned = False
        self._last_error: errors.KafkaError | None = None

    def after(self, error: errors.KafkaError, at_least_ms: float = 0.0) -> None:
        """Wait before the next attempt, for the backoff or `at_least_ms`; or raise.

        Raises `error` itself if it is not retriable, or if it says that a part of this operation
        has used up its own retries; KafkaTimeoutError (caused by it) if the
        deadline leaves no time for another attempt.
        """
        if not error.retriable or has_given_up(error):
            raise error
        self.failures += 1
        if self.deadline.expired and isinstance(
            error, errors.KafkaTimeoutError | errors.KafkaConnectionError
        ):
            # There was no time for this attempt: the error before it is more useful.
            error = self._last_error or error
        elif not isinstance(error, errors.KafkaTimeoutError):
            self._last_error = error
        wait_s = max(self.backoff.next_ms(), at_least_ms) / 1000.0
        if self.deadline.remaining_s() <= wait_s:
            raise errors.KafkaTimeoutError(
                f"{self.what}: gave up after {self.deadline.text} and "
                f"{errors.counted(self.failures, 'failed attempt')}; the last failure: {error}"
            ) from error
        self.on_retry()
        log.info("%s: attempt %d failed, trying again: %s", self.what, self.failures, error)
        if not self._warned and time.monotonic() + wait_s - self._started_at_s > 4.0:
            # A person has noticed the wait by now.
            self._warned = True
            log.warning(
                "%s: still trying, the deadline is %s: %s", self.what, self.deadline.text, error
            )
        self.deadline.pause(wait_s * 1000)
