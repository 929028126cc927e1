"""A Schema Registry of one process and of a few responses: subjects, versions, ids, GUIDs."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from sparkkafka.schemas.registry.client import RegistryClient


class SmallRegistry:
    """`requests` are the paths that were asked for, `refuse` a status for all of them."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []  # the place is the id, less 1
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.refuse: int | None = None
        self.incompatible: list[str] = []
        self.guids = False
        self.url = ""

    def add(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[Any] | None = None,
        **contract: Any,
    ) -> int:
        """The schema's id. `contract`: ruleSet and metadata."""
        schema = {"schema": text, "schemaType": kind, "references": references or [], **contract}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def respond(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.refuse is not None:
            return self.refuse, {"error_code": self.refuse, "message": "no"}
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                return self._of_id(int(number))
            case ["schemas", "guids", guid]:
                for number in range(1, len(self.schemas) + 1):
                    if self.guids and guid == guid_of(number):
                        return 200, self.schemas[number - 1]
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["schemas", "ids", number, "versions"]:
                return 200, [
                    {"subject": name, "version": ids.index(int(number)) + 1}
                    for name, ids in self.subjects.items()
                    if int(number) in ids
                ]
            case ["subjects"]:
                return 200, sorted(self.subjects)
            case ["subjects", subject, "versions", version]:
                return self._of_version(subject, version)
            case ["subjects", subject, "versions"] if method == "POST":
                if self.incompatible:
                    return 409, {"error_code": 409, "message": "; ".join(self.incompatible)}
                kind = body.get("schemaType", "AVRO")
                number = self.add(subject, body["schema"], kind, body.get("references"))
                return 200, self._version(subject, self.subjects[subject].index(number) + 1)
            case ["subjects", subject, "versions"] if method == "GET":
                return 200, [*range(1, len(self.subjects[subject]) + 1)]
            case ["subjects", subject]:
                for version, number in enumerate(self.subjects.get(subject, ()), 1):
                    if self.schemas[number - 1]["schema"] == body["schema"]:
                        return 200, self._version(subject, version)
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["compatibility", "subjects", *_]:
                return 200, {
                    "is_compatible": not self.incompatible,
                    "messages": self.incompatible,
                }
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _of_id(self, number: int) -> tuple[int, Any]:
        if not 0 < number <= len(self.schemas):
            return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
        return 200, self.schemas[number - 1]

    def _of_version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        return 200, self._version(subject, number)

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        found = {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}
        return {**found, "guid": guid_of(number)} if self.guids else found


def guid_of(number: int) -> str:
    return str(uuid.UUID(int=0xABCDEF << 64 | number))


@contextmanager
def small_registry() -> Iterator[SmallRegistry]:
    registry = SmallRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            registry.requests.append(f"{self.command} {self.path}")
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, response = registry.respond(self.command, self.path, body)
            data = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _respond

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join(10)


def open_registry_clients(monkeypatch: pytest.MonkeyPatch) -> list[RegistryClient]:
    """Return a list of the clients that are made from now on and not closed yet."""
    open_clients: list[RegistryClient] = []
    init, leave = RegistryClient.__init__, RegistryClient.__exit__

    def counted_init(client: RegistryClient, *args: Any) -> None:
        init(client, *args)
        open_clients.append(client)

    def counted_exit(client: RegistryClient, *details: object) -> None:
        leave(client, *details)
        open_clients.remove(client)

    monkeypatch.setattr(RegistryClient, "__init__", counted_init)
    monkeypatch.setattr(RegistryClient, "__exit__", counted_exit)
    return open_clients
