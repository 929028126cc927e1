"""The session of a verb: client settings, one deadline and an Admin, from the shared options.

    session = session_of(context)              # in a verb
    with session.admin() as admin:             # every call ends at the session's deadline
        admin.list_topics()
    Consumer(session.settings("consumer"))

Nothing here uses the network, and the client is imported only when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from sparkkafka.cli.bounded_admin import BoundedAdmin
    from sparkkafka.cli.profile import Sources
    from sparkkafka.client.deadline import Deadline

MAX_TIMEOUT_S: Final = 86_400 * 24.0
"""Clients keep timeouts as milliseconds of 32 bits."""


class Session:
    """One run of the command."""

    def __init__(self) -> None:
        self.timeout_s = 30.0
        self.has_timeout = False
        """Whether --timeout was given."""
        self.debug = False
        self._sources: dict[str, Any] = {}  # fields of `Sources`
        self._deadline: Deadline | None = None

    def set_option(self, name: str, value: Any) -> None:
        """Set an option of all verbs, by the name of its parameter. The last value counts; values
        of -X accumulate. Raises OptionError for an impossible timeout."""
        if name == "debug":
            self.debug = True
        elif name == "timeout":
            if not 0 < value <= MAX_TIMEOUT_S:  # rejects NaN, too
                raise OptionError(
                    f"--timeout is a number of seconds above 0, of 24 days at most, got {value:g}"
                )
            self.timeout_s = value
            self.has_timeout = True
        elif name == "property":
            self._sources["properties"] = (*self._sources.get("properties", ()), *value)
        else:
            self._sources[name] = value

    @property
    def sources(self) -> Sources:
        """The options that say where settings come from."""
        from sparkkafka.cli.profile import Sources

        return Sources(**self._sources)

    def settings(self, kind: str) -> dict[str, str]:
        """Return the settings for a client: an admin, a consumer or a producer. Raises
        OptionError."""
        from sparkkafka.cli.profile import settings_of

        return settings_of(self.sources, kind)

    def registry_options(self) -> dict[str, str]:
        """Return the options of the Schema Registry, schema.registry.*; empty without any."""
        from sparkkafka.cli.profile import registry_options_of

        return registry_options_of(self.sources)

    @property
    def deadline(self) -> Deadline:
        """The deadline of the verb: --timeout after the first use of this property."""
        if self._deadline is None:
            self._deadline = self.new_deadline()
        return self._deadline

    def new_deadline(self) -> Deadline:
        """Return a deadline of --timeout from now on, for one of several steps."""
        from sparkkafka.client.deadline import Deadline

        return Deadline(self.timeout_s * 1000)

    def admin(self, deadline: Deadline | None = None) -> BoundedAdmin:
        """Return an Admin, which the caller closes. All its calls end at the session's deadline, or
        at `deadline`. Raises OptionError for invalid settings."""
        from sparkkafka.cli.bounded_admin import BoundedAdmin

        return BoundedAdmin(self.settings("admin"), deadline or self.deadline)
