"""Describe, set and delete passwords of SCRAM users (KIP-554).

Passwords are salted here, and only the salted ones are sent. No variable holds a password in the
clear: see `sparkkafka.secret`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.auth.sasl import MIN_ITERATIONS, salted_password
from sparkkafka.client.cluster.request_driver import ApiHandler, Outcome, Outcomes, ToController
from sparkkafka.client.values import Results
from sparkkafka.config.security.references import resolve_references
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.protocol import messages
from sparkkafka.secret import Secret, SecretBytes

log = logging.getLogger(__name__)

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}

MAX_ITERATIONS: Final = 16_384
"""org.apache.kafka.common.security.scram.internals.ScramMechanism; brokers refuse more."""


class ScramCredentialInfo(NamedTuple):
    """A password as brokers describe it: its mechanism and its iterations."""

    mechanism: str
    iterations: int


class Unresolved(Secret):
    """A password as the caller wrote it: it may be a reference, which is not resolved yet."""


@dataclass(frozen=True)
class UserScramCredentialUpsertion:
    """A password to set, or to replace: UserScramCredentialUpsertion("alice", "SCRAM-SHA-512",
    "${env:ALICE_PASSWORD}").

    References in `password` are looked up when it is set; a `Secret` is taken as it is.
    `iterations` are from 4096 to 16384: more make a stolen hash harder to guess, and each login
    slower.
    """

    user: str
    mechanism: str
    password: str | Secret = field(repr=False)
    _: KW_ONLY
    iterations: int = MIN_ITERATIONS

    def __post_init__(self) -> None:
        # Nothing is checked here: an error's frame would have the password as text.
        if isinstance(self.password, str):
            object.__setattr__(self, "password", Unresolved(self.password))


@dataclass(frozen=True)
class UserScramCredentialDeletion:
    """A password to delete: UserScramCredentialDeletion("alice", "SCRAM-SHA-512")."""

    user: str
    mechanism: str


Alteration = UserScramCredentialUpsertion | UserScramCredentialDeletion


# --- reading ----------------------------------------------------------------------------------


class _DescribeScram(ApiHandler[str | None, Any]):
    """Describes SCRAM passwords. Items are users, or one item None for all users."""

    request_type = messages.DescribeUserScramCredentialsRequest
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[str | None], version: int) -> Any:
        """Build the request for the mechanisms of these users; the item None stands for all
        users."""
        # An empty list stands for all users, as None does. Brokers do not answer None at all if
        # they refuse it (4.3: a NullPointerException in getErrorResponse).
        users = [messages.UserName(name=item) for item in items if item is not None]
        return messages.DescribeUserScramCredentialsRequest(users=users)

    def read(self, response: Any, items: Sequence[str | None]) -> Outcomes[str | None]:
        """Return the credentials of each user; for the item None, those of all users by name."""
        if None not in items:
            return [(row.user, Outcome.of(row, _credential_infos(row))) for row in response.results]
        every_user = {
            row.user: BrokerError(row.error_code, f"user {row.user}", row.error_message)
            if row.error_code
            else _credential_infos(row)
            for row in response.results
        }
        return [(None, Outcome(0, every_user))]

    def name(self, item: str | None) -> str:
        return "all users" if item is None else f"user {item}"


def _credential_infos(description: Any) -> tuple[ScramCredentialInfo, ...]:
    """Return the mechanisms and iterations of a user, from a response to
    DescribeUserScramCredentials."""
    names_of = {number: name for name, number in MECHANISMS.items()}
    return tuple(
        ScramCredentialInfo(names_of.get(info.mechanism, str(info.mechanism)), info.iterations)
        for info in description.credential_infos
    )


# --- changing ---------------------------------------------------------------------------------


class _Salted(NamedTuple):
    """A salted password to set, with its salt and iterations."""

    iterations: int
    salt: SecretBytes
    salted_password: SecretBytes


class _AlterScram(ApiHandler[tuple[str, str], None]):
    """Sets and deletes SCRAM passwords. Items are pairs of a user and a mechanism."""

    request_type = messages.AlterUserScramCredentialsRequest
    name_format = "user {0[0]} for {0[1]}"
    acl = "ALTER on the cluster"

    def __init__(self, changes: Mapping[tuple[str, str], _Salted | None]) -> None:
        self._changes = changes  # None: a deletion

    def split(
        self, items: Sequence[tuple[str, str]], version: int
    ) -> Iterable[Sequence[tuple[str, str]]]:
        """Make a request for each mechanism, the second part of an item: KRaft controllers accept
        one change of a user in a request (ScramControlManager)."""
        return filter(None, ([item for item in items if item[1] == name] for name in MECHANISMS))

    def build(self, items: Sequence[tuple[str, str]], version: int) -> Any:
        """Build the request that changes these credentials, each named by (user, mechanism): sets
        the salted password, or deletes the credential if there is none."""
        request = messages.AlterUserScramCredentialsRequest()
        for user, name in items:
            mechanism, salted = MECHANISMS[name], self._changes[user, name]
            if salted is None:
                request.deletions.append(
                    messages.ScramCredentialDeletion(name=user, mechanism=mechanism)
                )
                continue
            # The message's repr hides what is revealed here.
            request.upsertions.append(
                messages.ScramCredentialUpsertion(
                    name=user,
                    mechanism=mechanism,
                    iterations=salted.iterations,
                    salt=salted.salt.reveal(),
                    salted_password=salted.salted_password.reveal(),
                )
            )
        return request

    def read(self, response: Any, items: Sequence[tuple[str, str]]) -> Outcomes[tuple[str, str]]:
        """Return the error code of each user and mechanism: 0 if the password was changed."""
        item_of = {user: (user, mechanism) for user, mechanism in items}  # see `split`
        return [
            (item_of[row.user], Outcome.of(row)) for row in response.results if row.user in item_of
        ]

    def is_already_done(self, item: tuple[str, str], code: int) -> bool:
        """Return whether an earlier attempt, whose response was lost, has deleted the password."""
        return self._changes[item] is None and code == ErrorCode.RESOURCE_NOT_FOUND


def _check_alteration(alteration: Alteration) -> None:
    """Raise OptionError unless the object is an alteration: an upsertion or a deletion with valid
    fields."""
    if not isinstance(alteration, UserScramCredentialUpsertion | UserScramCredentialDeletion):
        raise OptionError(
            "alterations is a list of UserScramCredentialUpsertion and "
            f"UserScramCredentialDeletion; one in it is of type {type(alteration).__name__}"
        )
    if not arguments.checked_name(alteration.user, "a SCRAM user"):
        raise OptionError("a SCRAM user's name is not empty")
    arguments.checked_choice(alteration.mechanism, MECHANISMS, f"user {alteration.user}: mechanism")
    if isinstance(alteration, UserScramCredentialDeletion):
        return
    what = f"user {alteration.user}: iterations"
    arguments.checked_int(alteration.iterations, what, MIN_ITERATIONS, MAX_ITERATIONS)


def _salt(upsertion: UserScramCredentialUpsertion) -> _Salted:
    """Resolve the reference to the password and return the salted password. Raises OptionError."""
    if not isinstance(upsertion.password, Secret):
        raise OptionError(
            f"user {upsertion.user}: the password is text, or a Secret, got "
            f"{type(upsertion.password).__name__}"
        )
    password = upsertion.password
    if isinstance(password, Unresolved):
        password = resolve_references(password, f"password of user {upsertion.user}")
    if not password:
        raise OptionError(f"user {upsertion.user}: the password is empty")
    salt = secrets.token_bytes(24)
    try:
        salted = salted_password(upsertion.mechanism, password, salt, upsertion.iterations)
    except UnicodeEncodeError:  # the error quotes the password
        raise OptionError(
            f"user {upsertion.user}: the password has a character that UTF-8 cannot encode"
        ) from None
    return _Salted(upsertion.iterations, SecretBytes(salt), salted)


class ScramAdmin(AdminCalls):
    """The calls of `Admin` about SCRAM users."""

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_s: float | None = None
    ) -> Results[str, tuple[ScramCredentialInfo, ...]]:
        """Return mechanism and iterations of the SCRAM passwords of `users` (Kafka 2.7); with None
        those of all users that have one, and then KafkaError is raised if the request fails.

        The error of a named user without a password is RESOURCE_NOT_FOUND.
        """
        with self._call(timeout_s) as (cluster, deadline):
            lookup, what = ToController(cluster), "reading SCRAM users"
            if users is not None:
                items: list[str | None] = [*arguments.checked_names(users, "users")]
                return lookup.call_each(items, _DescribeScram(), deadline, what)  # type: ignore[arg-type]
            every_user = lookup.call_each([None], _DescribeScram(), deadline, what)[None]
            return Results(dict(sorted(every_user.items())))

    def alter_user_scram_credentials(
        self, alterations: Iterable[Alteration], *, timeout_s: float | None = None
    ) -> Results[str, None]:
        """Set passwords (UserScramCredentialUpsertion), which are salted here, and delete passwords
        (UserScramCredentialDeletion).

        Return results by user. The error of a user is that of the first alteration that failed:
        RESOURCE_NOT_FOUND, UNACCEPTABLE_CREDENTIAL, … Raises OptionError, also for a reference that
        is not there.
        """
        example = 'UserScramCredentialDeletion("alice", "SCRAM-SHA-512")'
        checked = arguments.checked_list(
            alterations, UserScramCredentialDeletion, "alterations", example, strict=False
        )
        for alteration in checked:
            _check_alteration(alteration)
        changes: dict[tuple[str, str], _Salted | None] = {}
        for alteration in checked:
            user, mechanism = alteration.user, alteration.mechanism
            if (user, mechanism) in changes:
                raise OptionError(f"user {user}: {mechanism} is altered twice in one call")
            changes[user, mechanism] = (
                _salt(alteration) if isinstance(alteration, UserScramCredentialUpsertion) else None
            )
        with self._call(timeout_s) as (cluster, deadline):
            protocol = cluster.options.security.protocol
            if any(changes.values()) and not protocol.endswith("SSL"):
                log.warning(
                    "security.protocol=%s sends salted passwords in the clear, and whoever reads "
                    "one can log in with it: use SSL or SASL_SSL outside of a test",
                    protocol,
                )
            handler, what = _AlterScram(changes), "altering SCRAM users"
            errors = ToController(cluster).call_each(changes, handler, deadline, what).errors
            outcome: dict[str, KafkaError | None] = {user: None for user, _ in changes}
            for (user, _), error in errors.items():
                outcome[user] = outcome[user] or error
            return Results(outcome)
