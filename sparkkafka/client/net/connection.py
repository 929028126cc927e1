"""One blocking socket to one broker: connect, handshake, requests and responses under a deadline.

A connection is used by one thread. Requests may be pipelined: call `send` several times, then
`receive` in the same order (Kafka answers a connection's requests in order). After a failure within
a frame the position in the stream is unknown, so the connection closes itself, and every later call
raises KafkaConnectionError. Its users wait after a throttle_time_ms (cluster.py's `throttle`), and
net/pool.py waits before it connects again.

Opening means: connect, TLS, ApiVersions, SASL, as the options say. If the SASL session is about to
expire, the connection re-authenticates before it sends a request (KIP-368): when nothing is in
flight, or, if that does not happen in time, after it has read and stored the responses in flight.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, TypeVar

from sparkkafka import __version__, errors
from sparkkafka.client.arguments import as_bytes, checked_flag, checked_int
from sparkkafka.client.auth.sasl import SessionLifetime, authenticate, connection_security
from sparkkafka.client.deadline import Deadline, deadline_of, seconds_of
from sparkkafka.client.metrics import NetworkMetrics
from sparkkafka.client.net import connecting
from sparkkafka.client.net.frames import FrameBuffer, RequestWriter, ResponseReader
from sparkkafka.client.values import checked_topic
from sparkkafka.config.kinds import INT32_MAX, address_text
from sparkkafka.config.options import ClientOptions
from sparkkafka.hooks import NO_HOOKS
from sparkkafka.protocol import messages
from sparkkafka.protocol.framing import DEFAULT_MAX_FRAME_BYTES, PREFIX_BYTES, Framing
from sparkkafka.protocol.wire.primitives import BytesLike
from sparkkafka.protocol.wire.schema import Request

if TYPE_CHECKING:
    from sparkkafka.protocol.single import PlainRecord

    PlainValue: TypeAlias = BytesLike | str | PlainRecord | None

_ErrorT = TypeVar("_ErrorT", bound=errors.KafkaError)

log = logging.getLogger(__name__)
wire_log = logging.getLogger("sparkkafka.protocol")  # requests and responses, without content

# Brokers since 2.4 support it. Version 4 changes nothing for a client, and with brokers before 3.9
# it would take a second request. So would version 5 (KIP-1242), with which brokers of Kafka 4.4
# check that they are the node of the cluster that is meant; Event Hubs closes at both.
API_VERSIONS_VERSION = 3


class Connection:
    """A connected, handshaken socket to `host:port`, made by `Connection.to` or `Connection.open`.

    `call(request)` sends one request and returns its response; `send` and `receive` pipeline.
    Without a deadline each may take request.timeout.ms. `versions` has the broker's range of
    versions by API key. The settings may have hooks: see `sparkkafka.hooks`."""

    def __init__(
        self,
        sock: socket.socket,
        host: str,
        port: int,
        options: ClientOptions,
        metrics: NetworkMetrics | None = None,
    ) -> None:
        self._sock: socket.socket | None = sock
        self._input_poll = select.poll()
        self._input_poll.register(sock, select.POLLIN)
        context = sock.context if isinstance(sock, ssl.SSLSocket) else None
        self._listener = connecting.Listener(
            address_text(host, port),
            host,
            connecting.peer_of(sock),
            options.security.protocol,
            context,
            options.prefix,
        )
        self._framing = Framing(
            options.client_id, connecting.MAX_OPENING_FRAME_BYTES, options.prefix
        )
        self._reader = ResponseReader(self._framing.frame_length)
        self._writer = RequestWriter()
        self.host = host
        self.port = port
        self._options = options
        self._hooks = NO_HOOKS  # replaced by the options' hooks once the connection is open
        self._meter = (metrics or NetworkMetrics()).connected()
        self._stage = connecting.Stage.OPENING
        self._session: SessionLifetime | None = None
        self._is_reauthenticating = False
        self._early_responses: deque[tuple[int, Any]] = deque()  # read before their `receive`
        self._last_used_at_s = time.monotonic()
        self._has_unread_request = False  # the broker may not have read one with acks=0 yet
        self.features: dict[str, int] = {}
        """The finalized features of the cluster and their levels (KIP-584)."""

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        options: ClientOptions,
        deadline: Deadline,
        metrics: NetworkMetrics | None = None,
    ) -> Self:
        """Connect to one of the host's addresses, begin TLS, agree on versions and authenticate.

        `metrics` counts the traffic.

        Raises KafkaConnectionError naming host and port, with each address's failure;
        AuthenticationError if one side does not trust the other; OptionError for a reference that
        cannot be resolved, or a store that cannot be read.
        """
        where, prefix = address_text(host, port), options.prefix
        try:
            with connecting.kafka_errors_only(where), contextlib.ExitStack() as on_failure:
                security = connection_security(options, host, port)
                sock = connecting.connect(host, port, options, deadline)
                deadline = deadline.sooner(options.request_timeout_ms)
                context, tls = security.context, security.tls_settings
                if context is not None and tls is not None:
                    sock = connecting.start_tls(sock, context, tls, host, where, deadline, prefix)
                connection = cls(sock, host, port, options, metrics)
                on_failure.callback(connection.close)
                connection._handshake(deadline)
                if security.sasl is not None:
                    connection._session = authenticate(connection, security.sasl, deadline, prefix)
                # Until here the limit is low: the server may be any.
                connection._framing.max_frame_bytes = DEFAULT_MAX_FRAME_BYTES
                connection._stage = connecting.Stage.OPEN
                connection._hooks = options.hooks
                log.debug("connected to %s", connection)
                connection._hooks.connected(str(connection))
                on_failure.pop_all()
                return connection
        except errors.KafkaError as error:
            options.hooks.failed(where, error)
            raise

    def _handshake(self, deadline: Deadline) -> None:
        """Request ApiVersions (KIP-35) and store the broker's versions and features. Brokers before
        2.4 refuse the request's version: it is sent again with a lower one."""
        request = messages.ApiVersionsRequest(
            client_software_name="sparkkafka", client_software_version=__version__
        )
        response = self.call(request, deadline, version=API_VERSIONS_VERSION)
        if response.error_code == errors.ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: the refusal has version 0, since 2.4 with ApiVersions' own range in it.
            offered = {api.api_key: api.max_version for api in response.api_keys}
            version = min(
                offered.get(messages.ApiVersionsRequest.API_KEY, 0), API_VERSIONS_VERSION - 1
            )
            response = self.call(request, deadline, version=max(version, 0))
        if response.error_code:
            raise errors.BrokerError(response.error_code, f"ApiVersions @ {self}")
        self._framing.versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }
        self.features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }

    def _reauthenticate(self, deadline: Deadline) -> None:
        """Authenticate again on this connection, before the session expires (KIP-368). Responses
        that are in flight are read first, for later calls of `receive`."""
        while self._framing.in_flight:
            self._early_responses.append(self._read_response(deadline))
        self._is_reauthenticating = True
        try:
            with connecting.kafka_errors_only(str(self)):
                security = connection_security(self._options, self.host, self.port)
                if security.sasl is not None:
                    prefix = self._options.prefix
                    self._session = authenticate(self, security.sasl, deadline, prefix)
        except errors.KafkaError as error:
            self._close_after(error)
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._is_reauthenticating = False
        log.debug("%s: re-authenticated", self)

    @classmethod
    def to(cls, config: Mapping[str, Any], timeout_s: float | None = None) -> Self:
        """Connect to the first of bootstrap.servers that answers; settings as for `Admin`.

        The entries are tried in turn, within `timeout_s` or request.timeout.ms. After that nothing
        is retried, and no other broker is used. Raises OptionError for settings;
        AuthenticationError if the first broker that answers refuses the user; KafkaConnectionError
        with each entry's failure, or for one entry what `open` raises.
        """
        # Imported here: Spark's tasks open connections too, but need none of these settings.
        from sparkkafka.config.client_settings import parse_admin_settings

        options = parse_admin_settings(config)
        del config  # an error's frames may be shown with their variables
        deadline = deadline_of(timeout_s) or Deadline(options.request_timeout_ms)
        addresses = connecting.BootstrapServers(options).addresses()
        if len(addresses) == 1:
            return cls.open(*addresses[0], options, deadline)
        return connecting.connect_to_first(
            addresses,
            lambda host, port, deadline: cls.open(host, port, options, deadline),
            deadline,
            options.prefix,
        )

    def _checked_deadline(self, deadline: Deadline | None) -> Deadline:
        """Return the deadline; for None one of request.timeout.ms. Raises OptionError."""
        if deadline is None:
            return Deadline(self._options.request_timeout_ms)
        if not isinstance(deadline, Deadline):
            raise errors.OptionError(f"deadline is a Deadline(milliseconds), got {deadline!r}")
        return deadline

    def __str__(self) -> str:
        return address_text(self.host, self.port)

    def __repr__(self) -> str:
        return f"<Connection {self}{'' if self.is_open else ' closed'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    @property
    def in_flight(self) -> int:
        """The number of requests whose response the caller has not received."""
        return self._framing.in_flight + len(self._early_responses)

    @property
    def expires_at_s(self) -> float:
        """The monotonic time at which the connection has been idle for connections.max.idle.ms.

        Infinite if that is 0, while a response is expected, and while the broker may not have read
        a request without a response (acks=0). A pool closes a connection after this time: the
        broker, or a firewall, is about to do so, and the next request would be lost (Java's
        Selector.IdleExpiryManager).
        """
        max_idle_s = self._options.connections_max_idle_ms / 1000
        if not max_idle_s or self.in_flight or self._has_unread_request:
            return math.inf
        return self._last_used_at_s + max_idle_s

    @property
    def has_expired(self) -> bool:
        return time.monotonic() >= self.expires_at_s

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open, no response is expected, and no bytes have arrived.
        (Bytes arrive on an idle connection only when the broker has closed it.)"""
        if self._sock is None or self._framing.in_flight or self.has_input:
            return False
        self._reader.prepare_to_poll(self._sock)
        return not self._input_poll.poll(0)

    @property
    def has_input(self) -> bool:
        """Whether bytes have been read from the socket but not returned, which the descriptor does
        not report. Check this before select() and poll()."""
        return bool(self._early_responses) or (
            self._sock is not None and self._reader.has_input(self._sock)
        )

    def receive_in_kernel(self, size_bytes: int) -> None:
        """Let the socket count as readable only once the operating system has received about
        `size_bytes`, the size of the next response, so that one read takes all of it.

        `prepare_to_poll` undoes this: call it before polling the descriptor, not before `receive`.
        """
        if self._sock is not None:
            self._reader.receive_in_kernel(self._sock, size_bytes)

    def prepare_to_poll(self) -> None:
        """Make the descriptor report the next response again, after `receive_in_kernel`."""
        if self._sock is not None:
            self._reader.prepare_to_poll(self._sock)

    @property
    def partial_bytes(self) -> int:
        """The number of bytes of an incomplete response that `receive_ready` has read. While it is
        above 0, the descriptor may not report new bytes until much of the rest has arrived."""
        return self._reader.partial_bytes

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        return dict(self._framing.versions or {})

    def choose_version(self, request_type: Any, highest: int | None = None) -> int:
        """Return the highest common version of a request, at most `highest` (None: the request's
        USUAL_VERSION). Raises UnsupportedVersionError."""
        if not isinstance(getattr(request_type, "API_KEY", None), int):
            raise errors.OptionError(
                "request_type is a class of sparkkafka.protocol.messages, such as MetadataRequest; "
                f"got {request_type!r}"
            )
        if highest is not None and highest.__class__ is not int:
            checked_int(highest, "highest")
        return self._framing.choose_version(request_type, highest)

    def supports(self, request_type: Any, version: int = 0) -> bool:
        """Return whether there is a common version of this request that is at least `version`."""
        checked_int(version, "version")
        try:
            return self.choose_version(request_type) >= version
        except errors.UnsupportedVersionError:
            return False

    def fileno(self) -> int:
        """Return the socket's descriptor, for select(); check `has_input` first.

        Raises KafkaConnectionError when closed.
        """
        return self._socket_or_raise().fileno()

    def close(self) -> None:
        """Close the connection; responses in flight are lost. May be called again."""
        self._close(None)

    def _close_after(self, error: _ErrorT) -> _ErrorT:
        """Close the connection because of this error, and return the error."""
        self._close(error)
        return error

    def _close(self, error: errors.KafkaError | None) -> None:
        """Close the connection, because of `error` if that is not None."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        sock.close()
        self._meter.closed()
        self._writer.unsent.clear()
        if error is not None:
            self._hooks.failed(str(self), error)
        self._hooks.disconnected(str(self))

    def call(
        self, request: Any, deadline: Deadline | None = None, *, version: int | None = None
    ) -> Any:
        """Send one request and return its response.

        Raises KafkaError if another request is in flight, whose response would come first, and what
        `send` and `receive` raise.
        """
        deadline = self._checked_deadline(deadline)
        # To re-authenticate, earlier responses were read, and wait for the caller.
        waiting = self._framing.in_flight if self._is_reauthenticating else self.in_flight
        if waiting and self.is_open:
            raise errors.KafkaError(
                f"{self}: call while {waiting} request{'s are' if waiting > 1 else ' is'} in "
                "flight: first get the responses with receive, or use only send and receive"
            )
        correlation_id = self.send(request, deadline, version=version)
        answered_id, response = self.receive(deadline)
        if answered_id != correlation_id:
            raise self._close_after(
                errors.DecodeError(f"response {answered_id} of {self} to request {correlation_id}")
            )
        return response

    # --- one partition, for trying things by hand -----------------------------------------------

    def produce(
        self,
        topic: str,
        partition: int,
        records: PlainValue | Iterable[PlainValue],
        *,
        acks: int = -1,
        compression: str = "none",
        deadline: Deadline | None = None,
    ) -> int:
        """Write records, as one batch, to a partition that this broker leads; returns the offset of
        the first, -1 with acks=0.

        A record is a value (bytes, or text as UTF-8; None is a tombstone), with the present time,
        or a `sparkkafka.protocol.PlainRecord`; a single one needs no list. `acks` is -1 (all
        in-sync replicas), 1 or 0. Raises BrokerError, EncodeError, OptionError, and what `call`
        raises."""
        # Imported here: it needs Arrow, which planning in Spark does not use.
        from sparkkafka.protocol.single import PlainRecord, encode_batch

        partition, where = self._checked_partition("Produce", topic, partition)
        if checked_int(acks, "acks") not in (-1, 0, 1):
            raise errors.OptionError(f"acks is -1, 0 or 1, got {acks}")
        if records is None or isinstance(
            records, PlainRecord | bytes | bytearray | memoryview | str
        ):
            records = [records]
        elif not isinstance(records, Iterable) or isinstance(records, Mapping):
            raise errors.OptionError(
                "records are bytes, text or a PlainRecord, or a list of these, got "
                f"{type(records).__name__}"
            )
        now_ms = int(time.time() * 1000)
        plain_records = [
            record
            if isinstance(record, PlainRecord)
            else PlainRecord(
                None if record is None else as_bytes(f"record {number}: the value", record),
                timestamp_ms=now_ms,
            )
            for number, record in enumerate(records)
        ]
        data = messages.PartitionProduceData(
            index=partition, records=encode_batch(plain_records, compression=compression)
        )
        request = messages.ProduceRequest(
            acks=acks,
            timeout_ms=self._options.request_timeout_ms,
            topic_data=[messages.TopicProduceData(name=topic, partition_data=[data])],
        )
        if not acks:
            self.send(request, deadline, expect_response=False)
            return -1
        response = self.call(request, deadline)
        produced = self._single_partition(
            where, (topic.partition_responses for topic in response.responses)
        )
        return int(produced.base_offset)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        deadline: Deadline | None = None,
    ) -> list[PlainRecord]:
        """Read records of a partition that this broker leads, from an offset on: about `max_bytes`,
        [] if none arrived within `max_wait_ms`.

        Records of aborted and open transactions are among them. Raises BrokerError
        (OFFSET_OUT_OF_RANGE for an offset that the partition does not have), CorruptRecordError,
        OptionError, and what `call` raises.
        """
        from sparkkafka.protocol.single import decode_records

        partition, where = self._checked_partition("Fetch", topic, partition)
        offset = checked_int(offset, "offset", 0)
        max_bytes = checked_int(max_bytes, "max_bytes", 0, INT32_MAX)
        max_wait_ms = checked_int(max_wait_ms, "max_wait_ms", 0, INT32_MAX)
        requested = messages.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = messages.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[messages.FetchTopic(topic=topic, partitions=[requested])],
        )
        response = self.call(request, deadline)
        if response.error_code:
            raise errors.BrokerError(response.error_code, where)
        fetched = self._single_partition(where, (topic.partitions for topic in response.responses))
        # The batch that contains the offset may begin before it.
        return [
            record
            for record in decode_records(fetched.records or b"")
            if record.offset is not None and record.offset >= offset
        ]

    def list_offsets(
        self, topic: str, partition: int, timestamp: int = -1, *, deadline: Deadline | None = None
    ) -> int:
        """Return an offset of a partition that this broker leads: its end (`timestamp` -1), that of
        its first record (-2), or of the first record of this time or later (milliseconds since
        1970); -1 if there is none. Raises BrokerError, OptionError, and what `call` raises."""
        partition, where = self._checked_partition("ListOffsets", topic, partition)
        timestamp = checked_int(timestamp, "timestamp")
        requested = messages.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [messages.ListOffsetsTopic(name=topic, partitions=[requested])]
        request = messages.ListOffsetsRequest(replica_id=-1, topics=topics)  # -1: a consumer
        response = self.call(request, deadline)
        listed = self._single_partition(where, (topic.partitions for topic in response.topics))
        return int(listed.offset)

    def _checked_partition(self, api: str, topic: str, partition: int) -> tuple[int, str]:
        """Return the partition's number, and the name of its request for errors. Raises OptionError
        if the arguments cannot be a partition."""
        checked_topic(topic)
        number = checked_int(partition, "partition", 0, INT32_MAX)
        return number, f"{api} of {topic}-{number} @ {self}"

    def _single_partition(self, where: str, topics: Iterable[Iterable[Any]]) -> Any:
        """Return the only partition of a response about one; `topics` has the partitions of each
        topic in it. Raises BrokerError for the partition's error."""
        partition = next((partition for partitions in topics for partition in partitions), None)
        code = errors.ErrorCode.UNKNOWN_SERVER_ERROR if partition is None else partition.error_code
        if code:
            message = (
                "the response does not contain the partition"
                if partition is None
                else getattr(partition, "error_message", None)
            )
            raise errors.BrokerError(code, where, message)
        return partition

    # --- any request ----------------------------------------------------------------------------

    def send(
        self,
        request: Any,
        deadline: Deadline | None = None,
        *,
        version: int | None = None,
        expect_response: bool = True,
        patience_s: float | None = None,
    ) -> int:
        """Write a request and return its correlation id. `version` None: the highest common one.

        If the broker accepts nothing for `patience_s`, the rest is sent later: by `send_rest`, or
        before the next request or `receive`. `has_unsent` says whether there is some.

        Raises OptionError if it is not a request; EncodeError or UnsupportedVersionError before
        anything is sent; KafkaConnectionError or KafkaTimeoutError, after which the connection is
        closed; AuthenticationError if a session that is about to expire cannot be renewed.
        """
        if not isinstance(request, Request):
            raise errors.OptionError(
                "a request is one of sparkkafka.protocol.messages, such as "
                f"MetadataRequest(topics=None); got {request!r}"
            )
        # Without calls for usual values: a producer sends a request for each lone record.
        if expect_response.__class__ is not bool:
            checked_flag(expect_response, "expect_response")
        if patience_s is not None:
            patience_s = seconds_of(patience_s, "patience_s")
        if version is not None and version.__class__ is not int:
            checked_int(version, "version")
        if deadline.__class__ is not Deadline:
            deadline = self._checked_deadline(deadline)
        if (
            self._session is not None
            and not self._is_reauthenticating
            and self.is_open
            and self._session.must_reauthenticate(in_flight=self._framing.in_flight > 0)
        ):
            self._reauthenticate(deadline)
        sock = self._socket_or_raise()
        correlation_id, parts = self._framing.send_parts(
            request, version, expect_response=expect_response
        )
        size = sum(map(len, parts))
        if wire_log.isEnabledFor(logging.DEBUG):
            wire_log.debug("%s <- %s #%d, %d bytes", self, request.API_NAME, correlation_id, size)
        self._last_used_at_s = sent_at_s = time.monotonic()
        self._has_unread_request = self._has_unread_request or not expect_response
        try:
            self._writer.write(sock, parts, deadline, patience_s)
            # Not before the write: now the broker is at work.
            self._meter.sent(request.API_NAME, size, sent_at_s, expects_response=expect_response)
        except BaseException as error:
            self._raise_closed(error, f"sending {request.API_NAME}", sent_at_s)
        return correlation_id

    @property
    def has_unsent(self) -> bool:
        """Whether a part of a request has not been sent yet."""
        return bool(self._writer.unsent)

    def send_rest(self, deadline: Deadline | None = None, patience_s: float = 0.0) -> None:
        """Send the rest of earlier requests, as far as the broker accepts it. Raises the errors of
        `send`."""
        patience_s = seconds_of(patience_s, "patience_s")
        deadline = self._checked_deadline(deadline)
        sock = self._socket_or_raise()
        started_at_s = time.monotonic()
        try:
            self._writer.write_rest(sock, deadline, patience_s)
        except BaseException as error:
            self._raise_closed(error, "sending a request", started_at_s)

    def receive(self, deadline: Deadline | None = None) -> tuple[int, Any]:
        """Read the next response, and return (correlation id, response)."""
        deadline = self._checked_deadline(deadline)
        if self._early_responses and not self._is_reauthenticating:
            return self._early_responses.popleft()
        if not self._framing.in_flight and self.is_open:
            raise errors.KafkaError(
                f"{self}: receive without a request in flight: no response will come"
            )
        return self._note_response(self._read_response(deadline))

    def _note_response(self, received: tuple[int, Any]) -> tuple[int, Any]:
        """Log a response to a request of a caller, and note that the listener answers such
        requests. Return (correlation id, response)."""
        if wire_log.isEnabledFor(logging.DEBUG):
            correlation_id, response = received
            code = getattr(response, "error_code", 0)
            error = f", {errors.error_name(code)}" if code else ""
            wire_log.debug("%s -> %s #%d%s", self, type(response).__name__, correlation_id, error)
        if self._stage is connecting.Stage.OPEN:
            self._stage = connecting.Stage.ANSWERED
        return received

    def _read_response(self, deadline: Deadline) -> tuple[int, Any]:
        """Send what is unsent, then read the next response. Return (correlation id, response)."""
        sock = self._socket_or_raise()
        started_at_s = time.monotonic()
        try:
            self._writer.write_rest(sock, deadline)
            return self._decode_response(self._reader.read(sock, FrameBuffer(), deadline))
        except BaseException as error:
            self._raise_closed(error, "waiting for a response", started_at_s)

    def _decode_response(self, response: memoryview) -> tuple[int, Any]:
        """Count a response and decode it. Return (correlation id, response)."""
        self._last_used_at_s = time.monotonic()
        self._meter.received(PREFIX_BYTES + len(response), self._last_used_at_s)
        # A broker handles requests in order, so it has read all before this one.
        self._has_unread_request = False
        return self._framing.receive(response)

    def receive_ready(self, buffer: FrameBuffer) -> tuple[int, Any] | None:
        """Read what has arrived of the next response, without waiting. Return (correlation id,
        response) once it is complete, None until then.

        For callers that wait for several brokers together (`fileno`, `has_input`). `buffer` belongs
        to this response until it is complete.
        """
        if self._early_responses:
            return self._early_responses.popleft()
        sock = self._socket_or_raise()
        started_at_s = time.monotonic()
        try:
            response = self._reader.read_ready(sock, buffer)
            return (
                None if response is None else self._note_response(self._decode_response(response))
            )
        except BaseException as error:
            self._raise_closed(error, "waiting for a response", started_at_s)

    def _raise_closed(self, error: BaseException, doing: str, started_at_s: float) -> NoReturn:
        """Close the connection because of any error in what it was `doing` since `started_at_s`
        (monotonic), and raise the error: the socket's as a KafkaError."""
        if isinstance(error, errors.DecodeError):
            raise self._close_after(errors.DecodeError(f"{self}: {error}")) from error
        if isinstance(error, OSError):
            # KafkaConnectionError is an OSError: the end of the stream is one of these too.
            is_kafka = self._framing.versions is not None
            failure = connecting.connection_error(
                self._listener, self._stage, doing, error, started_at_s, is_kafka=is_kafka
            )
            raise self._close_after(failure) from error
        self.close()
        raise error

    def _socket_or_raise(self) -> socket.socket:
        """Return the socket. Raises KafkaConnectionError if the connection is closed."""
        if self._sock is None:
            raise errors.KafkaConnectionError(f"{self}: the connection is closed")
        return self._sock
