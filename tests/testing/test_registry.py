"""A real Schema Registry: what a test may rely on when it uses SchemaRegistry."""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sparkkafka.errors import KafkaError, KafkaTimeoutError
from sparkkafka.testing import registry as registry_module
from sparkkafka.testing.kafka.ports import ReservedPorts
from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError
from sparkkafka.testing.pytest_plugin import SchemaRegistryFactory
from sparkkafka.testing.registry import SchemaRegistry, main
from tests.real.processes import assert_a_killed_run_leaves_nothing
from tests.support.certificates import signed

ORDER_1 = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}],
    }
)
ORDER_2 = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
JSON_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
OTHER_ID = ORDER_1.replace('"long"', '"string"')


def get(url: str, path: str, **options: Any) -> tuple[int, Any]:
    """Status and response of a plain GET."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=30, **options)
    try:
        connection.request("GET", parts.path + path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.real
def test_a_schema_is_registered_and_read(schema_registry: SchemaRegistry) -> None:
    first = schema_registry.register("orders-value", ORDER_1)
    second = schema_registry.register("orders-value", ORDER_2, "AVRO")
    assert first != second
    assert schema_registry.register("orders-value", ORDER_1) == first
    status, response = get(schema_registry.url, f"/schemas/ids/{second}")
    assert status == 200
    assert response["schema"] == ORDER_2
    status, response = get(schema_registry.url, "/subjects/orders-value/versions/latest")
    assert (response["id"], response["version"], response["subject"]) == (second, 2, "orders-value")
    status, response = get(schema_registry.url, "/schemas/ids/999999")
    assert (status, response["error_code"]) == (404, 40403)


@pytest.mark.real
def test_all_three_formats_and_references(schema_registry: SchemaRegistry) -> None:
    customer = 'syntax = "proto3";\npackage shop;\nmessage Customer { string name = 1; }\n'
    sale = (
        'syntax = "proto3";\npackage shop;\nimport "customer.proto";\n'
        "message Sale { Customer customer = 1; }\n"
    )
    schema_registry.register("formats-customer", customer, "PROTOBUF")
    reference = ("customer.proto", "formats-customer", 1)
    number = schema_registry.register("formats-sale", sale, "PROTOBUF", [reference])
    response = schema_registry.call("GET", f"/schemas/ids/{number}")
    assert response["schemaType"] == "PROTOBUF"
    assert response["references"] == [
        {"name": "customer.proto", "subject": "formats-customer", "version": 1}
    ]
    number = schema_registry.register("formats-json", JSON_SCHEMA, "JSON")
    assert schema_registry.call("GET", f"/schemas/ids/{number}")["schemaType"] == "JSON"


@pytest.mark.real
def test_an_incompatible_schema_is_refused_with_its_field(schema_registry: SchemaRegistry) -> None:
    schema_registry.register("strict / odd-value", ORDER_1)
    with pytest.raises(KafkaError, match=r"strict%20%2F%20odd-value.*409.*/fields/0/type"):
        schema_registry.register("strict / odd-value", OTHER_ID)
    schema_registry.set_compatibility("NONE", "strict / odd-value")
    schema_registry.register("strict / odd-value", OTHER_ID)
    schema_registry.register("another-strict-value", ORDER_1)
    with pytest.raises(KafkaError, match="409"):
        schema_registry.register("another-strict-value", OTHER_ID)
    with pytest.raises(KafkaError, match="42201"):
        schema_registry.register("nonsense-value", "{")


@pytest.mark.real
def test_by_tls_and_stopped_and_started_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    schema_registry_factory: SchemaRegistryFactory,
) -> None:
    """Schemas and ids survive (those of `kill`, too: see test_schema_outages). The caller's
    variables are not the registry's."""
    monkeypatch.setenv("QUARKUS_HTTP_ROOT_PATH", "/elsewhere")
    monkeypatch.setenv("AUTH_ENABLED", "true")
    authority = signed("authority")
    server = signed("server", authority, hosts=["127.0.0.1"])
    (tmp_path / "server.pem").write_text(server.pem)
    (tmp_path / "server.key").write_text(server.key_pem())
    registry = schema_registry_factory(
        "NONE", certificate=(tmp_path / "server.pem", tmp_path / "server.key")
    )
    url = registry.url
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cadata=authority.pem)
    assert get(url, "/subjects", context=trusting) == (200, [])
    with pytest.raises(ssl.SSLCertVerificationError):
        get(url, "/subjects", context=ssl.create_default_context())
    assert get(registry.plain_url, "/subjects") == (200, [])
    registry.register("o-value", ORDER_1)
    second = registry.register("o-value", OTHER_ID)
    registry.stop()
    assert not registry.running
    with pytest.raises(ConnectionRefusedError):
        get(url, "/subjects")
    with pytest.raises(OSError):
        registry.call("GET", "/subjects", timeout_seconds=5)
    registry.stop()
    registry.start()
    assert registry.url == url
    assert registry.register("o-value", OTHER_ID) == second
    with pytest.raises(RuntimeError, match="runs already"):
        registry.start()
    assert "Listening on" in registry.log_tail(200)


@pytest.mark.real
def test_a_registry_that_does_not_start_shows_its_log(schema_registry: SchemaRegistry) -> None:
    registry = SchemaRegistry(environment={"QUARKUS_HTTP_IO_THREADS": "many"})
    with pytest.raises(UnavailableError, match=r"(?s)the registry ended \(status 1\).*many"):
        registry.open()
    late = SchemaRegistry(start_timeout_seconds=0.2)
    with pytest.raises(UnavailableError, match="did not answer within 0 s; the end of its log"):
        late.open()
    for item in (registry, late):
        assert not item.running
        with pytest.raises(RuntimeError, match="not open"):
            _ = item.url


@pytest.mark.real
def test_a_wanted_port(schema_registry: SchemaRegistry) -> None:
    port = urlsplit(schema_registry.url).port or 0
    with pytest.raises(UnavailableError, match=f"cannot use port {port} of 127.0.0.1"):
        SchemaRegistry(port=port).open()


_UNTIL_KILLED = """
import sys, time
from urllib.parse import urlsplit
from sparkkafka.testing.registry import SchemaRegistry
with SchemaRegistry() as registry:
    print(registry.folder, urlsplit(registry.url).port, flush=True)
    time.sleep(600)
"""


@pytest.mark.soak  # test_kafka_cluster has it of the same process class in each run
@pytest.mark.real
def test_nothing_is_left_behind_when_the_run_is_killed(schema_registry: SchemaRegistry) -> None:
    assert_a_killed_run_leaves_nothing(_UNTIL_KILLED, signal.SIGKILL)


@pytest.mark.soak  # without Java below, in each run
@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_one_until_it_is_told_to_stop(
    schema_registry: SchemaRegistry, number: signal.Signals
) -> None:
    with ReservedPorts() as ports:
        port = ports.take()
    command = [sys.executable, "-m", "sparkkafka.testing.registry", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        reported = ""
        while "Ctrl-C" not in reported:
            line = run.stderr.readline()
            assert line, reported
            reported += line
        found = re.search(r'"schema.registry.url", "(http://127.0.0.1:\d+/[\w/]+)"', reported)
        assert found and f":{port}/" in found[1], reported
        assert get(found[1], "/subjects") == (200, [])
        run.send_signal(number)
        try:
            assert "stopped, and its schemas removed" in run.communicate(timeout=120)[1]
        finally:
            run.kill()
    assert run.returncode == 0


# -- without a registry --------------------------------------------------------------------


def test_impossible_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="compatibility 'backward' is none of NONE, BACKWARD,"):
        SchemaRegistry("backward")
    with pytest.raises(ValueError, match="QUARKUS_HTTP_PORT is set by SchemaRegistry itself"):
        SchemaRegistry(environment={"QUARKUS_HTTP_PORT": "1"})
    registry = SchemaRegistry()
    with pytest.raises(RuntimeError, match="not open"):
        registry.start()
    with pytest.raises(RuntimeError, match="not open"):
        registry.call("GET", "/subjects")
    registry.stop()
    registry.close()


class _Opened:
    """A registry that answers, after the signal."""

    url = "http://127.0.0.1:7"
    running = True

    def __init__(self, number: signal.Signals | None, port: int, say: Any) -> None:
        self.number, self.port = number, port

    def __enter__(self) -> _Opened:
        if self.number is None:
            self.running = False
        else:
            threading.Timer(0.1, os.kill, (os.getpid(), self.number)).start()
        return self

    def __exit__(self, *_error: object) -> None:
        print("removed", file=sys.stderr)

    def log_tail(self) -> str:
        return "out of memory"


@pytest.mark.parametrize(
    ("number", "code", "end"),
    [
        (signal.SIGINT, 0, "removed\n\nstopped, and its schemas removed\n"),
        (signal.SIGTERM, 0, "removed\n\nstopped, and its schemas removed\n"),
        (None, 1, "the registry ended:\nout of memory\nremoved\n"),
    ],
)
def test_the_command(
    number: signal.Signals | None,
    code: int,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(registry_module, "SchemaRegistry", functools.partial(_Opened, number))
    monkeypatch.setattr(registry_module, "find_java", lambda **_: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["--port", "7"]) == code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    error = capsys.readouterr().err
    assert '.option("schema.registry.url", "http://127.0.0.1:7")' in error
    assert error.endswith(end)


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    registry = SchemaRegistry()
    registry.folder = tmp_path
    (tmp_path / "registry").mkdir()
    with registry.log_file.open("wb") as log:
        process = LeashedProcess([sys.executable, "-c", f"{deaf}; time.sleep(60)"], output=log)
    while not registry.log_file.read_text():
        time.sleep(0.05)
    registry.process = process
    with pytest.raises(KafkaTimeoutError, match="did not end within 0 s and was killed"):
        registry.stop(timeout_seconds=0.2)
    assert not registry.running and not process.running
