"""A client of Apicurio Registry's own API, of version 2 or 3: …/apis/registry/v3.

A subject is an artifact of the group in the URL (…/groups/GROUP; without it, default). Its ids are
global ids. Types that a schema takes from other artifacts are inlined by the registry.

Source: the registry's OpenAPI documents, versions 2 and 3.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from sparkkafka.config.kinds import AVRO, JSON
from sparkkafka.errors import RegistryError
from sparkkafka.schemas.framings import GLOBAL_ID
from sparkkafka.schemas.registry.client import ForeignClient, absent_schema
from sparkkafka.schemas.registry.responses import RegisteredSchema
from sparkkafka.schemas.values import Schema

_FORMATS = {"AVRO": AVRO, "JSON": JSON}
_TYPES = {name: kind for kind, name in _FORMATS.items()}
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}
_TEXT = {**_JSON, "Accept": "*/*"}


class ApicurioClient(ForeignClient):
    """Apicurio Registry by its own API."""

    id_kind = GLOBAL_ID

    def by_id(
        self, schema_id: int, subject: str | None = None, format: str | None = None
    ) -> Schema:
        """Return the schema with this global id, cached. Raises RegistryError, with status 404 if
        there is none."""
        return self._by("globalIds", schema_id, f"the schema with global id {schema_id}", format)

    def by_content_id(self, content_id: int, format: str | None = None) -> Schema:
        """Return the schema with this content id, cached. Raises RegistryError, with status 404 if
        there is none."""
        return self._by(
            "contentIds", content_id, f"the schema with content id {content_id}", format
        )

    def by_guid(self, guid: bytes, format: str | None = None) -> Schema:
        """Raise RegistryError: Apicurio has no GUIDs."""
        raise absent_schema(f"{self.address} has no schemas with GUIDs")

    def latest(self, subject: str, format: str | None = None) -> RegisteredSchema:
        """Return the artifact's latest version. Raises RegistryError with code 40401 without
        one."""
        path = "/versions/branch=latest" if self._is_v3 else "/meta"
        return self._version_at(subject, path, format)

    def version(self, subject: str, version: int, format: str | None = None) -> RegisteredSchema:
        """Return this version of the artifact. Raises RegistryError with code 40401 without one."""
        path = f"/versions/{version}" + ("" if self._is_v3 else "/meta")
        return self._version_at(subject, path, format)

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the artifact's versions that are numbers, ascending, at most 500."""
        path = f"{self._artifact(subject)}/versions?limit=500"
        response = self._request_subject(subject, "GET", path)
        numbers = [_version_of(entry) for entry in _entries(response)]
        return tuple(sorted(number for number in numbers if number is not None))

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema | None:
        """Return the artifact's version with this schema, or None. The registry compares canonical
        forms, so `normalize` makes no difference."""
        try:
            if self._is_v3:
                group, name = quote(self._group, safe=""), quote(subject, safe="")
                path = (
                    f"/search/versions?canonical=true&artifactType={_TYPES[schema.format]}"
                    f"&groupId={group}&artifactId={name}"
                )
                response = self._request_subject(subject, "POST", path, schema.text)
                entries = _entries(response)
                if not entries:
                    return None
                return self._registered(subject, entries[-1], schema)
            path = f"{self._artifact(subject)}/meta?canonical=true"
            response = self._request_subject(subject, "POST", path, schema.text)
        except RegistryError as error:
            if error.status == 404:
                return None
            raise
        return self._registered(subject, response, schema)

    def register(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register the schema as the artifact's next version, unless it has it. Raises
        RegistryError with status 409 if the registry's rules refuse it."""
        path = f"/groups/{quote(self._group, safe='')}/artifacts"
        kind = _TYPES[schema.format]
        if self._is_v3:
            content = {"content": schema.text, "contentType": "application/json"}
            body = {
                "artifactId": subject,
                "artifactType": kind,
                "firstVersion": {"content": content},
            }
            path += "?ifExists=FIND_OR_CREATE_VERSION&canonical=true"
            response = self._request_subject(subject, "POST", path, body)
            return self._registered(subject, response.get("version"), schema)
        headers = {"X-Registry-ArtifactId": subject, "X-Registry-ArtifactType": kind}
        path += "?ifExists=RETURN_OR_UPDATE&canonical=true"
        response = self._request_subject(subject, "POST", path, schema.text, headers)
        return self._registered(subject, response, schema)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _is_v3(self) -> bool:
        """Whether the URL is that of version 3 of the API."""
        return self._rest.settings.urls[0].path.endswith("/v3")

    @property
    def _group(self) -> str:
        """The group of artifacts, which the URL names."""
        return self._rest.settings.group

    def _artifact(self, subject: str) -> str:
        """Return the URL's path of an artifact."""
        return f"/groups/{quote(self._group, safe='')}/artifacts/{quote(subject, safe='')}"

    def _by(self, kind: str, number: int, what: str, format: str | None) -> Schema:
        """Return the schema with this id, cached. `kind` is the segment of the URL's path for this
        kind of id. Only version 3 says of which type an artifact is, and only for a global id:
        content has no type of its own."""
        inline = "references=DEREFERENCE" if self._is_v3 else "dereference=true"
        path = f"/ids/{kind}/{number}?{inline}"
        if self._is_v3 and kind == "globalIds":
            path += "&returnArtifactType=true"

        def fetch() -> Schema:
            """Request the artifact. Without a header that names its type it has the `format` of the
            column."""
            text, headers = self._rest.request(what, "GET", path, headers=_TEXT, returns="")
            artifact_type = headers.get("X-Registry-ArtifactType")
            return Schema(
                format or AVRO
                if artifact_type is None
                else _FORMATS.get(artifact_type, artifact_type),
                text,
            )

        schema = self._cached((kind, str(number), format or AVRO), what, fetch)
        return self._with_format(what, schema, format)

    def _version_at(self, subject: str, path: str, format: str | None) -> RegisteredSchema:
        """Return the version of an artifact whose metadata is at this path."""
        response = self._request_subject(subject, "GET", self._artifact(subject) + path)
        kind = str(response.get("artifactType") or response.get("type"))[:100]
        schema = Schema(_FORMATS.get(kind, kind), "")
        self._with_format(f"artifact {subject!r}", schema, format)
        global_id = response.get("globalId")
        if not isinstance(global_id, int):
            raise RegistryError(f"{self.address} answers without a global id for {subject!r}")
        return self._registered(subject, response, self.by_id(global_id, None, schema.format))

    def _request_subject(
        self,
        subject: str,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request about an artifact. `path`, `body` and
        `headers` are those of `RestService.request`. Raises RegistryError, with status 404 and code
        40401 if there is no such artifact."""
        what = f"artifact {subject!r} of group {self._group!r}"
        try:
            response = self._rest.request(
                what, method, path, body, headers={**_JSON, **(headers or {})}
            )
        except RegistryError as error:
            raise self._no_subject(subject, error) from None
        if not isinstance(response, dict):
            raise RegistryError(
                f"{self.address} answers with JSON that is not an object for {what}"
            )
        return response

    def _registered(self, subject: str, response: Any, schema: Schema) -> RegisteredSchema:
        """Return the schema with the ids that the metadata of its version has (`response`). Raises
        RegistryError if it has none."""
        response = response if isinstance(response, dict) else {}
        ids = response.get("globalId"), response.get("contentId")
        if not all(isinstance(number, int) and 0 < number < 1 << 63 for number in ids):
            raise RegistryError(f"{self.address} answers without ids for {subject!r}")
        return RegisteredSchema(subject, ids[0], _version_of(response), None, schema, ids[1])


def _entries(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the versions in a response that lists them; none for a response of another form."""
    entries = response.get("versions")
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )


def _version_of(entry: dict[str, Any]) -> int | None:
    """Return the number of the version whose metadata is `entry`; None if its version is no
    number."""
    text = str(entry.get("version"))
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
