"""SASL mechanisms as conversations: what the client says, given what the server said.

A conversation is a generator: it yields bytes to send (hidden, in `SecretBytes`), is sent the
server's answer, and returns once the mechanism is satisfied. Nothing here touches a socket;
mechanisms' names are Kafka's.

    said = next(conversation)
    while True:
        answer = ...  # SaslAuthenticate with `said.reveal()`
        try:
            said = conversation.send(answer)
        except StopIteration:
            break

Secrets come in `Secret`, which hides them. No variable here holds one in the clear: an
error's frames may be shown with their variables. Errors raise AuthenticationError.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator, Mapping
from typing import Final

from sparkkafka.errors import AuthenticationError
from sparkkafka.secret import Secret, SecretBytes

Conversation = Generator[SecretBytes, bytes, None]

SCRAM_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS = 4096
"""RFC 7677, section 4; org.apache.kafka.common.security.scram.internals.ScramMechanism."""

MAX_ITERATIONS = 1_000_000
"""Half a second of work. Kafka's brokers store 16,384 at most; a server that asks for a billion
would stop the client for minutes."""

_NONCE_BYTES = 24
_EXTENSION_NAME = re.compile("[A-Za-z]+")
_EXTENSION_VALUE = re.compile("[\\x21-\\x7E \\t\\r\\n]+")
_TOKEN = re.compile("[A-Za-z0-9._~+/-]+=*")  # b64token of RFC 6750


def plain(username: str, password: Secret) -> Conversation:
    """PLAIN (RFC 4616): both in the clear, so only for TLS."""
    for what, text in (("user name", Secret(username)), ("password", password)):
        if not text:
            raise AuthenticationError(f"SASL PLAIN needs a {what}")
        if "\0" in text.reveal():
            raise AuthenticationError(f"SASL PLAIN: the {what} holds a NUL character")
        _check_utf8("SASL PLAIN", what, text)
    yield SecretBytes(f"\0{username}\0{password.reveal()}".encode())


def scram(
    mechanism: str,
    username: str,
    password: Secret,
    *,
    token_auth: bool = False,
    nonce: str | None = None,
) -> Conversation:
    """SCRAM-SHA-256 or -512 (RFC 5802, RFC 7677), as Kafka has it: without SASLprep, and without
    channel binding. `token_auth`: the user is a delegation token (KIP-48)."""
    _check_utf8(mechanism, "user name", Secret(username))
    _check_utf8(mechanism, "password", password)
    nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
    user = username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if token_auth else ""
    client_first = f"n={user},r={nonce}{extension}"

    server_first = yield SecretBytes(f"n,,{client_first}".encode())
    given = _attributes(mechanism, server_first)
    for name in "rsi":
        if name not in given:
            raise AuthenticationError(f"{mechanism}: the server's first message has no {name}=")
    if not given["r"].startswith(nonce) or given["r"] == nonce:
        raise AuthenticationError(f"{mechanism}: the server does not answer to our nonce")
    salt = _base64(mechanism, given["s"])
    iterations = _iterations(mechanism, given["i"])

    client_final = f"c=biws,r={given['r']}"  # biws: "n,,", what the first message began with
    signed = b",".join([client_first.encode(), bytes(server_first), client_final.encode()])
    proof, expected = _proofs(mechanism, password, salt, iterations, signed)

    server_final = yield SecretBytes(f"{client_final},p={proof.reveal().decode()}".encode())
    given = _attributes(mechanism, server_final)
    if "e" in given:
        raise AuthenticationError(f"{mechanism}: the server refuses: {printable(given['e'], 200)}")
    if not hmac.compare_digest(_base64(mechanism, given.get("v", "")), expected.reveal()):
        raise AuthenticationError(
            f"{mechanism}: the server does not know the password: it is not who it claims to be"
        )


def _proofs(
    mechanism: str, password: Secret, salt: bytes, iterations: int, signed: bytes
) -> tuple[SecretBytes, SecretBytes]:
    """The client's proof in base64, and the signature that proves the server.

    The keys are gone when it returns.
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
    """Hi of RFC 5802: who has this can log in as well as with the password. UnicodeEncodeError for
    what UTF-8 cannot write."""
    return SecretBytes(
        hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.reveal().encode(), salt, iterations)
    )


def oauthbearer(
    token: Secret, extensions: Mapping[str, str] | None = None, *, authorization_id: str = ""
) -> Conversation:
    """OAUTHBEARER (RFC 7628) with SASL extensions (KIP-342)."""
    if not _TOKEN.fullmatch(token.reveal()):
        raise AuthenticationError("OAUTHBEARER: the token is empty or has characters of no token")
    pairs = []
    for name, value in (extensions or {}).items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
            raise AuthenticationError(f"OAUTHBEARER: {name!r} is no name of an extension")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise AuthenticationError(f"OAUTHBEARER: the value of extension {name} is not allowed")
        pairs.append(f"{name}={value}")
    who = authorization_id.replace("=", "=3D").replace(",", "=2C")
    head = f"n,{f'a={who}' if who else ''},"

    challenge = yield SecretBytes(
        "\x01".join([head, f"auth=Bearer {token.reveal()}", *pairs, "", ""]).encode()
    )
    if challenge:
        # RFC 7628, section 3.2.3: a dummy answer lets the server end the conversation.
        yield SecretBytes(b"\x01")
        words = printable(bytes(challenge[:300]).decode("utf-8", "replace"))
        raise AuthenticationError(f"OAUTHBEARER: the server refuses the token: {words}")


def printable(words: str, most: int = 300) -> str:
    """A stranger's words, not all that it may like to say, and nothing that paints a terminal."""
    return "".join(c if c.isprintable() else " " for c in words[:most])


def _check_utf8(mechanism: str, what: str, text: Secret) -> None:
    """An environment variable that is not UTF-8 becomes text that cannot be encoded."""
    try:
        text.reveal().encode()
    except UnicodeEncodeError:  # which quotes the text
        raise AuthenticationError(
            f"{mechanism}: the {what} has a character that UTF-8 cannot write"
        ) from None


def _attributes(mechanism: str, message: bytes) -> dict[str, str]:
    """`a=b,c=d` of a SCRAM message; the first of each name counts."""
    try:
        text = bytes(message).decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise AuthenticationError(f"{mechanism}: the server's message is not one of SCRAM")
        found.setdefault(name, value)
    if "m" in found:
        wanted = printable(found["m"], 100)
        raise AuthenticationError(f"{mechanism}: the server wants an extension: {wanted}")
    return found


def _base64(mechanism: str, text: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if not value:
        raise AuthenticationError(f"{mechanism}: the server's message is not one of SCRAM")
    return value


def _iterations(mechanism: str, text: str) -> int:
    count = int(text) if re.fullmatch("[0-9]{1,10}", text) else 0
    if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
        raise AuthenticationError(
            f"{mechanism}: the server asks for {printable(text, 20)} iterations, which are from "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return count
