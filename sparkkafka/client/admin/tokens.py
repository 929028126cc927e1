"""Delegation tokens (KIP-48): a login for a while, got by a user with a login of another kind.

A process that may not have a password gets a token's id and HMAC instead: user name and password of
SCRAM with `tokenauth=true`. No variable holds an HMAC in the clear, see `sparkkafka.secret`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sparkkafka.client.arguments import names, whole
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_all
from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from sparkkafka.secret import Secret, SecretBytes

T = TypeVar("T")

_OWNER_VERSION = 3  # of CreateDelegationToken
_NOW_MS: Final = -1
_MOST_MS: Final = 2**63 - 1


@dataclass(frozen=True)
class DelegationToken:
    """A token. Users are written as in User:alice, times are milliseconds since 1970 UTC.

    `expiry_timestamp_ms` is when it ends unless it is renewed, `max_timestamp_ms` when it ends in
    any case. `requester` is who got it for its owner (Kafka 3.3), "" if that is not known.
    """

    token_id: str
    hmac: SecretBytes = field(repr=False, compare=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def hmac_as_base64(self) -> Secret:
        """The password that belongs to the user name `token_id`."""
        return Secret(base64.b64encode(self.hmac.reveal()).decode())


class _OneCall(ApiHandler[str, T]):
    """One request, and what its answer is read as."""

    def __init__(
        self, request_type: type[Any], build: Callable[[], Any], read: Callable[[Any], T]
    ) -> None:
        self.request_type = request_type  # type: ignore[misc]  # of this request alone
        self._build = build
        self._read = read

    def lacking(self, item: str, version: int) -> str | None:
        request = self._build() if version < _OWNER_VERSION else None
        if getattr(request, "owner_principal_name", None) is not None:
            return self.needs("a token for another owner", _OWNER_VERSION)
        return None

    def build(self, items: Sequence[str], version: int) -> Any:
        return self._build()

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        code = response.error_code
        return [(item, Row(code, None if code else self._read(response))) for item in items]


def _call(
    cluster: Cluster,
    what: str,
    request_type: type[Any],
    build: Callable[[], Any],
    read: Callable[[Any], T],
    deadline: Deadline,
) -> T:
    handler = _OneCall(request_type, build, read)
    return call_all(cluster, [what], handler, ToAny(), deadline, what)[what]


def create_delegation_token(
    cluster: Cluster,
    deadline: Deadline,
    *,
    owner: str | None,
    renewers: Iterable[str],
    max_lifetime_ms: int | None,
) -> DelegationToken:
    """Get a token. Raises OptionError, KafkaError."""
    kind, name = (None, None) if owner is None else _principal(owner, "owner")
    others = [_principal(one, "renewers") for one in names(renewers, "renewers")]
    lifetime_ms = _period(max_lifetime_ms, "max_lifetime_ms", -1)

    def build() -> CreateDelegationTokenRequest:
        return CreateDelegationTokenRequest(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=[CreatableRenewers(principal_type=k, principal_name=n) for k, n in others],
            max_lifetime_ms=lifetime_ms,
        )

    def read(answer: Any) -> DelegationToken:
        return DelegationToken(
            token_id=answer.token_id,
            hmac=SecretBytes(answer.hmac),
            owner=f"{answer.principal_type}:{answer.principal_name}",
            requester=_requester(answer),
            renewers=tuple(f"{k}:{n}" for k, n in others),
            issue_timestamp_ms=answer.issue_timestamp_ms,
            expiry_timestamp_ms=answer.expiry_timestamp_ms,
            max_timestamp_ms=answer.max_timestamp_ms,
        )

    what = "getting a delegation token"
    return _call(cluster, what, CreateDelegationTokenRequest, build, read, deadline)


def renew_delegation_token(
    cluster: Cluster, token: DelegationToken, deadline: Deadline, *, renew_period_ms: int | None
) -> int:
    """Returns when it ends now, ms since 1970. Raises OptionError, KafkaError."""
    period_ms = _period(renew_period_ms, "renew_period_ms", -1)
    hmac = _hmac(token)

    def build() -> RenewDelegationTokenRequest:
        return RenewDelegationTokenRequest(hmac=hmac.reveal(), renew_period_ms=period_ms)

    what = f"renewing delegation token {token.token_id}"
    return _call(cluster, what, RenewDelegationTokenRequest, build, _expiry, deadline)


def expire_delegation_token(
    cluster: Cluster, token: DelegationToken, deadline: Deadline, *, expiry_period_ms: int | None
) -> int:
    """Returns when it ends now, ms since 1970. Raises OptionError, KafkaError."""
    period_ms = _period(expiry_period_ms, "expiry_period_ms", _NOW_MS)
    hmac = _hmac(token)

    def build() -> ExpireDelegationTokenRequest:
        return ExpireDelegationTokenRequest(hmac=hmac.reveal(), expiry_time_period_ms=period_ms)

    what = f"ending delegation token {token.token_id}"
    return _call(cluster, what, ExpireDelegationTokenRequest, build, _expiry, deadline)


def describe_delegation_tokens(
    cluster: Cluster, owners: Iterable[str] | None, deadline: Deadline
) -> list[DelegationToken]:
    """The tokens of these owners, or all that this user may see. Raises OptionError, KafkaError."""
    wanted = None if owners is None else [_principal(o, "owners") for o in names(owners, "owners")]

    def build() -> DescribeDelegationTokenRequest:
        return DescribeDelegationTokenRequest(
            owners=None
            if wanted is None
            else [
                DescribeDelegationTokenOwner(principal_type=k, principal_name=n) for k, n in wanted
            ]
        )

    def read(answer: Any) -> list[DelegationToken]:
        return [
            DelegationToken(
                token_id=row.token_id,
                hmac=SecretBytes(row.hmac),
                owner=f"{row.principal_type}:{row.principal_name}",
                requester=_requester(row),
                renewers=tuple(f"{r.principal_type}:{r.principal_name}" for r in row.renewers),
                issue_timestamp_ms=row.issue_timestamp,
                expiry_timestamp_ms=row.expiry_timestamp,
                max_timestamp_ms=row.max_timestamp,
            )
            for row in answer.tokens
        ]

    what = "reading delegation tokens"
    return _call(cluster, what, DescribeDelegationTokenRequest, build, read, deadline)


def _requester(row: Any) -> str:
    name = row.token_requester_principal_name
    return f"{row.token_requester_principal_type}:{name}" if name else ""


def _expiry(answer: Any) -> int:
    return int(answer.expiry_timestamp_ms)


def _principal(text: str, argument: str) -> tuple[str, str]:
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (kind and name):
        raise OptionError(f"{argument}: a principal is written like User:alice, got {text!r}")
    return kind, name


def _period(given: int | None, argument: str, default_ms: int) -> int:
    if given is None:
        return default_ms
    period_ms = whole(given, argument)
    if not 0 < period_ms <= _MOST_MS:
        raise OptionError(f"{argument} is a number of ms above 0, got {period_ms}")
    return period_ms


def _hmac(token: Any) -> SecretBytes:
    if not isinstance(token, DelegationToken):
        raise OptionError(
            "token is a DelegationToken, of create_delegation_token or describe_delegation_tokens, "
            f"got {type(token).__name__}"
        )
    return token.hmac
