"""`acls`: list, create and delete ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Annotated, Any, Final, NamedTuple

import typer

from sparkkafka.cli.commands import AsJson, Yes, confirm, fail_each, session_of
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
from sparkkafka.client.arguments import one_of, plain_name
from sparkkafka.errors import KafkaError, OptionError, counted, some

# --- the ACLs of a job ------------------------------------------------------------------------

PREFIXED: Final = "PREFIXED"

# AclEntry.supportedOperations of Kafka: any other is stored, and never asked for.
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


class Resource(NamedTuple):
    """What ACLs are about; `pattern_type` None is that of --pattern."""

    type: str
    name: str
    pattern_type: str | None = None


Right = tuple[Resource, str]
"""An operation on a resource."""


class Chosen(NamedTuple):
    """The resources that the options name."""

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    others: tuple[Resource, ...] = ()

    @property
    def all(self) -> list[Resource]:
        return [
            *(Resource("topic", name) for name in self.topics),
            *(Resource("group", name) for name in self.groups),
            *(Resource("transactional_id", name) for name in self.transactional_ids),
            *self.others,
        ]


def rights_of_operations(chosen: Chosen, operations: Iterable[str]) -> list[Right]:
    """Each operation on each resource. Raises OptionError for one that a resource does not have."""
    wanted = list(operations)
    if not chosen.all:
        raise OptionError("on what? Give --topic, --group, --cluster, --transactional-id, …")
    if not wanted:
        raise OptionError(
            "to do what? Give --operation, or --producer, --consumer or --exactly-once"
        )
    for resource in chosen.all:
        known = OPERATIONS_OF[resource.type]
        for operation in wanted:
            if operation not in known:
                kind = resource.type.replace("_", " ")
                raise OptionError(
                    f"--operation {operation}: a {kind} has no such operation, it has "
                    f"{', '.join(known)}"
                )
    return [(resource, operation) for resource in chosen.all for operation in wanted]


def rights_of_jobs(
    chosen: Chosen, *, producer: bool, consumer: bool, exactly_once: bool, prefix: str | None
) -> list[Right]:
    """What these jobs need. Raises OptionError for an option that would do nothing."""
    if not chosen.topics:
        raise OptionError("which topics? Give --topic")
    for given, needed, option in (
        (chosen.groups, consumer, "--group is for --consumer"),
        (chosen.transactional_ids, producer, "--transactional-id is for --producer"),
        (chosen.others, False, "--producer, --consumer and --exactly-once are about topics"),
    ):
        if given and not needed:
            raise OptionError(option)
    if exactly_once and not prefix:
        raise OptionError("--exactly-once needs --prefix, the query's transactionalIdPrefix")
    rights: list[Right] = []
    if producer:
        rights += _of(("topic", chosen.topics), "WRITE", "DESCRIBE", "CREATE")
        rights += _of(("transactional_id", chosen.transactional_ids), "WRITE", "DESCRIBE")
    if consumer:
        rights += _of(("topic", chosen.topics), "READ", "DESCRIBE")
        rights += _of(("group", chosen.groups), "READ")
    if exactly_once and prefix:
        rights += _of(("topic", chosen.topics), "WRITE", "READ")
        rights.append((Resource("transactional_id", prefix, PREFIXED), "WRITE"))
        rights.append((Resource("group", prefix, PREFIXED), "READ"))
    return rights


def _of(resources: tuple[str, Iterable[str]], *operations: str) -> Iterator[Right]:
    kind, names = resources
    return ((Resource(kind, name), operation) for name in names for operation in operations)


# --- the verb ---------------------------------------------------------------------------------

app = typer.Typer(rich_markup_mode=None)

MAX_ASKED = 5  # ACLs that a question names

Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; may be repeated.")
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", metavar="NAME", help="A group; may be repeated.")
]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
TransactionalIds = Annotated[
    list[str] | None,
    typer.Option("--transactional-id", metavar="ID", help="A transactional id; may be repeated."),
]
Tokens = Annotated[
    list[str] | None,
    typer.Option("--delegation-token", metavar="ID", help="A delegation token; may be repeated."),
]
Users = Annotated[
    list[str] | None,
    typer.Option(
        "--user-principal",
        metavar="USER",
        help="A user, whose delegation tokens they are about; may be repeated.",
    ),
]
Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", metavar="User:NAME", help="Who; may be repeated."),
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", metavar="NAME", help="read, write, describe, …; may be repeated."),
]
FilterPattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="KIND",
        help="literal or prefixed: ACLs of this kind; match: all that count for these names, also "
        "those of * and of prefixes.",
    ),
]
FilterHost = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="From this host; * is any.")
]
Permission = Annotated[
    str | None, typer.Option("--permission", metavar="KIND", help="allow or deny.")
]


@app.callback()
def acls() -> None:
    """ACLs, who may do what: list, create, delete.

    \b
      sparkkafka -b localhost:9092 acls create --principal User:etl --consumer --topic orders
      sparkkafka -b localhost:9092 acls list --topic orders --pattern match
      sparkkafka -b localhost:9092 acls delete --principal User:etl --dry-run
    """


@app.command("list")
def list_acls(
    context: typer.Context,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    principal: Principals = None,
    operation: Operations = None,
    pattern: FilterPattern = None,
    host: FilterHost = None,
    permission: Permission = None,
    as_json: AsJson = False,
) -> None:
    """ACLs: all, or those that fit what is named here."""
    chosen = _chosen(topic, group, cluster, transactional_id, delegation_token, user_principal)
    filters = _filters(chosen, principal, operation, pattern, host, permission)
    with session_of(context).admin() as admin:
        found = _matching(admin, filters)
    if as_json:
        print_json([_document(row) for row in found])
    else:
        _print(found, empty="no ACLs")


@app.command()
def create(
    context: typer.Context,
    principal: Principals = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    operation: Operations = None,
    producer: Annotated[
        bool, typer.Option("--producer", help="What writing to the topics needs.")
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="What reading the topics, in the groups, needs.")
    ] = False,
    exactly_once: Annotated[
        bool,
        typer.Option("--exactly-once", help="What an exactly-once query into the topics needs."),
    ] = False,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="transactionalIdPrefix, of --exactly-once."),
    ] = None,
    pattern: Annotated[
        str,
        typer.Option("--pattern", metavar="KIND", help="literal, or prefixed: how names begin."),
    ] = "literal",
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="From this host; * is any.")
    ] = ANY,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid it instead.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show them; changes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create ACLs: each operation on each resource, or what a job needs. What is there stays.

    A topic without ACLs may be free for all (allow.everyone.if.no.acl.found): the first ACL ends
    that.
    """
    chosen = _chosen(topic, group, cluster, transactional_id, delegation_token, user_principal)
    if prefix is not None and not exactly_once:
        raise OptionError("--prefix is for --exactly-once")
    if producer or consumer or exactly_once:
        if operation or deny:
            raise OptionError("--producer, --consumer, --exactly-once say themselves what is to be")
        rights = rights_of_jobs(
            chosen, producer=producer, consumer=consumer, exactly_once=exactly_once, prefix=prefix
        )
    else:
        named = [_spelled(one, OPERATIONS, "--operation") for one in operation or ()]
        rights = rights_of_operations(chosen, named)
    if not principal:
        raise OptionError('for whom? Give --principal User:NAME ("User:*" is everybody)')
    kind = _spelled(pattern, STORED_PATTERNS, "--pattern")
    wanted = [
        checked_binding(
            AclBinding(
                resource.type,
                resource.name,
                who,
                what,
                pattern_type=resource.pattern_type or kind,
                host=host,
                permission_type="DENY" if deny else "ALLOW",
            )
        )
        for who in dict.fromkeys(principal)
        for resource, what in dict.fromkeys(rights)
    ]
    if dry_run:
        _print_done(wanted, "created", executed=False, as_json=as_json)
        return
    with session_of(context).admin() as admin:
        results = admin.create_acls(wanted)
    _print_done(list(results.values_by_item), "created", executed=True, as_json=as_json)
    fail_each(results.errors.values())


@app.command()
def delete(
    context: typer.Context,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    principal: Principals = None,
    operation: Operations = None,
    pattern: FilterPattern = None,
    host: FilterHost = None,
    permission: Permission = None,
    all_acls: Annotated[bool, typer.Option("--all", help="All that there are.")] = False,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would go; changes nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the ACLs that fit what is named here."""
    chosen = _chosen(topic, group, cluster, transactional_id, delegation_token, user_principal)
    filters = _filters(chosen, principal, operation, pattern, host, permission)
    if all_acls != (filters in ([AclBindingFilter()], [AclBindingFilter(pattern_type=MATCH)])):
        raise OptionError("say which: --topic, --principal, …, or else --all")
    with session_of(context).admin() as admin:
        found = _matching(admin, filters)
        if dry_run:
            _print_done(found, "deleted", executed=False, as_json=as_json)
            return
        if not found:
            raise KafkaError(f"there is nothing to delete: {some(filters)} match nothing")
        question = f"Delete {counted(len(found), 'ACL')} ({some(found, MAX_ASKED)})?"
        confirm(question, yes, admin)
        # These and no others, whatever has been created meanwhile.
        results = admin.delete_acls([binding.to_filter() for binding in found])
    gone = [one for one in found if one.to_filter() not in results.errors]
    _print_done(gone, "deleted", executed=True, as_json=as_json)
    fail_each(results.errors.values())


# --- options ----------------------------------------------------------------------------------


def _chosen(
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    cluster: bool,
    transactional_ids: Sequence[str] | None,
    tokens: Sequence[str] | None,
    users: Sequence[str] | None,
) -> Chosen:
    others = [
        *([Resource("cluster", CLUSTER_NAME)] if cluster else []),
        *(Resource("delegation_token", name) for name in tokens or ()),
        *(Resource("user", name) for name in users or ()),
    ]
    return Chosen(
        tuple(topics or ()), tuple(groups or ()), tuple(transactional_ids or ()), tuple(others)
    )


def _filters(
    chosen: Chosen,
    principals: Sequence[str] | None,
    operations: Sequence[str] | None,
    pattern: str | None,
    host: str | None,
    permission: str | None,
) -> list[AclBindingFilter]:
    """One for each combination of what is named. Raises OptionError."""
    kind = None if pattern is None else _spelled(pattern, PATTERN_TYPES, "--pattern")
    right = None if permission is None else _spelled(permission, PERMISSION_TYPES, "--permission")
    named = [_spelled(one, OPERATIONS, "--operation") for one in operations or ()]
    any_or: tuple[Sequence[Resource | None], Sequence[str | None], Sequence[str | None]] = (
        chosen.all or (None,),
        principals or (None,),
        named or (None,),
    )
    return [
        AclBindingFilter(
            resource and resource.type,
            resource and resource.name,
            principal,
            operation,
            pattern_type=kind,
            host=host,
            permission_type=right,
        )
        for resource, principal, operation in product(*any_or)
    ]


def _spelled(given: str, allowed: Iterable[str], option: str) -> str:
    """The name as Kafka spells it: describe-configs and DescribeConfigs are DESCRIBE_CONFIGS."""
    known = {plain_name(name): name for name in allowed}
    return one_of(known.get(plain_name(given), given), known.values(), option)


# --- what is there ----------------------------------------------------------------------------


def _matching(admin: Admin, filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
    """What any of them matches, in order."""
    return sorted({binding for wanted in filters for binding in admin.describe_acls(wanted)})


def _document(binding: AclBinding) -> dict[str, Any]:
    return {field.name: getattr(binding, field.name) for field in fields(binding)}


def _print(bindings: Iterable[AclBinding], *, empty: str | None = None) -> None:
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    rows = [
        (
            one.principal,
            one.permission_type,
            one.operation,
            one.resource_type,
            one.name,
            one.pattern_type,
            None if one.host == ANY else one.host,
        )
        for one in bindings
    ]
    print_table(columns, rows, empty=empty)


def _print_done(
    bindings: Sequence[AclBinding], done: str, *, executed: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"executed": executed, "acls": [_document(one) for one in bindings]})
        return
    if executed and not bindings:
        return  # errors tell why
    _print(bindings)
    count = len(bindings)
    words = ("was" if count == 1 else "were") if executed else "would be"
    print_line(f"{counted(count, 'ACL')} {words} {done}")
