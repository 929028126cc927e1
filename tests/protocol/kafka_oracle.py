"""What the schema tests compare with: Kafka's message JSON, and kafka-python's codec.

Both ship inside the kafka-python wheel; the JSON is Apache Kafka's own, so it shares nothing with
this package but the wire format. What the wheel lacks is in tests/vectors/schemas.json, and
kafka-python makes its codec of that all the same.
"""

from __future__ import annotations

import functools
import importlib.resources
import inspect
import json
import random
import re
import unittest.mock
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import kafka.protocol.admin
import kafka.protocol.api_message
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from hypothesis import strategies as st

from sparkkafka.protocol.messages import REQUESTS, ApiVersionsResponse
from sparkkafka.protocol.wire.schema import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Message,
    Primitive,
    WireType,
    fields,
)

MESSAGES: list[type[Message]] = [
    cls for request in REQUESTS.values() for cls in (request, request.RESPONSE)
]

MESSAGE_VERSIONS: list[tuple[type[Message], int]] = [
    (cls, version) for cls in MESSAGES for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
]


def name_version(case: object) -> str:
    """A readable test id for one half of a MESSAGE_VERSIONS pair."""
    return case.__name__ if isinstance(case, type) else f"v{case}"


def each_version(test: Callable[..., None]) -> Any:
    """A test of (cls, version) for each message, in all its versions one after the other. The
    version stands in a note of the failure: three thousand tests take as long to be counted."""
    signature = inspect.signature(test)

    @functools.wraps(test)
    def every(cls: type[Message], **fixtures: Any) -> None:
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            try:
                test(cls=cls, version=version, **fixtures)
            except BaseException as error:
                error.add_note(f"{cls.__name__} in version {version}")
                raise

    left = [parameter for parameter in signature.parameters.values() if parameter.name != "version"]
    every.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return pytest.mark.parametrize("cls", MESSAGES, ids=name_version)(every)


# Kafka's JSON, flattened to one row a field.


class Row(NamedTuple):
    """One field of a message at one version, as both sides must see it."""

    path: str
    wire_type: str
    tag: int | None
    nullable: bool
    default: object
    ignorable: bool


_OTHER_SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "schemas.json").read_text()
)


@functools.cache
def _json_text(name: str) -> str:
    if name in _OTHER_SCHEMAS:
        return json.dumps(_OTHER_SCHEMAS[name])
    folder = importlib.resources.files("kafka.protocol.schemas") / "resources"
    text = (folder / f"{name}.json").read_text()
    return re.sub(r"(?m)^\s*//.*$", "", text)


def load_json(name: str) -> dict[str, Any]:
    """Kafka's description of a message, with shared structs put where they are used."""
    spec: dict[str, Any] = json.loads(_json_text(name))
    shared = {item["name"]: item["fields"] for item in spec.get("commonStructs", [])}

    def resolve(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            inner = row["type"].removeprefix("[]")
            if inner in shared and "fields" not in row:
                row["fields"] = json.loads(json.dumps(shared[inner]))
            resolve(row.get("fields", []))

    resolve(spec["fields"])
    return spec


def versions_of(text: str | None) -> range:
    """'3+', '1-4', '0' or 'none' as a range."""
    if text is None or text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), 1000)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


# Structs that Kafka gives a name of several others' too.
_KAFKAS_NAMES = {
    "QuorumPartition": "PartitionData",
    "QuorumPartitionState": "PartitionData",
    "QuorumReplicaState": "ReplicaState",
    "QuorumTopic": "TopicData",
    "QuorumTopicState": "TopicData",
    "QuorumListener": "Listener",
    "QuorumNode": "Node",
}


def _kafkas_name(cls: type) -> str:
    return _KAFKAS_NAMES.get(cls.__name__, cls.__name__)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def json_rows(rows: list[dict[str, Any]], version: int, prefix: str = "") -> Iterator[Row]:
    for row in rows:
        if version not in versions_of(row["versions"]):
            continue
        path = prefix + snake_case(row["name"])
        tagged = version in versions_of(row.get("taggedVersions"))
        yield Row(
            path,
            row["type"],
            row["tag"] if tagged else None,
            # A null record set is what the generator makes of a records field's default.
            version in versions_of(row.get("nullableVersions")),
            _json_default(row),
            bool(row.get("ignorable", False)),
        )
        yield from json_rows(row.get("fields", []), version, f"{path}.")


def _json_default(row: dict[str, Any]) -> object:
    kind, default = row["type"], row.get("default", "")
    if default == "null" or kind == "records":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "bool":
        return str(default).lower() == "true"
    if kind.startswith(("int", "uint")):
        return int(str(default), 0) if default != "" else 0
    if kind == "float64":
        return 0.0
    if kind == "uuid":
        return uuid.UUID(int=0)
    if kind == "bytes":
        return b""
    return default if kind == "string" else "struct"


# Kafka gives two structs the same name; Java tells them apart by the message around them.
JSON_NAMES = {
    "QuotaComponent": "ComponentData",
    "QuotaEntityPart": "EntityData",
    "QuotaValue": "ValueData",
    "QuotaOp": "OpData",
    "DescribedQuotaEntry": "EntryData",
    "AlteredQuotaEntry": "EntryData",
    "AlterQuotaResult": "EntryData",
    "ElectionPartitions": "TopicPartitions",
    "ElectionPartitionResult": "PartitionResult",
    "DescribedTransactionState": "TransactionState",
    "ListedTransactionState": "TransactionState",
    "ProducersTopic": "TopicRequest",
    "ProducersTopicResponse": "TopicResponse",
    "ProducersPartitionResponse": "PartitionResponse",
    "DescribedProducer": "ProducerState",
    "DescribedConsumerGroup": "DescribedGroup",
    "DescribedConsumer": "Member",
    "DescribedAssignment": "Assignment",
    "DescribedTopicPartitions": "TopicPartitions",
    "HeartbeatTopicPartitions": "TopicPartitions",
    "HeartbeatAssignment": "Assignment",
    "DescribedShareGroup": "DescribedGroup",
    "DescribedShareMember": "Member",
    "ShareFetchTopic": "FetchTopic",
    "ShareFetchPartition": "FetchPartition",
    "ForgottenShareTopic": "ForgottenTopic",
    "SharePartitionData": "PartitionData",
    "ShareLeader": "LeaderIdAndEpoch",
    "AcknowledgePartitionData": "PartitionData",
    "ListedConfigResource": "ConfigResource",
}


def class_rows(cls: type[Any], version: int, prefix: str = "") -> Iterator[Row]:
    """The same rows from our declaration."""
    for row in fields(cls):
        if not row.exists(version):
            continue
        path = prefix + row.name
        kind = row.wire_type
        inner = kind.element if isinstance(kind, ArrayOf) else kind
        name = inner.name if isinstance(inner, Primitive) else _kafkas_name(inner)
        name = JSON_NAMES.get(name, name)
        is_struct = not isinstance(inner, Primitive)
        default = row.make_default()
        if is_struct and not isinstance(kind, ArrayOf):
            default = "struct" if default == inner() else default
        yield Row(
            path,
            f"[]{name}" if isinstance(kind, ArrayOf) else name,
            row.tag,
            row.nullable(version),
            default,
            row.ignorable,
        )
        if is_struct:
            yield from class_rows(inner, version, f"{path}.")


def differences(cls: type[Message], spec: dict[str, Any]) -> list[str]:
    """Everything in which our declaration and Kafka's JSON differ, at any of our versions."""
    found: list[str] = []
    if spec["apiKey"] != cls.API_KEY:
        found.append(f"API key {cls.API_KEY}, Kafka's is {spec['apiKey']}")
    if cls.__name__ != spec["name"]:
        found.append(f"name {cls.__name__}, Kafka's is {spec['name']}")
    valid = versions_of(spec["validVersions"])
    flexible = versions_of(spec["flexibleVersions"])
    seen: set[str] = set()
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        if version not in valid:
            found.append(f"v{version} is not valid")
        ours_flexible = cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE
        if ours_flexible != (version in flexible):
            found.append(f"v{version} flexible: {ours_flexible}")
        ours, theirs = list(class_rows(cls, version)), list(json_rows(spec["fields"], version))
        seen |= {row.path for row in ours}
        if ours != theirs:
            found += [f"v{version} ours   {row}" for row in ours if row not in theirs]
            found += [f"v{version} Kafka's {row}" for row in theirs if row not in ours]
            found.append(f"v{version} fields or their order differ")
    found += [f"{path} is in no version" for path in _all_paths(cls) if path not in seen]
    return found


def _all_paths(cls: type[Any], prefix: str = "") -> Iterator[str]:
    for row in fields(cls):
        yield prefix + row.name
        kind = row.wire_type
        inner = kind.element if isinstance(kind, ArrayOf) else kind
        if not isinstance(inner, Primitive):
            yield from _all_paths(inner, f"{prefix}{row.name}.")


# Values.

_INT_BITS: dict[WireType, int] = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}

_WORDS = ["", "a", "topic-1", "größe", "日本語", "x" * 127, "y" * 128, "z" * 300]


class Generator:
    """Makes messages for a version, every present field set.

    `full` leaves nothing at its default and no array empty; `small` keeps strings, bytes and
    arrays short.
    """

    def __init__(self, seed: int, *, full: bool = False, small: bool = False) -> None:
        self._random = random.Random(seed)
        self._full = full
        self._words = _WORDS[:4] if small else _WORDS
        self._counts = [0, 1, 1, 2, 5] if not full else [1] if small else [1, 2, 3]
        self._sizes = [0, 1, 9] if small else [0, 1, 100, 127, 128, 1000]

    def message(self, cls: type[Any], version: int) -> Any:
        made = cls(
            **{row.name: self._field(row, version) for row in fields(cls) if row.exists(version)}
        )
        if cls is ApiVersionsResponse:
            made.error_code = 0  # any other makes kafka-python read a version 0 body
        return made

    def _field(self, row: Field, version: int) -> Any:
        if row.nullable(version) and not self._full and self._random.random() < 0.25:
            return None
        while True:
            value = self._value(row.wire_type, version)
            if not self._full or value != row.make_default():
                return value

    def _value(self, kind: WireType, version: int) -> Any:
        rng = self._random
        if isinstance(kind, ArrayOf):
            count = rng.choice(self._counts)
            return [self._value(kind.element, version) for _ in range(count)]
        if kind is BOOLEAN:
            return rng.random() < 0.5
        if kind in _INT_BITS:
            bits = _INT_BITS[kind]
            edge = rng.choice([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
            return (
                edge if rng.random() < 0.4 else rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
            )
        if kind is UINT16:
            return rng.randrange(2**16)
        if kind is FLOAT64:
            return rng.choice([0.0, -1.5, 1e300, rng.random()])
        if kind is UUID:
            return uuid.UUID(int=rng.getrandbits(128))
        if kind is STRING:
            return rng.choice(self._words)
        if kind is BYTES or kind is RECORDS:
            return rng.randbytes(rng.choice(self._sizes))
        return self.message(kind, version)  # type: ignore[arg-type]


def strategy(kind: WireType, version: int) -> st.SearchStrategy[Any]:
    """Hypothesis values of a wire type; a message or struct class is one too."""
    if isinstance(kind, ArrayOf):
        return st.lists(strategy(kind.element, version), max_size=3)
    if kind is BOOLEAN:
        return st.booleans()
    if kind in _INT_BITS:
        bits = _INT_BITS[kind]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if kind is UINT16:
        return st.integers(0, 2**16 - 1)
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    if kind is UUID:
        return st.uuids()
    if kind is STRING:
        return st.text(max_size=20)
    if kind is BYTES or kind is RECORDS:
        return st.binary(max_size=40)
    return _struct_strategy(kind, version)  # type: ignore[arg-type]


@functools.cache
def _struct_strategy(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    rows = [row for row in fields(cls) if row.exists(version)]
    return st.builds(
        cls,
        **{
            row.name: st.none() | strategy(row.wire_type, version)
            if row.nullable(version)
            else strategy(row.wire_type, version)
            for row in rows
        },
    )


# kafka-python.

_MODULES: tuple[ModuleType, ...] = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)

# kafka-python renames these and turns them into sets of bit numbers.
_BIT_FIELDS = {
    "authorized_operations",
    "topic_authorized_operations",
    "cluster_authorized_operations",
}


def peer_class(cls: type[Message]) -> Any:
    """kafka-python's class of a message."""
    if cls.__name__ in _OTHER_SCHEMAS:
        return _made_peer_class(cls.__name__)
    for module in _MODULES:
        if hasattr(module, cls.__name__):
            return getattr(module, cls.__name__)
    raise LookupError(cls.__name__)


@functools.cache
def _made_peer_class(name: str) -> Any:
    """kafka-python's codec of a message that it does not have in all versions, made from Kafka's
    JSON."""
    known = [getattr(module, name) for module in _MODULES if hasattr(module, name)]
    base = known[0] if known else kafka.protocol.api_message.ApiMessage
    with unittest.mock.patch(
        "kafka.protocol.api_data.load_json",
        lambda name, package=None: _with_bit_fields(load_json(name)),
    ):
        return type(kafka.protocol.api_message.ApiMessage)(name, (base,), {})


def _with_bit_fields(spec: dict[str, Any]) -> dict[str, Any]:
    """The change that kafka-python makes by hand to the schemas of its own."""
    for row in spec.get("fields", ()):
        if snake_case(row["name"]) in _BIT_FIELDS:
            row["type"] = "bitfield"
        _with_bit_fields(row)
    return spec


def to_peer(value: Any, version: int) -> Any:
    """Our message as kafka-python's."""
    cls = peer_class(type(value))
    return cls(version=version, **_peer_arguments(value, cls._struct, version))


def _peer_arguments(value: Any, peer_struct: Any, version: int) -> dict[str, Any]:
    arguments = {}
    for row in fields(type(value)):
        if not row.exists(version):
            continue
        item = getattr(value, row.name)
        if row.tag is not None and item == row.make_default():
            continue
        name = row.name if row.name in peer_struct.fields else _peer_name(row.name)
        if name == row.name in _BIT_FIELDS and peer_struct.fields[name].type_str == "int32":
            arguments[name] = item  # not one of those that kafka-python changes by hand
        else:
            arguments[name] = _peer_value(row, item, peer_struct.fields[name], version)
    return arguments


def _peer_name(name: str) -> str:
    return "authorized_operations" if name in _BIT_FIELDS else name


def _peer_value(row: Field, item: Any, peer_field: Any, version: int) -> Any:
    if row.name in _BIT_FIELDS:
        return {bit for bit in range(32) if item >> bit & 1}
    if peer_field.is_struct_array() and item is not None:
        return [peer_field(**_peer_arguments(part, peer_field, version)) for part in item]
    if peer_field.is_struct() and item is not None:
        return peer_field(**_peer_arguments(item, peer_field, version))
    return item


def from_peer(cls: type[Any], peer: Any, version: int) -> Any:
    """kafka-python's message as ours."""
    values = {}
    for row in fields(cls):
        if not row.exists(version):
            continue
        item = getattr(peer, row.name, None)
        item = getattr(peer, _peer_name(row.name)) if item is None else item
        inner = row.wire_type.element if isinstance(row.wire_type, ArrayOf) else row.wire_type
        if row.name in _BIT_FIELDS and not isinstance(item, int):
            unsigned = 1 << 31 if item is None else sum(1 << bit for bit in item)
            item = unsigned - (1 << 32) if unsigned >> 31 else unsigned
        elif row.tag is not None and item is None:
            item = row.make_default()
        elif isinstance(row.wire_type, ArrayOf):
            if item is not None and not isinstance(inner, Primitive):
                item = [from_peer(inner, part, version) for part in item]
        elif not isinstance(inner, Primitive):
            item = None if item is None else from_peer(inner, item, version)
        elif inner is RECORDS and item is not None:
            item = bytes(item)
        values[row.name] = item
    return cls(**values)
