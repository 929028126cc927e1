"""The argument of the fake broker's handlers: a request, the cluster's state, a fault to apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkkafka.testing.fake.faults import ErrorResponse, Fault, RecordedRequest
from sparkkafka.testing.fake.security.authorizer import Authorizer
from sparkkafka.testing.fake.state import ClusterState
from sparkkafka.testing.fake.versions import Release


class CloseConnection(Exception):
    """Raised by a handler: the broker closes the connection without a response."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its way through a broker, as its handler gets it.

    A handler runs with the lock of `changed` held, so that no other thread uses `state` until the
    handler waits on `changed`. A handler that changes what a waiting Fetch may return must notify
    `changed`. `stopped` is set when the broker closes the connection. `injected` is the error that
    the rule `fault` gives this request. `check_records`: whether Produce checks each record.
    """

    state: ClusterState
    release: Release
    request: RecordedRequest
    changed: threading.Condition
    stopped: threading.Event
    injected: ErrorResponse | None
    fault: Fault | None
    check_records: bool
    authorizer: Authorizer

    @property
    def message(self) -> Any:
        return self.request.message

    @property
    def version(self) -> int:
        return self.request.version

    @property
    def broker_id(self) -> int:
        return self.request.broker

    def error_of(
        self, topic: str | None = None, partition: int | None = None
    ) -> ErrorResponse | None:
        """Return the error for this part of the request: a fault rule's, or that of a missing ACL;
        None if it has none."""
        injected = self.injected
        if injected is None or self.fault is None or injected.top_level:
            return self._unauthorized(topic)
        return injected if self.fault.covers(topic, partition) else self._unauthorized(topic)

    @property
    def top_level(self) -> ErrorResponse | None:
        """The error of the whole response: a fault rule's, or that of a missing ACL."""
        if self.injected is not None and self.injected.top_level:
            return self.injected
        return self._unauthorized(None)

    def _unauthorized(self, topic: str | None) -> ErrorResponse | None:
        code = self.authorizer.refusal(topic)
        return None if code is None else ErrorResponse(code)


# Returns the response message, or None if the request gets no response (Produce with acks 0).
Handler: TypeAlias = Callable[[Call], Any]
