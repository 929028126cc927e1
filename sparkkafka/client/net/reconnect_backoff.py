"""How soon to connect again: to a broker that could not be reached (reconnect.backoff.ms), and to
all brokers after one has refused the password."""

from __future__ import annotations

import time
from typing import NamedTuple

from sparkkafka.client.deadline import Backoff
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import AuthenticationError, KafkaConnectionError

MIN_REFUSED_MS = 1_000
"""The shortest wait after a broker has refused a password."""


class _Wait(NamedTuple):
    """The monotonic time of the next attempt, and why the last one failed."""

    until_s: float
    reason: str
    backoff: Backoff


class ReconnectBackoff:
    """The waits of one client before it connects again. `check` raises the last failure meanwhile.

    The wait for a broker grows from reconnect.backoff.ms to reconnect.backoff.max.ms. A wrong
    password that is sent to each broker may lock the account, so its wait is for all brokers.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._initial_ms = options.reconnect_backoff_ms
        self._max_ms = options.reconnect_backoff_max_ms
        self._waits: dict[int, _Wait] = {}
        self._refused_until_s = 0.0
        self._refusal = ""

    def check(self, node_id: int) -> None:
        """Raise KafkaConnectionError if it is too soon to connect to this broker again."""
        wait = self._waits.get(node_id)
        if wait is not None and time.monotonic() < wait.until_s:
            raise KafkaConnectionError(wait.reason)

    def check_refusal(self) -> None:
        """Raise AuthenticationError if it is too soon after a broker has refused the password."""
        if time.monotonic() < self._refused_until_s:
            raise AuthenticationError(self._refusal)

    def on_failure(self, node_id: int, reason: str) -> None:
        known = self._waits.get(node_id)
        backoff = Backoff(self._initial_ms, self._max_ms) if known is None else known.backoff
        until_s = time.monotonic() + backoff.next_ms() / 1000
        self._waits[node_id] = _Wait(until_s, reason, backoff)

    def on_success(self, node_id: int) -> None:
        self._waits.pop(node_id, None)

    def on_refusal(self, reason: str) -> None:
        self._refused_until_s = time.monotonic() + max(self._max_ms, MIN_REFUSED_MS) / 1000
        self._refusal = reason

    def forget(self) -> None:
        """Forget the waits for single brokers: they may have other addresses now."""
        self._waits.clear()
