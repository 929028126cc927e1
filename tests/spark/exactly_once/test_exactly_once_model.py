"""Every crash point of an exactly-once stream: each row is visible once, and nothing stays open.

Kafka is a FakeCluster whose view of read_committed is compared with what was to be written.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from sparkkafka.client.producer.transactions import init_transactions
from sparkkafka.client.values import TopicPartition
from sparkkafka.errors import BrokerError, DecodeError, ErrorCode, KafkaError, TransactionError
from sparkkafka.spark.decision_text import WriterNames
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import commit_offsets, open_cluster
from tests.spark.exactly_once.exactly_once_model import Killed, Process, Query, watched_connections

pytestmark = pytest.mark.slow

BOTH = [False, True]


def soak(value: object) -> Any:
    return pytest.param(value, marks=pytest.mark.soak)


def in_turn(first: int, count: int, step: int) -> range:
    """The requests at which something happens: each step-th. Cases that begin at different ones
    share the requests among them; with a step of 1 each case has all."""
    return range(1 + first % step, count + 1, step)


@pytest.fixture
def query(fake_cluster_factory, monkeypatch) -> Iterator[Query]:
    cluster = fake_cluster_factory(3)
    with watched_connections(monkeypatch):
        yield Query(cluster)


def fresh(query: Query) -> Query:
    return Query(query.cluster, tasks=query.tasks, rows=query.rows)


def counted(work: Callable[[], object]) -> list[str]:
    """The requests that it takes."""
    process = Process()
    process.run(work)
    return process.requests


def one_run(query: Query, batch: int = 0) -> list[str]:
    """The requests of one micro-batch without incidents."""
    process = Process()
    run = query.new_run()
    process.run(lambda: query.run_batch(run, batch))
    return process.requests


def test_a_run_without_incidents(query):
    requests = one_run(query)
    for name in ("InitProducerId", "AddPartitionsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"):
        assert name in requests
    query.assert_each_row_once(1)
    query.assert_nothing_open()
    query.run_up_to(3)
    query.assert_each_row_once(4)
    query.assert_nothing_open()


@pytest.mark.parametrize("step", [9, soak(1)])
@pytest.mark.parametrize("answered", BOTH, ids=["before", "after"])
def test_a_driver_and_its_tasks_killed_at_any_request(query, answered, step):
    """Driver and tasks die together, at each request of the second micro-batch (in the short form
    at each ninth one); the next start plans the batch again, with the rows in other tasks."""
    count = len(one_run(query))

    def is_decided_when_killed(at):
        one = fresh(query)
        one.run_up_to(0)
        process = Process(at, answered=answered, then="kill")
        run = one.new_run()
        try:
            process.run(lambda: one.run_batch(run, 1))
        except Killed:
            pass
        else:
            assert at > count - 8  # the run that was counted looked for more to clear up
        if 1 in one.done:
            one.done.remove(1)  # it died before Spark's commit log was written
        before = sum(one.visible().values())
        one.run_up_to(2, plan=1)
        one.assert_each_row_once(3)
        one.assert_nothing_open()
        return before > one.rows

    decided = sum(map(is_decided_when_killed, in_turn(4 * answered, count, step)))
    if not decided:
        # Runs differ by a request or two: each ninth one may miss what comes near the end.
        decided = any(map(is_decided_when_killed, range(count, max(count - 12, 0), -1)))
    assert decided >= (3 if step == 1 else 1), "no kill came between the decision and the end"


def test_killed_after_the_last_request_and_before_spark_s_commit_log(query):
    for _ in range(3):
        query.run_batch(query.new_run(), 0)
        query.done.clear()
        query.assert_each_row_once(1)
    query.run_up_to(2, plan=1)
    query.assert_each_row_once(3)
    query.assert_nothing_open()


def test_an_older_copy_of_the_checkpoint(query):
    query.run_up_to(1)
    text = "batch 0 is planned again although batch 1 was decided"
    with pytest.raises(TransactionError, match=text):
        query.run_batch(query.new_run(), 0)
    query.assert_each_row_once(2)
    query.assert_nothing_open()


def test_a_commit_that_fails_after_the_decision_aborts_nothing(query):
    """Spark calls abort then. The first EndTxn is the decision's."""
    rule = query.cluster.fault(
        ErrorCode.UNKNOWN_SERVER_ERROR, api="EndTxn", nth=2, times=query.tasks
    )
    with pytest.raises(TransactionError):
        query.run_batch(query.new_run(), 0)
    assert rule.fired == query.tasks
    query.run_up_to(0, plan=1)
    query.assert_each_row_once(1)
    query.assert_nothing_open()


@pytest.mark.parametrize("seed", [*range(2), *(soak(seed) for seed in range(2, 40))])
def test_kill_upon_kill(query, seed):
    """Starts that are killed at random requests, one after the other, until one gets through."""
    dice = random.Random(seed)
    last = 4
    count = len(one_run(fresh(query)))
    kills = 0
    while len(query.done) <= last:
        process = Process(dice.randint(1, 2 * count), answered=dice.random() < 0.5, then="kill")
        try:
            process.run(lambda: query.run_up_to(last, plan=dice.randint(0, 2)))
        except Killed:
            kills += 1
        if len(query.done) <= last and dice.random() < 0.2:
            query.run_up_to(len(query.done), plan=1)
            query.done.pop()  # it died when the commit log was not written yet
        assert kills < 200
    assert kills >= 1
    query.run_up_to(last + 1)
    query.assert_each_row_once(last + 2)
    query.assert_nothing_open()


# --- tasks -------------------------------------------------------------------------------------


def task_requests(query: Query) -> int:
    process = Process()
    run = query.new_run()
    process.run(lambda: query.write_task(run, 0, 0))
    return len(process.requests)


@pytest.mark.parametrize("step", [2, soak(1)])
@pytest.mark.parametrize("answered", BOTH, ids=["before", "after"])
def test_a_task_killed_at_any_request_and_tried_again(query, answered, step):
    for at in in_turn(answered, task_requests(fresh(query)), step):
        one = fresh(query)
        run = one.new_run()
        process = Process(at, answered=answered, then="kill")
        with suppress(Killed):  # a run may need a request less than the one that was counted
            process.run(lambda one=one, run=run: one.write_task(run, 0, 1))
        reports = [one.write_task(run, 0, task) for task in (0, 2)]
        reports.append(one.write_task(run, 0, 1, attempt=1))
        one.commit(0, reports)
        one.done.append(0)
        one.assert_each_row_once(1)
        one.assert_nothing_open()
        one.run_batch(run, 1)
        one.assert_each_row_once(2)


RESUMES = ["before commit", "after commit", "in the next batch"]


@pytest.mark.parametrize("step", [4, soak(1)])
@pytest.mark.parametrize("resumes", RESUMES)
@pytest.mark.parametrize("answered", BOTH, ids=["before", "after"])
def test_a_zombie_attempt(query, answered, resumes, step):
    """An attempt that Spark gave up on stands still at any request, and resumes later."""
    first = RESUMES.index(resumes) + answered
    for at in in_turn(first, task_requests(fresh(query)), step):
        one = fresh(query)
        run = one.new_run()
        zombie = Process(at, answered=answered, then="pause")
        zombie.start(lambda one=one, run=run: one.write_task(run, 0, 1))
        assert zombie.reached.wait(10)
        reports = [one.write_task(run, 0, task) for task in (0, 2)]
        reports.append(one.write_task(run, 0, 1, attempt=1))

        def wake(zombie=zombie):
            zombie.go_on.set()
            with suppress(KafkaError):  # fenced
                zombie.wait()

        if resumes == "before commit":
            wake()
        one.commit(0, reports)
        one.done.append(0)
        if resumes == "after commit":
            wake()
        if resumes == "in the next batch":
            # It may take over the id of the next batch's attempt: then this batch fails, unseen.
            reports = [one.write_task(run, 1, task) for task in range(one.tasks)]
            wake()
            try:
                one.commit(1, reports)
                one.done.append(1)
            except KafkaError:
                pass
        one.run_up_to(2, plan=1)
        one.assert_each_row_once(3)
        one.run_up_to(3)
        one.assert_nothing_open()


def test_a_speculative_copy_that_is_killed_beside_the_first(query):
    """The copy has a higher number than the attempt that succeeds."""
    killed = 0
    for at in range(1, task_requests(fresh(query)) + 1):
        one = fresh(query)
        run = one.new_run()
        reports = [one.write_task(run, 0, task) for task in range(one.tasks)]
        copy = Process(at, then="kill")
        with suppress(Killed):
            copy.run(lambda one=one, run=run: one.write_task(run, 0, 1, attempt=1))
        one.commit(0, reports)
        one.assert_each_row_once(1)
        one.assert_nothing_open()
        killed += copy.dead
    assert killed >= 6


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_copy_that_begins_after_the_commit_ends_with_a_narrower_micro_batch(query, attempt):
    """Spark lets a copy that lost run for two seconds more. The next micro-batch may lack its task;
    its transaction would hold readers back until it expires."""
    run = query.new_run()
    query.run_batch(run, 0)
    query.write_task(run, 0, query.tasks - 1, attempt=attempt)
    assert query.cluster.open_transactions()
    query.commit(1, [query.write_task(run, 1, 0)])
    query.assert_nothing_open()
    assert sum(query.visible().values()) == query.rows + len(query.rows_of(1, 0, 0))


@pytest.mark.parametrize("step", [2, soak(1)])
@pytest.mark.parametrize("counts", ["first", "second"])
def test_a_stage_that_is_run_again_beside_its_first_tasks(query, counts, step):
    """Both copies are attempt 0. Whichever reports first counts; nothing stays open of the other,
    wherever it is stopped."""
    for at in in_turn(counts == "second", task_requests(fresh(query)), step):
        one = fresh(query)
        run = one.new_run()
        reports = [one.write_task(run, 0, task) for task in (0, 2)]
        killed = Process(at, then="kill")
        if counts == "second":
            with suppress(Killed):
                killed.run(lambda one=one, run=run: one.write_task(run, 0, 1))
        reports.append(one.write_task(run, 0, 1))
        if counts == "first":
            with suppress(Killed):
                killed.run(lambda one=one, run=run: one.write_task(run, 0, 1))
        one.commit(0, reports)
        one.assert_each_row_once(1)
        one.assert_nothing_open()
        one.run_batch(run, 1)
        one.assert_each_row_once(2)
        one.assert_nothing_open()


def test_a_micro_batch_whose_task_lost_its_id_to_a_copy_leaves_nothing_open(query):
    """Both asked at the same moment who has the id."""
    run = query.new_run()
    copy = PausedBeforeInit(then="pause")
    copy.start(lambda: query.write_task(run, 0, 1))
    assert copy.reached.wait(10)
    reports = [query.write_task(run, 0, task) for task in range(3)]
    copy.go_on.set()
    copy.wait()
    with pytest.raises(TransactionError, match="ours was 0: the query runs twice"):
        query.commit(0, reports)
    assert not query.visible()
    query.assert_nothing_open()


class PausedBeforeInit(Process):
    """How many requests come before it differs: coordinators may be on one broker or on two."""

    def before(self, request: Any) -> None:
        if request.API_NAME == "InitProducerId" and not self.at:
            self.at = len(self.requests) + 1
        super().before(request)


# --- drivers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [8, soak(1)])
@pytest.mark.parametrize("answered", BOTH, ids=["before", "after"])
@pytest.mark.parametrize("resumes", ["before the other commits", "after the other committed"])
def test_a_driver_zombie(query, answered, resumes, step):
    """A driver stands still at any request of its commit while another start of the same query
    plans the batch again; then it goes on. It fails or finds that its work is done; no row is lost,
    none doubled."""
    probe = fresh(query)
    run = probe.new_run()
    reports = [probe.write_task(run, 0, task) for task in range(probe.tasks)]
    process = Process()
    process.run(lambda: probe.commit(0, reports))
    first = 4 * (resumes == "after the other committed") + 2 * answered
    for at in in_turn(first, len(process.requests), step):
        one = fresh(query)
        run = one.new_run()
        reports = [one.write_task(run, 0, task) for task in range(one.tasks)]
        zombie = Process(at, answered=answered, then="pause")
        zombie.start(lambda one=one, reports=reports: one.commit(0, reports))
        assert zombie.reached.wait(10)
        other = one.new_run()
        others = [one.write_task(other, 0, task, plan=1) for task in range(one.tasks)]

        def wake(zombie=zombie):
            zombie.go_on.set()
            with suppress(KafkaError):
                zombie.wait()

        if resumes == "before the other commits":
            wake()
        try:
            one.commit(0, others)
            one.done.append(0)
        except KafkaError:
            pass
        if resumes == "after the other committed":
            wake()
        one.run_up_to(2, plan=2)
        one.assert_each_row_once(3)
        one.assert_nothing_open()


@pytest.mark.parametrize("step", [4, soak(1)])
def test_a_driver_zombie_goes_on_in_the_middle_of_the_other_s_commit(query, step):
    """The other has decided and not finished; it may also die there."""
    probe = fresh(query)
    run = probe.new_run()
    reports = [probe.write_task(run, 0, task) for task in range(probe.tasks)]
    process = Process()
    process.run(lambda: probe.commit(0, reports))
    ends = [n for n, name in enumerate(process.requests, 1) if name == "EndTxn"]
    cases = [
        (at, end, dies)
        for at in range(ends[0] - 4, ends[0] + 1, step)  # it has read the last decision, mostly
        for end in (1, 2)
        for dies in BOTH
    ]
    for at, end, dies in cases:
        one = fresh(query)
        run, other_run = one.new_run(), one.new_run()
        reports = [one.write_task(run, 0, task) for task in range(one.tasks)]
        zombie = Process(at, then="pause")
        zombie.start(lambda one=one, reports=reports: one.commit(0, reports))
        assert zombie.reached.wait(10)
        others = [one.write_task(other_run, 0, task, plan=1) for task in range(one.tasks)]
        # In both cases the decision stands and nothing of it is committed.
        other = Process(end, answered=end == 1, then="pause", only="EndTxn")
        other.start(lambda one=one, others=others: one.commit(0, others))
        assert other.reached.wait(10)
        zombie.go_on.set()
        with suppress(KafkaError):
            zombie.wait()
        other.dead = dies
        other.go_on.set()
        with suppress(KafkaError, Killed):
            other.wait()
        one.run_up_to(2, plan=2)
        one.assert_each_row_once(3)
        one.assert_nothing_open()


def test_two_drivers_at_once(query):
    """Both alive, each batch by both: one decides it, the other finds it decided or fails."""
    first, second = query.new_run(), query.new_run()
    for batch in range(4):
        for run in (first, second):
            try:
                query.commit(
                    batch,
                    [query.write_task(run, batch, task) for task in range(query.tasks)],
                )
            except KafkaError:
                continue
    query.done = [0, 1, 2, 3]
    query.run_up_to(4)
    query.assert_each_row_once(5)
    query.assert_nothing_open()


# --- starts that differ ------------------------------------------------------------------------


def test_a_start_with_fewer_tasks_after_a_crash(query):
    wide = Query(query.cluster, tasks=6, rows=12)
    run = wide.new_run()
    for task in range(6):
        wide.write_task(run, 0, task)  # and then the driver is gone
    wide.tasks = 2
    wide.run_up_to(1)
    wide.assert_each_row_once(2)
    wide.assert_nothing_open()


def test_a_new_checkpoint_under_an_old_prefix(query):
    """Also if the old query died between its decision and the end: its batch is finished first."""
    old = Query(query.cluster, prefix="shared2")
    old.run_up_to(0)
    run = old.new_run()
    reports = [old.write_task(run, 1, task) for task in range(3)]
    with pytest.raises(Killed):
        # The first is the decision's.
        Process(2, then="kill", only="EndTxn").run(lambda: old.commit(1, reports))
    new = Query(query.cluster, prefix="shared2")
    new.run_up_to(2)
    old.assert_each_row_once(2)
    new.assert_each_row_once(3)
    new.assert_nothing_open()


def test_two_queries_with_one_prefix_get_an_error(query):
    first, second = Query(query.cluster, prefix="same"), Query(query.cluster, prefix="same")
    run_one, run_two = first.new_run(), second.new_run()
    first.run_batch(run_one, 0)
    second.run_batch(run_two, 0)
    with pytest.raises(KafkaError, match=f"same is used by another query as well: {second.id}"):
        first.run_batch(run_one, 1)


def test_a_longer_prefix_is_another_query(query):
    """What "orders" leaves open is cleared up; what "orders-eu" has open is not touched."""
    short, long = Query(query.cluster, prefix="orders"), Query(query.cluster, prefix="orders-eu")
    run = long.new_run()
    reports = [long.write_task(run, 0, task) for task in range(3)]
    short.run_up_to(0)
    long.commit(0, reports)
    long.assert_each_row_once(1)
    short.assert_each_row_once(1)


def test_a_task_that_was_replaced_says_by_whom_and_does_nothing(query):
    query.run_up_to(0)
    run = query.new_run()
    attempt = query.place(run, 1, 1)
    task = Process(1, then="pause", only="Produce")
    task.start(lambda: query.write_task(run, 1, 1))
    assert task.reached.wait(10)
    with open_cluster(query.cluster) as cluster:
        tid = next(iter(attempt.numbers_by_id))
        taken = init_transactions(cluster, [tid], 60_000, cluster.deadline())[tid]
    task.go_on.set()
    with pytest.raises(TransactionError) as caught:
        task.wait()
    text = str(caught.value)
    assert f"task 1 (attempt 0) can no longer write in transaction {tid}" in text
    assert f"held under producer epoch {taken.producer_epoch} (this task's was 0" in text
    assert f"The last batch under this prefix, 0, was decided by query {query.id}" in text
    assert query.cluster.transaction(tid).producer_epoch == taken.producer_epoch


# --- micro-batches without rows, polluted groups, old and strict brokers --------------------------


def run_empty(query: Query, run: WriterNames, batch: int) -> None:
    query.commit(batch, [query.place(run, batch, n).report(0, None) for n in range(query.tasks)])


def test_a_new_checkpoint_under_an_old_prefix_begins_without_rows(query):
    """As an aggregation with a watermark does: the next micro-batch is no other query's for it."""
    Query(query.cluster, prefix="shared3").run_up_to(0)
    new = Query(query.cluster, prefix="shared3")
    run = new.new_run()
    run_empty(new, run, 0)
    run_empty(new, run, 1)
    new.run_batch(run, 2)
    assert new.visible() == Counter(range(200, 200 + new.rows))
    new.assert_nothing_open()


@pytest.mark.parametrize("step", [3, soak(1)])
def test_an_empty_micro_batch_does_not_abort_what_another_driver_has_decided(query, step):
    """Two starts of a query plan a batch; the later one gets no rows (a source that lost them), and
    the earlier one decides after the later one has looked."""
    for at in range(1, 16, step):
        one = fresh(query)
        one.run_up_to(0)
        first, second = one.new_run(), one.new_run()
        reports = [one.write_task(first, 1, task) for task in range(one.tasks)]
        later = Process(at, then="pause")
        later.start(lambda one=one, second=second: run_empty(one, second, 1))
        assert later.reached.wait(10)
        ends = Process(1, answered=True, then="pause", only="EndTxn")  # the decision's
        ends.start(lambda one=one, reports=reports: one.commit(1, reports))
        assert ends.reached.wait(10)
        later.go_on.set()
        with suppress(KafkaError):  # fenced
            later.wait()
        ends.go_on.set()
        with suppress(TransactionError):  # fenced before it had decided; DataLossError is none
            ends.wait()
        rows = {row for row in one.visible() if row >= 100}
        assert rows in (set(), set(range(100, 100 + one.rows))), f"a part is visible (at {at})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 4000,
        '{"v":1,"query":"q","run":"r","batch":0,"number":1,"app":"","piece":0,"of":1,'
        '"tasks":"0.0.zzzzzzzzzzzzzzzzzz.1"}',
        '{"v":1,"query":"q","run":"r","batch":0,"number":1,"app":"","piece":0,"of":1,'
        '"tasks":"0.0.1.0 0.0.1.1"}',
        '{"v":1,"query":"q","run":"\\ud800","batch":0,"number":1,"app":"","piece":0,"of":1,'
        '"tasks":"0.0.1.1"}',
    ],
    ids=["nothing", "deep", "too large", "twice", "not a name"],
)
def test_what_others_wrote_into_the_group_is_refused_with_a_message(query, text):
    group = query.new_run().decisions
    with open_cluster(query.cluster) as cluster:
        commit_offsets(cluster, group, {TopicPartition(query.topics[0], 0): 5}, metadata=text)
    with pytest.raises(DecodeError, match="Delete the group") as caught:
        query.run_up_to(0)
    assert group in str(caught.value)
    assert not query.visible()


def test_brokers_that_allow_short_transactions_only():
    with FakeCluster(2, max_transaction_timeout_ms=4_000) as cluster:
        query = Query(cluster)
        query.write_task(query.new_run(), 0, 0)  # left open
        query.run_up_to(1)
        query.assert_each_row_once(2)
        query.assert_nothing_open()


def test_a_decision_is_cut_to_the_metadata_that_brokers_keep():
    """60 tasks need some 700 characters."""
    with FakeCluster(2, max_offset_metadata_bytes=512) as cluster:
        query = Query(cluster, tasks=60, rows=60)
        query.run_up_to(1)
        query.run_up_to(2)  # it reads what the first start decided
        query.assert_each_row_once(3)
        query.assert_nothing_open()
        texts = cluster.committed_metadata(query.new_run().decisions).values()
    assert len(texts) == 2


def test_a_decision_that_brokers_do_not_keep_is_an_error_that_names_their_setting():
    with FakeCluster(2, max_offset_metadata_bytes=100) as cluster:
        query = Query(cluster)
        with pytest.raises(BrokerError, match=r"set the brokers' offset\.metadata\.max\.bytes"):
            query.run_up_to(0)
        assert not query.visible()
        query.assert_nothing_open()


def test_what_a_failed_attempt_left_open_is_aborted_on_old_brokers(monkeypatch):
    """They cannot say what is open; that an earlier attempt has run is known all the same."""
    with FakeCluster(2, kafka_version="2.1") as cluster, watched_connections(monkeypatch):
        query = Query(cluster)
        run = query.new_run()
        task = Process(task_requests(Query(cluster, prefix="other")), then="kill")
        with suppress(Killed):
            task.run(lambda: query.write_task(run, 0, 1))
        ours = [row for row in cluster.open_transactions() if query.id in row.transactional_id]
        assert len(ours) == 1
        reports = [query.write_task(run, 0, task, attempt=task % 2) for task in range(3)]
        query.commit(0, reports)
        query.assert_each_row_once(1)
        query.assert_nothing_open()


def test_what_the_last_start_left_open_is_aborted_on_old_brokers():
    """Its name stands in the last decision, and so many tasks as now it may have had."""
    with FakeCluster(2, kafka_version="2.1") as cluster:
        query = Query(cluster)
        run = query.new_run()
        query.commit(0, [query.write_task(run, 0, task) for task in range(3)])
        for task in range(3):
            query.write_task(run, 1, task)  # and then the driver is killed
        assert len(cluster.open_transactions()) == 3
        again = query.new_run()
        query.commit(1, [query.write_task(again, 1, task) for task in range(3)])
        query.assert_each_row_once(2)
        query.assert_nothing_open()


def test_a_batch_is_finished_again_and_again_on_old_brokers():
    """Each start dies when it has ended all, and Spark's commit log was not written yet."""
    with FakeCluster(2, kafka_version="2.8") as cluster:
        query = Query(cluster)
        for _ in range(3):
            query.run_batch(query.new_run(), 0)
            query.done.clear()
        query.run_up_to(1)
        query.assert_each_row_once(2)
        query.assert_nothing_open()


def test_a_start_that_decided_nothing_cannot_be_known_on_old_brokers():
    """Readers wait for its transactions until their timeout, as docs/exactly-once.md says."""
    with FakeCluster(2, kafka_version="2.1") as cluster:
        query = Query(cluster)
        query.write_task(query.new_run(), 0, 0)  # and then the driver is killed
        again = query.new_run()
        query.commit(0, [query.write_task(again, 0, task) for task in range(3)])
        assert len(cluster.open_transactions()) == 1
