"""Admin where something goes wrong: one bad item, a moved broker, a response that is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkkafka.client.admin import groups
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.topics import NewPartitions, NewTopic
from sparkkafka.client.cluster.configs import AlterConfigOp, ConfigResource
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.cluster.request_driver import ApiHandler
from sparkkafka.client.values import Listing, Results, TopicPartition
from sparkkafka.errors import (
    BrokerError,
    EncodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from sparkkafka.protocol.messages.consumer_protocol import encode_assignment
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from tests.client.support import fill, settings


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is unknown is believed to be missing a bit sooner."""
    monkeypatch.setattr(ApiHandler, "grace_ms", 200)


def open_admin(cluster: Any, **config: Any) -> Admin:
    return Admin(settings(cluster, **config))


def codes(results: Results[Any, Any]) -> dict[Any, int]:
    """The code of each item's error; 0 for those without."""
    return {item: getattr(results.errors.get(item), "code", 0) for item in results}


# --- results ----------------------------------------------------------------------------------


def test_results_keep_each_item_apart():
    error = BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, "CreateTopics of b")
    results: Results[str, int] = Results({"a": 1, "b": error, "c": 0})
    assert (list(results), len(results), "b" in results, "x" in results) == (
        ["a", "b", "c"],
        3,
        True,
        False,
    )
    assert (results["a"], results.values_by_item) == (1, {"a": 1, "c": 0})
    assert results.errors == {"b": error}
    # Not made anew for each look: a loop over 20,000 partitions looks 20,000 times.
    assert results.errors is results.errors
    assert results.values_by_item is results.values_by_item
    for look in (lambda: results["b"], results.all, lambda: list(results.values())):
        with pytest.raises(BrokerError) as raised:
            look()
        assert raised.value is error
    with pytest.raises(KeyError):
        _ = results["x"]
    assert Results({"a": 1}).all() == {"a": 1}
    assert "INVALID_TOPIC_EXCEPTION" in repr(results)


def test_a_listing_is_a_sequence_and_says_which_brokers_are_missing():
    error = KafkaConnectionError("gone")
    listing = Listing(["a", "b"], {2: error})
    assert (list(listing), len(listing), listing[1], listing[:1]) == (["a", "b"], 2, "b", ("a",))
    assert listing.errors == {2: error}
    with pytest.raises(KafkaConnectionError):
        listing.all()
    assert Listing(["a"], {}).all() == ["a"]


# --- topics -----------------------------------------------------------------------------------


def test_one_bad_topic_among_good_ones(fake_cluster):
    fake_cluster.create_topic("there")
    with open_admin(fake_cluster) as admin:
        created = admin.create_topics(
            [
                NewTopic("a", partitions=2, replication_factor=3),
                NewTopic("there"),
                NewTopic("not/a/name"),
                NewTopic(""),
                NewTopic("b", partitions=1, replication_factor=9),
                NewTopic("c", replica_assignment={0: [2, 1], 1: [0, 2]}),
            ]
        )
        assert codes(created) == {
            "a": 0,
            "there": ErrorCode.TOPIC_ALREADY_EXISTS,
            "not/a/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "b": ErrorCode.INVALID_REPLICATION_FACTOR,
            "c": 0,
        }
        assert "of topic '' @" in str(created.errors[""])
        described = admin.describe_topics(["a", "missing", "c"])
        assert codes(described)["missing"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [row.replicas for row in described["c"].partitions] == [(2, 1), (0, 2)]
        assert [row.leader for row in described["c"].partitions] == [2, 0]
        assert len(described["a"].partitions) == 2
        deleted = admin.delete_topics(["a", "missing", "c"])
        assert codes(deleted) == {
            "a": 0,
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "c": 0,
        }
        assert list(admin.list_topics()) == ["there"]
        # A typing error is told at once, not after a while in which the topic might come.
        assert len(fake_cluster.requests_of("DeleteTopics")) == 1


def test_a_request_that_cannot_be_written_is_the_error_of_its_item_alone(fake_cluster):
    with open_admin(fake_cluster) as admin:
        created = admin.create_topics(
            [NewTopic("a"), NewTopic("b", partitions=2**40), NewTopic("c")]
        )
        assert isinstance(created.errors["b"], EncodeError)
        assert list(created.errors) == ["b"]
        assert list(admin.list_topics()) == ["a", "c"]


def test_lost_responses_are_not_taken_for_failures(fake_cluster):
    fake_cluster.create_topic("old", partitions=2)
    with open_admin(fake_cluster) as admin:
        for api, act in (
            ("CreateTopics", lambda: admin.create_topics([NewTopic("new"), NewTopic("old")])),
            ("CreatePartitions", lambda: admin.create_partitions({"new": 4, "old": 2})),
            ("DeleteTopics", lambda: admin.delete_topics(["new"])),
        ):
            fault = fake_cluster.fault(Drop.AFTER, api=api)
            outcome = act()
            assert fault.fired == 1, api
            assert outcome["new"] is None, api
        assert "new" not in admin.list_topics()
        # Nothing was lost here, so the same responses are errors.
        assert codes(admin.create_topics([NewTopic("old")])) == {
            "old": ErrorCode.TOPIC_ALREADY_EXISTS
        }
        assert codes(admin.create_partitions({"old": 2})) == {"old": ErrorCode.INVALID_PARTITIONS}
        assert codes(admin.delete_topics(["new"])) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_with_more_partitions_than_wanted_was_not_grown_by_us(fake_cluster):
    fake_cluster.create_topic("t", partitions=5)
    fake_cluster.fault(Drop.BEFORE, api="CreatePartitions")
    with open_admin(fake_cluster) as admin:
        assert codes(admin.create_partitions({"t": 3})) == {"t": ErrorCode.INVALID_PARTITIONS}


def test_a_timeout_of_the_controller_may_have_done_it(fake_cluster):
    response = ErrorResponse(ErrorCode.REQUEST_TIMED_OUT, applied=True)
    fake_cluster.fault(response, api="CreateTopics")
    with open_admin(fake_cluster) as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
        assert len(fake_cluster.requests_of("CreateTopics")) == 2


def test_an_idle_connection_that_the_broker_closed_is_no_lost_response(fake_cluster):
    """Else TOPIC_ALREADY_EXISTS would be taken for what the first attempt did."""
    with open_admin(fake_cluster) as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
        for broker in fake_cluster.broker_ids:
            fake_cluster.disconnect(broker)
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topic("t", partitions=1, replication_factor=1)


def test_the_controller_is_found_anew(fake_cluster_factory):
    old = fake_cluster_factory(3, kafka_version="2.8")
    with open_admin(old) as admin:
        admin.create_topic("a", partitions=1, replication_factor=1)
        fault = old.fault(ErrorCode.NOT_CONTROLLER, api="CreateTopics", times=2)
        admin.create_topic("b", partitions=1, replication_factor=1)
        assert fault.fired == 2
        fault = old.fault(ErrorCode.NOT_CONTROLLER, api="CreatePartitions")
        admin.create_partitions({"a": 2, "b": NewPartitions(3)}).all()
        assert [len(admin.describe_topic(name).partitions) for name in "ab"] == [2, 3]
        # It was another broker that refused: what it says of a topic that is there is true.
        old.fault(ErrorCode.NOT_CONTROLLER, api="CreateTopics")
        assert codes(admin.create_topics([NewTopic("a")])) == {"a": ErrorCode.TOPIC_ALREADY_EXISTS}


def test_validate_only_changes_nothing(fake_cluster):
    with open_admin(fake_cluster) as admin:
        new = NewTopic("t", partitions=1, replication_factor=1)
        assert admin.create_topics([new], validate_only=True).all() == {"t": None}
        assert admin.list_topics() == {}
        fake_cluster.create_topic("t")
        assert admin.create_partitions({"t": 2}, validate_only=True).all() == {"t": None}
        assert len(admin.describe_topic("t").partitions) == 1


def test_a_missing_topic_is_an_error_with_the_nearest_one(fake_cluster):
    fake_cluster.create_topic("orders")
    with open_admin(fake_cluster) as admin:
        for call in (admin.describe_topic, admin.delete_topic):
            with pytest.raises(UnknownTopicError, match=r"its name \(the nearest is orders\)"):
                call("ordres")


def test_an_error_of_denied_requests_says_what_to_grant(fake_cluster):
    fake_cluster.create_topic("t")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    tp = TopicPartition("t", 0)
    with open_admin(fake_cluster) as admin:
        for api, words, act in (
            ("CreateTopics", "CREATE on topic n", lambda: admin.create_topics([NewTopic("n")])),
            ("DeleteTopics", "DELETE on topic t", lambda: admin.delete_topics(["t"])),
            ("CreatePartitions", "ALTER on topic t", lambda: admin.create_partitions({"t": 2})),
            ("Metadata", "DESCRIBE on topic t", lambda: admin.describe_topics(["t"])),
            ("DeleteRecords", "DELETE on topic t", lambda: admin.delete_records({tp: 0})),
            (
                "ListOffsets",
                "DESCRIBE on topic t",
                lambda: admin.list_offsets({tp: OffsetSpec.latest()}),
            ),
            (
                "DescribeConfigs",
                "DESCRIBE_CONFIGS on topic t",
                lambda: admin.describe_configs([ConfigResource("topic", "t")]),
            ),
            (
                "OffsetCommit",
                "READ on group g and on topic t",
                lambda: admin.alter_consumer_group_offsets("g", {tp: 1}),
            ),
            ("DeleteGroups", "DELETE on group g", lambda: admin.delete_consumer_groups(["g"])),
        ):
            fault = fake_cluster.fault(denied, api=api, times=None)
            (error,) = act().errors.values()
            assert fault.fired == 1, api  # asking again would not help
            assert error.code == denied
            assert f"grant {words}" in str(error)
            fake_cluster.clear_faults()
        fake_cluster.fault(ErrorCode.GROUP_AUTHORIZATION_FAILED, api="FindCoordinator")
        with pytest.raises(BrokerError, match="grant DESCRIBE on group new"):
            admin.list_consumer_group_offsets("new")


# --- settings ---------------------------------------------------------------------------------


def test_settings_of_brokers_come_from_those_brokers(fake_cluster):
    fake_cluster.create_topic("t", configs={"retention.ms": "7"})
    topic, one = ConfigResource("topic", "t"), ConfigResource("broker", "1")
    missing, unknown = ConfigResource("topic", "missing"), ConfigResource("broker", "9")
    with open_admin(fake_cluster) as admin:
        found = admin.describe_configs(
            [topic, one, missing, unknown],
            keys=["retention.ms", "num.partitions"],
            include_synonyms=True,
        )
        entry = found[topic]["retention.ms"]
        assert (entry.value, entry.source, entry.is_default) == ("7", "DYNAMIC_TOPIC_CONFIG", False)
        assert [row[2] for row in entry.synonyms] == ["DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"]
        assert found[one]["num.partitions"].is_default
        assert isinstance(found.errors[missing], UnknownTopicError)
        assert "there is no broker 9" in str(found.errors[unknown])
        asked = {
            row.resource_name: request.broker
            for request in fake_cluster.requests_of("DescribeConfigs")
            for row in request.message.resources
        }
        assert asked["1"] == 1


def test_brokers_that_only_replace_all_settings_are_not_asked_to(fake_cluster_factory):
    old = fake_cluster_factory(1, kafka_version="2.1")
    old.create_topic("t")
    topic = ConfigResource("topic", "t")
    with open_admin(old) as admin:
        results = admin.incremental_alter_configs({topic: {"retention.ms": "5"}})
        with pytest.raises(UnsupportedVersionError, match=r"KIP-339.*Kafka 2\.3"):
            results.all()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda admin: admin.delete_topics("orders"), r"\['orders'\]"),
        (lambda admin: admin.describe_consumer_groups("g"), "group_ids is a list"),
        (lambda admin: admin.create_topics([NewTopic("t"), NewTopic("t")]), "twice"),
        (
            lambda admin: NewTopic("t", partitions=1, replica_assignment={0: [0]}),
            "replica_assignment",
        ),
        (lambda admin: admin.describe_configs([ConfigResource("tpoic", "t")]), "'tpoic'"),
        (lambda admin: admin.describe_configs([ConfigResource("broker", "b")]), "node id"),
        (
            lambda admin: admin.incremental_alter_configs(
                {ConfigResource("topic", "t"): [AlterConfigOp("a", "b", "add")]}
            ),
            "set, delete, append, subtract",
        ),
        (
            lambda admin: admin.incremental_alter_configs(
                {ConfigResource("topic", "t"): [AlterConfigOp("a", None)]}
            ),
            "needs a value",
        ),
        (
            lambda admin: admin.alter_consumer_group_offsets("g", {TopicPartition("t", 0): -1}),
            "offset -1 of t-0; give a whole number, at least 0",
        ),
        (lambda admin: admin.list_offsets({}, isolation_level="committed"), "'committed'"),
        (lambda admin: OffsetSpec.for_timestamp(-5), "-5"),
        (lambda admin: admin.list_consumer_groups(states=["Stabel"]), "'Stabel'.*Stable"),
        (lambda admin: admin.list_topics(timeout_s=-1), "timeout_s"),
    ],
)
def test_bad_arguments_are_errors_before_anything_is_sent(fake_cluster, act, message):
    with open_admin(fake_cluster) as admin:
        with pytest.raises(OptionError, match=message):
            act(admin)
        assert fake_cluster.requests == []


# --- records and offsets ----------------------------------------------------------------------


@pytest.mark.slow
def test_records_go_up_to_what_was_there_when_they_were_to_be_deleted(fake_cluster, impatient):
    """The high watermark is looked up first: a repeat must not delete what came after."""
    fake_cluster.create_topic("t", partitions=2)
    fill(fake_cluster, "t", 100, partitions=2)
    tps = [TopicPartition("t", number) for number in range(3)]

    def more(_request: Any) -> Drop:
        fill(fake_cluster, "t", 50, partitions=2, per_send=25)
        return Drop.AFTER

    fault = fake_cluster.fault(more, api="DeleteRecords")
    with open_admin(fake_cluster) as admin:
        done = admin.delete_records({tps[0]: -1, tps[1]: 20, tps[2]: -1})
        assert fault.fired == 1
        assert done.values_by_item == {tps[0]: 50, tps[1]: 20}
        assert isinstance(done.errors[tps[2]], UnknownTopicError)
        assert "it has partitions 0 to 1" in str(done.errors[tps[2]])
        specs = dict.fromkeys(tps[:2], OffsetSpec.earliest())
        first = admin.list_offsets(specs).all()
        assert {tp: row.offset for tp, row in first.items()} == {tps[0]: 50, tps[1]: 20}
        assert fake_cluster.log("t", 0).end_offset == 75
        beyond = admin.delete_records({tps[0]: 50, tps[1]: 1000})
        assert codes(beyond) == {tps[0]: 0, tps[1]: ErrorCode.OFFSET_OUT_OF_RANGE}


def test_leaders_that_moved_are_found_anew(fake_cluster):
    fake_cluster.create_topic("t", partitions=3)
    fill(fake_cluster, "t", 30, partitions=3, per_send=10)
    tps = [TopicPartition("t", number) for number in range(3)]
    latest = dict.fromkeys(tps, OffsetSpec.latest())
    with open_admin(fake_cluster) as admin:
        before = admin.list_offsets(latest).all()
        for number in range(3):
            leader = fake_cluster.leader("t", number)
            fake_cluster.move_leader("t", number, (leader + 1) % 3)
        assert admin.list_offsets(latest).all().keys() == before.keys()
        fake_cluster.broker_down(0)
        assert {row.offset for row in admin.list_offsets(latest).all().values()} == {10}
        assert admin.delete_records(dict.fromkeys(tps, 5)).all() == dict.fromkeys(tps, 5)


def test_what_a_broker_would_take_for_a_time_is_not_asked(fake_cluster_factory):
    old = fake_cluster_factory(1, kafka_version="2.8")
    old.create_topic("t", partitions=2)
    tps = [TopicPartition("t", 0), TopicPartition("t", 1)]
    with open_admin(old) as admin:
        found = admin.list_offsets(
            {tps[0]: OffsetSpec.max_timestamp(), tps[1]: OffsetSpec.latest()}
        )
        assert isinstance(found.errors[tps[0]], UnsupportedVersionError)
        assert "KIP-734" in str(found.errors[tps[0]])
        assert found[tps[1]].offset == 0


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_offsets_of_a_group_are_set_and_listed_where_it_is_coordinated(fake_cluster, impatient):
    fake_cluster.create_topic("t", partitions=2)
    tps = [TopicPartition("t", number) for number in range(2)]
    with open_admin(fake_cluster) as admin:
        assert codes(
            admin.alter_consumer_group_offsets("g", {tps[0]: 5, TopicPartition("t", 7): 1})
        ) == {tps[0]: 0, TopicPartition("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        moved = (fake_cluster.coordinator("g") + 1) % 3
        fake_cluster.move_coordinator("g", moved)
        fault = fake_cluster.fault(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, api="OffsetCommit", broker=moved
        )
        admin.alter_consumer_group_offsets("g", {tps[1]: 6}).all()
        assert fault.fired == 1
        assert fake_cluster.committed("g") == {("t", 0): 5, ("t", 1): 6}
        listed = admin.list_consumer_group_offsets("g").all()
        assert {tp: row.offset for tp, row in listed.items()} == {tps[0]: 5, tps[1]: 6}
        wanted = [tps[0], TopicPartition("t", 7)]
        assert [
            row and row.offset
            for row in admin.list_consumer_group_offsets("g", wanted).all().values()
        ] == [5, None]
        fake_cluster.set_group_members("g")
        refused = admin.alter_consumer_group_offsets("g", {tps[0]: 0})
        with pytest.raises(BrokerError, match="active consumers"):
            refused.all()


def test_an_error_of_one_partition_does_not_hide_the_others_offsets(fake_cluster):
    fake_cluster.create_topic("t", partitions=2)
    tps = [TopicPartition("t", number) for number in range(2)]
    with open_admin(fake_cluster) as admin:
        admin.alter_consumer_group_offsets("g", dict.fromkeys(tps, 3)).all()
        denied = ErrorResponse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        fake_cluster.fault(denied, api="OffsetFetch", topic="t", partition=1, times=None)
        found = admin.list_consumer_group_offsets("g", tps)
        assert found[tps[0]] == (3, "", None)
        assert "grant DESCRIBE on group g and on topic t" in str(found.errors[tps[1]])


def test_groups_are_deleted_each_by_itself_and_lost_responses_count(fake_cluster):
    fake_cluster.create_topic("t")
    tp = TopicPartition("t", 0)
    with open_admin(fake_cluster) as admin:
        for group in ("a", "b", "busy"):
            admin.alter_consumer_group_offsets(group, {tp: 1}).all()
        fake_cluster.set_group_members("busy")
        for broker in fake_cluster.broker_ids:
            fake_cluster.fault(Drop.AFTER, api="DeleteGroups", broker=broker)
        deleted = admin.delete_consumer_groups(["a", "busy", "b"])
        assert codes(deleted) == {"a": 0, "busy": ErrorCode.NON_EMPTY_GROUP, "b": 0}
        assert codes(admin.delete_consumer_groups(["a"])) == {"a": ErrorCode.GROUP_ID_NOT_FOUND}


def test_resources_with_settings_are_listed(fake_cluster_factory):
    fake = fake_cluster_factory(2, kafka_version="4.1")
    fake.create_topic("t")
    with open_admin(fake) as admin:
        brokers = [ConfigResource("broker", "0"), ConfigResource("broker", "1")]
        assert admin.list_config_resources() == [*brokers, ConfigResource("topic", "t")]
        assert admin.list_config_resources(["topic"]) == [ConfigResource("topic", "t")]
        with pytest.raises(OptionError, match="did you mean 'topic'"):
            admin.list_config_resources(["topics"])
        fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="ListConfigResources")
        with pytest.raises(BrokerError, match="grant DESCRIBE_CONFIGS on the cluster"):
            admin.list_config_resources()
    with open_admin(fake_cluster_factory(1, kafka_version="4.0")) as admin:
        assert admin.list_config_resources(["client_metrics"]) == []
        with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.1 or later"):
            admin.list_config_resources()


def test_the_brokers_reason_not_to_delete_a_group_is_the_error(fake_cluster_factory):
    fake = fake_cluster_factory(1, kafka_version="4.4")
    fake.fault(
        ErrorResponse(ErrorCode.GROUP_DELETION_FAILED, message="its topology is in use"),
        api="DeleteGroups",
    )
    with open_admin(fake) as admin, pytest.raises(BrokerError, match="its topology is in use"):
        admin.delete_consumer_groups(["g"]).all()


def test_a_broker_that_does_not_answer_is_missing_from_the_list_and_named(fake_cluster, caplog):
    fake_cluster.create_topic("t")
    groups = [f"g{number}" for number in range(12)]
    with open_admin(fake_cluster, request_timeout_ms=300) as admin:
        for group in groups:
            admin.alter_consumer_group_offsets(group, {TopicPartition("t", 0): 1}).all()
        assert [row.group_id for row in admin.list_consumer_groups()] == sorted(groups)
        assert admin.list_consumer_groups(states=["Stable"]).all() == []
        assert [row.group_id for row in admin.list_groups(types=["classic"])] == sorted(groups)
        with pytest.raises(OptionError, match=r"share, streams, got 'shared': did you mean 's"):
            admin.list_groups(types=["shared"])
        lost = fake_cluster.coordinator("g0")
        fake_cluster.fault(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, api="ListGroups", broker=lost, times=None
        )
        listed = admin.list_consumer_groups(timeout_s=1)
        there = {group for group in groups if fake_cluster.coordinator(group) != lost}
        assert there and {row.group_id for row in listed} == there
        assert list(listed.errors) == [lost]
        assert isinstance(listed.errors[lost], KafkaTimeoutError)
        assert f"what broker {lost} knows is missing" in caplog.text
        with pytest.raises(KafkaTimeoutError, match="COORDINATOR_NOT_AVAILABLE"):
            listed.all()
        # Refused by all: there is nothing to return.
        fake_cluster.clear_faults()
        fake_cluster.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="ListGroups", times=None)
        with pytest.raises(BrokerError, match="grant DESCRIBE on the cluster"):
            admin.list_consumer_groups()


def test_old_brokers_say_which_filter_they_lack(fake_cluster_factory):
    with open_admin(fake_cluster_factory(1, kafka_version="2.1")) as admin:
        assert admin.list_consumer_groups().all() == []
        with pytest.raises(UnsupportedVersionError, match=r"states needs Kafka 2\.6"):
            admin.list_consumer_groups(states=["Empty"])
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 3\.0"):
            admin.list_transactions()
        described = admin.describe_cluster()
        assert [broker.node_id for broker in described.brokers] == [0]


def test_classic_groups_that_are_not_there_or_speak_nonsense():
    api = groups._DescribeClassicGroups(SimpleNamespace(coordinators={}), False)
    member = DescribedGroupMember(member_id="m-1", member_assignment=b"\x00")
    connect = DescribedGroupMember(member_id="w-1", member_assignment=b"\x00")
    assignment = encode_assignment([("t", 1)])
    good = DescribedGroupMember(member_id="c-1", member_assignment=assignment)
    response = DescribeGroupsResponse(
        groups=[
            DescribedGroup(group_id="gone", group_state="Dead"),
            DescribedGroup(group_id="bad", protocol_type="consumer", members=[member]),
            DescribedGroup(group_id="connect", protocol_type="connect", members=[connect]),
            DescribedGroup(group_id="good", protocol_type="consumer", members=[good]),
        ]
    )
    rows = dict(api.read(response, ["gone", "bad", "connect", "good"]))
    assert rows["gone"].code == ErrorCode.GROUP_ID_NOT_FOUND
    assert rows["bad"].code != 0 and "member m-1" in rows["bad"].message
    assert rows["connect"].value.members[0].assignment == frozenset()
    assert rows["good"].value.members[0].assignment == {TopicPartition("t", 1)}


# --- brokers ----------------------------------------------------------------------------------


def test_a_refused_request_about_disks_names_the_grant(fake_cluster):
    fake_cluster.create_topic("t")
    with open_admin(fake_cluster) as admin:
        sizes = admin.describe_log_dirs().all()
        assert sorted(sizes) == [0, 1, 2]
        (directory,) = sizes[0].values()
        assert directory.size_bytes == sum(row.size_bytes for row in directory.replicas.values())
        fake_cluster.fault(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeLogDirs", broker=1, times=None
        )
        refused = admin.describe_log_dirs()
        assert list(refused.errors) == [1]
        assert "grant DESCRIBE on the cluster" in str(refused.errors[1])


def test_a_deadline_ends_every_call(fake_cluster):
    fake_cluster.create_topic("t")
    fake_cluster.fault(ErrorCode.NOT_LEADER_OR_FOLLOWER, api="ListOffsets", times=None)
    tp = TopicPartition("t", 0)
    with open_admin(fake_cluster) as admin:
        results = admin.list_offsets({tp: OffsetSpec.latest()}, timeout_s=1.5)
        with pytest.raises(KafkaTimeoutError, match=r"gave up after 1\.5 s.* t-0: .*NOT_LEADER"):
            results.all()


def test_a_closed_admin_says_so(fake_cluster):
    admin = open_admin(fake_cluster)
    with admin:
        admin.list_topics()
        assert fake_cluster.bootstrap_servers in repr(admin)
    admin.close()
    with pytest.raises(KafkaError, match="closed"):
        admin.list_topics()
    with pytest.raises(OptionError, match=r"bootstrap\.servers"):
        Admin({})
