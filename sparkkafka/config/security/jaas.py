"""The text of sasl.jaas.config, as Java's JaasConfig reads it with a StreamTokenizer:

    org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";

A login module, a control flag and options. Messages never hold any part of the text: it has
passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

JAAS = "sasl.jaas.config"

FLAGS = ("required", "requisite", "sufficient", "optional")

_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
  | "(?P<double> (?:[^"\\\n]|\\.)* )"
  | '(?P<single> (?:[^'\\\n]|\\.)* )'
  | (?P<sign> [=;] )
  | (?P<word> [^\s"'=;]+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True)
class LoginModule:
    """`name` is the class without its package: PlainLoginModule, ScramLoginModule, …

    `options` hold secrets, so repr leaves them out.
    """

    name: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """The one login module of `sasl.jaas.config`. Raises ValueError, which says what is missing."""
    tokens = list(_jaas_tokens(text))
    words = [value for kind, value in tokens[:2] if kind == "word"]
    if len(words) < 2 or words[1].lower() not in FLAGS:
        raise ValueError(f"it begins with a login module's class and one of {', '.join(FLAGS)}")
    options: dict[str, str] = {}
    rest = iter(tokens[2:])
    for kind, name in rest:
        if (kind, name) == ("sign", ";"):
            break
        sign, (value_kind, value) = next(rest, ("", "")), next(rest, ("", ""))
        if kind == "sign" or sign != ("sign", "=") or value_kind in ("", "sign"):
            raise ValueError(
                "options are name=value, values with other than letters and digits in double quotes"
            )
        if name in options:
            raise ValueError("the name of an option is there twice")
        options[name] = value
    else:
        raise ValueError("it ends with a semicolon, which is missing")
    if next(rest, None) is not None:
        raise ValueError("something follows the semicolon: one login module is allowed")
    return LoginModule(words[0].rpartition(".")[2], options)


def _jaas_tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:  # a quote that is never closed
            raise ValueError("a quotation mark is not closed")
        place = found.end()
        kind = str(found.lastgroup)
        if kind in ("double", "single"):
            yield "quoted", _ESCAPE.sub(_unescaped, found[kind])
        elif kind != "blank":
            yield kind, found[kind]


def _unescaped(found: re.Match[str]) -> str:
    octal, letter = found.groups()
    return chr(int(octal, 8)) if octal else _LETTERS.get(letter, letter)
