"""Texts of a registry's answers for errors: without our secrets, in one line, and short.

A registry, or a proxy in front of it, may repeat what it was sent. So each text of an answer that
becomes part of an error or a reason passes `Redactor`.
"""

from __future__ import annotations

import base64
import json
from typing import Final
from urllib.parse import quote, quote_plus

from sparkkafka.config.registry import RegistrySettings
from sparkkafka.secret import Secret

MAX_CREDENTIALS: Final = 4
"""Values of the Authorization header that are remembered, since tokens are renewed."""


def printable(text: str, max_chars: int = 300) -> str:
    """Return the text without control characters, in one line, and cut to `max_chars`."""
    chars = (char if char.isprintable() else " " for char in text[: 4 * max_chars])
    text = " ".join("".join(chars).split())
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


class Redactor:
    """Removes the secrets of one registry's settings from its texts. Thread-safe."""

    def __init__(self, settings: RegistrySettings) -> None:
        user_info = settings.user_info.reveal().partition(":")
        secrets = [settings.user_info, Secret(user_info[2])]
        del user_info
        if settings.oauth is not None:
            secrets += [settings.oauth.token, settings.oauth.client_secret]
        self._secrets = _forms(secrets)
        self._credentials: tuple[Secret, ...] = ()

    def remember(self, authorization: Secret) -> None:
        """Also remove the credentials of this Authorization header, which a request has."""
        secret = Secret(authorization.reveal().partition(" ")[2])
        if secret not in self._credentials:
            self._credentials = (*self._credentials, secret)[-MAX_CREDENTIALS:]

    def redact(self, text: str, max_chars: int = 300) -> str:
        """Return the text, printable and cut, with *** for each secret."""
        # First of all: a secret that is cut, or whose spaces have changed, would not be found.
        for secret in (*_forms(list(self._credentials)), *self._secrets):
            text = text.replace(secret.reveal(), "***")
        return printable(text, max_chars)

    def list_names(self, names: list[str]) -> str:
        """Return the first five, redacted and quoted."""
        first = ", ".join(repr(self.redact(name, 200)) for name in names[:5])
        return f"{first} and {len(names) - 5} more" if len(names) > 5 else first


def _forms(secrets: list[Secret]) -> tuple[Secret, ...]:
    """Return all forms in which these may be written, the longest first."""
    found = {form for secret in secrets for form in _written(secret) if form}
    return tuple(sorted(found, key=lambda form: -len(form.reveal())))


def _written(secret: Secret) -> list[Secret]:
    def encoded(alphabet: bytes) -> Secret:
        text = secret.reveal().encode("utf-8", "replace")
        return Secret(base64.b64encode(text, alphabet).decode().rstrip("="))

    in_json = [
        Secret(json.dumps(secret.reveal(), ensure_ascii=ascii_only)[1:-1])
        for ascii_only in (True, False)
    ]
    return [
        secret,
        *in_json,
        *(Secret(form.reveal().replace("/", "\\/")) for form in in_json),
        Secret(secret.reveal().strip()),
        Secret(" ".join(secret.reveal().split())),
        Secret(quote(secret.reveal(), safe="", errors="replace")),
        Secret(quote_plus(secret.reveal(), errors="replace")),
        encoded(b"+/"),
        encoded(b"-_"),
    ]
