"""Debezium's Postgres connector, in a standalone worker of Kafka Connect on loopback.

with postgres_server(programs, port=port), ConnectWorker(servers, folder) as worker:
    worker.start("shop", postgres_settings(port, "shop") | JSON)
    …
    worker.stop("shop")  # what it has read is in Kafka
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from sparkkafka.testing.kafka.jars import KAFKA_VERSION, JarSet, ensure_jars
from sparkkafka.testing.kafka.java import find_java
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts
from sparkkafka.testing.kafka.process import LeashedProcess
from tests.support.waiting import wait_until

VERSION = "3.6.1.Final"
APICURIO = "2.6.13.Final"

DEBEZIUM_JARS = JarSet(
    name=f"debezium-{VERSION}",
    title=f"Debezium {VERSION} with Kafka Connect {KAFKA_VERSION}",
    modules=(
        ("io.debezium", "debezium-connector-postgres", VERSION, True),
        ("org.apache.kafka", "connect-runtime", KAFKA_VERSION, True),
        # Confluent's converter for Avro is not in Maven Central; this one writes the same frames.
        ("io.apicurio", "apicurio-registry-utils-converter", APICURIO, True),
        ("io.apicurio", "apicurio-registry-serdes-avro-serde", APICURIO, False),
        ("org.slf4j", "slf4j-simple", "2.0.17", True),
    ),
    jar_count=86,
)

SINK_VERSION = "3.6.0.Final"
"""Maven Central lacks the sink of later versions."""

SINK_JARS = JarSet(
    name=f"debezium-jdbc-{SINK_VERSION}",
    title=f"Debezium's JDBC sink {SINK_VERSION}",
    modules=(("io.debezium", "debezium-connector-jdbc", SINK_VERSION, False),),
    jar_count=40,
    archive="plugin",
)

START_S = 120.0
STOP_S = 60.0
_CALL_S = 30.0

_JSON = "org.apache.kafka.connect.json.JsonConverter"
JSON = {f"{column}.converter": _JSON for column in ("key", "value")}
"""Messages with their schema in each (Connect's default)."""


def avro(registry_url: str) -> dict[str, str]:
    """Return the settings of a connector that writes Avro with Confluent's framing. The URL is
    that of `sparkkafka.testing.registry`."""
    found = {}
    for column in ("key", "value"):
        converter = f"{column}.converter"
        found[converter] = "io.apicurio.registry.utils.converter.AvroConverter"
        own = {
            "url": registry_url.replace("/ccompat/v7", "/registry/v2"),
            "auto-register": "true",
            "find-latest": "false",
            "as-confluent": "true",
            "use-id": "contentId",
            "headers.enabled": "false",
        }
        found |= {f"{converter}.apicurio.registry.{name}": value for name, value in own.items()}
    return found


def postgres_settings(port: int, prefix: str, **further: str) -> dict[str, str]:
    """Return the settings of a connector to `postgres_server`'s database. `prefix` begins the
    topics' names; a publication and a slot have it too."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": LOOPBACK,
        "database.port": str(port),
        "database.user": "shop",
        "database.password": "",
        "database.dbname": "postgres",
        "topic.prefix": prefix,
        "slot.name": f"{prefix}_slot",
        "publication.name": f"{prefix}_publication",
        # Brokers create no topics themselves here; with these settings the worker does.
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    } | {name.replace("_", "."): value for name, value in further.items()}


def jdbc_settings(port: int, topics: Sequence[str]) -> dict[str, str]:
    """Return the settings of a sink that fills tables of `postgres_server`'s database, which it
    creates. Their names are those of the topics."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": ",".join(topics),
        "connection.url": f"jdbc:postgresql://{LOOPBACK}:{port}/postgres",
        "connection.username": "shop",
        "connection.password": "unused",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "truncate.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
    }


class ConnectWorker:
    """A worker of Kafka Connect; a context manager. Its offsets are in `folder`, so that a worker
    of the same folder goes on where another has ended. The classes of `jars` come
    before those of `DEBEZIUM_JARS`."""

    def __init__(self, bootstrap_servers: str, folder: Path, *jars: JarSet) -> None:
        self._folder = folder
        self._ports = ReservedPorts()
        self._port = self._ports.take()
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "listeners": f"http://{LOOPBACK}:{self._port}",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "only_scan",
        } | JSON
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.log = folder / "worker.log"
        command = [
            str(find_java()),
            "-Xmx384m",
            "-XX:TieredStopAtLevel=1",  # it starts sooner
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            f"-Djava.io.tmpdir={folder}",
            "-cp",
            ":".join(str(jar) for name in (*jars, DEBEZIUM_JARS) for jar in ensure_jars(name)),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            str(file),
        ]
        self._ports.hand_over()
        with self.log.open("ab") as log:
            self._process = LeashedProcess(command, output=log, working_directory=folder)

    def __enter__(self) -> ConnectWorker:
        try:
            self._wait(lambda: self._is_up("/connectors"), "Kafka Connect answers", START_S)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.close()
        self._ports.release()

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Start a connector, and return before its task runs."""
        self.call("POST", "/connectors", {"name": name, "config": dict(settings)})

    def stop(self, name: str) -> None:
        """Stop a connector: what it has read is then in Kafka. Fails with its error if it has
        one."""
        self._state(name)
        self.call("PUT", f"/connectors/{name}/stop")
        self._wait(lambda: self._state(name) == "STOPPED", f"{name} has stopped", STOP_S)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the worker, and return its JSON response."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=_CALL_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        assert response.status < 300, f"{method} {path}: {response.status} {content[:2000]!r}"
        return json.loads(content) if content else None

    def _is_up(self, path: str) -> bool:
        with suppress(OSError, http.client.HTTPException, AssertionError):
            self.call("GET", path)
            return True
        return False

    def _state(self, name: str) -> str:
        """Return the state of a connector's task, or of the connector if it has no task."""
        try:
            found = self.call("GET", f"/connectors/{name}/status")
        except AssertionError:  # it is not there yet
            return ""
        for task in found["tasks"]:
            assert task["state"] != "FAILED", task["trace"][:4000]
            return str(task["state"])
        return str(found["connector"]["state"])

    def _wait(self, condition: Any, what: str, seconds: float) -> None:
        def alive() -> bool:
            assert self._process.running, f"Kafka Connect has ended:\n{self.log_tail()}"
            return bool(condition())

        wait_until(alive, what, seconds)

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
