"""Security settings of a connection, with every reference resolved, for `client.auth`.

`secure_settings` makes them from `SecurityOptions` when a connection is opened. They are never kept
or pickled, because they hold secrets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka.secret import NO_SECRET, Secret

Servers = tuple[tuple[str, int], ...]
"""Hosts and ports."""

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class TokenMethod(enum.Enum):
    """Where an OAUTHBEARER token comes from, and the fields of `OAuthSettings` that it uses."""

    CLIENT_CREDENTIALS = "client_credentials"
    """A POST to `token_endpoint_url`, with `client_id`, `client_secret`, `scope` and `audience`, or
    with an `assertion` in place of id and secret. `tls` is for that endpoint. `header_urlencode`:
    id and secret are form-encoded before base64 (RFC 6749, 2.3.1), as some providers require.
    `allow_http`: also without TLS to another machine."""
    GIVEN_TOKEN = "token"  # noqa: S105
    """`token` itself."""
    TOKEN_FILE = "file"  # noqa: S105
    """The content of the file `token_path`, which is read each time."""
    CALLBACK = "callback"
    """`callback`: a callable without arguments, or "module:function" to import. It returns the
    token, or (token, its expiry in seconds since 1970)."""
    AWS_MSK_IAM = "aws_msk_iam"
    """Amazon's signer with `aws_…`; empty ones are those of the AWS SDK. The role `aws_role_arn` is
    assumed with `aws_role_access_key_id`, if that is set."""
    UNSECURED = "unsecured"
    """A token of `unsecured_claims` without a signature, valid for `unsecured_life_s`."""
    GOOGLE = "google"
    """The default credentials of Google's cloud."""


@dataclass(frozen=True)
class Store:
    """A store of certificates or keys: a file's path or PEM text, and the option that set it."""

    option: str
    path: str = ""
    text: Secret = NO_SECRET
    password: Secret = NO_SECRET

    def __bool__(self) -> bool:
        return bool(self.path or self.text)

    def __str__(self) -> str:
        return f"{self.option}={self.path}" if self.path else self.option


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """Settings of TLS.

    `truststore` has the authorities that brokers' certificates are checked against (empty: the
    system's), `revoked` their lists of revoked certificates. `certificates` and `key` are the
    client's, perhaps in the same store; if they are empty the client sends no certificate.
    `key_password` decrypts the key.
    """

    truststore: Store = Store("ssl.truststore.location")
    revoked: Store = Store("ssl.crl.location")
    certificates: Store = Store("ssl.keystore.location")
    key: Store = Store("ssl.keystore.location")
    key_password: Secret = NO_SECRET
    verify: bool = True
    check_hostname: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AssertionSettings:
    """An assertion in place of a client's secret (RFC 7523).

    It is the content of `file`, or a JWT that is signed with `key` by `algorithm` (RS256 or ES256).
    The JWT has `claims`, and the header and payload of the JSON in `template`; it is valid from
    `nbf_s` seconds ago until `exp_s` seconds from now.
    """

    file: Store = Store("sasl.oauthbearer.assertion.file")
    key: Store = Store("sasl.oauthbearer.assertion.private.key.file")
    passphrase: Secret = NO_SECRET
    template: Store = Store("sasl.oauthbearer.assertion.template.file")
    algorithm: str = "RS256"
    claims: tuple[tuple[str, str], ...] = ()
    exp_s: int = 300
    nbf_s: int = 60
    include_jti: bool = False


class OAuthOptionNames(NamedTuple):
    """Names of options in error messages: by default those for brokers' tokens; the Schema
    Registry's are others. `allow_http` "": there is no such option."""

    url: str = "sasl.oauthbearer.token.endpoint.url"
    allow_http: str = "sasl.oauthbearer.token.endpoint.allow.http"
    client: str = "sasl.oauthbearer.client.credentials.client.id and .client.secret"
    identity: str = (
        "sasl.oauthbearer.client.credentials.client.id, .client.secret and sasl.oauthbearer.scope"
    )
    trust: str = "the ssl.truststore options of sasl.jaas.config or of the client"
    versions: str = "ssl.enabled.protocols"


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """The source of OAUTHBEARER's tokens. Connections with equal settings share a token."""

    method: TokenMethod
    token: Secret = NO_SECRET
    token_path: str = ""
    token_endpoint_url: str = field(default="", repr=False)  # some have a key in it
    client_id: str = ""
    client_secret: Secret = NO_SECRET
    scope: str = ""
    audience: str = ""
    header_urlencode: bool = False
    callback: str | Callable[[], Any] = ""
    tls: TlsSettings = TlsSettings()
    allow_http: bool = False
    assertion: AssertionSettings | None = None
    unsecured_claims: tuple[tuple[str, Any], ...] = ()
    unsecured_life_s: float = 0
    aws_region: str = ""
    aws_profile: str = ""
    aws_role_arn: str = ""
    aws_role_session_name: str = ""
    aws_role_external_id: str = ""
    aws_role_access_key_id: str = field(default="", repr=False)
    aws_role_secret_access_key: Secret = NO_SECRET
    aws_role_session_token: Secret = NO_SECRET
    aws_sts_region: str = ""
    aws_use_fips: bool = False
    aws_max_retries: int = 3
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    extensions: tuple[tuple[str, str], ...] = ()
    options: OAuthOptionNames = field(default=OAuthOptionNames(), repr=False)


@dataclass(frozen=True, kw_only=True)
class KerberosSettings:
    """The source of GSSAPI's Kerberos ticket: the key of `principal` in the file `keytab`, or the
    file `ticket_cache` ("": the user's own cache). With `prefer_cache` the cache is tried first. A
    broker's name is `service_name`/host."""

    service_name: str = "kafka"
    principal: str = ""
    keytab: str = ""
    ticket_cache: str = ""
    prefer_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class SaslChoice:
    """Settings of SASL: the mechanism as brokers know it, and the identity.

    `oauth` is set for OAUTHBEARER (and AWS_MSK_IAM, which is OAUTHBEARER on the wire), `kerberos`
    for GSSAPI. `token_auth`: the user is a delegation token (KIP-48).
    """

    mechanism: str
    username: str = ""
    password: Secret = NO_SECRET
    token_auth: bool = False
    oauth: OAuthSettings | None = None
    kerberos: KerberosSettings | None = None
