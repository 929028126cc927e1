"""What a connection is secured with, from its options, and SASL on it (KIP-43, KIP-152, KIP-368).

References are looked up for each connection anew, so that a password or a file that changes counts
from the next connection on. TLS contexts and secrets are never pickled.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from sparkkafka.client.auth.sasl import (
    SCRAM_HASHES,
    Conversation,
    oauthbearer,
    plain,
    printable,
    scram,
)
from sparkkafka.client.auth.tls import context_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.options import secure_settings
from sparkkafka.config.security.settings import SaslChoice, TlsSettings
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparkkafka.secret import NO_SECRET, Secret, SecretBytes

HANDSHAKE_VERSION = 1
"""With version 0 the tokens would travel bare, without error messages."""

MAX_ROUNDS = 8
"""SCRAM, the longest, takes two; a server could continue forever."""

MAX_WORDS = 300
"""Characters of what a broker says of a failure."""
MIN_HIDDEN = 4
"""Shorter words of ours may stand in the broker's by chance."""

RENEW_SHARE = 0.85
"""Of a session's lifetime, after which it is renewed when nothing is in flight; Java does it
between 85 and 95 %."""

LATEST_SHARE = 0.92
"""Of its lifetime, after which answers are waited for so that it can be renewed."""

MIN_SESSION_S = 1.1
"""Brokers refuse to renew a session that is younger than a second (SaslServerAuthenticator)."""


class ConnectionSecurity(NamedTuple):
    """None: without. `tls_settings` are what `context` was made of."""

    context: ssl.SSLContext | None = None
    tls_settings: TlsSettings | None = None
    sasl: SaslSettings | None = None


NOT_SECURED: Final = ConnectionSecurity()


def connection_security(options: ClientOptions, host: str, port: int) -> ConnectionSecurity:
    """For one connection to this broker. Raises OptionError for what is missing here."""
    if options.security.protocol == "PLAINTEXT":
        return NOT_SECURED
    servers = ((host, port), *options.bootstrap_servers)
    tls, sasl = secure_settings(options.security, servers)
    return ConnectionSecurity(
        None if tls is None else context_of(tls),
        tls,
        None if sasl is None else _sasl_settings(sasl, host),
    )


def _sasl_settings(choice: SaslChoice, host: str) -> SaslSettings:
    settings = SaslSettings(
        choice.mechanism, choice.username, choice.password, token_auth=choice.token_auth
    )
    if choice.kerberos is not None:
        from sparkkafka.client.auth.kerberos import kerberos

        return replace(settings, ticket=partial(kerberos, choice.kerberos, host))
    if choice.oauth is None:
        return settings
    # Here, since few need it, and it takes a while to import.
    from sparkkafka.client.auth.oauth import TokenSource, token_source

    source = token_source(choice.oauth)
    used: list[Secret] = []

    def token(deadline: Deadline) -> Secret:
        used.append(source(deadline))
        return used[-1]

    def forget() -> None:
        """The next connection is to have another token: this one may have been called back."""
        if isinstance(source, TokenSource) and used:
            source.forget(used[-1])

    extensions = dict(choice.oauth.extensions)
    return replace(settings, token=token, forget=forget, extensions=extensions)


class Caller(Protocol):
    """A `Connection`: one request, one answer. `str` of it is host and port."""

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any: ...


class Session(NamedTuple):
    """Monotonic seconds: renew it from `renew_s` on, and whatever it costs from `latest_s` on."""

    renew_s: float
    latest_s: float


@dataclass(frozen=True)
class SaslSettings:
    """Who to be. `token` gives an OAUTHBEARER token for each conversation; `forget` is called when
    the broker refused it. `ticket` is the conversation of GSSAPI."""

    mechanism: str
    username: str = ""
    password: Secret = NO_SECRET
    token_auth: bool = False
    token: Callable[[Deadline], Secret] | None = None
    forget: Callable[[], None] = lambda: None
    ticket: Callable[[Deadline], Conversation] | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def conversation(self, deadline: Deadline) -> Conversation:
        """A new one. Raises AuthenticationError if there is no token."""
        if self.mechanism == "PLAIN":
            return plain(self.username, self.password)
        if self.mechanism in SCRAM_HASHES:
            return scram(self.mechanism, self.username, self.password, token_auth=self.token_auth)
        if self.mechanism == "OAUTHBEARER" and self.token is not None:
            return oauthbearer(self.token(deadline), self.extensions)
        if self.ticket is not None:
            return self.ticket(deadline)
        raise AuthenticationError(f"there is no SASL mechanism {self.mechanism} here")

    @property
    def who(self) -> str:
        user = f" as user {self.username}" if self.username else ""
        return f"{self.mechanism}{user}"


def authenticate(
    connection: Caller, settings: SaslSettings, deadline: Deadline, prefix: str
) -> Session | None:
    """Be authenticated on this connection; nothing may be in flight. `prefix` is that of the user's
    settings, for messages.

    Returns the session, None for one without end. Raises AuthenticationError
    if the broker refuses, KafkaConnectionError or KafkaTimeoutError if there is no answer.
    """
    try:
        answer = connection.call(
            SaslHandshakeRequest(mechanism=settings.mechanism), deadline, version=HANDSHAKE_VERSION
        )
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = printable(", ".join(answer.mechanisms)) or "none"
            raise AuthenticationError(
                f"{connection}: this listener has no SASL mechanism {settings.mechanism}, but "
                f"{offered}; compare {prefix}sasl.mechanism with the broker's "
                "sasl.enabled.mechanisms"
            )
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"{connection}: this listener wants no SASL: compare {prefix}security.protocol "
                "with the listener's (SSL or PLAINTEXT)"
            )
        if answer.error_code:
            raise BrokerError(answer.error_code, f"SaslHandshake @ {connection}", prefix=prefix)
        lifetime_ms = _converse(connection, settings, deadline)
    except AuthenticationError:
        settings.forget()
        raise
    except UnsupportedVersionError as error:
        raise AuthenticationError(f"{connection}: this listener knows no SASL ({error})") from error
    except KafkaConnectionError as error:
        raise KafkaConnectionError(
            f"{error}, in the middle of authentication with {settings.who}: brokers that do not "
            "say why close the connection for wrong credentials too"
        ) from error
    if lifetime_ms <= 0:
        return None
    now_s, lifetime_s = time.monotonic(), lifetime_ms / 1000
    return Session(
        now_s + max(lifetime_s * RENEW_SHARE, MIN_SESSION_S),
        now_s + max(lifetime_s * LATEST_SHARE, MIN_SESSION_S),
    )


def _broker_words(text: str, said: SecretBytes, username: str) -> str:
    """What the broker says of the failure, without the password or token that it may repeat."""
    for part in re.split("[\0\1]|auth=Bearer ", said.reveal().decode(errors="replace")):
        if len(part) >= MIN_HIDDEN and part != username:
            text = text.replace(part, "[hidden]")
    words = printable(text)
    if len(words) > MAX_WORDS:
        words = f"{words[:MAX_WORDS]}…"
    return words or "the broker does not say why"


def _converse(connection: Caller, settings: SaslSettings, deadline: Deadline) -> int:
    conversation = settings.conversation(deadline)
    said, lifetime_ms = next(conversation), 0
    for _ in range(MAX_ROUNDS):
        # Revealed here alone: the message's repr hides it, and `said` may be seen.
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=said.reveal()), deadline)
        if answer.error_code:
            words = _broker_words(answer.error_message or "", said, settings.username)
            if answer.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise BrokerError(answer.error_code, f"SaslAuthenticate @ {connection}", words)
            raise AuthenticationError(
                f"{connection}: authentication with {settings.who} failed: {words}"
            )
        lifetime_ms = answer.session_lifetime_ms
        try:
            said = conversation.send(bytes(answer.auth_bytes))
        except StopIteration:
            return int(lifetime_ms)
        except AuthenticationError as error:
            raise AuthenticationError(f"{connection}: {error}") from error
    raise AuthenticationError(
        f"{connection}: authentication with {settings.who} did not end after {MAX_ROUNDS} rounds"
    )
