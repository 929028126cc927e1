"""Tokens for OAUTHBEARER by the libraries of Amazon and Google, which are extras."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import logging
import os
import time
from datetime import UTC
from typing import Any, Final

from sparkkafka.client.auth.token_endpoint import Token
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import OAuthSettings
from sparkkafka.errors import AuthenticationError, OptionError
from sparkkafka.secret import Secret

log = logging.getLogger(__name__)

LONGEST_AWS_S = 900.0
"""Amazon's signer signs for so long; what it says of the end is hours off where the machine's
time zone is not UTC."""

AWS_SESSION_NAME = "aws-msk-iam-auth"
"""As Amazon's library for Java names it: policies and audit logs know it by this name."""

_AWS_PACKAGE: Final = "aws-msk-iam-sasl-signer-python"

_GOOGLE_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


# --- Amazon MSK -----------------------------------------------------------------------------------


def amazon_token(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    try:
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError:
        raise OptionError(
            "AWS_MSK_IAM needs Amazon's signer on each machine: pip install 'sparkkafka[aws]' "
            f"(or {_AWS_PACKAGE})"
        ) from None
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


# --- Google's managed Kafka -----------------------------------------------------------------------


def google_token(settings: OAuthSettings, deadline: Deadline, once: bool) -> Token:
    """The application's default credentials of Google's cloud, in the form of its
    GcpLoginCallbackHandler for Java: header, account and access token, each in base64."""
    try:
        auth = importlib.import_module("google.auth")
        transport = importlib.import_module("google.auth.transport.requests")
    except ImportError:
        raise OptionError(
            "Google's managed Kafka needs Google's library on each machine: pip install "
            "'sparkkafka[gcp]' (or google-auth and requests)"
        ) from None
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
    parts = [
        json.dumps({"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}),
        json.dumps(claims),
        access_token.reveal(),
    ]
    text = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return Token(Secret(text), end_s - now_s)
