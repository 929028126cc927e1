"""The argument of the fake broker's handlers: a request, the cluster's state, a fault to apply."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.faults import ErrorResponse, Fault, RecordedRequest
from sparkkafka.testing.fake.log.producers import Refused
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
        """Return the error for this part of the request, without a topic for all of it: a fault
        rule's, or that of a missing ACL; None if it has none."""
        injected = self.injected
        if injected is not None and self.fault is not None:
            is_hit = topic is None if injected.top_level else self.fault.covers(topic, partition)
            if is_hit:
                return injected
        return self._unauthorized(topic)

    @property
    def top_level(self) -> ErrorResponse | None:
        """The error that only the whole response can have: a fault rule's, or that of a missing
        ACL."""
        if self.injected is not None and self.injected.top_level:
            return self.injected
        return self._unauthorized(None)

    def _unauthorized(self, topic: str | None) -> ErrorResponse | None:
        code = self.authorizer.refusal(topic)
        return None if code is None else ErrorResponse(code)

    def check_fault(
        self, topic: str | None = None, partition: int | None = None, *, applied: bool = False
    ) -> None:
        """Raise Refused if a fault prevents this part of the request. After a change, with
        `applied`: if a fault reports an error although the request took effect."""
        injected = self.error_of(topic, partition)
        if injected is not None and injected.applied == applied:
            raise Refused(injected.code, injected.message or "")

    def check_controller(self) -> None:
        """Raise Refused if only another broker may make this change."""
        if self.release.has_controller_broker and self.broker_id != self.state.controller_id:
            raise Refused(ErrorCode.NOT_CONTROLLER, "This is not the active controller.")


@contextlib.contextmanager
def reported_in(row: Any) -> Iterator[None]:
    """Set the error fields of this part of a response if the block raises Refused."""
    try:
        yield
    except Refused as error:
        row.error_code = error.code
        if hasattr(row, "error_message"):
            row.error_message = error.message or None


# Returns the response message, or None if the request gets no response (Produce with acks 0).
Handler: TypeAlias = Callable[[Call], Any]
