"""The requests and responses in use, by subject. Declarations only; `wire.schema` explains them.

Names are those of Kafka's message JSON, the fields' in snake_case. `REQUESTS` finds a request
class by its API key, and its `RESPONSE` is the class of the response. `release_of` tells a broker's
Kafka release by the versions that it offers.

A subject is imported when the first of its names is used: Spark starts new processes all the time,
each needs a few messages, and declaring one takes a fifth of a millisecond or more.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from sparkkafka.protocol.wire.schema import Request, release_number, releases

if TYPE_CHECKING:
    from sparkkafka.protocol.messages.admin import *  # noqa: F403
    from sparkkafka.protocol.messages.data import *  # noqa: F403
    from sparkkafka.protocol.messages.groups import *  # noqa: F403
    from sparkkafka.protocol.messages.metadata import *  # noqa: F403
    from sparkkafka.protocol.messages.share_groups import *  # noqa: F403
    from sparkkafka.protocol.messages.transactions import *  # noqa: F403

    REQUESTS: Mapping[int, type[Request[Any]]]

_SUBJECTS = ("metadata", "data", "transactions", "groups", "share_groups", "admin")
"""Where names are looked for, in this order: those first that all clients need, then those of
producers."""


def __getattr__(name: str) -> Any:
    """Import the subject of a name when it is first used."""
    if name == "REQUESTS":
        value: Any = MappingProxyType(_requests())
    elif name[0].isupper():  # a class; Python also looks for names such as __path__
        modules = map(_subject, _SUBJECTS)
        value = next((vars(module)[name] for module in modules if name in vars(module)), None)
    else:
        value = None
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names for completion, also those that are not imported yet."""
    return sorted({*globals(), "REQUESTS"}.union(*(vars(_subject(name)) for name in _SUBJECTS)))


def _subject(name: str) -> ModuleType:
    """Import and return the module of a subject."""
    return importlib.import_module(f"{__name__}.{name}")


def _requests() -> dict[int, type[Request[Any]]]:
    """Import all subjects and return the request classes by API key."""
    return {
        value.API_KEY: value
        for module in map(_subject, _SUBJECTS)
        for name, value in vars(module).items()
        if name.endswith("Request") and name != "Request"
    }


def release_of(offered: Mapping[str, int]) -> str:
    """Return the newest Kafka release whose new versions a broker offers all, such as "4.1"; "" if
    the broker is older than the oldest supported one. `offered` has the highest version by the
    request's name.

    Requests that a broker does not offer at all, as managed services do, do not count. A release
    without a new version here cannot be distinguished from the one before.
    """
    has_versions: dict[str, list[bool]] = {}
    for request in _requests().values():
        if request.API_NAME in offered:
            for release, version in releases(request).items():
                has_version = offered[request.API_NAME] >= version
                has_versions.setdefault(release, []).append(has_version)
    complete = [release for release, flags in has_versions.items() if all(flags)]
    return max(complete, key=release_number, default="")
