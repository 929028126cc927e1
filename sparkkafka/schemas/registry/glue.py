"""A client of AWS Glue's Schema Registry, by boto3: glue://REGION/REGISTRY.

A subject is a schema of that registry. Schemas have GUIDs (schema version ids) and no other ids.
Credentials come from where the AWS SDK finds them.

Source: the service's API reference, "Schema registry API".
"""

from __future__ import annotations

import importlib
import time
import uuid
from functools import lru_cache
from typing import Any

from sparkkafka import errors
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RETRIES, RegistryOptions, registry_settings
from sparkkafka.schemas.registry.client import ForeignClient, absent_schema, cache_of
from sparkkafka.schemas.registry.responses import Redactor, RegisteredSchema
from sparkkafka.schemas.registry.rest_service import MAX_RESPONSE_BYTES
from sparkkafka.schemas.values import Schema

_FORMATS = {"AVRO": AVRO, "JSON": JSON, "PROTOBUF": PROTOBUF}
_TYPES = {name: kind for kind, name in _FORMATS.items()}

_RETRIED = frozenset(
    ("ThrottlingException", "InternalServiceException", "ServiceUnavailableException")
)


class GlueClient(ForeignClient):
    """AWS Glue's Schema Registry."""

    id_kind = "GUID"

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        settings = registry_settings(options)
        if settings.glue is None:
            raise errors.OptionError(f"{options.name_of('url')} is not glue://region/registry")
        self._url = settings.glue
        self._redactor = Redactor(settings)
        self._cache = cache_of(settings, options.cache_capacity)

    @property
    def address(self) -> str:
        """The URL glue://REGION/REGISTRY, for messages."""
        return str(self._url)

    def by_id(
        self, schema_id: int, subject: str | None = None, format: str | None = None
    ) -> Schema:
        """Raise RegistryError: Glue has no ids but schema version ids."""
        raise absent_schema(f"{self.address} has no schemas with numbers as ids")

    def by_guid(self, guid: bytes, format: str | None = None) -> Schema:
        """Return the schema with this schema version id, cached. Raises RegistryError, with status
        404 if there is none."""
        name = str(uuid.UUID(bytes=guid))
        what = f"schema version {name}"

        def fetch() -> Schema:
            """Request the schema version with this GUID. Raises RegistryError if the response has
            another one."""
            deadline = self._deadline()
            response = self._call(what, "get_schema_version", deadline, SchemaVersionId=name)
            registered = self._registered("", response, what)
            if registered.guid != guid:
                raise errors.RegistryError(
                    f"{self.address} answers the request for {what} with another one"
                )
            return registered.schema

        return self._with_format(what, self._cached(("guid", name), what, fetch), format)

    def latest(self, subject: str, format: str | None = None) -> RegisteredSchema:
        """Return the schema's latest version. Raises RegistryError with code 40401 without one."""
        return self._version(subject, {"LatestVersion": True}, format)

    def version(self, subject: str, version: int, format: str | None = None) -> RegisteredSchema:
        """Return this version of the schema. Raises RegistryError with code 40401 without one."""
        return self._version(subject, {"VersionNumber": version}, format)

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return the schema's versions, ascending."""
        deadline, versions, token = self._deadline(), set(), ""
        while not deadline.expired:
            more = {"NextToken": token} if token else {}
            response = self._call_subject(
                subject, "list_schema_versions", deadline, SchemaId=self._id(subject), **more
            )
            numbers = {entry.get("VersionNumber") for entry in response.get("Schemas") or ()}
            if not all(type(number) is int for number in numbers):  # a bool is an int, too
                raise errors.RegistryError(
                    f"{self.address} lists versions of {subject!r} without numbers"
                )
            versions |= numbers
            token = response.get("NextToken", "")
            if not token:
                return tuple(sorted(versions))
        raise errors.KafkaTimeoutError(
            f"{self.address} lists versions of {subject!r} without an end, within {deadline.text}"
        )

    def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema | None:
        """Return the schema's version with this text, or None."""
        what = f"a version of schema {subject!r}"
        try:
            response = self._call(
                what,
                "get_schema_by_definition",
                self._deadline(),
                SchemaId=self._id(subject),
                SchemaDefinition=schema.text,
            )
        except errors.RegistryError as error:
            if error.status == 404:
                return None
            raise
        if response.get("Status") != "AVAILABLE":
            return None
        return self._registered(subject, {**response, "SchemaDefinition": schema.text}, what)

    def register(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register the text as the schema's next version, unless it has it; create the schema if
        the registry does not have it. Raises RegistryError with status 409 if the text is not
        compatible."""
        deadline = self._deadline()
        what = f"a new version of schema {subject!r}"
        definition = {"SchemaDefinition": schema.text}
        try:
            response = self._call(
                what, "register_schema_version", deadline, SchemaId=self._id(subject), **definition
            )
        except errors.RegistryError as error:
            if error.status != 404:
                raise
            response = self._call(
                what,
                "create_schema",
                deadline,
                RegistryId={"RegistryName": self._url.registry},
                SchemaName=subject,
                DataFormat=_TYPES[schema.format],
                Compatibility="BACKWARD",
                **definition,
            )
        name = response.get("SchemaVersionId", "")
        backoff = Backoff(initial_ms=200, maximum_ms=1_000)
        retry = Retry(deadline, backoff, f"the check of {what} by AWS Glue")
        while True:  # Glue checks the compatibility of a version after it has answered
            response = self._call(what, "get_schema_version", deadline, SchemaVersionId=name)
            if response.get("Status") == "AVAILABLE":
                return self._registered(subject, response, what)
            if response.get("Status") != "PENDING":
                status = self._redactor.redact(str(response.get("Status")))
                raise errors.RegistryError(
                    f"{self.address} refuses {what} (status {status}): it is not "
                    "compatible with the versions before it. Compare it with the latest version, "
                    "or write with use.latest.version=true",
                    status=409,
                )
            pending = errors.RegistryError(f"{what} is still PENDING in {self.address}")
            pending.retriable = True
            retry.after(pending)

    # --- inside -----------------------------------------------------------------------------------

    def _id(self, subject: str) -> dict[str, str]:
        """Return Glue's name of a schema in this registry, an argument of its requests."""
        return {"RegistryName": self._url.registry, "SchemaName": subject}

    def _version(
        self, subject: str, number: dict[str, Any], format: str | None
    ) -> RegisteredSchema:
        """Request a version of a schema: `number` is Glue's argument SchemaVersionNumber. Raises
        SchemaError if it has another format, and the errors of `latest`."""
        response = self._call_subject(
            subject,
            "get_schema_version",
            self._deadline(),
            SchemaId=self._id(subject),
            SchemaVersionNumber=number,
        )
        what = f"schema {subject!r}"
        registered = self._registered(subject, response, what)
        self._with_format(what, registered.schema, format)
        return registered

    def _registered(self, subject: str, response: dict[str, Any], what: str) -> RegisteredSchema:
        """Return the schema and its ids in a response. Raises RegistryError if a value is
        missing."""
        try:
            guid = uuid.UUID(str(response["SchemaVersionId"])).bytes
            schema = Schema(_FORMATS[response["DataFormat"]], str(response["SchemaDefinition"]))
        except (KeyError, ValueError, TypeError) as error:
            raise errors.RegistryError(
                f"{self.address} answers the request for {what} without "
                f"{self._redactor.redact(str(error))}"
            ) from None
        version = response.get("VersionNumber")
        return RegisteredSchema(
            subject, None, version if isinstance(version, int) else None, guid, schema
        )

    def _call_subject(
        self, subject: str, method: str, deadline: Deadline, **arguments: Any
    ) -> dict[str, Any]:
        """Return Glue's response about a schema; a failure that may pass is retried. A schema that
        does not exist is a RegistryError with code 40401."""
        try:
            return self._call(f"schema {subject!r}", method, deadline, **arguments)
        except errors.RegistryError as error:
            raise self._no_subject(subject, error) from None

    def _call(self, what: str, method: str, deadline: Deadline, **arguments: Any) -> dict[str, Any]:
        """Return Glue's response; a failure that may pass is retried."""
        options = self._options
        retries = RETRIES if options.max_retries is None else options.max_retries
        backoff = Backoff(options.retries_wait_ms, options.retries_max_wait_ms)
        limit = f"{options.name_of('api_timeout_ms')}={options.api_timeout_ms}"
        retry = Retry(deadline, backoff, f"the request to {self.address} for {what} ({limit})")
        while True:
            try:
                return self._call_once(what, method, arguments)
            except errors.KafkaError as error:
                if not error.retriable or retry.failures >= retries:
                    raise
                retry.after(error)

    def _call_once(self, what: str, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Send one request by boto3 and return the response. Raises RegistryError,
        KafkaConnectionError, AuthenticationError."""
        timeout_s = self._options.request_timeout_ms / 1000
        needs = f"{self._options.name_of('url')}={self.address} needs boto3 on each machine"
        with errors.needs_extra(needs, "glue", error=errors.OptionError):
            client = boto3_client(self._url.region, timeout_s)
        exceptions = importlib.import_module("botocore.exceptions")
        try:
            response: dict[str, Any] = getattr(client, method)(**arguments)
            return response
        except exceptions.ClientError as error:
            details = error.response.get("Error", {})
            code = self._redactor.redact(str(details.get("Code")))
            message = self._redactor.redact(str(details.get("Message")))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            hint = ""
            if code in ("AccessDeniedException", "UnrecognizedClientException"):
                hint = (
                    "; the AWS identity of this machine needs the right "
                    f"glue:{method.title().replace('_', '')}"
                )
            refused = errors.RegistryError(
                f"{self.address} refuses the request for {what}: {code}: {message}{hint}",
                status=404 if code == "EntityNotFoundException" else status,
            )
            refused.retriable = code in _RETRIED
            raise refused from None
        except (exceptions.NoCredentialsError, exceptions.CredentialRetrievalError) as error:
            raise errors.AuthenticationError(
                f"{self.address}: the AWS SDK has no credentials ({error}): set AWS_PROFILE, or "
                "give the driver and the executors a role"
            ) from None
        except exceptions.BotoCoreError as error:
            raise errors.KafkaConnectionError(
                f"no response of {self.address} to the request for {what}: "
                f"{self._redactor.redact(str(error))}"
            ) from None
        except _ResponseTooLongError as error:
            raise errors.RegistryError(
                f"{self.address} answers the request for {what} with {error}"
            ) from None
        except Exception as error:  # the SDK's parser raises anything for JSON of another shape
            raise errors.RegistryError(
                f"{self.address} answers the request for {what} with something that is not a "
                f"response of AWS Glue ({type(error).__name__}): is a proxy in between?"
            ) from None


@lru_cache(8)
def boto3_client(region: str, timeout_s: float) -> Any:
    """Return boto3's client of Glue, which takes a second to be made and is thread-safe."""
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1}
    )
    session = importlib.import_module("boto3").session.Session()
    client = session.client("glue", region_name=region, config=config)
    send = client._endpoint.http_session.send

    def send_limited(request: Any, **_: Any) -> Any:
        """Send a request in place of the SDK, which reads responses of any length."""
        request.stream_output = True
        response = send(request)
        until_s = time.monotonic() + timeout_s
        content = bytearray()
        # Read only what has arrived: a service that sends byte by byte must not exceed the limit.
        while part := response.raw.read1(1 << 16):
            content += part
            if len(content) > MAX_RESPONSE_BYTES:
                response.raw.close()
                raise _ResponseTooLongError(f"more than {MAX_RESPONSE_BYTES} bytes")
            if time.monotonic() > until_s:
                response.raw.close()
                raise _ResponseTooLongError(
                    f"{len(content)} bytes that take more than {timeout_s:g} s"
                )
        response._content = bytes(content)
        return response

    client.meta.events.register("before-send.glue", send_limited)
    return client


class _ResponseTooLongError(Exception):
    """A response of the service is too long, or takes too long."""
