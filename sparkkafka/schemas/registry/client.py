"""Questions to a Schema Registry, by Confluent's REST API.

    with RegistryClient(options) as registry:
        registry.latest("orders-value").schema
        registry.by_id(7)

Each question ends within schema.registry.api.timeout.ms. Schemas by id and GUID are cached in the
process; of errors only that many of them are not there, for some seconds.
"""

from __future__ import annotations

import difflib
import logging
import uuid
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import quote

from sparkkafka.client.deadline import Deadline
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import KafkaError, RegistryError, SchemaError, counted
from sparkkafka.schemas.data_contract import DataContract
from sparkkafka.schemas.registry.answers import (
    MAX_ID,
    Found,
    Reference,
    Registered,
    body_of,
    found_in,
    id_in,
    is_no_such_page,
    messages_in,
    names_in,
    owners_in,
    versions_in,
)
from sparkkafka.schemas.registry.cache import cache_of
from sparkkafka.schemas.registry.references import References
from sparkkafka.schemas.registry.rest_service import RestService
from sparkkafka.schemas.values import Schema

__all__ = ["Registered", "RegistryClient"]

log = logging.getLogger(__name__)

# The registry's own codes (io.confluent.kafka.schemaregistry.rest.exceptions.Errors).
NO_SUBJECT: Final = 40401
NO_VERSION: Final = 40402
NO_SCHEMA: Final = 40403
INVALID_SCHEMA: Final = 42201

_MAX_COMPARED = 20_000
"""Subjects among which near names are looked for."""


class RegistryClient:
    """A registry. Thread-safe, and picklable: the copy looks references in options up anew.

    Beside what its methods name, each raises KafkaConnectionError or KafkaTimeoutError if no
    registry can be asked, AuthenticationError if TLS or an issuer of tokens refuses, OptionError
    for options, and RegistryError for a refusal or an odd answer.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._rest = RestService(options)
        self._redactor = self._rest.redactor
        self._cache = cache_of(self._rest.settings, options.cache_capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        return RegistryClient, (self._options,)

    def __repr__(self) -> str:
        return f"RegistryClient({self.address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing stays open between questions."""

    @property
    def address(self) -> str:
        """The URLs, for messages."""
        return ", ".join(map(str, self._rest.settings.urls))

    # --- schemas by what never changes ------------------------------------------------------

    def by_id(
        self, schema_id: int, subject: str | None = None, format: str | None = None
    ) -> Schema:
        """The schema with this id (unsigned, as records have it); from the cache if it is there.

        `subject` only says in which of the registry's contexts the id is. Whose id it is, `owners`
        says. `format`: the one that it must have. Raises RegistryError with code 40403 if there is
        no such schema, SchemaError if it has another format or refers to what cannot be had.
        """
        what = f"the schema with id {schema_id}"
        if not 0 <= schema_id <= MAX_ID:
            raise RegistryError(
                f"{what}: no registry has it; is it in Confluent's framing?",
                status=404,
                code=NO_SCHEMA,
            )
        query = f"?subject={_quoted(subject)}" if subject else ""
        key = "id", schema_id, _context(subject)
        schema = self._kept(key, what, f"/schemas/ids/{schema_id}{query}")
        if format is not None and schema.format != format:
            raise SchemaError(
                f"{what} in the Schema Registry is {schema.format}, and the records are read as "
                f"{format}{self._whose(schema_id)}: set valueFormat (or keyFormat) to "
                f"{schema.format}, or read this topic by itself"
            )
        return schema

    def by_guid(self, guid: bytes, format: str | None = None) -> Schema:
        """The schema with this GUID (16 bytes); from the cache if it is there. As `by_id`."""
        name = str(uuid.UUID(bytes=bytes(guid)))
        what = f"the schema with GUID {name}"
        schema = self._kept(("guid", name), what, f"/schemas/guids/{name}")
        if format is not None and schema.format != format:
            raise SchemaError(
                f"{what} in the Schema Registry is {schema.format}, and the records are read as "
                f"{format}: set valueFormat (or keyFormat) to {schema.format}"
            )
        return schema

    # --- subjects ---------------------------------------------------------------------------

    def latest(self, subject: str, format: str | None = None) -> Registered:
        """The subject's latest version. Raises RegistryError with code 40401 if there is no such
        subject, with near names; SchemaError if it has another format."""
        return self._version(subject, "latest", format)

    def version(self, subject: str, version: int, format: str | None = None) -> Registered:
        """This version of the subject. Raises as `latest`, and with code 40402 and the versions
        that there are."""
        return self._version(subject, str(version), format)

    def contract(self, subject: str) -> DataContract | None:
        """Rules and tags of the subject's latest version; None if there are none, or there is no
        such subject."""
        what = f"the rules of subject {subject!r}"
        path = f"{_path(subject)}/versions/latest"
        try:
            answer = self._rest.request(what, "GET", path, self._deadline())
        except RegistryError as error:
            if error.code in (NO_SUBJECT, NO_VERSION):
                return None
            raise
        return found_in(answer, what, self._redactor).contract

    def versions(self, subject: str) -> tuple[int, ...]:
        """The subject's versions, ascending. Raises as `latest`."""
        deadline = self._deadline()
        what = f"the versions of subject {subject!r}"
        try:
            answer = self._rest.request(what, "GET", f"{_path(subject)}/versions", deadline)
        except RegistryError as error:
            raise self._explained(error, subject, deadline) from None
        return tuple(sorted(versions_in(answer)))

    def subjects(self) -> tuple[str, ...]:
        """All subjects that the user may see."""
        answer = self._rest.request("all subjects", "GET", "/subjects", self._deadline())
        return names_in(answer, "all subjects")

    def owners(self, schema_id: int) -> tuple[tuple[str, int | None], ...]:
        """(subject, version) of all places where a schema is; none if the registry cannot say."""
        try:
            answer = self._rest.request(
                f"the subjects of id {schema_id}",
                "GET",
                f"/schemas/ids/{schema_id}/versions",
                self._deadline(),
            )
        except RegistryError as error:
            log.debug("the subjects of id %d: %s", schema_id, error)
            return ()
        return owners_in(answer)

    def stranger(self, schema_id: int, subject: str) -> str:
        """A sentence if the id belongs to other subjects than this one, else "". Raises nothing."""
        try:
            owners = self.owners(schema_id)
        except KafkaError:
            return ""
        names = sorted({name for name, _ in owners})
        if not names or subject in names:
            return ""
        return (
            f"id {schema_id} belongs to {self._redactor.list_names(names)} in the Schema Registry, "
            f"and not to {subject!r}"
        )

    # --- schemas that are given -------------------------------------------------------------

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> Registered | None:
        """Where the subject has this schema; None if it has not, or there is no such subject."""
        deadline = self._deadline()
        what = f"a schema of subject {subject!r}"
        path = f"{_path(subject)}{_normalize(normalize)}"
        try:
            answer = self._rest.request(what, "POST", path, deadline, _body(schema, subject))
        except RegistryError as error:
            if error.code in (NO_SUBJECT, NO_SCHEMA):
                return None
            raise
        found = found_in(
            {"schema": schema.text, **answer} if isinstance(answer, dict) else answer,
            what,
            self._redactor,
        )
        schema = replace(schema, contract=found.contract)
        return Registered(subject, id_in(answer, what), found.version, found.guid, schema)

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> Registered:
        """Register the schema, unless the subject has it. Needs the right to write the subject.

        Raises RegistryError: with status 409 and the registry's reasons if it is not compatible
        with the versions before it, with code 42201 if it is not valid.
        """
        deadline = self._deadline()
        what = f"a new schema of subject {subject!r}"
        path = f"{_path(subject)}/versions{_normalize(normalize)}"
        try:
            answer = self._rest.request(what, "POST", path, deadline, _body(schema, subject))
        except RegistryError as error:
            raise self._refused(error, subject, schema) from None
        schema_id = id_in(answer, what)
        found = found_in({"schema": schema.text, **answer}, what, self._redactor)
        log.info("the Schema Registry has a schema of subject %r with id %d", subject, schema_id)
        if found.version is None or found.guid is None:
            # Registries before Confluent's 8.0 answer with the id alone.
            known = self.lookup(subject, schema, normalize=normalize)
            if known is not None and known.id == schema_id:
                return known
        schema = replace(schema, contract=found.contract)
        return Registered(subject, schema_id, found.version, found.guid, schema)

    def compatible(self, subject: str, schema: Schema) -> tuple[str, ...]:
        """Why the registry would not take this schema as a new version: nothing if it would.

        A subject that does not exist takes any. Raises RegistryError with code 42201 if the schema
        is not valid.
        """
        deadline = self._deadline()
        what = f"whether a schema is compatible with subject {subject!r}"
        for versions in ("versions", "versions/latest"):
            path = f"/compatibility{_path(subject)}/{versions}?verbose=true"
            try:
                answer = self._rest.request(what, "POST", path, deadline, _body(schema, subject))
            except RegistryError as error:
                if error.code in (NO_SUBJECT, NO_VERSION):
                    return ()
                older = is_no_such_page(error.status, error.code) or error.status == 405
                if versions == "versions" and older:
                    continue  # an older registry compares with one version alone
                raise
            return messages_in(answer, self._redactor)
        return ()

    # --- inside -----------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline(self._options.api_timeout_ms)

    def _kept(self, key: tuple[str, *tuple[Any, ...]], what: str, path: str) -> Schema:
        """From the cache, or asked for. Raises as `by_id`."""
        schema = self._cache.get(key)
        if schema is not None:
            return schema
        if self._cache.is_absent(key):
            raise RegistryError(
                f"{what} is not in the Schema Registry, which said so a moment ago",
                status=404,
                code=NO_SCHEMA,
            )
        deadline = self._deadline()
        try:
            answer = self._rest.request(what, "GET", path, deadline)
        except RegistryError as error:
            no_page = is_no_such_page(error.status, error.code)
            of_guid = no_page and key[0] == "guid"
            if error.status == 404 and (of_guid or not no_page):
                self._cache.put_absent(key)
            raise _unknown(error, what, of_guid) from None
        schema = self._resolved(found_in(answer, what, self._redactor), what, deadline)
        self._cache.put(key, schema)
        return schema

    def _version(self, subject: str, version: str, format: str | None) -> Registered:
        deadline = self._deadline()
        what = f"subject {subject!r}" + ("" if version == "latest" else f" version {version}")
        try:
            answer = self._rest.request(
                what, "GET", f"{_path(subject)}/versions/{version}", deadline
            )
        except RegistryError as error:
            raise self._explained(error, subject, deadline, version) from None
        found = found_in(answer, what, self._redactor)
        if format is not None and found.format != format:
            raise SchemaError(
                f"{what} in the Schema Registry is {found.format}, and {format} is asked for: set "
                f"valueFormat (or keyFormat) to {found.format}, or valueSubject (or keySubject) to "
                "another subject"
            )
        schema = self._resolved(found, what, deadline)
        return Registered(subject, id_in(answer, what), found.version, found.guid, schema)

    def _resolved(self, found: Found, what: str, deadline: Deadline) -> Schema:
        redactor = self._redactor

        def look_up(reference: Reference) -> Found:
            known_as = redactor.redact(reference.subject)
            name = f"subject {known_as!r} version {reference.version}, for {what}"
            path = f"{_path(reference.subject)}/versions/{reference.version}?deleted=true"
            try:
                return found_in(self._rest.request(name, "GET", path, deadline), name, redactor)
            except RegistryError as error:
                if error.status != 404:
                    raise
                raise SchemaError(
                    f"{what} refers to {redactor.redact(reference.name)!r}, subject {known_as!r} "
                    f"version {reference.version}, which the Schema Registry does not have"
                ) from error

        return References(what, look_up, redactor).resolved(found)

    def _explained(
        self, error: RegistryError, subject: str, deadline: Deadline, version: str = ""
    ) -> RegistryError:
        """The same with what there is instead."""
        if error.code == NO_SUBJECT:
            text = (
                f"the Schema Registry {self.address} has no subject {subject!r}"
                f"{self._near(subject)}. The subject is the topic's name with -value or -key, "
                "unless value.subject.name.strategy, or valueSubject (keySubject), says another"
            )
        elif error.code == NO_VERSION:
            there = ", ".join(map(str, self._versions_or_none(subject)[:50]))
            text = (
                f"subject {subject!r} in the Schema Registry has no version {version}"
                + (f"; it has {there}" if there else "")
                + ": set valueSchemaVersion (keySchemaVersion) to one of these, or leave it out "
                "for the latest, or name another subject by valueSubject (keySubject)"
            )
        else:
            return error
        return RegistryError(text, status=error.status, code=error.code)

    def _refused(self, error: RegistryError, subject: str, schema: Schema) -> RegistryError:
        if error.status == 409:
            try:
                reasons = self.compatible(subject, schema)
            except KafkaError:  # there is the first answer's
                reasons = ()
            why = "".join(f"\n  - {reason}" for reason in reasons)
            return RegistryError(
                f"the Schema Registry refuses a schema as the next version of subject {subject!r}, "
                f"since it is not compatible with those before it{why or f': {error}'}",
                status=error.status,
                code=error.code,
            )
        if error.code == INVALID_SCHEMA:
            return RegistryError(
                f"the Schema Registry rejects the schema of subject {subject!r} as invalid: "
                f"{error}",
                status=error.status,
                code=error.code,
            )
        if error.status == 403:
            return RegistryError(
                f"{error} (auto.register.schemas=true needs the right to write subject "
                f"{subject!r})",
                status=error.status,
                code=error.code,
            )
        return error

    def _near(self, subject: str) -> str:
        try:
            names = self.subjects()
        except KafkaError:  # the user may have no right to it, and the first error says enough
            return ""
        if not names:
            return ", and shows no subjects at all to this user"
        topic = _topic(subject)
        # Without the ends, which most names share.
        end = subject[len(topic) :]
        some = sorted(names[:_MAX_COMPARED], key=lambda name: name.endswith(end))
        topics = {_topic(name): name for name in some}
        near = [topics[one] for one in difflib.get_close_matches(topic, topics, n=5, cutoff=0.6)]
        near += [name for name in names if name.startswith(topic) and name not in near]
        return (
            f"; near names are {self._redactor.list_names(near)}"
            if near
            else f", but {counted(len(names), 'other')}"
        )

    def _versions_or_none(self, subject: str) -> tuple[int, ...]:
        try:
            return self.versions(subject)
        except KafkaError:
            return ()

    def _whose(self, schema_id: int) -> str:
        try:
            names = sorted({name for name, _ in self.owners(schema_id)})
        except KafkaError:
            return ""
        return f" (it belongs to {self._redactor.list_names(names)})" if names else ""


def _topic(subject: str) -> str:
    return subject.removesuffix("-value").removesuffix("-key")


def _unknown(error: RegistryError, what: str, of_guid: bool) -> RegistryError:
    """`of_guid`: the registry has perhaps no such page."""
    if of_guid:
        text = f"{what} is not in the Schema Registry, or it cannot look up GUIDs: {error}"
    elif error.code == NO_SCHEMA:
        text = (
            f"{what} is not in the Schema Registry: were the records written with another "
            f"registry, or not in Confluent's framing? ({error})"
        )
    else:
        return error
    return RegistryError(text, status=error.status, code=error.code)


def _context(subject: str | None) -> str:
    """Confluent's contexts: `:.name:subject`."""
    if subject is None or not subject.startswith(":."):
        return ""
    return subject[1:].partition(":")[0]


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _path(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}"


def _normalize(normalize: bool) -> str:
    return "?normalize=true" if normalize else ""


def _body(schema: Schema, subject: str) -> dict[str, Any]:
    if schema.references:
        raise SchemaError(
            f"a schema that refers to others cannot be looked up or registered for subject "
            f"{subject!r}: register it by the registry's own means, and set use.latest.version=true"
        )
    return body_of(schema)
