"""RegistryClient against a registry of the test: requests, messages, faults and secrets."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client.deadline import Deadline
from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.config.security.options import SecurityOptions
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    RegistryError,
    SchemaError,
)
from sparkkafka.schemas.registry import client as registry_client
from sparkkafka.schemas.registry import rest_service
from sparkkafka.schemas.registry.client import RegisteredSchema, RegistryClient
from sparkkafka.schemas.values import Schema
from sparkkafka.secret import Secret
from tests.support.certificates import Identity, signed
from tests.support.frames import variables_of
from tests.support.registry_server import HTML, HttpResponse, RegistryServer, error
from tests.support.token_server import TokenServer

LONG, TEXT = '"long"', '"string"'
AUTHORITY = signed("authority")
HUSH = "hush"


pytestmark = pytest.mark.usefixtures("nothing_is_cached")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as registry:
        yield registry


def options(*servers: RegistryServer | str, **more: Any) -> RegistryOptions:
    urls = [server if isinstance(server, str) else server.url for server in servers]
    quick = {"retries_wait_ms": 1, "retries_max_wait_ms": 5, "api_timeout_ms": 20_000}
    return RegistryOptions(url=",".join(urls), **{**quick, **more})


def client(*servers: RegistryServer | str, **more: Any) -> RegistryClient:
    return RegistryClient(options(*servers, **more))


def nobody() -> str:
    """A URL where no server listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def failure(call: Any, kind: type[KafkaError]) -> str:
    """Return the error's message. Neither it nor the frames of its traceback have a secret."""
    with pytest.raises(kind) as caught:
        call()
    for shown in (str(caught.value), variables_of(caught.value)):
        assert HUSH not in shown
        assert "bWU6aHVza" not in shown  # base64 of me:hush
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    return str(caught.value)


def paths(server: RegistryServer) -> list[str]:
    return [f"{request.method} {request.path}" for request in server.requests]


# --- questions -------------------------------------------------------------------------------


def test_a_schema_by_its_id_is_asked_for_once(server: RegistryServer) -> None:
    first = server.add("a-value", LONG)
    with client(server) as registry:
        assert registry.by_id(first) == Schema(AVRO, LONG)
        assert registry.by_id(first, format=AVRO) == Schema(AVRO, LONG)
        assert registry.by_id(first, "a-value") == Schema(AVRO, LONG)
    assert client(server).by_id(first) == Schema(AVRO, LONG)
    assert paths(server) == ["GET /schemas/ids/1"]
    (asked,) = server.requests
    assert "application/vnd.schemaregistry.v1+json" in asked.headers["accept"]
    assert "authorization" not in asked.headers


def test_the_registrys_path_and_several_formats() -> None:
    with RegistryServer(prefix="/apis/ccompat/v7") as server:
        server.add("a-value", LONG)
        server.add("b-value", 'syntax = "proto3";', "PROTOBUF")
        server.add("c-value", "{}", "JSON")
        registry = client(server.url + "/")
        kinds = [registry.by_id(number).format for number in (1, 2, 3)]
        assert kinds == [AVRO, PROTOBUF, JSON]
        assert server.requests[0].path == "/apis/ccompat/v7/schemas/ids/1"


def test_versions_of_a_subject(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    server.add("a-value", TEXT)
    registry = client(server)
    latest = registry.latest("a-value")
    assert latest == RegisteredSchema("a-value", 2, 2, latest.guid, Schema(AVRO, TEXT))
    assert latest.guid is not None
    assert len(latest.guid) == 16
    assert registry.version("a-value", 1).schema == Schema(AVRO, LONG)
    assert registry.versions("a-value") == (1, 2)
    assert registry.subjects() == ("a-value",)
    server.add("a-value", '"int"')
    assert registry.latest("a-value").version == 3  # never from a cache


def test_a_schema_by_its_guid(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    registry = client(server)
    guid = registry.latest("a-value").guid
    assert guid is not None
    assert registry.by_guid(guid) == registry.by_guid(guid, AVRO) == Schema(AVRO, LONG)
    assert len(server.requests) == 2
    assert "AVRO" not in failure(lambda: registry.by_guid(guid, JSON), SchemaError)
    unknown = failure(lambda: registry.by_guid(bytes(16)), RegistryError)
    assert "the schema with GUID 00000000-0000-0000-0000-000000000000 is not in" in unknown
    server.modern = False
    text = failure(lambda: registry.by_guid(bytes(16)), RegistryError)
    assert "is not in the Schema Registry, or it cannot look up GUIDs" in text


def test_names_with_any_characters_are_quoted(server: RegistryServer) -> None:
    subject = "a/b ?#%ü:\udcff"
    server.add("a/b ?#%ü:?", LONG)
    assert client(server).latest(subject).id == 1


def test_lookup(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    registry = client(server)
    found = registry.lookup("a-value", Schema(AVRO, LONG), normalize=True)
    assert found is not None
    assert (found.id, found.version, found.schema) == (1, 1, Schema(AVRO, LONG))
    assert server.requests[-1].query == {"normalize": "true"}
    assert server.requests[-1].body == {"schema": LONG}
    assert registry.lookup("a-value", Schema(JSON, LONG)) is None
    assert server.requests[-1].body == {"schema": LONG, "schemaType": "JSON"}
    assert server.requests[-1].query == {}
    assert registry.lookup("b-value", Schema(AVRO, LONG)) is None


@pytest.mark.parametrize("modern", [True, False])
def test_register(server: RegistryServer, modern: bool) -> None:
    server.modern = modern
    registry = client(server)
    found = registry.register("a-value", Schema(PROTOBUF, "message M {}"))
    assert (found.subject, found.id, found.version) == ("a-value", 1, 1)
    assert (found.guid is None) != modern
    assert len(server.requests) == (1 if modern else 2)
    assert registry.register("a-value", Schema(PROTOBUF, "message M {}")).id == 1
    assert registry.by_id(1) == Schema(PROTOBUF, "message M {}")


def test_compatible(server: RegistryServer) -> None:
    registry = client(server)
    schema = Schema(AVRO, TEXT)
    assert registry.incompatibilities("a-value", schema) == ()
    server.add("a-value", LONG)
    assert registry.incompatibilities("a-value", schema) == ()
    server.incompatible = ["reader type: STRING not compatible\n with \x1b[31m" + "x" * 5000]
    (reason,) = registry.incompatibilities("a-value", schema)
    assert reason.startswith("reader type: STRING not compatible with [31mx")
    assert len(reason) < 600
    server.responses = [HttpResponse(200, {"is_compatible": False, "reason": "Apicurio's\nwords"})]
    assert registry.incompatibilities("a-value", schema) == ("Apicurio's words",)
    server.responses = [error(404, 404), HttpResponse(200, {"is_compatible": False})]
    assert registry.incompatibilities("a-value", schema) == ("the registry gives no reason",)
    assert server.requests[-1].path == "/compatibility/subjects/a-value/versions/latest"
    assert server.requests[-1].query == {"verbose": "true"}


def test_whose_an_id_is(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    server.add("b-value", LONG)
    registry = client(server)
    assert registry.subject_versions(1) == (("a-value", 1), ("b-value", 1))
    assert registry.other_subjects_hint(1, "a-value") == ""
    assert registry.other_subjects_hint(1, "c-value") == (
        "id 1 belongs to 'a-value', 'b-value' in the Schema Registry, and not to 'c-value'"
    )
    server.responses = [
        error(404, 404),
        HttpResponse(200, {"no": "list"}),
        HttpResponse(200, [7, {"subject": 1}]),
    ]
    assert [registry.other_subjects_hint(1, "c-value") for _ in range(3)] == ["", "", ""]
    assert client(nobody(), max_retries=0).other_subjects_hint(1, "c-value") == ""


# --- references ------------------------------------------------------------------------------


def test_references_are_looked_up_with_theirs(server: RegistryServer) -> None:
    server.add("base", "B")
    server.add("left", "L", references=[("base.avsc", "base", 1)])
    server.add("right", "R", references=[("base.avsc", "base", 1)])
    top = server.add("t", "T", references=[("l", "left", 1), ("r", "right", 1)])
    base = Schema(AVRO, "B")
    left = Schema(AVRO, "L", (("base.avsc", base),))
    right = Schema(AVRO, "R", (("base.avsc", base),))
    registry = client(server)
    schema = registry.by_id(top)
    assert schema == Schema(AVRO, "T", (("l", left), ("r", right)))
    assert len(server.requests) == 4  # a schema to which two others refer is requested once
    assert server.requests[-1].query == {"deleted": "true"}
    assert registry.latest("t").schema == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_references_that_cannot_be_had(server: RegistryServer) -> None:
    registry = client(server)
    lost = server.add("a", "A", references=[("gone.avsc", "gone", 3)])
    text = failure(lambda: registry.by_id(lost), SchemaError)
    assert f"the schema with id {lost} refers to 'gone.avsc', subject 'gone' version 3, whi" in text
    server.add("x", "X", references=[("y", "y", 1)])
    server.add("y", "Y", references=[("x", "x", 1)])
    assert "refers in a circle to subject" in failure(lambda: registry.latest("x"), SchemaError)
    server.add("p", "{}", "JSON")
    other = server.add("q", "Q", references=[("p", "p", 1)])
    text = failure(lambda: registry.by_id(other), SchemaError)
    assert "is avro, and refers to subject 'p' version 1, which is json" in text


def test_references_are_bounded(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = client(server)
    for depth in range(40):
        server.add(f"d{depth}", f"D{depth}", references=[("d", f"d{depth + 1}", 1)])
    text = failure(lambda: registry.latest("d0"), SchemaError)
    assert "has references that are more than 32 deep" in text
    server.add("n0", "N0")
    for number in range(1, 20):  # twice each time: 2^20 for who follows them
        below = f"n{number - 1}"
        server.add(f"n{number}", f"N{number}", references=[("l", below, 1), ("r", below, 1)])
    assert "refers to more than 4096 schemas" in failure(
        lambda: registry.latest("n19"), SchemaError
    )
    wide = [(f"w{number}", f"w{number}", 1) for number in range(300)]
    for name, _, _ in wide:
        server.add(name, name)
    server.add("wide", "W", references=wide)
    assert "refers to more than 256 schemas" in failure(
        lambda: registry.latest("wide"), SchemaError
    )
    monkeypatch.setattr("sparkkafka.schemas.registry.client._ReferenceResolver.MAX_TEXT", 10)
    server.add("large", "L" * 6, references=[("l", "larger", 1)])
    server.add("larger", "L" * 7)
    assert "are larger than 10 characters" in failure(lambda: registry.latest("large"), SchemaError)


def test_a_schema_with_references_is_not_looked_up() -> None:
    schema = Schema(AVRO, "A", (("b", Schema(AVRO, "B")),))
    registry = client(nobody())
    for call in (registry.lookup, registry.register, registry.incompatibilities):
        text = failure(lambda call=call: call("a-value", schema), SchemaError)
        assert "set use.latest.version=true" in text


# --- refusals --------------------------------------------------------------------------------


def test_a_subject_that_is_not_there_has_near_ones(server: RegistryServer) -> None:
    for name in ("orders-value", "orders-key", "customers-value"):
        server.add(name, LONG)
    registry = client(server)
    with pytest.raises(RegistryError) as caught:
        registry.latest("order-value")
    assert (caught.value.status, caught.value.code) == (404, 40401)
    text = str(caught.value)
    assert (
        f"the Schema Registry http://127.0.0.1:{server.port} has no subject 'order-value'" in text
    )
    assert "near names are 'orders-value'" in text
    assert "unless value.subject.name.strategy, or valueSubject (keySubject), says" in text
    assert "but 3 others" in failure(lambda: registry.versions("zzz"), RegistryError)
    server.responses = [error(404, 40401), error(403, 40301)]
    text = failure(lambda: registry.latest("order-value"), RegistryError)
    assert "has no subject 'order-value'. The subject is" in text


def test_an_empty_registry_says_so(server: RegistryServer) -> None:
    text = failure(lambda: client(server).latest("a-value"), RegistryError)
    assert "and this user can see no subjects" in text


def test_a_version_that_is_not_there_has_the_others(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    server.add("a-value", TEXT)
    text = failure(lambda: client(server).version("a-value", 7), RegistryError)
    assert "subject 'a-value' in the Schema Registry has no version 7; it has 1, 2: set" in text
    assert "valueSchemaVersion" in text


@pytest.mark.parametrize("number", [9, 2**31, 2**32 - 1])
def test_an_id_that_is_not_there(server: RegistryServer, number: int) -> None:
    with pytest.raises(RegistryError) as caught:
        client(server).by_id(number)
    assert (caught.value.status, caught.value.code) == (404, 40403)
    assert f"the schema with id {number}" in str(caught.value)
    assert "Confluent's framing" in str(caught.value)


def test_a_schema_of_another_format(server: RegistryServer) -> None:
    number = server.add("a-value", "{}", "JSON")
    registry = client(server)
    text = failure(lambda: registry.by_id(number, format=AVRO), SchemaError)
    assert text.startswith("the schema with id 1 (it belongs to 'a-value') in http://")
    assert "is json, not avro: set valueFormat (or keyFormat) to json, or read this" in text
    text = failure(lambda: registry.latest("a-value", PROTOBUF), SchemaError)
    assert text.startswith("subject 'a-value' in http://") and "is json, not protobuf" in text
    server.responses = [HttpResponse(200, {"schema": "<x/>", "schemaType": "XSD", "id": 5})]
    text = failure(lambda: registry.by_id(5), SchemaError)
    assert "is of the type 'XSD', which is not supported" in text


def test_a_type_of_schema_that_is_no_word(server: RegistryServer) -> None:
    server.responses = [HttpResponse(200, {"schema": LONG, "id": 1, "schemaType": ["x"]})]
    assert "not supported" in failure(lambda: client(server).latest("a-value"), SchemaError)


def test_a_schema_that_is_not_compatible(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    server.incompatible = ["field customer.age: no default", "field \x07x: \n type"]
    registry = client(server)
    with pytest.raises(RegistryError) as caught:
        registry.register("a-value", Schema(AVRO, TEXT))
    assert (caught.value.status, caught.value.code) == (409, 409)
    assert str(caught.value) == (
        "the Schema Registry refuses a schema as the next version of subject 'a-value', since it "
        "is not compatible with those before it\n  - field customer.age: no default\n"
        "  - field x: type"
    )
    server.responses = [error(409, 409, "because of x"), HttpResponse(500), HttpResponse(500)]
    text = failure(
        lambda: client(server, max_retries=0).register("a-value", Schema(AVRO, TEXT)),
        RegistryError,
    )
    assert "is not compatible with those before it" in text
    assert "because of x" in text


def test_a_schema_that_is_not_valid(server: RegistryServer) -> None:
    server.responses = [error(422, 42201, "Invalid schema: no such type lonk")]
    text = failure(
        lambda: client(server).register("a-value", Schema(AVRO, '"lonk"')), RegistryError
    )
    assert "rejects the schema of subject 'a-value' as invalid" in text
    assert "no such type lonk" in text


def test_no_right_to_register(server: RegistryServer) -> None:
    server.responses = [error(403, 40301, "User is denied operation Write")]
    text = failure(lambda: client(server).register("a-value", Schema(AVRO, LONG)), RegistryError)
    assert "User is denied operation Write" in text
    assert "auto.register.schemas=true needs the right to write subject 'a-value'" in text


def test_a_user_who_is_not_known(server: RegistryServer) -> None:
    server.user_info = "me:hush"
    server.add("a-value", LONG)
    text = failure(lambda: client(server).latest("a-value"), RegistryError)
    assert (
        "status 401: Unauthorized; no credentials are set: set schema.registry.basic.auth.user.in"
        in text
    )
    registry = client(server, user_info=Secret("me:hushed"))
    text = failure(lambda: registry.latest("a-value"), RegistryError)
    assert "; check schema.registry.basic.auth.user.info" in text
    registry = client(server, bearer_token=Secret("hush"))
    text = failure(lambda: registry.latest("a-value"), RegistryError)
    assert "; check schema.registry.bearer.auth.token" in text
    server.responses = [error(403, 40301, "denied to me:hush, who has hush")]
    registry = client(server, user_info=Secret("me:hush"))
    text = failure(lambda: registry.latest("a-value"), RegistryError)
    assert "status 403 (error 40301): denied to ***, who has ***; this user has no right" in text
    assert registry.latest("a-value").id == 1


@pytest.mark.parametrize(
    ("response", "expected_error"),
    [
        (
            HttpResponse(200, HTML),
            "answers the request for subject 'a-value' with an HTML page, not JSON",
        ),
        (HttpResponse(200, b""), " with nothing, not JSON"),
        (HttpResponse(200, b"\xff{"), " with something other than JSON, not JSON"),
        (HttpResponse(200, b"[" * 100_000), " with something other than JSON"),
        (HttpResponse(200, []), "with JSON that is not an object"),
        (HttpResponse(200, {"id": 1}), "answers without a schema for subject 'a-value'"),
        (HttpResponse(200, {"schema": 7, "id": 1}), "answers without a schema"),
        (HttpResponse(200, {"schema": LONG}), "answers without an id"),
        (HttpResponse(200, {"schema": LONG, "id": "1"}), "answers without an id"),
        (HttpResponse(200, {"schema": LONG, "id": 2**40}), "answers without an id"),
        (HttpResponse(200, {"schema": LONG, "id": True}), "answers without an id"),
        (
            HttpResponse(200, {"schema": LONG, "id": 1, "references": [{"name": "x"}]}),
            "a reference that",
        ),
        (HttpResponse(200, {"schema": LONG, "id": 1, "references": 7}), "a reference that"),
        (
            HttpResponse(404, HTML),
            "status 404 with an HTML page; does schema.registry.url lack a path",
        ),
        (HttpResponse(404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "lack a path"),
        (HttpResponse(407), "proxies are not used"),
        (
            HttpResponse(400, {"message": 7, "error_code": "x"}),
            "status 400 with something other than",
        ),
        (
            HttpResponse(
                302, headers={"location": "https://me:hush@elsewhere.example/hush?x=hush"}
            ),
            "redirects (status 302) to https://elsewhere.example, where no request is sent unasked",
        ),
        (
            HttpResponse(301, headers={"location": "http://[hush"}),
            "redirects (status 301) to elsewhere",
        ),
        (
            HttpResponse(302, headers={"location": "http://u:hush/pass w@127.0.0.1/x"}),
            "redirects (status 302) to elsewhere",
        ),
        (
            HttpResponse(200, b" " * (rest_service.MAX_RESPONSE_BYTES + 1)),
            "is longer than 4194304 bytes: not a",
        ),
        (HttpResponse(200, headers={"content-length": "-7"}), "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_odd_responses(server: RegistryServer, response: HttpResponse, expected_error: str) -> None:
    server.responses = [response]
    text = failure(lambda: client(server).latest("a-value"), RegistryError)
    assert expected_error in text
    assert len(server.requests) == 1


def test_what_a_registry_says_is_cut_and_printable(server: RegistryServer) -> None:
    server.responses = [error(400, 42, "a\x1b[31mb\r\n\u202e" + "x" * 100_000)]
    text = failure(lambda: client(server).latest("a-value"), RegistryError)
    assert "(error 42): a [31mb" in text
    assert len(text) < 2300
    assert text.isprintable()


def test_a_server_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"220 smtp ready\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        registry = client(f"http://127.0.0.1:{port}", user_info=Secret("me:hush"))
        assert "does not answer in HTTP" in failure(lambda: registry.by_id(1), RegistryError)
        thread.join(10)


# --- faults that may pass --------------------------------------------------------------------


@pytest.mark.parametrize(
    "responses",
    [
        [HttpResponse(500)],
        [HttpResponse(503, HTML), HttpResponse(429)],
        [HttpResponse(hang_up=True)],
        [HttpResponse(200, b"{", headers={"content-length": "100"})],
        [error(500, 50003, "Error while forwarding the request to the primary")],
    ],
    ids=["500", "503 and 429", "hangs up", "cut off", "50003"],
)
def test_what_may_pass_is_asked_again(
    server: RegistryServer, responses: list[HttpResponse]
) -> None:
    server.add("a-value", LONG)
    server.responses = responses[:]
    assert client(server).by_id(1) == Schema(AVRO, LONG)
    assert len(server.requests) == len(responses) + 1


def test_how_often_it_is_asked(server: RegistryServer) -> None:
    server.responses = [error(500, 50001, "store is away")] * 9
    with pytest.raises(RegistryError) as caught:
        client(server, max_retries=2).by_id(1)
    assert (caught.value.status, caught.value.code, caught.value.retriable) == (500, 50001, True)
    assert "status 500 (error 50001): store is away" in str(caught.value)
    assert " times (schema.registry.max.retries=" in str(caught.value)
    assert len(server.requests) == 3


def test_another_url_is_asked_at_once(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    with RegistryServer() as broken:
        broken.responses = [HttpResponse(503)]
        nobody_else = nobody()
        registry = client(nobody_else, broken, server, max_retries=0)
        assert registry.latest("a-value").id == 1
        assert len(broken.requests) == 1
        assert registry.latest("a-value").id == 1
        # The one that answered last comes first, for other clients of the process too.
        assert client(nobody_else, broken, server, max_retries=0).latest("a-value").id == 1
        assert len(broken.requests) == 1


def test_a_url_that_never_answers_leaves_the_others_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits_ms: list[float] = []

    def exchange(*_args: Any, response_ms: float, **_more: Any) -> None:
        limits_ms.append(response_ms)
        raise KafkaConnectionError("no response in time")

    monkeypatch.setattr(rest_service, "exchange", exchange)
    more = {"request_timeout_ms": 100_000, "api_timeout_ms": 60_000, "max_retries": 0}
    failure(lambda: client("http://a", "http://b", "http://c", **more).by_id(1), KafkaError)
    assert limits_ms[0] <= 20_000
    assert 20_000 < limits_ms[1] <= 30_000
    assert limits_ms[2] > 30_000


def test_what_one_refuses_no_other_is_asked(server: RegistryServer) -> None:
    with RegistryServer() as other:
        failure(lambda: client(server, other).by_id(1), RegistryError)
        assert other.requests == []


PAGE = HttpResponse(404, b"<html>no such host</html>")


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(200, HTML),
        PAGE,
        HttpResponse(404),
        HttpResponse(404, {"message": "no route matched"}),
        HttpResponse(302, headers={"location": "https://login.example"}),
        HttpResponse(401, HTML),
        HttpResponse(200, b" " * (rest_service.MAX_RESPONSE_BYTES + 1)),
    ],
    ids=["a page", "404", "404 of nothing", "a gateway's 404", "302", "401", "too long"],
)
def test_what_is_no_registrys_response_is_asked_of_another(
    server: RegistryServer, response: HttpResponse
) -> None:
    server.add("a-value", LONG)
    with RegistryServer() as proxy:
        proxy.responses = [response]
        registry = client(proxy, server, max_retries=0)
        assert registry.latest("a-value").id == 1
        assert registry.latest("a-value").id == 1  # of the one that answered
        assert len(proxy.requests) == 1


@pytest.mark.parametrize(
    "response", [error(404, 40401), error(404, 404), error(403, 40301), error(422, 42201)]
)
def test_what_a_registry_itself_refuses_is_final(
    server: RegistryServer, response: HttpResponse
) -> None:
    server.responses = [response] * 2
    with RegistryServer() as other:
        other.add("a-value", LONG)
        failure(lambda: client(server, other).version("a-value", 1), RegistryError)
        assert other.requests == []


def test_a_proxy_is_asked_once_while_another_is_retried(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    server.responses = [HttpResponse(503)] * 2
    with RegistryServer() as proxy:
        proxy.responses = [PAGE] * 9
        assert client(proxy, server).latest("a-value").id == 1
        assert len(proxy.requests) == 1
        assert len(server.requests) == 3
        proxy.responses = [PAGE] * 9
        server.responses = [HttpResponse(503)] * 9
        rest_service._last_answered.clear()
        text = failure(
            lambda: client(proxy, server, max_retries=1).latest("a-value"), KafkaConnectionError
        )
    assert "no Schema Registry of 2 answers: " in text
    assert "status 404 with an HTML page; does schema.registry.url lack a path" in text
    assert "status 503" in text


def test_proxies_alone(server: RegistryServer) -> None:
    server.responses = [PAGE]
    with RegistryServer() as other:
        other.responses = [HttpResponse(302)]
        with pytest.raises(RegistryError) as caught:
            client(server, other).latest("a-value")
    assert caught.value.status == 404
    assert server.url in str(caught.value)


# --- Retry-After -----------------------------------------------------------------------------


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    found: list[float] = []
    monkeypatch.setattr(Deadline, "pause", lambda _deadline, wait_ms: found.append(wait_ms / 1000))
    return found


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_obeyed(server: RegistryServer, waits_s: list[float], status: int) -> None:
    server.add("a-value", LONG)
    server.responses = [
        HttpResponse(status, headers={"retry-after": "7"}),
        HttpResponse(status, headers={"retry-after": formatdate(time.time() + 50, usegmt=True)}),
        HttpResponse(status),
        HttpResponse(status, headers={"retry-after": "soon"}),
    ]
    registry = client(server, api_timeout_ms=100_000, max_retries=9)
    assert registry.latest("a-value").id == 1
    seconds, date, none, odd = waits_s
    assert seconds == pytest.approx(7, abs=0.1)
    assert 30 < date <= 51
    assert max(none, odd) < 1


def test_retry_after_beyond_the_deadline_ends_it(
    server: RegistryServer, waits_s: list[float]
) -> None:
    server.responses = [HttpResponse(429, headers={"retry-after": "3600"}), HttpResponse(500)]
    text = failure(lambda: client(server).latest("a-value"), KafkaTimeoutError)
    assert (
        "status 429; its Retry-After demands 3600 s before the next request for subject 'a-value', "
        "and schema.registry.api.timeout.ms=20000 allows less"
    ) in text
    assert (len(server.requests), waits_s) == (1, [])


def test_a_server_that_wants_a_pause_has_it_while_others_are_asked(
    server: RegistryServer, waits_s: list[float]
) -> None:
    server.add("a-value", LONG)
    server.responses = [HttpResponse(500)] * 2
    with RegistryServer() as busy:
        busy.responses = [HttpResponse(503, headers={"retry-after": "10000"})]
        assert client(busy, server).latest("a-value").id == 1
        assert len(busy.requests) == 1
    assert len(server.requests) == 3
    assert max(waits_s) < 1


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, 0),
        ({"Retry-After": " 12 "}, 12),
        ({"Retry-After": "-1"}, 0),
        ({"Retry-After": "1e9"}, 0),
        ({"Retry-After": "9" * 10_000}, 0),
        ({"Retry-After": "999999999"}, 1e8),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        (
            {
                "Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT",
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30,
        ),
        ({"Retry-After": "Wed, 21 Oct 99999999 07:28:30 GMT"}, 0),
        ({"Retry-After": "0, 0 0 0 0:0"}, 0),
    ],
)
def test_what_retry_after_says(headers: dict[str, str], wait_s: float) -> None:
    message = HTTPMessage()
    for name, value in headers.items():
        message[name] = value
    assert rest_service._retry_after_s(message) == wait_s


def test_no_registry_at_all() -> None:
    first, second = nobody(), nobody()
    text = failure(lambda: client(first, second, max_retries=1).by_id(1), KafkaConnectionError)
    assert "no Schema Registry of 2 answers" in text
    assert first in text
    assert second in text
    assert "Connection refused; requested the schema with id 1 2 times" in text
    text = failure(lambda: client(first, max_retries=0).by_id(1), KafkaConnectionError)
    assert text == (
        f"the Schema Registry {first}: Connection refused; requested the schema with id 1 once "
        "(schema.registry.max.retries=0). Is schema.registry.url right, and does this machine "
        "reach it?"
    )


def test_the_deadline_counts_for_all_of_it(server: RegistryServer) -> None:
    over = threading.Event()
    server.responses = [HttpResponse(wait=over)] * 2 + [HttpResponse(drip=True)] * 20
    try:
        registry = client(server, request_timeout_ms=150, api_timeout_ms=700, max_retries=1000)
        text = failure(lambda: registry.by_id(1), KafkaTimeoutError)
    finally:
        over.set()
    assert "for the schema with id 1 (schema.registry.api.timeout.ms=700): gave up after" in text
    assert "the last failure: the Schema Registry http://127.0.0.1" in text
    assert "no response in time" in text


def test_the_deadline_counts_for_references_too(server: RegistryServer) -> None:
    over = threading.Event()
    top = server.add("a", "A", references=[("b", "b", 1)])
    row = {"schema": "A", "references": [{"name": "b", "subject": "b", "version": 1}]}
    server.responses = [HttpResponse(200, row)] + [HttpResponse(wait=over)] * 50
    try:
        registry = client(server, request_timeout_ms=150, api_timeout_ms=600, max_retries=1000)
        text = failure(lambda: registry.by_id(top), KafkaTimeoutError)
    finally:
        over.set()
    assert "subject 'b' version 1, for the schema with id" in text


# --- the cache -------------------------------------------------------------------------------


def test_cached_schemas_count_while_the_registry_is_away() -> None:
    with RegistryServer() as server:
        server.add("a-value", LONG)
        registry = client(server, max_retries=0)
        assert registry.by_id(1) == Schema(AVRO, LONG)
        settings = options(server, max_retries=0)
    assert registry.by_id(1) == RegistryClient(settings).by_id(1) == Schema(AVRO, LONG)
    failure(lambda: registry.by_id(2), KafkaConnectionError)


def test_errors_are_not_cached(server: RegistryServer) -> None:
    registry = client(server)
    failure(lambda: registry.by_id(1), RegistryError)
    server.add("a-value", LONG)
    assert registry.by_id(1) == Schema(AVRO, LONG)


def test_many_ids_that_are_not_there_are_not_asked_for_again_at_once(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ABSENT_S", 1000.0)
    many = range(1, registry_client.MIN_ABSENT + 3)
    guid = bytes(16)
    for _ in range(2):  # the second is another task's in the same process
        registry = client(server)
        for number in many:
            text = failure(partial(registry.by_id, number), RegistryError)
            assert f"the schema with id {number} is not in the Schema Registry" in text
        failure(partial(registry.by_guid, guid), RegistryError)
    assert len(server.requests) == len(many) + 1
    with pytest.raises(RegistryError) as caught:
        registry.by_id(1)
    assert (caught.value.status, caught.value.code) == (404, 40403)
    # New requests: another user, another id, one that was refused, one that has expired.
    failure(lambda: client(server, user_info=Secret("me:hush")).by_id(1), RegistryError)
    server.add("a-value", LONG)
    for response in (error(403, 40301), error(404, 404), HttpResponse(404, HTML)):
        server.responses = [response]
        failure(lambda: registry.by_id(1, ":.east:a"), RegistryError)
    assert registry.by_id(1, ":.east:a") == Schema(AVRO, LONG)
    monkeypatch.setattr(registry_client, "MAX_ABSENT", len(many))
    failure(lambda: registry.by_id(1000), RegistryError)
    assert registry.by_id(1) == Schema(AVRO, LONG)


def test_what_is_not_there_may_be_there_soon(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ABSENT_S", 0.0)
    registry = client(server)
    for number in range(1, registry_client.MIN_ABSENT + 3):
        failure(lambda number=number: registry.by_id(number), RegistryError)
    server.add("a-value", LONG)
    assert registry.by_id(1) == Schema(AVRO, LONG)
    assert not registry._cache._absent


def test_what_one_user_has_read_another_has_not(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    for more in (
        {},
        {"user_info": Secret("me:hush")},
        {"user_info": Secret("you:hush")},
        {"bearer_token": Secret("hush")},
        {"bearer_token": Secret("hush"), "identity_pool_id": "pool-1"},
    ):
        for _ in range(2):
            client(server, **more).by_id(1)
    assert len(server.requests) == 5


def test_contexts_have_ids_of_their_own(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    registry = client(server)
    for subject in ("a", "b", ":.east:a", ":.east:b", ":.west:a"):
        registry.by_id(1, subject)
    assert [request.query.get("subject") for request in server.requests] == [
        "a",
        ":.east:a",
        ":.west:a",
    ]


def test_the_cache_is_bounded(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        server.add(f"s{number}", f'"{number}{"x" * 10}"')
    registry = client(server, cache_capacity=3)
    for number in (1, 2, 3, 1, 4, 1, 5):
        registry.by_id(number)
    assert len(server.requests) == 5
    registry.by_id(1)  # used lately
    assert len(server.requests) == 5
    registry.by_id(2)
    assert len(server.requests) == 6
    monkeypatch.setattr(registry_client, "MAX_TEXT", 20)
    registry.by_id(5)
    registry.by_id(3)  # only the last one is left
    asked = len(server.requests)
    registry.by_id(3)
    assert len(server.requests) == asked
    registry.by_id(5)
    assert len(server.requests) == asked + 1


def test_caches_are_bounded(server: RegistryServer) -> None:
    for number in range(registry_client.MAX_CACHES + 5):
        client(server, user_info=Secret(f"{number}:hush"))
    assert len(registry_client._caches) == registry_client.MAX_CACHES


def test_many_threads(server: RegistryServer) -> None:
    for number in range(10):
        server.add(f"s{number}", f'"t{number}"')
    registry = client(server, cache_capacity=4)
    found: list[bool] = []

    def work(first: int) -> None:
        for step in range(30):
            number = (first + step) % 10
            found.append(registry.by_id(number + 1).text == f'"t{number}"')

    threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 240


def _child(registry: RegistryClient, results: Any) -> None:
    results.put(registry.by_id(1).text)


def test_a_fork_while_locks_are_held(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    registry = client(server)
    registry.by_id(1)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with registry_client._cache_lock:
        child = context.Process(target=_child, args=(registry, results))
        child.start()
    assert results.get(timeout=30) == LONG
    child.join(30)


# --- identity and TLS ------------------------------------------------------------------------


def test_user_and_password(server: RegistryServer) -> None:
    server.user_info = "me:hüsh:x"
    server.add("a-value", LONG)
    assert client(server, user_info=Secret("me:hüsh:x")).by_id(1) == Schema(AVRO, LONG)


def test_a_token_and_the_headers_of_confluents_cloud(server: RegistryServer) -> None:
    server.token = "hush"
    server.add("a-value", LONG)
    registry = client(
        server,
        bearer_token=Secret(" hush\n"),
        logical_cluster="lsrc-1",
        identity_pool_id="pool-1",
    )
    assert registry.by_id(1) == Schema(AVRO, LONG)
    (asked,) = server.requests
    assert asked.headers["target-sr-cluster"] == "lsrc-1"
    assert asked.headers["confluent-identity-pool-id"] == "pool-1"


@pytest.mark.parametrize("token", ["hush hush", "hush\r\nx: y", "hüsh", "hush\udcff", " "])
def test_tokens_that_no_header_can_have(server: RegistryServer, token: str) -> None:
    registry = client(server, bearer_token=Secret(token))
    text = failure(lambda: registry.by_id(1), OptionError)
    assert "the token of schema.registry.bearer.auth.token is empty, or has a character" in text
    assert server.requests == []


def test_a_password_that_utf8_cannot_write(server: RegistryServer) -> None:
    registry = client(server, user_info=Secret("me:hush\udcff"))
    text = failure(lambda: registry.by_id(1), OptionError)
    assert "schema.registry.basic.auth.user.info has a character that UTF-8 cannot encode" in text


def with_issuer(server: RegistryServer, tokens: TokenServer) -> RegistryClient:
    return client(
        server,
        issuer_url=tokens.url,
        client_id="me",
        client_secret=Secret("hush"),
        tls=SecurityOptions(protocol="SSL", truststore_certificates=Secret(AUTHORITY.pem)),
    )


def test_a_token_of_an_issuer(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    with TokenServer(AUTHORITY) as tokens:
        registry = with_issuer(server, tokens)
        registry.latest("a-value")
        registry.latest("a-value")
        assert len(tokens.requests) == 1
        assert tokens.requests[0].basic == "me:hush"
        first = server.requests[-1].headers["authorization"]
        assert first.startswith("Bearer ")
        # Withdrawn before its time: another one is got, once.
        server.responses = [error(401, 401)]
        registry.latest("a-value")
        assert len(tokens.requests) == 2
        assert len(server.requests) == 4
        server.responses = [error(401, 401, "no")] * 2
        text = failure(lambda: registry.latest("a-value"), RegistryError)
        assert "; check schema.registry.bearer.auth.client.id" in text


def test_an_issuer_that_refuses(server: RegistryServer) -> None:
    with TokenServer(AUTHORITY, secrets={"me": "another"}) as tokens:
        registry = with_issuer(server, tokens)
        text = failure(lambda: registry.by_id(1), AuthenticationError)
    assert "gives no token: status 401: invalid_client: no such client; compare " in text
    assert (
        "schema.registry.bearer.auth.client.id, schema.registry.bearer.auth.client.secret" in text
    )
    assert "sasl" not in text
    assert server.requests == []


def test_an_issuer_without_tls() -> None:
    given = {"issuer_url": "http://issuer.example/hush", "client_id": "me"}
    given |= {"client_secret": Secret("hush")}
    with pytest.raises(OptionError) as caught:
        client("https://h", **{**given, "issuer_url": "http://issuer.example/token"})
    text = str(caught.value)
    assert "schema.registry.bearer.auth.issuer.endpoint.url=http://issuer.example:80/token" in text
    assert "(http:// is for this machine only)" in text


def test_tls(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(AUTHORITY.pem)
    with RegistryServer(AUTHORITY) as server:
        server.add("a-value", LONG)
        tls = SecurityOptions(protocol="SSL", truststore_location=str(file))
        assert client(server, tls=tls).by_id(1) == Schema(AVRO, LONG)
        text = failure(lambda: client(server, max_retries=0).by_id(1), AuthenticationError)
        assert "its certificate is not signed by an authority that is trusted here (the sys" in text
        assert "Set schema.registry.ssl.truststore.location to the file" in text
        url = server.url.replace("https", "http")
        with pytest.raises(KafkaError):
            client(url, max_retries=0).by_id(1)


@contextmanager
def tls_server(folder: Path, identity: Identity, wanted: Identity | None) -> Iterator[str]:
    """The URL of a registry with this certificate, which wants one that `wanted` has signed."""
    context = identity.server_context(folder)
    if wanted is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=wanted.pem)
    with RegistryServer(context=context) as server:
        server.add("a-value", LONG)
        yield server.url


HERE = ("127.0.0.1",)


@pytest.mark.parametrize(
    ("identity", "shown", "expected_error"),
    [
        (
            signed("other", AUTHORITY),
            None,
            "certificate is not for 127.0.0.1: it has other names. Connect by one of its names "
            "(schema.registry.url), or have this one added to the certificate; "
            "schema.registry.ssl.endpoint.identification.algorithm set to nothing accepts any",
        ),
        (
            signed("old", AUTHORITY, hosts=HERE, days=(-9, -8)),
            None,
            "its certificate has expired: it must be renewed at the server",
        ),
        (
            signed("stranger", signed("strangers"), hosts=HERE),
            None,
            "trusted here (the text of schema.registry.ssl.truststore.certificates; OpenSSL",
        ),
        (
            signed("server", AUTHORITY, hosts=HERE),
            None,
            "schema.registry.ssl.keystore.",  # of its alert, or of a guess if that got lost
        ),
        (
            signed("server", AUTHORITY, hosts=HERE),
            signed("me", signed("strangers")),
            "(schema.registry.ssl.keystore.…)",
        ),
        (signed("server", AUTHORITY, hosts=HERE), signed("me", AUTHORITY), ""),
    ],
    ids=["name", "expired", "stranger", "no certificate", "a stranger's certificate", "all well"],
)
def test_certificates(
    tmp_path: Path, identity: Identity, shown: Identity | None, expected_error: str
) -> None:
    tls = SecurityOptions(
        protocol="SSL",
        truststore_certificates=Secret(AUTHORITY.pem),
        keystore_certificate_chain=Secret(shown.pem if shown else ""),
        keystore_key=Secret(shown.key_pem("hush") if shown else ""),
        key_password=Secret("hush" if shown else ""),
        names=registry_names("truststore_certificates"),
    )
    with tls_server(tmp_path, identity, AUTHORITY) as url:
        registry = client(url, tls=tls, max_retries=0)
        if expected_error:
            assert expected_error in failure(lambda: registry.by_id(1), KafkaError)
        else:
            assert registry.by_id(1) == Schema(AVRO, LONG)


def test_a_key_without_its_password() -> None:
    """The registry's option is named, not the broker's of almost the same name."""
    me = signed("me", AUTHORITY)
    tls = SecurityOptions(
        protocol="SSL",
        keystore_certificate_chain=Secret(me.pem),
        keystore_key=Secret(me.key_pem("hush")),
        names=registry_names("keystore_certificate_chain", "keystore_key"),
    )
    text = failure(lambda: client("https://localhost:9", tls=tls).by_id(1), OptionError)
    assert "key is encrypted, and schema.registry.ssl.key.password is missing" in text


def registry_names(*fields: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"schema.registry.ssl.{name.replace('_', '.')}") for name in fields)


def test_a_server_without_tls(server: RegistryServer) -> None:
    url = server.url.replace("http", "https")
    text = failure(lambda: client(url, max_retries=0).by_id(1), AuthenticationError)
    assert "no TLS connection" in text
    assert "is it an https server, and schema.registry.ssl.enabled.protocols right" in text


def test_another_server_may_have_tls_right(server: RegistryServer) -> None:
    server.add("a-value", LONG)
    with RegistryServer(AUTHORITY) as distrusted:
        assert client(distrusted, server, max_retries=0).by_id(1) == Schema(AVRO, LONG)
        assert distrusted.requests == []


def test_proxies_are_not_used(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nobody())
    server.add("a-value", LONG)
    assert client(server).by_id(1) == Schema(AVRO, LONG)


# --- secrets ---------------------------------------------------------------------------------


def test_nothing_shows_a_secret(
    server: RegistryServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", "me:hush")
    server.user_info = "me:hush"
    server.add("a-value", LONG)
    registry = client(server, user_info=Secret("${env:REGISTRY_LOGIN}"))
    copy = pickle.dumps(registry)
    assert b"hush" not in copy
    assert pickle.loads(copy).by_id(1) == Schema(AVRO, LONG)
    server.responses = [HttpResponse(503, HTML), error(400, 1, "me:hush")]
    with caplog.at_level(logging.DEBUG):
        failure(lambda: registry.latest("a-value"), RegistryError)
    assert "trying again" in caplog.text
    assert "hush" not in caplog.text + repr(registry) + repr(vars(registry))
    assert repr(registry) == f"RegistryClient({server.url})"
