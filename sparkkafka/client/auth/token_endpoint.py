"""A token from an OAuth server: the client-credentials grant (RFC 6749, 4.4) over HTTPS.

One POST, by http.client, on a socket whose every wait ends at the deadline. What the server
answers is bounded in size, and believed only so far: redirects are not followed, since the request
holds a secret, and no message has more of an answer than OAuth's own words for errors.
"""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import json
import math
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from sparkkafka.client.auth.assertion import assertion
from sparkkafka.client.auth.tls_context import tls_context
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.config.security.settings import OAuthSettings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaError, OptionError
from sparkkafka.secret import Secret, SecretBytes

URL_OPTION = "sasl.oauthbearer.token.endpoint.url"
ALLOW_OPTION: Final = "sasl.oauthbearer.token.endpoint.allow.http"

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
"""The grant of RFC 7523."""

MOST_ANSWER_BYTES = 1_000_000
"""Java's HttpAccessTokenRetriever reads as much."""

MOST_READ_BYTES = MOST_ANSWER_BYTES + 256 * 1024
"""With headers and the sizes of chunks. http.client believes a size that is negative, and would
read without end."""

TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Java asks again for all but what its UNRETRYABLE_HTTP_CODES list; these are what is left of 4xx,
and what servers say of 5xx."""

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\uffff]+")


class Token(NamedTuple):
    """A token, and the seconds for which it counts from now; None: nobody said."""

    text: Secret
    life_s: float | None


class Endpoint(NamedTuple):
    """A token endpoint's address, taken apart."""

    secure: bool
    host: str
    port: int
    target: str

    def __str__(self) -> str:
        # Without the query: some servers want keys in it.
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = self.target.partition("?")[0]
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{path}"

    def __repr__(self) -> str:
        return str(self)


def parse_endpoint(settings: OAuthSettings) -> Endpoint:
    """Raises OptionError, which says what is wrong, without what may be a password in the URL."""
    found = _parsed(settings.token_endpoint_url, settings.allow_http)
    if isinstance(found, str):
        raise OptionError(f"{URL_OPTION}{found}")
    return found


def _parsed(url: str, allow_http: bool) -> Endpoint | str:
    """The endpoint, or what is wrong with it: no frame that raises has the URL in a variable."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        return " is no URL: https://host/path is wanted"
    if parts.scheme not in ("https", "http") or not host or not re.fullmatch("[!-~]+", url):
        return " is no URL of the kind https://host/path"
    if "@" in parts.netloc:
        return (
            " has a user or a password in it: set sasl.oauthbearer.client.credentials.client.id "
            "and .client.secret instead"
        )
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    endpoint = Endpoint(secure, host, port or (443 if secure else 80), target)
    if not (secure or allow_http or _is_loopback(host)):
        return (
            f"={endpoint}: without TLS the client's secret and the token would be readable on the "
            f"way; use https:// (http:// is for this machine only, or {ALLOW_OPTION}=true)"
        )
    return endpoint


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetch_token(settings: OAuthSettings, deadline: Deadline, *, once: bool = False) -> Token:
    """Ask for a token; again, with backoff, after failures that may pass. `once`: but once.

    Raises AuthenticationError if the server refuses or does not answer in OAuth's way,
    KafkaTimeoutError or (`once`) KafkaConnectionError if it cannot be asked, OptionError.
    """
    endpoint = parse_endpoint(settings)
    backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
    retry = Retry(deadline, backoff, f"token from {endpoint}")
    while True:
        try:
            return _fetch(settings, endpoint, deadline)
        except KafkaConnectionError as error:
            if once:
                raise
            retry.after(error)


def _fetch(settings: OAuthSettings, endpoint: Endpoint, deadline: Deadline) -> Token:
    with _words_for_failures(endpoint), closing(_connect(settings, endpoint, deadline)) as sock:
        limit = deadline.sooner(settings.read_timeout_ms)
        response, body = _exchange(settings, endpoint, _TimedSocket(sock, limit))
    status = response.status
    if status in (200, 201):
        return _token(endpoint, body, settings)
    if 300 <= status < 400:
        where = _shown(_place(response.headers.get("location", "")), settings)
        raise AuthenticationError(
            f"{endpoint} redirects (status {status}) to {where}, where no secret is sent unasked: "
            f"set {URL_OPTION} to the token endpoint itself"
        )
    words = _refusal(body, settings)
    if status in TRY_AGAIN:
        raise KafkaConnectionError(f"{endpoint}: status {status}{words}")
    hint = ""
    if status in (400, 401, 403):
        hint = (
            "; compare sasl.oauthbearer.assertion.* with what the server knows"
            if settings.assertion is not None
            else "; compare sasl.oauthbearer.client.credentials.client.id, .client.secret and "
            "sasl.oauthbearer.scope with what the server knows"
        )
    raise AuthenticationError(f"{endpoint} gives no token: status {status}{words}{hint}")


def _exchange(
    settings: OAuthSettings, endpoint: Endpoint, sock: _TimedSocket
) -> tuple[http.client.HTTPResponse, SecretBytes]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
    connection.sock = sock
    try:
        connection.request("POST", endpoint.target, _body(settings), _headers(settings))
        response = connection.getresponse()
        body = SecretBytes(response.read(MOST_ANSWER_BYTES + 1))
        if len(body) > MOST_ANSWER_BYTES:
            raise _TooLongError
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
    except Exception as error:
        # The frames of http.client have the secret, or the token, in variables.
        raise error.with_traceback(None) from None
    return response, body


def _place(location: str) -> str:
    """Scheme and host of a redirect: the rest may hold anything."""
    try:
        parts = urlsplit(location[:2000])
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    return f"{parts.scheme}://{host}" if host else "elsewhere"


def _headers(settings: OAuthSettings) -> dict[str, str]:
    own = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "sparkkafka",
    }
    if settings.assertion is not None:
        return own
    parts = (settings.client_id, settings.client_secret.reveal())
    if settings.header_urlencode:  # RFC 6749, 2.3.1
        parts = (quote_plus(parts[0]), quote_plus(parts[1]))
    try:
        basic = base64.b64encode(":".join(parts).encode()).decode()
    except UnicodeEncodeError:  # which quotes the text
        raise OptionError(
            "the OAuth client's id or secret has a character that UTF-8 cannot write"
        ) from None
    return own | {"Authorization": f"Basic {basic}"}


def _body(settings: OAuthSettings) -> bytes:
    form = {"grant_type": "client_credentials"}
    if settings.assertion is not None:
        form = {"grant_type": JWT_BEARER, "assertion": assertion(settings.assertion).reveal()}
    if settings.scope:
        form["scope"] = settings.scope
    if settings.audience:
        form["audience"] = settings.audience
    return urlencode(form).encode()


# --- answers ---------------------------------------------------------------------------------


def _token(endpoint: Endpoint, body: SecretBytes, settings: OAuthSettings) -> Token:
    token = _token_in(body)
    if token is not None:
        return token
    if not _is_json_object(body):
        raise AuthenticationError(f"{endpoint} answers with {_kind(body)}, not with a token")
    words = _refusal(body, settings)
    raise AuthenticationError(f"{endpoint} answers without an access_token{words}")


def _token_in(body: SecretBytes) -> Token | None:
    answer = _json_object(body) or {}
    # Java's JwtResponseParser takes either.
    token = answer.get("access_token") or answer.get("id_token")
    if not isinstance(token, str) or not token.strip():
        return None
    return Token(Secret(token.strip()), _seconds(answer.get("expires_in")))


def _seconds(value: Any) -> float | None:
    """`expires_in`: a number, or, from some servers, its text."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def _is_json_object(body: SecretBytes) -> bool:
    return _json_object(body) is not None


def _json_object(body: SecretBytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body.reveal())
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _kind(body: SecretBytes) -> str:
    head = body.reveal()[:1000].lower()
    if b"<html" in head or b"<!doctype" in head:
        return "an HTML page"
    return "something other than a JSON object" if body else "nothing"


def _refusal(body: SecretBytes, settings: OAuthSettings) -> str:
    """OAuth's words for an error (RFC 6749, 5.2), else what kind of answer it is."""
    answer = _json_object(body)
    if answer is None:
        return f" with {_kind(body)}" if body else ""
    said = [answer.get(name) for name in ("error", "error_description")]
    words = ": ".join(word for word in said if isinstance(word, str) and word)
    return f": {_shown(words, settings)}" if words else ""


def _shown(text: str, settings: OAuthSettings) -> str:
    """A stranger's words: short, printable, and without our secret should they hold it."""
    secret = settings.client_secret.reveal()
    for form in (secret, quote_plus(secret)):
        if form:
            text = text.replace(form, "***")
    return _NOT_PRINTABLE.sub(" ", text)[:300]


# --- sockets ---------------------------------------------------------------------------------


def _connect(settings: OAuthSettings, endpoint: Endpoint, deadline: Deadline) -> socket.socket:
    deadline = deadline.sooner(settings.connect_timeout_ms)
    context = tls_context(settings.tls) if endpoint.secure else None
    addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        if deadline.expired:
            break
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # an address family that this machine lacks
            failure = error
            continue
        try:
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            sock.connect(address)
            if context is None:
                return sock
            # Its timeout counts for the whole handshake.
            sock.settimeout(max(deadline.remaining_s(), 0.001))
            return context.wrap_socket(sock, server_hostname=endpoint.host)
        except ssl.SSLError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


class _TimedSocket:
    """What http.client wants of a socket. A timeout of the socket alone would begin anew with each
    byte of a server that sends them one by one."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(max(self._deadline.remaining_s(), 0.001))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """http.client closes as soon as it has the headers; the answer is still to be read."""


class _TooLongError(Exception):
    """More than the answer of a token endpoint has."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        self._left_bytes = MOST_READ_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._deadline.expired:
            raise TimeoutError
        if self._left_bytes <= 0:
            raise _TooLongError
        self._sock.settimeout(max(self._deadline.remaining_s(), 0.001))
        count = self._sock.recv_into(buffer)
        self._left_bytes -= count
        return count


@contextmanager
def _words_for_failures(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except KafkaError:  # before what some of them are as well: OSError, ValueError
        raise
    except _TooLongError:
        raise AuthenticationError(
            f"{endpoint}: the answer is longer than {MOST_ANSWER_BYTES} bytes: not a token's"
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"{endpoint}: its certificate is not to be trusted ({error.verify_message}): it is "
            "checked with the ssl.truststore options of sasl.jaas.config or of the client"
        ) from error
    except (TimeoutError, ssl.SSLEOFError, ConnectionError) as error:
        what = "no answer in time" if isinstance(error, TimeoutError) else _reason(error)
        raise KafkaConnectionError(f"{endpoint}: {what}") from error
    except ssl.SSLError as error:
        raise AuthenticationError(
            f"{endpoint}: no TLS connection ({error.reason or 'unknown reason'}): is it an https "
            "server, and are ssl.enabled.protocols right?"
        ) from error
    except (OSError, UnicodeError) as error:
        raise KafkaConnectionError(f"{endpoint}: {_reason(error)}") from error
    except http.client.IncompleteRead as error:
        raise KafkaConnectionError(f"{endpoint}: the answer ends in the middle") from error
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: http.client does not look at all that a server may say.
        raise AuthenticationError(f"{endpoint} does not answer in HTTP") from error


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:200]
