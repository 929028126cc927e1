"""Describe and alter client quotas (KIP-546): limits of the bytes, requests or connections of a
user, client id or address."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from sparkkafka.client import arguments
from sparkkafka.client.admin.calls import AdminCalls
from sparkkafka.client.cluster.request_driver import ApiHandler, Outcome, Outcomes, ToController
from sparkkafka.client.values import Results
from sparkkafka.errors import OptionError
from sparkkafka.protocol import messages

ENTITY_TYPES: Final = ("user", "client-id", "ip")

# QuotaComponent's match_type (DescribeClientQuotasRequest.MATCH_TYPE_…).
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


class ClientQuotaEntity:
    """What quotas apply to: ClientQuotaEntity({"user": "alice", "client-id": None}). The types are
    user, client-id and ip; the name None is the default for all without quotas of their own.
    """

    def __init__(self, entries: Mapping[str, str | None]) -> None:
        checked = arguments.checked_mapping(
            entries, "the entries of a ClientQuotaEntity", '"user": "alice"'
        )
        if not checked:
            raise OptionError("a ClientQuotaEntity has at least one of user, client-id and ip")
        for kind, name in checked.items():
            arguments.checked_choice(kind, ENTITY_TYPES, "the type of a ClientQuotaEntity's entry")
            if name is not None:
                arguments.checked_name(name, f"the name of the {kind} of a ClientQuotaEntity")
        self.entries = dict(sorted(checked.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientQuotaEntity) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(tuple(self.entries.items()))

    def __repr__(self) -> str:
        return f"ClientQuotaEntity({self.entries!r})"

    def __str__(self) -> str:
        return ", ".join(
            f"the default {kind}" if name is None else f"{kind} {name}"
            for kind, name in self.entries.items()
        )


class ClientQuotaFilterComponent(NamedTuple):
    """Selects entities by one of their types; made by the class methods."""

    entity_type: str
    match_type: int
    match: str | None = None

    @classmethod
    def of_entity(cls, entity_type: str, name: str) -> Self:
        """Return a component that matches the entity with this name."""
        return cls(entity_type, _EXACT, name)

    @classmethod
    def of_default_entity(cls, entity_type: str) -> Self:
        """Return a component that matches the default entity of this type."""
        return cls(entity_type, _DEFAULT)

    @classmethod
    def of_entity_type(cls, entity_type: str) -> Self:
        """Return a component that matches all entities of this type."""
        return cls(entity_type, _SPECIFIED)


@dataclass(frozen=True)
class ClientQuotaFilter:
    """Selects the entities that all `components` match; with `strict` only those without other
    types. Without components it selects all."""

    components: Sequence[ClientQuotaFilterComponent] = ()
    strict: bool = False


ALL: Final = ClientQuotaFilter()


@dataclass(frozen=True)
class ClientQuotaAlteration:
    """Quotas of an entity to set, or to remove (None): ClientQuotaAlteration(entity,
    {"producer_byte_rate": 1048576, "request_percentage": None})."""

    entity: ClientQuotaEntity
    ops: Mapping[str, float | None]


def _read_entity(parts: Iterable[Any]) -> ClientQuotaEntity:
    """Return the entity in a response. It is not checked, because newer brokers may send types that
    this client does not know."""
    entity = ClientQuotaEntity.__new__(ClientQuotaEntity)
    entity.entries = dict(sorted((part.entity_type, part.entity_name) for part in parts))
    return entity


class _AlterQuotas(ApiHandler[ClientQuotaEntity, None]):
    request_type = messages.AlterClientQuotasRequest
    name_format = "the quotas of {}"
    acl = "ALTER_CONFIGS on the cluster"

    def __init__(
        self, changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]], validate_only: bool
    ) -> None:
        self._changes = changes
        self._validate_only = validate_only

    def build(self, items: Sequence[ClientQuotaEntity], version: int) -> Any:
        """Build the request that sets the quotas of these entities; one whose new value is None is
        removed."""
        return messages.AlterClientQuotasRequest(
            entries=[
                messages.AlteredQuotaEntry(
                    entity=[
                        messages.QuotaEntityPart(entity_type=kind, entity_name=name)
                        for kind, name in item.entries.items()
                    ],
                    ops=[
                        messages.QuotaOp(key=key, value=value or 0.0, remove=value is None)
                        for key, value in self._changes[item].items()
                    ],
                )
                for item in items
            ],
            validate_only=self._validate_only,
        )

    def read(
        self, response: Any, items: Sequence[ClientQuotaEntity]
    ) -> Outcomes[ClientQuotaEntity]:
        """Return the error code of each entity: 0 if its quotas were changed."""
        return [(_read_entity(row.entity), Outcome.of(row)) for row in response.entries]


class QuotaAdmin(AdminCalls):
    """The calls of `Admin` about client quotas."""

    def describe_client_quotas(
        self, quota_filter: ClientQuotaFilter = ALL, *, timeout_s: float | None = None
    ) -> dict[ClientQuotaEntity, dict[str, float]]:
        """Describe the quotas of users, client ids and addresses (Kafka 2.6): all, or those that a
        filter matches.

        Return them by entity, then by name: producer_byte_rate and consumer_byte_rate are bytes a
        second, request_percentage is per cent of a thread. Raises KafkaError.
        """
        if not isinstance(quota_filter, ClientQuotaFilter):
            raise OptionError(f"quota_filter is a ClientQuotaFilter, got {quota_filter!r}")
        arguments.checked_flag(quota_filter.strict, "strict")
        example = 'ClientQuotaFilterComponent.of_entity("user", "alice")'
        components = arguments.checked_list(
            quota_filter.components, ClientQuotaFilterComponent, "components", example
        )
        for component in components:
            entity_type = arguments.checked_choice(
                component.entity_type, ENTITY_TYPES, "entity_type of a ClientQuotaFilterComponent"
            )
            if component.match_type == _EXACT:
                arguments.checked_name(component.match, f"the {entity_type} of a filter")  # type: ignore[arg-type]
        request = messages.DescribeClientQuotasRequest(
            components=[
                messages.QuotaComponent(
                    entity_type=row.entity_type, match_type=row.match_type, match=row.match
                )
                for row in components
            ],
            strict=quota_filter.strict,
        )

        def read(response: Any) -> dict[ClientQuotaEntity, dict[str, float]]:
            """Return the quotas of each entity in the response, by name."""
            return {
                _read_entity(entry.entity): {quota.key: quota.value for quota in entry.values}
                for entry in response.entries or ()
            }

        acl = "DESCRIBE_CONFIGS on the cluster"
        return self._one("client quotas", request, read, timeout_s, acl=acl)

    def alter_client_quotas(
        self,
        alterations: Iterable[ClientQuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Results[ClientQuotaEntity, None]:
        """Set the quotas of entities, and remove those whose value is None (Kafka 2.6). Return
        results by entity. Errors: INVALID_REQUEST for a name or value that brokers do not accept, …
        Raises OptionError."""
        arguments.checked_flag(validate_only, "validate_only")
        example = 'ClientQuotaAlteration(entity, {"producer_byte_rate": 1048576})'
        changes: dict[ClientQuotaEntity, Mapping[str, float | None]] = {}
        for alteration in arguments.checked_list(
            alterations, ClientQuotaAlteration, "alterations", example
        ):
            entity, ops = alteration.entity, alteration.ops
            if not isinstance(entity, ClientQuotaEntity):
                raise OptionError(f"entity is a ClientQuotaEntity, got {entity!r}")
            if entity in changes:
                raise OptionError(f"the quotas of {entity} are altered twice in one call")
            for key, value in arguments.checked_mapping(
                ops, "ops", '"producer_byte_rate": 1048576'
            ).items():
                arguments.checked_name(key, f"a quota of {entity}")
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if value is not None and not (is_number and abs(value) <= sys.float_info.max):
                    raise OptionError(f"{key} of {entity} is a number, or None, got {value!r}")
            changes[entity] = ops
        handler, lookup = _AlterQuotas(changes, validate_only), ToController(self._cluster)
        return self._each(changes, handler, lookup, "altering client quotas", timeout_s)
