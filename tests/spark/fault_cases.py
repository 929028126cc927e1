"""Faults, and what each does to a write: the tables of docs/reliability.md.

`python -m tests.spark.fault_cases docs/reliability.md` runs every case and writes the tables anew;
test_reliability.py holds each outcome to the guarantee, and the document to the run.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from sparkkafka.client.cluster.request_driver import FOR_GROUP
from sparkkafka.client.producer.partition_queue import SEQUENCE_LIMIT, PartitionQueue
from sparkkafka.client.producer.produce_errors import MAYBE_WRITTEN
from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.faults import (
    Action,
    CutFrame,
    Delay,
    Drop,
    ErrorResponse,
    Garbage,
    RecordedRequest,
    Throttle,
)
from tests.spark.fault_runs import (
    BROKERS,
    PARTITIONS,
    QUERY_ID,
    TOPIC,
    Case,
    Guarantee,
    Outcome,
    Scene,
    Strike,
    error_words,
    run,
    words,
)

AT_LEAST_ONCE, NOT_IDEMPOTENT, EXACTLY_ONCE = Guarantee
FOREVER = None
MOMENTS = (2, 6)
"""The Produce requests that are struck: a partition's first, and one in the middle."""

IMPATIENT = {
    "kafka.request.timeout.ms": "500",
    "kafka.default.api.timeout.ms": "1500",
    "kafka.max.block.ms": "1500",
    "kafka.delivery.timeout.ms": "1500",
}
"""Enough for a busy machine, where a shorter one would pass at other requests than are meant."""

PRODUCE_CODES = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.FENCED_LEADER_EPOCH,
)
OTHER_CODES = [code for code in ErrorCode if code.retriable and code not in PRODUCE_CODES]

COORDINATOR_CODES = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
TRANSACTION_REQUESTS = {
    "InitProducerId": 3,
    "AddPartitionsToTxn": 2,
    "AddOffsetsToTxn": 1,
    "TxnOffsetCommit": 1,
    "EndTxn": 3,
}
"""How often a batch of two tasks sends each, at least. The last InitProducerId, and the first
EndTxn, are the driver's: they stand around the decision."""


# --- writing -----------------------------------------------------------------------------------


def at(action: Action, *moments: int, times: int | None = 1, api: str = "Produce") -> list[Strike]:
    """The same action at each of these requests, in a run of its own."""
    return [
        lambda scene, nth=nth: scene.fault(action, api=api, nth=nth, times=times)
        for nth in moments or MOMENTS
    ]


def in_turn(codes: Sequence[ErrorCode], nth: int, api: str, *, applied: bool = False) -> Strike:
    """All codes in one run: a request that is sent again gets the next one."""

    def strike(scene: Scene) -> None:
        rest = iter(codes)
        scene.fault(
            lambda request: ErrorResponse(next(rest), applied=applied),
            api=api,
            nth=nth,
            times=len(codes),
        )

    return strike


def produce_code(code: ErrorCode) -> Case:
    after = code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    strikes = [] if after else at(ErrorResponse(code), times=2)
    if code in MAYBE_WRITTEN:
        strikes += at(ErrorResponse(code, applied=True), times=2)
    when = "" if code not in MAYBE_WRITTEN else ", appended" if after else ", appended or not"
    return Case(f"`Produce` returns `{code.name}`{when}", strikes, may_double=code in MAYBE_WRITTEN)


def change(act: Callable[[Scene, RecordedRequest], object], nth: int, **where: Any) -> Strike:
    """Something happens to the cluster just before the nth request is applied."""

    def strike(scene: Scene) -> None:
        def action(request: RecordedRequest) -> None:
            act(scene, request)

        scene.fault(action, **{"nth": nth, **where})

    return strike


def changes(act: Callable[[Scene, RecordedRequest], object], **where: Any) -> list[Strike]:
    return [change(act, nth, **where) for nth in MOMENTS]


def move_its_leader(scene: Scene, request: RecordedRequest) -> None:
    for _, number in request.topic_partitions:
        scene.move_leader(number or 0)


def kill_another_broker(scene: Scene, request: RecordedRequest) -> None:
    scene.cluster.broker_down((request.broker + 1) % BROKERS)


def forget_producers(scene: Scene, request: RecordedRequest) -> None:
    for number in range(PARTITIONS):
        scene.cluster.log(TOPIC, number).forget_producers()


def delete_topic(scene: Scene, request: RecordedRequest) -> None:
    """Once transactions have all partitions: on a slow machine the last ones are added late, and
    the error would be AddPartitionsToTxn's."""
    added = [len(row.partitions) for row in scene.cluster.open_transactions()]
    if any(count < PARTITIONS for count in added):
        return
    with contextlib.suppress(KeyError):  # it is deleted
        scene.cluster.delete_topic(TOPIC)
    scene.restart = lambda: scene.cluster.create_topic(TOPIC, PARTITIONS, 2)


def raise_limit(scene: Scene) -> None:
    """What somebody does before the next start."""
    for number in range(PARTITIONS):
        scene.cluster.log(TOPIC, number).config["max.message.bytes"] = "1000000"


def above_limit(scene: Scene) -> None:
    scene.restart = functools.partial(raise_limit, scene)


def lose_acknowledged(scene: Scene, request: RecordedRequest) -> None:
    for _, number in request.topic_partitions:
        scene.cluster.truncate(TOPIC, number or 0, 10)


def too_few_replicas(scene: Scene, *, back: bool) -> None:
    """A broker is down, so partitions that it has a replica of have only one in sync."""
    scene.cluster.broker_down(2)
    scene.restart = lambda: scene.cluster.broker_up(2)
    if back:
        again = mock.Mock(side_effect=lambda request: scene.cluster.broker_up(2), return_value=None)
        scene.fault(lambda request: again(request), nth=6)


def unreachable(scene: Scene) -> None:
    """A leader is gone from its second batch on, and nobody notices: metadata names it still."""
    cluster = scene.cluster
    # A broker's own thread cannot take it down.
    down = threading.Thread(target=cluster.broker_down, args=(2,), kwargs={"move_leaders": False})

    def kill(request: RecordedRequest) -> Drop:
        for key in (request.message.transactional_id, f"sparkkafka-{QUERY_ID}-decisions"):
            cluster.move_coordinator(key, 0)  # one fault at a time
        if down.ident is None:
            down.start()
        return Drop.BEFORE

    def mend() -> None:
        down.join()
        cluster.broker_up(2)

    scene.fault(kill, broker=2, nth=2, times=FOREVER)
    scene.restart = mend


@contextlib.contextmanager
def near_the_last_sequence() -> Iterator[None]:
    """Producers begin 15 records before sequence numbers start again."""
    assign = PartitionQueue.assign_producer_id

    def late(self: PartitionQueue, producer_id: int, producer_epoch: int) -> None:
        assign(self, producer_id, producer_epoch)
        self._next_sequence = SEQUENCE_LIMIT - 15

    with mock.patch.object(PartitionQueue, "assign_producer_id", late):
        yield


WRITING: list[Case] = [
    Case("no fault", [lambda scene: None]),
    *map(produce_code, PRODUCE_CODES),
    Case(
        f"`Produce` returns any of the other {len(OTHER_CODES)} retriable codes",
        [in_turn(OTHER_CODES[first::3], 6, "Produce") for first in range(3)],
    ),
    # Responses of other requests may be lost with the connection.
    Case("connection lost before `Produce` is applied", at(Drop.BEFORE), may_double=True),
    Case(
        "connection lost after `Produce` is applied, before the response",
        at(Drop.AFTER),
        may_double=True,
    ),
    Case("connection lost in the middle of the response", at(CutFrame(9)), may_double=True),
    Case(
        "connections lost repeatedly",
        [lambda scene: [scene.fault(Drop.AFTER, nth=nth) for nth in (1, 1, 3, 3)]],
        may_double=True,
    ),
    Case("the leader moves, and the client's metadata is stale", changes(move_its_leader)),
    Case("a leader dies", changes(kill_another_broker), may_double=True),
    Case(
        "fewer replicas in sync than `min.insync.replicas`, temporarily",
        [functools.partial(too_few_replicas, back=True)],
        topic_configs={"min.insync.replicas": "2"},
    ),
    Case(
        "fewer replicas in sync than that for longer than `delivery.timeout.ms`",
        [functools.partial(too_few_replicas, back=False)],
        topic_configs={"min.insync.replicas": "2"},
        options=IMPATIENT,
    ),
    Case("throttled by a quota", at(Throttle(150))),
    Case(
        "sequence numbers wrap around to 0",
        [lambda scene: None],
        guarantees=(AT_LEAST_ONCE, EXACTLY_ONCE),
        around=near_the_last_sequence,
    ),
    Case(
        "the producer id has expired on the broker",
        changes(forget_producers),
        guarantees=(AT_LEAST_ONCE, EXACTLY_ONCE),
    ),
    Case(
        "the producer id has expired on a broker before 2.4 (`UNKNOWN_PRODUCER_ID`)",
        at(ErrorCode.UNKNOWN_PRODUCER_ID, 6),
        guarantees=(AT_LEAST_ONCE, EXACTLY_ONCE),
    ),
    Case(
        "this user may not write to the topic",
        at(ErrorCode.TOPIC_AUTHORIZATION_FAILED, *MOMENTS, times=FOREVER),
    ),
    Case(
        "this user may not see the topic",
        at(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1, times=FOREVER, api="Metadata"),
    ),
    Case(
        "this user may not write idempotently (brokers before 2.8)",
        at(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 1, times=FOREVER, api="InitProducerId"),
        guarantees=(AT_LEAST_ONCE,),
    ),
    Case(
        "no producer id can be assigned, temporarily",
        at(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, times=3, api="InitProducerId"),
        guarantees=(AT_LEAST_ONCE,),
    ),
    Case(
        "the topic is deleted during the write",
        changes(delete_topic, times=FOREVER),
        options=IMPATIENT,
    ),
    Case(
        "batches larger than the topic's `max.message.bytes`",
        [lambda scene: None],
        topic_configs={"max.message.bytes": "100"},
    ),
    Case(
        "a single record larger than the topic's `max.message.bytes`",
        [above_limit],
        topic_configs={"max.message.bytes": "60"},
    ),
    Case("the broker rejects a record (`INVALID_RECORD`)", at(ErrorCode.INVALID_RECORD)),
    Case(
        "the broker returns `UNKNOWN_SERVER_ERROR`, appended or not",
        at(ErrorCode.UNKNOWN_SERVER_ERROR)
        + at(ErrorResponse(ErrorCode.UNKNOWN_SERVER_ERROR, applied=True)),
    ),
    Case(
        "the broker does not answer within `delivery.timeout.ms`, appended or not",
        at(Delay(60_000), 2, times=FOREVER) + at(Delay(60_000, before=True), 6, times=FOREVER),
        options=IMPATIENT,
        may_double=True,
    ),
    Case(
        "a broker is unreachable for longer than `delivery.timeout.ms`",
        [unreachable],
        options=IMPATIENT,
        may_double=True,
    ),
    Case(
        "the server is not a Kafka broker",
        at(Garbage(b"HTTP/1.1 400 Bad Request\r\n", close=False)),
    ),
    Case(
        "an unclean leader election removes acknowledged records",
        [change(lose_acknowledged, 11)],
        told_lost=True,
        unnoticed=(NOT_IDEMPOTENT, EXACTLY_ONCE),
    ),
]

# --- transactions ------------------------------------------------------------------------------


def transaction_codes(api: str) -> list[Strike]:
    """Each code, applied and not, at one of the requests."""
    count = TRANSACTION_REQUESTS[api]
    return [
        in_turn(COORDINATOR_CODES[(nth + applied) % count :: count], nth, api, applied=applied)
        for nth in range(1, count + 1)
        for applied in (False, True)
    ]


def questions() -> list[Strike]:
    """Each code that Kafka's coordinators give to what only asks, at the first of each question."""
    away = (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
    codes = {
        "FindCoordinator": (ErrorCode.COORDINATOR_NOT_AVAILABLE,),
        "OffsetFetch": (*away, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        "DescribeTransactions": away,
        "ListTransactions": away,
    }
    return [
        strike
        for api, some in codes.items()
        for code in some
        for strike in at(ErrorResponse(code), 1, times=2, api=api)
    ]


def each_request(action: Action) -> list[Strike]:
    return [
        strike
        for api, count in TRANSACTION_REQUESTS.items()
        for strike in at(action, *range(1, count + 1), api=api)
    ]


def move_its_coordinator(scene: Scene, request: RecordedRequest) -> None:
    names = ("transactional_id", "v3_and_below_transactional_id", "group_id")
    for key in filter(None, (getattr(request.message, name, None) for name in names)):
        scene.cluster.move_coordinator(key, (request.broker + 1) % BROKERS)


def expired_before_commit(scene: Scene) -> None:
    scene.before_commit = lambda: scene.cluster.expire_transactions(later_ms=3_600_000)


def expire(scene: Scene, request: RecordedRequest) -> None:
    scene.cluster.expire_transactions(later_ms=3_600_000)


def away_until_they_expire(scene: Scene) -> None:
    scene.fault(Drop.BEFORE, api="EndTxn", nth=2, times=FOREVER)
    scene.restart = lambda: scene.cluster.expire_transactions(later_ms=3_600_000)


def refused(code: ErrorCode, api: str, nth: int = 1) -> list[Strike]:
    return at(ErrorResponse(code), nth, times=FOREVER, api=api)


def no_such_group(scene: Scene) -> None:
    """Brokers say it when they are asked for the group's coordinator."""

    def action(request: RecordedRequest) -> ErrorResponse | None:
        group = request.message.key_type == FOR_GROUP
        return ErrorResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED) if group else None

    scene.fault(action, api="FindCoordinator", times=FOREVER)


def one(name: str, strikes: Sequence[Strike], **settings: Any) -> Case:
    return Case(name, strikes, guarantees=(EXACTLY_ONCE,), **settings)


TRANSACTIONS: list[Case] = [
    *(
        one(f"`{api}` returns a retriable code, applied or not", transaction_codes(api))
        for api in TRANSACTION_REQUESTS
    ),
    one(
        "`FindCoordinator`, `OffsetFetch`, `DescribeTransactions` or `ListTransactions` returns "
        "a retriable code",
        questions(),
    ),
    one("connection lost before one of these requests is applied", each_request(Drop.BEFORE)),
    one(
        "connection lost after one of these is applied, before the response",
        each_request(Drop.AFTER),
    ),
    one(
        "the coordinator moves before one of these requests",
        [
            change(move_its_coordinator, nth, api=api)
            for api, count in TRANSACTION_REQUESTS.items()
            for nth in range(1, count + 1)
        ],
    ),
    one(
        "this user may not use the transactional id",
        refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "InitProducerId")
        + refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "InitProducerId", 3)
        + refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "AddPartitionsToTxn")
        + refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "EndTxn"),
    ),
    one(
        "this user may not use the group of decisions",
        refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "OffsetFetch")
        + refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "AddOffsetsToTxn")
        + refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "TxnOffsetCommit")
        + [no_such_group],
    ),
    one(
        "this user may not write to the topic (`AddPartitionsToTxn`)",
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "AddPartitionsToTxn"),
    ),
    one(
        "this user may write to the topic, but not read it (`TxnOffsetCommit`)",
        refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "TxnOffsetCommit"),
    ),
    one("a transaction expires during the write", changes(expire)),
    one("the transactions expire before the decision", [expired_before_commit]),
    one(
        "the coordinators are unavailable beyond the deadline, before the decision",
        at(Drop.BEFORE, 1, times=FOREVER, api="EndTxn"),
        options=IMPATIENT,
    ),
    one(
        "the coordinators are unavailable beyond the deadline, after the decision",
        at(Drop.BEFORE, 2, times=FOREVER, api="EndTxn"),
        options=IMPATIENT,
    ),
    one(
        "the same, and the transactions expire before the next start",
        [away_until_they_expire],
        options=IMPATIENT,
        told_lost=True,
    ),
]


# --- the document ------------------------------------------------------------------------------


@functools.cache
def outcomes_of(name: str, guarantee: Guarantee) -> list[Outcome]:
    """Run once for all who ask."""
    (case,) = (row for row in WRITING + TRANSACTIONS if row.name == name)
    return run(case, guarantee)


def markdown_table(cases: Sequence[Case], guarantees: Sequence[Guarantee]) -> str:
    heads = ["fault", *(row.value for row in guarantees), "error"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for case in cases:
        found = {row: outcomes_of(case.name, row) for row in case.guarantees}
        cells = [words(case, found[row], row) if row in found else "–" for row in guarantees]
        errors = dict.fromkeys(
            error_words(outcome.error)
            for outcomes in found.values()
            for outcome in outcomes
            if outcome.error is not None
        )
        lines.append(f"| {' | '.join([case.name, *cells, '<br>'.join(errors)])} |")
    return "\n".join(lines) + "\n"


TABLES = {"writing": (WRITING, tuple(Guarantee)), "transactions": (TRANSACTIONS, (EXACTLY_ONCE,))}


def update(text: str) -> str:
    """The document with its tables made current."""
    for name, (cases, guarantees) in TABLES.items():
        start, end = f"<!-- faults:{name} -->", f"<!-- /faults:{name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"no {start} … {end} in the text")
        text = f"{before}{start}\n{markdown_table(cases, guarantees)}{end}{after}"
    return text


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(update(document.read_text("utf-8")), "utf-8")
