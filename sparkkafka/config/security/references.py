"""References in values of security settings, and the .properties files that they may point to.

    ${env:NAME}              an environment variable
    ${file:/path:key}        a key of a .properties file
    ${directory:/path:name}  the whole content of the file /path/name, without its last line end

These are Kafka's own providers (KIP-297, KIP-421, KIP-887), under the names in its documentation;
config.providers may give them others. A value may contain several references, and other text around
them. References in the content are not resolved. Any other ${a:b} stays as it is, as in Java.
The process that opens a connection resolves them, so a notebook, a plan and a pickled task contain
the reference and never the secret.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from sparkkafka.config.security.java import known_class
from sparkkafka.errors import OptionError, shortened, spark_hint
from sparkkafka.logs import process_role
from sparkkafka.secret import Secret, without_url_secrets

PROVIDERS_OPTION: Final = "config.providers"

MAX_BYTES: Final = 2**20
"""The largest file that a reference may point to."""

_PROVIDERS: Final = ("env", "file", "directory")

_EACH_PROCESS_HINT: Final = spark_hint(
    ". The driver and each executor open connections, so it must be there for all of them"
)

_REFERENCE = re.compile(r"\$\{(?P<provider>[A-Za-z][A-Za-z0-9_-]*):(?P<rest>[^{}]*)\}")


def has_reference(text: str) -> bool:
    """Return whether the text has a ${env:…}, ${file:…} or ${directory:…}."""
    return any(match["provider"] in _PROVIDERS for match in _REFERENCE.finditer(text))


def has_other_reference(text: str) -> bool:
    """Return whether the text has a ${…:…} of another provider, which stays as it is."""
    return any(match["provider"] not in _PROVIDERS for match in _REFERENCE.finditer(text))


class WithReferences:
    """Base of dataclasses of options whose texts may contain references.

    `names` has the names of options as the user wrote them, by field. `OPTION_NAMES` has the
    table's names, for options that are not set.
    """

    OPTION_NAMES: ClassVar[Mapping[str, str]] = {}
    URL_FIELDS: ClassVar[frozenset[str]] = frozenset()
    """Fields whose text may have a password or a key in a part of a URL."""

    names: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults, without secrets, also those in URLs."""
        shown = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name != "names" and value != field.default:
                value = without_url_secrets(value) if field.name in self.URL_FIELDS else value
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def name_of(self, field: str) -> str:
        """Return the option's name as the user wrote it, or as the table has it."""
        return dict(self.names).get(field) or self.OPTION_NAMES[field]

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield (field, text) of each field that is text."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Secret):
                yield field.name, value.reveal()
            elif isinstance(value, str):
                yield field.name, value

    @property
    def has_references(self) -> bool:
        return any(has_reference(text) for _, text in self.texts())


class ResolvedValues(dict[str, Any]):
    """The values of a `WithReferences` by field, with references resolved. `name_of` returns the
    option's name."""

    def __init__(self, options: WithReferences) -> None:
        self.name_of = options.name_of


def provider_names(properties: Mapping[str, str]) -> dict[str, str]:
    """Map each alias in config.providers to env, file or directory, or to its class if that is
    another one.

    `properties` has lower-case names. Raises OptionError for an alias without a class.
    """
    classes = {
        "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
        "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
        "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "directory",
    }
    names = {}
    for alias in filter(None, map(str.strip, properties.get(PROVIDERS_OPTION, "").split(","))):
        class_name = properties.get(f"{PROVIDERS_OPTION}.{alias}.class".lower(), "").strip()
        if not class_name:
            raise OptionError(
                f"{PROVIDERS_OPTION} names {shortened(alias)}, and {PROVIDERS_OPTION}.NAME.class "
                "is not set for this name"
            )
        known = known_class(class_name, (*classes,))
        names[alias] = classes[known] if known else class_name
    return names


def replace_provider_aliases(text: str, provider_of_alias: Mapping[str, str], option: str) -> str:
    """Return the text with each alias of `provider_names` replaced by env, file or directory.

    Raises OptionError for a reference to a provider that cannot run here.
    """

    def rename(match: re.Match[str]) -> str:
        """Return the reference with the provider's own name."""
        alias = match["provider"]
        name = provider_of_alias.get(alias)
        if name is None:
            return match[0]
        if name not in _PROVIDERS:
            raise OptionError(
                f"{option} refers to the provider {alias} of {PROVIDERS_OPTION}, whose class "
                f"{name} is Java's and cannot run here: "
                "use ${env:NAME}, ${file:/path:key} or ${directory:/path:name} instead"
            )
        return f"${{{name}:{match['rest']}}}"

    return _REFERENCE.sub(rename, text) if provider_of_alias else text


def resolve_references(text: Secret, option: str) -> Secret:
    """Return the text with its references replaced by what they point to now.

    Raises OptionError, which names the option and the reference, never the content.
    """

    def content_of(match: re.Match[str]) -> str:
        """Return what one reference points to."""
        provider, reference = match["provider"], match["rest"]
        if provider not in _PROVIDERS:
            return match[0]
        try:
            if provider == "env":
                if (name := reference.removeprefix(":")) not in os.environ:
                    raise ValueError("there is no such environment variable")
                return os.environ[name]
            if provider == "file":
                return _property(reference)
            return _whole_file(reference)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(
                f"option {option}: {match[0]} cannot be looked up in {process_role()} (host "
                f"{os.uname().nodename}): {reason}{_EACH_PROCESS_HINT}"
            ) from None

    if not has_reference(text.reveal()):
        return text
    return Secret(_REFERENCE.sub(content_of, text.reveal()))


def _property(reference: str) -> str:
    """Return the value that ${file:path:key} refers to; `reference` is path:key. Raises OSError,
    ValueError."""
    path, colon, key = reference.partition(":")
    if not colon or not path or not key:
        raise ValueError("it is written ${file:/path/of.properties:key}")
    properties = parse_properties(read_text(Path(path)))
    if key not in properties:
        raise ValueError("the file has no such key")
    return properties[key]


def _whole_file(path: str) -> str:
    """Return the content that ${directory:folder:name} refers to; `path` is folder:name. Raises
    OSError, ValueError."""
    folder, colon, name = path.partition(":")
    if not colon or not folder or not name:
        raise ValueError("it is written ${directory:/path:name-of-a-file}")
    if name in (".", "..") or "/" in name:
        raise ValueError("the name of a file, without a folder, follows the second colon")
    # Kubernetes writes no line end, but editors do, and no secret ends with one.
    return read_text(Path(folder, name)).removesuffix("\n").removesuffix("\r")


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Read a small file. Raises OSError, or ValueError if it is too large or not UTF-8."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"the file is larger than {max_bytes} bytes")
    try:
        return content.decode("utf-8-sig")  # editors of Windows begin files with a byte order mark
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None


# --- .properties files -----------------------------------------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's format: key=value, key: value or key value; # and ! begin comments.

    A backslash escapes the next character, and at the end of a line continues it on the next. If a
    key occurs twice, the last value counts, as in Java.
    """
    pair = r"(?P<key>(?:[^\\=:\s]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(?P<value>.*)"
    properties: dict[str, str] = {}
    line, is_continued = "", False
    # The empty line at the end completes one that is continued beyond the end of the text.
    for physical_line in [*re.split(r"\r\n|\r|\n", text), ""]:
        content = physical_line.lstrip(" \t\f")
        if not is_continued and (not content or content[0] in "#!"):
            continue
        line = line + content if is_continued else content
        backslashes = len(line) - len(line.rstrip("\\"))
        is_continued = backslashes % 2 == 1
        if is_continued:
            line = line[:-1]
        elif match := re.fullmatch(pair, line, re.DOTALL):
            properties[_unescape(match["key"])] = _unescape(match["value"])
    return properties


def _unescape(text: str) -> str:
    """Replace the escapes of a .properties file: \\uXXXX, \\t, \\n, \\r and \\f. A backslash before
    another character is dropped."""
    letters = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    escape = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
    return escape.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else letters.get(match[2], match[2]), text
    )
