"""The SASL mechanisms PLAIN, SCRAM, OAUTHBEARER and GSSAPI, as conversations with a server; when a
connection authenticates and re-authenticates (KIP-43, KIP-152, KIP-368).

References are resolved for each connection, so a changed password or file is used from the next
connection on. TLS contexts and secrets are never pickled.

A conversation is a generator: it yields bytes to send (hidden, in `SecretBytes`), receives the
server's response, and returns once the mechanism has succeeded. It uses no socket.

    message = next(conversation)
    while True:
        response = ...  # SaslAuthenticate with `message.reveal()`
        try:
            message = conversation.send(response)
        except StopIteration:
            break

No variable has a secret in the clear, since an error's frames may be shown with their variables.
Errors are AuthenticationError.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import os
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from sparkkafka.client.auth.tls import context_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.java import jvm_property
from sparkkafka.config.security.options import explained_prefix, secure_settings
from sparkkafka.config.security.settings import KerberosSettings, SaslChoice, TlsSettings
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaConnectionError,
    KafkaTimeoutError,
    OptionError,
    UnsupportedVersionError,
    needs_extra,
    printable,
)
from sparkkafka.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from sparkkafka.secret import NO_SECRET, Secret, SecretBytes

# Yields the messages to send; gets the server's response to each.
Conversation = Generator[SecretBytes, bytes, None]

SCRAM_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS = 4096
"""RFC 7677, section 4; org.apache.kafka.common.security.scram.internals.ScramMechanism."""

MAX_ITERATIONS = 1_000_000
"""Half a second of work. Kafka's brokers store 16,384 at most; a billion iterations would block the
client for minutes."""


def plain_conversation(username: str, password: Secret) -> Conversation:
    """Yield the one message of PLAIN (RFC 4616): user and password in the clear, so use it only
    with TLS."""
    for what, text in (("user name", Secret(username)), ("password", password)):
        if not text:
            raise AuthenticationError(f"SASL PLAIN needs a {what}")
        if "\0" in text.reveal():
            raise AuthenticationError(f"SASL PLAIN: the {what} holds a NUL character")
        _check_utf8("SASL PLAIN", what, text)
    yield SecretBytes(f"\0{username}\0{password.reveal()}".encode())


def scram_conversation(
    mechanism: str,
    username: str,
    password: Secret,
    *,
    token_auth: bool = False,
    nonce: str | None = None,
) -> Conversation:
    """Yield the client's two messages of SCRAM-SHA-256 or -512 (RFC 5802, RFC 7677), and get the
    server's, as Kafka has it: without SASLprep, and without channel binding. `token_auth`: the user
    is a delegation token (KIP-48). `nonce` is given in tests."""
    _check_utf8(mechanism, "user name", Secret(username))
    _check_utf8(mechanism, "password", password)
    nonce = nonce or secrets.token_urlsafe(24)
    user = username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if token_auth else ""
    client_first = f"n={user},r={nonce}{extension}"

    server_first = yield SecretBytes(f"n,,{client_first}".encode())
    attributes = _parse_attributes(mechanism, server_first)
    for name in "rsi":  # nonce, salt, iterations
        if name not in attributes:
            raise AuthenticationError(f"{mechanism}: the server's first message has no {name}=")
    if not attributes["r"].startswith(nonce) or attributes["r"] == nonce:
        raise AuthenticationError(f"{mechanism}: the server does not answer to our nonce")
    salt = _decode_base64(mechanism, attributes["s"])
    iterations = _checked_iterations(mechanism, attributes["i"])

    client_final = f"c=biws,r={attributes['r']}"  # biws: "n,,", the start of the first message
    signed = b",".join([client_first.encode(), bytes(server_first), client_final.encode()])
    proof, expected = _client_and_server_proof(mechanism, password, salt, iterations, signed)

    server_final = yield SecretBytes(f"{client_final},p={proof.reveal().decode()}".encode())
    attributes = _parse_attributes(mechanism, server_final)  # e: an error, or v: its signature
    if "e" in attributes:
        reason = printable(attributes["e"][:200])
        raise AuthenticationError(f"{mechanism}: the server refuses: {reason}")
    if not hmac.compare_digest(
        _decode_base64(mechanism, attributes.get("v", "")), expected.reveal()
    ):
        raise AuthenticationError(
            f"{mechanism}: the server does not know the password: it is not who it claims to be"
        )


def _client_and_server_proof(
    mechanism: str, password: Secret, salt: bytes, iterations: int, signed: bytes
) -> tuple[SecretBytes, SecretBytes]:
    """Return the client's proof in base64, and the signature that the server must send.

    The keys are in no other variable.
    """
    hash_name = SCRAM_HASHES[mechanism]
    salted = salted_password(mechanism, password, salt, iterations)
    client_key = hmac.digest(salted.reveal(), b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_key = hmac.digest(salted.reveal(), b"Server Key", hash_name)
    expected = hmac.digest(server_key, signed, hash_name)
    return SecretBytes(base64.b64encode(proof)), SecretBytes(expected)


def salted_password(mechanism: str, password: Secret, salt: bytes, iterations: int) -> SecretBytes:
    """Return the salted password: Hi() of RFC 5802. It must be protected like the password. Raises
    UnicodeEncodeError if UTF-8 cannot encode the password."""
    return SecretBytes(
        hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.reveal().encode(), salt, iterations)
    )


def oauthbearer_conversation(
    token: Secret, extensions: Mapping[str, str] | None = None
) -> Conversation:
    """Yield the message of OAUTHBEARER (RFC 7628) with the token and SASL extensions (KIP-342), and
    after a refusal, which the server sends, one more."""
    if not re.fullmatch("[A-Za-z0-9._~+/-]+=*", token.reveal()):  # b64token of RFC 6750
        raise AuthenticationError("OAUTHBEARER: the token is empty or has characters of no token")
    pairs = []
    for name, value in (extensions or {}).items():
        if name == "auth" or not re.fullmatch("[A-Za-z]+", name):
            raise AuthenticationError(f"OAUTHBEARER: {name!r} is not a name of an extension")
        if not re.fullmatch("[\\x21-\\x7E \\t\\r\\n]+", value):
            raise AuthenticationError(f"OAUTHBEARER: the value of extension {name} is not allowed")
        pairs.append(f"{name}={value}")

    challenge = yield SecretBytes(
        "\x01".join(["n,,", f"auth=Bearer {token.reveal()}", *pairs, "", ""]).encode()
    )
    if challenge:
        # RFC 7628, section 3.2.3: a dummy response lets the server end the conversation.
        yield SecretBytes(b"\x01")
        reason = printable(bytes(challenge[:300]).decode("utf-8", "replace"))
        raise AuthenticationError(f"OAUTHBEARER: the server refuses the token: {reason}")


def _check_utf8(mechanism: str, what: str, text: Secret) -> None:
    """Raise AuthenticationError if the text cannot be encoded as UTF-8: an environment variable may
    contain lone surrogates."""
    try:
        text.reveal().encode()
    except UnicodeEncodeError:  # the error quotes the text
        raise AuthenticationError(
            f"{mechanism}: the {what} has a character that UTF-8 cannot encode"
        ) from None


def _parse_attributes(mechanism: str, message: bytes) -> dict[str, str]:
    """Parse `a=b,c=d` of a SCRAM message. If a name occurs twice the first value counts. Raises
    AuthenticationError for other text."""
    try:
        text = bytes(message).decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    attributes: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise AuthenticationError(f"{mechanism}: the server's message is not one of SCRAM")
        attributes.setdefault(name, value)
    if "m" in attributes:  # RFC 5802, 5.1: what a client must know, or else refuse
        extension = printable(attributes["m"][:100])
        raise AuthenticationError(f"{mechanism}: the server requires an extension: {extension}")
    return attributes


def _decode_base64(mechanism: str, text: str) -> bytes:
    """Decode a value of a SCRAM message. Raises AuthenticationError if empty or not base64."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if not value:
        raise AuthenticationError(f"{mechanism}: the server's message is not one of SCRAM")
    return value


def _checked_iterations(mechanism: str, text: str) -> int:
    """Return the number of iterations that the server requires. Raises AuthenticationError if it is
    not within our limits."""
    iterations = int(text) if re.fullmatch("[0-9]{1,10}", text) else 0
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise AuthenticationError(
            f"{mechanism}: the server requires {printable(text[:20])} iterations; allowed are "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return iterations


# --- GSSAPI --------------------------------------------------------------------------------------

_T = TypeVar("_T")


def kerberos_conversation(
    settings: KerberosSettings, host: str, deadline: Deadline
) -> Conversation:
    """Yield the messages that authenticate with Kerberos (GSSAPI, RFC 4752) to the broker on
    `host`, which is a part of the broker's Kerberos name; get the broker's.

    The package gssapi uses the system's Kerberos library, which finds the KDC with krb5.conf, and
    gets and caches tickets. That may take more than 30 seconds, so it runs in a thread, for which
    the caller waits until the deadline. Raises OptionError without the package, AuthenticationError
    without a ticket, and KafkaConnectionError or KafkaTimeoutError if no KDC answers.
    """
    gssapi = _import_gssapi()
    context = None
    try:
        context, token = _run_within(deadline, lambda: _start_context(gssapi, settings, host))
        while True:
            response = yield SecretBytes(token or b"")
            if context.complete:
                break
            token = context.step(response)
        offer = context.unwrap(response).message  # RFC 4752, 3.1: security layers, maximum size
        no_layer = 1  # the security layer that leaves Kafka's messages as they are
        if len(offer) != 4 or not offer[0] & no_layer:
            raise AuthenticationError(
                "GSSAPI: the broker requires a security layer (auth-int or auth-conf), which "
                "Kafka's clients do not have: set sasl.qop to auth there"
            )
        yield SecretBytes(context.wrap(bytes((no_layer, 0, 0, 0)), encrypt=False).message)
    except gssapi.exceptions.GSSError as error:
        raise _gssapi_error(error, settings, host) from None


def _import_gssapi() -> Any:
    """Import the package gssapi, which loads the system's Kerberos library. Raises OptionError."""
    needs = "sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library"
    note = ", on the driver and each executor (on Debian first apt-get install libkrb5-dev gcc)"
    conf = jvm_property("java.security.krb5.conf").reveal()
    if conf:  # the library reads the variable once, when it is loaded
        os.environ.setdefault("KRB5_CONFIG", conf)
    with needs_extra(needs, "kerberos", error=OptionError, note=note):
        return importlib.import_module("gssapi")


def _start_context(gssapi: Any, settings: KerberosSettings, host: str) -> tuple[Any, bytes | None]:
    """Make the security context, and return it and its first message. Requests tickets from the
    KDC if needed."""
    names = gssapi.NameType
    context = gssapi.SecurityContext(
        name=gssapi.Name(f"{settings.service_name}@{host}", names.hostbased_service),
        creds=_kerberos_credentials(gssapi, settings),
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
    )
    return context, context.step()


def _kerberos_credentials(gssapi: Any, settings: KerberosSettings) -> Any:
    """Return the credentials: from the ticket cache if that is preferred or there is no keytab, and
    else, or if the cache has no valid ticket, from the keytab.

    Tickets from a keytab are stored in memory, and the library renews them.
    """
    name = None
    if settings.principal:
        name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
    cached = {"ccache": f"FILE:{settings.ticket_cache}"} if settings.ticket_cache else None
    if settings.prefer_cache or not settings.keytab:
        try:
            credentials = gssapi.Credentials(name=name, usage="initiate", store=cached)
            if credentials.lifetime or not settings.keytab:
                return credentials
        except gssapi.exceptions.GSSError:
            if not settings.keytab:
                raise
    if not os.access(settings.keytab, os.R_OK):
        raise AuthenticationError(
            f"GSSAPI: the keytab {settings.keytab} cannot be read on this machine"
        )
    # Each principal and keytab has a cache of its own.
    name_hash = hashlib.sha256(f"{settings.principal}\0{settings.keytab}".encode()).hexdigest()[:16]
    store = {"client_keytab": f"FILE:{settings.keytab}", "ccache": f"MEMORY:sparkkafka-{name_hash}"}
    return gssapi.Credentials(name=name, usage="initiate", store=store)


def _run_within(deadline: Deadline, action: Callable[[], _T]) -> _T:
    """Run `action` in a thread, and return its result or raise its error. Raises KafkaTimeoutError
    at the deadline: the thread is abandoned."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        """Run the action, and keep its result or its error."""
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sparkkafka-kerberos", daemon=True)
    thread.start()
    thread.join(max(deadline.remaining_s(), 0.0))
    if errors:
        raise errors[0]
    if not results:
        raise KafkaTimeoutError(
            f"GSSAPI: no response from the KDC within {deadline.text}: krb5.conf has its address"
        )
    return results[0]


def _gssapi_error(error: Any, settings: KerberosSettings, host: str) -> Exception:
    """Return the KafkaError for an error of the Kerberos library: KafkaConnectionError if no KDC
    answers, else AuthenticationError."""
    reason = printable(" ".join(str(error).split())[:500])
    who = f" of {settings.principal}" if settings.principal else ""
    source = f"the keytab {settings.keytab}" if settings.keytab else "the ticket cache (kinit)"
    text = f"GSSAPI: the ticket{who}, from {source}, for {settings.service_name}/{host}: {reason}"
    # KRB5_KDC_UNREACH, the library's minor code without and with a sign.
    return (
        KafkaConnectionError if error.min_code in (2529639068, -1765328228) else AuthenticationError
    )(text)


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
    with explained_prefix(options.prefix):
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
        """Return a token, and remember it for `forget_token`."""
        used_tokens.append(source(deadline))
        return used_tokens[-1]

    def forget_token() -> None:
        """Let the next connection use another token, because the broker may have revoked this
        one."""
        if isinstance(source, TokenSource) and used_tokens:
            source.forget(used_tokens[-1])

    extensions = dict(choice.oauth.extensions)
    return replace(settings, token=token, forget_token=forget_token, extensions=extensions)


class Caller(Protocol):
    """What `authenticate` needs of a `Connection`. Its `str` is host and port."""

    def call(self, request: Any, deadline: Deadline, *, version: int | None = None) -> Any: ...


class SessionLifetime(NamedTuple):
    """When to authenticate again (KIP-368): from `reauthenticate_at_s` on if no response is
    expected, from `forced_reauthenticate_at_s` on in any case (both monotonic)."""

    reauthenticate_at_s: float
    forced_reauthenticate_at_s: float

    def must_reauthenticate(self, *, in_flight: bool) -> bool:
        """Return whether to re-authenticate before the next request."""
        due_at_s = self.forced_reauthenticate_at_s if in_flight else self.reauthenticate_at_s
        return time.monotonic() >= due_at_s


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
        raise AuthenticationError(f"the SASL mechanism {self.mechanism} is not supported")

    @property
    def text(self) -> str:
        """The mechanism and the user, for messages."""
        user = f" as user {self.username}" if self.username else ""
        return f"{self.mechanism}{user}"


def authenticate(
    connection: Caller, settings: SaslSettings, deadline: Deadline, prefix: str
) -> SessionLifetime | None:
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
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = printable(", ".join(response.mechanisms)[:300]) or "none"
            raise AuthenticationError(
                f"{connection}: this listener has no SASL mechanism {settings.mechanism}, but "
                f"{offered}; compare {prefix}sasl.mechanism with the broker's "
                "sasl.enabled.mechanisms"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationError(
                f"{connection}: this listener does not use SASL: compare {prefix}security.protocol "
                "with the listener's (SSL or PLAINTEXT)"
            )
        if response.error_code:
            raise BrokerError(response.error_code, f"SaslHandshake @ {connection}", prefix=prefix)
        conversation = settings.begin_conversation(deadline)  # may fetch a token, which takes time
        # The broker's session begins before its response is here.
        began_at_s = time.monotonic()
        lifetime_ms = _exchange_messages(connection, settings, conversation, deadline)
    except AuthenticationError:
        settings.forget_token()
        raise
    except UnsupportedVersionError as error:
        raise AuthenticationError(
            f"{connection}: this listener does not support SASL ({error})"
        ) from error
    except KafkaConnectionError as error:
        raise KafkaConnectionError(
            f"{error}, during authentication with {settings.text}: some brokers also close the "
            "connection for wrong credentials, without a reason"
        ) from error
    if lifetime_ms <= 0:
        return None
    lifetime_s = lifetime_ms / 1000
    # An idle connection re-authenticates after 85 % of the lifetime, one whose responses must be
    # read first after 92 %. Java does it between 85 and 95 %. Brokers refuse that for a session
    # that is younger than a second (SaslServerAuthenticator).
    return SessionLifetime(
        began_at_s + max(lifetime_s * 0.85, 1.1), began_at_s + max(lifetime_s * 0.92, 1.1)
    )


def _redact(broker_message: str, sent: SecretBytes, username: str) -> str:
    """Return the broker's message without the password or token that it may repeat. `sent` is the
    message of the mechanism that the broker has refused."""
    for part in re.split("[\0\1]|auth=Bearer ", sent.reveal().decode(errors="replace")):
        if len(part) >= 4 and part != username:  # shorter text may be there by chance
            broker_message = broker_message.replace(part, "[hidden]")
    return printable(broker_message[:300]) or "the broker does not say why"


def _exchange_messages(
    connection: Caller, settings: SaslSettings, conversation: Conversation, deadline: Deadline
) -> int:
    """Send the messages of the mechanism until the broker has accepted the user. Return the
    lifetime of the session in ms, 0 if it has no end."""
    message, lifetime_ms = next(conversation), 0
    max_rounds = 8  # SCRAM, the longest mechanism, takes two; a server must not continue forever
    for _ in range(max_rounds):
        # Revealed only here: the request's repr hides it.
        response = connection.call(SaslAuthenticateRequest(auth_bytes=message.reveal()), deadline)
        if response.error_code:
            reason = _redact(response.error_message or "", message, settings.username)
            if response.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise BrokerError(response.error_code, f"SaslAuthenticate @ {connection}", reason)
            raise AuthenticationError(
                f"{connection}: authentication with {settings.text} failed: {reason}"
            )
        lifetime_ms = response.session_lifetime_ms
        try:
            message = conversation.send(bytes(response.auth_bytes))
        except StopIteration:
            return int(lifetime_ms)
        except AuthenticationError as error:
            raise AuthenticationError(f"{connection}: {error}") from error
    raise AuthenticationError(
        f"{connection}: authentication with {settings.text} did not end after {max_rounds} rounds"
    )
