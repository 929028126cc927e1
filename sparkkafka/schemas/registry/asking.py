"""Asks a registry's servers in turn, within a deadline, until one answers.

After a failure that may pass (no connection, no answer, status 5xx or 429) the next server is asked
immediately, and each of them again after a wait: the backoff, or what its Retry-After says. The
next server is also asked after an answer that no registry gives (an HTML page, a proxy's 404, a
redirect). What a registry refuses is final.
"""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import Any, Final
from urllib.parse import urlsplit

from sparkkafka.client.auth.http_exchange import (
    TRY_AGAIN,
    Answer,
    Request,
    Server,
    exchange,
)
from sparkkafka.client.auth.oauth import TokenSource, token_source
from sparkkafka.client.deadline import Backoff, Deadline, Retry
from sparkkafka.config.format_rows import REGISTRY_PREFIX, RegistryUrl
from sparkkafka.config.registry import (
    RETRIES,
    RegistryOptions,
    RegistrySettings,
    registry_settings,
)
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    RegistryError,
)
from sparkkafka.schemas.registry.answers import (
    is_no_such_page,
    json_of,
    kind_of,
    refusal_of,
)
from sparkkafka.schemas.registry.words import Words
from sparkkafka.secret import Secret, SecretBytes

MOST_ANSWER_BYTES: Final = 4 * 2**20

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_CONTENT = "application/vnd.schemaregistry.v1+json"
_TOKEN = re.compile(r"[\x21-\x7e]+")

_first: dict[tuple[RegistryUrl, ...], int] = {}
"""Of several URLs: the one that answered last. The next task need not find out again."""


def server_of(settings: RegistrySettings, url: RegistryUrl, address: str) -> Server:
    """One of the registry's servers; `address` is the option that names it."""
    return Server(
        f"the Schema Registry {url}",
        url.secure,
        url.host,
        url.port,
        settings.tls,
        MOST_ANSWER_BYTES,
        RegistryError,
        "a registry's",
        address,
        f"{REGISTRY_PREFIX}ssl.truststore.location",
        f"{REGISTRY_PREFIX}ssl.enabled.protocols",
        REGISTRY_PREFIX,
    )


class Asker:
    """Asks the registry of these options. Thread-safe. Looks references up when it is made.

    Raises OptionError.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._retries = RETRIES if options.max_retries is None else options.max_retries
        self.settings = registry_settings(options)
        self.words = Words(self.settings)
        oauth = self.settings.oauth
        self._tokens: Callable[[Deadline], Secret] | None
        self._tokens = None if oauth is None else token_source(oauth)

    def ask(self, what: str, method: str, path: str, deadline: Deadline, body: Any = None) -> Any:
        """The JSON that is answered. `what` is asked about, for messages: "subject 'a-value'".

        Raises RegistryError if it refuses or answers oddly, KafkaConnectionError or
        KafkaTimeoutError if it cannot be asked, AuthenticationError, OptionError.
        """
        options = self._options
        backoff = Backoff(options.retries_wait_ms, options.retries_max_wait_ms)
        limit = f"{options.name_of('api_timeout_ms')}={options.api_timeout_ms}"
        retry = Retry(deadline, backoff, f"the Schema Registry, asked for {what} ({limit})")
        servers = _Servers(self.settings.urls)
        while True:
            try:
                return self._anywhere(what, method, path, deadline, body, servers)
            except KafkaError as error:
                if error.retriable and retry.failures >= self._retries:
                    raise self._given_up(error, what, retry.failures + 1) from error.__cause__
                wait_s = servers.wait_s()
                if error.retriable and wait_s >= deadline.remaining_s() > 0:
                    raise KafkaTimeoutError(
                        f"{error}; it wants to be asked for {what} again in {wait_s:.0f} s "
                        f"(Retry-After), which is later than {limit} allows: try again then, or "
                        "allow more time"
                    ) from error
                retry.after(error, at_least_ms=wait_s * 1000)

    def _given_up(self, error: KafkaError, what: str, times: int) -> KafkaError:
        """What to raise after the last attempt."""
        name = self._options.name_of
        if isinstance(error, RegistryError):  # it answers, and its words are there
            given_up = RegistryError(
                f"{error}; asked {'once' if times == 1 else f'{times} times'} "
                f"({name('max_retries')}={self._retries}): it may be overloaded, or "
                "still starting. Try again later, or allow more retries, or longer waits between "
                f"them ({name('retries_max_wait_ms')})",
                status=error.status,
                code=error.code,
            )
            given_up.retriable = error.retriable
            return given_up
        if not isinstance(error, KafkaConnectionError):
            return error
        return KafkaConnectionError(
            f"{error}; asked for {what} {'once' if times == 1 else f'{times} times'} "
            f"({name('max_retries')}={self._retries}). Is {name('url')} right, and "
            "does this machine reach it?"
        )

    def _anywhere(
        self,
        what: str,
        method: str,
        path: str,
        deadline: Deadline,
        body: Any,
        servers: _Servers,
    ) -> Any:
        urls = self.settings.urls
        order = servers.askable()
        for number, url in enumerate(order):
            # One that never answers leaves the others their time.
            share = deadline.sooner(deadline.remaining_s() * 1000 / (len(order) - number))
            answer = None
            try:
                answer = self._authorized(url, method, path, share, body)
                found = self._read(url, what, answer)
            except KafkaError as error:
                if error.retriable:
                    wait_s = 0.0 if answer is None else _retry_after_s(answer.headers)
                # What TLS refuses of one server, another may have right.
                elif isinstance(error, AuthenticationError) or (
                    isinstance(error, RegistryError) and not _is_registrys(answer)
                ):
                    wait_s = math.inf
                else:
                    raise
                servers.failed(url, error, wait_s)
                if deadline.expired:
                    break
            else:
                if len(urls) > 1:
                    _first[urls] = urls.index(url)
                return found
        raise servers.failure()

    def _authorized(
        self, url: RegistryUrl, method: str, path: str, deadline: Deadline, body: Any
    ) -> Answer:
        answer = self._once(url, method, path, deadline, body)
        if answer.status == 401 and isinstance(self._tokens, TokenSource):
            # Withdrawn before its time, perhaps: a new one, once.
            self._tokens.forget(self._tokens(deadline))
            answer = self._once(url, method, path, deadline, body)
        return answer

    def _once(
        self, url: RegistryUrl, method: str, path: str, deadline: Deadline, body: Any
    ) -> Answer:
        server = server_of(self.settings, url, self._options.name_of("url"))
        headers: dict[str, str | Secret] = {
            "Accept": _ACCEPT,
            "User-Agent": "sparkkafka",
            "Connection": "close",
            **dict(self.settings.headers),
        }
        authorization = self._authorization(deadline)
        if authorization is not None:
            self.words.sends(authorization)
            headers["Authorization"] = authorization
        content = None
        if body is not None:
            headers["Content-Type"] = _CONTENT
            content = SecretBytes(json.dumps(body).encode())
        request = Request(method, Secret(url.path + path), headers, content)
        limit = deadline.sooner(self._options.request_timeout_ms)
        limit_ms = limit.remaining_s() * 1000
        return exchange(server, request, limit, connect_ms=limit_ms, answer_ms=limit_ms)

    def _authorization(self, deadline: Deadline) -> Secret | None:
        options = self._options
        if self.settings.user_info:
            basic = _basic(self.settings.user_info)
            if basic is None:
                raise OptionError(
                    f"{options.name_of('user_info')} has a character that UTF-8 cannot write"
                )
            return basic
        if self._tokens is None:
            return None
        bearer = _bearer(self._tokens(deadline))
        if bearer is None:
            name = "bearer_token" if options.bearer_token else "issuer_url"
            raise OptionError(
                f"the token of {options.name_of(name)} is empty, or has a character that no token "
                "may have"
            )
        return bearer

    # --- answers -----------------------------------------------------------------------------

    def _read(self, url: RegistryUrl, what: str, answer: Answer) -> Any:
        status, body = answer.status, answer.body
        here = f"the Schema Registry {url}"
        if 200 <= status < 300:
            try:
                return json_of(body)
            except ValueError:
                raise RegistryError(
                    f"{here} answers with {kind_of(body)}, not JSON, when it is asked for {what}: "
                    f"is {self._options.name_of('url')} its own address, with its path?",
                    status=status,
                ) from None
        if 300 <= status < 400:
            raise RegistryError(
                f"{here} redirects (status {status}) to "
                f"{self._place(answer.headers.get('location', ''))}, where no request is "
                f"sent unasked: set {self._options.name_of('url')} to the registry itself",
                status=status,
            )
        code, said = self._said(body)
        number = f" (error {code})" if code and code != status else ""
        error = RegistryError(
            f"{here}, asked for {what}: status {status}{number}{said}{self._advice(status, code)}",
            status=status,
            code=code,
        )
        error.retriable = status in TRY_AGAIN
        raise error

    def _said(self, body: SecretBytes) -> tuple[int | None, str]:
        """The registry's code, and its words to stand behind a status."""
        code, words = refusal_of(body)
        if words:
            return code, f": {self.words.shown(words, 2000)}"
        return code, f" with {kind_of(body)}" if body and code is None else ""

    def _place(self, location: str) -> str:
        """Scheme and host of a redirect: the rest may hold anything."""
        try:
            parts = urlsplit(location[:2000])
            host = parts.netloc.rpartition("@")[2]
            if location.rfind("@") > location.find(parts.netloc) + len(parts.netloc):
                host = ""  # a password with a slash ends what looks like the host
        except ValueError:
            host = ""
        return self.words.shown(f"{parts.scheme}://{host}") if host else "elsewhere"

    def _advice(self, status: int, code: int | None) -> str:
        options = self._options
        name = options.name_of
        if status == 401:
            if options.user_info:
                return f"; compare {name('user_info')} with what the registry knows"
            if self._tokens is not None:
                given = "bearer_token" if options.bearer_token else "client_id"
                return f"; compare {name(given)} with what the registry knows"
            return (
                f"; no user was named: set {name('user_info')}, or {name('bearer_token')}, or "
                f"{REGISTRY_PREFIX}bearer.auth.… for an issuer of tokens"
            )
        if status == 403:
            return "; this user has no right to it: ask the registry's administrator"
        if is_no_such_page(status, code):
            return f"; does {name('url')} lack a path, or have one that is wrong?"
        if status == 407:
            return "; that is a proxy's answer, and proxies are not used"
        return ""


class _Servers:
    """The servers of one question: how each has failed, and when it may be asked again.

    A wait that a server asks for counts for that server: the others are asked in the meantime.
    """

    def __init__(self, urls: tuple[RegistryUrl, ...]) -> None:
        first = _first.get(urls, 0)
        self._urls = (*urls[first:], *urls[:first])
        self._failures: dict[RegistryUrl, KafkaError] = {}
        self._until_s: dict[RegistryUrl, float] = dict.fromkeys(self._urls, 0.0)

    def askable(self) -> list[RegistryUrl]:
        """Those that may be asked now, at least the one that comes first."""
        limit_s = max(time.monotonic(), min(self._until_s.values()))
        return [url for url, until_s in self._until_s.items() if until_s <= limit_s]

    def failed(self, url: RegistryUrl, error: KafkaError, wait_s: float) -> None:
        """`wait_s`: until it may be asked again; infinite if its failure is final."""
        self._failures[url] = error
        self._until_s[url] = time.monotonic() + wait_s

    def wait_s(self) -> float:
        """How long until the first of them may be asked again."""
        return max(0.0, min(self._until_s.values()) - time.monotonic())

    def failure(self) -> KafkaError:
        """What to raise once all that may be asked have failed."""
        failures = list(self._failures.values())
        if len(failures) == 1 or not any(error.retriable for error in failures):
            return failures[0]
        return KafkaConnectionError(
            f"no Schema Registry of {len(self._urls)} answers: {'; '.join(map(str, failures))}"
        )


_MAX_WAIT_S: Final = 1e8


def _retry_after_s(headers: HTTPMessage) -> float:
    """Of the header Retry-After, which has seconds or a date (RFC 9110, 10.2.3); 0 if there is
    none. A date counts from the server's own clock, if it tells its time."""
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


def _is_registrys(answer: Answer | None) -> bool:
    """Whether a refusal is a registry's own, which has an error's code. None: there was no answer
    in HTTP, or one that was too long."""
    return answer is not None and refusal_of(answer.body)[0] is not None


def _basic(user_info: Secret) -> Secret | None:
    try:
        return Secret(f"Basic {base64.b64encode(user_info.reveal().encode()).decode()}")
    except UnicodeEncodeError:  # which quotes the text
        return None


def _bearer(token: Secret) -> Secret | None:
    """A header's value, in which no line may end."""
    if not _TOKEN.fullmatch(token.reveal().strip()):
        return None
    return Secret(f"Bearer {token.reveal().strip()}")
