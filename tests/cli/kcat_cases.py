"""Records at the edges of kcat's formats, and the options that print them.

`python -m tests.cli.kcat_cases FOLDER` runs kcat on a broker of its own and writes what it
prints: that is how `tests/vectors/kcat` was made (kcat 1.7.1, librdkafka 2.0.2).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors" / "kcat"
TIME_MS = 1_700_000_000_000

Header = tuple[str, bytes | None]

#: (key, value, headers); timestamps increase by one ms.
RECORDS: list[tuple[bytes | None, bytes | None, list[Header]]] = [
    (b"k", b"v", []),
    (None, b"v", []),
    (b"", b"v", []),
    (b"k", None, []),
    (b"k", b"", []),
    (None, None, []),
    (
        b'q"\\/',
        bytes(range(48)),
        [("h", b"v"), ("n", None), ("e", b""), ('q"', b'a"b\x01')],
    ),
    ("é€😀".encode(), "ü\u2028\x7f".encode(), [("ä", "ö".encode())]),
    (b"\xff\xfe", b"\x80abc", [("b", b"\xff")]),
    (b"k2", b"line\nbreak", [("a", b"1"), ("a", b"2")]),
]

EVERY_LETTER = r"%t|%p|%o|%k|%s|%h|%T|%S|%K|%R|%%|\x41\t\r\n"

#: kcat's options, by the name of the file with its output.
OPTIONS: Mapping[str, list[str]] = {
    "text": [],
    "json": ["-J"],
    "keys": ["-K", ":"],
    "nulls": ["-Z"],
    "keys-nulls": ["-K", r"\t", "-Z"],
    "delimiter": ["-D", r"\x01;\t"],
    "template": ["-f", EVERY_LETTER],
    "template-nulls": ["-Z", "-f", r"%k=%s;%h\n"],
}


def fill(servers: str, topic: str) -> None:
    """Write RECORDS to the empty topic."""
    from sparkkafka.client import Producer

    with Producer({"bootstrap.servers": servers}) as producer:
        for number, (key, value, headers) in enumerate(RECORDS):
            time_ms = TIME_MS + number
            producer.send(topic, value, key, headers, partition=0, timestamp_ms=time_ms)
        producer.flush()


def kcat(servers: str, topic: str, *options: str) -> bytes:
    """Return what kcat prints for the whole topic."""
    command = ["kcat", "-b", servers, "-C", "-q", "-e", "-o", "beginning", "-t", topic, *options]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def main(folder: Path) -> None:
    from sparkkafka.testing.kafka.cluster import KafkaCluster

    folder.mkdir(parents=True, exist_ok=True)
    with KafkaCluster() as cluster:
        cluster.create_topic("odd", partitions=1)
        fill(cluster.bootstrap_servers, "odd")
        for name, options in OPTIONS.items():
            found = kcat(cluster.bootstrap_servers, "odd", *options)
            (folder / f"{name}.bin").write_bytes(found)


def batch() -> Any:
    """Return RECORDS in the form of `poll_arrow`."""
    import pyarrow as pa

    from sparkkafka.client.consumer.record import RECORD_SCHEMA

    rows = [
        {
            "topic": "odd",
            "partition": 0,
            "offset": number,
            "timestamp": (TIME_MS + number) * 1000,
            "timestamp_type": 0,
            "key": key,
            "value": value,
            "headers": [{"key": n, "value": v} for n, v in headers] or None,
            "next_offset": number + 1,
        }
        for number, (key, value, headers) in enumerate(RECORDS)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
