"""Rules and tags that a registry keeps with a schema: Confluent's data contracts.

Confluent's serializers run the rules; this package runs none. So a write is refused if a rule would
encrypt it, and there is a warning for all other rules.

Sources: RuleSet, Rule and RuleMode of confluentinc/schema-registry, and executeRules of its
AbstractKafkaSchemaSerDe: which rules a client runs, and in which direction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sparkkafka.errors import printable, some

WRITE_MODES: Final = frozenset({"WRITE", "WRITEREAD"})
READ_MODES: Final = frozenset({"READ", "WRITEREAD"})
MIGRATION_MODES: Final = frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"})


@dataclass(frozen=True)
class Rule:
    """A rule that clients run. `type` and `mode` are in upper case; an unknown mode is WRITEREAD.

    `tags`: it is for the fields with one of these tags; for all fields if there are none.
    """

    name: str
    type: str
    mode: str
    tags: tuple[str, ...] = ()

    @property
    def encrypts(self) -> bool:
        """Whether it encrypts fields, or the whole serialized record."""
        types = ("ENCRYPT", "ENCRYPT_PAYLOAD")
        return self.type in types and self.mode not in MIGRATION_MODES

    def __str__(self) -> str:
        return f"{self.name or 'without a name'} ({self.type or 'no type'})"


@dataclass(frozen=True)
class DataContract:
    """What a registry keeps with a schema. `rules`: those that are not disabled. `field_tags`:
    (pattern of fields' full names, tags) in the metadata; the schema's text may have more tags."""

    rules: tuple[Rule, ...] = ()
    field_tags: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def size(self) -> int:
        """About how many characters it takes in memory."""
        return sum(
            100 + len(name) + sum(map(len, tags))
            for name, tags in (*((rule.name, rule.tags) for rule in self.rules), *self.field_tags)
        )

    def encryption_rules(self, *, writes: bool) -> tuple[Rule, ...]:
        """Return the rules that encrypt: with `writes` only those that clients run when they write;
        else all, since the writer of a record may have run any of them."""
        return tuple(
            rule
            for rule in self.rules
            if rule.encrypts and (rule.mode in WRITE_MODES or not writes)
        )

    def other_rules(self, *, writes: bool) -> tuple[Rule, ...]:
        """Return the rules that do not encrypt and that Confluent's clients run when they write, or
        read."""
        modes = WRITE_MODES if writes else READ_MODES | MIGRATION_MODES
        return tuple(rule for rule in self.rules if not rule.encrypts and rule.mode in modes)

    def describe_encrypted(
        self, rules: Collection[Rule], inline_tags: Mapping[str, Collection[str]]
    ) -> str:
        """Describe what these rules encrypt, for messages. `inline_tags`: the tags in the schema's
        text, by the fields' full names."""
        if any(rule.type == "ENCRYPT_PAYLOAD" for rule in rules):
            return "the whole payload"
        if any(not rule.tags for rule in rules):
            return "all fields of text and bytes"
        tags = {tag for rule in rules for tag in rule.tags}
        names = [
            name for name, found in (*inline_tags.items(), *self.field_tags) if tags & set(found)
        ]
        return f"{name_some(names) or 'the fields'} (tagged {name_some(sorted(tags))})"


def name_some(names: Collection[object]) -> str:
    """Return the first ten names as printable text, and how many more there are."""
    return some((printable(str(name)[:200]) for name in dict.fromkeys(names)), 10)
