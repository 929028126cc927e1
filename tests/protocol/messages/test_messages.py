"""Every message at every version: against Kafka's JSON, against kafka-python, and round trips."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkkafka.errors import EncodeError
from sparkkafka.protocol import messages
from sparkkafka.protocol.messages import REQUESTS, ApiVersionsRequest, FetchRequest
from sparkkafka.protocol.wire.codec import decode, encode
from sparkkafka.protocol.wire.schema import (
    ArrayOf,
    Field,
    Message,
    Primitive,
    Request,
    boolean,
    fields,
    int16,
    int32,
    int64,
    request,
    string,
)
from tests.protocol.kafka_oracle import (
    MESSAGE_VERSIONS,
    MESSAGES,
    Generator,
    differences,
    each_version,
    from_peer,
    load_json,
    name_version,
    peer_class,
    strategy,
    to_peer,
    versions_of,
)
from tests.support.properties import examples


def test_requests_and_responses_belong_together() -> None:
    for api_key, cls in REQUESTS.items():
        response = cls.RESPONSE
        assert api_key == cls.API_KEY == response.API_KEY
        assert response.REQUEST is cls
        assert response.__name__ == f"{cls.API_NAME}Response"
        assert (response.MIN_VERSION, response.MAX_VERSION, response.FLEXIBLE_SINCE) == (
            cls.MIN_VERSION,
            cls.MAX_VERSION,
            cls.FLEXIBLE_SINCE,
        )


def test_everything_declared_is_exported() -> None:
    for cls in _all_classes():
        assert getattr(messages, cls.__name__) is cls


def _all_classes() -> set[type[Any]]:
    found: set[type[Any]] = set()

    def visit(cls: type[Any]) -> None:
        found.add(cls)
        for row in fields(cls):
            inner = row.wire_type.element if isinstance(row.wire_type, ArrayOf) else row.wire_type
            if not isinstance(inner, Primitive):
                visit(inner)

    for cls in MESSAGES:
        visit(cls)
    return found


# Kafka's JSON


@pytest.mark.parametrize("cls", MESSAGES, ids=name_version)
def test_declaration_equals_kafkas_json(cls: type[Message]) -> None:
    assert differences(cls, load_json(cls.__name__)) == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", MESSAGES, ids=name_version)
def test_json_check_sees_each_planted_fault(cls: type[Message]) -> None:
    """Each field of the JSON gets a quarter of the kinds of faults, in turn, and none may pass."""
    missed = [
        what
        for what, spec in _planted_faults(cls, load_json(cls.__name__))
        if not differences(cls, spec)
    ]
    assert missed == []


FAULTS = (
    "name",
    "type",
    "since",
    "until",
    "nullable",
    "default",
    "ignorable",
    "tag",
    "dropped",
    "moved",
    "added",
)


def _planted_faults(
    cls: type[Message], spec: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "API key", {**spec, "apiKey": spec["apiKey"] + 1}
    first = versions_of(spec["flexibleVersions"])
    later = f"{max(first.start, cls.MIN_VERSION) + 1}+" if first else f"{cls.MAX_VERSION}+"
    yield "flexible versions", {**spec, "flexibleVersions": later}
    yield "valid versions", {**spec, "validVersions": f"{cls.MIN_VERSION + 1}+"}
    everywhere = range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
    for number, (path, live) in enumerate(_live_rows(spec["fields"], list(everywhere))):
        for what in FAULTS[number % 4 :: 4]:
            faulty = copy.deepcopy(spec)
            rows, index = faulty["fields"], path[-1]
            for step in path[:-1]:
                rows = rows[step]["fields"]
            if _plant(what, rows, index, live):
                yield (
                    f"{what} of {rows[min(index, len(rows) - 1)]['name'] if rows else path}",
                    faulty,
                )


def _live_rows(
    rows: list[dict[str, Any]], versions: list[int], prefix: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """(indexes that lead to a row, those of our versions that have it)."""
    for index, row in enumerate(rows):
        live = [version for version in versions if version in versions_of(row["versions"])]
        if live:
            yield (*prefix, index), live
            yield from _live_rows(row.get("fields", []), live, (*prefix, index))


def _plant(what: str, rows: list[dict[str, Any]], index: int, live: list[int]) -> bool:
    """Put one fault into a row; False if the row cannot have it."""
    row = rows[index]
    kind = row["type"]
    last = live[-1]
    match what:
        case "name":
            row["name"] += "X"
        case "type":
            row["type"] = {"int32": "int64", "string": "bytes"}.get(kind, f"{kind}X")
        case "since":
            row["versions"] = f"{live[0] + 1}+"
        case "until":
            row["versions"] = f"{live[0]}-{last - 1}" if last > live[0] else "none"
        case "nullable":
            nullable = last in versions_of(row.get("nullableVersions"))
            row["nullableVersions"] = "none" if nullable else f"{last}+"
        case "default":
            if kind == "bool":
                row["default"] = str(row.get("default", False)).lower() != "true"
            elif kind.startswith("int"):
                row["default"] = str(int(str(row.get("default") or 0), 0) + 1)
            elif kind == "string" or kind.startswith("[]"):
                row["default"] = "" if row.get("default") == "null" else "null"
            else:
                return False
        case "ignorable":
            row["ignorable"] = not row.get("ignorable", False)
        case "tag":
            row["tag"] = row.get("tag", 0) + 1
            row["taggedVersions"] = f"{live[0]}+"
        case "dropped":
            del rows[index]
        case "moved":
            other = next(
                (
                    at
                    for at in range(index + 1, len(rows))
                    if any(version in versions_of(rows[at]["versions"]) for version in live)
                ),
                None,
            )
            if other is None:
                return False
            rows[index], rows[other] = rows[other], rows[index]
        case "added":
            extra = {"name": "Extra", "type": "int32", "versions": f"{last}+"}
            rows.insert(index + 1, extra)
    return True


def test_json_check_sees_faults_in_a_declaration() -> None:
    def found(made: type[Any]) -> str:
        made.__name__ = "EndTxnRequest"
        return "\n".join(differences(made, load_json("EndTxnRequest")))

    @request(api_key=26, versions=(0, 4), flexible=3)
    class Right(Request[Any]):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        committed: bool = boolean()

    @request(api_key=26, versions=(0, 4), flexible=3)
    class WrongType(Request[Any]):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int32()
        committed: bool = boolean()

    @request(api_key=26, versions=(0, 4), flexible=3)
    class OutsideItsVersions(Request[Any]):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        committed: bool = boolean()
        left_over: int = int32(since=5)

    @request(api_key=26, versions=(0, 6), flexible=4)
    class WrongVersions(Request[Any]):
        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        committed: bool = boolean()

    assert found(Right) == ""
    assert "producer_epoch" in found(WrongType)
    assert "left_over is in no version" in found(OutsideItsVersions)
    assert "v6 is not valid" in found(WrongVersions)
    assert "v3 flexible" in found(WrongVersions)


# kafka-python


@pytest.mark.slow
@each_version
def test_bytes_equal_kafka_pythons(cls: type[Message], version: int) -> None:
    """The default message, one without a default value in it, and random ones."""
    peer_type = peer_class(cls)
    samples = [cls()]
    samples += [Generator(seed, full=seed < 1).message(cls, version) for seed in range(3)]
    for message in samples:
        theirs = bytes(to_peer(message, version).encode())
        assert encode(message, version) == theirs
        assert decode(cls, version, theirs) == message
        assert from_peer(cls, peer_type.decode(theirs, version=version), version) == message


# Round trips


@pytest.mark.slow
@each_version
def test_round_trip(cls: type[Message], version: int) -> None:
    for seed in range(3):
        message = Generator(100 + seed, full=seed == 0).message(cls, version)
        encoded = encode(message, version)
        assert decode(cls, version, encoded) == message
        assert decode(cls, version, b"\xff" * 7 + encoded, pos=7) == message
        assert decode(cls, version, bytearray(encoded)) == message


@pytest.mark.slow
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_round_trip_of_any_values(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(MESSAGE_VERSIONS))
    message = data.draw(strategy(cls, version))
    encoded = encode(message, version)
    decoded = decode(cls, version, encoded)
    assert decoded == message
    assert encode(decoded, version) == encoded


# Fields that a version lacks


@each_version
def test_value_without_a_field_is_an_error_unless_ignorable(
    cls: type[Message], version: int
) -> None:
    message = Generator(7, full=True).message(cls, version)
    encoded = encode(message, version)
    for holder, row in _absent(message, version):
        newest = Generator(8, full=True).message(type(holder), _version_with(row, cls))
        setattr(holder, row.name, getattr(newest, row.name))
        if row.ignorable:
            assert encode(message, version) == encoded
        else:
            with pytest.raises(EncodeError, match=rf"{cls.__name__} v{version} .*{row.name}\b"):
                encode(message, version)
        setattr(holder, row.name, row.make_default())
    assert encode(message, version) == encoded


def _absent(value: Any, version: int) -> Iterator[tuple[Any, Field]]:
    for row in fields(type(value)):
        if not row.exists(version):
            yield value, row
            continue
        item = getattr(value, row.name)
        inner = row.wire_type.element if isinstance(row.wire_type, ArrayOf) else row.wire_type
        if not isinstance(inner, Primitive):
            yield from _absent(item[0] if isinstance(item, list) else item, version)


def _version_with(row: Field, cls: type[Message]) -> int:
    return next(v for v in range(cls.MAX_VERSION, cls.MIN_VERSION - 1, -1) if row.exists(v))


def test_fields_that_versions_lack_are_met() -> None:
    """The test above would pass on nothing at all."""
    absent = [
        row.ignorable
        for cls, version in MESSAGE_VERSIONS
        for _, row in _absent(Generator(7, full=True).message(cls, version), version)
    ]
    assert absent.count(False) > 100
    assert absent.count(True) > 100


def test_examples_of_what_a_version_lacks() -> None:
    with pytest.raises(EncodeError, match="FetchRequest v4 forgotten_topics_data: cannot be sent"):
        encode(FetchRequest(forgotten_topics_data=[messages.ForgottenTopic()]), 4)
    named = ApiVersionsRequest(client_software_name="sparkkafka")
    assert encode(named, 2) == b""  # ignorable
    with pytest.raises(EncodeError, match=r"MetadataRequest v9 topics\.name: must not be null"):
        encode(messages.MetadataRequest(topics=[messages.MetadataRequestTopic(name=None)]), 9)


def test_a_name_that_no_message_has_is_an_error() -> None:
    assert {"REQUESTS", "FetchRequest", "AclCreation"} <= set(dir(messages))
    with pytest.raises(AttributeError, match="no attribute 'NoRequest'"):
        _ = messages.NoRequest
