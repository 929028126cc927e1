"""Text that must not be shown: passwords, keys, tokens. Imports nothing, so any module may use it.

Programs that report errors often show each frame's variables. So a function that can raise keeps a
secret in these classes, and reveals it only in the argument of a call, never in a variable.
"""

from __future__ import annotations


class Secret:
    """Text that repr, str, format and tracebacks do not show. `reveal()` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


class SecretBytes:
    """Bytes that repr, str, format and tracebacks do not show. `reveal()` returns them."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes = b"") -> None:
        self._content = content

    def reveal(self) -> bytes:
        return self._content

    def __repr__(self) -> str:
        return "[hidden]"

    def __len__(self) -> int:
        return len(self._content)


NO_SECRET = Secret()


def without_url_secrets(url: str) -> str:
    """Return the URL without user, password and query, for messages."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url.rpartition("@")[2].partition("?")[0]
    # A password may contain a slash or a question mark: hide all before the last @.
    _, at, rest = rest.rpartition("@")
    address, question, _ = rest.partition("#")[0].partition("?")
    return f"{scheme}://{'[hidden]@' if at else ''}{address}{'?[hidden]' if question else ''}"
