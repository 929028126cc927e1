"""TLS settings and SASL authentication of one connection, and when it re-authenticates (KIP-43,
KIP-152, KIP-368).

References are resolved for each connection, so a changed password or file is used from the next
connection on. TLS contexts and secrets are never pickled.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from sparkkafka import errors
from sparkkafka.client.auth.sasl import (
    SCRAM_HASHES,
    Conversation,
    kerberos_conversation,
    oauthbearer_conversation,
    plain_conversation,
    printable,
    scram_conversation,
)
from sparkkafka.client.auth.tls import context_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.options import secure_settings
from sparkkafka.config.security.settings import SaslChoice, TlsSettings
from sparkkafka.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparkkafka.secret import NO_SECRET, Secret, SecretBytes

MAX_ROUNDS = 8
"""The longest mechanism, SCRAM, takes two. A server must not continue forever."""


MIN_SESSION_S = 1.1
"""Brokers refuse to re-authenticate a session that is younger than a second
(SaslServerAuthenticator)."""


class ConnectionSecurity(NamedTuple):
    """TLS and SASL of a connection, None if it does not use them. `context` is made from
    `tls_settings`."""

    context: ssl.SSLContext | None = None
    tls_settings: TlsSettings | None = None
    sasl: SaslSettings | None = None


def connection_security(options: ClientOptions, host: str, port: int) -> ConnectionSecurity:
    """Return TLS and SASL for a connection to this broker. Raises OptionError, also for a file or
    reference that this machine lacks."""
    if options.security.protocol == "PLAINTEXT":
        return ConnectionSecurity()
    servers = ((host, port), *options.bootstrap_servers)
    tls, sasl = secure_settings(options.security, servers)
    return ConnectionSecurity(
        None if tls is None else context_of(tls),
        tls,
        None if sasl is None else _sasl_settings(sasl, host),
    )


def _sasl_settings(choice: SaslChoice, host: str) -> SaslSettings:
    """Return the settings of SASL for a connection to this host."""
    settings = SaslSettings(
        choice.mechanism, choice.username, choice.password, token_auth=choice.token_auth
    )
    if choice.kerberos is not None:
        return replace(
            settings, begin_kerberos=partial(kerberos_conversation, choice.kerberos, host)
        )
    if choice.oauth is None:
        return settings
    # Imported here: few users need it, and the import takes a while.
    from sparkkafka.client.auth.oauth import TokenSource, token_source

    source = token_source(choice.oauth)
    used_tokens: list[Secret] = []

    def token(deadline: Deadline) -> Secret:
        used_tokens.append(source(deadline))
        return used_tokens[-1]

    def forget_token() -> None:
        """Make the next connection use another token: this one may have been revoked."""
        if isinstance(source, TokenSource) and used_tokens:
            source.forget(used_tokens[-1])

    extensions = dict(choice.oauth.extensions)
    return replace(settings, token=token, forget_token=forget_token, extensions=extensions)


class Caller(Protocol):
    """What `authenticate` needs of a `Connection`. Its `str` is host and port."""

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any: ...


class Session(NamedTuple):
    """When to re-authenticate (KIP-368), in monotonic seconds: if nothing is in flight, and in any
    case."""

    reauthenticate_s: float
    forced_reauthenticate_s: float

    def must_reauthenticate(self, *, in_flight: bool) -> bool:
        """Return whether to re-authenticate before the next request."""
        due_s = self.forced_reauthenticate_s if in_flight else self.reauthenticate_s
        return time.monotonic() >= due_s


@dataclass(frozen=True)
class SaslSettings:
    """The mechanism and identity. `token` returns an OAUTHBEARER token for each conversation;
    `forget_token` is called if the broker refuses it. `begin_kerberos` begins GSSAPI's."""

    mechanism: str
    username: str = ""
    password: Secret = NO_SECRET
    token_auth: bool = False
    token: Callable[[Deadline], Secret] | None = None
    forget_token: Callable[[], None] = lambda: None
    begin_kerberos: Callable[[Deadline], Conversation] | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def begin_conversation(self, deadline: Deadline) -> Conversation:
        """Begin a new conversation. Raises AuthenticationError if there is no token."""
        if self.mechanism == "PLAIN":
            return plain_conversation(self.username, self.password)
        if self.mechanism in SCRAM_HASHES:
            return scram_conversation(
                self.mechanism, self.username, self.password, token_auth=self.token_auth
            )
        if self.mechanism == "OAUTHBEARER" and self.token is not None:
            return oauthbearer_conversation(self.token(deadline), self.extensions)
        if self.begin_kerberos is not None:
            return self.begin_kerberos(deadline)
        raise errors.AuthenticationError(f"the SASL mechanism {self.mechanism} is not supported")

    @property
    def text(self) -> str:
        """Mechanism and user, for messages."""
        user = f" as user {self.username}" if self.username else ""
        return f"{self.mechanism}{user}"


def authenticate(
    connection: Caller, settings: SaslSettings, deadline: Deadline, prefix: str
) -> Session | None:
    """Authenticate this connection, on which nothing may be in flight.

    `prefix` is that of the user's settings, for messages. Returns the session if it has an end.
    Raises AuthenticationError if the broker refuses, KafkaConnectionError or KafkaTimeoutError
    if it does not answer.
    """
    try:
        # With version 0 tokens are sent outside of Kafka's requests, without error messages.
        response = connection.call(
            SaslHandshakeRequest(mechanism=settings.mechanism), deadline, version=1
        )
        if response.error_code == errors.ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = printable(", ".join(response.mechanisms)) or "none"
            raise errors.AuthenticationError(
                f"{connection}: this listener has no SASL mechanism {settings.mechanism}, but "
                f"{offered}; compare {prefix}sasl.mechanism with the broker's "
                "sasl.enabled.mechanisms"
            )
        if response.error_code == errors.ErrorCode.ILLEGAL_SASL_STATE:
            raise errors.AuthenticationError(
                f"{connection}: this listener does not use SASL: compare {prefix}security.protocol "
                "with the listener's (SSL or PLAINTEXT)"
            )
        if response.error_code:
            raise errors.BrokerError(
                response.error_code, f"SaslHandshake @ {connection}", prefix=prefix
            )
        lifetime_ms = _exchange_messages(connection, settings, deadline)
    except errors.AuthenticationError:
        settings.forget_token()
        raise
    except errors.UnsupportedVersionError as error:
        raise errors.AuthenticationError(
            f"{connection}: this listener does not support SASL ({error})"
        ) from error
    except errors.KafkaConnectionError as error:
        raise errors.KafkaConnectionError(
            f"{error}, during authentication with {settings.text}: some brokers also close the "
            "connection for wrong credentials, without a reason"
        ) from error
    if lifetime_ms <= 0:
        return None
    now_s, lifetime_s = time.monotonic(), lifetime_ms / 1000
    # The share of a session's lifetime after which an idle connection re-authenticates. Java does
    # it between 85 and 95 %.
    # The share after which a connection re-authenticates even if responses must be read first.
    return Session(
        now_s + max(lifetime_s * 0.85, MIN_SESSION_S),
        now_s + max(lifetime_s * 0.92, MIN_SESSION_S),
    )


def _redact(broker_message: str, sent: SecretBytes, username: str) -> str:
    """Return the broker's message without the password or token that it may repeat. `sent` is the
    message of the mechanism that the broker has refused."""
    for part in re.split("[\0\1]|auth=Bearer ", sent.reveal().decode(errors="replace")):
        if len(part) >= 4 and part != username:  # shorter text may be there by chance
            broker_message = broker_message.replace(part, "[hidden]")
    return printable(broker_message) or "the broker does not say why"


def _exchange_messages(connection: Caller, settings: SaslSettings, deadline: Deadline) -> int:
    """Send the mechanism's messages until it has succeeded. Returns the session's lifetime in ms, 0
    without an end."""
    conversation = settings.begin_conversation(deadline)
    message, lifetime_ms = next(conversation), 0
    for _ in range(MAX_ROUNDS):
        # Revealed only here: the request's repr hides it.
        response = connection.call(SaslAuthenticateRequest(auth_bytes=message.reveal()), deadline)
        if response.error_code:
            reason = _redact(response.error_message or "", message, settings.username)
            if response.error_code != errors.ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise errors.BrokerError(
                    response.error_code, f"SaslAuthenticate @ {connection}", reason
                )
            raise errors.AuthenticationError(
                f"{connection}: authentication with {settings.text} failed: {reason}"
            )
        lifetime_ms = response.session_lifetime_ms
        try:
            message = conversation.send(bytes(response.auth_bytes))
        except StopIteration:
            return int(lifetime_ms)
        except errors.AuthenticationError as error:
            raise errors.AuthenticationError(f"{connection}: {error}") from error
    raise errors.AuthenticationError(
        f"{connection}: authentication with {settings.text} did not end after {MAX_ROUNDS} rounds"
    )
