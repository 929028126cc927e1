"""One member of a consumer group in a process of its own: python -m tests.real.group_process JSON

It polls, writes down what it was given, then commits: at-least-once. A line of its file is
{"owned": [partition, …]} whenever that changes, or {"read": {partition: [first, last]}} before the
commit of these. SIGTERM, or the end of its standard input, makes it leave the group.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

POLL_S = 0.1
KINDS = ("ours", "confluent", "kafka-python")


@dataclass(frozen=True)
class MemberJob:
    """What a member is told."""

    kind: str
    bootstrap_servers: str
    group_id: str
    topic: str
    assignor: str
    path: str
    group_protocol: str = "classic"
    session_timeout_ms: int = 6000
    heartbeat_interval_ms: int = 300

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def settings(self) -> dict[str, Any]:
        """For clients that know Java's names."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": self.group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": self.group_protocol,
        }
        if self.group_protocol == "classic":
            settings["partition.assignment.strategy"] = self.assignor
            settings["session.timeout.ms"] = self.session_timeout_ms
            settings["heartbeat.interval.ms"] = self.heartbeat_interval_ms
        return settings


class Member(Protocol):
    def poll(self) -> dict[int, list[int]]:
        """Offsets by partition."""

    def commit(self) -> None: ...

    def owned(self) -> Iterable[int]: ...

    def close(self) -> None: ...


class Ours:
    def __init__(self, job: MemberJob) -> None:
        from sparkkafka.client import Consumer

        self._consumer = Consumer(job.settings())
        self._consumer.subscribe([job.topic])

    def poll(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for record in self._consumer.poll(POLL_S):
            found.setdefault(record.partition, []).append(record.offset)
        return found

    def commit(self) -> None:
        from sparkkafka.errors import CommitFailedError

        try:
            self._consumer.commit()
        except CommitFailedError as error:
            say(f"commit: {error}")

    def owned(self) -> Iterable[int]:
        return [tp.partition for tp in self._consumer.assignment()]

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    def __init__(self, job: MemberJob) -> None:
        import confluent_kafka

        self._error = confluent_kafka.KafkaException
        self._consumer = confluent_kafka.Consumer(job.settings())
        self._consumer.subscribe([job.topic])

    def poll(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for message in self._consumer.consume(500, POLL_S):
            if message.error() is None:
                found.setdefault(message.partition(), []).append(message.offset())
            else:
                say(f"poll: {message.error()}")
        return found

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except self._error as error:
            say(f"commit: {error}")

    def owned(self) -> Iterable[int]:
        return [tp.partition for tp in self._consumer.assignment()]

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    def __init__(self, job: MemberJob) -> None:
        # What it waits for, if it does not join.
        logging.basicConfig(level=logging.INFO)
        import kafka
        from kafka.coordinator import assignors
        from kafka.errors import KafkaError

        self._error = KafkaError
        classes = {
            "range": assignors.range.RangePartitionAssignor,
            "roundrobin": assignors.roundrobin.RoundRobinPartitionAssignor,
        }
        self._consumer = kafka.KafkaConsumer(
            job.topic,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[classes[job.assignor]],
            session_timeout_ms=job.session_timeout_ms,
            heartbeat_interval_ms=job.heartbeat_interval_ms,
        )

    def poll(self) -> dict[int, list[int]]:
        polled = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        return {tp.partition: [row.offset for row in rows] for tp, rows in polled.items()}

    def commit(self) -> None:
        try:
            self._consumer.commit()
        except self._error as error:
            say(f"commit: {error}")

    def owned(self) -> Iterable[int]:
        return [tp.partition for tp in self._consumer.assignment()]

    def close(self) -> None:
        self._consumer.close()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    job = MemberJob(**json.loads(sys.argv[1]))
    requests: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: requests.append(number))
    file = os.open(job.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(**what: object) -> None:
        os.write(file, json.dumps(what).encode() + b"\n")

    member: Member = {"ours": Ours, "confluent": Confluent, "kafka-python": KafkaPython}[job.kind](
        job
    )
    last: list[int] = []
    try:
        while not requests and not select.select([sys.stdin], [], [], 0)[0]:
            rows = member.poll()
            if rows:
                # Runs of offsets: a rebalance in the middle of a poll may bring others.
                note(read={str(p): [offsets[0], offsets[-1]] for p, offsets in rows.items()})
                member.commit()
            if (owned := sorted(member.owned())) != last:
                note(owned=owned)
                last = owned
    finally:
        member.close()
        note(owned=[])


if __name__ == "__main__":
    main()
