"""Whatever a registry answers is a value or an error of ours, in bounded time and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPMessage
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkkafka.client.auth.http_exchange import HttpResponse
from sparkkafka.config.kinds import AVRO
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import KafkaError
from sparkkafka.schemas.registry import client as registry_client
from sparkkafka.schemas.registry import rest_service
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Schema
from sparkkafka.secret import SecretBytes
from tests.support.properties import examples

SCHEMA = Schema(AVRO, '"long"')
QUESTIONS: list[Callable[[RegistryClient], Any]] = [
    lambda registry: registry.by_id(1, "a-value", AVRO),
    lambda registry: registry.by_guid(bytes(16), AVRO),
    lambda registry: registry.latest("a-value", AVRO),
    lambda registry: registry.version("a-value", 1),
    lambda registry: registry.contract("a-value"),
    lambda registry: registry.versions("a-value"),
    lambda registry: registry.subjects(),
    lambda registry: registry.subject_versions(1),
    lambda registry: registry.other_subjects_hint(1, "a-value"),
    lambda registry: registry.lookup("a-value", SCHEMA),
    lambda registry: registry.register("a-value", SCHEMA),
    lambda registry: registry.incompatibilities("a-value", SCHEMA),
]

OF_SCHEMAS = ["id", "version", "guid", "subject", "schema", "schemaType", "references", "name"]
OF_CONTRACTS = ["ruleSet", "domainRules", "migrationRules", "metadata", "tags", "type", "mode"]
OF_RESPONSES = ["error_code", "message", "is_compatible", "messages", "reason"]
KEYS = st.sampled_from([*OF_SCHEMAS, *OF_CONTRACTS, *OF_RESPONSES])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([1, 2, 404, 40401, 40402, 40403, 42201, 409]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["AVRO", "JSON", "PROTOBUF", "a-value", '"long"', "0" * 32]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=8),
    max_leaves=20,
)
BODIES = VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)
RESPONSES = st.tuples(
    st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 403, 404, 404, 405, 409, 422, 500]),
    BODIES,
)


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(responses=st.lists(RESPONSES, min_size=1, max_size=6), question=st.sampled_from(QUESTIONS))
def test_any_response_is_a_value_or_an_error_of_ours(
    responses: list[tuple[int, bytes]], question: Callable[[RegistryClient], Any]
) -> None:
    asked = 0

    def exchange(*_args: Any, **_limits: Any) -> HttpResponse:
        nonlocal asked
        asked += 1
        status, body = responses[asked % len(responses)]
        return HttpResponse(status, HTTPMessage(), SecretBytes(body))

    registry_client._caches.clear()
    registry = RegistryClient(RegistryOptions(url="http://h", max_retries=1, retries_wait_ms=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest_service, "exchange", exchange)
        try:
            question(registry)
        except KafkaError as error:
            assert all(char.isprintable() or char == "\n" for char in str(error))
            assert len(str(error)) < 20_000
    assert asked < 2_000
