"""What a handler of the fake broker gets: one request, the cluster's state, a fault to apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkkafka.testing.fake.faults import Answer, Fault, RecordedRequest
from sparkkafka.testing.fake.state import ClusterState
from sparkkafka.testing.fake.versions import Release


class CloseConnection(Exception):
    """The broker ends the connection instead of a reply."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way through a broker.

    Handlers run with the lock of `changed` held, so `state` is theirs alone until they wait on
    `changed`. Whoever changes what a Fetch may wait for notifies it. `stopped` is set when the
    connection is closed from this side.
    """

    state: ClusterState
    release: Release
    request: RecordedRequest
    changed: threading.Condition
    stopped: threading.Event
    answer: Answer | None
    fault: Fault | None
    check_records: bool

    @property
    def message(self) -> Any:
        return self.request.message

    @property
    def version(self) -> int:
        return self.request.version

    @property
    def broker_id(self) -> int:
        return self.request.broker

    def injected(self, topic: str | None = None, partition: int | None = None) -> Answer | None:
        """The error that a fault rule wants for this part of the request."""
        if self.answer is None or self.fault is None or self.answer.top_level:
            return None
        return self.answer if self.fault.covers(topic, partition) else None

    @property
    def top_level(self) -> Answer | None:
        """The error that a fault rule wants for the reply as a whole."""
        return self.answer if self.answer is not None and self.answer.top_level else None


# Returns the response message, or None if the request gets no reply (Produce with acks 0).
Handler: TypeAlias = Callable[[Call], Any]
