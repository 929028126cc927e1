"""Make `records.json` again: record bytes as other clients write them. Not run by the tests.

    python tests/vectors/capture.py

librdkafka (confluent-kafka) is asked to produce to a loopback socket that answers ApiVersions,
Metadata, InitProducerId and Produce with hand-packed bytes and keeps what Produce carried. By
telling it that the broker knows only old Produce versions it writes magic 0 and 1. kafka-python is
called without a socket. Nothing of sparkkafka is used, so that the vectors know nothing of it.
"""

from __future__ import annotations

import base64
import datetime
import json
import socket
import struct
import threading
import types
import zlib
from pathlib import Path
from typing import Any

import confluent_kafka
import cramjam
import kafka
import kafka.codec
from kafka.record.memory_records import MemoryRecordsBuilder

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "vectors"
BASE_TIMESTAMP = 1_700_000_000_000
Row = dict[str, Any]

# The highest Produce version offered decides the magic that librdkafka writes.
PRODUCE_VERSIONS = {0: (0, 1), 1: (0, 2), 2: (0, 7)}
FETCH_VERSIONS = {0: (0, 1), 1: (0, 2), 2: (0, 10)}


def rows(magic: int) -> list[Row]:
    """What every vector holds: nulls, empties, tombstones, headers, and one long value."""
    content: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"key-0", b"value-0", []),
        (None, b"no key", []),
        (b"tombstone", None, []),
        (b"", b"", []),
        (b"headers", b"v", [("a", b"1"), ("a", None), ("", b"")]),
        ("schlüssel".encode(), bytes(range(256)), []),
        (b"long", b"0123456789abcdef" * 2500, []),
    ]
    content += [(b"k%d" % i, b'{"id":%d,"city":"Berlin"}' % i, []) for i in range(7, 13)]
    return [
        {
            "offset": offset,
            "timestamp": BASE_TIMESTAMP + (offset * 37) % 100 if magic else -1,
            "key": key,
            "value": value,
            "headers": headers if magic == 2 else [],
        }
        for offset, (key, value, headers) in enumerate(content)
    ]


class LoopbackBroker:
    """Keeps the record bytes of each Produce request. Speaks non-flexible versions only."""

    def __init__(self, magic: int) -> None:
        self.magic = magic
        self.captured: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream:
            while len(prefix := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(prefix, "big"))
                key, version, correlation_id, id_size = struct.unpack_from(">hhih", frame)
                body = self._respond(key, version, frame[10 + max(id_size, 0) :])
                client.sendall(struct.pack(">ii", len(body) + 4, correlation_id) + body)

    def _respond(self, key: int, version: int, body: bytes) -> bytes:
        if key == 18:
            apis = {
                0: PRODUCE_VERSIONS[self.magic],
                1: FETCH_VERSIONS[self.magic],
                2: (0, 1),
                3: (0, 1),
                10: (0, 0),  # never asked; librdkafka takes it as the sign of a broker with lz4
                18: (0, 0),
            }
            if self.magic == 2:
                apis[22] = (0, 0)
            out = struct.pack(">hi", 35 if version else 0, len(apis))
            return out + b"".join(struct.pack(">hhh", api, *span) for api, span in apis.items())
        if key == 3:
            host = b"127.0.0.1"
            out = struct.pack(">iih", 1, 0, len(host)) + host + struct.pack(">i", self.port)
            if version:
                out += struct.pack(">hi", -1, 0)  # rack, controller
            out += struct.pack(">ihh", 1, 0, len(TOPIC)) + TOPIC.encode()
            out += b"\0" if version else b""
            return out + struct.pack(">ihiiiiii", 1, 0, 0, 0, 1, 0, 1, 0)
        if key == 22:
            return struct.pack(">ihqh", 0, 0, 4711, 3)
        if key == 0:
            position = 0
            if version >= 3:
                position = 2 + max(struct.unpack_from(">h", body)[0], 0)
            position += 2 + 4 + 4  # acks, timeout, one topic
            position += 2 + len(TOPIC) + 4 + 4  # its name, one partition, its index
            size = struct.unpack_from(">i", body, position)[0]
            self.captured.append(body[position + 4 : position + 4 + size])
            out = struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode()
            out += struct.pack(">iihq", 1, 0, 0, 0)
            out += struct.pack(">q", -1) if version >= 2 else b""
            out += struct.pack(">q", 0) if version >= 5 else b""
            return out + (struct.pack(">i", 0) if version >= 1 else b"")
        raise ValueError(f"api {key} version {version}")


def librdkafka(magic: int, codec: str, *, idempotent: bool = False) -> bytes:
    broker = LoopbackBroker(magic)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "compression.type": codec,
            "linger.ms": 500,
            "enable.idempotence": idempotent,
            "message.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    for row in rows(magic):
        producer.produce(
            TOPIC,
            key=row["key"],
            value=row["value"],
            partition=0,
            timestamp=max(row["timestamp"], 0),
            headers=row["headers"] or None,
        )
    left = producer.flush(10)
    broker.close()
    if left or len(broker.captured) != 1:
        raise RuntimeError(f"{left} messages left, {len(broker.captured)} requests")
    return broker.captured[0]


def kafka_python(magic: int, codec: str) -> bytes:
    # Its snappy comes from python-snappy, a thin wrapper of cramjam: the same calls.
    kafka.codec.snappy = types.SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
    )
    builder = MemoryRecordsBuilder(
        magic=magic, compression_type=CODECS.index(codec), batch_size=1 << 20
    )
    for row in rows(magic):
        builder.append(
            timestamp=row["timestamp"], key=row["key"], value=row["value"], headers=row["headers"]
        )
    builder.close()
    return bytes(builder.buffer())


def _text(data: bytes | None) -> str | None:
    # zlib only keeps the file small: the long value is one pattern.
    return None if data is None else base64.b64encode(zlib.compress(data, 9)).decode()


def main() -> None:
    vectors = []
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    rdkafka_name = (
        f"librdkafka {confluent_kafka.libversion()[0]} "
        f"(confluent-kafka {confluent_kafka.version()}), loopback socket"
    )
    kafka_python_name = f"kafka-python {kafka.__version__}, MemoryRecordsBuilder"
    for magic in (0, 1, 2):
        for codec in CODECS:
            if codec == "zstd" and magic < 2:
                continue
            sources = {rdkafka_name: librdkafka(magic, codec)}
            if not (codec == "lz4" and magic == 0):  # needs a package that we do not have
                sources[kafka_python_name] = kafka_python(magic, codec)
            vectors += [
                {"origin": origin, "date": today, "magic": magic, "codec": codec, "idempotent": 0}
                | {"data": _text(data)}
                for origin, data in sources.items()
            ]
    data = librdkafka(2, "lz4", idempotent=True)
    vectors.append(
        {"origin": rdkafka_name, "date": today, "magic": 2, "codec": "lz4", "idempotent": 1}
        | {"data": _text(data)}
    )
    expected = {
        str(magic): [
            row
            | {"key": _text(row["key"]), "value": _text(row["value"])}
            | {"headers": [[name, _text(value)] for name, value in row["headers"]]}
            for row in rows(magic)
        ]
        for magic in (0, 1, 2)
    }
    path = Path(__file__).with_name("records.json")
    path.write_text(json.dumps({"expected": expected, "vectors": vectors}, indent=1) + "\n")
    print(f"{len(vectors)} vectors in {path.name}")


if __name__ == "__main__":
    main()
