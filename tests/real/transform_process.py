"""One worker that reads, transforms and writes exactly once.

python -m tests.real.transform_process JSON. SIGTERM, or the end of standard input, ends it well.

Its transactional id is new with each start (KIP-447): what fences a worker that lost its partitions
is the group's generation, which goes with the offsets.
"""

from __future__ import annotations

import json
import select
import signal
import sys
import uuid
from dataclasses import asdict, dataclass

from sparkkafka.client import Consumer, Producer, TopicPartition
from sparkkafka.errors import CommitFailedError, KafkaError

POLL_S = 0.1


@dataclass(frozen=True)
class TransformJob:
    """What a worker is told."""

    bootstrap_servers: str
    group_id: str
    source: str
    target: str
    group_protocol: str = "classic"

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    job = TransformJob(**json.loads(sys.argv[1]))
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    reading = {
        "bootstrap.servers": job.bootstrap_servers,
        "group.id": job.group_id,
        "group.protocol": job.group_protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "max.poll.records": 50,
    }
    if job.group_protocol == "classic":
        reading |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
    writing = {
        "bootstrap.servers": job.bootstrap_servers,
        "transactional.id": f"transform-{uuid.uuid4().hex}",
        "transaction.timeout.ms": 10_000,
        "linger.ms": 0,
    }
    with Consumer(reading) as consumer, Producer(writing) as producer:
        consumer.subscribe([job.source])
        producer.init_transactions()
        while not asked and not select.select([sys.stdin], [], [], 0)[0]:
            records = consumer.poll(POLL_S)
            if not records:
                continue
            producer.begin_transaction()
            try:
                offsets = {}
                for record in records:
                    producer.send(job.target, value=b"<" + (record.value or b"") + b">")
                    offsets[TopicPartition(record.topic, record.partition)] = record.next_offset
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                producer.commit_transaction()
            except CommitFailedError as error:  # the group moved on: others read these again
                print(f"aborted: {error}", file=sys.stderr, flush=True)
                producer.abort_transaction()
                go_back(consumer)
            except KafkaError as error:
                print(f"aborted: {type(error).__name__} {error}", file=sys.stderr, flush=True)
                producer.abort_transaction()
                go_back(consumer)


def go_back(consumer: Consumer) -> None:
    """To what the group has committed: what was read since is to be read again."""
    committed = consumer.committed(consumer.assignment())
    for tp in consumer.assignment():
        found = committed.get(tp)
        if found is None:
            consumer.seek_to_beginning([tp])
        else:
            consumer.seek(tp, found.offset)


if __name__ == "__main__":
    main()
