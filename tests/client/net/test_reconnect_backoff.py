"""How soon a client connects again."""

from __future__ import annotations

import pytest

from sparkkafka.client.net import pool
from sparkkafka.client.net.pool import MIN_REFUSED_MS, ReconnectBackoff
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError
from tests.support.clock import Clock

JITTER = 1.2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.patch(monkeypatch, pool)
    return clock


@pytest.fixture
def backoff() -> ReconnectBackoff:
    waits = {"reconnect.backoff.ms": 10_000, "reconnect.backoff.max.ms": 40_000}
    return ReconnectBackoff(parse_admin_settings({"bootstrap.servers": "h:1"} | waits))


def test_the_wait_for_a_broker_grows_until_it_is_reached(
    backoff: ReconnectBackoff, clock: Clock
) -> None:
    for wait_s in (10, 20, 40, 40):
        backoff.on_failure(1, "refused")
        clock.ahead_s += wait_s / 2
        with pytest.raises(KafkaConnectionError, match="refused"):
            backoff.check(1)
        backoff.check(2)  # another broker need not wait
        clock.ahead_s += wait_s * JITTER
        backoff.check(1)
    backoff.on_success(1)
    backoff.on_failure(1, "refused")
    clock.ahead_s += 10 * JITTER
    backoff.check(1)
    backoff.on_failure(1, "refused")
    backoff.forget()
    backoff.check(1)


def test_after_a_refused_password_no_broker_is_tried(
    backoff: ReconnectBackoff, clock: Clock
) -> None:
    backoff.check_refusal()
    backoff.on_refusal("wrong password")
    with pytest.raises(AuthenticationError, match="wrong password"):
        backoff.check_refusal()
    clock.ahead_s += 41
    backoff.check_refusal()


def test_a_refusal_counts_for_a_second_at_least(clock: Clock) -> None:
    waits = {"reconnect.backoff.ms": 0, "reconnect.backoff.max.ms": 0}
    backoff = ReconnectBackoff(parse_admin_settings({"bootstrap.servers": "h:1"} | waits))
    backoff.on_refusal("wrong password")
    clock.ahead_s += MIN_REFUSED_MS / 2000
    with pytest.raises(AuthenticationError):
        backoff.check_refusal()
    clock.ahead_s += MIN_REFUSED_MS / 1000
    backoff.check_refusal()
