"""A cluster's settings, from these sources in order of precedence: -X, -b, a file (-F), a profile.

    settings_of(sources, "admin")     settings for one kind of client: Admin, Consumer, Producer
    registry_options_of(sources)      options of the Schema Registry, schema.registry.*

The file of profiles is ~/.config/sparkkafka/config.toml (or under $XDG_CONFIG_HOME):

    default = "local"                 # used when no -b, -F and --profile is given

    [profiles.local]
    bootstrap.servers = "localhost:9092"

    [profiles.prod]
    config-file = "prod.properties"   # relative to config.toml, or an absolute path
    sasl.password = "${env:PROD_PASSWORD}"

Names are Kafka's or librdkafka's; the table of client settings checks them. References to secrets
stay as they are: the client resolves them when it connects.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sparkkafka.config import client_settings
from sparkkafka.config.option_table import REGISTRY, Option, Side
from sparkkafka.config.parsed_options import LIBRDKAFKA_NAMES, ParsedOptions, as_text, warn
from sparkkafka.config.security.references import has_reference, parse_properties, read_text
from sparkkafka.errors import OptionError, some

ROWS_BY_KIND: Final[Mapping[str, Mapping[str, Option]]] = {
    "admin": client_settings.ADMIN_ROWS,
    "consumer": client_settings.CONSUMER_ROWS,
    "producer": client_settings.PRODUCER_ROWS,
}
_REGISTRY_ROWS: Final = {row.key: row for row in REGISTRY}


@dataclass(frozen=True)
class Sources:
    """The options of the command line that say where settings come from."""

    bootstrap_server: str | None = None
    profile: str | None = None
    config_file: str | None = None
    properties: tuple[str, ...] = field(default=(), repr=False)  # may hold a password


def settings_of(sources: Sources, kind: str) -> dict[str, str]:
    """Return the settings for an admin, a consumer or a producer.

    Settings of other kinds of clients are left out, since one profile serves all. Raises
    OptionError.
    """
    rows = ROWS_BY_KIND[kind]
    settings = {
        name: value
        for name, value in _merge_layers(sources).items()
        if name.lower() not in _REGISTRY_ROWS
        and not (name.lower() in rows and client_settings.is_of_other_client(rows[name.lower()]))
    }
    if "bootstrap.servers" not in map(str.lower, settings):
        # Raises for an unknown setting, and so names a misspelled bootstrap.servers.
        ParsedOptions(settings, Side.BOTH, settings=rows)
        names = some(profile_names(), limit=20)
        raise OptionError(
            "no cluster is named: give -b HOST:PORT, -F FILE, or --profile NAME of "
            f"{profile_path()}{names and f' (there are profiles: {names})'}"
        )
    return settings


def registry_options_of(sources: Sources) -> dict[str, str]:
    """Return the Schema Registry's options; empty if there are none. Raises OptionError."""
    return {
        name: value
        for name, value in _merge_layers(sources).items()
        if name.lower() in _REGISTRY_ROWS
    }


def profile_path() -> Path:
    """Return $XDG_CONFIG_HOME/sparkkafka/config.toml, by default below ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # By the XDG specification a relative path is ignored.
    folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    return folder / "sparkkafka" / "config.toml"


def profile_names() -> list[str]:
    """Return the names of the profiles; none without the file. Raises OptionError."""
    path = profile_path()
    return list(_read_toml(path, "profiles").get("profiles", {})) if path.exists() else []


def _merge_layers(sources: Sources) -> dict[str, str]:
    """Read all sources, and return each setting from the one with the highest precedence."""
    merged: dict[str, dict[str, str]] = {}  # by setting: {name: value} of the layer that counts
    for layer in _read_layers(sources):
        # Two names of one setting in one layer both stay: the client reports that as an error.
        by_setting: dict[str, dict[str, str]] = {}
        for name, value in layer.items():
            row = next(_rows_of(name), None)
            # Other names of a setting, like librdkafka's, are aliases of its first.
            first_name = (row and row.alias_of) or name
            by_setting.setdefault(first_name.lower(), {})[name] = value
        merged |= by_setting
    return {name: value for names in merged.values() for name, value in names.items()}


def _rows_of(name: str) -> Iterator[Option]:
    """Yield the row of a setting from each table that has it: those of Admin, Consumer, Producer
    and the registry."""
    for rows in (*ROWS_BY_KIND.values(), _REGISTRY_ROWS):
        if row := rows.get(name.lower()):
            yield row


def _read_layers(sources: Sources) -> list[dict[str, str]]:
    """Read the settings of each source, from the lowest precedence to the highest."""
    layers = _read_profile(sources)
    if sources.config_file is not None:
        layers.append(_read_properties(_expand_home(sources.config_file), "-F"))
    if sources.bootstrap_server is not None:
        layers.append({"bootstrap.servers": sources.bootstrap_server})
    layers.append(parse_pairs(sources.properties, "-X", "sasl.username=alice"))
    return [_with_kafka_names(layer) for layer in layers]


def parse_pairs(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    """Parse values of an option of the form KEY=VALUE; the last value of a key counts. Raises
    OptionError."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Not shown: it may be a password.
            raise OptionError(f"{option} is written KEY=VALUE, for example {option} {example}")
        pairs[name.strip()] = value
    return pairs


def _with_kafka_names(layer: Mapping[str, str]) -> dict[str, str]:
    """Replace librdkafka's names by Kafka's, where the values mean the same."""
    renamed: dict[str, str] = {}
    for name, value in layer.items():
        kafka_name = LIBRDKAFKA_NAMES.get(name.lower(), name)
        if kafka_name in renamed:
            raise OptionError(f"{name} and {kafka_name} are two names of one setting: remove one")
        renamed[kafka_name] = value
    return renamed


# --- files -----------------------------------------------------------------------------------


def _read_properties(path: Path, option: str) -> dict[str, str]:
    """Read a file of Java's or of librdkafka's settings: both have the same format. Serializers
    and deserializers are left out, as Java's tools ignore those of a file."""
    settings = {
        name: value
        for name, value in parse_properties(_read_text(path, option)).items()
        if not name.lower().endswith("serializer")
    }
    _warn_if_others_can_read(path, settings)
    return settings


def _read_text(path: Path, option: str) -> str:
    """Return a file's text. Raises OptionError, which names the option."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"{option}: {path} cannot be read: {reason}") from None


def _read_profile(sources: Sources) -> list[dict[str, str]]:
    """Return the settings of the profile's properties file, if it names one, and the settings of
    the profile itself; nothing if no profile is chosen."""
    path = profile_path()
    has_cluster = sources.bootstrap_server is not None or sources.config_file is not None
    if sources.profile is None and (has_cluster or not path.exists()):
        return []
    document = _read_toml(path, "--profile" if sources.profile is not None else "profiles")
    name = document.get("default") if sources.profile is None else sources.profile
    if name is None:
        return []
    profiles = document.get("profiles", {})
    if not isinstance(name, str) or name not in profiles:
        known = some(profiles, limit=20) or "none"
        raise OptionError(f"there is no profile {name!r} in {path}; there are: {known}")
    try:
        settings = _flatten(profiles[name], "", f"profile {name} in {path}")
    except RecursionError:
        raise OptionError(f"profile {name} in {path} has tables in tables without an end") from None
    layers = []
    if "config-file" in settings:
        file = path.parent / _expand_home(settings.pop("config-file"))
        layers.append(_read_properties(file, f"profile {name}, config-file"))
    _warn_if_others_can_read(path, settings)
    return [*layers, settings]


def _expand_home(path: str) -> Path:
    """Replace ~ at the beginning of a path. Raises OptionError for a user who has no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise OptionError(f"{path}: unknown home folder; write an absolute path") from None


def _read_toml(path: Path, option: str) -> dict[str, Any]:
    """Parse the file of profiles. Raises OptionError."""
    try:
        document = tomllib.loads(_read_text(path, option))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    unknown = sorted({*document} - {"default", "profiles"})
    profiles = document.get("profiles", {})
    if unknown or not isinstance(profiles, dict):
        raise OptionError(
            f"{path} has {some(unknown) or 'profiles that are not tables'}: use `default` "
            "and tables like [profiles.prod]"
        )
    return document


def _flatten(table: Any, prefix: str, where: str) -> dict[str, str]:
    """Return the settings of a TOML table by their full names: TOML parses ssl.key.location as
    nested tables. `prefix` precedes the names, `where` names the table in errors."""
    if not isinstance(table, dict):
        raise OptionError(f"{where} is not a table of settings")
    settings: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            settings |= _flatten(value, f"{name}.", where)
        elif isinstance(value, str | int | float | list):
            settings[name] = as_text(value)
        else:
            raise OptionError(f"{where}: {name} is text, a number, true, false or a list of these")
    return settings


def _warn_if_others_can_read(path: Path, settings: Mapping[str, str]) -> None:
    """Warn if other users of the machine can read a file with passwords in it."""
    secrets = [
        name
        for name, value in settings.items()
        if any(row.secret for row in _rows_of(name)) and not has_reference(value)
    ]
    if secrets and path.stat().st_mode & 0o077:
        warn(
            f"cli {path}",
            f"{path} holds {some(secrets)} and others can read it: chmod 600, or write a reference "
            "like ${env:NAME}",
        )
