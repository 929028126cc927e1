"""SASL conversations: the RFCs' examples, a server from RFC 5802, and hostile servers."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.client.auth.sasl import (
    MAX_ITERATIONS,
    Conversation,
    connection_security,
    oauthbearer_conversation,
    plain_conversation,
    scram_conversation,
)
from sparkkafka.config.options import parse_read_options
from sparkkafka.errors import AuthenticationError, OptionError
from sparkkafka.secret import Secret

PENCIL = Secret("pencil")
SALT = base64.b64encode(b"salt of the server").decode()


def begin(conversation: Conversation) -> bytes:
    return next(conversation).reveal()


def go_on(conversation: Conversation, response: bytes) -> bytes:
    return conversation.send(response).reveal()


def end(conversation: Conversation, response: bytes) -> None:
    """The conversation is over, without an error."""
    with pytest.raises(StopIteration):
        conversation.send(response)


# --- the RFCs' examples --------------------------------------------------------------------------


def test_plain_is_that_of_rfc_4616() -> None:
    conversation = plain_conversation("tim", Secret("tanstaaftanstaaf"))
    assert begin(conversation) == b"\0tim\0tanstaaftanstaaf"
    end(conversation, b"")


def test_scram_sha_256_is_that_of_rfc_7677() -> None:
    conversation = scram_conversation("SCRAM-SHA-256", "user", PENCIL, nonce="rOprNGfwEbeRWgbNEkqO")
    assert begin(conversation) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert go_on(conversation, first.encode()) == f"c=biws,r={nonce},p={proof}".encode()
    end(conversation, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_oauthbearer_is_that_of_rfc_7628() -> None:
    token = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
    conversation = oauthbearer_conversation(Secret(token), {"host": "server.example.com"})
    assert begin(conversation) == (
        b"n,,\x01auth=Bearer " + token.encode() + b"\x01host=server.example.com\x01\x01"
    )
    end(conversation, b"")


# --- a server ------------------------------------------------------------------------------------


class Server:
    """The server's side of SCRAM, from the formulas of RFC 5802, section 3."""

    def __init__(self, hash_name: str, password: str, iterations: int = 4096) -> None:
        self.hash = hash_name
        self.iterations = iterations
        salted = hashlib.pbkdf2_hmac(
            hash_name, password.encode(), base64.b64decode(SALT), iterations
        )
        self.stored_key = hashlib.new(hash_name, self.mac(salted, b"Client Key")).digest()
        self.server_key = self.mac(salted, b"Server Key")

    def mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, self.hash).digest()

    def first(self, client_first: bytes) -> bytes:
        self.client_bare = client_first.removeprefix(b"n,,")
        nonce = dict(part.split("=", 1) for part in self.client_bare.decode().split(","))["r"]
        self.said = f"r={nonce}theirs,s={SALT},i={self.iterations}".encode()
        return self.said

    def last(self, client_final: bytes) -> bytes:
        without, _, proof = client_final.rpartition(b",p=")
        signed = b",".join([self.client_bare, self.said, without])
        signature = self.mac(self.stored_key, signed)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash, key).digest() != self.stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(self.mac(self.server_key, signed))


@pytest.mark.parametrize(
    ("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")]
)
@pytest.mark.parametrize("password", ["pencil", "пароль, = ☃"])
def test_scram_with_a_server(mechanism: str, hash_name: str, password: str) -> None:
    server = Server(hash_name, password)
    conversation = scram_conversation(mechanism, "user", Secret(password))
    final = go_on(conversation, server.first(begin(conversation)))
    end(conversation, server.last(final))


def test_scram_with_a_wrong_password() -> None:
    server = Server("sha512", "pencil")
    conversation = scram_conversation("SCRAM-SHA-512", "user", Secret("pen"))
    response = server.last(go_on(conversation, server.first(begin(conversation))))
    with pytest.raises(AuthenticationError, match="SCRAM-SHA-512: the server refuses: invalid-pr"):
        conversation.send(response)


def test_user_names_are_escaped_and_nonces_are_new() -> None:
    firsts = [begin(scram_conversation("SCRAM-SHA-256", "a=b,c", PENCIL)) for _ in range(2)]
    assert all(first.startswith(b"n,,n=a=3Db=2Cc,r=") for first in firsts)
    assert firsts[0] != firsts[1]


def test_a_delegation_token_says_that_it_is_one() -> None:
    first = begin(scram_conversation("SCRAM-SHA-256", "id", PENCIL, token_auth=True, nonce="abc"))
    assert first == b"n,,n=id,r=abc,tokenauth=true"


# --- servers that are not in order ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("", "is not one of SCRAM"),
        ("r=abc", "has no s="),
        ("s=QQ==,i=4096", "has no r="),
        (f"r=abc,s={SALT},i=4096", "does not answer to our nonce"),
        (f"r=other,s={SALT},i=4096", "does not answer to our nonce"),
        ("r=abcd,s=,i=4096", "is not one of SCRAM"),
        ("r=abcd,s=%%,i=4096", "is not one of SCRAM"),
        (f"r=abcd,s={SALT},i=4095", "requires 4095 iterations"),
        (f"r=abcd,s={SALT},i=-1", "requires -1 iterations"),
        (f"r=abcd,s={SALT},i={MAX_ITERATIONS + 1}", "iterations; allowed are 4096 to 1000000"),
        (f"r=abcd,s={SALT},i={'9' * 5000}", "requires 99999999999999999999 iterations"),
        (f"m=ext,r=abcd,s={SALT},i=4096", "requires an extension: ext"),
        ("\x00" * 100_000, "is not one of SCRAM"),
    ],
)
def test_a_first_message_that_is_wrong(first: str, message: str) -> None:
    conversation = scram_conversation("SCRAM-SHA-256", "user", PENCIL, nonce="abc")
    begin(conversation)
    with pytest.raises(AuthenticationError, match=message) as caught:
        conversation.send(first.encode())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (b"v=" + base64.b64encode(b"x" * 32), "the server does not know the password"),
        (b"v=", "is not one of SCRAM"),
        (b"x=1", "is not one of SCRAM"),
        (b"\xff\xfe", "is not one of SCRAM"),
        (b"", "is not one of SCRAM"),
        (b"e=other-error", "refuses: other-error"),
    ],
)
def test_a_last_message_that_is_wrong(final: bytes, message: str) -> None:
    server = Server("sha256", "pencil")
    conversation = scram_conversation("SCRAM-SHA-256", "user", PENCIL)
    go_on(conversation, server.first(begin(conversation)))
    with pytest.raises(AuthenticationError, match=message):
        conversation.send(final)


@given(st.lists(st.binary(max_size=100), min_size=2, max_size=2))
def test_hostile_bytes_are_an_error_and_nothing_else(responses: list[bytes]) -> None:
    conversation = scram_conversation("SCRAM-SHA-256", "user", PENCIL)
    begin(conversation)
    with pytest.raises(AuthenticationError):
        for response in responses:
            conversation.send(response)


@pytest.mark.slow
def test_the_most_iterations_that_a_server_can_ask_for() -> None:
    server = Server("sha256", "pencil", MAX_ITERATIONS)
    conversation = scram_conversation("SCRAM-SHA-256", "user", PENCIL)
    final = go_on(conversation, server.first(begin(conversation)))
    end(conversation, server.last(final))


def test_a_token_that_is_refused() -> None:
    conversation = oauthbearer_conversation(Secret("abc"))
    assert begin(conversation) == b"n,,\x01auth=Bearer abc\x01\x01"
    assert go_on(conversation, b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationError, match=r'refuses the token: \{"status":"invalid_token"'):
        conversation.send(b"")


# --- what cannot be sent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "conversation",
    [
        plain_conversation("", PENCIL),
        plain_conversation("user", Secret("")),
        plain_conversation("us\0er", PENCIL),
        plain_conversation("user", Secret("hush\0hush")),
        oauthbearer_conversation(Secret("")),
        oauthbearer_conversation(Secret("hush hush")),
        oauthbearer_conversation(Secret("hush\x01auth=Bearer other")),
        oauthbearer_conversation(Secret("abc"), {"auth": "x"}),
        oauthbearer_conversation(Secret("abc"), {"a_b": "x"}),
        oauthbearer_conversation(Secret("abc"), {"a": "hush\x01b=c"}),
        oauthbearer_conversation(Secret("abc"), {"a": ""}),
    ],
)
def test_what_would_break_the_message_is_an_error_without_the_secret(
    conversation: Conversation,
) -> None:
    with pytest.raises(AuthenticationError) as caught:
        begin(conversation)
    assert "hush" not in str(caught.value)


def test_a_secret_shows_itself_to_nobody() -> None:
    secret = Secret("hush")
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}", f"{secret!s:>20}"):
        assert "hush" not in shown
    assert secret.reveal() == "hush"
    assert secret == Secret("hush")
    assert secret != Secret("other")
    assert len({secret, Secret("hush")}) == 1
    assert not Secret("")


def test_the_error_of_a_store_says_how_the_option_begins_in_spark() -> None:
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "orders",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": "/nowhere/kafka.client.truststore.jks",
        }
    )
    with pytest.raises(OptionError, match=r"cannot be read .* In Spark .* begin with kafka\.$"):
        connection_security(options.client, "h", 1)
