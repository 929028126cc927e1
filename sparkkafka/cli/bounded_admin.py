"""An Admin whose calls share one deadline, that of the verb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

from sparkkafka.cli.tables import print_error
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.brokers import LogDirDescription
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.configs import ConfigEntry
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.group.committed_offsets import fetch_offsets_of_groups
from sparkkafka.client.net.connecting import check_servers
from sparkkafka.client.values import Offsets, Results, TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, KafkaTimeoutError

LogDirs = Mapping[int, Mapping[str, LogDirDescription]]
"""The log directories of brokers, by node id and path."""
Leaders = Mapping[TopicPartition, int | None]
"""The node id of each partition's leader."""

Item = TypeVar("Item")
Found = TypeVar("Found")


class BoundedAdmin(Admin):
    """An `Admin` for one run of a verb.

    A call after the deadline raises KafkaTimeoutError and sends nothing. The first call raises
    KafkaConnectionError as `check_servers` does.
    """

    def __init__(self, config: Mapping[str, Any], deadline: Deadline) -> None:
        super().__init__(config)
        self.deadline = deadline
        self._options = parse_admin_settings(config)
        self._has_checked_servers = False

    def interrupt(self) -> None:
        """End the call that another thread is in, and fail all later ones: the verb ends."""
        self._cluster.close_signal.close_in(0)
        self._cluster.close_signal.cut_sockets()

    def restart_deadline(self) -> None:
        """Start the deadline again: a person has taken some of its time to answer."""
        self.deadline = Deadline(self.deadline.total_ms)

    def cluster_and_deadline(self) -> AbstractContextManager[tuple[Cluster, Deadline]]:
        """Yield the cluster and the verb's deadline, for requests that `Admin` has no method
        for."""
        return self._call(None)

    def with_nearest_group(self, group: str, error: KafkaError) -> KafkaError:
        """Return the error of a group. If there is no such group, add `nearest_group_text`."""
        if not isinstance(error, BrokerError) or error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            return error
        text = f"there is no consumer group of this name ({self.nearest_group_text(group)})"
        return BrokerError(error.code, error.where, text)

    def nearest_group_text(self, group: str) -> str:
        """Return a hint for the name of a missing consumer group: that it is one of another type,
        the most similar name of a group, or how to list all groups."""
        try:
            types = {row.group_id: row.type for row in self.list_groups()}
        except KafkaError:
            types = {}
        if group in types:
            return f"it is a {types[group]} group; groups describe shows share groups"
        nearest = get_close_matches(group, types, n=1)
        return f"the nearest is {nearest[0]}" if nearest else "groups list shows all"

    def offsets_of_groups(
        self, groups: Iterable[str], *, timeout_s: float | None = None
    ) -> Results[str, Offsets]:
        """Return the committed offsets of several consumer groups. Groups in which exactly-once
        queries store their decisions are left out: no consumer starts from their offsets."""
        from sparkkafka.checkpoints.against_kafka import holds_decisions  # few verbs need it

        with self._call(timeout_s) as (cluster, deadline):
            offsets_by_group = fetch_offsets_of_groups(cluster, groups, deadline)
        offsets: dict[str, Offsets | KafkaError] = {
            group: {tp: row.offset for tp, row in rows.items()}
            for group, rows in offsets_by_group.values_by_item.items()
            if not holds_decisions(group, (row.metadata for row in rows.values()))
        }
        return Results({**offsets, **offsets_by_group.errors})

    def with_nearest_topics(self, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
        """Return the errors by topic. That of a missing topic names the most similar topic."""
        return self._with_nearest_topics(errors)

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        """Yield the cluster and the deadline of one call of `Admin`, which ends after `timeout_s`
        and not later than the verb's deadline."""
        if self.deadline.expired:
            raise KafkaTimeoutError(
                f"not done after {self.deadline.text}: give --timeout more seconds"
            )
        if not self._has_checked_servers:
            # Java's clients retry until their deadline, because a service outlives a broker that
            # restarts. At a terminal a typing error must not cost half a minute.
            check_servers(self._options, Deadline(0))
            self._has_checked_servers = True
        remaining_s = self.deadline.remaining_s()
        with super()._call(remaining_s if timeout_s is None else min(timeout_s, remaining_s)) as (
            cluster,
            deadline,
        ):
            yield cluster, deadline


def offsets_of(admin: Admin, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
    """Return the offset of each partition. Raises the first error."""
    offsets = admin.list_offsets(dict.fromkeys(partitions, spec)).all()
    return {tp: row.offset for tp, row in offsets.items()}


def partial_values(what: str, results: Results[Item, Found]) -> Mapping[Item, Found]:
    """Return the results without the errors. If there are errors, print one line on stderr that
    says that lookups of `what` have failed."""
    if results.errors:
        print_error(missing_text(what, results.errors))
    return results.values_by_item


def missing_text(what: str, errors: Mapping[Any, KafkaError]) -> str:
    """Return a line that says that lookups of `what` (sizes, offsets, …) have failed, and the first
    reason."""
    first, *others = errors.values()
    return f"{what} are not all known: {first}" + (f" (and {len(others)} more)" if others else "")


def config_values(
    entries: Mapping[str, ConfigEntry], *, with_defaults: bool = False
) -> dict[str, str | None]:
    """Return the values of settings, sorted by name; None is the value of a sensitive one. Only
    `with_defaults` includes settings that have their default value."""
    return {
        name: entry.value
        for name, entry in sorted(entries.items())
        if with_defaults or not entry.is_default
    }


def leader_sizes(log_dirs: LogDirs, leaders: Leaders) -> dict[TopicPartition, int]:
    """Return the bytes of each partition on its leader's disks. Partitions whose leader is not in
    `log_dirs` are left out."""
    return {
        tp: replica.size_bytes
        for node_id, directories in log_dirs.items()
        for directory in directories.values()
        for tp, replica in directory.replicas.items()
        if leaders.get(tp) == node_id and not replica.is_future
    }
