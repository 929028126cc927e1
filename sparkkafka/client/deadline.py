"""Deadlines, and the retry loop of everything but the sender (whose batches have their own clock).

Every wait in `client` ends at a `Deadline`, so the longest time that a call can take is the
deadline that its caller passed. One thing has no deadline: the operating system's look-up of a host
name.
"""

from __future__ import annotations

import logging
import random
import time

from sparkkafka.errors import KafkaError, KafkaTimeoutError

log = logging.getLogger(__name__)


SLOW_S = 4.0


class Deadline:
    """A point in monotonic time. Immutable; cheap to pass around."""

    __slots__ = ("_at_s", "total_ms")

    def __init__(self, total_ms: float) -> None:
        self.total_ms = total_ms
        self._at_s = time.monotonic() + total_ms / 1000.0

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at_s

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at_s - time.monotonic())

    def pause(self, wait_ms: float) -> None:
        """Sleep, at most to the deadline."""
        time.sleep(min(wait_ms / 1000.0, self.remaining_s()))

    def sooner(self, limit_ms: float) -> Deadline:
        """This deadline, or one `limit_ms` from now, whichever comes first."""
        remaining_ms = self.remaining_s() * 1000.0
        return self if remaining_ms <= limit_ms else Deadline(limit_ms)


class Backoff:
    """Exponential waits with jitter: `initial * 2**n`, at most `maximum`, each +-20 % (KIP-580)."""

    def __init__(self, initial_ms: float, maximum_ms: float) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = max(initial_ms, maximum_ms)
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_ms(self) -> float:
        """The wait before the next attempt; each call counts one more failure."""
        # 2**30 is far above any maximum: the cap keeps the power from growing without bound.
        wait_ms = min(self._initial_ms * 2.0 ** min(self._failures, 30), self._maximum_ms)
        self._failures += 1
        # Jitter spreads clients that failed together; it protects nothing secret.
        return wait_ms * random.uniform(0.8, 1.2)  # noqa: S311


class Retry:
    """One operation that may be tried again until its deadline.

    >>> retry = Retry(deadline, options.backoff(), "list offsets")     # doctest: +SKIP
    >>> while True:
    ...     try:
    ...         return attempt()
    ...     except KafkaError as error:
    ...         retry.after(error)
    """

    def __init__(self, deadline: Deadline, backoff: Backoff, what: str) -> None:
        self.deadline = deadline
        self._backoff = backoff
        self._what = what
        self.failures = 0
        self._started_s = time.monotonic()
        self._warned = False

    def after(self, error: KafkaError) -> None:
        """Wait before the next attempt, or raise.

        Raises `error` itself if it is not retriable, KafkaTimeoutError (caused by it) if the
        deadline leaves no time for another attempt.
        """
        if not error.retriable:
            raise error
        self.failures += 1
        wait_s = self._backoff.next_ms() / 1000.0
        if self.deadline.remaining_s() <= wait_s:
            raise KafkaTimeoutError(
                f"{self._what}: gave up after {self.deadline.total_ms / 1000:g} s and "
                f"{self.failures} failed attempts; the last failure: {error}"
            ) from error
        log.info("%s: attempt %d failed, trying again: %s", self._what, self.failures, error)
        if not self._warned and time.monotonic() - self._started_s > SLOW_S:
            # A person is waiting by now.
            self._warned = True
            log.warning(
                "%s: trying again, for %g s at most: %s",
                self._what,
                self.deadline.total_ms / 1000,
                error,
            )
        time.sleep(wait_s)
