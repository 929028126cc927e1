"""`acls`: list, create and delete ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Final, NamedTuple

import typer
from typer import Option

from sparkkafka.cli import commands
from sparkkafka.cli.tables import print_json, print_line, print_table
from sparkkafka.client.admin.acls import (
    ANY,
    CLUSTER_NAME,
    MATCH,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSION_TYPES,
    STORED_PATTERNS,
    AclBinding,
    AclBindingFilter,
    checked_binding,
)
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.arguments import checked_choice, normalized_name
from sparkkafka.errors import KafkaError, OptionError, counted, some

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Principals = Annotated[
    list[str] | None, Option("--principal", metavar="User:NAME", help="The user; may be repeated.")
]
Operations = Annotated[
    list[str] | None,
    Option("--operation", metavar="NAME", help="read, write, describe, …; may be repeated."),
]


class Resource(NamedTuple):
    """The resource of an ACL. `pattern_type` None: that of --pattern."""

    type: str
    name: str
    pattern_type: str | None = None


@dataclass(frozen=True)
class ResourceOptions:
    """The options that name resources."""

    topic: Annotated[
        list[str] | None,
        Option(
            metavar="NAME", autocompletion=commands.topic_names, help="A topic; may be repeated."
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        Option(
            metavar="NAME", autocompletion=commands.group_names, help="A group; may be repeated."
        ),
    ] = None
    cluster: Annotated[bool, Option("--cluster", help="The cluster itself.")] = False
    transactional_id: Annotated[
        list[str] | None, Option(help="A transactional id; may be repeated.")
    ] = None
    delegation_token: Annotated[
        list[str] | None, Option(metavar="ID", help="A delegation token; may be repeated.")
    ] = None
    user_principal: Annotated[
        list[str] | None,
        Option(
            metavar="USER",
            help="A user whose delegation tokens the ACLs are about; may be repeated.",
        ),
    ] = None

    def resources(self) -> list[Resource]:
        """Return the resources that the options name."""
        names_by_type = {
            "topic": self.topic,
            "group": self.group,
            "transactional_id": self.transactional_id,
            "cluster": [CLUSTER_NAME] if self.cluster else None,
            "delegation_token": self.delegation_token,
            "user": self.user_principal,
        }
        return [
            Resource(kind, name) for kind, names in names_by_type.items() for name in names or ()
        ]


@dataclass(frozen=True)
class FilterOptions:
    """The options that, besides resources, select ACLs to list or to delete."""

    principal: Principals = None
    operation: Operations = None
    pattern: Annotated[
        str | None,
        Option(
            metavar="KIND",
            help="literal or prefixed: ACLs of this kind; match: all that apply to these names, "
            "including those for * and for prefixes.",
        ),
    ] = None
    host: Annotated[
        str | None, Option(metavar="ADDRESS", help="Connections from this host; * is any host.")
    ] = None
    permission: Annotated[str | None, Option(metavar="KIND", help="allow or deny.")] = None

    def filters(self, resources: Sequence[Resource]) -> list[AclBindingFilter]:
        """Return a filter for each combination of a resource, a principal and an operation; what
        no option names matches any. Raises OptionError."""
        pattern_type = permission_type = None
        if self.pattern is not None:
            pattern_type = kafka_name(self.pattern, PATTERN_TYPES, "--pattern")
        if self.permission is not None:
            permission_type = kafka_name(self.permission, PERMISSION_TYPES, "--permission")
        operations = [kafka_name(name, OPERATIONS, "--operation") for name in self.operation or ()]
        return [
            AclBindingFilter(
                resource and resource.type,
                resource and resource.name,
                principal,
                operation,
                pattern_type=pattern_type,
                host=self.host,
                permission_type=permission_type,
            )
            for resource in resources or (None,)
            for principal in self.principal or (None,)
            for operation in operations or (None,)
        ]


def kafka_name(text: str, known: Iterable[str], option: str) -> str:
    """Return the name as Kafka spells it: describe-configs and DescribeConfigs are
    DESCRIBE_CONFIGS. Raises OptionError for a name that is not `known`."""
    by_normalized_name = {normalized_name(name): name for name in known}
    name = by_normalized_name.get(normalized_name(text), text)
    return checked_choice(name, by_normalized_name.values(), option)


@app.callback()
def acls() -> None:
    """ACLs, who may do what: list, create, delete.

    \b
      sparkkafka -b localhost:9092 acls create --principal User:etl --consumer --topic orders
      sparkkafka -b localhost:9092 acls list --topic orders --pattern match
      sparkkafka -b localhost:9092 acls delete --principal User:etl --dry-run
    """


@app.command("list")
@commands.with_option_groups
def list_acls(
    context: typer.Context,
    about: ResourceOptions,
    matching: FilterOptions,
    as_json: commands.AsJson = False,
) -> None:
    """List all ACLs, or those that match these options."""
    filters = matching.filters(about.resources())
    with commands.session_of(context).admin() as admin:
        bindings = _matching_acls(admin, filters)
    if as_json:
        print_json([asdict(binding) for binding in bindings])
    else:
        _print_acls(bindings, empty="no ACLs")


@app.command()
@commands.with_option_groups
def create(
    context: typer.Context,
    *,
    principal: Principals = None,
    about: ResourceOptions,
    operation: Operations = None,
    producer: bool = Option(False, "--producer", help="The ACLs that writing to the topics needs."),
    consumer: bool = Option(
        False, "--consumer", help="The ACLs that reading the topics, in the groups, needs."
    ),
    exactly_once: bool = Option(
        False,
        "--exactly-once",
        help="The ACLs that an exactly-once query needs to write to the topics.",
    ),
    prefix: str | None = Option(
        None, metavar="TEXT", help="transactionalIdPrefix, with --exactly-once."
    ),
    pattern: str = Option(
        "literal", metavar="KIND", help="literal, or prefixed: the names are prefixes."
    ),
    host: str = Option(ANY, metavar="ADDRESS", help="Connections from this host; * is any host."),
    deny: bool = Option(False, "--deny", help="Deny the operations instead of allowing them."),
    dry_run: bool = Option(False, "--dry-run", help="Only show what would be created."),
    as_json: commands.AsJson = False,
) -> None:
    """Create ACLs: each operation on each resource, or what a job needs. Others are not changed.

    A topic without ACLs may be open to everybody (allow.everyone.if.no.acl.found). Its first ACL
    closes it to all others.
    """
    resources = about.resources()
    if prefix is not None and not exactly_once:
        raise OptionError("--prefix is for --exactly-once")
    if producer or consumer or exactly_once:
        if operation or deny:
            raise OptionError(
                "--producer, --consumer and --exactly-once exclude --operation and --deny"
            )
        rights = rights_of_jobs(
            resources,
            producer=producer,
            consumer=consumer,
            exactly_once=exactly_once,
            prefix=prefix,
        )
    else:
        operations = [kafka_name(name, OPERATIONS, "--operation") for name in operation or ()]
        rights = rights_of_operations(resources, operations)
    if not principal:
        raise OptionError('for whom? Give --principal User:NAME ("User:*" is everybody)')
    pattern_type = kafka_name(pattern, STORED_PATTERNS, "--pattern")
    bindings = [
        checked_binding(
            AclBinding(
                resource.type,
                resource.name,
                user,
                operation_name,
                pattern_type=resource.pattern_type or pattern_type,
                host=host,
                permission_type="DENY" if deny else "ALLOW",
            )
        )
        for user in dict.fromkeys(principal)
        for resource, operation_name in dict.fromkeys(rights)
    ]
    if dry_run:
        _print_changed(bindings, "created", executed=False, as_json=as_json)
        return
    with commands.session_of(context).admin() as admin:
        results = admin.create_acls(bindings)
    _print_changed(list(results.values_by_item), "created", executed=True, as_json=as_json)
    commands.fail_each(results.errors.values())


@app.command()
@commands.with_option_groups
def delete(
    context: typer.Context,
    about: ResourceOptions,
    matching: FilterOptions,
    all_acls: bool = Option(False, "--all", help="All ACLs."),
    yes: commands.Yes = False,
    dry_run: bool = Option(False, "--dry-run", help="Only show what would be deleted."),
    as_json: commands.AsJson = False,
) -> None:
    """Delete the ACLs that match these options."""
    filters = matching.filters(about.resources())
    # Deleting all ACLs takes --all, so that no one does it by leaving an option out.
    matches_all = filters in ([AclBindingFilter()], [AclBindingFilter(pattern_type=MATCH)])
    if all_acls != matches_all:
        raise OptionError("say which: --topic, --principal, …, or else --all")
    with commands.session_of(context).admin() as admin:
        bindings = _matching_acls(admin, filters)
        if dry_run:
            _print_changed(bindings, "deleted", executed=False, as_json=as_json)
            return
        if not bindings:
            raise KafkaError(f"there is nothing to delete: {some(filters)} match nothing")
        question = f"Delete {counted(len(bindings), 'ACL')} ({some(bindings)})?"
        commands.confirm(question, yes, admin)
        # Exactly those that were shown, even if others have been created meanwhile.
        results = admin.delete_acls([binding.to_filter() for binding in bindings])
    deleted = [binding for binding in bindings if binding.to_filter() not in results.errors]
    _print_changed(deleted, "deleted", executed=True, as_json=as_json)
    commands.fail_each(results.errors.values())


# --- which ACLs to create ---------------------------------------------------------------------


Right = tuple[Resource, str]
"""An operation on a resource."""

# AclEntry.supportedOperations of Kafka: it stores any other operation, and never checks it.
OPERATIONS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": (
        *("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE"),
        *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"),
    ),
    "group": ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALL"),
    "cluster": (
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        *("IDEMPOTENT_WRITE", "ALL"),
    ),
    "transactional_id": ("WRITE", "DESCRIBE", "TWO_PHASE_COMMIT", "ALL"),
    "delegation_token": ("DESCRIBE", "ALL"),
    "user": ("CREATE_TOKENS", "DESCRIBE_TOKENS", "ALL"),
}


def rights_of_operations(resources: Sequence[Resource], operations: Sequence[str]) -> list[Right]:
    """Return a right for each operation on each resource. Raises OptionError for an operation that
    a resource does not have."""
    if not resources:
        raise OptionError("on what? Give --topic, --group, --cluster, --transactional-id, …")
    if not operations:
        raise OptionError(
            "to do what? Give --operation, or --producer, --consumer or --exactly-once"
        )
    for resource, operation in product(resources, operations):
        known = OPERATIONS_OF[resource.type]
        if operation not in known:
            raise OptionError(
                f"--operation {operation}: a {resource.type.replace('_', ' ')} has no such "
                f"operation, it has {', '.join(known)}"
            )
    return list(product(resources, operations))


def rights_of_jobs(
    resources: Sequence[Resource],
    *,
    producer: bool,
    consumer: bool,
    exactly_once: bool,
    prefix: str | None,
) -> list[Right]:
    """Return the rights that these jobs need: those that `kafka-acls.sh` creates for --producer and
    --consumer, and those of an exactly-once query (docs/exactly-once.md).

    Raises OptionError for an option that would have no effect.
    """
    types = {resource.type for resource in resources}
    if "topic" not in types:
        raise OptionError("which topics? Give --topic")
    if "group" in types and not consumer:
        raise OptionError("--group is for --consumer")
    if "transactional_id" in types and not producer:
        raise OptionError("--transactional-id is for --producer")
    if types - {"topic", "group", "transactional_id"}:
        raise OptionError("--producer, --consumer and --exactly-once are about topics")
    if exactly_once and not prefix:
        raise OptionError("--exactly-once needs --prefix, the query's transactionalIdPrefix")

    def rights(kind: str, *operations: str) -> Iterator[Right]:
        """Return these operations on each resource of a kind."""
        return product((resource for resource in resources if resource.type == kind), operations)

    needed: list[Right] = []
    if producer:
        needed += rights("topic", "WRITE", "DESCRIBE", "CREATE")
        needed += rights("transactional_id", "WRITE", "DESCRIBE")
    if consumer:
        needed += rights("topic", "READ", "DESCRIBE")
        needed += rights("group", "READ")
    if exactly_once and prefix:
        needed += rights("topic", "WRITE", "READ")
        needed.append((Resource("transactional_id", prefix, "PREFIXED"), "WRITE"))
        needed.append((Resource("group", prefix, "PREFIXED"), "READ"))
    return needed


# --- output -----------------------------------------------------------------------------------


def _matching_acls(admin: Admin, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    """Look up the ACLs that any of the filters matches; return them sorted, each once."""
    return sorted(
        {binding for acl_filter in filters for binding in admin.describe_acls(acl_filter)}
    )


def _print_acls(bindings: Iterable[AclBinding], *, empty: str | None = None) -> None:
    """Print ACLs as a table."""
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    rows = [
        (
            binding.principal,
            binding.permission_type,
            binding.operation,
            binding.resource_type,
            binding.name,
            binding.pattern_type,
            None if binding.host == ANY else binding.host,
        )
        for binding in bindings
    ]
    print_table(columns, rows, empty=empty)


def _print_changed(
    bindings: Sequence[AclBinding], change: str, *, executed: bool, as_json: bool
) -> None:
    """Print the ACLs that were, or would be, created or deleted."""
    if as_json:
        print_json({"executed": executed, "acls": [asdict(binding) for binding in bindings]})
        return
    if executed and not bindings:
        return  # the errors say why
    _print_acls(bindings)
    count = len(bindings)
    verb = ("was" if count == 1 else "were") if executed else "would be"
    print_line(f"{counted(count, 'ACL')} {verb} {change}")
