"""Tokens for OAUTHBEARER: from an OAuth server, a file, a callable, Amazon's or Google's library.

All connections of a process with the same settings share a token until it is to be renewed. While
the old one is valid, a failure to renew it is only a warning.

A server gives a token by the client-credentials grant (RFC 6749, 4.4), or by that of a JWT bearer
(RFC 7523, KIP-1139) for a signed assertion in place of a client secret. Redirects are not followed,
since the request contains a secret, and an error quotes no more of a response than OAuth's `error`
and `error_description`. A function that has a secret as text in a variable does not raise, since an
error's frames may be shown with their variables: it returns None, and its caller raises.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from sparkkafka.client.auth import http_exchange
from sparkkafka.client.auth.tls import read_store
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.config.kinds import JWT_BEARER_GRANT, HttpUrl, parse_http_url
from sparkkafka.config.security.settings import AssertionSettings, OAuthSettings, Store, TokenMethod
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    needs_extra,
)
from sparkkafka.secret import Secret, SecretBytes

log = logging.getLogger(__name__)


MAX_RESPONSE_BYTES = 1_000_000
"""The largest response of a token endpoint, as in Java's HttpAccessTokenRetriever, or file."""

MAX_SOURCES = 256
"""How many settings may share tokens in a process; those used least recently are dropped."""


class Token(NamedTuple):
    """A token, and the seconds for which it is valid from now; None if they are not known."""

    text: Secret
    life_s: float | None


class _CachedToken(NamedTuple):
    """A token with the monotonic seconds at which to renew it, and until which to use it."""

    text: Secret
    renew_at_s: float
    usable_until_s: float


class TokenSource:
    """Returns a valid token, the same until it is to be renewed. Thread-safe.

    `make(deadline, once)` requests a new one; `once` means without retries.
    """

    def __init__(self, make: Callable[[Deadline, bool], Token]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._cached: _CachedToken | None = None

    def __call__(self, deadline: Deadline) -> Secret:
        """Return a token. One thread requests it; others wait for that, or use the old one.

        Raises AuthenticationError, OptionError, KafkaTimeoutError or KafkaConnectionError.
        """
        cached, now_s = self._cached, time.monotonic()
        if cached is not None and now_s < cached.renew_at_s:
            return cached.text
        usable = cached is not None and now_s < cached.usable_until_s
        if not self._lock.acquire(timeout=0 if usable else deadline.remaining_s()):
            if usable and cached is not None:
                return cached.text
            raise KafkaTimeoutError("no OAuth token in time: another thread is still requesting it")
        try:
            return self._renew(deadline)
        finally:
            self._lock.release()

    def forget(self, token: Secret) -> None:
        """Forget this token, which a broker has refused, so that the next call returns another
        one."""
        cached = self._cached
        if cached is not None and cached.text == token:
            self._cached = None

    def _renew(self, deadline: Deadline) -> Secret:
        """Request a new token, or return the old one if that fails. The caller has the lock."""
        cached, now_s = self._cached, time.monotonic()
        if cached is not None and now_s < cached.renew_at_s:  # another thread was faster
            return cached.text
        usable = cached is not None and now_s < cached.usable_until_s
        try:
            token = self._make(deadline, usable)  # without retries while the old one is usable
        except Exception as error:
            if not isinstance(error, KafkaError):
                # A ValueError is not the cause: it may quote a secret.
                cause = None if isinstance(error, ValueError) else error
                error = AuthenticationError(f"there is no OAuth token: {type(error).__name__}")
                error.__cause__ = cause
            if not usable or cached is None:
                raise error from error.__cause__
            log.warning("the OAuth token cannot be renewed; the old one is still valid: %s", error)
            # The wait after a failed renewal, while the old token is valid.
            self._cached = cached._replace(renew_at_s=time.monotonic() + 10.0)
            return cached.text
        # The shorter of the lives that the server and the token state; 0 if neither does.
        lives = [life_s for life_s in (token.life_s, _jwt_life_s(token.text)) if life_s is not None]
        # The longest life that a token is assumed to have.
        life_s = min(max(min(lives, default=0.0), 0.0), 24 * 3600.0)
        # It is renewed after 80 % of its life (sasl.login.refresh.window.factor), and not used
        # after 95 %, even if there is no new one.
        self._cached = _CachedToken(token.text, now_s + life_s * 0.8, now_s + life_s * 0.95)
        return token.text


_sources: dict[OAuthSettings, TokenSource] = {}
_sources_lock = threading.Lock()


def _after_fork() -> None:
    # The thread that holds a lock is not in the child.
    global _sources_lock
    _sources_lock = threading.Lock()
    _sources.clear()


os.register_at_fork(after_in_child=_after_fork)


def token_source(settings: OAuthSettings) -> Callable[[Deadline], Secret]:
    """Return the function that returns tokens for these settings. Within a process equal settings
    share one function and its token. Raises OptionError if the settings cannot work."""
    if settings.method == TokenMethod.GIVEN_TOKEN:
        return lambda _deadline: settings.token
    if settings.method == TokenMethod.TOKEN_FILE:
        store = Store("the file of the OAuth token", settings.token_path)
        return lambda _deadline: _read_text(store)
    if settings.method == TokenMethod.CLIENT_CREDENTIALS:
        parse_endpoint(settings)
    make = functools.partial(_MAKERS[settings.method], settings)
    try:
        hash(settings)
    except TypeError:  # a callable may have no hash
        return TokenSource(make)
    with _sources_lock:
        source = _sources.pop(settings, None) or TokenSource(make)
        _sources[settings] = source  # last in order; the first is dropped
        if len(_sources) > MAX_SOURCES:
            del _sources[next(iter(_sources))]
    return source


def _jwt_life_s(token: Secret) -> float | None:
    """Return the seconds until the time `exp` in the token (RFC 7519). Only the broker verifies the
    token."""
    parts = token.reveal().split(".")
    if len(parts) != 3:  # header, claims, signature; base64 without its padding
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"]) - time.time()
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


# --- token endpoints -------------------------------------------------------------------------


def parse_endpoint(settings: OAuthSettings) -> HttpUrl:
    """Return the token endpoint. Raises OptionError, without what may be a password in the URL."""
    endpoint = _endpoint_or_problem(settings)
    if isinstance(endpoint, str):
        raise OptionError(f"{settings.options.url}{endpoint}")
    return endpoint


def _endpoint_or_problem(settings: OAuthSettings) -> HttpUrl | str:
    """Return the endpoint of the URL, or the text that says what is wrong with the URL."""
    url = parse_http_url(settings.token_endpoint_url)
    if url is None:
        return " is not a URL of the form https://host/path"
    if "@" in urlsplit(settings.token_endpoint_url).netloc:
        return f" has a user or a password in it: set {settings.options.client} instead"
    if not (url.secure or settings.allow_http or url.is_loopback):
        allow = settings.options.allow_http
        return (
            f"={url}: without TLS others on the way could read the client's secret and the token; "
            f"use https:// (http:// is for this machine only{allow and f', or {allow}=true'})"
        )
    return url._replace(path=url.path or "/")


def fetch_token(settings: OAuthSettings, deadline: Deadline, once: bool = False) -> Token:
    """Request a token, and retry with backoff after failures that may pass, unless `once`.

    Raises AuthenticationError if the server refuses or its response is not OAuth's,
    KafkaTimeoutError or (`once`) KafkaConnectionError if it does not answer, OptionError.
    """
    endpoint = parse_endpoint(settings)
    backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
    retry = Retry(deadline, backoff, f"token from {endpoint}")
    while True:
        try:
            return _request_token(settings, endpoint, deadline)
        except KafkaConnectionError as error:
            if once:
                raise
            retry.after(error)


def _request_token(settings: OAuthSettings, endpoint: HttpUrl, deadline: Deadline) -> Token:
    """Send one request for a token and read the response. Raises KafkaConnectionError if a retry
    may help, AuthenticationError if not."""
    server = http_exchange.Server(
        name=str(endpoint),
        url=endpoint,
        tls=settings.tls,
        max_response_bytes=MAX_RESPONSE_BYTES,
        error_class=AuthenticationError,
        response_kind="a token's",
        url_option=settings.options.url,
        truststore_option=settings.options.trust,
        versions_option=settings.options.versions,
    )
    request = http_exchange.HttpRequest(
        "POST",
        Secret(f"{endpoint.path}?{endpoint.query}" if endpoint.query else endpoint.path),
        _headers(settings),
        _body(settings),
    )
    response = http_exchange.exchange(
        server,
        request,
        deadline,
        connect_ms=settings.connect_timeout_ms,
        response_ms=settings.read_timeout_ms,
    )
    status, body = response.status, response.body
    if status in (200, 201):
        token = _parse_token(body)
        if token is not None:
            return token
        if _parse_json_object(body) is None:
            kind = http_exchange.describe_body(body, "a JSON object")
            raise AuthenticationError(f"{endpoint} answers with {kind}, not with a token")
        message = _error_message(body, settings)
        raise AuthenticationError(f"{endpoint} answers without an access_token{message}")
    if 300 <= status < 400:
        where = _redact(response.redirect_host(), settings) or "elsewhere"
        raise AuthenticationError(
            f"{endpoint} redirects (status {status}) to {where}, and no secret is sent there: "
            f"set {settings.options.url} to the token endpoint itself"
        )
    message = _error_message(body, settings)
    if status in http_exchange.RETRIABLE_STATUSES:
        raise KafkaConnectionError(f"{endpoint}: status {status}{message}")
    hint = ""
    if status in (400, 401, 403):
        identity = settings.options.identity
        if settings.assertion is not None:
            identity = "sasl.oauthbearer.assertion.*"
        hint = f"; compare {identity} with the server's configuration"
    raise AuthenticationError(f"{endpoint} gives no token: status {status}{message}{hint}")


def _headers(settings: OAuthSettings) -> dict[str, str | Secret]:
    """Return the headers of the request, with the client's secret unless an assertion replaces
    it."""
    headers: dict[str, str | Secret] = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "sparkkafka",
    }
    if settings.assertion is not None:
        return headers
    basic = _basic_authorization(settings)
    if basic is None:
        raise OptionError("the OAuth client id or secret has a character that UTF-8 cannot encode")
    return headers | {"Authorization": basic}


def _basic_authorization(settings: OAuthSettings) -> Secret | None:
    """Return the header Authorization (HTTP's basic authentication) with client id and secret; None
    if UTF-8 cannot encode it."""
    user, secret = settings.client_id, settings.client_secret.reveal()
    if settings.header_urlencode:  # RFC 6749, 2.3.1
        user, secret = quote_plus(user), quote_plus(secret)
    return http_exchange.basic_header(f"{user}:{secret}")


def _body(settings: OAuthSettings) -> SecretBytes:
    """Return the form that requests a token. Raises OptionError."""
    assertion = settings.assertion
    form = {"grant_type": "client_credentials" if assertion is None else JWT_BEARER_GRANT}
    if settings.scope:
        form["scope"] = settings.scope
    if settings.audience:
        form["audience"] = settings.audience
    try:
        text = urlencode(form)
    except UnicodeEncodeError:
        raise OptionError(
            "the OAuth scope or audience has a character that UTF-8 cannot encode"
        ) from None
    if assertion is None:
        return SecretBytes(text.encode())
    return SecretBytes(
        f"{text}&assertion={quote_plus(make_assertion(assertion).reveal())}".encode()
    )


def _parse_token(body: SecretBytes) -> Token | None:
    """Return the token in the response, None if there is none."""
    response = _parse_json_object(body) or {}
    # Java's JwtResponseParser takes either.
    token = response.get("access_token") or response.get("id_token")
    if not isinstance(token, str) or not token.strip():
        return None
    try:
        life_s = float(response["expires_in"])  # a number, or, from some servers, its text
    except (KeyError, TypeError, ValueError, OverflowError):
        life_s = math.nan
    return Token(Secret(token.strip()), life_s if math.isfinite(life_s) else None)


def _parse_json_object(body: SecretBytes) -> dict[str, Any] | None:
    """Return the response as a JSON object, None if it is no such object."""
    try:
        response = json.loads(body.reveal())
    except (ValueError, RecursionError):
        return None
    return response if isinstance(response, dict) else None


def _error_message(body: SecretBytes, settings: OAuthSettings) -> str:
    """Return OAuth's description of an error (RFC 6749, 5.2), or else the kind of the response."""
    response = _parse_json_object(body)
    if response is None:
        return f" with {http_exchange.describe_body(body, 'a JSON object')}" if body else ""
    values = [response.get(name) for name in ("error", "error_description")]
    message = ": ".join(value for value in values if isinstance(value, str) and value)
    return f": {_redact(message, settings)}" if message else ""


def _redact(text: str, settings: OAuthSettings) -> str:
    """Return the server's text with *** in place of our secret, without control characters, and
    shortened."""
    secret = settings.client_secret.reveal()
    for form in (secret, quote_plus(secret)):
        if form:
            text = text.replace(form, "***")
    return re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\uffff]+", " ", text)[:300]


# --- the assertion of a JWT bearer ---------------------------------------------------------------


def make_assertion(settings: AssertionSettings) -> Secret:
    """Return the assertion of a JWT bearer: the content of the file, or a new signed JWT. Raises
    OptionError, naming the option."""
    if settings.file:
        return _read_text(settings.file)
    now_s = int(time.time())
    header, claims = _read_template(settings.template)
    claims = {**dict(settings.claims), **claims}
    claims |= {"iat": now_s, "exp": now_s + settings.exp_s, "nbf": now_s - settings.nbf_s}
    if settings.include_jti:
        claims["jti"] = str(uuid.uuid4())
    header = {**header, "alg": settings.algorithm, "typ": "JWT"}
    unsigned = _encode_jwt(json.dumps(header), json.dumps(claims)).reveal()
    signature = _encode_jwt(_sign_assertion(settings, unsigned.encode()))
    return Secret(f"{unsigned}.{signature.reveal()}")


def _sign_assertion(settings: AssertionSettings, data: bytes) -> bytes:
    """Return the signature by the settings' private key (RS256 or ES256)."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError:
        raise OptionError(
            f"{settings.key.option}: signing needs a library that is missing on this machine: pip "
            "install cryptography"
        ) from None
    key = _load_signing_key(settings)
    if settings.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    curve = key.curve if isinstance(key, ec.EllipticCurvePrivateKey) else None
    if settings.algorithm == "ES256" and isinstance(curve, ec.SECP256R1):
        pair = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        # Each of the two numbers has 32 bytes (RFC 7518, 3.4).
        return b"".join(number.to_bytes(32, "big") for number in pair)
    needed = "an RSA key" if settings.algorithm == "RS256" else "a key of the curve P-256"
    raise OptionError(
        f"{settings.key} does not fit sasl.oauthbearer.assertion.algorithm="
        f"{settings.algorithm}, which needs {needed}"
    )


def _load_signing_key(settings: AssertionSettings) -> Any:
    """Load the private key that signs assertions. Raises OptionError."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    store, passphrase = settings.key, settings.passphrase
    content = read_store(store, MAX_RESPONSE_BYTES)
    try:
        return load_pem_private_key(content.reveal(), passphrase.reveal().encode() or None)
    except Exception:  # cryptography raises several types, with messages of OpenSSL
        raise OptionError(
            f"{store} is not a private key in PEM, or its passphrase "
            f"(sasl.oauthbearer.assertion.private.key.passphrase) is "
            f"{'wrong' if passphrase else 'missing'}"
        ) from None


def _read_template(store: Store) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of the template, a file of JSON; both empty without one."""
    if not store:
        return {}, {}
    try:
        template = json.loads(read_store(store, MAX_RESPONSE_BYTES).reveal())
        header, claims = template.get("header", {}), template.get("payload", {})
        return dict(header), dict(claims)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise OptionError(
            f'{store} must be JSON of the form {{"header": {{…}}, "payload": {{…}}}}'
        ) from None


# --- files, callables, unsecured tokens ------------------------------------------------------


def _read_text(store: Store) -> Secret:
    """Return the text in a file. Raises OptionError, also if there is none."""
    text = Secret(read_store(store, MAX_RESPONSE_BYTES).reveal().decode("utf-8", "replace").strip())
    if not text:
        raise OptionError(f"{store} is empty")
    return text


def _call_user_function(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """Call the user's callable, which returns a token, or a token and its expiry."""
    callback = settings.callback
    if isinstance(callback, str):
        name, callback = callback, _import_function(callback)
    else:
        name = getattr(callback, "__name__", type(callback).__name__)
    try:
        token, result_type = _parse_callback_result(callback())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # SystemExit or asyncio's CancelledError would end a client's thread. The error's text is
        # left out: it might contain a secret.
        raise AuthenticationError(
            f"the callable {name}, which returns OAuth tokens, raised {type(error).__name__}"
        ) from error
    if token is None:
        raise AuthenticationError(
            f"the callable {name} must return a token, or (token, its expiry in seconds since "
            f"1970), and returned a {result_type}"
        )
    return token


def _parse_callback_result(result: Any) -> tuple[Token | None, str]:
    """Return the token in the result of a user's callable (None if there is none), and the name of
    the result's type. The result is a token, or (token, its expiry in seconds since 1970)."""
    result_type = type(result).__name__
    token, until_s = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    text = token.reveal() if isinstance(token, Secret) else token
    if not isinstance(text, str) or not isinstance(until_s, int | float | None):
        return None, result_type
    try:
        life_s = None if until_s is None else until_s - time.time()
    except OverflowError:  # an int that no float can hold
        return None, result_type
    return Token(Secret(text), life_s), result_type


def _import_function(name: str) -> Callable[[], Any]:
    """Import the callable that is named as module:function. Raises OptionError."""
    module, _, function = name.partition(":")
    try:
        imported = importlib.import_module(module)
        for part in function.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"the OAuth token's callable {name} cannot be imported as module:function ({error}); "
            "it must be on each worker's path"
        ) from error
    except (Exception, SystemExit) as error:  # the module may run any code
        raise OptionError(
            f"the module of the OAuth token's callable {name} raises {type(error).__name__} when "
            "it is imported"
        ) from error
    if not callable(imported):
        raise OptionError(f"{name}, which is to return OAuth tokens, is not callable")
    return imported


def _make_unsecured(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """Make a token without a signature (RFC 7515, A.5), as Java does for tests."""
    now_s = time.time()
    claims = dict(settings.unsecured_claims)
    claims = {"iat": now_s, "exp": now_s + settings.unsecured_life_s} | claims
    return Token(_encode_jwt('{"alg": "none"}', json.dumps(claims), ""), settings.unsecured_life_s)


def _encode_jwt(*parts: str | bytes) -> Secret:
    """Return the parts of a JWT in base64 for URLs, joined by dots (RFC 7515)."""
    return Secret(
        ".".join(
            base64.urlsafe_b64encode(part if isinstance(part, bytes) else part.encode())
            .decode()
            .rstrip("=")
            for part in parts
        )
    )


# --- the libraries of Amazon and Google, which are extras ------------------------------------


def _sign_for_msk(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """Return a token for MSK from Amazon's signer."""
    needs = "AWS_MSK_IAM needs Amazon's signer on each machine"
    note = " (or aws-msk-iam-sasl-signer-python)"
    with needs_extra(needs, "aws", error=OptionError, note=note):
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    region = settings.aws_region or _aws_region(settings.aws_profile)
    try:
        signed = _sign_as_identity(signer, region, settings)
    except Exception as error:  # boto raises many types
        reason = " ".join(str(error).split())
        for secret in (settings.aws_role_secret_access_key, settings.aws_role_session_token):
            reason = reason.replace(secret.reveal(), "***") if secret else reason
        raise AuthenticationError(
            f"AWS_MSK_IAM: Amazon's signer gives no token: {type(error).__name__}: "
            f"{reason[:300]}; are there AWS credentials on this machine?"
        ) from None
    text, expiry_ms = signed if isinstance(signed, tuple) else (signed, 0)
    # The signer's tokens are valid for 900 s. The expiry that it returns is hours off if the
    # machine's time zone is not UTC.
    return Token(Secret(text), min(expiry_ms / 1000 - time.time(), 900.0))


def _sign_as_identity(signer: Any, region: str, settings: OAuthSettings) -> Any:
    """Return a token signed with the credentials of the profile in the settings. If this machine
    has no such profile, use those of the role.

    The machine's own credentials are used only if the settings name neither. (Amazon's library for
    Java always falls back to these, and then acts as another user than the settings name.)
    """
    if settings.aws_profile:
        try:
            return signer.generate_auth_token_from_profile(region, settings.aws_profile)
        except Exception as error:
            if not settings.aws_role_arn:
                raise
            log.warning(
                "the AWS profile %s gives no token (%s): assuming the role %s of sasl.jaas.config",
                settings.aws_profile,
                type(error).__name__,
                settings.aws_role_arn,
            )
    if settings.aws_role_arn:
        provider = _role_credentials(settings)
        return signer.generate_auth_token_from_credentials_provider(region, provider)
    return signer.generate_auth_token(region)


def _role_credentials(settings: OAuthSettings) -> Any:
    """Return a provider of the role's credentials. (The signer itself supports roles, but no
    external ids, no keys and no region of the token service.)"""
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        retries={"total_max_attempts": settings.aws_max_retries + 1},
        use_fips_endpoint=settings.aws_use_fips,
    )
    keys = {
        "aws_access_key_id": Secret(settings.aws_role_access_key_id),
        "aws_secret_access_key": settings.aws_role_secret_access_key,
        "aws_session_token": settings.aws_role_session_token,
    }
    sts = importlib.import_module("boto3").client(
        "sts",
        region_name=settings.aws_sts_region or "aws-global",
        config=config,
        **{name: value.reveal() for name, value in keys.items() if value},
    )
    credentials = importlib.import_module("botocore.credentials")
    # The session's name in Amazon's library for Java, which policies and audit logs contain.
    role = {
        "RoleArn": settings.aws_role_arn,
        "RoleSessionName": settings.aws_role_session_name or "aws-msk-iam-auth",
    }
    if settings.aws_role_external_id:
        role["ExternalId"] = settings.aws_role_external_id

    def load(_provider: Any) -> Any:
        """Return temporary credentials of the role."""
        response = sts.assume_role(**role)["Credentials"]
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
        return credentials.Credentials(*(response[name] for name in names))

    return type("AssumedRole", (credentials.CredentialProvider,), {"load": load})()


def _aws_region(profile: str) -> str:
    """Return the region that the AWS SDK is configured with. Raises OptionError without one."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        try:
            sessions = importlib.import_module("botocore.session")
            region = sessions.Session(profile=profile or None).get_config_variable("region")
        except Exception:  # no botocore, or no such profile: the signer has a better message
            region = None
    if not region:
        raise OptionError(
            "AWS_MSK_IAM: the cluster's region is not known: set awsRegion in sasl.jaas.config, or "
            "the environment variable AWS_REGION on each machine"
        )
    return str(region)


def _request_from_google(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """Return the application default credentials of Google's cloud, in the form of its
    GcpLoginCallbackHandler for Java: header, account and access token, each in base64."""
    needs = "Google's managed Kafka needs Google's library on each machine"
    with needs_extra(needs, "gcp", error=OptionError, note=" (or google-auth and requests)"):
        auth = importlib.import_module("google.auth")
        transport = importlib.import_module("google.auth.transport.requests")
    try:
        credentials, _project = auth.default(
            scopes=["https://www.googleapis.com/auth/cloud-platform"]
        )
        # Its own timeout is two minutes.
        limit_s = min(settings.read_timeout_ms / 1000, max(deadline.remaining_s(), 0.001))
        credentials.refresh(functools.partial(transport.Request(), timeout=limit_s))
        account = getattr(credentials, "service_account_email", None)
        until_s = credentials.expiry.replace(tzinfo=UTC).timestamp()
        access_token = Secret(credentials.token)
    except Exception as error:  # google-auth raises many types
        raise AuthenticationError(
            f"Google's library gives no token: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; are there Google credentials on this machine?"
        ) from None
    if not isinstance(account, str) or "@" not in account:
        raise AuthenticationError(
            "Google's credentials of this machine belong to no service account, which Kafka needs "
            f"(they are of the kind {type(credentials).__name__})"
        )
    now_s = time.time()
    claims = {"exp": int(until_s), "iat": int(now_s), "iss": "Google", "scope": "kafka"}
    claims["sub"] = account
    header = json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"})
    return Token(_encode_jwt(header, json.dumps(claims), access_token.reveal()), until_s - now_s)


_MAKERS: Final[dict[TokenMethod, Callable[[OAuthSettings, Deadline, bool], Token]]] = {
    TokenMethod.CLIENT_CREDENTIALS: fetch_token,
    TokenMethod.CALLBACK: _call_user_function,
    TokenMethod.AWS_MSK_IAM: _sign_for_msk,
    TokenMethod.GOOGLE: _request_from_google,
    TokenMethod.UNSECURED: _make_unsecured,
}
