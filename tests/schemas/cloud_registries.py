"""The registries of AWS Glue, Azure and Apicurio in one process, as far as clients need them."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sparkkafka.schemas.registry.glue import boto3_client


class CloudRegistry:
    """`schemas` has (name, text, format) by GUID, in the order of registration. `requests` are the
    actions that were asked for. `responses`: what Glue answers next, (status, error code).
    `headers` are those of all responses of the others."""

    def __init__(self) -> None:
        self.schemas: dict[str, tuple[str, str, str]] = {}
        self.requests: list[str] = []
        self.refusals: list[tuple[int, str]] = []
        self.pending = 0
        self.status = "AVAILABLE"
        self.url = ""
        self.headers: dict[str, str] = {}

    def add(self, name: str, text: str, kind: str = "AVRO") -> str:
        for guid, found in self.schemas.items():
            if found == (name, text, kind):
                return guid
        guid = str(uuid.UUID(int=0xC10D << 80 | len(self.schemas) + 1))
        self.schemas[guid] = name, text, kind
        return guid

    def versions(self, name: str) -> list[str]:
        return [guid for guid, found in self.schemas.items() if found[0] == name]

    # --- AWS Glue: the JSON protocol, whose action is in a header ---------------------------------

    def glue(self, action: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.refusals:
            status, code = self.refusals.pop(0)
            return status, {"__type": code, "Message": "no"}
        missing = 400, {"__type": "EntityNotFoundException", "Message": "not found"}
        if "SchemaId" in body:
            assert body["SchemaId"]["RegistryName"] == "shop"
        name = body.get("SchemaName") or body.get("SchemaId", {}).get("SchemaName", "")
        match action:
            case "GetSchemaVersion" if "SchemaVersionId" in body:
                guid = body["SchemaVersionId"]
                return (200, self._version(guid)) if guid in self.schemas else missing
            case "GetSchemaVersion":
                versions = self.versions(name)
                asked = body["SchemaVersionNumber"]
                number = len(versions) if asked.get("LatestVersion") else asked["VersionNumber"]
                if not 0 < number <= len(versions):
                    return missing
                return 200, self._version(versions[number - 1])
            case "GetSchemaByDefinition":
                for guid in self.versions(name):
                    if self.schemas[guid][1] == body["SchemaDefinition"]:
                        return 200, self._version(guid)
                return missing
            case "ListSchemaVersions":
                numbers = range(1, len(self.versions(name)) + 1)
                return 200, {"Schemas": [{"VersionNumber": number} for number in numbers]}
            case "RegisterSchemaVersion":
                if not self.versions(name):
                    return missing
                return 200, {"SchemaVersionId": self.add(name, body["SchemaDefinition"])}
            case "CreateSchema":
                assert body["RegistryId"] == {"RegistryName": "shop"}
                guid = self.add(name, body["SchemaDefinition"], body["DataFormat"])
                return 200, {"SchemaVersionId": guid, "SchemaVersionStatus": "AVAILABLE"}
        raise AssertionError(action)

    def _version(self, guid: str) -> dict[str, Any]:
        name, text, kind = self.schemas[guid]
        status = self.status
        if self.pending:
            self.pending -= 1
            status = "PENDING"
        return {
            "SchemaVersionId": guid,
            "SchemaDefinition": text,
            "DataFormat": kind,
            "VersionNumber": self.versions(name).index(guid) + 1,
            "Status": status,
        }

    # --- Apicurio, version 3: content ids are 100 and more ----------------------------------------

    def apicurio(self, method: str, path: str, text: str) -> tuple[int, str]:
        path, _, query = path.removeprefix("/apis/registry/v3").partition("?")
        guids = list(self.schemas)

        def version(guid: str) -> dict[str, Any]:
            name = self.schemas[guid][0]
            number = guids.index(guid) + 1
            return {
                "version": str(self.versions(name).index(guid) + 1),
                "globalId": number,
                "contentId": number + 100,
                "artifactType": "AVRO",
            }

        missing = 404, '{"status": 404, "title": "No such artifact", "name": "NotFound"}'
        if found := re.fullmatch(r"/ids/(globalIds|contentIds)/(\d+)", path):
            is_global = found[1] == "globalIds"
            more = "&returnArtifactType=true" if is_global else ""
            assert query == f"references=DEREFERENCE{more}"
            number = int(found[2]) - (100 if found[1] == "contentIds" else 0)
            return (200, self.schemas[guids[number - 1]][1]) if number <= len(guids) else missing
        if path == "/search/versions":
            same = [guid for guid in guids if self.schemas[guid][1] == text]
            return 200, json.dumps({"versions": [version(guid) for guid in same]})
        if method == "POST":
            assert path == "/groups/shop/artifacts"
            body = json.loads(text)
            guid = self.add(body["artifactId"], body["firstVersion"]["content"]["content"])
            guids = list(self.schemas)
            return 200, json.dumps({"artifact": {}, "version": version(guid)})
        name = path.split("/")[4]
        versions = [version(guid) for guid in self.versions(name)]
        if not versions:
            return missing
        if path.endswith("/versions"):
            return 200, json.dumps({"versions": versions})
        last = path.split("/")[6]
        return 200, json.dumps(versions[-1 if last == "branch=latest" else int(last) - 1])

    # --- Azure ------------------------------------------------------------------------------------

    def azure(self, method: str, path: str, text: str) -> tuple[int, str, str]:
        """(status, body, the header Schema-Id)."""
        path, _, query = path.partition("?")
        assert query == "api-version=2022-10"
        missing = 404, '{"error": {"code": "ItemNotFound", "message": "no such schema"}}', ""
        if found := re.fullmatch(r"/\$schemaGroups/\$schemas/(\w+)", path):
            guid = str(uuid.UUID(found[1]))
            return (200, self.schemas[guid][1], found[1]) if guid in self.schemas else missing
        found = re.fullmatch(
            r"/\$schemaGroups/shop/schemas/([\w.]+)(:get-id|/versions|/versions/(\d+))?", path
        )
        assert found is not None, path
        name, action = found[1], found[2] or ""
        if method == "PUT":
            return 204, "", uuid.UUID(self.add(name, text)).hex
        versions = self.versions(name)
        if action == ":get-id":
            for guid in versions:
                if self.schemas[guid][1] == text:
                    return 204, "", uuid.UUID(guid).hex
            return missing
        if not versions:
            return missing
        if action == "/versions":
            return 200, json.dumps({"Value": [*range(1, len(versions) + 1)]}), ""
        guid = versions[int(found[3]) - 1]
        return 200, self.schemas[guid][1], uuid.UUID(guid).hex


@contextmanager
def cloud_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRegistry]:
    """The environment has its address for AWS's SDK until the end of the test."""
    registry = CloudRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            text = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            target = self.headers.get("x-amz-target", "")
            schema_id = ""
            headers = dict(registry.headers)
            if target:
                action = target.removeprefix("AWSGlue.")
                registry.requests.append(action)
                status, response = registry.glue(action, json.loads(text))
                body = json.dumps(response).encode()
            elif self.path.startswith("/apis/"):
                status, response_text = registry.apicurio(self.command, self.path, text)
                body = response_text.encode()
                if "returnArtifactType=true" in self.path and status == 200:
                    number = int(re.findall(r"\d+", self.path)[-1])
                    *_, kind = list(registry.schemas.values())[number - 1]
                    headers["X-Registry-ArtifactType"] = kind
            else:
                registry.requests.append(f"{self.command} {self.path}")
                status, response_text, schema_id = registry.azure(self.command, self.path, text)
                body = response_text.encode()
            self.send_response(status)
            if schema_id:
                headers = {"Schema-Id": schema_id, **headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = _respond

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", registry.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    boto3_client.cache_clear()  # it keeps the address
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
