"""A client of a Schema Registry, by Confluent's REST API.

    with RegistryClient(options) as registry:
        registry.latest("orders-value").schema
        registry.by_id(7)

Each call ends within schema.registry.api.timeout.ms. Schemas by id and by GUID are cached in the
process. That an id does not exist is cached too, for seconds, once many do not exist.
schemas/schema_choice.py chooses the subject of a topic.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from sparkkafka.client.deadline import Deadline
from sparkkafka.config.kinds import CONFLUENT
from sparkkafka.config.registry import RegistryOptions, RegistrySettings, registry_settings
from sparkkafka.errors import KafkaError, RegistryError, SchemaError, counted
from sparkkafka.schemas.data_contract import DataContract
from sparkkafka.schemas.registry.responses import (
    MAX_ID,
    Redactor,
    Reference,
    RegisteredSchema,
    SchemaResponse,
    is_unknown_path,
    parse_id,
    parse_incompatibilities,
    parse_schema,
    parse_subject_versions,
    parse_subjects,
    parse_versions,
    request_body,
)
from sparkkafka.schemas.registry.rest_service import RestService
from sparkkafka.schemas.values import Schema

log = logging.getLogger(__name__)

__all__ = ["RegisteredSchema", "RegistryClient", "connect", "open_registry"]

Item = TypeVar("Item")
Result = TypeVar("Result")
AnySchema = TypeVar("AnySchema", Schema, SchemaResponse)

# The registry's own codes (io.confluent.kafka.schemaregistry.rest.exceptions.Errors).
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
INVALID_SCHEMA: Final = 42201

MAX_THREADS: Final = 8
"""Requests of one `call_concurrently` at the same time."""


# --- the cache ----------------------------------------------------------------------------------

# Each registry and identity has a cache of its own, since users may have different rights.

MAX_CACHES: Final = 32
MAX_TEXT: Final = 64 * 2**20
"""Characters of the texts in one cache, unless it has only one schema."""

ABSENT_S: Final = 10.0
"""How long an id counts as absent: it may be registered at any moment."""
MIN_ABSENT: Final = 16
"""Up to this number, absent ids are requested again: that is quick, and a registry server that lags
behind the others has the schema when Spark retries the task."""
MAX_ABSENT: Final = 20_000


_cache_lock = threading.Lock()
"""Guards all caches: their operations take microseconds."""


class SchemaCache:
    """The schemas by id and GUID that were used last, at most `capacity`: what an id means never
    changes. Ids that do not exist are cached for some seconds. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._schemas: OrderedDict[Hashable, tuple[Schema, int]] = OrderedDict()  # with their sizes
        self._size = 0
        self._absent: OrderedDict[Hashable, float] = OrderedDict()  # with their expiry, ascending

    def get(self, key: Hashable) -> Schema | None:
        """Return the schema of an id; None if it is not in the cache."""
        with _cache_lock:
            entry = self._schemas.get(key)
            if entry is None:
                return None
            self._schemas.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, schema: Schema) -> None:
        """Add a schema, and drop those that were not used for longest, if there are too many."""
        size = text_size(schema)
        with _cache_lock:
            if key in self._schemas:
                self._size -= self._schemas.pop(key)[1]
            self._schemas[key] = schema, size
            self._size += size
            while len(self._schemas) > 1 and (
                len(self._schemas) > self.capacity or self._size > MAX_TEXT
            ):
                self._size -= self._schemas.popitem(last=False)[1][1]

    def is_absent(self, key: Hashable) -> bool:
        """Return whether this id is known to be absent, so that it is not requested again. While
        few ids are absent, return False: see MIN_ABSENT."""
        with _cache_lock:
            now_s = time.monotonic()
            while self._absent and next(iter(self._absent.values())) <= now_s:
                self._absent.popitem(last=False)
            return len(self._absent) > MIN_ABSENT and key in self._absent

    def put_absent(self, key: Hashable) -> None:
        """Note that this id does not exist."""
        with _cache_lock:
            self._absent.pop(key, None)
            self._absent[key] = time.monotonic() + ABSENT_S
            if len(self._absent) > MAX_ABSENT:
                self._absent.popitem(last=False)


def text_size(schema: Schema) -> int:
    """Return the characters of all its texts, each counted once, and of its contract."""
    sizes: dict[int, int] = {}
    waiting = [schema]
    while waiting:
        current = waiting.pop()
        if id(current) not in sizes:
            sizes[id(current)] = len(current.text)
            waiting += [referenced for _, referenced in current.references]
    return sum(sizes.values()) + (schema.contract.size if schema.contract else 0)


_caches: OrderedDict[Hashable, SchemaCache] = OrderedDict()


def _after_fork() -> None:
    """Replace the lock: a thread that held it does not exist in the child process."""
    global _cache_lock
    _cache_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def cache_of(settings: RegistrySettings, capacity: int) -> SchemaCache:
    """Return the cache of this registry and identity; the same for equal settings."""
    with _cache_lock:
        cache = _caches.setdefault(settings, SchemaCache(capacity))
        cache.capacity = capacity
        _caches.move_to_end(settings)
        if len(_caches) > MAX_CACHES:
            _caches.popitem(last=False)
        return cache


# --- the client ----------------------------------------------------------------------------------


class RegistryClient:
    """A registry. Thread-safe, and picklable: the copy resolves references to secrets again.

    Besides what its methods name, each raises KafkaConnectionError or KafkaTimeoutError if no
    server answers, AuthenticationError if TLS or the token endpoint refuses, OptionError for
    options, and RegistryError if the registry refuses or its response is invalid. `id_kind`: the
    kind of its ids (see WriterId).
    """

    id_kind = ""

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._rest = RestService(options)
        self._redactor = self._rest.redactor
        self._cache = cache_of(self._rest.settings, options.cache_capacity)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing to close: no connection outlives its request."""

    @property
    def address(self) -> str:
        """The URLs, for messages."""
        return ", ".join(map(str, self._rest.settings.urls))

    # --- schemas by id and GUID, which never change ----------------------------------------------

    def by_id(
        self, schema_id: int, subject: str | None = None, format: str | None = None
    ) -> Schema:
        """Return the schema with this id (unsigned, as records have it), cached.

        `subject` only selects the registry's context in which the id is looked up; the schema may
        belong to other subjects (see `subject_versions`). `format` is the required one. Raises
        RegistryError with code 40403 if there is no such schema, SchemaError if it has another
        format or its references cannot be resolved.
        """
        what = f"the schema with id {schema_id}"
        if not 0 <= schema_id <= MAX_ID:
            raise absent_schema(f"{what}: no registry has it; is it in Confluent's framing?")
        query = f"?subject={_quoted(subject)}" if subject else ""
        # Contexts of Confluent's registry: `:.name:subject`.
        has_context = subject is not None and subject.startswith(":.")
        context = subject[1:].partition(":")[0] if subject is not None and has_context else ""
        schema = self._request_schema(
            ("id", schema_id, context), what, f"/schemas/ids/{schema_id}{query}"
        )
        if format not in (None, schema.format):
            names = self._subjects_of(schema_id)
            what += f" (it belongs to {self._redactor.list_names(names)})" if names else ""
        return self._with_format(what, schema, format, "read this topic in a query of its own")

    def by_guid(self, guid: bytes, format: str | None = None) -> Schema:
        """Return the schema with this GUID (16 bytes), cached. Raises the errors of `by_id`."""
        name = str(uuid.UUID(bytes=bytes(guid)))
        what = f"the schema with GUID {name}"
        schema = self._request_schema(("guid", name), what, f"/schemas/guids/{name}")
        return self._with_format(what, schema, format)

    def by_content_id(self, content_id: int, format: str | None = None) -> Schema:
        """Return the schema with this content id of Apicurio, cached. Raises the errors of
        `by_id`."""
        raise absent_schema(
            f"content id {content_id}: only Apicurio's own API has content ids, and {self.address} "
            "is another; set schema.registry.url to …/apis/registry/v3"
        )

    # --- subjects ---------------------------------------------------------------------------------

    def latest(self, subject: str, format: str | None = None) -> RegisteredSchema:
        """Return the subject's latest version. Raises RegistryError with code 40401 and similar
        names if there is no such subject, SchemaError if it has another format."""
        return self._request_version(subject, "latest", format)

    def version(self, subject: str, version: int, format: str | None = None) -> RegisteredSchema:
        """Return this version of the subject. Raises the errors of `latest`, and RegistryError with
        code 40402 and the existing versions if there is no such version."""
        return self._request_version(subject, str(version), format)

    def contract(self, subject: str) -> DataContract | None:
        """Return the rules and tags of the subject's latest version; None if it has none, or if
        there is no such subject."""
        what = f"the rules of subject {subject!r}"
        path = f"{_path(subject)}/versions/latest"
        try:
            response = self._rest.request(what, "GET", path)
        except RegistryError as error:
            if error.code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND):
                return None
            raise
        return parse_schema(response, what, self._redactor).contract

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the subject's versions, ascending. Raises the errors of `latest`."""
        what = f"the versions of subject {subject!r}"
        try:
            response = self._rest.request(what, "GET", f"{_path(subject)}/versions")
        except RegistryError as error:
            raise self._error_with_alternatives(error, subject) from None
        return tuple(sorted(parse_versions(response)))

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects that the user may see."""
        response = self._rest.request("all subjects", "GET", "/subjects")
        return parse_subjects(response)

    def subject_versions(self, schema_id: int) -> tuple[tuple[str, int | None], ...]:
        """Return (subject, version) of all uses of an id; () if the registry refuses to say."""
        what = f"the subjects of id {schema_id}"
        try:
            response = self._rest.request(what, "GET", f"/schemas/ids/{schema_id}/versions")
        except RegistryError as error:
            log.debug("the subjects of id %d: %s", schema_id, error)
            return ()
        return parse_subject_versions(response)

    def other_subjects_hint(self, schema_id: int, subject: str) -> str:
        """Return a sentence if the id belongs to other subjects than this one, else "". Raises
        nothing."""
        names = self._subjects_of(schema_id)
        if not names or subject in names:
            return ""
        return (
            f"id {schema_id} belongs to {self._redactor.list_names(names)} in the Schema Registry, "
            f"and not to {subject!r}"
        )

    # --- schemas by their text --------------------------------------------------------------------

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema | None:
        """Return the subject's version with this schema; None if it has none, or if there is no
        such subject."""
        what = f"a schema of subject {subject!r}"
        path = f"{_path(subject)}{'?normalize=true' if normalize else ''}"
        try:
            response = self._rest.request(what, "POST", path, _body(schema, subject))
        except RegistryError as error:
            if error.code in (SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND):
                return None
            raise
        return self._registered_schema(response, what, subject, schema)

    def register(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register the schema, unless the subject has it. Needs the right to write the subject.

        Raises RegistryError: with status 409 and the registry's reasons if it is not compatible
        with the versions before it, with code 42201 if it is not valid.
        """
        what = f"a new schema of subject {subject!r}"
        path = f"{_path(subject)}/versions{'?normalize=true' if normalize else ''}"
        try:
            response = self._rest.request(what, "POST", path, _body(schema, subject))
        except RegistryError as error:
            raise self._registration_error(error, subject, schema) from None
        registered = self._registered_schema(response, what, subject, schema)
        log.info(
            "the Schema Registry has a schema of subject %r with id %d", subject, registered.id
        )
        if registered.version is None or registered.guid is None:
            # Registries before Confluent's 8.0 send only the id.
            known = self.lookup(subject, schema, normalize=normalize)
            if known is not None and known.id == registered.id:
                return known
        return registered

    def incompatibilities(self, subject: str, schema: Schema) -> tuple[str, ...]:
        """Return why the registry would refuse this schema as a new version; () if it would not.

        A subject that does not exist takes any. Raises RegistryError with code 42201 if the schema
        is not valid.
        """
        deadline = self._deadline()
        what = f"whether a schema is compatible with subject {subject!r}"
        body = _body(schema, subject)
        for versions in ("versions", "versions/latest"):
            path = f"/compatibility{_path(subject)}/{versions}?verbose=true"
            try:
                response = self._rest.request(what, "POST", path, body, deadline=deadline)
            except RegistryError as error:
                if error.code in (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND):
                    return ()
                is_older = is_unknown_path(error.status, error.code) or error.status == 405
                if versions == "versions" and is_older:
                    continue  # older registries compare with one version only
                raise
            return parse_incompatibilities(response, self._redactor)
        return ()

    # --- inside -----------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline(self._options.api_timeout_ms)

    def _cached(
        self, key: tuple[str, *tuple[Any, ...]], what: str, fetch: Callable[[], Schema]
    ) -> Schema:
        """Return a schema from the cache, or the one that `fetch` returns. `key` is its key in the
        cache, beginning with the kind of id; `what` names it in errors. Raises what `fetch` raises,
        and RegistryError with status 404 if the schema does not exist."""
        schema = self._cache.get(key)
        if schema is not None:
            return schema
        if self._cache.is_absent(key):
            raise absent_schema(
                f"{what} is not in the Schema Registry ({self.address}), as it answered some "
                "seconds ago"
            )
        try:
            schema = fetch()
        except RegistryError as error:
            absent = self._absent_error(error, what, key[0])
            if absent is None:
                raise
            self._cache.put_absent(key)
            raise absent from None
        self._cache.put(key, schema)
        return schema

    def _absent_error(self, error: RegistryError, what: str, id_kind: str) -> RegistryError | None:
        """Return the error to raise if `error`, of a request by an id of this kind, means that the
        schema does not exist; None if it means something else."""
        has_no_path = is_unknown_path(error.status, error.code)
        if error.status != 404 or (has_no_path and id_kind != "guid"):
            return None
        if has_no_path:  # perhaps: Confluent's 8.0 has GUIDs
            text = f"{what} is not in the Schema Registry, or it cannot look up GUIDs: {error}"
        elif error.code == SCHEMA_NOT_FOUND:
            text = (
                f"{what} is not in the Schema Registry: were the records written with another "
                f"registry, or not in Confluent's framing? ({error})"
            )
        else:
            return error
        return RegistryError(text, status=404, code=error.code)

    def _request_schema(self, key: tuple[str, *tuple[Any, ...]], what: str, path: str) -> Schema:
        """Return a schema from the cache, where it has this key, or from the response to a GET of
        `path`; `what` names it in errors. Raises the errors of `by_id`."""

        def fetch() -> Schema:
            deadline = self._deadline()
            response = self._rest.request(what, "GET", path, deadline=deadline)
            return self._resolve(parse_schema(response, what, self._redactor), what, deadline)

        return self._cached(key, what, fetch)

    def _with_format(
        self,
        what: str,
        schema: AnySchema,
        format: str | None,
        instead: str = "valueSubject (or keySubject) to another schema",
    ) -> AnySchema:
        """Return `schema`. Raises SchemaError if its format is not `format` (None: any is right);
        `instead` tells the user what to set besides the format."""
        if format not in (None, schema.format):
            raise SchemaError(
                f"{what} in {self.address} is {schema.format}, not {format}: set valueFormat (or "
                f"keyFormat) to {schema.format}, or {instead}"
            )
        return schema

    def _registered_schema(
        self, response: Any, what: str, subject: str, schema: Schema
    ) -> RegisteredSchema:
        """Return `schema`, which a request has sent, with the ids and the contract that the
        response gives it."""
        schema_id = parse_id(response, what)
        parsed = parse_schema({"schema": schema.text, **response}, what, self._redactor)
        schema = replace(schema, contract=parsed.contract)
        return RegisteredSchema(subject, schema_id, parsed.version, parsed.guid, schema)

    def _request_version(self, subject: str, version: str, format: str | None) -> RegisteredSchema:
        """Request a version of a subject; `version` may be "latest". Raises RegistryError, which
        names the versions that exist."""
        deadline = self._deadline()
        what = f"subject {subject!r}" + ("" if version == "latest" else f" version {version}")
        try:
            path = f"{_path(subject)}/versions/{version}"
            response = self._rest.request(what, "GET", path, deadline=deadline)
        except RegistryError as error:
            raise self._error_with_alternatives(error, subject, version) from None
        parsed = parse_schema(response, what, self._redactor)
        self._with_format(what, parsed, format)
        schema = self._resolve(parsed, what, deadline)
        return RegisteredSchema(
            subject, parse_id(response, what), parsed.version, parsed.guid, schema
        )

    def _resolve(self, response: SchemaResponse, what: str, deadline: Deadline) -> Schema:
        """Return the schema of a response with its references resolved, and with its own contract:
        the rules of schemas that it refers to are not run."""
        redactor = self._redactor

        def look_up(reference: Reference) -> SchemaResponse:
            """Request the schema that a reference names. Raises SchemaError if it does not
            exist."""
            subject = redactor.redact(reference.subject)
            name = f"subject {subject!r} version {reference.version}, for {what}"
            path = f"{_path(reference.subject)}/versions/{reference.version}?deleted=true"
            try:
                found = self._rest.request(name, "GET", path, deadline=deadline)
                return parse_schema(found, name, redactor)
            except RegistryError as error:
                if error.status != 404:
                    raise
                raise SchemaError(
                    f"{what} refers to {redactor.redact(reference.name)!r}, subject {subject!r} "
                    f"version {reference.version}, which the Schema Registry does not have"
                ) from error

        schema = _ReferenceResolver(what, look_up, redactor).resolve(response)
        return replace(schema, contract=response.contract)

    def _error_with_alternatives(
        self, error: RegistryError, subject: str, version: str = ""
    ) -> RegistryError:
        """Return the same error with the subjects or versions that exist instead."""
        if error.code == SUBJECT_NOT_FOUND:
            text = (
                f"the Schema Registry {self.address} has no subject {subject!r}"
                f"{self._similar_subjects(subject)}. The subject is the topic's name with -value "
                "or -key, unless value.subject.name.strategy, or valueSubject (keySubject), says "
                "another"
            )
        elif error.code == VERSION_NOT_FOUND:
            try:
                versions = ", ".join(map(str, self.versions(subject)[:50]))
            except KafkaError:
                versions = ""
            text = (
                f"subject {subject!r} in the Schema Registry has no version {version}"
                + (f"; it has {versions}" if versions else "")
                + ": set valueSchemaVersion (keySchemaVersion) to one of these, or leave it out "
                "for the latest, or name another subject by valueSubject (keySubject)"
            )
        else:
            return error
        return RegistryError(text, status=error.status, code=error.code)

    def _registration_error(
        self, error: RegistryError, subject: str, schema: Schema
    ) -> RegistryError:
        """Return the error of a registration with its reason, and what to do."""
        if error.status == 409:
            try:
                reasons = self.incompatibilities(subject, schema)
            except KafkaError:  # the first error has a reason too
                reasons = ()
            why = "".join(f"\n  - {reason}" for reason in reasons)
            text = (
                f"the Schema Registry refuses a schema as the next version of subject {subject!r}, "
                f"since it is not compatible with those before it{why or f': {error}'}"
            )
        elif error.code == INVALID_SCHEMA:
            text = (
                f"the Schema Registry rejects the schema of subject {subject!r} as invalid: {error}"
            )
        elif error.status == 403:
            text = (
                f"{error} (auto.register.schemas=true needs the right to write subject {subject!r})"
            )
        else:
            return error
        return RegistryError(text, status=error.status, code=error.code)

    def _similar_subjects(self, subject: str) -> str:
        """Return what an error says about other subjects: near names, how many, or nothing."""
        try:
            names = self.subjects()
        except KafkaError:  # the user may have no right to it, and the first error says enough
            return ""
        if not names:
            return ", and this user can see no subjects"
        # Topics are compared, without -value and -key, which most subjects share.
        topic = _topic(subject)
        suffix = subject[len(topic) :]
        # Not more than so many: the comparison takes long.
        compared = sorted(names[:20_000], key=lambda name: name.endswith(suffix))
        topics = {_topic(name): name for name in compared}
        near = [topics[name] for name in difflib.get_close_matches(topic, topics, n=5, cutoff=0.6)]
        near += [name for name in names if name.startswith(topic) and name not in near]
        return (
            f"; near names are {self._redactor.list_names(near)}"
            if near
            else f", but {counted(len(names), 'other')}"
        )

    def _subjects_of(self, schema_id: int) -> list[str]:
        """Return the names of the subjects that have the schema; none if the request fails."""
        try:
            return sorted({name for name, _ in self.subject_versions(schema_id)})
        except KafkaError:
            return []


def open_registry(options: RegistryOptions | None) -> AbstractContextManager[RegistryClient | None]:
    """Return a client to be used in a `with` block; None in it if the options name no registry."""
    return nullcontext() if options is None else connect(options)


def connect(options: RegistryOptions) -> RegistryClient:
    """Return a client of the registry's API, which its URL shows. Raises OptionError."""
    api = registry_settings(options).api
    if api == CONFLUENT:
        return RegistryClient(options)
    module = import_module(f"{__package__}.{api}")
    client: RegistryClient = getattr(module, f"{api.title()}Client")(options)
    return client


def absent_schema(text: str) -> RegistryError:
    """Return the error for a schema that does not exist."""
    return RegistryError(text, status=404, code=SCHEMA_NOT_FOUND)


def _topic(subject: str) -> str:
    """Return the topic of a subject that is named by the default strategy."""
    return subject.removesuffix("-value").removesuffix("-key")


def _quoted(text: str) -> str:
    """Return a text, percent-encoded, as one segment of the path of a URL."""
    return quote(text, safe="", errors="replace")


def _path(subject: str) -> str:
    """Return the URL's path of a subject."""
    return f"/subjects/{_quoted(subject)}"


def _body(schema: Schema, subject: str) -> dict[str, Any]:
    """Return the body of a request with this schema. Raises SchemaError if it has references."""
    if schema.references:
        raise SchemaError(
            f"a schema that refers to others cannot be looked up or registered for subject "
            f"{subject!r}: register it by the registry's own means, and set use.latest.version=true"
        )
    return request_body(schema)


# --- references -----------------------------------------------------------------------------------


class _ReferenceResolver:
    """Resolves the references of one schema, within limits: a registry may answer in circles.

    `what` names the schema in errors; `look_up` requests a schema that is referred to. Raises
    SchemaError for a circle and for more than a limit, and what `look_up` raises.
    """

    MAX_DEPTH: Final = 32
    MAX_LOOKUPS: Final = 256
    MAX_TREE: Final = 4096
    """Schemas in the tree that a reader walks, where one that is referred to twice counts twice."""
    MAX_TEXT: Final = 16 * 2**20
    """Characters of all texts together."""

    def __init__(
        self, what: str, look_up: Callable[[Reference], SchemaResponse], redactor: Redactor
    ) -> None:
        self._what = what
        self._look_up = look_up
        self._redactor = redactor
        # by subject and version: the resolved schema, and the number of schemas in its tree
        self._resolved: dict[tuple[str, int], tuple[Schema, int]] = {}
        self._text_size = 0

    def resolve(self, response: SchemaResponse) -> Schema:
        """Return the schema with all that it refers to, directly or not."""
        return self._walk(response, ())[0]

    def _walk(
        self, response: SchemaResponse, path: tuple[tuple[str, int], ...]
    ) -> tuple[Schema, int]:
        """Return the schema of a response with its references resolved, and how many schemas that
        are in all. `path`: the subjects and versions that lead to it."""
        self._text_size += len(response.text)
        if self._text_size > self.MAX_TEXT:
            raise SchemaError(
                f"{self._what} and what it refers to are larger than {self.MAX_TEXT} characters"
            )
        references = []
        tree_size = 1
        for reference in response.references:
            schema, size = self._follow(reference, response.format, path)
            references.append((reference.name, schema))
            tree_size += size
        if tree_size > self.MAX_TREE:
            raise SchemaError(f"{self._what} refers to more than {self.MAX_TREE} schemas")
        return Schema(response.format, response.text, tuple(references)), tree_size

    def _follow(
        self, reference: Reference, schema_format: str, path: tuple[tuple[str, int], ...]
    ) -> tuple[Schema, int]:
        """Return the schema of a reference, which must have the same format, and the number of
        schemas in its tree. `path`: the subjects and versions that lead to it. Raises
        SchemaError."""
        key = reference.subject, reference.version
        name = f"subject {self._redactor.redact(reference.subject)!r} version {reference.version}"
        if key in path:
            raise SchemaError(f"{self._what} refers in a circle to {name}")
        if len(path) >= self.MAX_DEPTH:
            raise SchemaError(
                f"{self._what} has references that are more than {self.MAX_DEPTH} deep"
            )
        if key not in self._resolved:
            if len(self._resolved) + len(path) >= self.MAX_LOOKUPS:
                raise SchemaError(f"{self._what} refers to more than {self.MAX_LOOKUPS} schemas")
            response = self._look_up(reference)
            if response.format != schema_format:
                raise SchemaError(
                    f"{self._what} is {schema_format}, and refers to {name}, which is "
                    f"{response.format}"
                )
            self._resolved[key] = self._walk(response, (*path, key))
        return self._resolved[key]


# --- many requests --------------------------------------------------------------------------------


def call_concurrently(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> dict[Item, Result]:
    """Return `function(item)` for each distinct item, called by at most MAX_THREADS threads: one
    after the other, each call would wait for a round trip to the registry.

    Raises what the first failing call raises, and starts no other. The first item is called alone:
    a registry that is down is requested, and logged, once and not by all threads.
    """
    distinct = list(dict.fromkeys(items))
    results = {item: function(item) for item in distinct[:1]}
    others = distinct[1:]
    pool = ThreadPoolExecutor(MAX_THREADS, "registry")
    try:
        return results | dict(zip(others, pool.map(function, others), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class ForeignClient(RegistryClient):
    """Base of the clients of registries with another API than Confluent's: they know schemas by id,
    and neither references nor the rules of data contracts. Methods raise the errors of those of
    RegistryClient."""

    def contract(self, subject: str) -> DataContract | None:
        """Return None: these registries have no data contracts."""
        return None

    def subjects(self) -> tuple[str, ...]:
        """Return (): only error messages would name other subjects."""
        return ()

    def subject_versions(self, schema_id: int) -> tuple[tuple[str, int | None], ...]:
        """Return (): the uses of an id are not looked up."""
        return ()

    def incompatibilities(self, subject: str, schema: Schema) -> tuple[str, ...]:
        """Return (): compatibility is not checked before a registration."""
        return ()

    def _absent_error(self, error: RegistryError, what: str, id_kind: str) -> RegistryError | None:
        """Return the error for a schema that does not exist if the status is 404, else None."""
        return (
            absent_schema(f"{what} is not in {self.address} ({error})")
            if error.status == 404
            else None
        )

    def _no_subject(self, subject: str, error: RegistryError) -> RegistryError:
        """Return `error`, or the error for a schema that does not exist if that is its reason."""
        if error.status != 404:
            return error
        return RegistryError(
            f"{self.address} has no such schema {subject!r} ({error}): set valueSubject (or "
            "keySubject) to its name there",
            status=404,
            code=SUBJECT_NOT_FOUND,
        )
