"""Who signs for Amazon MSK: the options of Amazon's MSKCredentialProvider for Java."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sparkkafka.config.security.jaas import JAAS, LoginModule
from sparkkafka.config.security.settings import AWS_MSK_IAM, OAuthSettings
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

_AWS_HOST = re.compile(
    r".+\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?", re.IGNORECASE
)


_AWS_ROLE = ("awsRoleSessionName", "awsRoleExternalId")
_AWS_KEYS = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey")
_AWS_KEY_TOKEN = "awsRoleSessionToken"  # noqa: S105
_AWS_FLAGS = ("awsShouldUseFips", "awsAddDefaultProviders", "awsDebugCreds")
_AWS_NUMBERS = ("awsMaxRetries", "awsMaxBackOffTimeMs")
AWS_OPTIONS: Final = (
    "awsProfileName",
    "awsRoleArn",
    *_AWS_ROLE,
    *_AWS_KEYS,
    _AWS_KEY_TOKEN,
    "awsStsRegion",
    "awsRegion",
    *_AWS_FLAGS,
    *_AWS_NUMBERS,
)
"""Those of Amazon's MSKCredentialProvider for Java, and awsRegion."""


def msk_settings(
    timing: dict[str, Any], jaas: LoginModule, servers: tuple[tuple[str, int], ...]
) -> OAuthSettings:
    """Raises OptionError for what would sign as another identity than the options name."""
    options = jaas.options
    _check_aws(options)
    regions = {match[1].lower() for host, _ in servers if (match := _AWS_HOST.fullmatch(host))}
    if "awsMaxBackOffTimeMs" in options:
        timing["retry_backoff_max_ms"] = int(options["awsMaxBackOffTimeMs"])
        timing["retry_backoff_ms"] = min(timing["retry_backoff_ms"], timing["retry_backoff_max_ms"])
    return OAuthSettings(
        method=AWS_MSK_IAM,
        aws_region=options.get("awsRegion", "") or (regions.pop() if len(regions) == 1 else ""),
        aws_profile=options.get("awsProfileName", ""),
        aws_role_arn=options.get("awsRoleArn", ""),
        aws_role_session_name=options.get("awsRoleSessionName", ""),
        aws_role_external_id=options.get("awsRoleExternalId", ""),
        aws_role_access_key_id=options.get("awsRoleAccessKeyId", ""),
        aws_role_secret_access_key=Secret(options.get("awsRoleSecretAccessKey", "")),
        aws_role_session_token=Secret(options.get(_AWS_KEY_TOKEN, "")),
        aws_sts_region=options.get("awsStsRegion", ""),
        aws_use_fips=options.get("awsShouldUseFips") == "true",
        aws_max_retries=int(options.get("awsMaxRetries", 3)),
        **timing,
    )


def _check_aws(options: Mapping[str, str]) -> None:
    for name in options:
        if name == "awsMskRegionProvider":
            raise OptionError(
                f"{name} in {JAAS} names a Java class, which cannot run here: say the region with "
                "awsRegion"
            )
        if name not in AWS_OPTIONS:
            # Not shown: in a garbled text it may be a secret.
            raise OptionError(
                f"{JAAS} has an option that is unknown for AWS_MSK_IAM; there are "
                f"{', '.join(AWS_OPTIONS)}"
            )
    for name in AWS_OPTIONS:
        if options.get(name) == "" and not name.startswith("awsMax"):
            raise OptionError(f"{name} in {JAAS} is empty: remove it, or give it a value")
    if "awsRoleArn" not in options:
        for name in (*_AWS_ROLE, *_AWS_KEYS, _AWS_KEY_TOKEN):
            if name in options:
                raise OptionError(f"{name} in {JAAS} is for a role: awsRoleArn is missing")
    keys = [name for name in _AWS_KEYS if name in options]
    if len(keys) == 1 or (_AWS_KEY_TOKEN in options and not keys):
        given = keys[0] if keys else _AWS_KEY_TOKEN
        missing = [name for name in _AWS_KEYS if name not in options]
        raise OptionError(f"{given} in {JAAS} needs {' and '.join(missing)}, too")
    named = "awsProfileName" in options or "awsRoleArn" in options
    if options.get("awsAddDefaultProviders") == "true" and named:
        raise OptionError(
            f"awsAddDefaultProviders=true in {JAAS} would sign as whoever the machine is when the "
            "profile or role fails: remove it, or the profile and role"
        )
    if options.get("awsAddDefaultProviders") == "false" and not named:
        raise OptionError(
            f"awsAddDefaultProviders=false in {JAAS} leaves nobody to sign as: give "
            "awsProfileName or awsRoleArn"
        )
    if options.get("awsShouldUseFips") == "true":
        for name in ("awsRoleArn", "awsStsRegion"):
            if name not in options:
                raise OptionError(
                    f"awsShouldUseFips=true in {JAAS} is for the token service of a region: "
                    f"{name} is missing"
                )
    for name in _AWS_FLAGS:
        if options.get(name, "true") not in ("true", "false"):
            raise OptionError(f"{name} in {JAAS} must be true or false")
    for name in _AWS_NUMBERS:
        if not re.fullmatch("[0-9]{1,7}", options.get(name, "0")):
            raise OptionError(f"{name} in {JAAS} must be a whole number from 0 to 9999999")
