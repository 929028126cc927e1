"""What Confluent's registry has and Apicurio's has not: GUIDs, and Protobuf schemas in base64.

A proxy in this process: it hands requests on, adds `guid` to each response about a schema with an
id, and answers `/schemas/guids/…`. A GUID here has the schema's id in its last four bytes.

confluent-kafka sends a Protobuf schema as a FileDescriptorProto in base64, and asks for it so with
`format=serialized`, while the registry keeps the .proto text. Here that text must be registered
already.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from sparkkafka.testing.registry import SchemaRegistry
from tests.support.protoc import compiled

_BASE = uuid.UUID("5cade000-0000-4000-8000-000000000000").int


def guid_of(schema_id: int) -> uuid.UUID:
    """The GUID that the proxy gives to a schema."""
    return uuid.UUID(int=_BASE | schema_id)


@dataclass
class GuidProxy:
    """`url`: for clients, without a path. `requests`: what came, ("GET", "/subjects")."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def guid_proxy(registry: SchemaRegistry) -> Iterator[GuidProxy]:
    """Stands before the registry until the end of the block."""
    upstream = urlsplit(registry.plain_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.hand_on()

        do_POST = do_PUT = do_DELETE = do_GET

        def hand_on(self) -> None:
            proxy.requests.append((self.command, self.path))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if match := re.match(r"/subjects/([^/?]+)(/versions)?(\?.*)?$", self.path):
                body = self.with_text(match[1], body)
            path, schema_id = self.path, None
            if match := re.match(r"/schemas/guids/([0-9a-f-]{36})", path):
                schema_id = uuid.UUID(match[1]).int & 0xFFFFFFFF
                path = f"/schemas/ids/{schema_id}"
            elif match := re.match(r"/schemas/ids/(\d+)(\?.*)?$", path):
                schema_id = int(match[1])
            status, response = self.ask(path, body)
            if status == 200 and isinstance(response, dict):
                schema_id = response.get("id", schema_id)
                if schema_id is not None:
                    response["guid"] = str(guid_of(schema_id))
                if "serialized" in parse_qs(urlsplit(self.path).query).get("format", ()):
                    response["schema"] = _in_base64(response["schema"])
            content = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def with_text(self, subject: str, body: bytes) -> bytes:
            """The body with the .proto text that its descriptor was made of."""
            request = json.loads(body or "null")
            if not request or request.get("schemaType") != "PROTOBUF":
                return body
            try:
                content = base64.b64decode(request["schema"], validate=True)
            except binascii.Error:
                return body  # a text already
            descriptor = FileDescriptorProto.FromString(content)
            for number in registry.call("GET", f"/subjects/{subject}/versions"):
                known = registry.call("GET", f"/subjects/{subject}/versions/{number}")["schema"]
                if compiled(known)[-1] == descriptor:
                    return json.dumps({**request, "schema": known, "references": []}).encode()
            return body

        def ask(self, path: str, body: bytes) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(
                upstream.hostname or "", upstream.port, timeout=30
            )
            try:
                kind = {"Content-Type": "application/json"}
                connection.request(self.command, upstream.path + path, body or None, kind)
                response = connection.getresponse()
                return response.status, json.loads(response.read())
            finally:
                connection.close()

        def log_message(self, *_arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy = GuidProxy(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join(10)


def _in_base64(text: str) -> str:
    return base64.b64encode(compiled(text)[-1].SerializeToString()).decode()
