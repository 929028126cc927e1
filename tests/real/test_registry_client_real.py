"""Our client of the Schema Registry on Apicurio's, which answers Confluent's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import KafkaError, RegistryError, SchemaError
from sparkkafka.schemas.registry.client import RegistryClient, connect
from sparkkafka.schemas.values import Schema
from sparkkafka.testing.registry import SchemaRegistry

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_is_cached")]


def order(*fields: dict[str, Any]) -> Schema:
    rows = [{"name": "id", "type": "long"}, *fields]
    record = {"type": "record", "name": "Order", "namespace": "shop", "fields": rows}
    return Schema(AVRO, json.dumps(record))


ONE = order()
TWO = order({"name": "note", "type": ["null", "string"], "default": None})
NO_DEFAULT = order({"name": "age", "type": "int"})
MESSAGE = 'syntax = "proto3"; package shop; message Customer { int32 id = 1; }'
USES = 'syntax = "proto3"; import "customer.proto"; message Sale { shop.Customer who = 1; }'


@pytest.fixture
def registry(schema_registry: SchemaRegistry) -> RegistryClient:
    return RegistryClient(RegistryOptions(url=schema_registry.url))


def refused(kind: type[KafkaError], call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_versions_ids_and_look_ups(registry: RegistryClient) -> None:
    first = registry.register("client-value", ONE)
    assert (first.version, first.guid) == (1, None)
    assert registry.register("client-value", ONE) == first
    second = registry.register("client-value", TWO, normalize=True)
    assert second.version == 2
    latest = registry.latest("client-value")
    assert (latest.id, latest.version) == (second.id, 2)
    assert json.loads(latest.schema.text) == json.loads(TWO.text)
    assert registry.version("client-value", 1).id == first.id
    assert registry.versions("client-value") == (1, 2)
    assert json.loads(registry.by_id(first.id, "client-value", AVRO).text) == json.loads(ONE.text)
    found = registry.lookup("client-value", ONE)
    assert found is not None
    assert found.id == first.id
    assert registry.lookup("client-value", NO_DEFAULT) is None
    assert registry.lookup("client-none", ONE) is None
    assert "client-value" in registry.subjects()
    assert (("client-value", 1)) in registry.subject_versions(first.id)
    assert "client-value" in registry.other_subjects_hint(first.id, "client-other")


def test_what_is_not_there(registry: RegistryClient) -> None:
    registry.register("missing-orders-value", ONE)
    text = refused(RegistryError, lambda: registry.latest("missing-order-value"))
    assert "near names are 'missing-orders-value'" in text
    text = refused(RegistryError, lambda: registry.version("missing-orders-value", 9))
    assert "has no version 9; it has 1" in text
    text = refused(RegistryError, lambda: registry.by_id(999_999))
    assert "the schema with id 999999 is not in the Schema Registry" in text
    text = refused(RegistryError, lambda: registry.by_guid(bytes(16)))
    assert "is not in the Schema Registry, or it cannot look up GUIDs" in text


def test_an_address_without_its_path(schema_registry: SchemaRegistry) -> None:
    for url in (schema_registry.url.partition("/apis")[0], schema_registry.url + "7"):
        lost = RegistryClient(RegistryOptions(url=url, max_retries=0))
        text = refused(RegistryError, lambda lost=lost: lost.latest("client-value"))
        assert "does schema.registry.url lack a path, or have one that is wrong?" in text


def test_references_and_formats(registry: RegistryClient, schema_registry: SchemaRegistry) -> None:
    registry.register("refs-customer", Schema(PROTOBUF, MESSAGE))
    reference = ("customer.proto", "refs-customer", 1)
    number = schema_registry.register("refs-sale", USES, "PROTOBUF", [reference])
    schema = registry.by_id(number, format=PROTOBUF)
    ((name, customer),) = schema.references
    assert (name, customer.format) == ("customer.proto", PROTOBUF)
    assert "message Customer" in customer.text
    assert registry.latest("refs-sale").schema == schema
    text = refused(SchemaError, lambda: registry.by_id(number, format=AVRO))
    assert "(it belongs to 'refs-sale') in http" in text and "is protobuf, not avro" in text
    shown = {"type": "object", "title": "T", "properties": {"x": {"type": "integer"}}}
    found = registry.register("refs-json", Schema(JSON, json.dumps(shown)))
    assert json.loads(registry.by_id(found.id, format=JSON).text) == shown


def test_an_incompatible_schema_is_refused_with_its_field(registry: RegistryClient) -> None:
    registry.register("evolution-value", ONE)
    assert registry.incompatibilities("evolution-value", TWO) == ()
    assert registry.incompatibilities("evolution-none", TWO) == ()
    (reason,) = registry.incompatibilities("evolution-value", NO_DEFAULT)
    assert "age" in reason
    with pytest.raises(RegistryError) as caught:
        registry.register("evolution-value", NO_DEFAULT)
    assert caught.value.status == 409
    assert "the next version of subject 'evolution-value'" in str(caught.value)
    assert "age at /fields/1" in str(caught.value)
    text = refused(
        RegistryError, lambda: registry.register("evolution-value", Schema(AVRO, '{"type": "l"}'))
    )
    assert "rejects the schema of subject 'evolution-value' as invalid" in text


def test_names_with_any_characters(registry: RegistryClient) -> None:
    found = registry.register("a/b %ü-value", ONE)
    assert registry.latest("a/b %ü-value").id == found.id


def test_apicurios_own_api(schema_registry: SchemaRegistry) -> None:
    """Version 2 of it. Global and content ids are numbers of different schemas."""
    host = schema_registry.url.partition("/apis")[0]
    client = connect(RegistryOptions(url=f"{host}/apis/registry/v2/groups/shop"))
    first = client.register("own", ONE)
    assert client.register("own", ONE) == first
    assert client.register("own", TWO).version == 2
    assert client.lookup("own", ONE) == first
    assert client.lookup("own", NO_DEFAULT) is None
    assert client.lookup("none", ONE) is None
    assert client.versions("own") == (1, 2)
    assert client.version("own", 1, AVRO).id == first.id
    assert json.loads(client.latest("own", AVRO).schema.text) == json.loads(TWO.text)
    assert first.id is not None
    assert first.content_id is not None
    for schema in (
        client.by_id(first.id, None, AVRO),
        client.by_content_id(first.content_id, AVRO),
    ):
        assert json.loads(schema.text) == json.loads(ONE.text)
    assert "no such schema 'none'" in refused(RegistryError, lambda: client.latest("none"))
    assert "is not in" in refused(RegistryError, lambda: client.by_id(1 << 40))
    assert "is avro, not json" in refused(SchemaError, lambda: client.latest("own", JSON))
