"""Describe and alter settings of topics, brokers and groups.

Requests about a broker's settings go to that broker, all others to any broker (KRaft brokers
forward changes to the controller).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkkafka.client import arguments
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.request_driver import ApiHandler, Outcome, Outcomes, ToAny, ToBroker
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results
from sparkkafka.errors import ErrorCode, OptionError
from sparkkafka.protocol import messages

# ConfigResource.Type of Java's Admin.
RESOURCE_TYPES = {"topic": 2, "broker": 4, "broker_logger": 8, "client_metrics": 16, "group": 32}
_TYPE_NAMES = {number: name for name, number in RESOURCE_TYPES.items()}
OF_ONE_BROKER = frozenset({"broker", "broker_logger"})
"""The types whose requests go to the broker that the resource names."""

# DescribeConfigsResponse.ConfigSource
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
# DescribeConfigsResponse.ConfigType
_CONFIG_TYPES = dict(
    enumerate(
        ("BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"), 1
    )
)

# AlterConfigOp.OpType
OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}


class ConfigResource(NamedTuple):
    """A resource with settings: ConfigResource("topic", "orders"), ("broker", "1"), ("group", "g").

    `type` is topic, broker, broker_logger, client_metrics or group. A broker's name is its node id
    as text; "" stands for all brokers of the cluster. Groups have settings since Kafka 4.0.
    """

    type: str
    name: str

    def __str__(self) -> str:
        if self.type == "broker" and not self.name:
            return "all brokers (the cluster's defaults)"
        return f"{self.type.replace('_', ' ')} {self.name}"


@dataclass(frozen=True, kw_only=True)
class ConfigEntry:
    """One setting.

    `value` is None for a sensitive one. `source` says where the value comes from, in Java's words
    (DYNAMIC_TOPIC_CONFIG: it was set for this topic; DEFAULT_CONFIG: it was not set).
    `synonyms` are all sources of the value as (name, value, source), the effective one first, if
    they were requested; so is `documentation` (Kafka 2.6).
    """

    name: str
    value: str | None
    source: str
    is_sensitive: bool
    is_read_only: bool
    type: str
    synonyms: tuple[tuple[str, str | None, str], ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is the default and was not set anywhere."""
        return self.source == "DEFAULT_CONFIG"


class AlterConfigOp(NamedTuple):
    """One change: `operation` is set, delete (back to the default; no value), append or subtract
    (of a setting that is a list: values separated by commas)."""

    name: str
    value: str | None = None
    operation: str = "set"


ConfigChanges = Mapping[str, str | int | bool | None] | Iterable[AlterConfigOp]
"""{name: value to set, None to delete}, or AlterConfigOps. Numbers and bools become text."""


# --- listing ----------------------------------------------------------------------------------


class _ListResources(ApiHandler[str, list[ConfigResource]]):
    request_type = messages.ListConfigResourcesRequest
    acl = "DESCRIBE_CONFIGS on the cluster"

    def __init__(self, types: Sequence[str]) -> None:
        self._types = types

    def needed_versions(self, item: str) -> Mapping[str, int]:
        """Return what version 1 added: types."""
        has_others = self._types != ["client_metrics"]
        return {"listing resources other than client_metrics": 1} if has_others else {}

    def build(self, items: Sequence[str], version: int) -> Any:
        """Build the request for the resources of the chosen types; none chosen: of all types."""
        # Version 0 has no types, and lists client_metrics.
        numbers = [RESOURCE_TYPES[name] for name in self._types] if version else []
        return messages.ListConfigResourcesRequest(resource_types=numbers)

    def read(self, response: Any, items: Sequence[str]) -> Outcomes[str]:
        """Return all resources in the response, sorted, as the value of the only item."""
        resources = sorted(map(_resource, response.config_resources))
        return [(item, Outcome(0, resources)) for item in items]


def list_config_resources(
    cluster: Cluster, types: Iterable[str], deadline: Deadline
) -> list[ConfigResource]:
    """List the resources of these types that have settings; if `types` is empty, of all types."""
    chosen = [
        arguments.checked_choice(name, RESOURCE_TYPES, "a type in types")
        for name in arguments.checked_names(types, "types")
    ]
    item = "resources with settings"  # the request is about no single resource: one for all
    return ToAny(cluster).call_all([item], _ListResources(chosen), deadline, item)[item]


# --- reading ----------------------------------------------------------------------------------


class _DescribeConfigs(ApiHandler[ConfigResource, dict[str, ConfigEntry]]):
    request_type = messages.DescribeConfigsRequest
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(
        self, keys: Iterable[str] | None, include_synonyms: bool, include_documentation: bool
    ) -> None:
        self._keys = None if keys is None else list(keys)
        self._synonyms = include_synonyms
        self._documentation = include_documentation

    def build(self, items: Sequence[ConfigResource], version: int) -> Any:
        """Build the request for the configs of these topics, brokers or groups."""
        return messages.DescribeConfigsRequest(
            resources=[
                messages.DescribeConfigsResource(
                    resource_type=RESOURCE_TYPES[item.type],
                    resource_name=item.name,
                    configuration_keys=self._keys,
                )
                for item in items
            ],
            include_synonyms=self._synonyms,
            include_documentation=self._documentation,
        )

    def read(self, response: Any, items: Sequence[ConfigResource]) -> Outcomes[ConfigResource]:
        """Return the configs of each resource, by name."""
        return [
            (
                _resource(row),
                Outcome.of(row, {config.name: _entry(config) for config in row.configs}),
            )
            for row in response.results
        ]

    def needed_versions(self, item: ConfigResource) -> Mapping[str, int]:
        """Return what version 3 of DescribeConfigs added, if it is requested."""
        return {"documentation of settings": 3} if self._documentation else {}

    def needed_acl(self, item: ConfigResource) -> str:
        return f"DESCRIBE_CONFIGS on {_acl_name(item)}"


def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    deadline: Deadline,
    *,
    keys: Iterable[str] | None = None,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> Results[ConfigResource, dict[str, ConfigEntry]]:
    """Describe the settings of each resource by name: all, or those of `keys` that it has.

    Raises OptionError for an invalid resource.
    """
    example = 'ConfigResource("topic", "orders")'
    items = [
        _checked_resource(resource)
        for resource in arguments.checked_list(
            resources, ConfigResource, "resources", example, strict=False
        )
    ]
    keys = None if keys is None else arguments.checked_names(keys, "keys")
    arguments.checked_flag(include_synonyms, "include_synonyms")
    arguments.checked_flag(include_documentation, "include_documentation")
    handler = _DescribeConfigs(keys, include_synonyms, include_documentation)
    return _lookup(cluster).call_each(items, handler, deadline, "reading settings")


# --- changing ---------------------------------------------------------------------------------


class _AlterConfigs(ApiHandler[ConfigResource, None]):
    request_type = messages.IncrementalAlterConfigsRequest
    # Before it there was only AlterConfigs, which replaces all settings of a resource: concurrent
    # changes of others would be lost, and so would settings that are not shown.
    final_codes = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

    def __init__(
        self, changes: Mapping[ConfigResource, Sequence[AlterConfigOp]], validate_only: bool
    ) -> None:
        self._changes = changes
        self._validate_only = validate_only

    def needed_versions(self, item: ConfigResource) -> Mapping[str, int]:
        """Return the use of this request, for brokers that have no version of it."""
        return {"changing single settings (KIP-339)": 0}

    def build(self, items: Sequence[ConfigResource], version: int) -> Any:
        """Build the request that changes single configs of these resources (KIP-339)."""
        return messages.IncrementalAlterConfigsRequest(
            resources=[
                messages.AlterConfigsResource(
                    resource_type=RESOURCE_TYPES[item.type],
                    resource_name=item.name,
                    configs=[
                        messages.AlterableConfig(
                            name=change.name,
                            config_operation=OPERATIONS[change.operation],
                            value=change.value,
                        )
                        for change in self._changes[item]
                    ],
                )
                for item in items
            ],
            validate_only=self._validate_only,
        )

    def read(self, response: Any, items: Sequence[ConfigResource]) -> Outcomes[ConfigResource]:
        """Return the error code of each resource: 0 if its settings were changed."""
        return [(_resource(row), Outcome.of(row)) for row in response.responses]

    def needed_acl(self, item: ConfigResource) -> str:
        return f"ALTER_CONFIGS on {_acl_name(item)}"


def incremental_alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, ConfigChanges],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> Results[ConfigResource, None]:
    """Change some settings of each resource and leave the others. All changes of a resource are
    made, or none.

    Raises OptionError for an invalid change; before Kafka 2.3 the error of each item is
    UnsupportedVersionError.
    """
    arguments.checked_flag(validate_only, "validate_only")
    example = 'ConfigResource("topic", "orders"): {"retention.ms": "3600000"}'
    items = {
        (checked := _checked_resource(resource)): _checked_operations(checked, resource_changes)
        for resource, resource_changes in arguments.checked_mapping(
            changes, "changes", example
        ).items()
    }
    handler = _AlterConfigs(items, validate_only)
    return _lookup(cluster).call_each(items, handler, deadline, "changing settings")


def _checked_operations(resource: ConfigResource, changes: ConfigChanges) -> list[AlterConfigOp]:
    """Return the changes as AlterConfigOps, with values as text. Raises OptionError."""
    if isinstance(changes, Mapping):
        ops = [
            AlterConfigOp(name, value, "delete" if value is None else "set")  # type: ignore[arg-type]
            for name, value in changes.items()
        ]
    else:
        example = 'AlterConfigOp("cleanup.policy", "compact", "append")'
        what = f'what changes of {resource}, if not a dict such as {{"retention.ms": "3600000"}},'
        ops = arguments.checked_list(changes, AlterConfigOp, what, example)
    for op in ops:
        arguments.checked_name(op.name, f"a setting of {resource}")
        arguments.checked_choice(op.operation, OPERATIONS, f"setting {op.name}: operation")
        if (op.value is None) != (op.operation == "delete"):
            raise OptionError(
                f"setting {op.name}: {op.operation} "
                + ("takes no value" if op.operation == "delete" else "needs a value")
            )
    return [
        op
        if op.value is None
        else op._replace(value=arguments.setting_text(op.value, f"{resource}, {op.name}"))
        for op in ops
    ]


# --- shared -----------------------------------------------------------------------------------


def _checked_resource(resource: ConfigResource) -> ConfigResource:
    """Return the resource as ConfigResource. Raises OptionError."""
    match resource:
        case (str(kind), str(name)):
            pass
        case _:
            raise OptionError(
                f'a resource is ConfigResource("topic", "orders") and the like, got {resource!r}'
            )
    arguments.checked_choice(kind, RESOURCE_TYPES, "resource type")
    if kind in OF_ONE_BROKER and name and not name.isdecimal():
        raise OptionError(f"a broker's name is its node id as text, got {name!r}")
    return ConfigResource(kind, name)


def _lookup(cluster: Cluster) -> ToBroker:
    """Return the lookup for requests about settings: those of a broker go to this broker, others to
    any."""
    return ToBroker(
        cluster, lambda item: int(item.name) if item.type in OF_ONE_BROKER and item.name else None
    )


def _resource(row: Any) -> ConfigResource:
    """Return the resource in a response. If its type is not known here, the type is its number as
    text."""
    kind = _TYPE_NAMES.get(row.resource_type, str(row.resource_type))
    return ConfigResource(kind, row.resource_name)


def _acl_name(resource: ConfigResource) -> str:
    """Return the resource, as a message about a missing ACL names it."""
    return str(resource) if resource.type in ("topic", "group") else "the cluster"


def _entry(row: Any) -> ConfigEntry:
    """Return the ConfigEntry for a setting in the response."""
    return ConfigEntry(
        name=row.name,
        value=row.value,
        source=_SOURCES.get(row.config_source, "UNKNOWN"),
        is_sensitive=row.is_sensitive,
        is_read_only=row.read_only,
        type=_CONFIG_TYPES.get(row.config_type, "UNKNOWN"),
        synonyms=tuple(
            (synonym.name, synonym.value, _SOURCES.get(synonym.source, "UNKNOWN"))
            for synonym in row.synonyms
        ),
        documentation=row.documentation or None,
    )
