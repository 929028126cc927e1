"""A real Schema Registry on loopback, for tests: no Docker, no set-up, nothing left behind.

    with SchemaRegistry() as registry:
        registry.register("orders-value", '{"type": "record", "name": "Order", "fields": […]}')
        spark.read.format("pykafka").option("schema.registry.url", registry.url)

It is Apicurio Registry, which has Confluent's API, from the jars of kafka/jars.py. It differs from
Confluent's registry: it has no GUIDs (`guid` in responses, `/schemas/guids`), gives schemas that
differ in white space different ids, refuses a JSON Schema that has neither `$schema` nor
`properties`, and explains an incompatible schema in `reason` instead of `messages`. It requires no
password.

`python -m sparkkafka.testing.registry` runs one until Ctrl-C, to try things.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from sparkkafka.errors import KafkaError, KafkaTimeoutError
from sparkkafka.testing.kafka.broker import free_port, raise_on_sigterm, record_interrupts
from sparkkafka.testing.kafka.jars import REGISTRY_JARS, ensure_jars
from sparkkafka.testing.kafka.java import find_java
from sparkkafka.testing.kafka.java import say as say_on_stderr
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts
from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError

PATH = "/apis/ccompat/v7"
"""Where Confluent's API is, below host and port."""

USUAL_PORT = 8081

COMPATIBILITIES = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)

#: The only variables that the registry inherits: any other one may be one of its thousand settings.
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "JAVA_TOOL_OPTIONS")

_MANAGED_VARIABLES = (
    "QUARKUS_HTTP_HOST",
    "QUARKUS_HTTP_PORT",
    "QUARKUS_HTTP_SSL_PORT",
    "QUARKUS_HTTP_SSL_CERTIFICATE_FILES",
    "QUARKUS_HTTP_SSL_CERTIFICATE_KEY_FILES",
    "REGISTRY_DATASOURCE_URL",
)

_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.1
_PORT_ATTEMPTS = 3
_MAX_BYTES = 16 * 1024 * 1024  # of a response


class SchemaRegistry:
    """A Schema Registry on 127.0.0.1; a context manager.

    `compatibility`: the rule for all subjects, BACKWARD (as Confluent's), FULL, NONE, ….
    `port`: its port, 0 for any free one. `certificate`: PEM files of a server certificate for
    127.0.0.1 (with its chain) and of its key; then `url` is https. `environment`: further settings
    of Apicurio Registry and Quarkus by their variables' names. `heap_mb`: Java's heap.
    `start_timeout_seconds` bounds every start. `say` shows progress; None is silence, except for
    downloads.

    Schemas are in a folder that is removed in the end, so they survive `stop` and `kill`.

    Raises `UnavailableError` when Java, jars or ports are not available or the registry does not
    start; the message then holds the end of its log.
    """

    def __init__(
        self,
        compatibility: str = "BACKWARD",
        *,
        port: int = 0,
        certificate: tuple[Path, Path] | None = None,
        environment: Mapping[str, str] | None = None,
        heap_mb: int = 384,
        start_timeout_seconds: float = 120.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        _check_compatibility(compatibility)
        for name in environment or {}:
            if name in _MANAGED_VARIABLES:
                raise ValueError(f"{name} is set by SchemaRegistry itself")
        self._compatibility = compatibility
        self._requested_port = port
        self._certificate = certificate
        self._environment = dict(environment or {})
        self._heap_mb = heap_mb
        self._start_seconds = start_timeout_seconds
        self._say = say or (lambda _text: None)
        self._ports = ReservedPorts()
        self._port = 0
        self._secure_port = 0
        self.folder: Path | None = None
        self.process: LeashedProcess | None = None
        self._command: list[str] = []

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> SchemaRegistry:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the registry, and return once it answers."""
        if self.folder is not None:
            raise RuntimeError("the registry is open already")
        jars = ensure_jars(REGISTRY_JARS)
        runner = next(path for path in jars if path.name.endswith("-runner.jar"))
        java = str(find_java(say=say_on_stderr))
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._open(java, runner)
                return
            except _PortClashError as error:
                self.close()
                if attempt + 1 == _PORT_ATTEMPTS or self._requested_port:
                    raise UnavailableError(str(error)) from error
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Kill the registry if it runs, and remove all data. May be called again."""
        self.kill()
        self._ports.release()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    @property
    def url(self) -> str:
        """The value for schema.registry.url: `http://127.0.0.1:port/…`; https with a
        certificate."""
        self._require_open()
        if self._certificate is not None:
            return f"https://{LOOPBACK}:{self._secure_port}{PATH}"
        return self.plain_url

    @property
    def plain_url(self) -> str:
        """The URL without TLS, which works also with a certificate."""
        self._require_open()
        return f"http://{LOOPBACK}:{self._port}{PATH}"

    @property
    def running(self) -> bool:
        """Whether the registry's process lives."""
        return self.process is not None and self.process.running

    def stop(self, timeout_seconds: float = 60.0) -> None:
        """Stop the registry (SIGTERM). It keeps its schemas and ports for `start`.

        A registry that has not ended after `timeout_seconds` is killed, which raises
        `KafkaTimeoutError`.
        """
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise KafkaTimeoutError(
                f"the registry did not end within {timeout_seconds:.0f} s and was killed; "
                f"the end of its log:\n{self.log_tail()}"
            ) from error
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the registry (`kill -9`), and return once it is gone. Its schemas stay for
        `start`."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def start(self) -> None:
        """Start a registry that was stopped or killed, on its old port, with its schemas and their
        ids, and wait until it answers."""
        self._require_open()
        if self.running:
            raise RuntimeError("the registry runs already")
        self.kill()
        self._launch()
        self._wait_until_ready()

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the registry's output."""
        self._require_open()
        try:
            text = self.log_file.read_text(errors="replace")
        except OSError as error:
            return f"({error})"
        return "\n".join(line[:500] for line in text.splitlines()[-lines:])

    # -- schemas ---------------------------------------------------------------------------

    def register(
        self,
        subject: str,
        schema: str,
        schema_type: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
    ) -> int:
        """Register a schema. Returns its id, also if the subject has the schema already.

        `schema`: its text. `schema_type`: AVRO, PROTOBUF or JSON. `references`: (name as the text
        has it, subject, version). Raises `KafkaError` with the registry's message.
        """
        body: dict[str, Any] = {"schema": schema, "schemaType": schema_type}
        body["references"] = [
            {"name": name, "subject": other, "version": version}
            for name, other, version in references
        ]
        response = self.call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return int(response["id"])

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the rule for new versions, of one subject or of all that have no rule. `level`: one
        of `COMPATIBILITIES`."""
        _check_compatibility(level)
        if level != "NONE":
            path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
            self.call("PUT", path, {"compatibility": level})
            return
        # In Apicurio's Confluent API, NONE removes a subject's rule: it then has the general one.
        self.set_compatibility("FULL", subject)
        if subject is None:
            self.call("PUT", "/config", {"compatibility": level})
            return
        own = f"/apis/registry/v2/groups/default/artifacts/{quote(subject, safe='')}/rules"
        rule = {"type": "COMPATIBILITY", "config": level}
        self._request("PUT", f"{own}/COMPATIBILITY", rule, "application/json", _CALL_SECONDS)

    def call(
        self, method: str, path: str, body: object = None, *, timeout_seconds: float = _CALL_SECONDS
    ) -> Any:
        """Send a request to Confluent's API, `call("GET", "/subjects")`, and return its JSON
        response.

        Raises `KafkaError` with the registry's message for a status other than 200, and OSError if
        it does not answer within `timeout_seconds`.
        """
        kind = "application/vnd.schemaregistry.v1+json"
        return self._request(method, PATH + path, body, kind, timeout_seconds)

    # -- inside ----------------------------------------------------------------------------

    def _request(
        self, method: str, path: str, body: object, content_type: str, timeout_seconds: float
    ) -> Any:
        """Send one request to the registry; return the JSON of its response."""
        self._require_open()
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=timeout_seconds)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": content_type},
            )
            response = connection.getresponse()
            content = response.read(_MAX_BYTES)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        text = content.decode(errors="replace")
        if response.status != 200:
            raise KafkaError(f"{method} {path}: {response.status} {text[:1000]}")
        return json.loads(text)

    def _require_open(self) -> Path:
        if self.folder is None:
            raise RuntimeError("the registry is not open: use it in a with statement")
        return self.folder

    @property
    def log_file(self) -> Path:
        return self._require_open() / "registry" / "registry.log"

    def _open(self, java: str, runner: Path) -> None:
        """Start the registry's process in a new folder, and wait until it answers."""
        started = time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="sparkkafka-registry-"))
        home = self.folder / "registry"
        (home / "tmp").mkdir(parents=True)
        self._port = self._ports.take(self._requested_port if self._certificate is None else 0)
        if self._certificate is not None:
            self._secure_port = self._ports.take(self._requested_port)
        self._ports.hand_over()
        self._command = [
            java,
            f"-Xmx{self._heap_mb}m",
            # It starts sooner, and on a busy machine takes less from the tests.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",  # else every Java leaves a file in the system's temp folder
            "-Djava.awt.headless=true",
            f"-Djava.io.tmpdir={home / 'tmp'}",
            "-jar",
            str(runner),
        ]
        self._launch()
        self._wait_until_ready()
        self.set_compatibility(self._compatibility)
        self._say(f"a Schema Registry answers at {self.url} ({time.monotonic() - started:.1f} s)")

    def _launch(self) -> None:
        """Start the process, with the environment variables that configure it."""
        home = self.log_file.parent
        variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        variables.update(self._environment)
        variables["QUARKUS_HTTP_HOST"] = LOOPBACK
        variables["QUARKUS_HTTP_PORT"] = str(self._port)
        # By default the database is in memory. WRITE_DELAY=0: registered schemas survive `kill -9`.
        variables["REGISTRY_DATASOURCE_URL"] = f"jdbc:h2:file:{home / 'schemas'};WRITE_DELAY=0"
        if self._certificate is not None:
            certificate, key = self._certificate
            variables["QUARKUS_HTTP_SSL_PORT"] = str(self._secure_port)
            variables["QUARKUS_HTTP_SSL_CERTIFICATE_FILES"] = str(certificate.resolve())
            variables["QUARKUS_HTTP_SSL_CERTIFICATE_KEY_FILES"] = str(key.resolve())
        with self.log_file.open("ab") as log:
            self.process = LeashedProcess(
                self._command,
                output=log,
                environment=variables,
                working_directory=home,
                remove=home,
            )

    def _wait_until_ready(self) -> None:
        """Wait until the registry answers. Raises UnavailableError after `_start_seconds`."""
        deadline = time.monotonic() + self._start_seconds
        while True:
            self._check_alive()
            with contextlib.suppress(OSError, KafkaError, ValueError):
                self.call("GET", "/subjects", timeout_seconds=2.0)
                if self._certificate is not None:  # its port is opened after the other
                    socket.create_connection((LOOPBACK, self._secure_port), 2.0).close()
                return
            if time.monotonic() > deadline:
                tail = self.log_tail()
                self.kill()
                raise UnavailableError(
                    f"the registry did not answer within {self._start_seconds:.0f} s; "
                    f"the end of its log:\n{tail}"
                )
            time.sleep(_POLL_SECONDS)

    def _check_alive(self) -> None:
        """Raise an error with the end of the log if the process has ended."""
        if self.process is None or self.process.running:
            return
        status = self.process.wait()
        tail = self.log_tail()
        self.kill()
        text = f"the registry ended (status {status}); the end of its log:\n{tail}"
        if "already bound" in tail or "Address already in use" in tail:
            raise _PortClashError(text)
        raise UnavailableError(text)


class _PortClashError(Exception):
    """Another program took a port between its choice and the registry's start."""


def _check_compatibility(level: str) -> None:
    if level not in COMPATIBILITIES:
        raise ValueError(f"compatibility {level!r} is none of {', '.join(COMPATIBILITIES)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until Ctrl-C or SIGTERM, or until the registry dies (status 1)."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkkafka.testing.registry",
        description="A real Schema Registry until Ctrl-C, to try things.",
    )
    parser.add_argument(
        "--port", type=int, help=f"({USUAL_PORT} if free, else any free one)", default=None
    )
    options = parser.parse_args(arguments)
    raise_on_sigterm()
    try:
        find_java(install=True)
        say_on_stderr("starting a Schema Registry")
        with SchemaRegistry(
            port=free_port(options.port, USUAL_PORT), say=say_on_stderr
        ) as registry:
            say_on_stderr(
                f'for reads and writes: .option("schema.registry.url", "{registry.url}")\n'
                "Ctrl-C stops it and removes its schemas."
            )
            # Interrupt only between two checks: inside one it could leave a lock taken.
            interrupted = record_interrupts()
            while registry.running:
                time.sleep(0.2)
                if interrupted:
                    raise KeyboardInterrupt
            say_on_stderr(f"the registry ended:\n{registry.log_tail()}")
            return 1
    except KeyboardInterrupt:
        say_on_stderr("\nstopped, and its schemas removed")
        return 0
    except (KafkaError, OSError, ValueError) as error:
        say_on_stderr(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
