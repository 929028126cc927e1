"""Create, renew, expire and describe delegation tokens (KIP-48): temporary logins of a user.

A process that may not have a password gets a token's id and HMAC instead, which are user name and
password of SCRAM with `tokenauth=true`. No variable holds an HMAC in the clear: see
`sparkkafka.secret`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sparkkafka.client import arguments
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.errors import OptionError
from sparkkafka.protocol import messages
from sparkkafka.secret import Secret, SecretBytes


@dataclass(frozen=True)
class DelegationToken:
    """A token. Users are written as in User:alice, times are milliseconds since 1970 UTC.

    It expires at `expiry_timestamp_ms` unless it is renewed, and at `max_timestamp_ms` in any case.
    `requester` is the user who created it for its owner (Kafka 3.3), "" if that is not known.
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
        """The password of the token, for the user name `token_id`."""
        return Secret(base64.b64encode(self.hmac.reveal()).decode())


def _make_token(
    response: Any, renewers: Iterable[tuple[str, str]], times_ms: tuple[int, int, int]
) -> DelegationToken:
    """Return the token that a response, or a part of one, describes. `renewers` has (type, name) of
    users, `times_ms` the timestamps of its issue, its expiry and its latest possible expiry."""
    requester = response.token_requester_principal_name
    return DelegationToken(
        response.token_id,
        SecretBytes(response.hmac),
        f"{response.principal_type}:{response.principal_name}",
        f"{response.token_requester_principal_type}:{requester}" if requester else "",
        tuple(f"{kind}:{name}" for kind, name in renewers),
        *times_ms,
    )


def _checked_period(period: int | None, argument: str) -> int:
    """Return the period to send, in ms; for None -1, the brokers' default. Raises OptionError,
    which names the argument."""
    if period is None:
        # The brokers' default period; in ExpireDelegationToken it means now.
        return -1
    return arguments.checked_int(period, argument, 1)


class TokenAdmin(AdminCalls):
    """The calls of `Admin` about delegation tokens."""

    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> DelegationToken:
        """Create a delegation token for this user, or for an owner (User:alice; Kafka 3.3, needs
        CREATE_TOKENS on the user). `renewers` and its owner may renew it. It cannot be renewed
        beyond `max_lifetime_ms` (None: delegation.token.max.lifetime.ms of the brokers).

        Raises OptionError, and KafkaError: DELEGATION_TOKEN_AUTH_DISABLED,
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for a connection without a login, …
        """
        owner_type, owner_name = (
            (None, None) if owner is None else arguments.checked_principal(owner, "owner")
        )
        renewer_principals = [
            arguments.checked_principal(user, "each of renewers")
            for user in arguments.checked_names(renewers, "renewers")
        ]
        request = messages.CreateDelegationTokenRequest(
            owner_principal_type=owner_type,
            owner_principal_name=owner_name,
            renewers=[
                messages.CreatableRenewers(principal_type=kind, principal_name=name)
                for kind, name in renewer_principals
            ],
            max_lifetime_ms=_checked_period(max_lifetime_ms, "max_lifetime_ms"),
        )

        def read(response: Any) -> DelegationToken:
            """Return the token of the response; its owner and renewers are those of the request."""
            times_ms = (
                response.issue_timestamp_ms,
                response.expiry_timestamp_ms,
                response.max_timestamp_ms,
            )
            return _make_token(response, renewer_principals, times_ms)

        versions = {} if owner is None else {"a token for another owner": 3}
        return self._one("getting a delegation token", request, read, timeout_s, versions=versions)

    def renew_delegation_token(
        self,
        token: DelegationToken,
        *,
        renew_period_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Let a token expire `renew_period_ms` from now (None: delegation.token.expiry.time.ms of
        the brokers), but not after its `max_timestamp_ms`. Return the time at which it expires, in
        ms since 1970. Raises KafkaError: DELEGATION_TOKEN_EXPIRED, …"""
        period = {"renew_period_ms": _checked_period(renew_period_ms, "renew_period_ms")}
        return self._change_expiry(
            token, "renewing", messages.RenewDelegationTokenRequest, period, timeout_s
        )

    def expire_delegation_token(
        self,
        token: DelegationToken,
        *,
        expiry_period_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Let a token expire after `expiry_period_ms`, with None now. Return the time at which it
        expires, in ms since 1970. Raises KafkaError."""
        period = {"expiry_time_period_ms": _checked_period(expiry_period_ms, "expiry_period_ms")}
        return self._change_expiry(
            token, "ending", messages.ExpireDelegationTokenRequest, period, timeout_s
        )

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> list[DelegationToken]:
        """List the tokens of these owners (User:alice); with None all that this user may see: those
        it owns, those it may renew, and those on which it has DESCRIBE. Raises KafkaError."""
        request = messages.DescribeDelegationTokenRequest(owners=None)
        if owners is not None:
            principals = [
                arguments.checked_principal(owner, "each of owners")
                for owner in arguments.checked_names(owners, "owners")
            ]
            request.owners = [
                messages.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in principals
            ]

        def read(response: Any) -> list[DelegationToken]:
            """Return the tokens of the response."""
            return [
                _make_token(
                    token,
                    [(user.principal_type, user.principal_name) for user in token.renewers],
                    (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp),
                )
                for token in response.tokens
            ]

        return self._one("reading delegation tokens", request, read, timeout_s)

    def _change_expiry(
        self,
        token: DelegationToken,
        doing: str,
        request_type: type[Any],
        period: dict[str, int],
        timeout_s: float | None,
    ) -> int:
        """Renew or expire a token. Returns the new expiry time, ms since 1970.

        `doing` is the verb for errors, `period` the field of the request that has the period in ms.
        """
        if not isinstance(token, DelegationToken):
            raise OptionError(
                "token is a DelegationToken, of create_delegation_token or "
                f"describe_delegation_tokens, got {type(token).__name__}"
            )
        request = request_type(hmac=token.hmac.reveal(), **period)  # its repr hides the HMAC
        what = f"{doing} delegation token {token.token_id}"
        return self._one(
            what, request, lambda response: int(response.expiry_timestamp_ms), timeout_s
        )
