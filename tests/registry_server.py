"""A Schema Registry on loopback, over HTTP or HTTPS, with Confluent's API in memory, that can
misbehave.

with RegistryServer() as registry:
    registry.add("orders-value", '"long"')
    registry.url, registry.asked, registry.answers.append(Answer(503))
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.certificates import Identity, signed
from tests.token_server import _context

HTML = b"<!DOCTYPE html><html><body>Log in</body></html>"


@dataclass(frozen=True)
class Asked:
    """One request, as the server saw it."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any

    @property
    def basic(self) -> str:
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        return base64.b64decode(text).decode() if kind == "Basic" else ""


@dataclass(frozen=True)
class Answer:
    """What to answer instead. `body` is JSON unless it is bytes.

    `wait`: until the test lets it go on. `drip`: the body comes byte by byte, and never ends.
    """

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    hang_up: bool = False
    drip: bool = False


def error(status: int, code: int, message: str = "words") -> Answer:
    return Answer(status, {"error_code": code, "message": message})


@dataclass
class _Row:
    id: int
    subject: str
    version: int
    text: str
    kind: str
    references: list[dict[str, Any]]

    @property
    def guid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.kind} {self.text}"))

    def as_json(self) -> dict[str, Any]:
        found = {"subject": self.subject, "version": self.version, "id": self.id}
        found |= {"guid": self.guid, "schema": self.text}
        if self.kind != "AVRO":
            found["schemaType"] = self.kind
        if self.references:
            found["references"] = self.references
        return found


class RegistryServer:
    """Confluent's registry as of 8.0; `modern` False: without GUIDs, and POST answers only ids.

    `answers` are used up first, one a request. `incompatible`: why the next versions are refused.
    """

    def __init__(self, authority: Identity | None = None, *, prefix: str = "") -> None:
        self.rows: list[_Row] = []
        self.asked: list[Asked] = []
        self.answers: list[Answer] = []
        self.user_info: str | None = None
        self.token: str | None = None
        self.modern = True
        self.incompatible: list[str] = []
        self._prefix = prefix
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        scheme = "http"
        if authority is not None:
            scheme = "https"
            hosts = ("localhost", "127.0.0.1")
            self._server.socket = _context(signed("registry", authority, hosts=hosts)).wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}{prefix}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def add(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[tuple[str, str, int]] | None = None,
    ) -> int:
        """Register a schema, and return its id: the same for the same text."""
        known = [row.id for row in self.rows if (row.text, row.kind) == (text, kind)]
        schema_id = known[0] if known else len({row.id for row in self.rows}) + 1
        version = sum(row.subject == subject for row in self.rows) + 1
        names = ("name", "subject", "version")
        found = [dict(zip(names, reference, strict=True)) for reference in references or []]
        self.rows.append(_Row(schema_id, subject, version, text, kind, found))
        return schema_id

    # --- answers -----------------------------------------------------------------------------

    def respond(self, asked: Asked) -> Answer:
        if self.user_info is not None and asked.basic != self.user_info:
            return error(401, 401, "Unauthorized")
        shown = asked.headers.get("authorization")
        if self.token is not None and shown != f"Bearer {self.token}":
            return error(401, 401, "Unauthorized")
        if not asked.path.startswith(self._prefix):
            return error(404, 404, "HTTP 404 Not Found")
        parts = [unquote(part) for part in asked.path.removeprefix(self._prefix).split("/")[1:]]
        match asked.method, parts:
            case "GET", ["schemas", "ids", number, *rest]:
                rows = [row for row in self.rows if str(row.id) == number]
                if not rows:
                    return error(404, 40403, "Schema not found")
                if rest == ["versions"]:
                    return Answer(
                        200, [{"subject": row.subject, "version": row.version} for row in rows]
                    )
                return Answer(200, self._shown(rows[0], "subject", "version", "id"))
            case "GET", ["schemas", "guids", guid] if self.modern:
                rows = [row for row in self.rows if row.guid == guid]
                return Answer(200, rows[0].as_json()) if rows else error(404, 40403)
            case "GET", ["subjects"]:
                return Answer(200, sorted({row.subject for row in self.rows}))
            case "GET", ["subjects", subject, "versions"]:
                return self._of(subject, lambda rows: [row.version for row in rows])
            case "GET", ["subjects", subject, "versions", version]:
                rows = [row for row in self.rows if row.subject == subject]
                chosen = rows[-1:] if version == "latest" else []
                chosen = chosen or [row for row in rows if str(row.version) == version]
                if rows and not chosen:
                    return error(404, 40402, "Version not found")
                return self._of(subject, lambda _: self._shown(chosen[0]))
            case "POST", ["subjects", subject]:
                return self._of(
                    subject,
                    lambda rows: next(
                        (
                            self._shown(row)
                            for row in rows
                            if row.text == asked.body["schema"]
                            and row.kind == asked.body.get("schemaType", "AVRO")
                        ),
                        error(404, 40403, "Schema not found"),
                    ),
                )
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, asked)
            case "POST", ["compatibility", "subjects", subject, "versions", *_]:
                found = {"is_compatible": not self.incompatible, "messages": self.incompatible}
                return self._of(subject, lambda _: found)
        return error(404, 404, "HTTP 404 Not Found")

    def _shown(self, row: _Row, *without: str) -> dict[str, Any]:
        found = row.as_json()
        for name in (*without, *(() if self.modern else ("guid",))):
            found.pop(name, None)
        return found

    def _of(self, subject: str, answer: Any) -> Answer:
        rows = [row for row in self.rows if row.subject == subject]
        if not rows:
            return error(404, 40401, f"Subject '{subject}' not found.")
        found = answer(rows)
        return found if isinstance(found, Answer) else Answer(200, found)

    def _register(self, subject: str, asked: Asked) -> Answer:
        if self.incompatible and any(row.subject == subject for row in self.rows):
            return error(409, 409, "Schema being registered is incompatible with an earlier schema")
        kind = asked.body.get("schemaType", "AVRO")
        same = [
            row for row in self.rows if (row.subject, row.text) == (subject, asked.body["schema"])
        ]
        schema_id = same[0].id if same else self.add(subject, asked.body["schema"], kind)
        row = next(row for row in reversed(self.rows) if row.id == schema_id)
        return Answer(200, self._shown(row) if self.modern else {"id": schema_id})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", "0"))
                self.answer(json.loads(self.rfile.read(size)))

            def do_GET(self) -> None:
                self.answer(None)

            def answer(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                asked = Asked(self.command, parts.path, query, headers, body)
                outer.asked.append(asked)
                answer = outer.answers.pop(0) if outer.answers else outer.respond(asked)
                if answer.wait is not None:
                    answer.wait.wait(30)
                if answer.hang_up:
                    self.close_connection = True
                    return
                content = answer.body
                if not isinstance(content, bytes):
                    content = json.dumps(content).encode()
                self.send_response(answer.status)
                given = {"content-type": "application/vnd.schemaregistry.v1+json"}
                given["content-length"] = str(10**6 if answer.drip else len(content))
                for name, value in (given | dict(answer.headers)).items():
                    self.send_header(name, value)
                self.end_headers()
                while answer.drip and not outer.over.wait(0.02):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                self.wfile.write(content)

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # a client that goes away is what some tests are about
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
