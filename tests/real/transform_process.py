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

from sparkkafka.client import Consumer, Producer
from sparkkafka.errors import KafkaError

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
    requests: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: requests.append(number))
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
        while not requests and not select.select([sys.stdin], [], [], 0)[0]:
            records = consumer.poll(POLL_S)
            if not records:
                continue
            producer.begin_transaction()
            try:
                for record in records:
                    producer.send(job.target, value=b"<" + (record.value or b"") + b">")
                producer.send_offsets_to_transaction(
                    records.next_offsets, consumer.group_metadata()
                )
                producer.commit_transaction()
            except KafkaError as error:  # e.g. the group has moved on: others read these again
                print(f"aborted: {type(error).__name__} {error}", file=sys.stderr, flush=True)
                producer.abort_transaction()
                consumer.seek_to_committed()


if __name__ == "__main__":
    main()
