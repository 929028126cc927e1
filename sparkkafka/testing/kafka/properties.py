"""Broker properties of test clusters: defaults, those that tests cannot set, and the file
format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: Properties that the cluster sets itself: identity, addresses and folders.
MANAGED_PROPERTIES = frozenset(
    {
        "process.roles",
        "node.id",
        "controller.quorum.voters",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "log.dirs",
    }
)


def default_properties(brokers: int) -> dict[str, str]:
    """Return broker properties for tests: quick start, quick failover, no retention by time."""
    copies = str(min(brokers, 3))
    return {
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "2" if brokers > 2 else "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "2" if brokers > 2 else "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "default.replication.factor": "1",
        # A group's first member need not wait for others.
        "group.initial.rebalance.delay.ms": "0",
        # Sessions may be short (6000 in Kafka, and 45000 where the brokers assign), and members
        # whose partitions the brokers assign get a new assignment soon (5000).
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "300",
        "group.share.min.heartbeat.interval.ms": "100",
        "group.share.heartbeat.interval.ms": "300",
        # Locks of a share group's records may be short (15000).
        "group.share.min.record.lock.duration.ms": "1000",
        # A test that misspells a topic must fail.
        "auto.create.topics.enable": "false",
        # A killed broker's leaders move, and it may register again, after this time (9000 in
        # Kafka). Below some seconds a busy machine loses brokers that are alive.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "1000",
        # A transaction that takes longer than its timeout is aborted soon after that (10000).
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # Kafka writes a record twice a second where nothing else is written (500), which takes a
        # quarter of an idle broker's processor time.
        "metadata.max.idle.interval.ms": "0",
        # Tests write timestamps of any age.
        "log.retention.ms": "-1",
        # Topics that are to be compacted are looked for once a second (15000).
        "log.cleaner.backoff.ms": "1000",
        # 128 MB in Kafka, of a heap that is small here.
        "log.cleaner.dedupe.buffer.size": "16777216",
    }


def as_texts(properties: Mapping[str, object]) -> dict[str, str]:
    """Return the values as text, as Kafka writes them. Raises ValueError for
    `MANAGED_PROPERTIES`."""
    for name in properties:
        if name in MANAGED_PROPERTIES:
            raise ValueError(f"{name} is set by KafkaCluster itself (see its parameters)")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a .properties file. All that is not plain ASCII is escaped, as Java's format needs."""

    def escaped(text: str) -> str:
        """Escape what a .properties file cannot have in a key or value as it is."""
        units = text.encode("utf-16-be")
        codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
        return "".join(
            chr(code) if 0x20 < code < 0x7F and chr(code) not in "\\:=#!" else f"\\u{code:04x}"
            for code in codes
        )

    lines = [f"{escaped(name)}={escaped(value)}\n" for name, value in properties.items()]
    path.write_text("".join(lines), encoding="ascii")
