"""The JSON of offsets: what the JVM connector writes is read, and nothing is guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config.source import (
    parse_assign,
    parse_offsets,
    tree_of_offsets,
)
from sparkkafka.errors import OptionError

topics = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda t: t not in (".", ".."))
offsets = st.dictionaries(
    st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(-2, 2**63 - 1), min_size=1
)


@given(offsets)
def test_round_trip(wanted: dict[tuple[str, int], int]) -> None:
    assert parse_offsets(json.dumps(tree_of_offsets(wanted)), "startingOffsets") == wanted


@given(st.text())
def test_any_text_gives_offsets_or_an_option_error(text: str) -> None:
    for parse in (lambda: parse_offsets(text, "startingOffsets"), lambda: parse_assign(text)):
        try:
            parse()
        except OptionError as error:
            assert "Expected e.g. {" in str(error)


def test_format_is_the_jvm_connectors() -> None:
    assert (
        json.dumps(tree_of_offsets({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}))
        == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    )


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("1", "not a JSON object"),
        ("{}", "no topic"),
        ('{"t":5}', "offsets of topic 't'"),
        ('{"t":[5]}', "offsets of topic 't'"),
        ('{"t":{"x":5}}', "'x' of topic 't' is not a partition"),
        ('{"t":{"-1":5}}', "'-1' of topic 't'"),
        ('{"t":{"2147483648":5}}', "'2147483648' of topic 't'"),
        ('{"t":{"0":"5"}}', "topic 't' partition 0 is not a whole number: '5'"),
        ('{"t":{"0":5.0}}', "topic 't' partition 0"),
        ('{"t":{"0":true}}', "topic 't' partition 0"),
        ('{"t":{"0":null}}', "topic 't' partition 0 is not a whole number: null"),
        ('{"t":{"0":{}}}', "topic 't' partition 0"),
        ('{"t":{"0":NaN}}', "NaN"),
        ('{"t":{"0":-3}}', "topic 't' partition 0 is -3"),
        ('{"t":{"0":-1000}}', "-1000; negative values other than"),
        ('{"t":{"0":9223372036854775808}}', "does not fit into 64 bits"),
        ('{"t":{"0":' + "9" * 5000 + "}}", "not valid JSON"),
        ('{"t":{"0":1,"0":1}}', "topic 't' partition 0 is given twice"),
        ('{"t":{"0":1,"00":1}}', "topic 't' partition 0 is given twice"),
        ('{"t":{"0":1},"t":{"1":1}}', "topic 't' is given twice"),
        ('{"a b":{"0":1}}', "'a b' cannot be a topic name"),
        ('{"..":{"0":1}}', "cannot be a topic name"),
        ('{"t":' * 100_000, "not valid JSON"),
    ],
)
def test_bad_offsets_name_the_culprit(text: str, culprit: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_offsets(text, "startingOffsets")
    message = str(caught.value)
    assert (
        'option startingOffsets: Expected e.g. {"topicA":{"0":23,"1":4500},"topicB":{"0":7}}, got'
        in message
    )
    assert culprit in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ('{"t":{"0":1}}', "partitions of topic 't' are not a list"),
        ('{"t":0}', "not a list"),
        ('{"t":["0"]}', "'0' of topic 't'"),
        ('{"t":[-1]}', "-1 of topic 't'"),
        ('{"t":[1.5]}', "1.5 of topic 't'"),
        ('{"t":[true]}', "True of topic 't'"),
        ('{"t":[0,0]}', "topic 't' partition 0 is given twice"),
        ('{"t":[0],"t":[1]}', "topic 't' is given twice"),
    ],
)
def test_bad_assign_names_the_culprit(text: str, culprit: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_assign(text)
    assert 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got' in str(caught.value)
    assert culprit in str(caught.value)


def test_assign_is_sorted() -> None:
    assert parse_assign('{"b":[10,9],"a":[0]}') == (("a", 0), ("b", 9), ("b", 10))
