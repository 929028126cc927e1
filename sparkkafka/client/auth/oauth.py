"""Tokens for OAUTHBEARER: from an OAuth server, a file, a callable, Amazon's or Google's library.

A token is kept for a share of its life, once for all connections of the process that have the same
settings. While an old one still counts, a failure to renew it is a warning and nothing more.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any, Final, NamedTuple

from sparkkafka.client.auth.token_endpoint import Token, fetch_token, parse_endpoint
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import (
    AWS_MSK_IAM,
    CALLBACK,
    CLIENT_CREDENTIALS,
    GIVEN_TOKEN,
    GOOGLE,
    TOKEN_FILE,
    UNSECURED,
    OAuthSettings,
)
from sparkkafka.errors import AuthenticationError, KafkaError, KafkaTimeoutError, OptionError
from sparkkafka.extras import needs_extra
from sparkkafka.secret import Secret, SecretBytes

log = logging.getLogger(__name__)

RENEW_SHARE = 0.8
"""Of a token's life, after which a new one is asked for (sasl.login.refresh.window.factor)."""

USE_SHARE = 0.95
"""Of its life, until which it is used if there is no new one."""

RENEW_AGAIN_S = 10.0
"""After a failed renewal, while the old token counts."""

LONGEST_KEPT_S = 24 * 3600.0

MAX_TOKEN_BYTES = 1_000_000
MAX_SOURCES = 256

LONGEST_AWS_S = 900.0
"""Amazon's signer signs for so long; what it says of the end is hours off where the machine's
time zone is not UTC."""

AWS_SESSION_NAME = "aws-msk-iam-auth"
"""As Amazon's library for Java names it: policies and audit logs know it by this name."""

_AWS_PACKAGE: Final = "aws-msk-iam-sasl-signer-python"

_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


class _Held(NamedTuple):
    """A token with the monotonic seconds at which to renew it, and until which it may be used."""

    text: Secret
    renew_s: float
    last_s: float


class TokenSource:
    """Gives a token that counts; thread-safe. `make(deadline, once)` fetches a new one."""

    def __init__(self, make: Callable[[Deadline, bool], Token]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._held: _Held | None = None

    def __call__(self, deadline: Deadline) -> Secret:
        """Raises AuthenticationError, OptionError, KafkaTimeoutError or KafkaConnectionError if no
        token is available. One thread asks; others wait for it, or take the old one."""
        held, now_s = self._held, time.monotonic()
        if held is not None and now_s < held.renew_s:
            return held.text
        usable = held is not None and now_s < held.last_s
        if not self._lock.acquire(timeout=0 if usable else deadline.remaining_s()):
            if usable and held is not None:
                return held.text
            raise KafkaTimeoutError("no OAuth token in time: another thread still waits for it")
        try:
            return self._renewed(deadline)
        finally:
            self._lock.release()

    def forget(self, token: Secret) -> None:
        """A broker refuses this token: the next caller gets another."""
        held = self._held
        if held is not None and held.text == token:
            self._held = None

    def _renewed(self, deadline: Deadline) -> Secret:
        held, now_s = self._held, time.monotonic()
        if held is not None and now_s < held.renew_s:  # another thread was faster
            return held.text
        usable = held is not None and now_s < held.last_s
        try:
            token = self._make(deadline, usable)
        except Exception as error:
            if not isinstance(error, KafkaError):
                error = _odd(error)
            if not usable or held is None:
                raise error from error.__cause__
            log.warning("the OAuth token cannot be renewed, the old one still counts: %s", error)
            self._held = held._replace(renew_s=time.monotonic() + RENEW_AGAIN_S)
            return held.text
        life_s = min(_life_s(token), LONGEST_KEPT_S)
        self._held = _Held(token.text, now_s + life_s * RENEW_SHARE, now_s + life_s * USE_SHARE)
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
    """What gives tokens by these settings: the same for equal settings, within a process.

    Raises OptionError if the settings cannot give any.
    """
    if settings.method == GIVEN_TOKEN:
        return lambda _deadline: settings.token
    if settings.method == TOKEN_FILE:
        return lambda _deadline: _from_file(settings.token_path)
    if settings.method == CLIENT_CREDENTIALS:
        parse_endpoint(settings)
    elif settings.method not in _MAKERS:
        raise OptionError(f"there is no way {settings.method!r} to a token")
    maker = _MAKERS[settings.method]

    def make(deadline: Deadline, once: bool) -> Token:
        return maker(settings, deadline, once)

    try:
        hash(settings)
    except TypeError:  # a callable may be without
        return TokenSource(make)
    with _sources_lock:
        source = _sources.pop(settings, None) or TokenSource(make)
        _sources[settings] = source  # the last in order: the first goes
        if len(_sources) > MAX_SOURCES:
            del _sources[next(iter(_sources))]
    return source


def _odd(error: Exception) -> AuthenticationError:
    """For what no way to a token is to raise. A ValueError's words may quote what it was given."""
    failure = AuthenticationError(f"there is no OAuth token: {type(error).__name__}")
    failure.__cause__ = None if isinstance(error, ValueError) else error
    return failure


def _life_s(token: Token) -> float:
    """What both the server and the token say; 0 if neither says anything."""
    said = [row for row in (token.life_s, _jwt_life_s(token.text)) if row is not None]
    return max(min(said), 0.0) if said else 0.0


def _jwt_life_s(token: Secret) -> float | None:
    """By the token's own `exp` (RFC 7519). Nothing is verified: that is the broker's business."""
    parts = token.reveal().split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"]) - time.time()
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


# --- ways to a token -------------------------------------------------------------------------


def _from_server(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    return fetch_token(settings, deadline, once=once)


def _from_file(path: str) -> Secret:
    try:
        with Path(path).open("rb") as file:
            content = SecretBytes(file.read(MAX_TOKEN_BYTES + 1))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise AuthenticationError(
            f"the file of the OAuth token, {path}, cannot be read on this machine ({what})"
        ) from None
    token = Secret(content.reveal().decode("utf-8", "replace").strip())
    if not token or len(content) > MAX_TOKEN_BYTES:
        raise AuthenticationError(
            f"the file of the OAuth token, {path}, is {'too large' if token else 'empty'}"
        )
    return token


def _from_callback(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    call = settings.callback
    name = call if isinstance(call, str) else getattr(call, "__name__", type(call).__name__)
    if isinstance(call, str):
        call = _imported(call)
    try:
        token, kind = _as_token(call())
    except (Exception, SystemExit) as error:
        # A thread that connects would end by SystemExit without a message. The words of either are
        # the user's, but might hold what it worked with.
        raise AuthenticationError(
            f"the callable {name}, which is to give an OAuth token, raised {type(error).__name__}"
        ) from error
    if token is None:
        raise AuthenticationError(
            f"the callable {name} is to return a token, or (token, seconds since 1970 at which it "
            f"ends), and returned a {kind}"
        )
    return token


def _as_token(answer: Any) -> tuple[Token | None, str]:
    """A callable's answer as a token, if it is one, and the name of its type."""
    kind = type(answer).__name__
    token, end_s = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    text = token.reveal() if isinstance(token, Secret) else token
    if not isinstance(text, str) or not isinstance(end_s, int | float | None):
        return None, kind
    try:
        life_s = None if end_s is None else end_s - time.time()
    except OverflowError:
        return None, kind
    return Token(Secret(text), life_s), kind


def _imported(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"the OAuth token's callable {name} cannot be imported as module:function ({error}); "
            "it must be on each worker's path"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise OptionError(
            f"the module of the OAuth token's callable {name} raises {type(error).__name__} when "
            "it is imported"
        ) from error
    if not callable(found):
        raise OptionError(f"{name}, which is to give an OAuth token, is not callable")
    return found


def _from_nobody(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """A token without a signature (RFC 7515, A.5), as Java's own for tests."""
    now_s = time.time()
    claims = dict(settings.unsecured_claims)
    claims = {"iat": now_s, "exp": now_s + settings.unsecured_life_s} | claims
    return Token(_dotted('{"alg": "none"}', json.dumps(claims), ""), settings.unsecured_life_s)


def _dotted(*parts: str) -> Secret:
    """Each in base64, as in a JWT."""
    rows = (base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return Secret(".".join(rows))


# --- by the libraries of Amazon and Google, which are extras ---------------------------------


def _from_amazon(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    needs = "AWS_MSK_IAM needs Amazon's signer on each machine"
    with needs_extra(needs, "aws", error=OptionError, note=f" (or {_AWS_PACKAGE})"):
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    region = settings.aws_region or _aws_region(settings.aws_profile)
    try:
        signed = _signed(signer, region, settings)
    except Exception as error:  # of boto's many kinds
        words = " ".join(str(error).split())
        for secret in (settings.aws_role_secret_access_key, settings.aws_role_session_token):
            words = words.replace(secret.reveal(), "***") if secret else words
        raise AuthenticationError(
            f"AWS_MSK_IAM: Amazon's signer gives no token: {type(error).__name__}: "
            f"{words[:300]}; are there AWS credentials on this machine?"
        ) from None
    text, end_ms = signed if isinstance(signed, tuple) else (signed, 0)
    return Token(Secret(text), min(end_ms / 1000 - time.time(), LONGEST_AWS_S))


def _signed(signer: Any, region: str, settings: OAuthSettings) -> Any:
    """What the signer returns. As in Amazon's library for Java, the profile comes before the role,
    which is for machines without that profile. Whoever the machine is signs only if neither is
    named: Java falls back to it, and then acts as somebody else."""
    if settings.aws_profile:
        try:
            return signer.generate_auth_token_from_profile(region, settings.aws_profile)
        except Exception as error:
            if not settings.aws_role_arn:
                raise
            log.warning(
                "the AWS profile %s gives no token (%s): the role %s is assumed, which "
                "sasl.jaas.config names too",
                settings.aws_profile,
                type(error).__name__,
                settings.aws_role_arn,
            )
    if settings.aws_role_arn:
        provider = _assumed_role(settings)
        return signer.generate_auth_token_from_credentials_provider(region, provider)
    return signer.generate_auth_token(region)


def _assumed_role(settings: OAuthSettings) -> Any:
    """A provider of the role's credentials. The signer's own way to a role knows neither external
    ids nor keys, and no region of the token service."""
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=settings.connect_timeout_ms / 1000,
        read_timeout=settings.read_timeout_ms / 1000,
        retries={"total_max_attempts": settings.aws_max_retries + 1},
        use_fips_endpoint=settings.aws_use_fips,
    )
    keys = {
        "aws_access_key_id": settings.aws_role_access_key_id,
        "aws_secret_access_key": settings.aws_role_secret_access_key.reveal(),
        "aws_session_token": settings.aws_role_session_token.reveal(),
    }
    sts = importlib.import_module("boto3").client(
        "sts",
        region_name=settings.aws_sts_region or "aws-global",
        config=config,
        **{name: value for name, value in keys.items() if value},
    )
    credentials = importlib.import_module("botocore.credentials")
    asked = {
        "RoleArn": settings.aws_role_arn,
        "RoleSessionName": settings.aws_role_session_name or AWS_SESSION_NAME,
    }
    if settings.aws_role_external_id:
        asked["ExternalId"] = settings.aws_role_external_id

    def load(_provider: Any) -> Any:
        answer = sts.assume_role(**asked)["Credentials"]
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
        return credentials.Credentials(*(answer[name] for name in names))

    return type("AssumedRole", (credentials.CredentialProvider,), {"load": load})()


def _aws_region(profile: str) -> str:
    """As the AWS SDK has it."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        try:
            sessions = importlib.import_module("botocore.session")
            region = sessions.Session(profile=profile or None).get_config_variable("region")
        except Exception:  # no botocore, or no such profile, of which the signer has better words
            region = None
    if not region:
        raise OptionError(
            "AWS_MSK_IAM: the cluster's region is not known: set awsRegion in sasl.jaas.config, or "
            "the environment variable AWS_REGION on each machine"
        )
    return str(region)


def _from_google(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """The application's default credentials of Google's cloud, in the form of its
    GcpLoginCallbackHandler for Java: header, account and access token, each in base64."""
    needs = "Google's managed Kafka needs Google's library on each machine"
    with needs_extra(needs, "gcp", error=OptionError, note=" (or google-auth and requests)"):
        auth = importlib.import_module("google.auth")
        transport = importlib.import_module("google.auth.transport.requests")
    try:
        credentials, _project = auth.default(scopes=[_GOOGLE_SCOPE])
        # Its own timeout is two minutes.
        limit_s = min(settings.read_timeout_ms / 1000, max(deadline.remaining_s(), 0.001))
        credentials.refresh(functools.partial(transport.Request(), timeout=limit_s))
        account = getattr(credentials, "service_account_email", None)
        end_s = credentials.expiry.replace(tzinfo=UTC).timestamp()
        access_token = Secret(credentials.token)
    except Exception as error:  # of its many kinds
        raise AuthenticationError(
            f"Google's library gives no token: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; are there Google credentials on this machine?"
        ) from None
    if not isinstance(account, str) or "@" not in account:
        raise AuthenticationError(
            "Google's credentials of this machine belong to no service account: Kafka wants one "
            f"(they are of the kind {type(credentials).__name__})"
        )
    now_s = time.time()
    claims = {"exp": int(end_s), "iat": int(now_s), "iss": "Google", "scope": "kafka"}
    claims["sub"] = account
    header = json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"})
    return Token(_dotted(header, json.dumps(claims), access_token.reveal()), end_s - now_s)


_MAKERS: Final[dict[str, Callable[[OAuthSettings, Deadline, bool], Token]]] = {
    CLIENT_CREDENTIALS: _from_server,
    CALLBACK: _from_callback,
    AWS_MSK_IAM: _from_amazon,
    GOOGLE: _from_google,
    UNSECURED: _from_nobody,
}
