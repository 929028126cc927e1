"""What a handler of the fake broker gets: one request, the cluster's state, a fault to apply."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkkafka.testing.fake.faults import Answer, Fault, RecordedRequest
from sparkkafka.testing.fake.security.authorizer import Authorizer
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

    def injected(self, topic: str | None = None, partition: int | None = None) -> Answer | None:
        """The error of this part of the request: a fault rule's, or that of a missing ACL."""
        answer = self.answer
        if answer is None or self.fault is None or answer.top_level:
            return self._unauthorized(topic)
        return answer if self.fault.covers(topic, partition) else self._unauthorized(topic)

    @property
    def top_level(self) -> Answer | None:
        """The error of the reply as a whole: a fault rule's, or that of a missing ACL."""
        if self.answer is not None and self.answer.top_level:
            return self.answer
        return self._unauthorized(None)

    def _unauthorized(self, topic: str | None) -> Answer | None:
        code = self.authorizer.refusal(topic)
        return None if code is None else Answer(code)


# Returns the response message, or None if the request gets no reply (Produce with acks 0).
Handler: TypeAlias = Callable[[Call], Any]
