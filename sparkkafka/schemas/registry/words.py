"""What a registry says, as it is shown to people: without our secrets, in one line, and short.

A registry, or a proxy before it, may repeat what it was sent. So each text of an answer that gets
into an error or a reason passes `Words`.
"""

from __future__ import annotations

import base64
import json
from typing import Final
from urllib.parse import quote, quote_plus

from sparkkafka.config.registry import RegistrySettings
from sparkkafka.secret import Secret

MOST_SENT: Final = 4
"""Values of the Authorization header that are remembered: tokens are renewed."""


def printable(text: str, most: int = 300) -> str:
    """A stranger's words: without control characters, in one line, and short."""
    shown = (char if char.isprintable() else " " for char in text[: 4 * most])
    text = " ".join("".join(shown).split())
    return text if len(text) <= most else f"{text[:most]}…"


class Words:
    """Makes texts of one registry's answers fit to be shown."""

    def __init__(self, settings: RegistrySettings) -> None:
        user_info = settings.user_info.reveal().partition(":")
        given = [settings.user_info, Secret(user_info[2])]
        del user_info
        if settings.oauth is not None:
            given += [settings.oauth.token, settings.oauth.client_secret]
        self._secrets = _forms(given)
        self._sent: tuple[Secret, ...] = ()

    def sends(self, authorization: Secret) -> None:
        """This is the Authorization header of a request: its credentials may come back."""
        secret = Secret(authorization.reveal().partition(" ")[2])
        if secret not in self._sent:
            self._sent = (*self._sent, secret)[-MOST_SENT:]

    def shown(self, text: str, most: int = 300) -> str:
        """Secrets are hidden before anything else: what is cut, or has other spaces, looks
        different."""
        return printable(self._hidden(text), most)

    def listed(self, names: list[str]) -> str:
        """The first of them, quoted."""
        shown = ", ".join(repr(self.shown(name, 200)) for name in names[:5])
        return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

    def _hidden(self, text: str) -> str:
        for secret in (*_forms(list(self._sent)), *self._secrets):
            text = text.replace(secret.reveal(), "***")
        return text


def _forms(secrets: list[Secret]) -> tuple[Secret, ...]:
    """All ways in which these may be written, the longest first."""
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
