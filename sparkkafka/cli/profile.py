"""Where a cluster's settings come from, the first counts most: -X, -b, a file (-F), a profile.

    settings_of(sources, "admin")     settings of one kind of client, for Admin, Consumer, Producer
    registry_options_of(sources)      those of the Schema Registry, schema.registry.*

The file of profiles is ~/.config/sparkkafka/config.toml (or under $XDG_CONFIG_HOME):

    default = "local"                 # used when no -b, -F and --profile is given

    [profiles.local]
    bootstrap.servers = "localhost:9092"

    [profiles.prod]
    config-file = "prod.properties"   # beside config.toml, or a whole path
    sasl.password = "${env:PROD_PASSWORD}"

Names are Kafka's or librdkafka's. References to secrets stay as they are: the client looks them up
when it connects. What a name means, and that nobody knows it, the table of settings says.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sparkkafka.config.client_settings import (
    ADMIN_ROWS,
    CONSUMER_ROWS,
    LIBRDKAFKA_NAMES,
    PRODUCER_ROWS,
    is_of_another,
)
from sparkkafka.config.given_options import as_text, warn
from sparkkafka.config.option_table import REGISTRY, Option
from sparkkafka.config.security.references import has_reference, parse_properties, read_text
from sparkkafka.errors import OptionError, some

ROWS_BY_KIND: Final[Mapping[str, Mapping[str, Option]]] = {
    "admin": ADMIN_ROWS,
    "consumer": CONSUMER_ROWS,
    "producer": PRODUCER_ROWS,
}
_REGISTRY_ROWS: Final = {row.key: row for row in REGISTRY}
SERVERS: Final = "bootstrap.servers"
_FILE_KEY: Final = "config-file"


@dataclass(frozen=True)
class Sources:
    """What the options of the command line say about the cluster."""

    bootstrap_server: str | None = None
    profile: str | None = None
    config_file: str | None = None
    properties: tuple[str, ...] = field(default=(), repr=False)  # may hold a password


def settings_of(sources: Sources, kind: str) -> dict[str, str]:
    """Settings for a client of a kind: admin, consumer or producer. What is for another kind only
    is left out, since one profile serves all. Raises OptionError."""
    rows = ROWS_BY_KIND[kind]
    found = {
        name: value
        for name, value in _merged(sources).items()
        if name.lower() not in _REGISTRY_ROWS
        and not (name.lower() in rows and is_of_another(rows[name.lower()]))
    }
    if SERVERS not in map(str.lower, found):
        raise OptionError(
            "no cluster is named: give -b HOST:PORT, -F FILE, or --profile NAME of "
            f"{profile_path()}"
        )
    return found


def registry_options_of(sources: Sources) -> dict[str, str]:
    """The Schema Registry's options by their names; empty if there are none. Raises OptionError."""
    return {
        name: value for name, value in _merged(sources).items() if name.lower() in _REGISTRY_ROWS
    }


def profile_path() -> Path:
    """The file of profiles: $XDG_CONFIG_HOME/sparkkafka/config.toml, by default in ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification: a path that is not absolute does not count.
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "sparkkafka" / "config.toml"


def _merged(sources: Sources) -> dict[str, str]:
    """All settings, under the names that were given; the first source that has one counts."""
    merged: dict[str, dict[str, str]] = {}  # by setting: {name: value} of the layer that counts
    for layer in _layers(sources):
        # Two names of one setting in one layer stay: the table of settings says what is wrong.
        by_setting: dict[str, dict[str, str]] = {}
        for name, value in layer.items():
            by_setting.setdefault(_setting(name), {})[name] = value
        merged |= by_setting
    return {name: value for given in merged.values() for name, value in given.items()}


def _setting(name: str) -> str:
    """What the setting of this name is called first, in lower case: a name of librdkafka's, or
    another of ours, is the same setting."""
    key = name.lower()
    for rows in (*ROWS_BY_KIND.values(), _REGISTRY_ROWS):
        if key in rows:
            return (rows[key].alias_of or key).lower()
    return key


def _layers(sources: Sources) -> list[dict[str, str]]:
    """From the one that counts least to the one that counts most."""
    layers = [_with_our_names(layer) for layer in _profile(sources)]
    if sources.config_file is not None:
        layers.append(_with_our_names(_properties(_home(sources.config_file), "-F")))
    if sources.bootstrap_server is not None:
        layers.append({SERVERS: sources.bootstrap_server})
    if sources.properties:
        given = pairs(sources.properties, "-X", "sasl.username=alice")
        layers.append(_with_our_names(given))
    return layers


def pairs(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    """What an option of the form KEY=VALUE says; the last of a key counts. Raises OptionError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Not shown: it may be a password.
            raise OptionError(f"{option} is written KEY=VALUE, for example {option} {example}")
        found[name.strip()] = value
    return found


def _with_our_names(layer: Mapping[str, str]) -> dict[str, str]:
    """With librdkafka's names as ours, where values mean the same."""
    found: dict[str, str] = {}
    for name, value in layer.items():
        ours = LIBRDKAFKA_NAMES.get(name.lower(), name)
        if ours in found:
            raise OptionError(f"{name} and {ours} are two names of one setting: remove one")
        found[ours] = value
    return found


# --- files -----------------------------------------------------------------------------------


def _properties(path: Path, option: str) -> dict[str, str]:
    """A file in Java's format, as both kinds of clients have them."""
    found = parse_properties(_text(path, option))
    _warn_if_open(path, found)
    return found


def _text(path: Path, option: str) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{option}: {path} cannot be read: {reason}") from None


def _profile(sources: Sources) -> list[dict[str, str]]:
    """The profile's file of properties, if it names one, and what the profile itself says."""
    path = profile_path()
    alone = sources.bootstrap_server is None and sources.config_file is None
    if sources.profile is None and not (alone and path.exists()):
        return []
    option = "--profile" if sources.profile is not None else "profiles"
    document = _document(path, option)
    name = document.get("default") if sources.profile is None else sources.profile
    if name is None:
        return []
    profiles = document.get("profiles", {})
    if not isinstance(name, str) or name not in profiles:
        there = some(profiles, most=20) or "none"
        raise OptionError(f"there is no profile {name!r} in {path}; there are: {there}")
    try:
        settings = _flat(profiles[name], "", f"profile {name} in {path}")
    except RecursionError:
        raise OptionError(f"profile {name} in {path} has tables in tables without an end") from None
    layers = []
    if _FILE_KEY in settings:
        file = path.parent / _home(settings.pop(_FILE_KEY))
        layers.append(_properties(file, f"profile {name}, {_FILE_KEY}"))
    _warn_if_open(path, settings)
    return [*layers, settings]


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise OptionError(f"{path}: nobody knows this home folder; write the whole path") from None


def _document(path: Path, option: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(_text(path, option))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    unknown = sorted({*document} - {"default", "profiles"})
    profiles = document.get("profiles", {})
    if unknown or not isinstance(profiles, dict):
        raise OptionError(
            f"{path} has {some(unknown) or 'profiles that are no tables'}: there are `default` and "
            "tables like [profiles.prod]"
        )
    return document


def _flat(table: Any, prefix: str, where: str) -> dict[str, str]:
    """TOML reads ssl.key.location as tables in tables: one name again, and values as text."""
    if not isinstance(table, dict):
        raise OptionError(f"{where} is no table of settings")
    found: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}.", where)
        elif isinstance(value, str | int | float | list):
            found[name] = as_text(value)
        else:
            raise OptionError(f"{where}: {name} is text, a number, true, false or a list of these")
    return found


def _warn_if_open(path: Path, settings: Mapping[str, str]) -> None:
    """A password that others on the machine can read is one that others have."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    plain = [
        name for name, value in settings.items() if _is_secret(name) and not has_reference(value)
    ]
    if plain and mode & 0o077:
        warn(
            f"cli {path}",
            f"{path} holds {some(plain)} and others can read it: chmod 600, or write a reference "
            "like ${env:NAME}",
        )


def _is_secret(name: str) -> bool:
    key = name.lower()
    return any(
        key in rows and rows[key].secret for rows in (*ROWS_BY_KIND.values(), _REGISTRY_ROWS)
    )
