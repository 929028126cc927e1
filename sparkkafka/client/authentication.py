"""SASL on a connection: handshake, then the mechanism's conversation (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparkkafka.protocol.sasl import (
    SCRAM_HASHES,
    Conversation,
    oauthbearer,
    plain,
    scram,
)
from sparkkafka.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    from sparkkafka.client.connection import Connection

HANDSHAKE_VERSION = 1
"""With version 0 the tokens would travel bare, without error messages."""

MOST_ROUNDS = 8
"""SCRAM, the longest, takes two; a server could go on for ever."""

SESSION_SHARE = 0.85
"""Of a session's lifetime, after which it is renewed; Java does it between 85 and 95 %."""


@dataclass(frozen=True)
class SaslSettings:
    """Who to be. `token` gives a fresh OAUTHBEARER token for each conversation."""

    mechanism: str
    username: str = ""
    password: Secret = NO_SECRET
    token_auth: bool = False
    token: Callable[[Deadline], Secret] | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def conversation(self, deadline: Deadline) -> Conversation:
        """A new one. Raises AuthenticationError if no token can be had."""
        if self.mechanism == "PLAIN":
            return plain(self.username, self.password)
        if self.mechanism in SCRAM_HASHES:
            return scram(self.mechanism, self.username, self.password, token_auth=self.token_auth)
        if self.mechanism == "OAUTHBEARER" and self.token is not None:
            return oauthbearer(self.token(deadline), self.extensions)
        raise AuthenticationError(f"there is no SASL mechanism {self.mechanism} here")

    @property
    def who(self) -> str:
        user = f" as user {self.username}" if self.username else ""
        return f"{self.mechanism}{user}"


def authenticate(
    connection: Connection, settings: SaslSettings, deadline: Deadline
) -> float | None:
    """Be authenticated on this connection; nothing may be in flight.

    Returns the monotonic second at which to do it again, None for never. Raises AuthenticationError
    if the broker refuses, KafkaConnectionError or KafkaTimeoutError if there is no answer.
    """
    try:
        answer = connection.call(
            SaslHandshakeRequest(mechanism=settings.mechanism), deadline, version=HANDSHAKE_VERSION
        )
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationError(
                f"{connection}: this listener has no SASL mechanism {settings.mechanism}, but "
                f"{offered}; compare kafka.sasl.mechanism with the broker's "
                "sasl.enabled.mechanisms"
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"{connection}: this listener wants no SASL: compare kafka.security.protocol with "
                "the listener's (SSL or PLAINTEXT)"
            )
        if answer.error_code:
            raise BrokerError(answer.error_code, f"SaslHandshake @ {connection}")
        lifetime_ms = _converse(connection, settings, deadline)
    except UnsupportedVersionError as error:
        raise AuthenticationError(f"{connection}: this listener knows no SASL ({error})") from error
    except KafkaConnectionError as error:
        raise KafkaConnectionError(
            f"{error}, in the middle of authentication with {settings.who}: brokers that do not "
            "say why close the connection for wrong credentials too"
        ) from error
    if lifetime_ms <= 0:
        return None
    return time.monotonic() + lifetime_ms / 1000 * SESSION_SHARE


def _converse(connection: Connection, settings: SaslSettings, deadline: Deadline) -> int:
    conversation = settings.conversation(deadline)
    said, lifetime_ms = next(conversation), 0
    for _ in range(MOST_ROUNDS):
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=said), deadline)
        if answer.error_code:
            words = answer.error_message or "the broker does not say why"
            if answer.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise BrokerError(answer.error_code, f"SaslAuthenticate @ {connection}", words)
            raise AuthenticationError(
                f"{connection}: authentication with {settings.who} failed: {words[:300]}"
            )
        lifetime_ms = answer.session_lifetime_ms
        try:
            said = conversation.send(bytes(answer.auth_bytes))
        except StopIteration:
            return int(lifetime_ms)
        except AuthenticationError as error:
            raise AuthenticationError(f"{connection}: {error}") from error
    raise AuthenticationError(
        f"{connection}: authentication with {settings.who} did not end after {MOST_ROUNDS} rounds"
    )
