"""Tokens for OAUTHBEARER, from a server of the test's own and from every other place."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client.auth import http_exchange, oauth
from sparkkafka.client.auth.oauth import MAX_RESPONSE_BYTES, fetch_token, token_source
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import (
    AssertionSettings,
    OAuthSettings,
    Store,
    TlsSettings,
    TokenMethod,
)
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
)
from sparkkafka.secret import Secret
from tests.support.certificates import signed
from tests.support.frames import variables_of
from tests.support.token_server import HttpResponse, Signer, TokenServer, until

CRLF = b"\r\n"
HUSH = "hu:sh hush/+ü"
AUTHORITY = signed("authority")
TLS = TlsSettings(truststore=Store("ssl.truststore.certificates", text=Secret(AUTHORITY.pem)))
SIGNER = Signer()


pytestmark = pytest.mark.usefixtures("nothing_is_cached")


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer(AUTHORITY, SIGNER) as tokens:
        yield tokens


def settings(server: TokenServer, **changes: Any) -> OAuthSettings:
    return replace(
        OAuthSettings(
            method=TokenMethod.CLIENT_CREDENTIALS,
            token_endpoint_url=server.url,
            client_id="alice",
            client_secret=Secret(HUSH),
            tls=TLS,
            retry_backoff_ms=1,
            retry_backoff_max_ms=5,
        ),
        **changes,
    )


def fetch(wanted: OAuthSettings, total_ms: float = 10_000) -> str:
    return token_source(wanted)(Deadline(total_ms)).reveal()


def failure(
    wanted: OAuthSettings, kind: type[KafkaError], total_ms: float = 10_000, *, frames: bool = True
) -> str:
    """`frames` False: the user's own error is the cause, and has a secret in it."""
    with pytest.raises(kind) as caught:
        fetch(wanted, total_ms)
    text = f"{caught.value}"
    for shown in (text, variables_of(caught.value) if frames else ""):
        assert "hush" not in shown
        assert "aHU6c2g" not in shown
    return text


# --- the grant -----------------------------------------------------------------------------------


def test_a_token_by_client_credentials(server: TokenServer) -> None:
    token = fetch(settings(server, scope="kafka read+write"))
    assert token.count(".") == 2
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("POST", "/token")
    assert asked.form == {"grant_type": ["client_credentials"], "scope": ["kafka read+write"]}
    assert asked.basic == f"alice:{HUSH}"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert asked.headers["accept"] == "application/json"


def test_without_a_scope_none_is_sent(server: TokenServer) -> None:
    fetch(settings(server))
    assert server.requests[0].form == {"grant_type": ["client_credentials"]}


def test_id_and_secret_are_form_encoded_if_wanted(server: TokenServer) -> None:
    """RFC 6749, 2.3.1; sasl.oauthbearer.header.urlencode."""
    fetch(settings(server, client_id="a b:c", header_urlencode=True))
    assert server.requests[0].basic == "a+b%3Ac:hu%3Ash+hush%2F%2B%C3%BC"


def test_the_url_keeps_its_query_and_hides_it(server: TokenServer) -> None:
    url = server.url.replace("/token", "/a%20b/token?key=hush&x=1")
    server.responses = [HttpResponse(403)]
    text = failure(settings(server, token_endpoint_url=url), AuthenticationError)
    assert server.requests[0].path == "/a%20b/token?key=hush&x=1"
    assert "/a%20b/token gives no token: status 403" in text


def test_http_on_this_machine() -> None:
    with TokenServer(None, SIGNER) as tokens:
        assert fetch(settings(tokens))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://idp.example/token", "without TLS others on the way could read"),
        ("http://127.0.0.1.example/token", "without TLS"),
        ("https://me:hush@idp.example/token", "has a user or a password in it"),
        ("ftp://idp.example/token", "of the form https://host/path"),
        ("https:///token", "of the form https://host/path"),
        ("https://idp.example/to ken", "of the form https://host/path"),
        ("https://idp.example/\r\nX: y", "of the form https://host/path"),
        ("https://idp.example:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("", "of the form https://host/path"),
    ],
)
def test_a_url_that_is_not_good_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        token_source(OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url))
    assert "sasl.oauthbearer.token.endpoint.url" in str(caught.value)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


# --- responses that are no token
# -------------------------------------------------------------------

LOGIN = b"<!DOCTYPE html><html><body>Log in! hush</body></html>"
ECHO = {"error": "invalid_client", "error_description": f"no\r\n{HUSH}\x1b[31m " + "x" * 999}
FINAL = {
    "401": (HttpResponse(401, {"error": "invalid_client"}), "status 401: invalid_client; compare"),
    "401 with our secret in it": (HttpResponse(401, ECHO), r"status 401: invalid_client: no ***"),
    "401 with half a character": (
        HttpResponse(401, {"error": "no\ud800!"}),
        "status 401: no !; compare",
    ),
    "401 without words": (HttpResponse(401), "status 401; compare"),
    "an HTML page": (HttpResponse(200, LOGIN), "answers with an HTML page, not with a token"),
    "403 as HTML": (HttpResponse(403, LOGIN), "status 403 with an HTML page"),
    "404": (HttpResponse(404, b"not here"), "status 404 with something other than a JSON object"),
    "501": (HttpResponse(501), "gives no token: status 501"),
    "204": (HttpResponse(204), "gives no token: status 204"),
    "no JSON": (HttpResponse(200, b"{"), "answers with something other than a JSON object"),
    "JSON, no object": (HttpResponse(200, [1]), "answers with something other than a JSON object"),
    "deep JSON": (
        HttpResponse(200, b"[" * 100_000),
        "answers with something other than a JSON object",
    ),
    "nothing": (HttpResponse(200), "answers with nothing, not with a token"),
    "no token": (HttpResponse(200, {"token_type": "Bearer"}), "answers without an access_token"),
    "an error as 200": (
        HttpResponse(200, {"error": "unauthorized_client"}),
        "without an access_token: unauthorized_client",
    ),
    "a token of another type": (HttpResponse(200, {"access_token": 7}), "without an access_token"),
    "an empty token": (HttpResponse(200, {"access_token": " "}), "without an access_token"),
    "too large": (
        HttpResponse(200, b" " * (MAX_RESPONSE_BYTES + 1)),
        f"the response is longer than {MAX_RESPONSE_BYTES} bytes",
    ),
    "a redirect": (
        HttpResponse(302, headers={"location": "https://hush@login.example/?s=hush"}),
        "redirects (status 302) to https://login.example, and no secret is sent there",
    ),
    "a redirect to itself": (HttpResponse(307, headers={"location": "/token"}), "to elsewhere"),
    "a redirect to nowhere": (
        HttpResponse(308, headers={"location": "https://[x"}),
        "to elsewhere",
    ),
}


@pytest.mark.parametrize("case", FINAL)
def test_a_response_that_is_final(server: TokenServer, case: str) -> None:
    response, words = FINAL[case]
    server.responses = [response]
    text = failure(settings(server), AuthenticationError)
    assert words in text
    assert text.startswith(server.url)
    assert text.encode()  # it can be printed
    assert len(text) < 700
    assert text.isprintable()
    assert len(server.requests) == 1, "asked again, though nothing will change"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_what_may_pass_is_asked_again(server: TokenServer, status: int) -> None:
    server.responses = [HttpResponse(status, {"error": "busy"}), HttpResponse(hang_up=True)]
    assert fetch(settings(server))
    assert len(server.requests) == 3


def test_asking_ends_at_the_deadline(server: TokenServer) -> None:
    server.responses = [HttpResponse(503, {"error": "busy"})] * 10_000
    text = failure(settings(server), KafkaTimeoutError, total_ms=300)
    assert f"token from {server.url}: gave up after 0.3 s" in text
    # The last try may be one that the deadline cut off.
    assert "status 503: busy" in text or "no response in time" in text
    assert 1 < len(server.requests) < 200


def test_a_server_that_does_not_answer(server: TokenServer) -> None:
    go_on = threading.Event()
    server.responses = [HttpResponse(wait=go_on)]
    try:
        text = failure(settings(server), KafkaTimeoutError, total_ms=100)
    finally:
        go_on.set()
    assert "no response in time" in text


def test_the_read_timeout_is_one_of_many_tries(server: TokenServer) -> None:
    go_on = threading.Event()
    server.responses = [HttpResponse(wait=go_on)]
    try:
        assert fetch(settings(server, read_timeout_ms=50))
    finally:
        go_on.set()
    assert len(server.requests) >= 2  # on a slow machine the second one may be too late as well


def test_nobody_is_there() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
        url = f"https://127.0.0.1:{sock.getsockname()[1]}/t"
        wanted = OAuthSettings(
            method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url, tls=TLS
        )
        assert "Connection refused" in failure(wanted, KafkaTimeoutError, total_ms=2_000)


def test_a_name_that_nobody_knows() -> None:
    wanted = OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url="https://idp.invalid/t"
    )
    assert "https://idp.invalid:443/t: " in failure(wanted, KafkaTimeoutError, total_ms=50)


# --- servers that are something else -------------------------------------------------------------


@pytest.fixture
def raw_server() -> Iterator[Callable[..., int]]:
    """A TCP server that says what it is told to, once, and goes on drop by drop if it is told to;
    gives its port."""
    stop = threading.Event()
    threads = []

    def start(says: bytes, drop: bytes = b"") -> int:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with listener:
                listener.settimeout(20)
                sock, _ = listener.accept()
            with sock:
                sock.settimeout(20)
                try:
                    sock.recv(65536)
                    sock.sendall(says)
                    while drop and not stop.wait(0.01):
                        sock.sendall(drop)
                    # The request may come in parts: one that is not read makes a reset of the end.
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                except OSError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        threads.append(thread)
        return int(listener.getsockname()[1])

    yield start
    stop.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_drops_that_never_end_do_not_move_the_deadline(raw_server: Callable[..., int]) -> None:
    for head in (b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"):
        url = f"http://127.0.0.1:{raw_server(head, b'x')}/t"
        wanted = OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url)
        assert "no response in time" in failure(wanted, KafkaTimeoutError, total_ms=150)


@pytest.mark.parametrize(
    "says",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x01" * 4 + b"\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nxxxxxxxx\r\n",
    ],
)
def test_what_is_not_http_is_named(raw_server: Callable[..., int], says: bytes) -> None:
    url = f"http://127.0.0.1:{raw_server(says)}/t"
    wanted = OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url)
    assert "/t does not answer in HTTP" in failure(wanted, AuthenticationError)


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_half_a_response_is_as_none(raw_server: Callable[..., int], says: bytes) -> None:
    url = f"http://127.0.0.1:{raw_server(says)}/t"
    wanted = OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url)
    with pytest.raises(KafkaConnectionError, match="the response ends in the middle"):
        fetch_token(wanted, Deadline(10_000), once=True)


@pytest.mark.parametrize("size", [b"-1", b"7fffffffffffffff"])
def test_a_chunk_without_end(raw_server: Callable[..., int], size: bytes) -> None:
    """http.client reads all that comes for a size of -1."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n"
    url = f"http://127.0.0.1:{raw_server(head, b'x' * 200_000)}/t"
    wanted = OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url)
    assert "/t: the response is longer than 1000000 bytes" in failure(wanted, AuthenticationError)


def test_http_where_https_is_wanted() -> None:
    with TokenServer(None, SIGNER) as tokens:
        url = tokens.url.replace("http:", "https:")
        text = failure(settings(tokens, token_endpoint_url=url), AuthenticationError)
    assert "no TLS connection" in text
    assert tokens.requests == []


def test_a_server_whose_certificate_is_not_to_be_trusted(server: TokenServer) -> None:
    text = failure(settings(server, tls=TlsSettings()), AuthenticationError)
    assert "its certificate is not signed by an authority that is trusted here" in text
    assert "Set the ssl.truststore options of sasl.jaas.config or of the client to" in text
    with TokenServer(AUTHORITY, SIGNER, hosts=("idp.example",)) as other:
        text = failure(settings(other), AuthenticationError)
        assert "its certificate is not for 127.0.0.1: it has other names" in text
        assert "(sasl.oauthbearer.token.endpoint.url)" in text
        assert other.requests == []
    assert server.requests == []


# --- keeping a token -----------------------------------------------------------------------------


class Clock:
    """In place of the module time of oauth: stands still until it is moved."""

    def __init__(self) -> None:
        self.moved_s = 0.0

    def monotonic(self) -> float:
        return 1000.0 + self.moved_s

    def time(self) -> float:
        return time.time() + self.moved_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(oauth, "time", found)
    return found


def test_a_token_is_kept_and_shared(server: TokenServer, clock: Clock) -> None:
    server.life_s = 1000
    first = fetch(settings(server))
    clock.moved_s = 790
    assert fetch(settings(server)) == first
    assert len(server.requests) == 1
    fetch(settings(server, scope="other"))
    assert len(server.requests) == 2
    clock.moved_s = 801
    fetch(settings(server))
    assert len(server.requests) == 3


def given(**body: Any) -> HttpResponse:
    return HttpResponse(200, body)


@pytest.mark.parametrize(
    ("response", "kept_s"),
    [
        (given(access_token="x", expires_in=100), 80),
        (given(access_token="x", expires_in="100"), 80),
        (given(id_token="x", expires_in=100.0), 80),
        (given(jwt_s=100), 79),  # by its own exp
        (given(jwt_s=100, expires_in=9999), 79),
        (given(jwt_s=9999, expires_in=100), 80),
        (given(access_token="x"), 0),
        (given(access_token="x", expires_in=-5), 0),
        (given(access_token="x", expires_in="soon"), 0),
        (given(access_token="x", expires_in=[]), 0),
        (HttpResponse(200, b'{"access_token": "x", "expires_in": NaN}'), 0),
        (HttpResponse(200, b'{"access_token": "x", "expires_in": 1e999}'), 0),
        (HttpResponse(200, b'{"access_token": "x", "expires_in": 1' + b"0" * 400 + b"}"), 0),
        (given(access_token="x", expires_in=10**12), 24 * 3600 * 0.8),
        (given(access_token="a.b.c", expires_in=100), 80),
        (given(access_token="a.W10.c", expires_in=100), 80),
    ],
)
def test_how_long_it_is_kept(
    server: TokenServer, clock: Clock, response: HttpResponse, kept_s: float
) -> None:
    if isinstance(response.body, dict) and "jwt_s" in response.body:
        token = SIGNER.token("a", response.body["jwt_s"])
        response = replace(response, body=response.body | {"access_token": token})
    server.responses = [response]
    token = fetch(settings(server))
    if kept_s:
        clock.moved_s = kept_s - 2
        assert fetch(settings(server)) == token
        assert len(server.requests) == 1
    clock.moved_s = kept_s + 2
    assert fetch(settings(server)) != token
    assert len(server.requests) == 2


def test_many_threads_ask_once(server: TokenServer) -> None:
    go_on = threading.Event()
    server.responses = [HttpResponse(200, {"access_token": "one", "expires_in": 100}, wait=go_on)]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(settings(server)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(server.requests) == 1)
    with pytest.raises(KafkaTimeoutError, match="another thread is still requesting it"):
        fetch(settings(server), total_ms=20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert found == ["one"] * 8
    assert len(server.requests) == 1


def test_the_old_token_counts_while_no_new_one_can_be_had(
    server: TokenServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server.life_s = 1000
    old = fetch(settings(server))
    server.responses = [HttpResponse(503, {"error": "down"})] * 1 + [HttpResponse(401)] * 2
    clock.moved_s = 900
    with caplog.at_level(logging.WARNING):
        assert fetch(settings(server)) == old
        assert fetch(settings(server)) == old, "within ten seconds nobody asks again"
        assert len(server.requests) == 2
        clock.moved_s = 911
        assert fetch(settings(server)) == old
        assert len(server.requests) == 3
    assert "cannot be renewed; the old one is still valid" in caplog.text
    assert "status 503: down" in caplog.text
    clock.moved_s = 951
    assert "status 401" in failure(settings(server), AuthenticationError)


def test_who_has_a_token_does_not_wait_for_another_threads_new_one(
    server: TokenServer, clock: Clock
) -> None:
    server.life_s = 1000
    old = fetch(settings(server))
    go_on = threading.Event()
    server.responses = [HttpResponse(200, {"access_token": "new", "expires_in": 100}, wait=go_on)]
    clock.moved_s = 900
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(fetch(settings(server))))
    thread.start()
    until(lambda: len(server.requests) == 2)
    assert fetch(settings(server)) == old
    go_on.set()
    thread.join(20)
    assert found == ["new"]
    assert fetch(settings(server)) == "new"


def test_a_token_that_a_broker_refused_is_not_given_again(server: TokenServer) -> None:
    server.responses = [HttpResponse(200, {"access_token": "bad", "expires_in": 1000})]
    source = token_source(settings(server))
    refused = source(Deadline(10_000))
    source.forget(Secret("another"))  # type: ignore[attr-defined]
    assert source(Deadline(10_000)) == refused
    source.forget(refused)  # type: ignore[attr-defined]
    assert source(Deadline(10_000)) != refused


def test_sources_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "MAX_SOURCES", 3)
    url = "https://idp.example/"
    wanted = [
        OAuthSettings(method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url, scope=str(n))
        for n in range(5)
    ]
    first, second, *_ = map(token_source, wanted)
    assert token_source(wanted[0]) is not first
    assert token_source(wanted[1]) is not second
    assert token_source(wanted[4]) is token_source(wanted[4])


def test_nothing_shows_a_secret(server: TokenServer) -> None:
    token = fetch(settings(server))
    source = token_source(settings(server))
    shown = f"{settings(server)!r}{source!r}{vars(source)!r}{vars(oauth)!r}"
    assert token not in shown
    assert "hush" not in shown


def secret_of_basic(seen: str) -> bool:
    return "hush" in seen or "aHU6c2g" in seen or "YWxpY2U6" in seen


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(body={"access_token": ["hush"]}),
        HttpResponse(body=["hush"]),
        HttpResponse(400, body={"error": "no", "hush": HUSH}),
        HttpResponse(503, body={"hush": HUSH}),
    ],
)
def test_no_variable_of_a_frame_has_a_response(server: TokenServer, response: HttpResponse) -> None:
    server.responses = [response]
    with pytest.raises(KafkaError) as caught:
        fetch_token(settings(server), Deadline(10_000), once=True)
    assert not secret_of_basic(variables_of(caught.value))


@pytest.mark.parametrize("chunked", [False, True])
def test_no_variable_of_a_frame_has_half_a_response(
    raw_server: Callable[..., int], chunked: bool
) -> None:
    head = b"Transfer-Encoding: chunked\r\n\r\n99\r\n" if chunked else b"Content-Length: 99\r\n\r\n"
    url = f"http://127.0.0.1:{raw_server(b'HTTP/1.1 200 OK' + CRLF + head + b'hush')}/t"
    wanted = OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS, token_endpoint_url=url, client_secret=Secret(HUSH)
    )
    with pytest.raises(KafkaConnectionError, match="ends in the middle") as caught:
        fetch_token(wanted, Deadline(10_000), once=True)
    assert not secret_of_basic(variables_of(caught.value))


def test_no_variable_of_a_frame_has_a_request(
    server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(http_exchange._BoundedSocket, "sendall", broken)
    with pytest.raises(KafkaConnectionError) as caught:
        fetch_token(settings(server), Deadline(10_000), once=True)
    assert not secret_of_basic(variables_of(caught.value))


def test_a_secret_that_cannot_be_written() -> None:
    with TokenServer(None, SIGNER) as tokens:
        wanted = settings(tokens, client_secret=Secret("hush\udcff"))
        assert "a character that UTF-8 cannot encode" in failure(wanted, OptionError)


def test_a_scope_that_cannot_be_written_shows_no_assertion(tmp_path: Path) -> None:
    (tmp_path / "assertion").write_text("hush")
    with TokenServer(None, SIGNER) as tokens:
        assertion = AssertionSettings(file=str(tmp_path / "assertion"))
        wanted = settings(tokens, assertion=assertion, scope="\udcff")
        assert "scope or audience has a character" in failure(wanted, OptionError)


# --- a token, a file, a callable -----------------------------------------------------------------


def test_a_given_token() -> None:
    assert fetch(OAuthSettings(method=TokenMethod.GIVEN_TOKEN, token=Secret("abc"))) == "abc"


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    wanted = OAuthSettings(method=TokenMethod.TOKEN_FILE, token_path=str(path))
    source = token_source(wanted)
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert source(Deadline(1000)).reveal() == token


def test_files_that_hold_no_token(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    with (tmp_path / "large").open("wb") as sparse:
        sparse.truncate(2_000_000)
    for name, words in {
        "missing": "missing cannot be read on this machine (No such file or directory)",
        "empty": "empty is empty",
        "large": "large is larger than 1000000 bytes",
        "nul\0": "cannot be read",
    }.items():
        wanted = OAuthSettings(method=TokenMethod.TOKEN_FILE, token_path=str(tmp_path / name))
        assert words in failure(wanted, OptionError)


def callback(call: Any) -> OAuthSettings:
    return OAuthSettings(method=TokenMethod.CALLBACK, callback=call)


calls: list[str] = []


def give_token() -> tuple[str, float]:
    calls.append("called")
    return f"token-{len(calls)}", time.time() + 100


def test_a_callable_or_its_name() -> None:
    calls.clear()
    assert fetch(callback(give_token)) == fetch(callback(give_token)) == "token-1"
    assert fetch(callback(f"{__name__}:give_token")) == "token-2"
    assert fetch(callback(lambda: SIGNER.token("a"))).count(".") == 2
    assert fetch(callback(lambda: Secret("s"))) == "s"
    assert calls == ["called"] * 2


def test_a_callable_that_cannot_be_hashed() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> str:
            return "odd"

    assert fetch(callback(Odd())) == "odd"


def test_callables_that_do_not_do() -> None:
    def fails() -> str:
        raise RuntimeError("hush")

    assert "callable fails, which returns OAuth tokens, raised RuntimeError" in failure(
        callback(fails), AuthenticationError, frames=False
    )
    for bad in (None, 7, b"hush", ("hush", "soon"), ("hush",), ("hush", 10**400)):

        def gives(bad: Any = bad) -> Any:
            return bad

        text = failure(callback(gives), AuthenticationError)
        assert f"returned a {type(bad).__name__}" in text
    for name in ("no_such_module:f", f"{__name__}:no_such", f"{__name__}:", "x", ":"):
        assert f"callable {name} cannot be imported" in failure(callback(name), OptionError)
    assert "is not callable" in failure(callback(f"{__name__}:CRLF"), OptionError)


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError])
def test_a_callable_that_ends_the_program_does_not(kind: type[BaseException]) -> None:
    def leaves() -> str:
        raise kind("hush")

    assert f"raised {kind.__name__}" in failure(callback(leaves), AuthenticationError, frames=False)


def test_a_module_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_tokens_here.py").write_text("raise RuntimeError('hush')\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = failure(callback("no_tokens_here:f"), OptionError, frames=False)
    assert "callable no_tokens_here:f raises RuntimeError when it is imported" in text


def test_what_nobody_expects_is_a_kafka_error() -> None:
    amazon = OAuthSettings(method=TokenMethod.AWS_MSK_IAM, aws_region="eu-west-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oauth, "_MAKERS", {TokenMethod.AWS_MSK_IAM: lambda *_: 1 / 0})
        text = failure(amazon, AuthenticationError)
    assert text == "there is no OAuth token: ZeroDivisionError"


def test_the_old_token_counts_whatever_the_new_one_fails_by(clock: Clock) -> None:
    responses: list[Any] = [("old", 10**400), ("old", time.time() + 100)]
    wanted = callback(lambda: responses.pop())
    source = token_source(wanted)
    assert source(Deadline(1000)).reveal() == "old"
    clock.moved_s = 85
    assert source(Deadline(1000)).reveal() == "old"
    assert responses == []


def test_an_unsecured_token(clock: Clock) -> None:
    settings = OAuthSettings(
        method=TokenMethod.UNSECURED,
        unsecured_claims=(("sub", "alice"), ("scope", ("a", "b"))),
        unsecured_life_s=60,
    )
    first = fetch(settings)
    header, claims, signature = first.split(".")
    assert base64.urlsafe_b64decode(header + "==") == b'{"alg": "none"}'
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert (said["sub"], said["scope"], signature) == ("alice", ["a", "b"], "")
    assert said["exp"] - said["iat"] == 60
    assert fetch(settings) == first
    clock.moved_s = 50
    assert fetch(settings) != first


def test_a_single_failure_is_logged_while_an_old_token_counts(server: TokenServer) -> None:
    """`once` of fetch_token, by itself."""
    server.responses = [HttpResponse(503)]
    with pytest.raises(KafkaConnectionError, match="status 503"):
        fetch_token(settings(server), Deadline(10_000), once=True)
    assert len(server.requests) == 1
