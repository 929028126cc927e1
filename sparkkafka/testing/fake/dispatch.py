"""How the fake brokers process a request: decode, record, inject a fault, handle, encode the
response.

`Dispatcher` also keeps the fault rules, the log of requests, and the exceptions of handlers.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from sparkkafka.errors import DecodeError
from sparkkafka.protocol.framing import ServerRequest, decode_request, encode_response
from sparkkafka.protocol.wire.schema import Response
from sparkkafka.testing.fake.broker import BrokerConnection, ResponseFrame
from sparkkafka.testing.fake.call import Call, CloseConnection, Handler
from sparkkafka.testing.fake.faults import (
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Fault,
    Garbage,
    RecordedRequest,
    Throttle,
    WrongCorrelationId,
    as_error_response,
)
from sparkkafka.testing.fake.handlers import (
    API_NAMES,
    API_VERSIONS_KEY,
    HANDLERS,
    refused_api_versions,
)
from sparkkafka.testing.fake.security.authorizer import Authorizer
from sparkkafka.testing.fake.state import ClusterState
from sparkkafka.testing.fake.topic_ids import set_topic_ids, set_topic_names
from sparkkafka.testing.fake.versions import Release

log = logging.getLogger(__name__)


class Dispatcher:
    """Answers the requests of all brokers. The lock of `changed` guards its fields and the state.

    Tests may change `handlers`. `failures` are exceptions of handlers and callable faults.
    """

    def __init__(
        self,
        state: ClusterState,
        release: Release,
        changed: threading.Condition,
        *,
        check_records: bool,
    ) -> None:
        self.handlers: dict[str, Handler] = dict(HANDLERS)
        self.faults: list[Fault] = []
        self.requests: list[RecordedRequest] = []
        self.failures: list[BaseException] = []
        self._state = state
        self._release = release
        self._changed = changed
        self._check_records = check_records

    def notify(self) -> None:
        """Wake all requests that wait, so that they check again."""
        with self._changed:
            self._changed.notify_all()

    def respond(self, payload: bytearray, connection: BrokerConnection) -> ResponseFrame:
        """Return the response to the frame `payload`."""
        try:
            decoded = decode_request(payload)
        except DecodeError as error:
            # A broker closes the connection after a request that it cannot parse.
            log.warning("%s: %s; closing", connection.name, error)
            return ResponseFrame(close=True)
        request = RecordedRequest(
            connection.broker_id,
            API_NAMES.get(decoded.api_key, str(decoded.api_key)),
            decoded.version,
            decoded.message,
            time.monotonic(),
            decoded.client_id,
            decoded.correlation_id,
            connection.number,
        )
        with self._changed:
            set_topic_names(decoded.message, self._state)
            self.requests.append(request)
            rule = next((row for row in self.faults if row.fires_for(request)), None)
            self._changed.notify_all()
            if self._state.sasl.closes(request):
                return ResponseFrame(close=True)
        try:
            # Without the lock: a callable may change the cluster, or wait.
            action = None if rule is None else rule.action
            response: Any = None
            if callable(action):
                action = action(request)
                if isinstance(action, Response):
                    response, action = action, None
            action = as_error_response(action)
            if action is Drop.BEFORE:
                return ResponseFrame(close=True)
            waited_ms = action.ms if isinstance(action, Delay) and action.before else 0
            if waited_ms and connection.stopped.wait(waited_ms / 1000):
                return ResponseFrame(close=True)
            return self._handle(decoded, request, connection, rule, action, response)
        except CloseConnection:
            return ResponseFrame(close=True)
        except Exception as error:
            log.exception("%s: %s v%d", connection.name, request.api, request.version)
            self.failures.append(error)
            return ResponseFrame(close=True)

    def _handle(
        self,
        decoded: ServerRequest,
        request: RecordedRequest,
        connection: BrokerConnection,
        rule: Fault | None,
        action: Any,
        response: Any,
    ) -> ResponseFrame:
        """Call the API's handler, unless a fault has made the response, and encode the response."""
        version = decoded.version
        offered = self._release.versions.get(request.api)
        if response is None:
            if offered is None or not offered[0] <= version <= offered[1]:
                if decoded.api_key != API_VERSIONS_KEY or offered is None:
                    log.warning("%s: no %s v%d; closing", connection.name, request.api, version)
                    return ResponseFrame(close=True)
                version = 0
                response = refused_api_versions(
                    self._release.versions, self._release.names_own_range
                )
            elif decoded.message is None:
                # Offered, but not implemented (Produce 0 to 2, or a version that a test offers).
                log.warning("%s: no %s v%d; closing", connection.name, request.api, version)
                return ResponseFrame(close=True)
            else:
                with self._changed:
                    set_topic_names(decoded.message, self._state)  # a fault may have changed them
                    response = self.handlers[request.api](
                        Call(
                            self._state,
                            self._release,
                            request,
                            self._changed,
                            connection.stopped,
                            action if isinstance(action, ErrorResponse) else None,
                            rule,
                            self._check_records,
                            Authorizer(
                                self._state.acls,
                                self._state.sasl.principal(request.connection),
                                connection.client_host,
                                request,
                            ),
                        )
                    )
        if decoded.message is not None:
            with self._changed:
                set_topic_ids(response, decoded.message, version, self._state)
        if (
            isinstance(action, ErrorResponse)
            and action.top_level
            and not hasattr(response, "error_code")
        ):
            raise TypeError(f"a response to {request.api} has no error field of its own")
        if isinstance(action, Throttle) and response is not None:
            response.throttle_time_ms = action.ms
            if action.empty:
                for topic in response.responses:
                    for row in topic.partitions:
                        row.records = b""
        frame = b""
        if response is not None:
            frame = encode_response(response, version, decoded.correlation_id)
        return _with_fault(frame, action)


def _with_fault(frame: bytes, action: Any) -> ResponseFrame:
    """Return the response to a request that took effect, with the fault `action` applied to it."""
    match action:
        case Drop.AFTER:
            return ResponseFrame(close=True)
        case Delay(ms=ms, before=before):
            return ResponseFrame(frame, delay_s=0 if before else ms / 1000)
        case Throttle(ms=ms):
            return ResponseFrame(frame, mute_s=ms / 1000)
        case CutFrame(size=size):
            return ResponseFrame(frame[:size], close=True)
        case Garbage(data=data, close=close):
            return ResponseFrame(data, close=close)
        case WrongCorrelationId(by=by) if frame:
            correlation_id = (int.from_bytes(frame[4:8], "big") + by) % 2**31
            return ResponseFrame(frame[:4] + correlation_id.to_bytes(4, "big") + frame[8:])
        case None | ErrorResponse() | WrongCorrelationId():
            return ResponseFrame(frame)
        case _:
            raise TypeError(f"a callable fault returned {action!r}")
