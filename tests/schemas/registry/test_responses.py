"""Secrets that a registry repeats are not shown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from sparkkafka.config.kinds import AVRO
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import RegistryError, SchemaError
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.values import Schema
from sparkkafka.secret import Secret
from tests.support.registry_server import HttpResponse, RegistryServer, error

WORD = "ABCDEFGHIJKLMNOP"
PLAIN = f"me:{WORD}"
BASIC = base64.b64encode(PLAIN.encode()).decode()
LONG = Schema(AVRO, '"long"')


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as one:
        yield one


def client(server: RegistryServer, **more: Any) -> RegistryClient:
    return RegistryClient(RegistryOptions(url=server.url, max_retries=0, **more))


@pytest.mark.parametrize(
    ("user_info", "said", "secrets"),
    [
        (PLAIN, f"no {PLAIN} here", [WORD]),
        (PLAIN, f"bad Basic {BASIC}", [BASIC]),
        (PLAIN, f"bad {BASIC.rstrip('=')}", [BASIC.rstrip("=")]),
        (PLAIN, f"{'x' * 1986}{WORD}{'y' * 99}", [WORD[:6]]),
        (PLAIN, f"{'x' * 7990}{WORD}{'y' * 99}", [WORD[:6]]),
        ("me:two  spaces\t.", "no two  spaces\t.", ["two spaces"]),
        ("me:two  spaces\t.", "no two spaces .", ["two spaces"]),
        ("me:s/?cr=t", f"no {quote('s/?cr=t', safe='')}", ["s%2F%3Fcr%3Dt"]),
        ('me:s/cr"t+\\é', r'{"b": "s\/cr\"t+\\\u00e9"}', ["cr", "u00e9"]),
        ('me:s/cr"t+\\é', r'{"b": "s/cr\"t+\\é"}', ["cr", "é"]),
        ("me:>>>???", f"no {base64.urlsafe_b64encode(b'me:>>>???').decode()}", ["bWU6Pj4-Pz8_"]),
    ],
)
def test_forms_of_a_password(
    server: RegistryServer, user_info: str, said: str, secrets: list[str]
) -> None:
    server.responses = [error(400, 400, said)]
    with pytest.raises(RegistryError) as caught:
        client(server, user_info=Secret(user_info)).by_id(5)
    for secret in secrets:
        assert secret not in str(caught.value)


def test_a_token(server: RegistryServer) -> None:
    server.responses = [error(400, 400, f"Bearer {WORD} is bad")]
    with pytest.raises(RegistryError, match=r"Bearer \*\*\* is bad"):
        client(server, bearer_token=Secret(WORD)).by_id(5)


REFERENCE = {"schema": '"long"', "references": [{"name": WORD, "subject": WORD, "version": 1}]}


@pytest.mark.parametrize(
    ("responses", "ask", "kind"),
    [
        (
            [HttpResponse(200, {"schemaType": WORD, "schema": ""})],
            lambda registry: registry.by_id(5),
            SchemaError,
        ),
        (
            [
                error(409, 409),
                HttpResponse(
                    200, {"is_compatible": False, "messages": [WORD, f"{'x' * 490}{WORD}"]}
                ),
            ],
            lambda registry: registry.register("s", LONG),
            RegistryError,
        ),
        (
            [error(404, 40401), HttpResponse(200, [f"a-{WORD}", "a-value-2"])],
            lambda registry: registry.latest("a-value"),
            RegistryError,
        ),
        (
            [
                HttpResponse(200, {"schemaType": "JSON", "schema": "{}"}),
                HttpResponse(200, [{"subject": f"{'x' * 190}{WORD}", "version": 1}]),
            ],
            lambda registry: registry.by_id(5, format=AVRO),
            SchemaError,
        ),
        (
            [HttpResponse(200, REFERENCE), error(404, 40402)],
            lambda registry: registry.by_id(5),
            SchemaError,
        ),
        (
            [HttpResponse(200, REFERENCE), error(500, 500)],
            lambda registry: registry.by_id(5),
            RegistryError,
        ),
        ([HttpResponse(200, REFERENCE)] * 2, lambda registry: registry.by_id(5), SchemaError),
        (
            [
                HttpResponse(200, REFERENCE),
                HttpResponse(200, {"schemaType": "JSON", "schema": "{}"}),
            ],
            lambda registry: registry.by_id(5),
            SchemaError,
        ),
        (
            [HttpResponse(302, b"", {"location": f"http://{WORD}.test/{WORD}"})],
            lambda registry: registry.by_id(5),
            RegistryError,
        ),
    ],
    ids=[
        "type",
        "reasons",
        "near names",
        "subject_versions",
        "reference",
        "reference requested",
        "circle",
        "reference's format",
        "redirect",
    ],
)
def test_all_texts_of_responses(
    server: RegistryServer,
    responses: list[HttpResponse],
    ask: Callable[[RegistryClient], Any],
    kind: type[Exception],
) -> None:
    server.responses = responses
    with pytest.raises(kind) as caught:
        ask(client(server, user_info=Secret(PLAIN)))
    assert WORD[:6] not in str(caught.value)


def test_reasons_that_are_returned(server: RegistryServer) -> None:
    server.responses = [HttpResponse(200, {"is_compatible": False, "messages": [WORD]})]
    assert client(server, user_info=Secret(PLAIN)).incompatibilities("s", LONG) == ("***",)
    server.responses = [HttpResponse(200, [{"subject": WORD, "version": 1}])]
    text = client(server, user_info=Secret(PLAIN)).other_subjects_hint(5, "a-value")
    assert text.startswith("id 5 belongs to '***' in the Schema Registry")
