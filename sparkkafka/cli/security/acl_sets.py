"""The ACLs that a job needs, as `kafka-acls.sh --producer` and `--consumer` make them, and those of
an exactly-once query (docs/exactly-once.md); and which operations a type of resource has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sparkkafka.errors import OptionError

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
