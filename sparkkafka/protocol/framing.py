"""One connection's conversation without its socket: frames, headers, versions, correlation ids.

A frame is an int32 size, a header, and a message body. Requests have header version 1, or 2 (the
same with tagged fields) when their version is flexible; responses have version 0, or 1 with tagged
fields. The client id keeps its int16 length in both (Kafka's RequestHeader.json).
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkkafka.errors import DecodeError, EncodeError, ErrorCode, UnsupportedVersionError
from sparkkafka.protocol.constants import MAX_INT32
from sparkkafka.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from sparkkafka.protocol.wire.codec import decode_from, encode_into, value_codec
from sparkkafka.protocol.wire.primitives import BytesLike, Reader, Writer
from sparkkafka.protocol.wire.schema import (
    OLDEST_KAFKA,
    STRING,
    Message,
    Request,
    Response,
    first_kafka,
    is_flexible,
)

PREFIX_BYTES = 4  # the size before each frame
_REQUEST_START = struct.Struct(">ihhi")  # size, API key, version, correlation id
_CLIENT_ID = value_codec(STRING, nullable=True, version=0, flexible=False)

DEFAULT_MAX_FRAME_BYTES = 256 * 1024 * 1024

_MIN_FRAME_BYTES = 4  # a correlation id


class _Pending(NamedTuple):
    """A request that was sent and is not answered yet."""

    correlation_id: int
    request_type: type[Request[Any]]
    version: int


class Framing:
    """The client's side of one connection.

    `send` makes frames, `receive` takes the payloads of the responses, in the order of the
    requests. After any DecodeError the position in the stream is lost: close the connection.
    `prefix` stands before the names of settings in error messages: "kafka." in Spark.
    """

    def __init__(
        self,
        client_id: str | None,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        prefix: str = "",
    ) -> None:
        self.client_id = client_id
        self.max_frame_bytes = max_frame_bytes
        self._prefix = prefix
        # The broker's version range per API key; the reader of ApiVersionsResponse sets it.
        self.versions: Mapping[int, tuple[int, int]] | None = None
        writer = Writer()
        _CLIENT_ID.write(writer, client_id)
        self._client_id_bytes = writer.getvalue()
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()

    @property
    def in_flight(self) -> int:
        """The number of requests without a response yet."""
        return len(self._pending)

    def choose_version(self, request_type: type[Request[Any]], highest: int | None = None) -> int:
        """Return the highest version that both sides know, at most `highest` (None: the usual one).
        Before the broker's versions are known only ApiVersions can be sent, in our usual version.

        Raises UnsupportedVersionError, which names the API and both ranges.
        """
        name, lowest = request_type.API_NAME, request_type.MIN_VERSION
        highest = request_type.USUAL_VERSION if highest is None else highest
        if self.versions is None:
            if request_type is ApiVersionsRequest:
                return highest
            raise UnsupportedVersionError(
                f"{name}: the broker's versions are not known yet, ApiVersions comes first"
            )
        offered = self.versions.get(request_type.API_KEY)
        if offered is None:
            kafka = first_kafka(request_type, lowest)
            have = f"{kafka} or later has it"
            if kafka in ("", OLDEST_KAFKA):  # a service leaves it out
                have = "although every supported Kafka has it"
            raise UnsupportedVersionError(
                f"{name} (API key {request_type.API_KEY}) is not offered by the broker, {have}; "
                f"this client has versions {lowest} to {highest}"
            )
        broker_lowest, broker_highest = offered
        version = min(highest, broker_highest)
        if version < max(lowest, broker_lowest):
            kafka = first_kafka(request_type, lowest) if broker_highest < lowest else ""
            raise UnsupportedVersionError(
                f"{name}: the broker has versions {broker_lowest} to {broker_highest}, "
                f"this client {lowest} to {highest}" + (f" ({kafka} or later)" if kafka else "")
            )
        return version

    def send(
        self, request: Request[Any], version: int | None = None, *, expect_response: bool = True
    ) -> tuple[int, bytes]:
        """Make a request's frame: (its correlation id, the whole frame, size prefix included).

        `version` None takes the highest common one. `expect_response` False is for Produce with
        acks 0, which brokers do not answer. Raises EncodeError and UnsupportedVersionError, and
        then nothing has changed.
        """
        correlation_id, parts = self.send_parts(request, version, expect_response=expect_response)
        return correlation_id, b"".join(parts)

    def send_parts(
        self, request: Request[Any], version: int | None = None, *, expect_response: bool = True
    ) -> tuple[int, list[BytesLike]]:
        """Make a frame as `send` does, in parts, so that large records need not be copied."""
        request_type = type(request)
        if version is None:
            version = self.choose_version(request_type)
        correlation_id = self._next_correlation_id
        writer = Writer()
        # The size becomes known at the end.
        writer.buffer += _REQUEST_START.pack(0, request.API_KEY, version, correlation_id)
        writer.buffer += self._client_id_bytes
        if is_flexible(request_type, version):
            writer.buffer.append(0)  # no tagged fields
        encode_into(writer, request, version)
        parts = _finish_frame(writer, request)
        self._next_correlation_id = 0 if correlation_id == MAX_INT32 else correlation_id + 1
        if expect_response:
            self._pending.append(_Pending(correlation_id, request_type, version))
        return correlation_id, parts

    def frame_length(self, prefix: BytesLike) -> int:
        """Return the number of bytes that follow the 4 bytes of `prefix`.

        Raises DecodeError for a size that no broker sends, and says so if the bytes are the
        beginning of another protocol.
        """
        size = int.from_bytes(prefix, "big", signed=True)
        if len(prefix) != PREFIX_BYTES:
            size = Reader(prefix).int32()  # raises if it is shorter
        if _MIN_FRAME_BYTES <= size <= self.max_frame_bytes:
            return size
        raise DecodeError(
            _explain_bad_size(
                bytes(prefix[:PREFIX_BYTES]), size, self.max_frame_bytes, self._prefix
            ),
            0,
        )

    def receive(self, payload: BytesLike) -> tuple[int, Any]:
        """Decode the response in a frame's payload, without the size prefix: (its correlation id,
        the response).

        Records in it are memoryviews of `payload`. Raises DecodeError, also for a response to
        another request than the oldest one in flight: Kafka answers in order.
        """
        if not self._pending:
            raise DecodeError(f"a frame of {len(payload)} bytes, but no request is in flight", 0)
        pending = self._pending.popleft()
        request_type, version = pending.request_type, pending.version
        reader = Reader(payload)
        correlation_id = reader.int32()
        if correlation_id != pending.correlation_id:
            raise DecodeError(
                f"response to request {correlation_id} where the one to {pending.correlation_id} "
                f"({request_type.API_NAME}) is due",
                0,
            )
        if request_type is ApiVersionsRequest:
            # Its response has header version 0 always (KIP-511), so no tagged fields.
            if Reader(payload, reader.pos).int16() == ErrorCode.UNSUPPORTED_VERSION:
                return correlation_id, _refused_versions(reader)
        elif is_flexible(request_type, version):
            reader.tagged_fields()
        # Bytes after the end are ignored, as in Java's client: librdkafka's mock cluster ends
        # its Metadata with one too many.
        return correlation_id, decode_from(reader, request_type.RESPONSE, version)


def _refused_versions(reader: Reader) -> Any:
    """Decode a broker's refusal of the version of an ApiVersions request.

    Its body has version 0, since the broker cannot know what else a client understands (KIP-511).
    librdkafka's mock cluster sends another form, neither that of version 0 nor that of the request.
    Then only the error code is certain: the response lists no versions, and the client requests
    version 0, as Java's does (NetworkClient).
    """
    try:
        return decode_from(reader, ApiVersionsResponse, 0, to_end=True)
    except DecodeError:
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)


class ServerRequest(NamedTuple):
    """A request as a broker sees it; `message` is None if its API or version is not known."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Request[Any] | None


def decode_request(payload: BytesLike) -> ServerRequest:
    """Decode a request frame without its size prefix, as a broker does; for test brokers.

    Raises DecodeError.
    """
    # Here, not above: it imports all messages, and clients need a few.
    from sparkkafka.protocol.messages import REQUESTS

    reader = Reader(payload)
    api_key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
    client_id = _CLIENT_ID.read(reader)
    request_type = REQUESTS.get(api_key)
    message: Request[Any] | None = None
    if request_type is not None and request_type.MIN_VERSION <= version <= request_type.MAX_VERSION:
        if is_flexible(request_type, version):
            reader.tagged_fields()
        message = decode_from(reader, request_type, version, to_end=True)
    return ServerRequest(api_key, version, correlation_id, client_id, message)


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Make the whole frame of a response, as a broker does; for test brokers.

    Raises EncodeError and UnsupportedVersionError.
    """
    writer = Writer()
    try:
        writer.buffer += struct.pack(">ii", 0, correlation_id)  # 0: the size, set at the end
    except struct.error:
        raise EncodeError(f"{correlation_id!r} is not int32") from None
    if response.REQUEST is not ApiVersionsRequest and is_flexible(type(response), version):
        writer.tagged_fields([])
    encode_into(writer, response, version)
    return b"".join(_finish_frame(writer, response))


def _finish_frame(writer: Writer, message: Message) -> list[BytesLike]:
    """Set the size at the beginning of the frame in `writer`, and return the frame's parts."""
    parts = writer.parts()
    size = sum(map(len, parts)) - PREFIX_BYTES
    if size > MAX_INT32:
        raise EncodeError(f"{type(message).__name__}: {size} bytes are more than a frame holds")
    struct.pack_into(">i", parts[0], 0, size)
    return parts


def is_tls(data: bytes) -> bool:
    """Return whether these bytes begin a TLS record with a handshake or an alert."""
    kinds = (0x15, 0x16)  # alert, handshake
    # Then two bytes of version: 3.0 is SSL 3, and 3.4 TLS 1.3.
    return len(data) > 2 and data[0] in kinds and data[1] == 3 and data[2] <= 4


def _explain_bad_size(prefix: bytes, size: int, max_frame_bytes: int, settings_prefix: str) -> str:
    """Return the error message for 4 bytes that are not the size of a frame: which other protocol
    they begin, or that `size`, the bytes as a number, is impossible. `settings_prefix` stands
    before the name of a setting."""
    if prefix.upper() == b"HTTP":
        return "the response is HTTP: this port is a web server's, not a Kafka listener's"
    # The beginning of <!DOCTYPE, <html or <?xml, perhaps after blanks: a web server that could not
    # read the request may answer without a status line.
    if re.fullmatch(rb"[ \t\r\n]*<(?:[!?/a-z].*)?", prefix, re.IGNORECASE | re.DOTALL):
        return "the response is HTML: this port is a web server's, not a Kafka listener's"
    if is_tls(prefix):
        return (
            f"the response is TLS: this listener wants {settings_prefix}security.protocol SSL or "
            "SASL_SSL"
        )
    if prefix == b"SSH-":
        return "the response is SSH: this port is not a Kafka listener's"
    if size < _MIN_FRAME_BYTES:
        return f"frame of {size} bytes, which is too small for a response"
    return f"frame of {size} bytes, the limit is {max_frame_bytes}; is this a Kafka listener?"
