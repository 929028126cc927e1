"""What a schema refers to, looked up within bounds: a registry may answer in circles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sparkkafka.errors import SchemaError
from sparkkafka.schemas.registry.answers import Found, Reference
from sparkkafka.schemas.registry.redactor import Redactor
from sparkkafka.schemas.values import Schema

MAX_DEPTH: Final = 32
MAX_LOOKED_UP: Final = 256
MAX_UNFOLDED: Final = 4096
"""Schemas in the tree that a reader walks, where one that is referred to twice is there twice."""
MAX_BYTES: Final = 16 * 2**20
"""Of all texts together."""


class _Known:
    def __init__(self, schema: Schema, unfolded: int) -> None:
        self.schema = schema
        self.unfolded = unfolded


class References:
    """Finds what one schema refers to. `look_up(reference)` asks the registry."""

    def __init__(
        self, what: str, look_up: Callable[[Reference], Found], redactor: Redactor
    ) -> None:
        self._what = what
        self._look_up = look_up
        self._redactor = redactor
        self._known: dict[tuple[str, int], _Known] = {}
        self._bytes = 0

    def resolved(self, found: Found) -> Schema:
        """The schema with all that it refers to, and its own contract: rules of what it refers to
        are not run.

        Raises SchemaError for circles and for more than the bounds, and what `look_up` raises.
        """
        return replace(self._walk(found, ()).schema, contract=found.contract)

    def _walk(self, found: Found, path: tuple[tuple[str, int], ...]) -> _Known:
        self._bytes += len(found.text)
        if self._bytes > MAX_BYTES:
            raise SchemaError(
                f"{self._what} and what it refers to are larger than {MAX_BYTES} characters"
            )
        references = []
        unfolded = 1
        for reference in found.references:
            known = self._one(reference, found.format, path)
            references.append((reference.name, known.schema))
            unfolded += known.unfolded
        if unfolded > MAX_UNFOLDED:
            raise SchemaError(f"{self._what} refers to more than {MAX_UNFOLDED} schemas")
        return _Known(Schema(found.format, found.text, tuple(references)), unfolded)

    def _one(self, reference: Reference, kind: str, path: tuple[tuple[str, int], ...]) -> _Known:
        place = reference.subject, reference.version
        if place in path:
            raise SchemaError(f"{self._what} refers in a circle to {self._named(reference)}")
        if len(path) >= MAX_DEPTH:
            raise SchemaError(f"{self._what} has references that are more than {MAX_DEPTH} deep")
        known = self._known.get(place)
        if known is None:
            if len(self._known) + len(path) >= MAX_LOOKED_UP:
                raise SchemaError(f"{self._what} refers to more than {MAX_LOOKED_UP} schemas")
            found = self._look_up(reference)
            if found.format != kind:
                raise SchemaError(
                    f"{self._what} is {kind}, and refers to {self._named(reference)}, which is "
                    f"{found.format}"
                )
            known = self._known[place] = self._walk(found, (*path, place))
        return known

    def _named(self, reference: Reference) -> str:
        return f"subject {self._redactor.redact(reference.subject)!r} version {reference.version}"
