"""The user's functions for events of connections: `on_connect`, `on_disconnect`, `on_error`.

They are settings of the library's clients, and are called in the thread that opens or uses the
connection. Their exceptions are logged, and the client continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkkafka.errors import KafkaError, OptionError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The user's functions; None if not set. `broker` is "host:port".

    on_connect(broker): a connection is open, encrypted and authenticated.
    on_disconnect(broker): an open connection has ended, for whatever reason; called once for each.
    on_error(broker, error): a connection could not be opened, or broke. The client also raises the
    KafkaError to its caller, or retries.
    """

    on_connect: Callable[[str], object] | None = None
    on_disconnect: Callable[[str], object] | None = None
    on_error: Callable[[str, KafkaError], object] | None = None

    # The client calls these, and they call the user's functions.

    def connected(self, broker: str) -> None:
        _call(self.on_connect, "on_connect", broker)

    def disconnected(self, broker: str) -> None:
        _call(self.on_disconnect, "on_disconnect", broker)

    def failed(self, broker: str, error: KafkaError) -> None:
        _call(self.on_error, "on_error", broker, error)


NO_HOOKS = Hooks()
NAMES = tuple(row.name for row in fields(Hooks))


def hooks_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], Hooks]:
    """Return the settings without the hooks, and the hooks. Raises OptionError for a hook that is
    not a function."""
    settings: dict[str, Any] = {}
    hooks: dict[str, Any] = {}
    for key, value in config.items():
        name = key.lower()
        if name not in NAMES:
            settings[key] = value
            continue
        if value is not None and not callable(value):
            arguments = "(broker, error)" if name == "on_error" else "(broker)"
            raise OptionError(
                f"{name} is a function that is called with {arguments}, got {type(value).__name__}"
            )
        hooks[name] = value
    return settings, Hooks(**hooks)


def _call(hook: Callable[..., object] | None, name: str, broker: str, *more: object) -> None:
    """Call a user's function, if it is set. Its exceptions are logged. `more`: arguments after the
    broker."""
    if hook is None:
        return
    try:
        hook(broker, *more)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit or asyncio's CancelledError would end a client's thread
        log.warning("%s: the hook %s failed; the client continues", broker, name, exc_info=True)
