"""Sends a request to a registry's servers in turn, within a deadline, until one answers.

After a failure that may pass (no connection, no response, status 5xx or 429) the request goes to
the next server immediately, and to each of them again after a wait: the backoff, or the time in its
Retry-After. It also goes to the next server after a response that no registry gives (an HTML page,
a proxy's 404, a redirect). A registry's refusal is final.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import Any, Final, NamedTuple

from sparkkafka import errors
from sparkkafka.client.auth.http_exchange import (
    RETRIABLE_STATUSES,
    HttpRequest,
    HttpResponse,
    Server,
    basic_header,
    describe_body,
    exchange,
)
from sparkkafka.client.auth.oauth import TokenSource, token_source
from sparkkafka.client.deadline import Backoff, Deadline, Retry, has_given_up
from sparkkafka.config import registry
from sparkkafka.config.kinds import REGISTRY_PREFIX, HttpUrl
from sparkkafka.schemas.registry import responses
from sparkkafka.secret import Secret, SecretBytes

MAX_RESPONSE_BYTES: Final = 4 * 2**20

_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"

_last_answered: dict[tuple[HttpUrl, ...], int] = {}
"""The index of the URL that answered last, of several. The next request begins with it."""


def server_of(settings: registry.RegistrySettings, url: HttpUrl, url_option: str) -> Server:
    """Return one of the registry's servers; `url_option` is the option that names it."""
    return Server(
        name=f"the Schema Registry {url}",
        url=url,
        tls=settings.tls,
        max_response_bytes=MAX_RESPONSE_BYTES,
        error_class=errors.RegistryError,
        response_kind="a registry's",
        url_option=url_option,
        truststore_option=f"{REGISTRY_PREFIX}ssl.truststore.location",
        versions_option=f"{REGISTRY_PREFIX}ssl.enabled.protocols",
        prefix=REGISTRY_PREFIX,
    )


class RestService:
    """Sends requests to the registry of these options. Thread-safe. Resolves references to secrets
    when it is constructed.

    Raises OptionError.
    """

    def __init__(self, options: registry.RegistryOptions) -> None:
        self._options = options
        self._retries = registry.RETRIES if options.max_retries is None else options.max_retries
        self.settings = registry.registry_settings(options)
        self.redactor = responses.Redactor(self.settings)
        oauth = self.settings.oauth
        self._tokens: Callable[[Deadline], Secret] | None
        self._tokens = None if oauth is None else token_source(oauth)

    def request(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        deadline: Deadline | None = None,
        headers: Mapping[str, str] | None = None,
        returns: str | None = None,
    ) -> Any:
        """Return the JSON of the response. `what` is the subject of messages: "subject 'a-value'".

        `body` is sent as JSON, a text as it is. `headers` replace those of Confluent's API.
        `returns` is the name of the response's header that is returned; "" returns the text of its
        JSON and its headers. `deadline` is that of the options' api timeout by default.

        Raises RegistryError if the registry refuses or its response is invalid,
        KafkaConnectionError or KafkaTimeoutError if no server answers, AuthenticationError,
        OptionError.
        """
        options = self._options
        deadline = deadline or Deadline(options.api_timeout_ms)
        backoff = Backoff(options.retries_wait_ms, options.retries_max_wait_ms)
        limit = f"{options.name_of('api_timeout_ms')}={options.api_timeout_ms}"
        retry = Retry(deadline, backoff, f"the request to the Schema Registry for {what} ({limit})")
        servers = _Servers(self.settings.urls)
        request = _Request(what, method, path, body, headers or {}, returns)
        while True:
            try:
                return self._request_any_server(request, deadline, servers)
            except errors.KafkaError as error:
                if error.retriable and retry.failures >= self._retries:
                    raise self._final_error(error, what, retry.failures + 1) from error.__cause__
                wait_s = servers.wait_s()
                if error.retriable and wait_s >= deadline.remaining_s() > 0:
                    raise errors.KafkaTimeoutError(
                        f"{error}; its Retry-After demands {wait_s:.0f} s before the next request "
                        f"for {what}, and {limit} allows less: try again later, or allow more time"
                    ) from error
                retry.after(error, at_least_ms=wait_s * 1000)

    def _final_error(self, error: errors.KafkaError, what: str, attempts: int) -> errors.KafkaError:
        """Return the error to raise after the last attempt."""
        name = self._options.name_of
        if isinstance(error, errors.RegistryError):  # a server answers, with a message
            final = errors.RegistryError(
                f"{error}; tried {'once' if attempts == 1 else f'{attempts} times'} "
                f"({name('max_retries')}={self._retries}): it may be overloaded, or "
                "still starting. Try again later, or allow more retries, or longer waits between "
                f"them ({name('retries_max_wait_ms')})",
                status=error.status,
                code=error.code,
            )
            final.retriable = error.retriable
            return final
        if not isinstance(error, errors.KafkaConnectionError):
            return error
        return errors.KafkaConnectionError(
            f"{error}; requested {what} {'once' if attempts == 1 else f'{attempts} times'} "
            f"({name('max_retries')}={self._retries}). Is {name('url')} right, and "
            "does this machine reach it?"
        )

    def _request_any_server(self, request: _Request, deadline: Deadline, servers: _Servers) -> Any:
        """Request each available server until one answers, and return what was requested. Raises
        the error of the one that refuses, or of all."""
        urls = self.settings.urls
        order = servers.available()
        for number, url in enumerate(order):
            # A server that never answers must leave time for the others.
            time_share = deadline.sooner(deadline.remaining_s() * 1000 / (len(order) - number))
            response = None
            try:
                response = self._request_server(url, request, time_share)
                parsed = self._parse_response(url, request, response)
            except errors.KafkaError as error:
                # A registry sends an error code. Without one, the server may be another one (also
                # if what it sent is not HTTP, or too long).
                is_no_registry = isinstance(error, errors.RegistryError) and (
                    response is None or responses.parse_error(response.body)[0] is None
                )
                if error.retriable and not has_given_up(error):
                    wait_s = 0.0 if response is None else _retry_after_s(response.headers)
                elif isinstance(error, errors.AuthenticationError) or is_no_registry:
                    wait_s = math.inf  # but another server may be a registry that is trusted
                else:
                    raise
                servers.failed(url, error, wait_s)
                if deadline.expired:
                    break
            else:
                if len(urls) > 1:
                    _last_answered[urls] = urls.index(url)
                return parsed
        raise servers.failure()

    def _request_server(self, url: HttpUrl, request: _Request, deadline: Deadline) -> HttpResponse:
        """Return a server's response: with a new token if it refuses a token from an issuer."""
        response = self._send(url, request, deadline)
        if response.status == 401 and isinstance(self._tokens, TokenSource):
            # The token may have been revoked before it expired: get a new one, once.
            self._tokens.forget(self._tokens(deadline))
            response = self._send(url, request, deadline)
        return response

    def _send(self, url: HttpUrl, request: _Request, deadline: Deadline) -> HttpResponse:
        """Send one request to a server and return its response."""
        server = server_of(self.settings, url, self._options.name_of("url"))
        headers: dict[str, str | Secret] = {
            "Accept": f"{_MEDIA_TYPE}, application/json",
            "User-Agent": "sparkkafka",
            "Connection": "close",
            **dict(self.settings.headers),
        }
        authorization = self._authorization(deadline)
        if authorization is not None:
            self.redactor.remember(authorization)
            headers["Authorization"] = authorization
        content = None
        if request.body is not None:
            headers["Content-Type"] = _MEDIA_TYPE
            text = request.body if isinstance(request.body, str) else json.dumps(request.body)
            content = SecretBytes(text.encode())
        headers.update(request.headers)
        encoded = HttpRequest(request.method, Secret(url.path + request.path), headers, content)
        deadline = deadline.sooner(self._options.request_timeout_ms)
        limit_ms = deadline.remaining_s() * 1000
        return exchange(server, encoded, deadline, connect_ms=limit_ms, response_ms=limit_ms)

    def _authorization(self, deadline: Deadline) -> Secret | None:
        """Return the value of the header Authorization; None without credentials. Raises
        OptionError for credentials that no header can have."""
        options = self._options
        if self.settings.user_info:
            basic = basic_header(self.settings.user_info.reveal())
            if basic is None:
                raise errors.OptionError(
                    f"{options.name_of('user_info')} has a character that UTF-8 cannot encode"
                )
            return basic
        if self._tokens is None:
            return None
        bearer = _bearer_header(self._tokens(deadline))
        if bearer is None:
            name = "bearer_token" if options.bearer_token else "issuer_url"
            raise errors.OptionError(
                f"the token of {options.name_of(name)} is empty, or has a character that no token "
                "may have"
            )
        return bearer

    # --- responses -----------------------------------------------------------------------------

    def _parse_response(self, url: HttpUrl, request: _Request, response: HttpResponse) -> Any:
        """Return the part of the response that `returns` of `request` names: its JSON, a header, or
        its text and headers. Raises RegistryError if the server has refused, or for a response of
        another form."""
        what, status, body = request.what, response.status, response.body
        here = f"the Schema Registry {url}"
        if 200 <= status < 300 and request.returns:
            return response.headers.get(request.returns, "")
        if 200 <= status < 300:
            try:
                parsed = responses.parse_json(body)
                if request.returns is None:
                    return parsed
                return body.reveal().decode("utf-8-sig"), response.headers
            except ValueError:
                raise errors.RegistryError(
                    f"{here} answers the request for {what} with {describe_body(body, 'JSON')}, "
                    f"not JSON: is {self._options.name_of('url')} its own address, with its path?",
                    status=status,
                ) from None
        if 300 <= status < 400:
            raise errors.RegistryError(
                f"{here} redirects (status {status}) to "
                f"{self.redactor.redact(response.redirect_host()) or 'elsewhere'}, where no "
                f"request is sent unasked: set {self._options.name_of('url')} to the "
                f"registry itself",
                status=status,
            )
        code, message = self._parse_message(body)
        number = f" (error {code})" if code and code != status else ""
        error = errors.RegistryError(
            f"{here} answers the request for {what} with status {status}{number}{message}"
            f"{self._advice_for(status, code)}",
            status=status,
            code=code,
        )
        error.retriable = status in RETRIABLE_STATUSES
        raise error

    def _parse_message(self, body: SecretBytes) -> tuple[int | None, str]:
        """Return the registry's code and its message, as they follow a status in an error."""
        code, message = responses.parse_error(body)
        if message:
            return code, f": {self.redactor.redact(message, 2000)}"
        return (
            code,
            f" with {describe_body(body, 'JSON')}" if body and code is None else "",
        )

    def _advice_for(self, status: int, code: int | None) -> str:
        """Return what the message of an error with this status adds: what the user should check."""
        options = self._options
        name = options.name_of
        if status == 401:
            if options.user_info:
                return f"; check {name('user_info')}"
            if self._tokens is not None:
                return f"; check {name('bearer_token' if options.bearer_token else 'client_id')}"
            return (
                f"; no credentials are set: set {name('user_info')}, or {name('bearer_token')}, or "
                f"{REGISTRY_PREFIX}bearer.auth.… for an issuer of tokens"
            )
        if status == 403:
            return "; this user has no right to it: ask the registry's administrator"
        if responses.is_unknown_path(status, code):
            return f"; does {name('url')} lack a path, or have one that is wrong?"
        if status == 407:
            return "; that is a proxy's response, and proxies are not used"
        return ""


class _Request(NamedTuple):
    """A request to any of the servers; see `RestService.request`."""

    what: str
    method: str
    path: str
    body: Any
    headers: Mapping[str, str]
    returns: str | None


class _Servers:
    """The servers of one request: the last error of each, and when it may be tried again.

    A server's Retry-After counts for that server: in the meantime the request goes to the others.
    """

    def __init__(self, urls: tuple[HttpUrl, ...]) -> None:
        first = _last_answered.get(urls, 0)
        self._urls = (*urls[first:], *urls[:first])
        self._failures: dict[HttpUrl, errors.KafkaError] = {}
        self._until_s: dict[HttpUrl, float] = dict.fromkeys(self._urls, 0.0)

    def available(self) -> list[HttpUrl]:
        """Return the servers whose wait is over, or else the one whose wait ends first."""
        now_s = max(time.monotonic(), min(self._until_s.values()))  # or when the first wait ends
        return [url for url, until_s in self._until_s.items() if until_s <= now_s]

    def failed(self, url: HttpUrl, error: errors.KafkaError, wait_s: float) -> None:
        """Note that a server failed. `wait_s`: until it may be tried again; infinite if its failure
        is final."""
        self._failures[url] = error
        self._until_s[url] = time.monotonic() + wait_s

    def wait_s(self) -> float:
        """Return the seconds until a server may be tried again."""
        return max(0.0, min(self._until_s.values()) - time.monotonic())

    def failure(self) -> errors.KafkaError:
        """Return the error to raise once all available servers have failed."""
        failures = list(self._failures.values())
        if len(failures) == 1 or not any(error.retriable for error in failures):
            return failures[0]
        return errors.KafkaConnectionError(
            f"no Schema Registry of {len(self._urls)} answers: {'; '.join(map(str, failures))}"
        )


_MAX_WAIT_S: Final = 1e8


def _retry_after_s(headers: HTTPMessage) -> float:
    """Return the wait that the header Retry-After demands, in seconds or as a date (RFC 9110,
    10.2.3); 0 without one. A date counts from the server's own clock if the response has a Date."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", text):
        return min(float(text), _MAX_WAIT_S)
    try:
        at_s = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    try:
        now_s = parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        now_s = time.time()
    return min(max(0.0, at_s - now_s), _MAX_WAIT_S)


def _bearer_header(token: Secret) -> Secret | None:
    """Return the value of the header Authorization; None for a token that would break the
    header."""
    if not re.fullmatch(r"[\x21-\x7e]+", token.reveal().strip()):
        return None
    return Secret(f"Bearer {token.reveal().strip()}")
