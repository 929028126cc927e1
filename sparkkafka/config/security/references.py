"""References in values of security settings to content that is looked up when needed.

    ${env:NAME}              an environment variable
    ${file:/path:key}        a key of a file of Java properties
    ${directory:/path:name}  the whole content of the file /path/name, without its last line end

These are Kafka's own providers (KIP-297, KIP-421, KIP-887), under the names in its documentation;
config.providers may give them others. A value may hold several, and other text around them;
references in the content are not looked up. Any other ${a:b} is text as it stands, as in Java.
The machine that opens a connection looks them up, so a notebook, a plan and a pickled task hold the
reference and never the secret.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sparkkafka import process
from sparkkafka.config.security.java_classes import PROVIDERS as PROVIDER_CLASSES
from sparkkafka.config.security.java_classes import known_class
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

MAX_BYTES: Final = 2**20
"""Of a file that a reference names."""

PROVIDERS: Final = ("env", "file", "directory")
PROVIDERS_OPTION: Final = "config.providers"

_REFERENCE = re.compile(r"\$\{(?P<provider>[A-Za-z][A-Za-z0-9_-]*):(?P<rest>[^{}]*)\}")
_PROPERTY = re.compile(
    r"(?P<key>(?:[^\\=:\s]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(?P<value>.*)", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def has_reference(text: str) -> bool:
    """Whether there is something to look up."""
    return any(match["provider"] in PROVIDERS for match in _REFERENCE.finditer(text))


class WithReferences:
    """Base of dataclasses whose texts may hold references."""

    def texts(self) -> Iterator[tuple[str, str]]:
        """(field, text) of each that is text."""
        for one in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(value, Secret):
                yield one.name, value.reveal()
            elif isinstance(value, str):
                yield one.name, value

    @property
    def has_references(self) -> bool:
        return any(has_reference(text) for _, text in self.texts())


def has_other_reference(text: str) -> bool:
    """Whether there is what looks like a reference and is none."""
    return any(match["provider"] not in PROVIDERS for match in _REFERENCE.finditer(text))


def provider_names(given: Mapping[str, str]) -> dict[str, str]:
    """What config.providers calls each provider: its name here, or the class if that is not here.

    `given` has lower-case names of Kafka's properties. Raises OptionError for one without a class.
    """
    names = {}
    for alias in filter(None, map(str.strip, given.get(PROVIDERS_OPTION, "").split(","))):
        option = f"{PROVIDERS_OPTION}.{alias}.class"
        name = given.get(option.lower(), "").strip()
        if not name:
            raise OptionError(f"{PROVIDERS_OPTION} names {alias}, and {option} is not set")
        known = known_class(name, (*PROVIDER_CLASSES,))
        names[alias] = PROVIDER_CLASSES[known] if known else name
    return names


def with_own_names(text: str, names: Mapping[str, str], option: str) -> str:
    """The text with its references under the names of this module.

    Raises OptionError for a reference to a provider that cannot run here.
    """

    def rename(match: re.Match[str]) -> str:
        alias = match["provider"]
        name = names.get(alias)
        if name is None:
            return match[0]
        if name not in PROVIDERS:
            raise OptionError(
                f"{option} refers to the provider {alias} of {PROVIDERS_OPTION}, whose class "
                f"{name} is Java's and cannot run here: "
                "there are ${env:NAME}, ${file:/path:key} and ${directory:/path:name}"
            )
        return f"${{{name}:{match['rest']}}}"

    return _REFERENCE.sub(rename, text) if names else text


def resolved(text: Secret, option: str) -> Secret:
    """The text with its references replaced by their present content.

    Raises OptionError, which names the option and the reference, never a content.
    """

    def look_up(match: re.Match[str]) -> str:
        provider, rest = match["provider"], match["rest"]
        if provider not in PROVIDERS:
            return match[0]
        try:
            if provider == "env":
                return _variable(rest.removeprefix(":"))
            if provider == "file":
                return _property(rest)
            return _whole_file(rest)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(
                f"option {option}: {match[0]} cannot be looked up in {process.role()} (host "
                f"{os.uname().nodename}): {reason}. The driver and each executor open connections, "
                "so it must be there for all of them"
            ) from None

    if not has_reference(text.reveal()):
        return text
    return Secret(_REFERENCE.sub(look_up, text.reveal()))


def _variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError("there is no such environment variable")
    return os.environ[name]


def _property(rest: str) -> str:
    path, colon, key = rest.partition(":")
    if not colon or not path or not key:
        raise ValueError("it is written ${file:/path/of.properties:key}")
    properties = parse_properties(text_of(Path(path)))
    if key not in properties:
        raise ValueError("the file has no such key")
    return properties[key]


def _whole_file(rest: str) -> str:
    folder, colon, name = rest.partition(":")
    if not colon or not folder or not name:
        raise ValueError("it is written ${directory:/path:name-of-a-file}")
    if name in (".", "..") or "/" in name:
        raise ValueError("behind the second colon stands the name of a file, without a folder")
    # Kubernetes writes none, but editors end a file with one, and no secret ends so.
    return text_of(Path(folder, name)).removesuffix("\n").removesuffix("\r")


def text_of(path: Path) -> str:
    """A small file's text. Raises OSError, ValueError if it is too large or not UTF-8."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None


def parse_properties(text: str) -> dict[str, str]:
    """Java's format: key=value, key: value or key value; # and ! begin comments; \\ escapes, and
    at a line's end goes on with the next. The last of a key counts, as in Java."""
    found: dict[str, str] = {}
    line = ""
    going_on = False
    for raw in re.split(r"\r\n|\r|\n", text):
        part = raw.lstrip(" \t\f")
        if not going_on and (not part or part[0] in "#!"):
            continue
        line = line + part if going_on else part
        trailing = len(line) - len(line.rstrip("\\"))
        going_on = trailing % 2 == 1
        if going_on:
            line = line[:-1]
            continue
        _add(found, line)
    if going_on:
        _add(found, line)
    return found


def _add(found: dict[str, str], line: str) -> None:
    match = _PROPERTY.fullmatch(line)
    if match is not None:
        found[_unescaped(match["key"])] = _unescaped(match["value"])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _LETTERS.get(match[2], match[2]), text
    )
