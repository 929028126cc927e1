"""Kafka's table of error codes against another client's, and exceptions that survive pickling.

Spark and multiprocessing pickle exceptions: one that loses an attribute on the way loses it on the
road from an executor to the driver.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path

import kafka.errors as kafka_python
import pytest

from sparkkafka import errors
from sparkkafka.errors import (
    AcknowledgeError,
    AuthenticationError,
    BadRecordError,
    BatchTooLargeError,
    BrokerError,
    CheckpointError,
    CommitFailedError,
    ConsumerStateError,
    CorruptRecordError,
    DataLossError,
    DecodeError,
    DeliveryTimeoutError,
    EncodeError,
    ErrorCode,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    NoOffsetError,
    OptionError,
    ProduceError,
    ProducerFencedError,
    RegistryError,
    SchemaError,
    TransactionError,
    UnknownTopicError,
    UnsupportedVersionError,
    WakeupError,
    Written,
    error_description,
    error_name,
    is_retriable,
    needs_metadata,
)

UNKNOWN_NUMBER = 9999

# Where kafka-python 3.0 differs from Java's Errors, which is what we follow.
OTHER_NAMES = {
    # Names of its own
    -1: "UNKNOWN",
    0: "NO_ERROR",
    10: "MESSAGE_SIZE_TOO_LARGE",
    17: "INVALID_TOPIC",
    39: "INVALID_REPLICATION_ASSIGNMENT",
    # Java's name before Kafka 2.6
    6: "NOT_LEADER_FOR_PARTITION",
}
# Java's CorruptRecordException is a RetriableException: the next copy of the bytes may be whole.
OTHER_RETRIABLE = {ErrorCode.CORRUPT_MESSAGE: False}
# Java's UnknownLeaderEpochException is no InvalidMetadataException: it is the broker's knowledge
# that is old, not ours, so that fresh metadata does not help.
OTHER_REFRESH = {ErrorCode.UNKNOWN_LEADER_EPOCH: True}
# kafka-python's table ends where Kafka 3.9's does; these came with Kafka 4.
LACKING = {
    128: ("INVALID_REGULAR_EXPRESSION", False, False),
    129: ("REBOOTSTRAP_REQUIRED", False, False),
    130: ("STREAMS_INVALID_TOPOLOGY", False, False),
    131: ("STREAMS_INVALID_TOPOLOGY_EPOCH", False, False),
    132: ("STREAMS_TOPOLOGY_FENCED", False, False),
    133: ("SHARE_SESSION_LIMIT_REACHED", True, False),
    134: ("GROUP_DELETION_FAILED", False, False),
    135: ("STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", False, False),
    136: ("CONTROLLER_ID_NOT_REGISTERED", False, False),
}


# The table


def test_every_number_is_there_once():
    assert [int(row) for row in ErrorCode] == list(range(-1, 137))
    # An enum makes an alias, silently, of a second row with the same values.
    assert len(ErrorCode.__members__) == len(ErrorCode)


@pytest.mark.parametrize("row", list(ErrorCode), ids=lambda row: row.name)
def test_each_row_agrees_with_kafka_python(row):
    theirs = kafka_python.kafka_errors.get(int(row))
    if theirs is None:
        assert (row.name, row.retriable, row.refresh) == LACKING[int(row)]
        return
    assert theirs.message == OTHER_NAMES.get(int(row), row.name)
    assert theirs.retriable == OTHER_RETRIABLE.get(row, row.retriable)
    assert theirs.invalid_metadata == OTHER_REFRESH.get(row, row.refresh)


def test_the_differences_that_are_listed_are_real():
    """A list that outlives what it lists would hide the next difference."""
    theirs = kafka_python.kafka_errors
    assert set(LACKING) == {int(row) for row in ErrorCode} - set(theirs)
    assert all(ErrorCode(number).name != name for number, name in OTHER_NAMES.items())
    assert all(row.retriable != flag for row, flag in OTHER_RETRIABLE.items())
    assert all(row.refresh != flag for row, flag in OTHER_REFRESH.items())


def test_only_what_is_retriable_needs_metadata():
    """Java's InvalidMetadataException is a RetriableException."""
    assert [row.name for row in ErrorCode if row.refresh and not row.retriable] == []


@pytest.mark.parametrize("row", list(ErrorCode), ids=lambda row: row.name)
def test_descriptions_are_one_short_clause(row):
    text = row.description
    assert text == text.strip()
    assert 0 < len(text) < 160
    assert text[-1] not in ".;:,"
    assert text.isascii()
    assert text.isprintable()
    assert "  " not in text


def test_descriptions_differ():
    assert len({row.description for row in ErrorCode}) == len(ErrorCode)


def test_the_functions_read_the_table():
    for row in ErrorCode:
        assert error_name(int(row)) == row.name
        assert error_description(int(row)) == row.description
        assert is_retriable(int(row)) == row.retriable
        assert needs_metadata(int(row)) == row.refresh


def test_a_number_that_nobody_knows():
    assert error_name(UNKNOWN_NUMBER) == "UNKNOWN_ERROR_CODE"
    assert error_description(UNKNOWN_NUMBER)
    assert not is_retriable(UNKNOWN_NUMBER)
    assert not needs_metadata(UNKNOWN_NUMBER)
    error = BrokerError(UNKNOWN_NUMBER, "Fetch of t-0")
    assert error.code == UNKNOWN_NUMBER
    assert not error.retriable
    assert str(error).startswith("error 9999 UNKNOWN_ERROR_CODE from Fetch of t-0: ")


# Messages


@pytest.mark.parametrize("own_message", [None, ""])
def test_a_broker_without_a_message_of_its_own_gets_the_tables(own_message):
    error = BrokerError(3, "Metadata of topic x", own_message)
    assert str(error) == (
        "error 3 UNKNOWN_TOPIC_OR_PARTITION from Metadata of topic x: "
        + ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.description
    )


def test_a_brokers_own_message_comes_first():
    error = BrokerError(44, "CreateTopics of t", "at most 3 partitions")
    assert str(error) == ("error 44 POLICY_VIOLATION from CreateTopics of t: at most 3 partitions")


def test_a_broker_error_without_a_location():
    assert str(BrokerError(29)).startswith("error 29 TOPIC_AUTHORIZATION_FAILED: this user ")


def test_retriable_follows_the_code_except_for_a_topic_that_stays_unknown():
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert BrokerError(code).retriable
    assert not UnknownTopicError(code).retriable
    assert not BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED).retriable
    assert not CommitFailedError(ErrorCode.REBALANCE_IN_PROGRESS).retriable
    assert not ProducerFencedError(ErrorCode.PRODUCER_FENCED).retriable


def test_a_corrupt_record_gets_its_location_later():
    error = CorruptRecordError("bad CRC", 17, offset=5).at("t", 2, offset=99)
    assert (error.topic, error.partition, error.offset, error.position) == ("t", 2, 5, 17)
    assert str(error) == "topic t partition 2 offset 5: bad CRC (at byte 17)"
    assert CorruptRecordError("bad CRC").at("t", 2, offset=99).offset == 99


# Pickle


def produce_error() -> ProduceError:
    return ProduceError(
        "gave up", topic="t", partition=3, written=Written.UNKNOWN, code=ErrorCode.REQUEST_TIMED_OUT
    )


EXAMPLES = [
    (KafkaError("words"), {"retriable": False}),
    (OptionError("words"), {"retriable": False}),
    (DecodeError("words", 7), {"position": 7}),
    (DecodeError("words"), {"position": None}),
    (
        CorruptRecordError("bad CRC", 7, topic="t", partition=3, offset=0),
        {"position": 7, "topic": "t", "partition": 3, "offset": 0, "reason": "bad CRC"},
    ),
    (
        BatchTooLargeError("too large", 7, topic="t", partition=3, offset=0),
        {"position": 7, "topic": "t", "partition": 3, "offset": 0, "reason": "too large"},
    ),
    (
        CorruptRecordError("bad CRC", 7).at("t", 3, 12),
        {"position": 7, "topic": "t", "partition": 3, "offset": 12, "reason": "bad CRC"},
    ),
    (EncodeError("words"), {"retriable": False}),
    (UnsupportedVersionError("words"), {"retriable": False}),
    (KafkaConnectionError("b:9092: refused"), {"retriable": True, "errno": None}),
    (AuthenticationError("b:9092: refused"), {"retriable": False}),
    (KafkaTimeoutError("words"), {"retriable": True, "errno": None}),
    (
        BrokerError(6, "Produce of t-0", "moved"),
        {
            "code": 6,
            "name": "NOT_LEADER_OR_FOLLOWER",
            "where": "Produce of t-0",
            "broker_message": "moved",
            "retriable": True,
        },
    ),
    (BrokerError(UNKNOWN_NUMBER), {"code": UNKNOWN_NUMBER, "where": "", "broker_message": None}),
    (
        UnknownTopicError(3, "Metadata of topic x"),
        {"code": 3, "where": "Metadata of topic x", "retriable": False},
    ),
    (
        CommitFailedError(27, "OffsetCommit of group g", "words"),
        {"code": 27, "broker_message": "words", "retriable": False},
    ),
    (
        AcknowledgeError({("t", 3): BrokerError(121, "ShareFetch of t-3", "words")}),
        {"retriable": False},
    ),
    (
        ProducerFencedError(90, "EndTxn of 'tid'", "words"),
        {"code": 90, "broker_message": "words", "retriable": False},
    ),
    (
        produce_error(),
        {"topic": "t", "partition": 3, "written": Written.UNKNOWN, "code": 7},
    ),
    (
        DeliveryTimeoutError("late", topic="t", partition=3, written=Written.NO),
        {"topic": "t", "partition": 3, "written": Written.NO, "retriable": True, "errno": None},
    ),
    (TransactionError("words"), {"retriable": False}),
    (DataLossError("words"), {"retriable": False}),
    (BadRecordError("words", 3), {"position": 3}),
    (SchemaError("words"), {"retriable": False}),
    (RegistryError("words", status=404, code=40401), {"status": 404, "code": 40401}),
    (
        NoOffsetError("words", topic="t", partition=3),
        {"topic": "t", "partition": 3, "retriable": False},
    ),
    (
        LogTruncationError("words", topic="t", partition=3, offset=9, end_offset=5),
        {"topic": "t", "partition": 3, "offset": 9, "end_offset": 5, "retriable": False},
    ),
    (ConsumerStateError("words"), {"retriable": False}),
    (CheckpointError("words"), {"retriable": False}),
    (WakeupError("words"), {"retriable": False}),
]


def copies(error: KafkaError) -> list[KafkaError]:
    pickled = [
        pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    return [*pickled, copy.copy(error), pickle.loads(pickle.dumps(pickled[-1]))]


@pytest.mark.parametrize(("error", "attributes"), EXAMPLES, ids=lambda x: type(x).__name__)
def test_exceptions_survive_pickling_with_their_attributes(error, attributes):
    for same in copies(error):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert same.args == error.args
        assert repr(vars(same)) == repr(vars(error))  # errors in it are equal to no other
        for name, value in attributes.items():
            assert getattr(error, name) == value, name
            assert getattr(same, name) == value, name


def test_a_note_survives_pickling():
    error = DecodeError("words", 7)
    error.add_note("seen while reading t-0")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen while reading t-0"]


def test_a_code_survives_pickling_as_itself():
    for row in ErrorCode:
        assert pickle.loads(pickle.dumps(row)) is row


def test_every_exception_class_has_an_example():
    assert {type(error) for error, _ in EXAMPLES} == set(exceptions())


# Codes


@pytest.mark.parametrize(("error", "_"), EXAMPLES, ids=lambda x: type(x).__name__)
def test_each_exception_has_a_code(error, _):
    own = type(error).__dict__.get("code")
    if isinstance(error, BrokerError):
        assert type(error.code) is int
    elif error.code != own:
        assert isinstance(error, ProduceError | RegistryError)
    assert isinstance(error.code, int) or re.fullmatch(r"[A-Z]+(_[A-Z]+)*", error.code)


def test_no_two_classes_have_the_same_code():
    codes = {
        cls.__name__: cls.__dict__.get("code")
        for cls in exceptions()
        if not issubclass(cls, BrokerError)
    }
    assert None not in codes.values()
    assert len(set(codes.values())) == len(codes)
    # A name of Kafka's would be taken for the broker's response.
    assert not {row.name for row in ErrorCode} & set(codes.values())


def test_the_page_lists_the_codes():
    page = (Path(__file__).parent.parent / "docs/client-errors.md").read_text("utf-8")
    named = dict(re.findall(r"^\| `([A-Z_]+)` \| (\w+Error) \|", page, re.M))
    assert {name: getattr(errors, cls).code for name, cls in named.items()} == {
        name: name for name in named
    }
    of_brokers = {cls.__name__ for cls in exceptions() if issubclass(cls, BrokerError)}
    assert set(named.values()) == {cls.__name__ for cls in exceptions()} - of_brokers


def test_a_code_of_the_broker_or_the_registry_comes_first():
    assert produce_error().code == ErrorCode.REQUEST_TIMED_OUT
    given_up = ProduceError("gave up", topic="t", partition=3, written=Written.NO)
    assert given_up.code == "PRODUCE_FAILED"
    assert RegistryError("words", status=502).code == "REGISTRY_FAILED"


# The tree in the docstring


def exceptions() -> list[type[KafkaError]]:
    return [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, KafkaError)
    ]


def drawn_tree(text: str) -> dict[str, set[str]]:
    """Class -> its bases, as drawn: the branch it hangs on, and what stands in parentheses."""
    tree: dict[str, set[str]] = {}
    path: list[str] = []
    for line in text.splitlines():
        found = re.match(r"^    ([│├└─ ]*)(\w+Error)(?: \((\w+)\))?(?:  |$)", line)
        if found is None:
            continue
        branch, name, other = found.groups()
        depth = len(branch) // len("├── ")
        assert depth <= len(path), f"{name} hangs on nothing"
        path[depth:] = [name]
        tree[name] = {*path[depth - 1 : depth], *([other] if other else [])}
    return tree


def test_the_tree_in_the_docstring_is_the_real_one():
    real = {cls.__name__: {base.__name__ for base in cls.__bases__} for cls in exceptions()}
    real["KafkaError"] -= {"Exception"}
    assert drawn_tree(errors.__doc__ or "") == real


def test_each_class_of_the_tree_says_what_it_is():
    lines = (errors.__doc__ or "").splitlines()
    for cls in exceptions():
        if cls is not KafkaError:
            line = next(line for line in lines if re.search(rf"── {cls.__name__}\b", line))
            assert re.search(r"  \w.*\w$", line), line
