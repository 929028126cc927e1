"""Every public call of the library, each of its arguments of a wrong kind: an OptionError that
names the argument, before anything is sent. What would be ignored or taken for something else is
of a wrong kind too: a mapping or a text where a list is meant, a text where True or False is.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from sparkkafka import client
from sparkkafka.client import (
    Admin,
    AlterConfigOp,
    ConfigResource,
    Connection,
    Consumer,
    Deadline,
    DelegationToken,
    GroupMetadata,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import MetadataRequest
from sparkkafka.secret import SecretBytes
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import settings

TP = TopicPartition("orders", 0)
ORDERS = ConfigResource("topic", "orders")
ACL = client.AclBinding("topic", "orders", "User:alice", "READ")
ALL_QUOTAS = client.ClientQuotaFilter()
QUOTA = client.ClientQuotaAlteration(client.ClientQuotaEntity({"user": "alice"}), {})
NO_MORE = client.UserScramCredentialDeletion("alice", "SCRAM-SHA-512")


class Kind(NamedTuple):
    """What an argument may be: a value that is right, and whether another is."""

    right: Any
    fits: Callable[[Any], bool]


def optional(kind: Kind) -> Kind:
    return Kind(kind.right, lambda value: value is None or kind.fits(value))


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | set | range) and not isinstance(value, TopicPartition)


def is_partition(value: Any) -> bool:
    match value:
        case (str(topic), number):
            return bool(topic) and is_whole(number) and 0 <= number < 1 << 31
    return False


def list_of(right: Any, fits: Callable[[Any], bool]) -> Kind:
    return Kind([right], lambda value: is_list(value) and all(map(fits, value)))


def dict_of(key: Any, right: Any, fits_key: Any, fits: Callable[[Any], bool]) -> Kind:
    def both(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            fits_key(one) and fits(other) for one, other in value.items()
        )

    return Kind({key: right}, both)


def is_offset(value: Any) -> bool:
    if isinstance(value, OffsetAndMetadata):
        value = value.offset
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return is_whole(value) and 0 <= value < 1 << 63


def is_start(value: Any) -> bool:
    exact = not isinstance(value, float)
    return exact and (is_offset(value) or (is_whole(value) and value in (-1, -2)))


def is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def is_bytes(value: Any) -> bool:
    return value is None or isinstance(value, str | bytes | bytearray)


def is_principal(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch("(?s)[^:]+:.+", value))


TOKEN = Kind(DelegationToken("id", SecretBytes(b"x"), "User:a", "", (), 1, 2, 3), lambda _: False)
SHARED = client.ShareRecord("orders", 0, 0, 0, 0, None, b"v", (), 1)
ACKNOWLEDGE = Kind(client.AcknowledgeType.ACCEPT, lambda _: False)
PRINCIPAL = Kind("User:alice", is_principal)
SECONDS = Kind(
    0.01,
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value >= 0,
)
NAME = Kind("orders", lambda value: isinstance(value, str))
TOPIC = Kind("orders", is_name)
NAMES = list_of("orders", lambda value: isinstance(value, str))
WHOLE = Kind(1, is_whole)
NUMBERS = Kind([1], lambda v: (is_list(v) or isinstance(v, np.ndarray)) and all(map(is_whole, v)))
FLAG = Kind(False, lambda value: isinstance(value, bool))
FUNCTION = optional(Kind(print, callable))
POSITIVE = Kind(1, lambda value: is_whole(value) and 0 < value < 1 << 63)
PARTITION = Kind(TP, is_partition)
PARTITIONS = list_of(TP, is_partition)
OFFSETS = dict_of(TP, 5, is_partition, is_offset)
TIMES = dict_of(TP, 5, is_partition, is_offset)
REQUEST = Kind(MetadataRequest(topics=[]), lambda _: False)
REQUEST_TYPE = Kind(MetadataRequest, lambda _: False)
DEADLINE = optional(Kind(Deadline(1_000), lambda _: False))
STARTS = Kind(
    {TP: 3},
    lambda value: PARTITIONS.fits(value) or dict_of(TP, 3, is_partition, is_start).fits(value),
)
SETTINGS = Kind({}, lambda value: isinstance(value, Mapping))
NOT_CHECKED_HERE: Any = None  # by a test of its own

NEW_TOPICS = Kind([NewTopic("x")], lambda value: is_list(value) and not value)
RESOURCES = Kind([ORDERS], lambda value: is_list(value) and not value)
EMPTY_MAPPING = lambda value: isinstance(value, Mapping) and not value  # noqa: E731

# By the name of the argument, where a call has no row of its own for it.
USUAL: Mapping[str, Kind] = {
    "timeout_s": optional(SECONDS),
    "partitions": PARTITIONS,
    "partition": PARTITION,
    "topic": TOPIC,
    "group_id": NAME,
    "group_ids": NAMES,
    "topic_names": NAMES,
    "transactional_ids": NAMES,
    "validate_only": FLAG,
    "include_authorized_operations": FLAG,
    "include_internal": FLAG,
    "include_synonyms": FLAG,
    "include_documentation": FLAG,
    "require_stable": FLAG,
    "asynchronous": FLAG,
    "states": optional(NAMES),
    "types": optional(NAMES),
    "callback": FUNCTION,
    "on_assigned": FUNCTION,
    "on_revoked": FUNCTION,
    "on_lost": FUNCTION,
    "offsets": OFFSETS,
    "times_ms": TIMES,
    "deadline": DEADLINE,
    "config": SETTINGS,
    "version": optional(WHOLE),
    "highest": optional(WHOLE),
    "request_type": REQUEST_TYPE,
}

# Calls that the library has, and what is special about their arguments.
CALLS: Mapping[type, Mapping[str, Mapping[str, Kind]]] = {
    Consumer: {
        "metrics": {},
        "assign": {"partitions": STARTS},
        "assignment": {},
        "subscribe": {
            "topics": Kind(["orders"], lambda v: is_name(v) or (NAMES.fits(v) and bool(v)))
        },
        "subscription": {},
        "unsubscribe": {},
        "poll": {"timeout_s": SECONDS},
        "poll_arrow": {
            "timeout_s": SECONDS,
            "max_records": optional(Kind(1, lambda v: is_whole(v) and v > 0)),
        },
        "wakeup": {},
        "seek": {"offset": Kind(3, is_start)},
        "seek_to_beginning": {"partitions": optional(PARTITIONS)},
        "seek_to_end": {"partitions": optional(PARTITIONS)},
        "seek_to_committed": {"partitions": optional(PARTITIONS)},
        "position": {},
        "lag": {"partitions": optional(PARTITIONS)},
        "pause": {},
        "resume": {},
        "paused": {},
        "commit": {"offsets": optional(OFFSETS)},
        "committed": {},
        "group_metadata": {},
        "beginning_offsets": {},
        "end_offsets": {},
        "offsets_for_times": {},
        "offsets_for": {},
        "partitions_for": {},
        "list_topics": {},
        "close": {"timeout_s": SECONDS},
    },
    ShareConsumer: {
        "metrics": {},
        "assignment": {},
        "subscribe": {
            "topics": Kind(["orders"], lambda v: is_name(v) or (NAMES.fits(v) and bool(v)))
        },
        "subscription": {},
        "unsubscribe": {},
        "poll": {"timeout_s": SECONDS},
        "wakeup": {},
        "acknowledge": {"record": Kind(SHARED, lambda _: False), "kind": ACKNOWLEDGE},
        "acknowledge_offset": {"offset": Kind(3, is_whole), "kind": ACKNOWLEDGE},
        "commit": {},
        "set_acknowledgement_commit_callback": {},
        "close": {"timeout_s": SECONDS},
    },
    Producer: {
        "metrics": {},
        "send": {
            "value": Kind(b"v", is_bytes),
            "key": Kind(b"k", is_bytes),
            # Of what is in it test_producer tells; nothing is ignored for being empty, or 0.
            "headers": Kind(
                [("a", b"b")], lambda v: v is None or isinstance(v, list | tuple | dict)
            ),
            "partition": optional(Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 31)),
            "timestamp_ms": optional(Kind(5, lambda v: is_whole(v) and 0 <= v < 1 << 63)),
        },
        "send_table": {
            "table": Kind(pa.table({"value": [b"v"]}), lambda _: False),
            "topic": optional(TOPIC),
        },
        "send_many": {
            "records": Kind(
                [b"v"],
                lambda v: (
                    isinstance(v, list | tuple | set | frozenset)
                    and all(is_bytes(one) or isinstance(one, dict) for one in v)
                ),
            ),
            "partition": optional(Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 31)),
        },
        "flush": {},
        "partitions_for": {},
        "init_transactions": {},
        "begin_transaction": {},
        "commit_transaction": {},
        "abort_transaction": {},
        "send_offsets_to_transaction": {
            "offsets": dict_of(
                TP, 5, is_partition, lambda v: is_offset(v) and not isinstance(v, float)
            ),
            "group": Kind("g", is_name),
        },
        "close": {},
    },
    Admin: {
        "metrics": {},
        "close": {},
        "describe_cluster": {},
        "describe_log_dirs": {"brokers": optional(NUMBERS)},
        "create_topics": {"new_topics": NEW_TOPICS},
        "create_topic": {
            "name": NAME,
            "partitions": WHOLE,
            "replication_factor": WHOLE,
            "configs": optional(
                dict_of("a", "b", lambda v: isinstance(v, str), lambda v: isinstance(v, str | int))
            ),
        },
        "delete_topics": {},
        "delete_topic": {"name": NAME},
        "create_partitions": {
            "totals": dict_of("orders", 6, lambda v: isinstance(v, str), is_whole)
        },
        "describe_topics": {},
        "describe_topic": {"name": NAME},
        "list_topics": {},
        "list_config_resources": {"types": list_of("topic", lambda _: False)},
        "describe_configs": {"resources": RESOURCES, "keys": optional(NAMES)},
        "incremental_alter_configs": {"changes": Kind({ORDERS: {"a": "b"}}, EMPTY_MAPPING)},
        "delete_records": {"before": dict_of(TP, 5, is_partition, is_whole)},
        "list_offsets": {
            "specs": Kind({TP: OffsetSpec.latest()}, EMPTY_MAPPING),
            "isolation_level": Kind("read_committed", lambda _: False),
        },
        "list_groups": {},
        "list_consumer_groups": {},
        "describe_consumer_groups": {},
        "describe_consumer_group": {},
        "delete_consumer_groups": {},
        "list_consumer_group_offsets": {"partitions": optional(PARTITIONS)},
        "alter_consumer_group_offsets": {},
        "delete_consumer_group_offsets": {},
        "list_share_groups": {},
        "describe_share_groups": {},
        "describe_share_group": {},
        "delete_share_groups": {},
        "list_share_group_offsets": {"partitions": optional(PARTITIONS)},
        "alter_share_group_offsets": {
            "offsets": dict_of(TP, 5, is_partition, lambda v: is_offset(v) and is_whole(v)),
        },
        "delete_share_group_offsets": {"topics": NAMES},
        "remove_members_from_consumer_group": {"instance_ids": optional(NAMES), "reason": NAME},
        "list_transactions": {
            "producer_ids": optional(NUMBERS),
            "open_for_ms": optional(Kind(5, lambda v: is_whole(v) and v >= 0)),
            "transactional_id_pattern": optional(NAME),
        },
        "describe_transactions": {},
        "describe_producers": {},
        "abort_transaction": {"start_offset": WHOLE},
        "fence_producers": {},
        "describe_acls": {"acl_filter": Kind(client.AclBindingFilter(), lambda _: False)},
        "create_acls": {"bindings": Kind([ACL], lambda v: is_list(v) and not v)},
        "delete_acls": {"filters": Kind([ACL.to_filter()], lambda v: is_list(v) and not v)},
        "create_delegation_token": {
            "owner": optional(PRINCIPAL),
            "renewers": list_of("User:alice", is_principal),
            "max_lifetime_ms": optional(POSITIVE),
        },
        "renew_delegation_token": {"token": TOKEN, "renew_period_ms": optional(POSITIVE)},
        "expire_delegation_token": {"token": TOKEN, "expiry_period_ms": optional(POSITIVE)},
        "describe_delegation_tokens": {"owners": optional(list_of("User:alice", is_principal))},
        "describe_user_scram_credentials": {"users": optional(NAMES)},
        "alter_user_scram_credentials": {
            "alterations": Kind([NO_MORE], lambda v: is_list(v) and not v)
        },
        "describe_client_quotas": {"quota_filter": Kind(ALL_QUOTAS, lambda _: False)},
        "alter_client_quotas": {"alterations": Kind([QUOTA], lambda v: is_list(v) and not v)},
        "alter_partition_reassignments": {
            "reassignments": dict_of(TP, [1], is_partition, lambda v: v is None or NUMBERS.fits(v))
        },
        "list_partition_reassignments": {"partitions": optional(PARTITIONS)},
        "elect_leaders": {
            "election_type": Kind("PREFERRED", lambda _: False),
            "partitions": optional(PARTITIONS),
        },
        "describe_features": {},
        "update_features": {
            "updates": Kind({"kraft.version": client.FeatureUpdate(1)}, EMPTY_MAPPING)
        },
    },
    Connection: {
        "call": {"request": REQUEST},
        "produce": {
            "partition": Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 31),
            "records": Kind(
                [b"v"],
                lambda v: (
                    is_bytes(v)
                    or v is None
                    or (
                        isinstance(v, list | tuple | set | frozenset)
                        and all(one is None or is_bytes(one) for one in v)
                    )
                ),
            ),
            "acks": Kind(-1, lambda v: is_whole(v) and v in (-1, 0, 1)),
            "compression": NOT_CHECKED_HERE,
        },
        "fetch": {
            "partition": Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 31),
            "offset": Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 63),
            "max_bytes": Kind(1 << 20, lambda v: is_whole(v) and 0 <= v < 1 << 31),
            "max_wait_ms": Kind(500, lambda v: is_whole(v) and 0 <= v < 1 << 31),
        },
        "list_offsets": {
            "partition": Kind(0, lambda v: is_whole(v) and 0 <= v < 1 << 31),
            "timestamp": WHOLE,
        },
        "send": {"request": REQUEST, "expect_response": FLAG, "patience_s": optional(SECONDS)},
        "send_rest": {"patience_s": SECONDS},
        "receive": {"buffer": NOT_CHECKED_HERE},
        "choose_version": {},
        "supports": {"version": WHOLE},
        "close": {},
    },
    client.Delivery: {"done": {}, "result": {}, "exception": {}, "add_callback": {}},
    client.TableDelivery: {
        "done": {},
        "result": {},
        "exception": {},
        "written": {},
        "failures": {},
        "add_callback": {},
    },
    OffsetSpec: {
        "earliest": {},
        "latest": {},
        "max_timestamp": {},
        "earliest_local": {},
        "latest_tiered": {},
        "earliest_pending_upload": {},
        "for_timestamp": {"timestamp_ms": Kind(5, lambda v: is_whole(v) and v >= 0)},
    },
}

# In whose place an error names what is in it.
NAMED = {
    "changes": "resource",
    "resources": "resource",
    "specs": "spec",
    "acl_filter": "filter",
    "filters": "filter",
    "bindings": "ACL",
    "configs": "topic orders",
    "offsets": "offset",  # … of orders-0
    "topics": "topic",
    "records": "record",  # … 1 of the series
}

# Of Connection: what its own loops use, and what takes more than plain arguments.
FOR_ITS_OWN = {"open", "to", "fileno", "receive_ready", "receive_in_kernel", "prepare_to_poll"}

# A callback has no None of its own here.
NEEDED = {(client.Delivery, "callback"), (client.TableDelivery, "callback")}

JUNK: list[Any] = [
    None,
    True,
    5,
    -7,
    1 << 70,
    2.5,
    math.nan,
    -math.inf,
    "",
    "text",
    b"bytes",
    bytearray(b"x"),
    object(),
    print,
    range(2),
    {"orders": 3},
    {TP: "3"},
    {TP: None},
    {("orders", "0"): 3},
    {"orders"},
    ["orders", 5],
    [["orders"]],
    [TP, "orders"],
    TP,
    ("orders", -1),
    ("orders", True),
    [("orders", 0, 5)],
    OffsetAndMetadata("5"),  # type: ignore[arg-type]
    OffsetAndMetadata(True),
    {TP: OffsetAndMetadata(-1)},
    NewTopic("x"),
    ORDERS,
    GroupMetadata(""),
    np.float32(1.5),
    np.array([1, 2]),
    0,
    10**40,
    math.inf,
    "\N{SNOWMAN}",
    b"",
    [],
    (),
    {},
    [None],
    [[]],
    [{"orders": [0]}],
    {"": None},
    {5: [True]},
    {"orders": {"0": 3}},
    [2.5, math.nan],
    [b"orders"],
]


def arguments_of(cls: type, name: str) -> dict[str, Kind]:
    """What each argument of a call may be."""
    special = CALLS[cls][name]
    found = {}
    for row in inspect.signature(getattr(cls, name)).parameters.values():
        if row.name == "self":
            continue
        kind = special[row.name] if row.name in special else USUAL.get(row.name)
        if (cls, row.name) in NEEDED:
            kind = Kind(print, callable)
        if kind is not NOT_CHECKED_HERE:
            found[row.name] = kind
        elif row.name not in special:
            raise AssertionError(f"{cls.__name__}.{name}: what may {row.name} be?")
    return found


ROWS = [(cls, name) for cls, names in CALLS.items() for name in names if arguments_of(cls, name)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        fake.create_topic("orders")
        yield fake


@pytest.fixture
def subject(cluster: FakeCluster, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An object of the class whose call is tested."""
    cls, name = request.param
    config: dict[str, Any] = {}
    if cls is Consumer:
        with Consumer(settings(cluster, group_id="g", enable_auto_commit=False)) as consumer:
            if name != "subscribe":
                consumer.assign([TP])
            yield consumer
        return
    if cls is ShareConsumer:
        explicit = {"share.acknowledgement.mode": "explicit"}
        with ShareConsumer(settings(cluster, group_id="g") | explicit) as shared:
            if name != "subscribe":
                shared.subscribe(["orders"])
            yield shared
        return
    if cls is Admin:
        with Admin(settings(cluster)) as admin:
            yield admin
        return
    if cls is Connection:
        with Connection.to(settings(cluster)) as connection:
            yield connection
        return
    if cls is OffsetSpec:
        yield OffsetSpec
        return
    if "transaction" in name:
        config["transactional_id"] = "t"
    with Producer(settings(cluster, linger_ms=60_000, acks="all", **config)) as producer:
        if cls is Producer:
            yield producer
        else:
            table = pa.table({"value": [b"v"]})
            yield (
                producer.send("orders", b"v")
                if cls is client.Delivery
                else producer.send_table(table, "orders")
            )
            producer._buffer  # noqa: B018 - held until here


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "call"),
    [((cls, name), (cls, name)) for cls, name in ROWS],
    indirect=["subject"],
    ids=[f"{cls.__name__}.{name}" for cls, name in ROWS],
)
def test_each_argument_of_a_wrong_kind_is_named(
    subject: Any, call: tuple[type, str], cluster: FakeCluster
) -> None:
    cls, name = call
    kinds = arguments_of(cls, name)
    cluster.clear_requests()

    for argument, kind in kinds.items():
        for wrong in JUNK:
            if kind.fits(wrong):
                continue
            given = {other: each.right for other, each in kinds.items()} | {argument: wrong}
            if argument != "callback":
                given.pop("callback", None)
            with pytest.raises(OptionError) as caught:
                getattr(subject, name)(**given)
            shown = str(caught.value)
            assert NAMED.get(argument, argument).lower() in shown.lower(), (argument, wrong, shown)
    # A producer's thread has questions of its own.
    own = ("ApiVersions", "Metadata", "InitProducerId", "FindCoordinator")
    assert [row for row in cluster.requests if row.api not in own] == []


def test_every_public_call_is_among_them() -> None:
    for cls, names in CALLS.items():
        public = {
            name
            for name, found in inspect.getmembers(cls)
            if callable(found) and not name.startswith("_") and not hasattr(tuple, name)
        }
        assert public - FOR_ITS_OWN == set(names) - FOR_ITS_OWN, cls
    # The others are made by the library, or checked where they are used.
    assert {getattr(client, name) for name in client.__all__} - set(CALLS) == {
        client.AclBinding,
        client.AclBindingFilter,
        DelegationToken,
        AlterConfigOp,
        client.ClientQuotaAlteration,
        client.ClientQuotaEntity,
        client.ClientQuotaFilter,
        client.ClientQuotaFilterComponent,
        client.ConfigEntry,
        ConfigResource,
        client.ConsumerGroupDescription,
        client.DamagedRecord,
        Deadline,
        client.FeatureMetadata,
        client.FeatureUpdate,
        GroupMetadata,
        client.LagInfo,
        client.Listing,
        NewPartitions,
        NewTopic,
        OffsetAndMetadata,
        client.PartitionInfo,
        client.PartitionReassignment,
        client.Record,
        client.RecordFailure,
        client.RecordMetadata,
        client.Records,
        client.Results,
        client.AcknowledgeType,
        client.ShareGroupDescription,
        client.ShareGroupOffset,
        client.ShareRecord,
        client.ScramCredentialInfo,
        client.TopicDescription,
        TopicPartition,
        client.TransactionDescription,
        client.UserScramCredentialDeletion,
        client.UserScramCredentialUpsertion,
    }


@pytest.mark.parametrize("cls", [Admin, Consumer, Producer, Connection.to])
@pytest.mark.parametrize("config", [None, "a:1", ["a:1"], {5: "a"}, {"bootstrap.servers": 5}])
def test_settings_of_a_wrong_kind(cls: Callable[[Any], Any], config: Any) -> None:
    with pytest.raises(OptionError, match=r"setting|bootstrap"):
        cls(config)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: NewTopic("x", replica_assignment=[[1]]), "replica_assignment is a dict"),
        (lambda: NewTopic("x", replica_assignment={"0": [1]}), "each key of .*replica_assignment"),
        (lambda: NewTopic("x", replica_assignment={0: 1}), "replica_assignment of partition 0"),
        (lambda: Deadline("5"), "total_ms is a number of milliseconds, got '5'"),
        (lambda: Deadline(math.nan), "total_ms"),
        (lambda: Deadline(True), "total_ms"),
    ],
)
def test_what_is_wrong_when_it_is_made(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        act()


def test_new_partitions_have_lists_of_node_ids(cluster: FakeCluster) -> None:
    with Admin(settings(cluster)) as admin:
        for wrong in (5, "1", [5], ["1"], {0: [1]}):
            with pytest.raises(OptionError, match="topic orders: assignments"):
                admin.create_partitions({"orders": NewPartitions(6, wrong)})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Producer, client.AsyncConsumer, Admin])
def test_methods_of_other_libraries_lead_to_ours(kind: Any) -> None:
    named = kind.__new__(kind)
    with pytest.raises(AttributeError, match=r"has no attribute 'stop': close\(\)"):
        named.stop()
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = named.nonsense
    for of in (named, kind, mock.Mock(spec=kind)):
        assert "stop" not in dir(of)
        assert "close" in dir(of)
    assert not hasattr(kind, "__getattr__"), "it slows down each attribute"
