"""A client of Azure's Schema Registry: https://NAMESPACE.servicebus.windows.net/$schemaGroups/GROUP.

A subject is a schema of that group. Schemas have GUIDs and no other ids. Requests need a token of
Microsoft Entra: schema.registry.bearer.auth.… with its issuer.

Source: the service's REST reference, "Schema Registry", api-version 2022-10.
"""

from __future__ import annotations

import re
import uuid
from urllib.parse import quote, unquote, urlsplit

from sparkkafka.config.kinds import AVRO
from sparkkafka.errors import RegistryError, SchemaError
from sparkkafka.schemas.registry.client import ForeignClient, absent_schema
from sparkkafka.schemas.registry.responses import RegisteredSchema
from sparkkafka.schemas.values import Schema

_QUERY = "?api-version=2022-10"
_HEADERS = {"Accept": "application/json", "Content-Type": "application/json; serialization=Avro"}


class AzureClient(ForeignClient):
    """Azure's Schema Registry, whose schemas are Avro."""

    id_kind = "GUID"

    def by_guid(self, guid: bytes, format: str | None = None) -> Schema:
        """Return the schema with this id, cached. Raises RegistryError, with status 404 if there is
        none."""
        what = f"the schema with id {guid.hex()}"
        path = f"/$schemaGroups/$schemas/{guid.hex()}{_QUERY}"
        key = ("guid", guid.hex())
        schema = self._cached(key, what, lambda: self._schema(guid, what, path))
        return self._with_format(what, schema, format)

    def latest(self, subject: str, format: str | None = None) -> RegisteredSchema:
        """Return the schema's latest version. Raises RegistryError with code 40401 without one."""
        versions = self.versions(subject)
        if not versions:
            raise self._no_subject(subject, absent_schema("it has no versions"))
        return self.version(subject, versions[-1], format)

    def version(self, subject: str, version: int, format: str | None = None) -> RegisteredSchema:
        """Return this version of the schema. Raises RegistryError with code 40401 without one."""
        what = f"schema {subject!r} version {version}"
        path = f"{self._path(subject)}/versions/{version}{_QUERY}"
        try:
            response = self._rest.request(what, "GET", path, headers=_HEADERS, returns="Schema-Id")
        except RegistryError as error:
            raise self._no_subject(subject, error) from None
        guid = self._guid(response, what)
        return RegisteredSchema(subject, None, version, guid, self.by_guid(guid, format))

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the schema's versions, ascending."""
        what = f"the versions of schema {subject!r}"
        first, deadline = f"{self._path(subject)}/versions", self._deadline()
        path, versions = first + _QUERY, set[int]()
        while True:
            try:
                response = self._rest.request(
                    what, "GET", path, deadline=deadline, headers=_HEADERS
                )
            except RegistryError as error:
                raise self._no_subject(subject, error) from None
            fields = response if isinstance(response, dict) else {}
            values = fields.get("Value", fields.get("value"))
            # A bool is an int, too.
            if not isinstance(values, list) or not all(type(value) is int for value in values):
                raise RegistryError(f"{self.address} answers the request for {what} without a list")
            count = len(versions)
            versions.update(values)
            link = fields.get("NextLink", fields.get("nextLink"))
            if not link:
                return tuple(sorted(versions))
            # Its host is not used: the token is for this registry.
            try:
                page = urlsplit(str(link))
            except ValueError:  # for example "http://["
                page = urlsplit("")
            if unquote(page.path) != unquote(first) or not re.fullmatch(
                "[!-~]{1,4096}", page.query
            ):
                raise RegistryError(
                    f"{self.address} answers the request for {what} with {str(link)[:100]!r} as "
                    "the link to its next page"
                )
            if not count < len(versions) <= 100_000:  # the page has no new version, or too many
                raise RegistryError(f"{self.address} answers with {what} without an end")
            path = f"{first}?{page.query}"

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema | None:
        """Return the registered schema with this text, or None."""
        try:
            return self._send(subject, schema, "POST", ":get-id")
        except RegistryError as error:
            if error.status == 404:
                return None
            raise

    def register(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register the schema as the next version, unless it is registered."""
        return self._send(subject, schema, "PUT", "")

    # --- inside -----------------------------------------------------------------------------------

    def _path(self, subject: str) -> str:
        """Return the URL's path of a schema."""
        group = quote(self._rest.settings.group, safe="")
        return f"/$schemaGroups/{group}/schemas/{quote(subject, safe='')}"

    def _schema(self, guid: bytes, what: str, path: str) -> Schema:
        """Return the schema with this id. The headers of the response say which schema it is, and
        in which format."""
        text, headers = self._rest.request(
            what, "GET", path, headers={**_HEADERS, "Accept": "*/*"}, returns=""
        )
        if self._guid(headers.get("Schema-Id", ""), what) != guid:
            raise RegistryError(f"{self.address} answers the request for {what} with another one")
        kind = headers.get("Content-Type", "")
        match = re.search("serialization=([a-z]+)", kind, re.IGNORECASE)
        if match is None and kind and "json" not in kind.lower():
            raise RegistryError(
                f"{self.address} answers the request for {what} with {kind[:64]!r}, not with JSON"
            )
        return Schema(AVRO if match is None else match[1].lower(), text)

    def _send(self, subject: str, schema: Schema, method: str, action: str) -> RegisteredSchema:
        """Send the schema to the URL of the subject with `action` at its end, and return it with
        the id in the response."""
        if schema.format != AVRO:
            raise SchemaError(f"Azure's Schema Registry is used for avro here, not {schema.format}")
        what = f"schema {subject!r}"
        path = f"{self._path(subject)}{action}{_QUERY}"
        response = self._rest.request(
            what, method, path, schema.text, headers=_HEADERS, returns="Schema-Id"
        )
        return RegisteredSchema(subject, None, None, self._guid(response, what), schema)

    def _guid(self, text: str, what: str) -> bytes:
        """Return the id in the header Schema-Id."""
        if not re.fullmatch("[0-9a-fA-F]{32}", text):
            raise RegistryError(f"{self.address} answers without the header Schema-Id for {what}")
        return uuid.UUID(text).bytes
