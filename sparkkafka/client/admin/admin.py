"""Admin: topics, settings, groups, offsets, transactions and brokers of a cluster.

A thin facade: each call takes the lock and a deadline, and one of the modules beside it does the
work (`topics`, `configs`, `group_admin`, …), over the one loop in `item_calls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from sparkkafka.client.admin import brokers as broker_calls
from sparkkafka.client.admin.admin_groups import AdminGroups
from sparkkafka.client.admin.admin_topics import AdminTopics
from sparkkafka.client.admin.admin_transactions import AdminTransactions
from sparkkafka.client.admin.brokers import ClusterDescription, LogDirDescription
from sparkkafka.client.arguments import flag, numbers
from sparkkafka.client.cluster.results import Results
from sparkkafka.client.net.connecting import where


class Admin(AdminTopics, AdminGroups, AdminTransactions):
    """Looks after a Kafka cluster. The names are those of Java's Admin in snake_case.

        with Admin({"bootstrap.servers": "broker:9092"}) as admin:
            admin.create_topics([NewTopic("orders", partitions=6)]).all()
            admin.describe_topic("orders").partitions[0].leader

    `config` has Kafka's settings by their names (bootstrap.servers, security.protocol, …). Nothing
    is on the network before the first call.

    A call on several items returns `Results`: each item has its value, or an error of its own, and
    nothing is raised before it is looked at: `.all()` gives everything or raises the first error,
    `[item]` one value or its error, `.errors` the errors alone. Lists of groups and transactions
    are a `Listing`, with the errors of brokers that did not answer beside it.

    Each call waits at most `timeout_s`, by default default.api.timeout.ms, and repeats what may
    pass until then: a moved leader, controller or coordinator, a broken connection, a broker that
    starts. An answer that was lost on the way is not taken for a failure: what the first attempt
    did counts. Errors are KafkaErrors: BrokerError with Kafka's code, and what to grant if it was
    not allowed; KafkaTimeoutError with the last failure; OptionError for a bad argument, before
    anything is sent.

    Several threads may use one Admin; their calls wait for each other.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises OptionError for a setting that is missing, unknown or has a bad value."""
        super().__init__(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        servers = ",".join(where(*at) for at in self._cluster.options.bootstrap_servers)
        return f"<Admin {servers}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Close the connections; waits for a call that another thread is in. May be repeated."""
        self._close()

    def describe_cluster(
        self, *, include_authorized_operations: bool = False, timeout_s: float | None = None
    ) -> ClusterDescription:
        """The cluster's id, controller, and live brokers with their racks. Raises KafkaError."""
        flag(include_authorized_operations, "include_authorized_operations")
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_cluster(
                cluster, deadline, include_authorized_operations=include_authorized_operations
            )

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, timeout_s: float | None = None
    ) -> Results[int, dict[str, LogDirDescription]]:
        """What brokers (all, or these node ids) have on disk.

        By node id, then by path:

            for path, directory in admin.describe_log_dirs([1])[1].items():
                print(path, directory.size_bytes, directory.usable_bytes)
                print(directory.replicas[TopicPartition("orders", 0)].size_bytes)
        """
        chosen = None if brokers is None else numbers(brokers, "brokers")
        with self._call(timeout_s) as (cluster, deadline):
            return broker_calls.describe_log_dirs(cluster, chosen, deadline)
