"""Describe, create and delete ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Final

from sparkkafka.client import arguments
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.cluster.request_driver import (
    ApiHandler,
    Outcome,
    Outcomes,
    ToAny,
    ToController,
)
from sparkkafka.client.values import Results
from sparkkafka.errors import OptionError, some
from sparkkafka.protocol import messages

# ResourceType, PatternType and AclPermissionType of Java.
RESOURCE_TYPES: Final = {
    "topic": 2,
    "group": 3,
    "cluster": 4,
    "transactional_id": 5,
    "delegation_token": 6,
    "user": 7,
}
MATCH: Final = "MATCH"
STORED_PATTERNS: Final = {"LITERAL": 3, "PREFIXED": 4}
PATTERN_TYPES: Final = {MATCH: 2, **STORED_PATTERNS}
PERMISSION_TYPES: Final = {"DENY": 2, "ALLOW": 3}

# Java's AclOperation, without ANY, which only filters have.
OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}
OPERATIONS_VERSION: Final = 8  # Metadata has the operations as bits from this version on

CLUSTER_NAME: Final = "kafka-cluster"
"""The one name that a resource of type cluster can have."""

ANY: Final = "*"
"""Any resource of the type, as a name; any host; as User:*, any user."""


def authorized_operations(bits: int) -> frozenset[str] | None:
    """Return the names of the operations in a response, whose bits stand for operations that the
    user may do (KIP-430); None if they were not requested."""
    if bits == messages.NO_AUTHORIZED_OPERATIONS:
        return None
    return frozenset(name for name, bit in OPERATIONS.items() if bits >> bit & 1)


@dataclass(frozen=True, order=True)
class AclBinding:
    """One ACL: AclBinding("topic", "orders", "User:alice", "READ").

    `resource_type` is topic, group, cluster, transactional_id, delegation_token or user; `name`
    with `pattern_type` PREFIXED is how names begin, and "*" is all of that type. `operation` is
    READ, WRITE, … or ALL, `permission_type` ALLOW or DENY, `host` an address or "*".
    """

    resource_type: str
    name: str
    principal: str
    operation: str
    _: KW_ONLY
    pattern_type: str = "LITERAL"
    host: str = ANY
    permission_type: str = "ALLOW"

    def __str__(self) -> str:
        resource = _resource_text(self.resource_type, self.name, self.pattern_type)
        host = "" if self.host == ANY else f" from {self.host}"
        return f"{self.permission_type} {self.operation} on {resource} for {self.principal}{host}"

    def to_filter(self) -> AclBindingFilter:
        """Return the filter that matches this ACL and no other."""
        return AclBindingFilter(**asdict(self))


@dataclass(frozen=True)
class AclBindingFilter:
    """Selects ACLs: AclBindingFilter("topic", principal="User:alice"). None matches any.

    With a `name`, `pattern_type` LITERAL and PREFIXED match ACLs of exactly that name and kind,
    None those of both kinds, and MATCH all that apply to a resource of this name: LITERAL ones,
    those of "*", and PREFIXED ones that it begins with.
    """

    resource_type: str | None = None
    name: str | None = None
    principal: str | None = None
    operation: str | None = None
    _: KW_ONLY
    pattern_type: str | None = None
    host: str | None = None
    permission_type: str | None = None

    def __str__(self) -> str:
        """Return the filter as a phrase: "ACLs to ALLOW READ on topic orders for User:alice"."""
        parts = ["ACLs"]
        if self.permission_type or self.operation:
            parts += [f"to {self.permission_type or ''} {self.operation or ''}".strip()]
        if self.resource_type or self.name or self.pattern_type:
            parts += [f"on {_resource_text(self.resource_type, self.name, self.pattern_type)}"]
        parts += [f"for {self.principal}"] if self.principal else []
        parts += [f"from {self.host}"] if self.host else []
        return " ".join(parts) if len(parts) > 1 else "all ACLs"


def _resource_text(resource_type: str | None, name: str | None, pattern_type: str | None) -> str:
    """Return "topic orders" or "topic orders (PREFIXED)" for a message; "resource" for any type."""
    type_text = (resource_type or "resource").replace("_", " ")
    pattern_text = f" ({pattern_type})" if pattern_type not in (None, "LITERAL") else ""
    return f"{type_text}{'' if name is None else f' {name}'}{pattern_text}"


ALL: Final = AclBindingFilter()


# --- checks -----------------------------------------------------------------------------------


def checked_binding(binding: AclBinding) -> AclBinding:
    """Return an ACL that can be created. Raises OptionError for any other."""
    arguments.checked_choice(binding.resource_type, RESOURCE_TYPES, "an ACL's resource_type")
    if binding.pattern_type == MATCH:
        raise OptionError("an ACL's pattern_type MATCH is for filters: give LITERAL or PREFIXED")
    arguments.checked_choice(binding.pattern_type, STORED_PATTERNS, "an ACL's pattern_type")
    arguments.checked_choice(binding.operation, OPERATIONS, "an ACL's operation")
    arguments.checked_choice(binding.permission_type, PERMISSION_TYPES, "an ACL's permission_type")
    if not arguments.checked_name(binding.name, "an ACL's name"):
        raise OptionError(f'an ACL\'s name is empty: "{ANY}" is all of a type')
    if binding.resource_type == "cluster" and binding.name != CLUSTER_NAME:
        raise OptionError(f'the name of the cluster is "{CLUSTER_NAME}", got {binding.name!r}')
    kind, name = arguments.checked_principal(binding.principal, "a principal")
    if kind != "User" and kind.lower() == "user":
        raise OptionError(
            f"an ACL's principal {binding.principal!r} is not a user: write {f'User:{name}'!r}"
        )
    if not arguments.checked_name(binding.host, "an ACL's host"):
        raise OptionError(f'an ACL\'s host is empty: "{ANY}" is any host')
    return binding


def checked_filter(acl_filter: AclBindingFilter) -> AclBindingFilter:
    """Return a filter that can match ACLs. Raises OptionError for any other."""
    if isinstance(acl_filter, AclBinding):
        raise OptionError(f"a filter is an AclBindingFilter: write to_filter() of {acl_filter}")
    if not isinstance(acl_filter, AclBindingFilter):
        raise OptionError(f'a filter is AclBindingFilter("topic", "orders"), got {acl_filter!r}')
    for value, allowed, what in (
        (acl_filter.resource_type, RESOURCE_TYPES, "resource_type"),
        (acl_filter.pattern_type, PATTERN_TYPES, "pattern_type"),
        (acl_filter.operation, OPERATIONS, "operation"),
        (acl_filter.permission_type, PERMISSION_TYPES, "permission_type"),
    ):
        if value is not None:
            arguments.checked_choice(value, allowed, f"a filter's {what}")
    for text, what in ((acl_filter.name, "name"), (acl_filter.host, "host")):
        if text is not None:
            arguments.checked_name(text, f"a filter's {what}")
    if acl_filter.principal is not None:
        arguments.checked_principal(acl_filter.principal, "a principal")
    return acl_filter


# --- reading ----------------------------------------------------------------------------------


class _AclHandler(ApiHandler[Any, Any]):
    """Base of the requests about ACLs and filters of ACLs, which are the items."""

    def needed_versions(self, item: AclBinding | AclBindingFilter) -> Mapping[str, int]:
        """Return the version that knows resources of type user, if the item is about one."""
        return {"an ACL of resource_type user": 3} if item.resource_type == "user" else {}


class _DescribeAcls(_AclHandler):
    request_type: ClassVar[Any] = messages.DescribeAclsRequest
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[AclBindingFilter], version: int) -> Any:
        """Build the request for the ACLs that the only item, a filter, matches."""
        return messages.DescribeAclsRequest(**_filter_fields(items[0]))

    def read(self, response: Any, items: Sequence[AclBindingFilter]) -> Outcomes[AclBindingFilter]:
        """Return the ACLs that match the filter, which is the only item of the request."""
        bindings = [
            _read_binding(resource, acl) for resource in response.resources for acl in resource.acls
        ]
        return [(items[0], Outcome(0, sorted(bindings)))]


def _filter_fields(acl_filter: AclBindingFilter) -> dict[str, Any]:
    """Return the fields of a request that select ACLs."""
    any_type = 1  # Java's ANY, in place of each None
    return {
        "resource_type_filter": RESOURCE_TYPES.get(acl_filter.resource_type or "", any_type),
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": PATTERN_TYPES.get(acl_filter.pattern_type or "", any_type),
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": OPERATIONS.get(acl_filter.operation or "", any_type),
        "permission_type": PERMISSION_TYPES.get(acl_filter.permission_type or "", any_type),
    }


def _read_binding(resource: Any, acl: Any) -> AclBinding:
    """Read an ACL: the parts of a response with its resource, and with its user and operation."""
    return AclBinding(
        _name_of(resource.resource_type, RESOURCE_TYPES),
        resource.resource_name,
        acl.principal,
        _name_of(acl.operation, OPERATIONS),
        pattern_type=_name_of(resource.pattern_type, STORED_PATTERNS),
        host=acl.host,
        permission_type=_name_of(acl.permission_type, PERMISSION_TYPES),
    )


def _name_of(number: int, numbers: dict[str, int]) -> str:
    """Return the name for this number in a response; the number as text if a newer broker has sent
    one that this client does not know."""
    return next((name for name, value in numbers.items() if value == number), str(number))


# --- changing ---------------------------------------------------------------------------------


class _CreateAcls(_AclHandler):
    request_type = messages.CreateAclsRequest
    acl = "ALTER on the cluster"

    def build(self, items: Sequence[AclBinding], version: int) -> Any:
        """Build the request that creates these ACLs."""
        return messages.CreateAclsRequest(
            creations=[
                messages.AclCreation(
                    resource_type=RESOURCE_TYPES[item.resource_type],
                    resource_name=item.name,
                    resource_pattern_type=STORED_PATTERNS[item.pattern_type],
                    principal=item.principal,
                    host=item.host,
                    operation=OPERATIONS[item.operation],
                    permission_type=PERMISSION_TYPES[item.permission_type],
                )
                for item in items
            ]
        )

    def read(self, response: Any, items: Sequence[AclBinding]) -> Outcomes[AclBinding]:
        """Return the error code of each ACL: 0 if it was created. Responses have the order of
        requests."""
        return [(item, Outcome.of(row)) for item, row in zip(items, response.results, strict=False)]


class _DeleteAcls(_AclHandler):
    request_type = messages.DeleteAclsRequest
    acl = "ALTER on the cluster"

    def __init__(self) -> None:
        # A filter is sent again if deleting some of its ACLs failed: this has all deleted so far.
        self._deleted: dict[AclBindingFilter, list[AclBinding]] = {}

    def build(self, items: Sequence[AclBindingFilter], version: int) -> Any:
        """Build the request that deletes all ACLs that these filters match."""
        return messages.DeleteAclsRequest(
            filters=[messages.DeleteAclsFilter(**_filter_fields(item)) for item in items]
        )

    def read(self, response: Any, items: Sequence[AclBindingFilter]) -> Outcomes[AclBindingFilter]:
        """Return the outcome of each filter. Responses have the order of requests."""
        rows = zip(items, response.filter_results, strict=False)
        return [(item, self._outcome(item, row)) for item, row in rows]

    def _outcome(self, item: AclBindingFilter, result: Any) -> Outcome:
        """Return the ACLs that were deleted for a filter, or the error of the first one that could
        not be deleted."""
        deleted = self._deleted.setdefault(item, [])
        failed = []
        for acl in result.matching_acls:
            binding = _read_binding(acl, acl)
            if acl.error_code:
                failed.append((binding, acl))
            else:
                deleted.append(binding)
        if result.error_code or not failed:
            return Outcome.of(result, sorted(deleted))
        _, first = failed[0]
        reason = f" ({first.error_message})" if first.error_message else ""
        return Outcome(
            first.error_code,
            None,
            f"not deleted: {some(binding for binding, _ in failed)}{reason}; deleted: "
            f"{some(sorted(deleted)) or 'none'}",
        )


class AclAdmin(AdminCalls):
    """The calls of `Admin` about ACLs."""

    def describe_acls(
        self, acl_filter: AclBindingFilter = ALL, *, timeout_s: float | None = None
    ) -> list[AclBinding]:
        """List the ACLs that a filter matches, or all, sorted. Raises KafkaError."""
        item = checked_filter(acl_filter)
        lookup = ToAny(self._cluster)
        results = self._each([item], _DescribeAcls(), lookup, "reading ACLs", timeout_s)
        return results[item]  # type: ignore[no-any-return]

    def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout_s: float | None = None
    ) -> Results[AclBinding, None]:
        """Create ACLs. One that exists already is no error. Brokers apply new ACLs a moment later.
        Errors of items: SECURITY_DISABLED, … Raises OptionError for an invalid ACL."""
        example = 'AclBinding("topic", "orders", "User:alice", "READ")'
        items = [
            checked_binding(binding)
            for binding in arguments.checked_list(bindings, AclBinding, "bindings", example)
        ]
        lookup = ToController(self._cluster)
        return self._each(items, _CreateAcls(), lookup, "creating ACLs", timeout_s)

    def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout_s: float | None = None
    ) -> Results[AclBindingFilter, list[AclBinding]]:
        """Delete all ACLs that each filter matches. Return by filter the deleted ACLs (not those of
        an attempt whose response was lost), or the error of the first that could not be deleted.
        Raises OptionError."""
        example = 'AclBindingFilter("topic", "orders")'
        items = [
            checked_filter(acl_filter)
            for acl_filter in arguments.checked_list(
                filters, AclBindingFilter, "filters", example, strict=False
            )
        ]
        lookup = ToController(self._cluster)
        return self._each(items, _DeleteAcls(), lookup, "deleting ACLs", timeout_s)
