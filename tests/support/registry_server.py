"""A Schema Registry on loopback, over HTTP or HTTPS, with Confluent's API in memory, that can
misbehave.

with RegistryServer() as registry:
    registry.add("orders-value", '"long"')
    registry.url, registry.requests, registry.answers.append(HttpResponse(503))
"""

from __future__ import annotations

import json
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.certificates import Identity
from tests.support.loopback_server import HttpResponse, LoopbackServer, Request

HTML = b"<!DOCTYPE html><html><body>Log in</body></html>"


@dataclass(frozen=True)
class RegistryRequest(Request):
    query: Mapping[str, str]
    body: Any


def error(status: int, code: int, message: str = "words") -> HttpResponse:
    return HttpResponse(status, {"error_code": code, "message": message})


@dataclass
class _Row:
    id: int
    subject: str
    version: int
    text: str
    kind: str
    references: list[dict[str, Any]]
    contract: dict[str, Any]
    """ruleSet and metadata."""

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
        return found | self.contract


class RegistryServer(LoopbackServer):
    """Confluent's registry as of 8.0; `modern` False: without GUIDs, and POST answers only ids.

    `incompatible`: why the next versions are refused.
    """

    content_type = "application/vnd.schemaregistry.v1+json"

    def __init__(
        self,
        authority: Identity | None = None,
        *,
        prefix: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.rows: list[_Row] = []
        self.user_info: str | None = None
        self.token: str | None = None
        self.modern = True
        self.incompatible: list[str] = []
        self._prefix = prefix
        super().__init__(authority, prefix, context=context)

    def understand(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> RegistryRequest:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return RegistryRequest(
            method, parts.path, headers, query, json.loads(body) if body else None
        )

    def add(
        self,
        subject: str,
        text: str,
        kind: str = "AVRO",
        references: list[tuple[str, str, int]] | None = None,
        **contract: Any,
    ) -> int:
        """Register a schema, and return its id: the same for the same text and contract (ruleSet,
        metadata)."""
        known = [
            row.id
            for row in self.rows
            if (row.text, row.kind, row.contract) == (text, kind, contract)
        ]
        schema_id = known[0] if known else len({row.id for row in self.rows}) + 1
        version = sum(row.subject == subject for row in self.rows) + 1
        names = ("name", "subject", "version")
        found = [dict(zip(names, reference, strict=True)) for reference in references or []]
        self.rows.append(_Row(schema_id, subject, version, text, kind, found, contract))
        return schema_id

    # --- responses -----------------------------------------------------------------------------

    def respond(self, request: RegistryRequest) -> HttpResponse:
        if self.user_info is not None and request.basic != self.user_info:
            return error(401, 401, "Unauthorized")
        shown = request.headers.get("authorization")
        if self.token is not None and shown != f"Bearer {self.token}":
            return error(401, 401, "Unauthorized")
        if not request.path.startswith(self._prefix):
            return error(404, 404, "HTTP 404 Not Found")
        parts = [unquote(part) for part in request.path.removeprefix(self._prefix).split("/")[1:]]
        match request.method, parts:
            case "GET", ["schemas", "ids", number, *rest]:
                rows = [row for row in self.rows if str(row.id) == number]
                if not rows:
                    return error(404, 40403, "Schema not found")
                if rest == ["versions"]:
                    return HttpResponse(
                        200, [{"subject": row.subject, "version": row.version} for row in rows]
                    )
                return HttpResponse(200, self._shown(rows[0], "subject", "version", "id"))
            case "GET", ["schemas", "guids", guid] if self.modern:
                rows = [row for row in self.rows if row.guid == guid]
                return HttpResponse(200, rows[0].as_json()) if rows else error(404, 40403)
            case "GET", ["subjects"]:
                return HttpResponse(200, sorted({row.subject for row in self.rows}))
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
                            if row.text == request.body["schema"]
                            and row.kind == request.body.get("schemaType", "AVRO")
                        ),
                        error(404, 40403, "Schema not found"),
                    ),
                )
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, request)
            case "POST", ["compatibility", "subjects", subject, "versions", *_]:
                found = {"is_compatible": not self.incompatible, "messages": self.incompatible}
                return self._of(subject, lambda _: found)
        return error(404, 404, "HTTP 404 Not Found")

    def _shown(self, row: _Row, *without: str) -> dict[str, Any]:
        found = row.as_json()
        for name in (*without, *(() if self.modern else ("guid",))):
            found.pop(name, None)
        return found

    def _of(self, subject: str, response: Any) -> HttpResponse:
        rows = [row for row in self.rows if row.subject == subject]
        if not rows:
            return error(404, 40401, f"Subject '{subject}' not found.")
        found = response(rows)
        return found if isinstance(found, HttpResponse) else HttpResponse(200, found)

    def _register(self, subject: str, request: RegistryRequest) -> HttpResponse:
        if self.incompatible and any(row.subject == subject for row in self.rows):
            return error(409, 409, "Schema being registered is incompatible with an earlier schema")
        kind = request.body.get("schemaType", "AVRO")
        same = [
            row for row in self.rows if (row.subject, row.text) == (subject, request.body["schema"])
        ]
        schema_id = same[0].id if same else self.add(subject, request.body["schema"], kind)
        row = next(row for row in reversed(self.rows) if row.id == schema_id)
        return HttpResponse(200, self._shown(row) if self.modern else {"id": schema_id})
