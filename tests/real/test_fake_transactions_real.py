"""The fake's transaction coordinator against a real one: same requests, same responses.

Each script sends raw requests and notes what came back. It runs on a real broker and on
FakeCluster, and the notes must be equal; the real broker is right. The requests are those of
transactions V1, in an old, a middle and the newest version.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import confluent_kafka
import pytest

from sparkkafka.client import Admin, ConfigResource
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ListTransactionsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    PartitionProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.support.options import parse_client_options
from tests.support.waiting import wait_until
from tests.testing.raw_client import produce_request, sequenced

pytestmark = pytest.mark.real

BROKER = ConfigResource("broker", "0")
TRANSACTIONAL = 0x10
DEADLINE_MS = 30_000.0
TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 900_000
# A real coordinator needs a moment for its markers, and at first for itself.
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class Versions(NamedTuple):
    init: int
    add: int
    end: int
    produce: int
    # AddOffsetsToTxn and TxnOffsetCommit; OffsetFetch
    offsets: int
    fetch: int


class Owner(NamedTuple):
    """Who writes: what InitProducerId gave."""

    producer_id: int
    epoch: int


class Script:
    """Sends requests to one broker and keeps notes of the responses."""

    def __init__(self, bootstrap_servers: str, topic: str, tid: str, versions: Versions) -> None:
        host, _, port = bootstrap_servers.partition(",")[0].rpartition(":")
        self.connection = Connection.open(
            host,
            int(port),
            parse_client_options({"bootstrap.servers": bootstrap_servers}),
            Deadline(DEADLINE_MS),
        )
        self.topic = topic
        self.tid = tid
        self.versions = versions
        self.notes: list[str] = []
        self.group = f"group-of-{tid}"
        self.join_group: Callable[[], Any] = lambda: None
        self.expire: Callable[[], Any] = lambda: None  # a real coordinator does it by itself
        self._ids: list[int] = []
        for key_type, key in ((1, tid), (0, self.group)):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            self._settled(lambda request=request: self._call(request, 4).coordinators[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.connection.close()

    def _call(self, request: Any, version: int | None = None) -> Any:
        return self.connection.call(request, Deadline(DEADLINE_MS), version=version)

    def _settled(self, ask: Callable[[], Any], wait: bool = True) -> Any:
        deadline = Deadline(DEADLINE_MS)
        while (response := ask()).error_code in NOT_YET and wait and not deadline.expired:
            time.sleep(0.02)
        return response

    def note(self, what: str, code: int, more: str = "") -> None:
        self.notes.append(f"{what}: {ErrorCode(code).name}{more}")

    def init(
        self,
        what: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        owner: Owner | None = None,
        wait: bool = True,
        tid: str | None = None,
    ) -> Owner:
        fields = {} if owner is None else {"producer_id": owner[0], "producer_epoch": owner[1]}
        request = InitProducerIdRequest(
            transactional_id=self.tid if tid is None else tid,
            transaction_timeout_ms=timeout_ms,
            **fields,
        )
        response = self._settled(lambda: self._call(request, self.versions.init), wait)
        found = Owner(response.producer_id, response.producer_epoch)
        if found.producer_id not in self._ids:
            self._ids.append(found.producer_id)
        which = self._ids.index(found.producer_id)
        more = "" if response.error_code else f" id {which} epoch {found.epoch}"
        self.note(f"init {what}", response.error_code, more)
        return found

    def add(
        self, what: str, owner: Owner, *partitions: int, topic: str = "", tid: str | None = None
    ) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.tid if tid is None else tid,
            v3_and_below_producer_id=owner.producer_id,
            v3_and_below_producer_epoch=owner.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=list(partitions))
                for name in [self.topic, *filter(None, [topic])]
            ],
        )

        def ask() -> Any:
            response = self._call(request, self.versions.add)
            responses = sorted(
                (row.name == self.topic, item.partition_index, item.partition_error_code)
                for row in response.results_by_topic_v3_and_below
                for item in row.results_by_partition
            )
            return _Responses(responses[0][2], responses)

        response = self._settled(ask)
        self.note(f"add {what}", response.error_code, f" {response.more}")

    def end(
        self, what: str, owner: Owner, *, commit: bool, tid: str | None = None, wait: bool = True
    ) -> None:
        request = EndTxnRequest(
            transactional_id=self.tid if tid is None else tid,
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            committed=commit,
        )
        response = self._settled(lambda: self._call(request, self.versions.end), wait)
        if not response.error_code:  # until the markers are written
            self._settled(lambda: self._call(request, self.versions.end))
        self.note(f"{'commit' if commit else 'abort'} {what}", response.error_code)

    def produce(
        self,
        what: str,
        owner: Owner,
        sequence: int,
        *,
        partition: int = 0,
        tid: str | None = "own",
        transactional: bool = True,
        count: int = 1,
    ) -> None:
        data = sequenced(
            [b"v"] * count,
            sequence,
            producer_id=owner.producer_id,
            epoch=owner.epoch,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        request = produce_request(self.topic, partition, data)
        request.transactional_id = self.tid if tid == "own" else tid
        response = self._settled(
            lambda: self._call(request, self.versions.produce).responses[0].partition_responses[0]
        )
        self.note(f"produce {what}", response.error_code, f" at {response.base_offset}")

    def produce_two(self, what: str, *owners: Owner) -> None:
        """One request for partitions 0 and 1, each from its own owner."""
        rows = [
            PartitionProduceData(
                index=index,
                records=sequenced(
                    [b"v"],
                    0,
                    producer_id=owner.producer_id,
                    epoch=owner.epoch,
                    attributes=TRANSACTIONAL,
                ),
            )
            for index, owner in enumerate(owners)
        ]
        request = produce_request(self.topic, 0, b"")
        request.transactional_id = self.tid
        request.topic_data[0].partition_data = rows
        response = self._call(request, self.versions.produce)
        for row in sorted(response.responses[0].partition_responses, key=lambda row: row.index):
            self.note(f"produce {what} {row.index}", row.error_code)

    def add_offsets(
        self, what: str, owner: Owner, *, tid: str | None = None, group: str | None = None
    ) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.tid if tid is None else tid,
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            group_id=self.group if group is None else group,
        )
        response = self._settled(lambda: self._call(request, self.versions.offsets))
        self.note(f"add offsets {what}", response.error_code)

    def offsets(
        self,
        what: str,
        owner: Owner,
        offsets: dict[int, int],
        *,
        tid: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        metadata: str | None = "m",
        **member: Any,
    ) -> None:
        """TxnOffsetCommit of {partition: offset}, and of the same in another `topic`."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.tid if tid is None else tid,
            group_id=self.group if group is None else group,
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offset,
                            committed_metadata=metadata,
                        )
                        for number, offset in offsets.items()
                    ],
                )
                for name in [self.topic, *filter(None, [topic])]
            ],
            **member,
        )

        def ask() -> Any:
            response = self._call(request, self.versions.offsets)
            responses = sorted(
                (row.name == self.topic, item.partition_index, ErrorCode(item.error_code).name)
                for row in response.topics
                for item in row.partitions
            )
            return _Responses(ErrorCode[responses[-1][2]], responses)

        response = self._settled(ask)
        self.note(f"offsets {what}", response.error_code, f" {response.more}")

    def plain_offset(self, what: str, partition: int, offset: int) -> None:
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                    ],
                )
            ],
        )
        response = self._call(request, 8).topics[0].partitions[0]
        self.note(f"plain offset {what}", response.error_code)

    def committed(self, what: str) -> None:
        """OffsetFetch of all topics and of two partitions, each with and without waiting."""
        for stable in (False, True) if self.versions.fetch >= 7 else (False,):
            for every in (True, False):
                if self.versions.fetch >= 8:
                    topics: Any = [
                        OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0, 1])
                    ]
                    wanted = OffsetFetchRequestGroup(
                        group_id=self.group, topics=None if every else topics
                    )
                    request = OffsetFetchRequest(groups=[wanted], require_stable=stable)
                    response = self._call(request, self.versions.fetch).groups[0]
                else:
                    topics = [OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0, 1])]
                    request = OffsetFetchRequest(
                        group_id=self.group, topics=None if every else topics, require_stable=stable
                    )
                    response = self._call(request, self.versions.fetch)
                rows = sorted(
                    (
                        row.partition_index,
                        row.committed_offset,
                        row.metadata,
                        ErrorCode(row.error_code).name,
                    )
                    for topic in response.topics
                    for row in topic.partitions
                )
                kind = f"{'all' if every else 'two'} {'stable' if stable else 'any'}"
                self.note(f"committed {what}, {kind}", response.error_code, f" {rows}")

    def describe(self, what: str, *tids: str) -> None:
        request = DescribeTransactionsRequest(transactional_ids=list(tids) or [self.tid])

        def ask() -> Any:
            rows = self._call(request, 0).transaction_states
            return _Responses(max(rows, key=lambda row: row.error_code in NOT_YET).error_code, rows)

        for row in self._settled(ask).more:
            # A row about an unknown id has the producer id 0, which may be somebody's.
            which = -1 if row.error_code else self._ids.index(row.producer_id)
            # The number of a partition of __consumer_offsets depends on how many there are.
            topics = sorted(
                (topic.topic, topic.topic[:2] == "__" or sorted(topic.partitions))
                for topic in row.topics
            )
            self.note(
                f"describe {what}",
                row.error_code,
                f" {row.transaction_state} id {which} epoch {row.producer_epoch} "
                f"timeout {row.transaction_timeout_ms} start {row.transaction_start_time_ms > 0} "
                f"{topics}",
            )

    def list(self, what: str, version: int, states: Any = (), **filters: Any) -> None:
        """ListTransactions; of the response only what is of this script."""
        request = ListTransactionsRequest(state_filters=[*states], **filters)
        response = self._settled(lambda: self._call(request, version))
        rows = [
            (row.transaction_state, self._ids.index(row.producer_id))
            for row in response.transaction_states
            if row.transactional_id == self.tid
        ]
        self.note(f"list {what}", response.error_code, f" {rows} {response.unknown_state_filters}")

    def ends(self, what: str, partition: int = 0) -> None:
        """The log's end and its last stable offset."""
        found = []
        for isolation in (0, 1):
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    ListOffsetsTopic(
                        name=self.topic,
                        partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)],
                    )
                ],
            )
            found.append(self._call(request, 5).topics[0].partitions[0].offset)
        self.notes.append(f"ends {what}: {found}")


class _Responses(NamedTuple):
    error_code: int
    more: Any


# --- the scripts ----------------------------------------------------------------------------------


def a_commit_and_all_that_may_follow(at: Script) -> None:
    one = at.init("first")
    at.produce("before any add", one, 0)
    at.end("Empty", one, commit=True)
    at.end("Empty", one, commit=False)
    at.add("two", one, 0, 1)
    at.ends("after add")
    at.produce("first", one, 0)
    at.produce("the same again", one, 0)
    at.produce("second", one, 1, count=2)
    at.produce("a gap", one, 9)
    at.produce("plain in an open transaction", one, 3, transactional=False)
    at.produce("plain with tid", one, 3, transactional=False, tid=None)
    at.produce("without tid", one, 3, tid=None)
    at.produce("wrong tid, open", one, 3, tid="nobody")
    at.produce("not added", one, 0, partition=2)
    at.add("again", one, 0)
    at.add("more", one, 0, 2)
    at.produce("added later", one, 0, partition=2)
    at.ends("open")
    at.end("first", one, commit=True)
    at.end("again", one, commit=True)
    at.end("after commit", one, commit=False)
    at.ends("committed")
    at.ends("committed, no data", partition=1)
    at.produce("late", one, 4)
    at.produce("late, a duplicate", one, 3)
    at.produce("late, never written", one, 0, partition=1)
    at.add("next transaction", one, 0)
    at.produce("next, too high", one, 5)
    at.produce("next", one, 4)
    at.end("next", one, commit=False)
    at.end("next again", one, commit=False)
    at.end("next, other", one, commit=True)
    at.ends("aborted")
    at.produce("plain afterwards", one, 5, transactional=False, tid=None)


def refusals(at: Script) -> None:
    stranger = Owner(4_999_999, 0)
    at.end("unknown tid", stranger, commit=True)
    at.add("unknown tid", stranger, 0)
    at.produce("unknown tid", stranger, 0)
    at.end("empty tid", stranger, commit=True, tid="")
    at.add("empty tid", stranger, 0, tid="")
    at.init("empty tid", tid="")
    at.init("longest timeout + 1", timeout_ms=MAX_TIMEOUT_MS + 1)
    at.init("no timeout", timeout_ms=0)
    at.end("after refused init", stranger, commit=True)
    one = at.init("longest timeout", timeout_ms=MAX_TIMEOUT_MS)
    at.produce_two("two owners", one, stranger)
    at.add("wrong id", stranger, 0)
    at.end("wrong id", stranger, commit=True)
    at.produce("wrong id", stranger, 0)
    at.add("epoch too high", Owner(one.producer_id, 1), 0)
    at.end("epoch too high", Owner(one.producer_id, 1), commit=True)
    at.produce("epoch too high", Owner(one.producer_id, 1), 0)
    at.add("unknown partition", one, 0, 17)
    at.add("unknown topic", one, 0, topic="no-such-topic")
    at.end("nothing was added", one, commit=False)


def a_second_owner_fences_the_first(at: Script) -> None:
    first = at.init("first")
    at.add("first", first, 0, 1)
    at.produce("first", first, 0)
    at.init("while ongoing", wait=False)
    second = at.init("second")
    at.ends("aborted by init")
    at.end("old epoch", first, commit=True)
    at.end("old epoch", first, commit=False)
    at.add("old epoch", first, 0)
    at.produce("old epoch", first, 1)
    at.produce("old epoch, not added", first, 0, partition=2)
    at.end("Empty", second, commit=True)
    at.add("second", second, 0)
    at.produce("old epoch, open", first, 1)
    at.produce("new epoch, not from 0", second, 1)
    at.produce("new epoch", second, 0)
    at.produce("old epoch, after it", first, 1)
    at.end("second", second, commit=True)
    third = at.init("after commit")
    at.ends("committed")
    at.end("epoch before", second, commit=True)
    at.add("epoch before", second, 0)
    at.produce("epoch before", second, 1)
    at.produce("epoch before, plain", second, 1, transactional=False, tid=None)
    at.add("third", third, 1)
    at.produce("epoch of the marker before", first, 1, partition=1)
    at.produce("third", third, 0, partition=1)
    at.init("third while ongoing", wait=False)
    at.end("old epoch, being aborted", third, commit=True)
    four = at.init("fourth")
    at.end("epoch of the third", third, commit=False)
    at.end("fourth", four, commit=False)


def an_owner_that_names_itself(at: Script) -> None:
    """KIP-360."""
    at.init("unknown tid, with an id", owner=Owner(12345, 3))
    two = at.init("plain")
    three = at.init("bump", owner=two)
    at.init("bump, the response got lost", owner=two)
    at.init("another's id", owner=Owner(two.producer_id + 1_000_000, 0))
    at.init("old", owner=Owner(two.producer_id, 0))
    at.init("future", owner=Owner(two.producer_id, 77))
    at.add("bumped", three, 0)
    at.produce("bumped", three, 0)
    at.init("old, while ongoing", owner=two, wait=False)
    four = at.init("bump after it", owner=three)
    at.init("plain after it")
    at.end("before", four, commit=True)
    at.init("id without epoch", owner=Owner(two.producer_id, -1))
    at.init("epoch without id", owner=Owner(-1, 0))


def a_refused_sequence_is_not_overtaken(at: Script) -> None:
    one = at.init("first")
    at.produce("0, not added", one, 0)
    at.add("then", one, 0)
    at.produce("1, overtaking", one, 1)
    at.produce("0", one, 0)
    at.produce("1", one, 1)
    at.end("all", one, commit=True)
    at.ends("all")


def a_transaction_times_out(at: Script) -> None:
    one = at.init("first", timeout_ms=1_000)  # not before the next two requests
    at.add("first", one, 0)
    at.produce("first", one, 0)
    # The coordinator checks once a second.
    deadline = Deadline(DEADLINE_MS)
    while not deadline.expired:
        at.ends("?")
        if "[2, 2]" in at.notes.pop():
            break
        time.sleep(0.2)
        at.expire()
    at.ends("timed out")
    at.produce("late", one, 1)
    at.add("late", one, 0)
    at.end("late", one, commit=True)
    at.end("late", one, commit=False)
    at.init("with its own epoch", owner=one)
    at.init("next")


def offsets_in_a_transaction(at: Script) -> None:
    first = at.init("first")
    at.committed("nothing")
    at.offsets("not added, Empty", first, {0: 1})
    at.end("Empty", first, commit=True)
    at.add_offsets("first", first)
    at.add_offsets("again", first)
    at.committed("only added")
    at.offsets("two", first, {0: 5, 1: 7})
    at.offsets("one of them anew", first, {1: 8}, metadata=None)
    at.committed("pending")
    at.end("first", first, commit=True)
    at.end("again", first, commit=True)
    at.committed("after commit")
    at.offsets("late", first, {0: 99})
    at.committed("after a late one")
    at.add_offsets("second", first)
    at.offsets("second", first, {1: 20, 2: 21}, metadata="longer")
    at.committed("second pending")
    at.plain_offset("meanwhile", 1, 30)
    at.committed("second pending, another meanwhile")
    at.end("second", first, commit=False)
    at.committed("after abort")
    at.add_offsets("third", first)
    at.offsets("third", first, {0: 40, 1: 40})
    at.plain_offset("after it", 1, 50)
    at.offsets("third", first, {2: 40})
    at.end("third", first, commit=True)
    at.committed("the later one counts")
    at.add_offsets("fourth", first)
    at.offsets("fourth", first, {0: 60})
    at.add("with data", first, 0)
    at.produce("with data", first, 0)
    second = at.init("by another owner")
    at.committed("aborted by init")
    at.offsets("old epoch", first, {0: 70})
    at.add_offsets("old epoch", first)
    at.add_offsets("new epoch", second)
    at.offsets("old epoch, new one added", first, {0: 70})
    at.offsets("new epoch", second, {0: 80})
    at.offsets("old epoch, new one open", first, {0: 70})
    at.end("new epoch", second, commit=True)
    at.committed("by the new epoch")


def refused_offsets(at: Script) -> None:
    stranger = Owner(4_999_999, 0)
    at.add_offsets("unknown tid", stranger)
    at.add_offsets("empty tid", stranger, tid="")
    at.offsets("unknown tid", stranger, {0: 1})
    at.offsets("empty tid", stranger, {0: 1}, tid="")
    one = at.init("first")
    at.add_offsets("wrong id", stranger)
    at.add_offsets("epoch too high", Owner(one.producer_id, 1))
    at.add_offsets("no group", one, group="")
    at.add_offsets("first", one)
    at.offsets("wrong id", stranger, {0: 1})
    at.offsets("epoch too high", Owner(one.producer_id, 1), {0: 1})
    at.offsets("no group", one, {0: 1}, group="")
    at.offsets("unknown partition", one, {17: 1})
    at.offsets("unknown and known partition", one, {0: 1, 17: 1})
    at.offsets("unknown topic", one, {0: 2}, topic="no-such-topic")
    at.offsets("unknown topic, wrong id", stranger, {0: 3}, topic="no-such-topic")
    at.offsets("long metadata", one, {0: 4}, metadata="x" * 4097)
    at.offsets("longest metadata", one, {1: 5}, metadata="x" * 4096)
    at.offsets("negative", one, {1: -1}, metadata="")
    at.end("those that were taken", one, commit=True)
    at.committed("those that were taken")
    if at.versions.offsets >= 3:
        at.add_offsets("for members", one)
        at.offsets("a member", one, {0: 1}, member_id="me")
        at.offsets("a generation", one, {0: 1}, generation_id_or_member_epoch=0)
        at.offsets(
            "a member of a generation", one, {0: 1}, generation_id_or_member_epoch=1, member_id="me"
        )
        at.offsets("an instance", one, {0: 1}, group_instance_id="me")
        at.end("nothing taken", one, commit=True)
        at.committed("nothing taken")


def offsets_of_a_group_with_members(at: Script) -> None:
    one = at.init("first")
    at.join_group()
    at.plain_offset("from outside", 0, 1)
    at.add_offsets("from outside", one)
    at.offsets("from outside", one, {0: 5})
    at.committed("pending")
    at.offsets("a stranger", one, {0: 6}, generation_id_or_member_epoch=1, member_id="me")
    at.end("from outside", one, commit=True)
    at.committed("from outside")


def states_are_told(at: Script) -> None:
    at.describe("unknown")
    at.describe("empty", "")
    one = at.init("first")
    at.describe("Empty")
    at.describe("several", at.tid, f"{at.tid}-x", at.tid)
    at.list("all", 0)
    at.list("any that has not begun", 1, duration_filter=3_600_000)
    at.add("first", one, 0, 2)
    at.add_offsets("first", one)
    at.describe("Ongoing")
    ids = [one.producer_id]
    for version in (0, 1, 2):
        at.list("all", version)
        at.list("Ongoing", version, ["Ongoing"])
        at.list("others", version, ["Empty", "CompleteCommit", "PrepareAbort"])
        at.list("no such state", version, ["ongoing", "Dead"])
        at.list("no such state and another", version, ["Ongoing", "Nothing"])
        at.list("id", version, producer_id_filters=ids)
        at.list("other id", version, producer_id_filters=[4_999_999])
        at.list("id, other state", version, ["Empty"], producer_id_filters=ids)
    time.sleep(0.005)
    at.list("not long", 1, duration_filter=0)
    at.list("long", 1, duration_filter=3_600_000)
    at.list("pattern", 2, transactional_id_pattern=f"{at.tid[:2]}.*")
    at.list("other pattern", 2, transactional_id_pattern="x.*")
    at.list("part of it", 2, transactional_id_pattern=at.tid[:-1])
    at.list("no pattern", 2, transactional_id_pattern="")
    at.list("broken pattern", 2, transactional_id_pattern="(")
    at.end("first", one, commit=True)
    at.describe("CompleteCommit")
    at.list("all", 2)
    at.list("CompleteCommit", 0, ["CompleteCommit"])
    at.init("second")
    at.describe("Empty again")
    at.add("third", three := at.init("third"), 1)
    at.end("third", three, commit=False)
    at.describe("CompleteAbort")


def late_writes_hang(at: Script) -> None:
    """Without verification, as before Kafka 3.6."""
    first = at.init("first")
    at.produce("not added", first, 0)
    at.ends("not added")
    at.end("Empty", first, commit=True)
    at.add("then", first, 0)
    at.produce("then", first, 1)
    at.end("then", first, commit=True)
    at.ends("committed")
    at.produce("late", first, 2)
    at.produce("late, the same again", first, 2)
    at.end("again", first, commit=True)
    at.ends("hanging")
    second = at.init("second")
    at.ends("hangs still")
    at.produce("by the next epoch", second, 0)
    at.add("by the next epoch", second, 0)
    at.end("by the next epoch", second, commit=False)
    at.ends("ended by another transaction")
    at.produce("old epoch", first, 3)


OLD = Versions(init=1, add=1, end=1, produce=8, offsets=1, fetch=5)
MIDDLE = Versions(init=3, add=2, end=3, produce=10, offsets=2, fetch=7)
NEW = Versions(init=4, add=3, end=4, produce=11, offsets=3, fetch=8)
CASES = [
    *itertools.product(
        (a_commit_and_all_that_may_follow, refusals, a_second_owner_fences_the_first),
        (OLD, MIDDLE, NEW),
    ),
    # Versions of InitProducerId before 3 have no field for it.
    *itertools.product((an_owner_that_names_itself,), (MIDDLE, NEW)),
    (a_refused_sequence_is_not_overtaken, NEW),
    *itertools.product((offsets_in_a_transaction, refused_offsets), (OLD, MIDDLE, NEW)),
    (states_are_told, NEW),
    (a_transaction_times_out, NEW),
]


@pytest.mark.parametrize(
    ("script", "versions"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[1].produce}") for row in CASES],
)
def test_the_fake_answers_as_a_broker(
    kafka_cluster: Any, new_topic: Any, script: Callable[[Script], None], versions: Versions
) -> None:
    compare(kafka_cluster.bootstrap_servers, new_topic(partitions=3), script, versions)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members(kafka_cluster: Any, new_topic: Any, protocol: str) -> None:
    topic = new_topic(partitions=3)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "group.id": f"group-of-{topic}",
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )

    def join() -> None:
        consumer.subscribe([topic])
        deadline = Deadline(DEADLINE_MS)
        while not consumer.assignment() and not deadline.expired:
            consumer.poll(0.1)

    try:
        compare(
            kafka_cluster.bootstrap_servers,
            topic,
            offsets_of_a_group_with_members,
            NEW,
            join_group=join,
        )
    finally:
        consumer.close()


def test_without_verification(kafka_cluster: Any, new_topic: Any) -> None:
    servers = kafka_cluster.bootstrap_servers
    topic, brokers = new_topic(partitions=3), ConfigResource("broker", "")
    name = "transaction.partition.verification.enable"
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.incremental_alter_configs({brokers: {name: "false"}}).all()
        try:
            wait_until(lambda: admin.describe_configs([BROKER])[BROKER][name].value == "false")
            compare(servers, topic, late_writes_hang, NEW, transaction_verification=False)
        finally:
            admin.incremental_alter_configs({brokers: {name: None}}).all()


def compare(
    bootstrap_servers: str,
    topic: str,
    script: Callable[[Script], None],
    versions: Versions,
    join_group: Callable[[], Any] = lambda: None,
    **options: Any,
) -> None:
    with Script(bootstrap_servers, topic, topic, versions) as real:
        real.join_group = join_group
        script(real)
    # A version of ListTransactions that is younger than the fake's youngest release.
    with FakeCluster(api_versions={"ListTransactions": (0, 2)}, **options) as fake:
        fake.create_topic(topic, partitions=3)
        with Script(fake.bootstrap_servers, topic, topic, versions) as copy:
            copy.expire = fake.expire_transactions
            copy.join_group = lambda: fake.set_group_members(copy.group)
            script(copy)
    assert copy.notes == real.notes
