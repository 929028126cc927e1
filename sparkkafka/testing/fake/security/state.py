"""The ACLs of a fake cluster, by the rules of Kafka's AclControlManager, ResourcePatternFilter and
StandardAuthorizer, and its SCRAM users by those of ScramControlManager."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.log.producers import Refused

ANY = 1
# ResourceType, PatternType, AclOperation and AclPermissionType of Kafka, without 0 (unknown).
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
RESOURCE_TYPES = range(2, 8)
MATCH, LITERAL, PREFIXED = 2, 3, 4
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
DESCRIBE_CONFIGS, ALTER_CONFIGS = 10, 11
OPERATIONS = range(2, 16)
DENY, ALLOW = PERMISSIONS = range(2, 4)
IMPLIED_BY = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}
CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
ANY_USER = "User:*"

SCRAM_MECHANISMS = (1, 2)
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384


class StoredAcl(NamedTuple):
    """One ACL. The numbers are those of Kafka's messages."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def is_about(self, resource_type: int, name: str) -> bool:
        """Return whether the ACL's pattern matches this resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)


class StoredFilter(NamedTuple):
    """A filter of ACLs. ANY stands for any type, None for any text."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: StoredAcl) -> bool:
        """Return whether an ACL matches this filter."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
        )

    def _matches_name(self, acl: StoredAcl) -> bool:
        """Return whether an ACL's resource name matches. MATCH takes every pattern that applies to
        the name."""
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


class FakeAcls:
    """All ACLs, in the order in which they were created.

    A resource without ACLs may be used by everyone. `super_users` are principals that may do
    anything.
    """

    def __init__(self, super_users: Collection[str] = ()) -> None:
        self._stored: dict[StoredAcl, None] = {}
        self._super_users = super_users

    def __len__(self) -> int:
        return len(self._stored)

    def allow(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Return whether the principal may do this. A denying ACL overrides those that allow."""
        found = [acl for acl in self._stored if acl.is_about(resource_type, name)]
        if not found or principal in self._super_users:
            return True
        applicable = [
            acl
            for acl in found
            if acl.principal in (principal, ANY_USER) and acl.host in (host, WILDCARD)
        ]
        if any(
            acl.permission_type == DENY and acl.operation in (ALL, operation) for acl in applicable
        ):
            return False
        allowing = (ALL, operation, *IMPLIED_BY.get(operation, ()))
        return any(acl.permission_type == ALLOW and acl.operation in allowing for acl in applicable)

    def matching(self, requested: StoredFilter) -> list[StoredAcl]:
        """Return the ACLs that a filter matches. Raises Refused for types that Kafka does not
        know."""
        known = (
            (requested.resource_type, RESOURCE_TYPES),
            (requested.pattern_type, (MATCH, LITERAL, PREFIXED)),
            (requested.operation, OPERATIONS),
            (requested.permission_type, PERMISSIONS),
        )
        if any(number != ANY and number not in numbers for number, numbers in known):
            raise Refused(ErrorCode.INVALID_REQUEST, "Filter contains UNKNOWN elements.")
        return [acl for acl in self._stored if requested.matches(acl)]

    def create(self, acl: StoredAcl) -> None:
        """Store an ACL. Raises Refused if it is not valid."""
        if acl.resource_type == CLUSTER and acl.resource_name != CLUSTER_NAME:
            message = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        elif not acl.resource_name:
            message = "Invalid empty resource name"
        elif acl.resource_type not in RESOURCE_TYPES or acl.pattern_type not in (LITERAL, PREFIXED):
            message = "Invalid resource or pattern type"
        elif acl.operation not in OPERATIONS or acl.permission_type not in PERMISSIONS:
            message = "Invalid operation or permission type"
        elif not all(acl.principal.partition(":")):
            message = f"Could not parse principal from `{acl.principal}` (no colon is present)"
        else:
            self._stored[acl] = None
            return
        raise Refused(ErrorCode.INVALID_REQUEST, message)

    def delete(self, acl: StoredAcl) -> None:
        del self._stored[acl]


class Credential(NamedTuple):
    """A salted password, from which brokers derive the keys of a ScramCredential."""

    iterations: int
    salt: bytes
    salted_password: bytes


class FakeScramUsers:
    """SCRAM credentials by user and mechanism."""

    def __init__(self) -> None:
        self._stored: dict[str, dict[int, Credential]] = {}

    @property
    def users(self) -> list[str]:
        return sorted(self._stored)

    def credential(self, user: str, mechanism: int) -> Credential | None:
        return self._stored.get(user, {}).get(mechanism)

    def of(self, user: str) -> dict[int, Credential]:
        """Return a user's credentials by mechanism. Raises Refused if there are none."""
        if user not in self._stored:
            raise Refused(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {user}",
            )
        return self._stored[user]

    def set(self, user: str, mechanism: int, credential: Credential) -> None:
        """Set a user's credential. Raises Refused if it is not valid."""
        self._check(user, mechanism)
        if not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
            too_few = credential.iterations < MIN_ITERATIONS
            message = "Too few iterations" if too_few else "Too many iterations"
            raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
        self._stored.setdefault(user, {})[mechanism] = credential

    def delete(self, user: str, mechanism: int) -> None:
        """Delete a user's credential. Raises Refused if there is none."""
        self._check(user, mechanism)
        if mechanism not in self._stored.get(user, ()):
            raise Refused(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        del self._stored[user][mechanism]
        if not self._stored[user]:
            del self._stored[user]

    def _check(self, user: str, mechanism: int) -> None:
        """Raise Refused for an empty user or an unknown mechanism."""
        if not user:
            raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if mechanism not in SCRAM_MECHANISMS:
            raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
