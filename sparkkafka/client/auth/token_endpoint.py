"""A token from an OAuth server over HTTPS: by the client-credentials grant (RFC 6749, 4.4), or by
that of a JWT bearer (RFC 7523), a signed assertion in place of a client secret. The latter is as in
Java's JwtBearerJwtRetriever (KIP-1139), with a key in PEM.

The answer is bounded in size. Redirects are not followed, since the request holds a secret, and an
error quotes no more of an answer than OAuth's `error` and `error_description`.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import re
import time
import uuid
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from sparkkafka.client.auth.http_exchange import RETRIABLE_STATUSES, Request, Server, exchange
from sparkkafka.client.auth.tls import read_store
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.config.security.settings import AssertionSettings, OAuthSettings, Store
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, OptionError
from sparkkafka.secret import Secret, SecretBytes

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
"""The grant of RFC 7523."""

MAX_ANSWER_BYTES = 1_000_000
"""Java's HttpAccessTokenRetriever reads as much."""

MAX_FILE_BYTES: Final = 1_000_000
_ES256_BYTES: Final = 32  # of each of the two numbers of a signature (RFC 7518, 3.4)

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\uffff]+")


class Token(NamedTuple):
    """A token, and the seconds for which it is valid from now; None if the server says nothing."""

    text: Secret
    life_s: float | None


class Endpoint(NamedTuple):
    """A token endpoint's address, parsed."""

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
    found = _parsed(settings)
    if isinstance(found, str):
        raise OptionError(f"{settings.options.url}{found}")
    return found


def _parsed(settings: OAuthSettings) -> Endpoint | str:
    """Return the endpoint, or what is wrong with it: no frame that raises has the URL in a
    variable."""
    url = settings.token_endpoint_url
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        return " is no URL: https://host/path is wanted"
    if parts.scheme not in ("https", "http") or not host or not re.fullmatch("[!-~]+", url):
        return " is no URL of the kind https://host/path"
    if "@" in parts.netloc:
        return f" has a user or a password in it: set {settings.options.client} instead"
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    endpoint = Endpoint(secure, host, port or (443 if secure else 80), target)
    if not (secure or settings.allow_http or _is_loopback(host)):
        allow = settings.options.allow_http
        return (
            f"={endpoint}: without TLS the client's secret and the token would be readable on the "
            f"way; use https:// (http:// is for this machine only{allow and f', or {allow}=true'})"
        )
    return endpoint


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetch_token(settings: OAuthSettings, deadline: Deadline, *, once: bool = False) -> Token:
    """Request a token, and retry with backoff after failures that may pass, unless `once`.

    Raises AuthenticationError if the server refuses or its answer is not OAuth's, KafkaTimeoutError
    or (`once`) KafkaConnectionError if it does not answer, OptionError.
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
    server = Server(
        str(endpoint),
        endpoint.secure,
        endpoint.host,
        endpoint.port,
        settings.tls,
        MAX_ANSWER_BYTES,
        AuthenticationError,
        "a token's",
        settings.options.url,
        settings.options.trust,
        settings.options.versions,
    )
    request = Request("POST", Secret(endpoint.target), _headers(settings), _body(settings))
    answer = exchange(
        server,
        request,
        deadline,
        connect_ms=settings.connect_timeout_ms,
        answer_ms=settings.read_timeout_ms,
    )
    status, body = answer.status, answer.body
    if status in (200, 201):
        return _token(endpoint, body, settings)
    if 300 <= status < 400:
        where = _redacted(answer.redirect_host(), settings) or "elsewhere"
        raise AuthenticationError(
            f"{endpoint} redirects (status {status}) to {where}, where no secret is sent unasked: "
            f"set {settings.options.url} to the token endpoint itself"
        )
    message = _error_message(body, settings)
    if status in RETRIABLE_STATUSES:
        raise KafkaConnectionError(f"{endpoint}: status {status}{message}")
    hint = ""
    if status in (400, 401, 403):
        hint = (
            "; compare sasl.oauthbearer.assertion.* with what the server knows"
            if settings.assertion is not None
            else f"; compare {settings.options.identity} with what the server knows"
        )
    raise AuthenticationError(f"{endpoint} gives no token: status {status}{message}{hint}")


def _headers(settings: OAuthSettings) -> dict[str, str | Secret]:
    headers: dict[str, str | Secret] = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "sparkkafka",
    }
    if settings.assertion is not None:
        return headers
    basic = _basic(settings)
    if basic is None:
        raise OptionError("the OAuth client's id or secret has a character that UTF-8 cannot write")
    return headers | {"Authorization": basic}


def _basic(settings: OAuthSettings) -> Secret | None:
    parts = (settings.client_id, settings.client_secret.reveal())
    if settings.header_urlencode:  # RFC 6749, 2.3.1
        parts = (quote_plus(parts[0]), quote_plus(parts[1]))
    try:
        return Secret(f"Basic {base64.b64encode(':'.join(parts).encode()).decode()}")
    except UnicodeEncodeError:  # which quotes the text
        return None


def _body(settings: OAuthSettings) -> SecretBytes:
    form = {"grant_type": "client_credentials"}
    if settings.assertion is not None:
        form = {"grant_type": JWT_BEARER, "assertion": assertion(settings.assertion).reveal()}
    if settings.scope:
        form["scope"] = settings.scope
    if settings.audience:
        form["audience"] = settings.audience
    return SecretBytes(urlencode(form).encode())


# --- answers ---------------------------------------------------------------------------------


def _token(endpoint: Endpoint, body: SecretBytes, settings: OAuthSettings) -> Token:
    token = _token_in(body)
    if token is not None:
        return token
    if _json_object(body) is None:
        raise AuthenticationError(f"{endpoint} answers with {_kind(body)}, not with a token")
    message = _error_message(body, settings)
    raise AuthenticationError(f"{endpoint} answers without an access_token{message}")


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


def _error_message(body: SecretBytes, settings: OAuthSettings) -> str:
    """Return OAuth's description of an error (RFC 6749, 5.2), or else the kind of the answer."""
    answer = _json_object(body)
    if answer is None:
        return f" with {_kind(body)}" if body else ""
    values = [answer.get(name) for name in ("error", "error_description")]
    message = ": ".join(value for value in values if isinstance(value, str) and value)
    return f": {_redacted(message, settings)}" if message else ""


def _redacted(text: str, settings: OAuthSettings) -> str:
    """Return the server's text printable, cut, and with *** for our secret."""
    secret = settings.client_secret.reveal()
    for form in (secret, quote_plus(secret)):
        if form:
            text = text.replace(form, "***")
    return _NOT_PRINTABLE.sub(" ", text)[:300]


# --- the assertion of a JWT bearer ---------------------------------------------------------------


def assertion(settings: AssertionSettings) -> Secret:
    """Return the content of the file, or a new signed JWT. Raises OptionError, naming the
    option."""
    if settings.file:
        text = read_store(settings.file, MAX_FILE_BYTES).reveal().decode("utf-8", "replace").strip()
        if not text:
            raise OptionError(f"{settings.file} is empty")
        return Secret(text)
    now_s = int(time.time())
    header, claims = _template(settings.template)
    claims = {**dict(settings.claims), **claims}
    claims |= {"iat": now_s, "exp": now_s + settings.exp_s, "nbf": now_s - settings.nbf_s}
    if settings.include_jti:
        claims["jti"] = str(uuid.uuid4())
    header = {**header, "alg": settings.algorithm, "typ": "JWT"}
    signed = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
    return Secret(f"{signed}.{_base64(_signature(settings, signed.encode()))}")


def _signature(settings: AssertionSettings, data: bytes) -> bytes:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError:
        raise OptionError(
            f"{settings.key.option}: signing needs a library that is missing on this machine: pip "
            "install cryptography"
        ) from None
    key = _key(settings)
    if settings.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    curve = key.curve if isinstance(key, ec.EllipticCurvePrivateKey) else None
    if settings.algorithm == "ES256" and isinstance(curve, ec.SECP256R1):
        pair = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(_ES256_BYTES, "big") for number in pair)
    wanted = "an RSA key" if settings.algorithm == "RS256" else "a key of the curve P-256"
    raise OptionError(
        f"{settings.key} does not fit sasl.oauthbearer.assertion.algorithm="
        f"{settings.algorithm}, which wants {wanted}"
    )


def _key(settings: AssertionSettings) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    store, passphrase = settings.key, settings.passphrase
    content = read_store(store, MAX_FILE_BYTES)
    try:
        return load_pem_private_key(content.reveal(), passphrase.reveal().encode() or None)
    except Exception:  # of several kinds, and words of OpenSSL that help nobody
        raise OptionError(
            f"{store} is no private key in PEM, or its passphrase "
            f"(sasl.oauthbearer.assertion.private.key.passphrase) is "
            f"{'wrong' if passphrase else 'missing'}"
        ) from None


def _template(store: Store) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of the file of JSON."""
    if not store:
        return {}, {}
    try:
        found = json.loads(read_store(store, MAX_FILE_BYTES).reveal())
        header, claims = found.get("header", {}), found.get("payload", {})
        return dict(header), dict(claims)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise OptionError(
            f'{store} must be JSON of the form {{"header": {{…}}, "payload": {{…}}}}'
        ) from None


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
