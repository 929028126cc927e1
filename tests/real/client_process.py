"""A Producer or a Consumer with much to do, in a process of its own whose memory a test looks at.

    python -m tests.real.client_process send|send_table|poll|poll_arrow BOOTSTRAP TOPIC RECORDS

It writes a line with its number of records now and then, and a last one with their bytes. Each line
waits for one on its standard input, so that a test sees the process between two records.
"""

from __future__ import annotations

import random
import sys
import time

import pyarrow as pa
import pyarrow.compute as pc

from sparkkafka.client import Consumer, Producer, TopicPartition

PARTITIONS = 4
VALUE_BYTES = 1000
STEPS = 20
TABLE_ROWS = 10_000
PATIENCE_S = 60.0

_VALUES = [random.Random(number).randbytes(VALUE_BYTES) for number in range(256)]


def main(kind: str, bootstrap: str, topic: str, count: int) -> None:
    done, size_bytes, step = 0, 0, count // STEPS
    reported = step
    with Client(kind, bootstrap, topic) as client:
        while done < count:
            records, more_bytes = client.go_on(min(step, count - done))
            done += records
            size_bytes += more_bytes
            if done >= reported:
                _say(f"{done}")
                reported += step
        client.finish()
    _say(f"{size_bytes} bytes")


def _say(text: str) -> None:
    print(text, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the test is gone")


class Client:
    """One of the four ways to write or read."""

    def __init__(self, kind: str, bootstrap: str, topic: str) -> None:
        self._kind = kind
        self._topic = topic
        self._client: Producer | Consumer
        # A refresh that finds the leader's connection busy opens a second one, at any time.
        settings = {"bootstrap.servers": bootstrap, "metadata.max.age.ms": "3600000"}
        if kind.startswith("send"):
            compressed = {"compression.type": "lz4"} if kind == "send_table" else {}
            self._client = Producer(settings | compressed)
        else:
            self._client = Consumer(settings | {"auto.offset.reset": "earliest"})
            self._client.assign(TopicPartition(topic, number) for number in range(PARTITIONS))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def go_on(self, most: int) -> tuple[int, int]:
        """Some records more: how many, and the bytes of their values."""
        client = self._client
        if isinstance(client, Producer):
            if self._kind == "send":
                for number in range(most):
                    client.send(self._topic, _VALUES[number % len(_VALUES)])
                return most, most * VALUE_BYTES
            rows = min(most, TABLE_ROWS)
            values = (_VALUES * (rows // len(_VALUES) + 1))[:rows]
            client.send_table(pa.table({"value": pa.array(values, pa.binary())}), self._topic)
            return rows, rows * VALUE_BYTES
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if self._kind == "poll":
                if records := client.poll(1.0):
                    return len(records), sum(len(record.value or b"") for record in records)
            elif rows := (table := client.poll_arrow(1.0)).num_rows:
                return rows, pc.sum(pc.binary_length(table["value"])).as_py()
        raise SystemExit(f"no records within {PATIENCE_S:g} s")

    def finish(self) -> None:
        if isinstance(self._client, Producer):
            self._client.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
