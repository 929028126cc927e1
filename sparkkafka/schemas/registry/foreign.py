"""What clients of other APIs than Confluent's have in common: they know schemas by id, and neither
references nor the rules of data contracts."""

from __future__ import annotations

from collections.abc import Callable

from sparkkafka.client.deadline import Deadline
from sparkkafka.errors import RegistryError, SchemaError
from sparkkafka.schemas.data_contract import DataContract
from sparkkafka.schemas.registry.client import SCHEMA_NOT_FOUND, SUBJECT_NOT_FOUND, RegistryClient
from sparkkafka.schemas.values import Schema


class ForeignClient(RegistryClient):
    """A registry with another API. Each method raises as that of RegistryClient."""

    def contract(self, subject: str) -> DataContract | None:
        return None

    def subjects(self) -> tuple[str, ...]:
        return ()

    def subject_versions(self, schema_id: int) -> tuple[tuple[str, int | None], ...]:
        return ()

    def incompatibilities(self, subject: str, schema: Schema) -> tuple[str, ...]:
        return ()

    def _cached(
        self, key: tuple[str, *tuple[str, ...]], what: str, fetch: Callable[[Deadline], Schema]
    ) -> Schema:
        """Return a schema from the cache, or what `fetch` returns. `what` names it in errors."""
        schema = self._cache.get(key)
        if schema is None:
            if self._cache.is_absent(key):
                raise self._absent(
                    f"{what} is not in {self.address}, as it answered some seconds ago"
                )
            try:
                schema = fetch(self._deadline())
            except RegistryError as error:
                if error.status != 404:
                    raise
                self._cache.put_absent(key)
                raise self._absent(f"{what} is not in {self.address} ({error})") from None
            self._cache.put(key, schema)
        return schema

    def _absent(self, text: str) -> RegistryError:
        """Return the error for a schema that does not exist."""
        return RegistryError(text, status=404, code=SCHEMA_NOT_FOUND)

    def _no_subject(self, subject: str, error: RegistryError) -> RegistryError:
        """Return the error for a subject, or a version of it, that does not exist."""
        return RegistryError(
            f"{self.address} has no such schema {subject!r} ({error}): set valueSubject (or "
            "keySubject) to its name there",
            status=404,
            code=SUBJECT_NOT_FOUND,
        )

    def _with_format(self, what: str, schema: Schema, format: str | None) -> Schema:
        """Return the schema. Raises SchemaError if it has another format than this one."""
        if format is not None and schema.format != format:
            raise SchemaError(
                f"{what} in {self.address} is {schema.format}, not {format}: set valueFormat (or "
                f"keyFormat) to {schema.format}, or valueSubject (or keySubject) to another schema"
            )
        return schema
