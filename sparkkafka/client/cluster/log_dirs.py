"""How many bytes partitions have on disk, as their leaders say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import leaders_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError
from sparkkafka.protocol.messages import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_NO_PERMISSION = (
    "this user may not ask how large partitions are: it needs DESCRIBE on the cluster (an ACL of "
    "the resource Cluster)"
)


def partition_sizes(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    *,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, int]:
    """Bytes of each partition's log segments on its leader's disk, as compressed as they lie there.

    All leaders are asked at once. Raises BrokerError (CLUSTER_AUTHORIZATION_FAILED without DESCRIBE
    on the cluster), KafkaTimeoutError (with the last failure) at the deadline.
    """
    deadline = deadline or cluster.deadline()
    pending = dict.fromkeys(partitions)
    found: dict[TopicPartition, int] = {}
    retry = cluster.retry(deadline, "asking for the sizes of partitions")
    while pending:
        failure: KafkaError | None = None
        try:
            by_leader = leaders_of(cluster, pending, deadline)
        except KafkaError as error:
            retry.after(error)
            continue
        requests = {node_id: _request(rows) for node_id, rows in by_leader.items()}
        for node_id, response in cluster.call_each(requests, deadline).items():
            if isinstance(response, KafkaError):
                failure = response
            else:
                where = f"DescribeLogDirs @ {cluster.brokers.get(node_id)}"
                _check(response, where)
                sizes = _sizes(response)
                found.update((tp, sizes[tp]) for tp in by_leader[node_id] if tp in sizes)
                missing = [tp for tp in by_leader[node_id] if tp not in sizes]
                if missing:
                    failure = _absent(response, missing, where)
            for tp in by_leader[node_id]:
                if tp in found:
                    del pending[tp]
                else:
                    # The leader may have moved away from this broker: ask for the metadata again.
                    cluster.forget(tp.topic)
        if failure is not None:
            retry.after(failure)
    return found


def _check(response: DescribeLogDirsResponse, where: str) -> None:
    """Raise if the broker refuses."""
    code = response.error_code
    if not code and not response.results:
        # Before version 3 there is no field for it: a refusal shows no directory at all.
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if code:
        refused = code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise BrokerError(code, where, _NO_PERMISSION if refused else None)


def _absent(
    response: DescribeLogDirsResponse, missing: list[TopicPartition], where: str
) -> BrokerError:
    """Why a leader has nothing to say of a partition: its disk failed, or it leads no longer."""
    code = next(
        (row.error_code for row in response.results if row.error_code),
        int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    )
    return BrokerError(code, f"{where} of {', '.join(map(str, missing[:5]))}")


def _sizes(response: DescribeLogDirsResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for result in response.results
        for topic in result.topics
        for row in topic.partitions
        if not row.is_future_key  # a copy on its way to another directory
    }


def _request(partitions: Mapping[TopicPartition, int]) -> DescribeLogDirsRequest:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return DescribeLogDirsRequest(
        topics=[
            DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in topics.items()
        ]
    )
