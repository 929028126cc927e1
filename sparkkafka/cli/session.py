"""What the options of all verbs come to: settings of the cluster, one deadline, an Admin.

    session = session_of(context)              # in a verb
    with session.admin() as admin:             # every call ends at the session's deadline
        admin.list_topics()
    Consumer(session.settings("consumer"))

Nothing here is on the network, and the client is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from sparkkafka.cli.bounded_admin import BoundedAdmin
    from sparkkafka.cli.profile import Sources
    from sparkkafka.client.deadline import Deadline

DEFAULT_TIMEOUT_S: Final = 30.0
LONGEST_TIMEOUT_S: Final = 86_400 * 24.0
"""Clients take milliseconds of 32 bits."""


class Session:
    """One run of the command. `timeout_s` is None if --timeout was not given."""

    def __init__(self) -> None:
        self.timeout_s: float | None = None
        self.debug = False
        self._given: dict[str, Any] = {}
        self._deadline: Deadline | None = None

    def give(self, name: str, value: Any) -> None:
        """The value of an option of all verbs, by the name of its parameter. Said twice, the later
        counts; -X adds up. Raises OptionError for a timeout that is none."""
        if name == "debug":
            self.debug = True
        elif name == "timeout":
            if not 0 < value <= LONGEST_TIMEOUT_S:  # a NaN neither
                raise OptionError(
                    f"--timeout is a number of seconds above 0, of 24 days at most, got {value:g}"
                )
            self.timeout_s = value
        elif name == "property":
            self._given[name] = (*self._given.get(name, ()), *value)
        else:
            self._given[name] = value

    @property
    def sources(self) -> Sources:
        from sparkkafka.cli.profile import Sources

        return Sources(
            bootstrap_server=self._given.get("bootstrap_server"),
            profile=self._given.get("profile"),
            config_file=self._given.get("config_file"),
            properties=self._given.get("property", ()),
        )

    def settings(self, kind: str) -> dict[str, str]:
        """Settings for a client of the kind admin, consumer or producer. Raises OptionError."""
        from sparkkafka.cli.profile import settings_of

        return settings_of(self.sources, kind)

    def registry_options(self) -> dict[str, str]:
        """Options of the Schema Registry, schema.registry.*; empty without any."""
        from sparkkafka.cli.profile import registry_options_of

        return registry_options_of(self.sources)

    @property
    def deadline(self) -> Deadline:
        """When the verb must be done: --timeout, or 30 s, after it is first asked for."""
        from sparkkafka.client.deadline import Deadline

        if self._deadline is None:
            self._deadline = Deadline((self.timeout_s or DEFAULT_TIMEOUT_S) * 1000)
        return self._deadline

    def admin(self, deadline: Deadline | None = None) -> BoundedAdmin:
        """An Admin, to be closed, whose calls all end at the session's deadline (or another).

        Raises OptionError for settings that cannot be.
        """
        from sparkkafka.cli.bounded_admin import BoundedAdmin

        return BoundedAdmin(self.settings("admin"), deadline or self.deadline)
