"""Decoding: a payload is the oracle's value or a bad row with a reason, whatever is beside it."""

from __future__ import annotations

import json
import random
import re
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkkafka.errors import OptionError
from sparkkafka.schemas.json import decode, syntax
from sparkkafka.schemas.json.format import arrow_type, decoder, exact_decoder
from sparkkafka.schemas.json.normalizer import JsonNormalizer
from sparkkafka.schemas.json.plan import node_of_type
from sparkkafka.schemas.schema_errors import MAX_OWN_REASONS
from sparkkafka.schemas.values import Decoded, Schema
from tests.schemas.json import json_cases, json_oracle
from tests.support.properties import examples

NO_SCHEMA = Schema("json", "")
ONE_BY_ONE = 10**9


def run(
    kind: pa.DataType, *payloads: bytes | None, rest: bool = False, schema: Schema = NO_SCHEMA
) -> Decoded:
    read = decoder(schema, None, kind, rest=rest).decode(pa.array(payloads, pa.binary()))
    read.values.validate(full=True)
    assert read.values.type == kind
    assert len(read.values) == len(payloads)
    assert len(read.bad_rows) == len(read.reasons)
    assert not read.values.take(pa.array(read.bad_rows)).is_valid().to_pylist().count(True)
    return read


def value_in(kind: pa.DataType, text: str) -> Any:
    """The value of a field, or the reason of its row."""
    read = run(pa.struct([("f", kind)]), f'{{"f":{text}}}'.encode())
    return read.reasons[0] if read.reasons else read.values[0]["f"].as_py()


def check(kind: pa.DataType, payloads: list[bytes | None]) -> None:
    """All rows against the oracle."""
    read = run(kind, *payloads)
    values = read.values.to_pylist()
    bad = dict(zip(read.bad_rows.tolist(), read.reasons, strict=True))
    assert list(bad) == sorted(bad)
    for row, payload in enumerate(payloads):
        if payload is None:
            assert values[row] is None
            assert row not in bad
            continue
        try:
            expected = json_oracle.decoded(payload, kind)
        except json_oracle.BadError:
            assert row in bad, payload
            assert "cannot be read as its type" not in bad[row], payload  # a clean text was not
        else:
            assert row not in bad, (payload, bad[row])
            assert repr(values[row]) == repr(expected), payload  # NaN and -0.0 too


@pytest.mark.parametrize("fewest", [1, ONE_BY_ONE], ids=["at once", "one by one"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(50))
def test_every_mutation_is_the_oracles_value_or_a_bad_row(fewest: int, seed: int) -> None:
    dice = random.Random(seed)
    kind = dice.choice(json_cases.TYPES)
    misfits, damage = dice.choice([(0, 0), (0, 0.3), (0.02, 0), (0.1, 0.1), (0, 1)])
    payloads: list[bytes | None] = [
        json_cases.payload_of(kind, dice, misfits=misfits, damage=damage)
        for _ in range(dice.choice([1, 4, 30]))
    ]
    payloads.insert(dice.randrange(len(payloads)), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "MIN_BLOCK_ROWS", fewest)
        check(kind, payloads)


SEPARATE = pa.struct(
    [
        ("id", pa.int64()),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("took", pa.duration("us")),
        ("text", pa.string()),
        ("n", pa.map_(pa.string(), pa.string())),
    ]
)
"""pyarrow's reader can read neither maps nor durations."""


def assert_as_one_by_one(
    kind: pa.DataType, payloads: list[bytes], rest: bool = False, schema: Schema = NO_SCHEMA
) -> None:
    """Payloads that are read at once give the values, bad rows, reasons and rests of one by one."""
    read = []
    for fewest in (1, ONE_BY_ONE):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode, "MIN_BLOCK_ROWS", fewest)
            read.append(run(kind, *payloads, rest=rest, schema=schema))
    at_once, one_by_one = read
    assert at_once.values.to_pylist() == one_by_one.values.to_pylist()
    assert at_once.bad_rows.tolist() == one_by_one.bad_rows.tolist()
    assert at_once.reasons == one_by_one.reasons
    assert at_once.rest == one_by_one.rest


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        '[[{"x":1}],{"a":1}]',
        '{"x":[{"x":1,"x":2}],"y":{"y":1}}',
        "{1:2}",
        "{:}",
        "{:1}",
        "[:]",
        '{"a" 1:2}',
        '{"a"::1}',
    ],
)
def test_any_json_among_numbers_is_as_one_by_one(value: str, rest: bool) -> None:
    payloads = [b'{"id":1,"v":5}'] * 8
    payloads[4] = f'{{"id":2,"w":[[[{{"x":1}}]]],"v":{value}}}'.encode()
    names = ["id"] if rest else ["id", "v"]
    kind = pa.struct([(name, pa.string() if name == "v" else pa.int64()) for name in names])
    assert_as_one_by_one(kind, payloads, rest)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"id":1,"m":{"a":1,"b":null},"took":"PT1S","text":"x"}',
        b' { "m" : { "a" : 1 , "b" : 2 } , "id" : 1 } ',
        b'{"m":{}}',
        b'{"m":null,"took":null}',
        b'{"m":  {"a":1}}',
        b'{"text":"}{,:[","m":{"{":1,",":2,":":3}}',
        b'{"text":"\\"m\\":{","m":{"a":1}}',
        b'{"text":"\\\\","m":{"a":1}}',
        b'{"text":"\\u00fc","m":{"\xc3\xbc":1}}',
        b'{"\\u006d":{"a":1}}',
        b'{"m":{"\\u0061":1}}',
        b'{"m":{"a":1,"a":2,"b":3}}',
        b'{"m":{"a":1},"m":{"b":2}}',
        b'{"m":{"a":"x"},"took":"soon","m":{"b":2},"took":"PT1S"}',
        b'{"x":{"m":{"a":1}},"y":[{"m":{"b":1}}]}',
        b'{"m":{"a":1.0,"b":1e2}}',
        b'{"m":{"a":{"m":1}}}',
        b'{"m":{"a":"1"}}',
        b'{"m":{"a":9223372036854775808}}',
        b'{"m":[1]}',
        b'{"m":7,"took":"soon"}',
        b'{"m":{"a":1}x,"id":1}',
        b'{"m":{"a":1},"id":1',
        b'{"m":{"a":1,"id":1}',
        b'{"m":,"id":1}',
        b'{"m"',
        b"{:,}",
        b'"m":{"a":1}',
        b'{"m":{"a":1}}}{"m":{"a":1}}',
        b'{"m":{"a\xff":1}}',
        b'{"m":{"a":NaN}}',
        b'{"m":{"a":1}} "',
        # The next would be valid lists of items, if names could be anywhere.
        b'{"m":{"a":}}',
        b'{"m":{"a" 5:}}',
        b'{"m":{5 "a":}}',
        b'{"m":{5"a":,"b":1}}',
        b'{"n":{"b","a":"1"}}',
        b'{"n":{"b","a"::"1"}}',
        b'{"n":{"b""a":"1"}}',
        b'{"n":{"a":"b":"1"}}',
        b'{"m":{"a":1]}',
        b'{"m":[]}',
        b'{"\\u006d":[]}',
        b'{"m":{:1}}',
        b'{"m":{"a"\x01:1}}',
        b'{"m":{"a\x01":1}}',
        b'{"m":{"a\n":1}}',
        b'{"m"\n:\t{"a"\r\n :\n1\n,\n"b":2}}',
        b'{"n":{"a":"}","b":"]"},"m":{"]":1,"}":2}}',
        b'{"n":{"a":null},"m":{"\\"":1}}',
        b'{"n":{"a":"\\\\","b":"\\""},"m":{"c":1}}',
    ],
)
def test_fields_that_are_read_apart_are_as_one_by_one(payload: bytes) -> None:
    other = b'{"id":2,"m":{"k":5},"took":"PT2S","text":"y"}'
    payloads = [other, payload, other, payload, b'{"id":3}', payload]
    assert_as_one_by_one(SEPARATE, payloads)


@pytest.mark.parametrize(
    "value",
    [
        '"small":"x"',
        '"small": 1.5',
        '"small":\n1e1',
        '"price" : true',
        '"name":7',
        '"amount":"1.001"',
        '"amount":"n/a"',
        '"amount":""',
        '"amount":1.001',
        '"at":"soon"',
        '"day":"02.01.2024"',
        '"ok":0',
        '"home":{"zip": "x"}',
        '"home":[]',
        '"tags":"x"',
        '"lines":[{"qty":null},{"qty":"1"}]',
    ],
)
def test_rows_with_a_misfit_of_one_field_are_found_together(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pa.struct([*json_cases.FLAT, *[f for f in json_cases.NESTED if f.name != "id"]])
    rows = [f'{{"id":{n},{value if n % 10 == 5 else ""}}}'.encode() for n in range(1000)]
    rows = [row.replace(b",}", b"}") for row in rows]
    for rest in (False, True):
        with monkeypatch.context() as patch:
            if not rest:
                patch.setattr(JsonNormalizer, "read", None)  # no row is read alone
            read = run(kind, *rows, rest=rest)
        with monkeypatch.context() as patch:
            patch.setattr(decode, "MIN_BLOCK_ROWS", ONE_BY_ONE)
            alone = run(kind, *rows, rest=rest)
        assert read.values.to_pylist() == alone.values.to_pylist()
        assert read.reasons == alone.reasons
        assert read.rest == alone.rest


@pytest.mark.parametrize(
    "value",
    [
        '"counts":[1, "x"]',
        '"counts":[1 ,2.5,3]',
        '"counts":[[1]]',
        '"sums":{"a":1 , "b":"x"}',
        '"sums":{"a":99999999999999999999}',
        '"oks": [true, 0]',
        '"days":["2024-01-02","2 May"]',
    ],
)
def test_rows_with_an_item_that_does_not_fit_are_found_together(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("counts", pa.list_(pa.int64())),
            ("sums", pa.map_(pa.string(), pa.int64())),
            ("oks", pa.list_(pa.bool_())),
            ("days", pa.list_(pa.date32())),
        ]
    )
    good = (
        '"counts":[1, -2 ,null],"sums":{"a, b": 1,"]":null},"oks":[ ],"days":[ "2024-01-02" ]',
        '"counts":[],"sums":{},"oks":[true,false],"days":null',
    )
    rows = [f'{{"id":{n},{value if n % 10 == 5 else good[n % 2]}}}'.encode() for n in range(300)]
    normalized = []
    read = JsonNormalizer.read

    def noted(normalizer: JsonNormalizer, payload: bytes) -> tuple[str, str | None]:
        normalized.append(payload)
        return read(normalizer, payload)

    monkeypatch.setattr(JsonNormalizer, "read", noted)
    for rest in (False, True):
        normalized.clear()
        decoded = run(kind, *rows, rest=rest)
        assert set(normalized) <= set(rows[5::10])
        with monkeypatch.context() as patch:
            patch.setattr(decode, "MIN_BLOCK_ROWS", ONE_BY_ONE)
            alone = run(kind, *rows, rest=rest)
        assert decoded.values.to_pylist() == alone.values.to_pylist()
        assert decoded.reasons == alone.reasons
        assert decoded.rest == alone.rest


@pytest.mark.parametrize("wrong", [b"[1 2]", b"[1],", b"x", b'"\\q"', b'"\t"', b"[01]"])
def test_objects_that_are_no_json_inside_cost_the_others_nothing(
    wrong: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = pa.struct([("id", pa.int64()), ("n", pa.list_(pa.int64()))])
    good = [b'{"id":1,"n":[1]}', b'{"x":"\xc3\xa9","n":null}']
    rows = [good[n % 2] for n in range(2000)]
    rows[5::10] = [b'{"id":1,"n":%s}' % wrong] * 200
    normalized = []
    read = JsonNormalizer.read

    def noted(normalizer: JsonNormalizer, payload: bytes) -> tuple[str, str | None]:
        normalized.append(payload)
        return read(normalizer, payload)

    monkeypatch.setattr(JsonNormalizer, "read", noted)
    decoded = run(kind, *rows)
    assert decoded.bad_rows.tolist() == list(range(5, 2000, 10))
    assert decoded.reasons[MAX_OWN_REASONS:] == ("the value is not JSON",) * (200 - MAX_OWN_REASONS)
    assert all("at character" in reason for reason in decoded.reasons[:MAX_OWN_REASONS])
    assert normalized == [rows[5]] * MAX_OWN_REASONS


def test_what_is_left_with_escapes_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pa.struct([("id", pa.int64())])
    lefts = [
        r'"a": "say \"hi\", \\", "b": {"c\n": [1, "}\t"], "d":"\b\f\r"}',
        r'"b" : { "c" : "\\\"" , "\\": " : " }',
    ]
    rows = [f'{{"id":{number}, {lefts[number % 2]}}}'.encode() for number in range(200)]
    rest = ['{"a":"say \\"hi\\", \\\\","b":{"c\\n":[1,"}\\t"],"d":"\\b\\f\\r"}}']
    rest.append('{"b":{"c":"\\\\\\"","\\\\":" : "}}')
    other = rb'{"id":5,"a":"\u00e9\/","b":{"c\"":1,"c\"":2}}'
    with monkeypatch.context() as patch:
        patch.setattr(JsonNormalizer, "rest_of", None)
        assert run(kind, *rows, rest=True).rest.to_pylist() == rest * 100
    read = run(kind, *rows, other, rest=True)
    assert read.rest.to_pylist() == [*rest * 100, '{"a":"é/","b":{"c\\"":2}}']


def test_structs_in_structs_are_not_parsed_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    geo = pa.struct([("lat", pa.int64())])
    inner = pa.struct([("geo", geo), ("zip", pa.int64())])
    kind = pa.struct([("c", inner), ("d", pa.struct([("geo", geo)]))])
    known = b'{"c":{"geo":{"lat":1},"zip":2},"d":{"geo":{"lat":3}},"x":%d}'
    rows = [known % number for number in range(100)]
    rest = [f'{{"x":{number}}}' for number in range(100)]
    with monkeypatch.context() as patch:
        patch.setattr(JsonNormalizer, "rest_of", None)
        assert run(kind, *rows, rest=True).rest.to_pylist() == rest
    others = {
        b'{"c":{"geo":{"zip":1}}}': '{"c":{"geo":{"zip":1}}}',
        b'{"c":{"lat":1,"geo":{"lat":2}}}': '{"c":{"lat":1}}',
        b'{"d":{"geo":{"lat":1,"geo":{"lat":2}}}}': '{"d":{"geo":{"geo":{"lat":2}}}}',
        b'{"d":{"zip":[{"lat":1}]}}': '{"d":{"zip":[{"lat":1}]}}',
    }
    read = run(kind, *rows, *others, rest=True)
    assert read.rest.to_pylist() == [*rest, *others.values()]


def test_an_array_for_a_map_is_left_in_the_rest() -> None:
    item = pa.struct([("a", pa.int64())])
    kind = pa.struct([("id", pa.int64()), ("m", pa.map_(pa.string(), item))])
    rows = [b'{"id":%d,"m":{"k":{"a":1}}}' % number for number in range(100)]
    rows[50] = b'{"id":1,"m":[{"a":1}],"extra":1}'
    rows[60] = b'{"id":1,"m":[],"extra":1}'
    rows[70] = b'{"id":1,"m":{"k":{"b":1}}}'
    read = run(kind, *rows, rest=True)
    assert read.bad_rows.tolist() == []
    assert read.rest is not None
    assert read.rest[50].as_py() == '{"m":[{"a":1}],"extra":1}'
    assert read.rest[60].as_py() == '{"m":[],"extra":1}'
    assert read.rest[70].as_py() == '{"m":{"k":{"b":1}}}'
    assert read.rest.null_count == 97
    assert read.values[50].as_py() == {"id": 1, "m": None}


LONG = pa.struct(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("lines", pa.list_(pa.struct([("text", pa.string())]))),
        ("labels", pa.map_(pa.string(), pa.string())),
    ]
)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"id":1,"text":"%s","raw":"%s"}' % (b"a" * 200, b"QUFB" * 50),
        b'{"lines":[{"text":"%s"},{"text":"b"},{"text":"%s"}],"text":null}'
        % (b"a" * 128, b"c" * 999),
        b'{"labels":{"a":"%s","b":"b","c":"%s"},"x":["%s"]}' % (b"a" * 200, b"c" * 300, b"x" * 400),
        b'{"labels":{"%s":"a"}}' % (b"k" * 200),
        b'{"%s":"%s"}' % (b"x" * 200, b"y" * 200),
        b'{"text" : "%s" }' % (b"a" * 200),
        b'{"text":"%s","id":"%s"}' % (b"a" * 200, b"7" * 200),
        b'{"text":"%s}"' % (b"a" * 200),
        b'{"text":"%s","id":1' % (b"a" * 200),
        b'{"text":%s","id":1}' % (b"a" * 200),
        b'{"text":"%s""id":1}' % (b"a" * 200),
        b'{"text":"\xc3\xa9%s","id":1}' % ("é".encode() * 200),
        b'{"text":"%s\xff","id":1}' % (b"a" * 200),
        b'{"text":"%s\\n","id":1}' % (b"a" * 200),
        b'{"text":"%s\n","id":1}' % (b"a" * 200),
        b'{"text":"%s","id":1}' % (b"\x7f" * 200),
        b'{"text":"\x7faaaaa","id":1}',
        b'{"text":"\x7fbaaaa","raw":"%s"}' % (b"QUFB" * 50),
        b'{"raw":"%s"}' % (b"-" * 200),
    ],
)
def test_long_strings_are_as_one_by_one(payload: bytes) -> None:
    other = b'{"text":"%s"}' % (b"e" * 1000)
    payloads = [other, payload, other, payload, b'{"id":3}', payload]
    assert_as_one_by_one(LONG, payloads)


def test_texts_that_differ_in_fields_are_compared_in_the_first_batch_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In half of the texts a field is missing."""
    compared: list[int] = []
    uniform = decode.UniformReader

    def noted_uniform(root: Any, data: Any, *arguments: Any, **options: bool) -> Any:
        compared.append(len(data))
        return uniform(root, data, *arguments, **options)

    monkeypatch.setattr(decode, "UniformReader", noted_uniform)
    forms = (b'{"id":%d,"text":"%s"}', b'{"x":%d,"text":"%s"}')
    rows = [forms[i % 2] % (i, b"%d" % (i % 10) * 1000) for i in range(100)]
    json_decoder = decode.JsonDecoder(node_of_type(UNIFORM))
    for _ in range(3):
        decoded = json_decoder.decode(pa.array(rows, pa.binary()))
        assert decoded.values[37].as_py()["text"] == "7" * 1000
    assert len(compared) == 1


def test_long_texts_of_two_forms_are_read_without_pyarrows_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = (b'{"id":%d,"text":"%s"}', b'{"text":"%s"}')
    rows = [forms[i % 2] % ((i,) * (1 - i % 2) + (b"%d" % (i % 10) * 1000,)) for i in range(100)]
    assert_as_one_by_one(LONG, rows)
    monkeypatch.delattr(decode.BlockReader, "read")
    monkeypatch.delattr(JsonNormalizer, "read")
    assert run(LONG, *rows).values[38].as_py()["text"] == "8" * 1000


UNIFORM = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("home", pa.struct([("zip", pa.int16()), ("day", pa.date32()), ("at", pa.int64())])),
        ("lines", pa.list_(pa.string())),
    ]
)
UNIFORM_SCHEMA = """{"type": "object", "properties": {
    "id": {"type": "integer"}, "small": {"type": "integer", "minimum": -9, "maximum": 9},
    "price": {"type": "number"}, "ok": {"type": "boolean"}, "text": {"type": "string"},
    "home": {"type": "object", "properties": {
        "zip": {"type": "integer"}, "day": {"type": "string", "format": "date"},
        "at": {"type": "integer"}}},
    "lines": {"type": "array", "items": {"type": "string"}}}}"""
UNIFORM_TEXT = (
    b'{"id": %d, "price":-0.5, "ok" :true, "text": "a, b:{%d}", "small": null, '
    b'"home":{ "zip": 12, "day": "2026-01-02" }, "lines": null}'
)
"""All fields that `uniform_objects` reads, and white space where JSON allows it."""


def uniform_texts(count: int) -> list[bytes]:
    return [UNIFORM_TEXT % (number, number) for number in range(count)]


def test_uniform_texts_are_read_without_pyarrows_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[bytes] = []
    read = decode.BlockReader.read

    def noted(reader: decode.BlockReader, block: pa.Array, *strings: pa.Array | None) -> pa.Array:
        texts.extend(block.to_pylist())
        return read(reader, block, *strings)

    monkeypatch.setattr(decode.BlockReader, "read", noted)
    rows = uniform_texts(500)
    rows[7] = b'{"id":1}'
    rows[30:130] = [row.replace(b"a, b", b'a\\"') for row in rows[30:130]]  # these have escapes
    rows[200] = rows[200].replace(b'"a, b:{200}"', b'"%s"' % ("\u00e9" * 400).encode())
    decoded = run(UNIFORM, *rows)
    assert decoded.bad_rows.tolist() == []
    assert set(texts) == {rows[7], *rows[30:130]}
    assert decoded.values[200].as_py()["text"] == "\u00e9" * 400
    assert decoded.values[499].as_py() == {
        "id": 499,
        "small": None,
        "price": -0.5,
        "ok": True,
        "text": "a, b:{499}",
        "home": {"zip": 12, "day": date(2026, 1, 2), "at": None},
        "lines": None,
    }


@pytest.mark.parametrize(("last", "rest"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    ("part", "other"),
    [
        *((b"-0.5", number) for number in (b"1", b"-1e2", b"1E-2", b"1.e5", b"1.", b".5", b"-.5")),
        *((b"-0.5", number) for number in (b"007", b"-01.5", b"0.0", b"NaN", b"-inf", b"+1", b"")),
        *((b"-0.5", number) for number in (b"1 2", b"1,2", b"0x1", b"null", b"true", b'"1"', b"n")),
        *((b"12,", number) for number in (b"1.0,", b"-7,", b"-,", b"07,", b"99999,", b"null,")),
        *((b"12,", number) for number in (b"nul,", b"-0,", b"0x7,", b",", b"[1],", b'{"a":1},')),
        *((b"true", word) for word in (b"false", b"null", b"truf", b"True", b"1", b"1x2")),
        *((b"true", word) for word in (b'"null"', b"1.e5", b"fals")),
        *((b"null, ", word) for word in (b"1, ", b"12 , ", b"2147483648, ", b"nulls, ")),
        *((b'": "a', word) for word in (b'": "', b'":"a', b'": null, "a', b'": {"a', b'": a')),
        (b"2026-01-02", b"2026-02-30"),
        (b'"day"', b'"dax"'),
        (b'"lines": null', b'"lines": []'),
        (b'"lines": null}', b'"lines": "}'),
        (b'"lines": null}', b'"lines": null'),
        (b'"lines": null}', b'"lines": null}}'),
        (b'"lines": null}', b'"lines": null}{}'),
        (b', "lines": null}', b"}"),
        (b', "lines": null}', b', "text": "b"}'),
        (b'}, "lines": null}', b""),
        (b"a, b", b"a\x00"),
        (b"a, b", b"\xff"),
        (b"a, b", b"\xc3\xa9"),
        (b"a, b", b"\\ud800"),
        (b"{ ", b"{\n"),
        *((b'"a, b:{3}"', word) for word in (b"5", b"-1.5e3", b"1.e5", b"1x2", b"true", b"null")),
        *((b'"a, b:{3}"', word) for word in (b'{"a":1}', b"[]", b"nul", b"01", b'"5')),
        *((b'"2026-01-02"', word) for word in (b"5", b'"2026-13-01"', b'"x, \\"y"', b"2026-01-02")),
        *((b'"more": "x', word) for word in (b'"more":"', b'"more": null, "y": "', b'"id": "')),
        *((b'"x3"', word) for word in (b"1e400", b"1" * 400, b"-", b"1x2", b"0x1", b"nul", b"01")),
        *((b'"x3"', word) for word in (b'"\\u0041"', b'"\x7f"', b"-0", b"false", b"null", b"[1]")),
        (b'{"deep": 3}', b'"deep"'),
        (b'{"deep": 3}', b'{"deep":3}'),
        (b'{"deep": 3}', b"{}"),
    ],
)
def test_uniform_texts_are_as_one_by_one(part: bytes, other: bytes, last: bool, rest: bool) -> None:
    payloads = uniform_texts(9)
    if rest:
        more = b'"more": "x%d", "in": {"deep": %d}, "home"'
        payloads = [row.replace(b'"home"', more % (3, 3)) for row in payloads]
    row = 8 if last else 3
    payloads[row] = payloads[row].replace(b"{8}", b"{3}")
    if part not in payloads[row]:
        assert not rest
        return
    payloads[row] = payloads[row].replace(part, other)
    assert_as_one_by_one(UNIFORM, payloads, rest)


@pytest.mark.parametrize("size", range(1, 19))
def test_each_byte_between_values_counts(size: int) -> None:
    """They are compared as words of eight bytes, and fewer at the end."""
    kind = pa.struct([("n" * size, pa.int64()), ("o" * size, pa.int64())])
    text = b'{"%s":7,"%s":7}' % (b"n" * size, b"o" * size)
    for at in range(len(text)):
        changed = text[:at] + b"x" + text[at + 1 :]
        assert_as_one_by_one(kind, [text] * 5 + [changed] + [text] * 3)


@pytest.mark.parametrize("comma", [b",", b',"",'])
def test_damaged_texts_that_together_would_be_json_change_no_other(comma: bytes) -> None:
    numbers = [b"1"] * 30
    numbers[9:16] = b"1,2", b"3.0", b"4.0", b"5,[6", b"7.0", b"8.0", b"9],9"
    numbers[9:16] = [number.replace(b",", comma) for number in numbers[9:16]]
    kind = pa.struct([("id", pa.int64())])
    assert_as_one_by_one(kind, [b'{"id":%s}' % number for number in numbers])


ITEMS = pa.struct(
    [
        ("id", pa.int64()),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("n", pa.map_(pa.string(), pa.string())),
    ]
)
ITEMS_TEXT = b'{"id": 1, "m": {"a": 1, "b": -2}, "n": {"a": "x", "b": null}}'


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize(
    ("part", "other"),
    [
        *((b'{"a": 1, "b": -2}', value) for value in (b"{}", b"{ }", b"null", b"5", b'"x"', b"[]")),
        *((b'{"a": 1, "b": -2}', value) for value in (b"{", b"}", b"{,}", b'{"a"}', b"{1}")),
        *((b'"a": 1', item) for item in (b'"a":1', b'"a" : 1', b'"a": 1 ', b' "a": 1', b'"a": x')),
        *(
            (b'"a": 1', item)
            for item in (b'"b": 1', b'"a": ', b'"a"', b"1", b"", b'"a" 1', b'a": 1')
        ),
        *((b'"a": 1', item) for item in (b'"a": 1.5', b'"a": "1"', b'"a": true', b'"a": null')),
        *((b'"a": 1', item) for item in (b'"a": %d' % 10**20, b'"a": [1]', b'"a": {"b": 1}')),
        *((b'"a": 1', item) for item in (b'"a": 1x2', b'"a": 01', b'"a": 1e1', b'"a": NaN')),
        *((b'"a": 1', item) for item in (b'"a": 1, "c": 3, "c": 4', b'"a, b": 1', b'"a}": 1')),
        *((b'"a": 1', item) for item in (rb'"\u0061": 1', rb'"\"": 1', b'"\xff": 1', b'"\n": 1')),
        *((b'"x"', value) for value in (b'""', b'"x, y"', b'","', b'"}"', b'", "', b'"x" "y"')),
        *(
            (b'"x"', value)
            for value in (b'"', b'"""', b"5", b"1x2", b"true", b'"\xc3\xa9"', rb'"\n"')
        ),
    ],
)
def test_uniform_maps_are_as_one_by_one(part: bytes, other: bytes, rest: bool) -> None:
    payloads = [ITEMS_TEXT] * 9
    payloads[3] = ITEMS_TEXT.replace(part, other)
    assert_as_one_by_one(ITEMS, payloads, rest)
    schema = '{"type": "object", "additionalProperties": {"type": "%s"}}'
    properties = f'{{"m": {schema % "integer"}, "n": {schema % "string"}}}'
    typed = Schema("json", f'{{"type": "object", "properties": {properties}}}')
    kind = pa.struct([field for field in ITEMS if field.name != "id"])
    assert_as_one_by_one(kind, [text.replace(b'"id": 1, ', b"") for text in payloads], rest, typed)


@pytest.mark.parametrize("text", [b"x", b"x, y", b"},"])
def test_uniform_maps_are_read_without_pyarrows_reader(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(decode.BlockReader, "read")
    # The middle one is the model, whose strings have no brackets.
    texts = [ITEMS_TEXT.replace(b'"x"', b'"%s"' % text)] * 100
    texts[49] = ITEMS_TEXT
    values = run(ITEMS, *texts).values.to_pylist()
    maps = {"m": [("a", 1), ("b", -2)], "n": [("a", text.decode()), ("b", None)]}
    assert values[:49] + values[50:] == [{"id": 1, **maps}] * 99


def test_damaged_maps_beside_strings_with_commas() -> None:
    texts = [ITEMS_TEXT.replace(b'"x"', b'"x, y"')] * 100
    others = [b'"x, y', b'x, y"', b'"x", y"', b'"x"", y"', b'"x}, y"', b'"x, "y"', b'"x", "y"']
    for row, other in zip(range(30, 90, 8), others, strict=False):
        texts[row] = ITEMS_TEXT.replace(b'"x"', other)
    assert_as_one_by_one(ITEMS, texts)


@pytest.mark.parametrize(
    "values",
    [
        [b'"m":{"a":1}', b'"m":{"a":1,"b":"x"}', b'"m":5', b'"m":{"b":"y","c":"z"}'],
        [b'"l":[1e2,2]', b'"l":["x",3,"y"]', b'"l":[4.0]', b'"l":5', b'"l":[true,null]'],
        [b'"id":1,"id":2', b'"id":1x2,"id":2', b'"id":1,"id":2', b'"id":1,"id":2'],
        [b'"m":{"a":1},"id":1', b'"m":{"a":"x"},"id":"y"', b'"m":{},"id":true'],
    ],
)
@pytest.mark.parametrize("rest", [False, True])
def test_misfits_beside_others_are_as_one_by_one(values: list[bytes], rest: bool) -> None:
    kind = pa.struct([("id", pa.int64()), ("l", pa.list_(pa.int64())), ITEMS.field("m")])
    assert_as_one_by_one(kind, [b"{%s}" % value for value in values] * 20, rest)


@pytest.mark.parametrize("share", [1, 2, 50])
@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("m", '{"k": "x", "l": 5, "o": 1.5}', '{"k":"x","o":1.5}'),
        ("counts", '["x", 1, null, 2.5]', '["x",null,null,2.5]'),
        ("words", '[1, "a", true]', "[1,null,true]"),
        ("home", '{"zip": "x", "more": [1]}', '{"zip":"x","more":[1]}'),
        ("lines", '[{"qty": "x"}, {"qty": 1}]', '[{"qty":"x"},null]'),
        ("day", '"2024-02-30"', '"2024-02-30"'),
    ],
)
def test_rests_of_values_in_texts_of_two_layouts_are_found_by_fields(
    name: str, value: str, left: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if share < 50:
        monkeypatch.setattr(JsonNormalizer, "read", None)  # which reads one by one
    words = {"type": "array", "items": {"type": "string"}}
    schema = {
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "counts": {"type": "array", "items": {"type": "integer"}},
        "words": words,
        "home": {"type": "object", "properties": {"zip": {"type": "integer"}}},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"qty": {"type": "integer"}}},
        },
        "day": {"type": "string", "format": "date"},
    }
    typed = Schema("json", json.dumps({"type": "object", "properties": schema}))
    kind = arrow_type(typed)
    good = {"m": {"a": 1}, "counts": [1, 2], "words": ["a"], "home": {"zip": 1}, "lines": []}
    rows = []
    for number in range(300):
        row = dict(good) if number % 3 else {**good, "day": "2024-01-02"}
        row.pop(name, None) if number % share == 0 else None
        text = json.dumps(row)
        rows.append(f'{text[:-1]}, "{name}": {value}}}' if number % share == 0 else text)
    read = run(kind, *[row.encode() for row in rows], rest=True, schema=typed)
    assert read.rest is not None
    assert read.rest.to_pylist() == [
        None if number % share else f'{{"{name}":{left}}}' for number in range(300)
    ]
    assert not len(read.bad_rows)


_SCALARS = ["1", "-7", "1.5", "1e2", "12345678901234567890", "true", "null", '"x"', '"1"']
_SCALARS += [
    '"2026-01-02"',
    '"2026-13-45"',
    '"a, \\"b"',
    '"é:{"',
    "1.e5",
    "[1]",
    '{"a": 1}',
    "1e400",
]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60))
def test_uniform_texts_with_any_values_are_as_one_by_one(seed: int) -> None:
    dice = random.Random(seed)
    layout = '{"id":%s,"x": %s, "text":%s,"home": {"zip":%s, "y":{"z":%s},"day":%s }, "price":%s}'
    usual = [dice.choice(_SCALARS[:12]) for _ in range(7)]
    odd = dice.choice([0.02, 0.1, 0.5])
    rows = [
        layout % tuple(dice.choice(_SCALARS) if dice.random() < odd else text for text in usual)
        for _ in range(dice.choice([3, 8, 40]))
    ]
    # Without a schema, a string takes the text of any value.
    schema = dice.choice([NO_SCHEMA, Schema("json", UNIFORM_SCHEMA)])
    payloads = [row.encode() for row in rows]
    assert_as_one_by_one(UNIFORM, payloads, rest=dice.random() < 0.7, schema=schema)


@pytest.mark.parametrize("share", [3, 1])
@pytest.mark.parametrize(
    ("part", "other", "reason", "left"),
    [
        (
            b": 12",
            b': "12"',
            "field home.zip: is a string, not a whole number",
            '{"home":{"zip":"12"}}',
        ),
        (b"-0.5", b"true", "field price: is a boolean, not a number", '{"price":true}'),
        (b": 12", b": 70000", "field home.zip: is a number that", '{"home":{"zip":70000}}'),
        (b"true", b'"yes"', "field ok: is a string, not a boolean", '{"ok":"yes"}'),
        (b'"2026-01-02"', b"5", "field home.day: is a number, not a st", '{"home":{"day":5}}'),
        (b'"2026-01-02"', b'"x"', "field home.day: is a string that is", '{"home":{"day":"x"}}'),
        (b'"a, b:{0}"', b"2", "field text: is a number, not a string", '{"text":2}'),
        (b'"lines": null', b'"lines": 1', "field lines: is a number, not an array", '{"lines":1}'),
        (b'"lines"', b'"a": 1, "b":{"c": "d"}, "lines"', None, '{"a":1,"b":{"c":"d"}}'),
        (b'"lines"', rb'"a": "\"\u00e9\/", "lines"', None, '{"a":"\\"é/"}'),
    ],
)
def test_what_does_not_fit_uniform_texts_is_found_by_columns(
    part: bytes,
    other: bytes,
    reason: str | None,
    left: str,
    share: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(JsonNormalizer, "read")  # which reads one by one
    monkeypatch.delattr(JsonNormalizer, "rest_of")
    monkeypatch.setattr(decode, "MAX_BLOCK_BYTES", 20_000)  # three parts
    if share > 1 and b"lines" in part:
        return  # the texts differ in more than their values
    rows = [UNIFORM_TEXT % (number + 2000, 0) for number in range(300)]
    changed = range(0, 300, share)
    for row in changed:
        rows[row] = rows[row].replace(part, other)
    schema = Schema("json", UNIFORM_SCHEMA)
    with_rest = run(UNIFORM, *rows, rest=True, schema=schema)
    assert with_rest.bad_rows.tolist() == []
    assert with_rest.rest is not None
    assert with_rest.rest.to_pylist() == [left if row % share == 0 else None for row in range(300)]
    if reason is not None:
        decoded = run(UNIFORM, *rows, schema=schema)
        assert decoded.bad_rows.tolist() == list(changed)
        assert all(text.startswith(reason) for text in decoded.reasons)


@pytest.mark.parametrize("share", [1, 9])
@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b'="}', b'="}\n'),
        (b'="}', b'="} \t\r\n'),
        (b"12", b"12.0"),
        (b"12", b"-12.000"),
        (b"12", b"0.0"),
        (b"0Z", b"0.1234567Z"),  # as .NET writes it
        (b"0Z", b"0.123456789+01:00"),  # Java and Go
        (b"-31", b"-31 "),
        (b"AAA=", b"AAA"),
        (b"-30", b"-01"),
        (b"-30T", b"-30 "),
        (b'"xx"', b"0.10"),
        (b'"xx"', b"true"),
        (b'"xx"', b"-12e+3"),
        (b'"yy"', b"5"),
    ],
)
def test_odd_forms_of_values_are_read_by_columns(
    part: bytes, other: bytes, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    read = decode._Batch._read_texts

    def noted(batch: Any, field: Any, path: str, texts: pa.Array, *rest: Any, **more: Any) -> Any:
        parsed.append(len(texts))
        return read(batch, field, path, texts, *rest, **more)

    kind = pa.struct(
        [
            *(("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))),
            *(("x", pa.string()), ("y", pa.map_(pa.string(), pa.string())), ("z", pa.binary())),
        ]
    )
    form = b'{"id":12,"day":"2024-01-31","at":"2024-04-30T10:00:00Z","x":"xx","y":{"z":"yy"},'
    form += b'"z":"AAA="}'
    assert part in form
    payloads = [form.replace(part, other) if row % share == 0 else form for row in range(90)]
    assert_as_one_by_one(kind, payloads)
    monkeypatch.delattr(JsonNormalizer, "read")  # which reads one by one
    monkeypatch.setattr(decode._Batch, "_read_texts", noted)
    run(kind, *payloads)
    assert parsed == ([90 // share] if other in (b"-31 ", b"AAA") else [])


def test_many_strings_in_arrays_of_numbers_are_bad_rows_with_reasons() -> None:
    kind = pa.struct([("id", pa.int64()), ("x", pa.list_(pa.int64()))])
    rows = [b'{"id":%d,"x":[1,"q"%s]}' % (i, b",2" * (i % 3)) for i in range(200)]
    rows[70:100] = [b'{"id":1,"x":[1,2,1.5]}'] * 15 + [b'{"id":1,"x":[2]}'] * 15
    read = run(kind, *rows)
    assert set(read.bad_rows.tolist()) == set(range(200)) - set(range(85, 100))
    by_row = dict(zip(read.bad_rows.tolist(), read.reasons, strict=True))
    assert by_row[3] == "field x[1]: is a string, not a whole number of 64 bits"
    assert by_row[75].startswith("field x[2]: is a number that does not fit")
    assert by_row[199] == "field x: the value is not what its schema says"
    assert read.values[90].as_py() == {"id": 1, "x": [2]}


@pytest.mark.parametrize("number", [b"2024-01-31", b"1.e5", b"1-2", b"0x10", b"007", b"1e"])
def test_what_looks_like_a_number_is_no_text(number: bytes) -> None:
    kind = pa.struct([("id", pa.int64()), ("x", pa.string()), ("y", pa.list_(pa.string()))])
    rows = [b'{"id":%d,"x":%d,"y":[%d]}' % (i, i, i) for i in range(90)]
    for at in (b'"x":7', b'"y":[7'):
        payloads = [row.replace(at, at[:-1] + number) for row in rows]
        assert_as_one_by_one(kind, payloads)
        assert len(run(kind, *payloads).bad_rows)


def test_a_deep_object_that_no_field_has_is_refused_in_uniform_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "MIN_BLOCK_ROWS", 1)
    deep = b'{"x":' * 5000 + b"1" + b"}" * 5000
    read = run(UNIFORM, *[b'{"id":1,"y":%s}' % deep] * 3, rest=True)
    assert read.bad_rows.tolist() == [0, 1, 2]


def test_a_string_without_an_end_is_no_null() -> None:
    kind = pa.struct([("a", pa.string())])
    assert_as_one_by_one(kind, [b'{"a": "b"}', b'{"a": "c"}', b'{"a": "d"}', b'{"a": "}'])


def test_only_values_that_pyarrow_cannot_read_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[bytes] = []
    parse = syntax.parse

    def noted(payload: bytes, **settings: bool) -> Any:
        texts.append(payload)
        return parse(payload, **settings)

    monkeypatch.setattr(syntax, "parse", noted)
    rows = [b'{"id":%d,"m":{"k":%d},"took": "PT%dS"}' % (i, i, i) for i in range(100)]
    decoded = run(SEPARATE, *rows)
    model, durations = texts  # the first is the model of the maps
    assert model == b'{"m":{"k":49}}'
    assert re.findall(rb"PT\d+S", durations) == [b"PT%dS" % i for i in range(100)]
    assert decoded.values[7].as_py()["m"] == [("k", 7)]


@pytest.mark.slow
@pytest.mark.parametrize("fewest", [1, ONE_BY_ONE], ids=["at once", "one by one"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(35))
def test_nothing_is_lost_with_rest(fewest: int, seed: int) -> None:
    dice = random.Random(seed)
    kind = dice.choice([each for each in json_cases.TYPES if pa.types.is_struct(each)])
    misfits, damage = dice.choice([(0, 0), (0.02, 0), (0.1, 0.1)])
    payloads = [
        json_cases.payload_of(kind, dice, misfits=misfits, damage=damage)
        for _ in range(dice.choice([1, 4, 30]))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "MIN_BLOCK_ROWS", fewest)
        read = run(kind, *payloads, rest=True)
    assert read.rest is not None
    for row, payload in enumerate(payloads):
        try:
            value, left = json_oracle.with_rest(payload, kind)
        except json_oracle.BadError:
            assert row in read.bad_rows, payload
            value = left = None
        else:
            assert row not in read.bad_rows, payload
        assert repr(read.values[row].as_py()) == repr(value), payload
        assert read.rest[row].as_py() == left, payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" \n",
        b"{",
        b'{"id":1}x',
        b'{"id":1}{"id":2}',
        b'{"id":1} null {"id":2}',  # crashes pyarrow's reader
        b"null null",
        b'{"id":1,}',
        b"{'id':1}",
        b'{"id":01}',
        b'{"id":NaN}',
        b'{"x":NaN}',
        b'{"x": -Infinity}',
        b'{"x":/**/1}',
        b'{"id":1}\0',
        b'{"x":"\0"}',
        b'{"x":"\n"}',
        b'{"x":"\xff"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":"\\ud800"}',
        b'{"x":"\\udc00\\ud800"}',
        b'{"x":"\\x"}',
        b'{"id":[',
        b"]}",
        b"[1]",
        b'"text"',
        b"7",
        b"true",
        b"[" * 1_000_000,
        b'{"x":' * 1000 + b"1" + b"}" * 1000,
        b'{"x":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"id":"1"}',
        b'{"id":9223372036854775808}',
        b'{"id":' + b"9" * 10_000 + b"}",
        b'{"id":1.5}',
        b'{"id":true}',
    ],
)
def test_a_bad_row_among_good_ones(payload: bytes) -> None:
    kind = pa.struct([("id", pa.int64())])
    good = [f'{{"id":{number}}}'.encode() for number in range(300)]
    for at in (0, 150, 300):
        read = run(kind, *good[:at], payload, *good[at:])
        assert read.bad_rows.tolist() == [at]
        expected = [{"id": number} for number in range(300)]
        assert read.values.to_pylist() == [*expected[:at], None, *expected[at:]]


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b"null", None),
        (b" null\n", None),
        (b"{}", {"id": None}),
        (b'\xef\xbb\xbf{"id":1}', {"id": 1}),
        (b'{"id":1,"id":2}', {"id": 2}),
        (b'{"id":1,"\\u0069d":null}', {"id": None}),
        (b'{"x":1e400,"id":3}', {"id": 3}),
        (b'{"id":1.0}', {"id": 1}),
        (b'{"id":10e-1}', {"id": 1}),
        (b'{\r\n\t"id" : 5\n}\n', {"id": 5}),
        (b'{"x":"}n }n","id":6}', {"id": 6}),
        (b'{"x":"level: NaN, Infinity","id":7}', {"id": 7}),
        (b'{"x":' + b"[" * 199 + b"]" * 199 + b',"id":8}', {"id": 8}),
        (b'{"x":"' + b"[{" * 5000 + b'","id":9}', {"id": 9}),
        (b'{"x":"\\ud83d\\ude00\\\\ud800","id":1}', {"id": 1}),
    ],
)
def test_a_good_row_among_others(payload: bytes, value: Any) -> None:
    kind = pa.struct([("id", pa.int64())])
    read = run(kind, *[b'{"id":1}'] * 100, payload, b"broken")
    assert read.bad_rows.tolist() == [101]
    assert read.values[100].as_py() == value


def test_many_texts_that_cannot_be_json() -> None:
    """All are bad, but only the first ones are parsed for their reasons."""
    kind = pa.struct([("id", pa.int64())])
    others = [b'{"id":1}', b" null ", b'\xef\xbb\xbf{"id":2}', b'{"id":3}\r\n', b'\t {"id":4}   ']
    for bad, reason, common in (
        (b"", "is empty, which is not JSON", "does not begin with {"),
        (b'{"id":1, ', "is not JSON: ", "does not begin with {"),
        (b"\x00\x01\x02", "is not JSON: ", "does not begin with {"),
        (b"[1]", "is an array, not an object", "does not begin with {"),
        (b'{"id":"\xe9"}', "is not UTF-8 (at byte 7)", "is not UTF-8, which JSON must be"),
    ):
        read = run(kind, *[bad] * 150, *others, *[bad] * 150, *others, None)
        good = [*range(150, 155), *range(305, 310)]
        assert read.bad_rows.tolist() == [row for row in range(310) if row not in good]
        values = [{"id": 1}, None, {"id": 2}, {"id": 3}, {"id": 4}]
        assert read.values.take(pa.array(good)).to_pylist() == values * 2
        assert all(reason in text for text in read.reasons[:MAX_OWN_REASONS])
        assert all(common in text for text in read.reasons[MAX_OWN_REASONS:])
        only = run(pa.list_(pa.int64()), *[b"[1]"] * 300)
        assert not len(only.bad_rows)


@pytest.mark.parametrize("number", ["1e-40", "0.01E-584", "0.0E-584", "1e-05840000", "1E-5840000"])
@pytest.mark.parametrize("text", ["%s", '"%s"', '[{"d":%s}]'])
def test_decimals_with_exponents_that_crash_the_reader(number: str, text: str) -> None:
    item = pa.list_(pa.struct([("d", pa.decimal128(20, 5))]))
    kind = pa.struct([("f", item if "[" in text else pa.decimal128(20, 5))])
    payload = f'{{"f":{text % number}}}'.encode()
    alone, among = run(kind, payload), run(kind, payload, *[b'{"f":null}'] * 100)
    assert among.reasons == alone.reasons
    assert among.values[0] == alone.values[0]


def test_texts_that_only_together_would_be_json() -> None:
    """Two halves of an object in two rows, and two objects in one: the count is right."""
    kind = pa.struct([("id", pa.int64())])
    halves = [b'{"id":1,"x":[{}', b'{"y":2}]}', b'{"id":3}{"id":4}', b'{"id":5}']
    read = run(kind, *halves * 50)
    assert read.bad_rows.tolist() == [row for row in range(200) if row % 4 != 3]
    assert set(map(str, read.values.to_pylist()[3::4])) == {"{'id': 5}"}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int8(), "128", "field f: is a number that does not fit: it is not a whole number"),
        (pa.int8(), '"x"', "field f: is a string, not a whole number of 8 bits"),
        (pa.float64(), "1e400", "field f: is a number too large for a double"),
        (pa.float32(), "1e39", "field f: is a number too large for a float"),
        (pa.bool_(), "1", "field f: is a number, not a boolean"),
        (pa.decimal128(5, 2), "1.001", "field f: is a number that does not fit into decimal(5,2)"),
        (pa.decimal128(5, 2), '"x"', "field f: is a string that is not a number of decimal(5,2)"),
        (pa.decimal128(5, 2), '"\u0663"', "field f: is a string that is not a number of decimal"),
        (pa.date32(), '"2023-02-29"', "field f: is a string that is not a date like"),
        (json_cases.UTC, '"2024-01-01T00:00:00"', "field f: is a time without offset from UTC"),
        (pa.timestamp("us"), '"2024-01-01T00:00:00Z"', "field f: is a time with an offset"),
        (json_cases.UTC, "17", "field f: is a number, not a string"),
        (pa.binary(), '"a"', "field f: is a string that is not base64"),
        (pa.duration("us"), '"P1M"', "field f: is a string that is not a duration of days to"),
        (pa.null(), "0", "field f: is a number, not null"),
        (pa.list_(pa.int8()), "[1,2,[]]", "field f[2]: is an array, not a whole number"),
        (pa.struct([("g", pa.int8())]), '{"g":{}}', "field f.g: is an object, not a whole"),
        (pa.map_(pa.string(), pa.int8()), '{"k":""}', "field f.k: is a string, not a whole"),
    ],
)
def test_reasons_name_the_field(kind: pa.DataType, text: str, expected: str) -> None:
    assert str(value_in(kind, text)).startswith(expected)


def test_reasons_show_no_value() -> None:
    for kind in (pa.int64(), pa.bool_(), pa.date32(), json_cases.UTC, pa.decimal128(5, 2)):
        assert "hunter2" not in str(value_in(kind, '"hunter2"'))
    assert "hunter2" not in run(pa.struct([("f", pa.int8())]), b'{"hunter2').reasons[0]


def test_decimals_are_exact_from_their_digits() -> None:
    digits = "12345678901234567890123456789012345.678"
    assert str(value_in(pa.decimal128(38, 3), digits)) == digits
    assert str(value_in(pa.decimal128(38, 3), f'"{digits}"')) == digits
    assert str(value_in(pa.decimal128(5, 2), "1.1000000")) == "1.10"


def test_a_string_without_a_schema_takes_any_value() -> None:
    for text, expected in [
        ('"x"', "x"),
        ("1.50", "1.50"),
        ("true", "true"),
        ('{"b": [1, null, "é\\n"]}', '{"b":[1,null,"é\\n"]}'),
        ("null", None),
    ]:
        assert value_in(pa.string(), text) == expected
    assert run(pa.string(), b'"x"', b"[1, 2]").values.to_pylist() == ["x", "[1,2]"]


@pytest.mark.parametrize("kind", [*json_cases.FLAT, *json_cases.MAPS], ids=str)
def test_null_alone_is_null(kind: pa.Field) -> None:
    assert run(kind.type, b"null", b" null ").values.to_pylist() == [None, None]


def test_durations() -> None:
    micros = [value_in(pa.duration("us"), f'"{text}"') for text in ("PT1.5S", "-P1DT1H", "PT0S")]
    assert [each.total_seconds() for each in micros] == [1.5, -90000, 0]
    extremes = ("-PT9223372036854.775808S", "PT9223372036854.775807S")
    read = run(pa.duration("us"), *(f'"{text}"'.encode() for text in extremes))
    assert read.values.cast(pa.int64()).to_pylist() == [-(2**63), 2**63 - 1]
    beyond = ("-PT9223372036854.775809S", "PT9223372036854.775808S")
    read = run(pa.duration("us"), *(f'"{text}"'.encode() for text in beyond))
    assert read.bad_rows.tolist() == [0, 1]


def test_sliced_and_empty_arrays() -> None:
    kind = pa.struct([("id", pa.int64())])
    reader = decoder(NO_SCHEMA, None, kind)
    payloads = pa.array([b'{"id":%d}' % n if n % 5 else None for n in range(1000)], pa.binary())
    for start, count in [(0, 0), (3, 0), (1, 10), (7, 500), (995, 5), (100, 900)]:
        read = reader.decode(payloads.slice(start, count))
        rows = range(start, start + count)
        assert read.values.to_pylist() == [{"id": n} if n % 5 else None for n in rows]
        assert not len(read.bad_rows)
    assert reader.decode(pa.nulls(4, pa.binary())).values.null_count == 4
    text = reader.decode(pa.array(['{"id":1}']))
    assert text.values.to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("broken", [b'{"id":', b'{"id":"x"}', b'{"id":2.5}', b""])
def test_many_rows_with_a_hundred_bad_ones(broken: bytes) -> None:
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    dice = random.Random(7)
    wrong = set(dice.sample(range(8192), 100))
    payloads = [
        broken if row in wrong else json.dumps({"id": row, "name": f"n{row}"}).encode()
        for row in range(8192)
    ]
    read = run(kind, *payloads)
    assert read.bad_rows.tolist() == sorted(wrong)
    assert read.values.field("id").to_pylist() == [
        None if row in wrong else row for row in range(8192)
    ] or read.values.to_pylist() == [
        None if row in wrong else {"id": row, "name": f"n{row}"} for row in range(8192)
    ]


def test_rest_is_what_no_field_took() -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("home", pa.struct([("zip", pa.int32())])),
            ("lines", pa.list_(pa.struct([("qty", pa.int8())]))),
            ("sums", pa.map_(pa.string(), pa.int8())),
        ]
    )
    given_and_left = [
        (b'{"id":1}', {"id": 1}, None),
        (b'{"id":1,"x":[1.50]}', {"id": 1}, '{"x":[1.50]}'),
        (b'{"id":1.5}', {}, '{"id":1.5}'),
        (b'{"home":{"zip":1,"city":"B"}}', {"home": {"zip": 1}}, '{"home":{"city":"B"}}'),
        (b'{"home":7}', {}, '{"home":7}'),
        (
            b'{"lines":[{"qty":1},{"qty":300,"sku":"s"},null]}',
            {"lines": [{"qty": 1}, {"qty": None}, None]},
            '{"lines":[null,{"qty":300,"sku":"s"},null]}',
        ),
        (b'{"sums":{"a":1,"b":"x"}}', {"sums": [("a", 1), ("b", None)]}, '{"sums":{"b":"x"}}'),
        (b'{"x":null}', {}, '{"x":null}'),
        (b"null", None, None),
        (b"[1]", None, None),
        (b"{", None, None),
    ]
    read = run(kind, *(each[0] for each in given_and_left), rest=True)
    assert read.bad_rows.tolist() == [9, 10]
    empty = {"id": None, "home": None, "lines": None, "sums": None}
    for row, (payload, value, left) in enumerate(given_and_left):
        assert read.values[row].as_py() == (None if value is None else empty | value), payload
        assert read.rest is not None
        assert read.rest[row].as_py() == left, payload


def test_rest_without_maps_reads_at_once_what_leaves_nothing() -> None:
    kind = pa.struct([("id", pa.int64())])
    payloads = [b'{"id":%d}' % n if n % 100 else b'{"id":%d,"x":1}' % n for n in range(1000)]
    read = run(kind, *payloads, rest=True)
    assert read.values.to_pylist() == [{"id": n} for n in range(1000)]
    assert read.rest is not None
    assert read.rest.to_pylist() == [None if n % 100 else '{"x":1}' for n in range(1000)]


COMPACT = [
    ('{"id":1,"x":1}', '{"x":1}'),
    ('{"id": 1, "x": "a b", "y": -0}', '{"x":"a b","y":-0}'),
    ('{"x":1.50,"y":1E+5,"z":null,"id":1}', '{"x":1.50,"y":1E+5,"z":null}'),
    ('{"é":"ü","x":"}{,:"}', '{"é":"ü","x":"}{,:"}'),
    ('{"x":[1,{"a":{"b":null}},"é"],"id":1}', '{"x":[1,{"a":{"b":null}},"é"]}'),
    ('{"home":{"zip":1},"x":true}', '{"x":true}'),
    ('{"home":null,"sums":null,"lines":null}', None),
]
LEFT_OF_MANY = [
    *COMPACT,
    ('{"x" :1}', '{"x":1}'),
    ('{"x":  1}', '{"x":1}'),
    ('{"x":1 ,"id":1}', '{"x":1}'),
    ('{"x":1,"y":2,"x":3}', '{"x":3,"y":2}'),
    ('{"x":"a\\u0041"}', '{"x":"aA"}'),
    ('{"x\\u0041":1}', '{"xA":1}'),
    ('{"x":{"id":1, "b":[1, "]"]},"y":[],"id":1}', '{"x":{"id":1,"b":[1,"]"]},"y":[]}'),
    ('{"x":{"b":1,"b":2}}', '{"x":{"b":2}}'),
    ('{"x":1,"home":{"zip":1,"city":"B"}}', '{"x":1,"home":{"city":"B"}}'),
    ('{"home":{"id":1},"lines":[{"qty":1}]}', '{"home":{"id":1}}'),
    ('{"lines":[{"qty":1},{"sku":"s"}]}', '{"lines":[null,{"sku":"s"}]}'),
    ('{"a_name_of_some_length":1,"a_name_of_some_lengtH":2}', '{"a_name_of_some_lengtH":2}'),
]


def test_what_is_left_of_many_rows_is_what_is_left_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("a_name_of_some_length", pa.int64()),
            ("home", pa.struct([("zip", pa.int32())])),
            ("lines", pa.list_(pa.struct([("qty", pa.int8())]))),
            ("sums", pa.map_(pa.string(), pa.int8())),
        ]
    )
    parsed = []
    rest_of = JsonNormalizer.rest_of

    def noted(normalizer: JsonNormalizer, value: Any) -> str | None:
        parsed.append(value)
        return rest_of(normalizer, value)

    monkeypatch.setattr(JsonNormalizer, "rest_of", noted)
    for cases in (COMPACT, LEFT_OF_MANY):
        assert not parsed
        read = run(kind, *(text.encode() for text, _ in cases * 50), rest=True)
        assert read.rest is not None
        assert read.rest.to_pylist() == [left for _, left in cases] * 50
        assert not len(read.bad_rows)
    assert {"x": 1} not in parsed
    assert {"x": {"b": 2}} in parsed


def test_arrays_for_maps_in_all_rows_are_left_in_the_rest() -> None:
    kind = pa.struct([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    read = run(kind, *[b'{"id":1,"m":[1],"x":2}'] * 100, rest=True)
    assert read.rest is not None
    assert set(read.rest.to_pylist()) == {'{"m":[1],"x":2}'}
    assert read.values.field("id").to_pylist() == [1] * 100


def test_texts_with_maps_that_are_to_be_written_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = {"type": "object", "additionalProperties": {"type": "integer"}}
    schema = Schema("json", json.dumps({"type": "object", "properties": {"a": item, "b": item}}))
    kind = arrow_type(schema)
    forms = ('{"a": {"k": %d}, "b": {}}', '{"b": {"k": 2}, "a": {"k": %d}}')
    rows = [(forms[number % 2] % number).encode() for number in range(200)]
    with monkeypatch.context() as patch:
        patch.setattr(JsonNormalizer, "read", None)  # which reads one by one
        good = exact_decoder(schema, kind).decode(pa.array(rows, pa.binary()))
    assert good.values.field("a").to_pylist() == [[("k", number)] for number in range(200)]
    rows[7] = b'{"a": {"k": 7}, "c": 1}'
    bad = exact_decoder(schema, kind).decode(pa.array(rows, pa.binary()))
    assert bad.bad_rows.tolist() == [7]
    assert bad.reasons[0].startswith("field c: the schema has no such field")


def test_rest_needs_objects() -> None:
    with pytest.raises(OptionError, match="rescuedColumn needs JSON objects"):
        decoder(NO_SCHEMA, None, pa.list_(pa.int64()), rest=True)


@pytest.mark.parametrize(
    ("kind", "expected_error"),
    [
        (pa.struct([("a", pa.struct([("b", pa.uint8())]))]), "field a.b: JSON gives no uint8"),
        (pa.struct([("a", pa.map_(pa.int32(), pa.int8()))]), "field a: .*strings as keys, not int"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "field a appears twice in the column"),
        (pa.timestamp("ns"), "JSON gives no timestamp"),
    ],
)
def test_types_that_json_does_not_have(kind: pa.DataType, expected_error: str) -> None:
    with pytest.raises(OptionError, match=expected_error):
        decoder(NO_SCHEMA, None, kind)


def test_without_schema_and_type() -> None:
    with pytest.raises(OptionError, match="needs the type"):
        decoder(NO_SCHEMA, None, None)


def test_the_limit_of_nesting_is_that_of_the_oracle() -> None:
    assert syntax.MAX_NESTING == json_oracle.NESTED


EXACT = pa.struct(
    [
        ("name", pa.int64()),
        ("o", pa.struct([("a", pa.int64())])),
        ("l", pa.list_(pa.struct([("b", pa.string())]))),
    ]
)


NO_FIELD = "the schema has no such field"


@pytest.mark.parametrize("more", [[], [("m", pa.map_(pa.string(), EXACT[1].type))]])
@pytest.mark.parametrize("before", [2, decode.MIN_BLOCK_ROWS])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '{"nmae":1}',
            f"field nmae: {NO_FIELD}; did you mean name? It has name, o, l",
        ),
        ('{"o":{"A":null}}', f"field o.A: {NO_FIELD}; did you mean a? It has a"),
        ('{"l":[{},{"x":[]}]}', f"field l[1].x: {NO_FIELD}; it has b"),
        ('{"m":{"k":{"x":1}}}', f"field m.k.x: {NO_FIELD}; it has a"),
        ('{"o":[]}', "field o: is an array, not an object"),
    ],
)
def test_a_field_that_an_exact_type_lacks_is_a_bad_row(text, reason, before, more):
    if not more and '"m"' in text:
        reason = f"field m: {NO_FIELD}; it has name, o, l"
    if more:
        reason = reason.replace("name, o, l", "name, o, l, m")
    good = [b'{"name":1,"o":{"a":1},"l":[{"b":"1"},null]}'] * before
    kind = pa.struct([*EXACT, *more])
    read = exact_decoder(NO_SCHEMA, kind).decode(pa.array([*good, text.encode(), None, b"{}"]))
    assert (read.bad_rows.tolist(), read.reasons) == ([before], (reason,))
    assert read.values.is_valid().to_pylist() == [True] * before + [False, False, True]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.decimal128(5, 2), "32768"),
        (pa.decimal128(5, 2), "1e4"),
        (pa.decimal128(5, 2), "-99999"),
        (pa.decimal128(5, 2), '"32768"'),
        (pa.decimal128(38, 18), "1" * 22),
        (pa.decimal128(38, 10), "12345678901234567890123456789012345678"),
        (pa.decimal128(38, 38), "9" * 38),
    ],
)
def test_a_decimal_that_does_not_fit_is_bad_among_many_as_alone(
    kind: pa.DataType, text: str
) -> None:
    """Arrow's reader scales what it has checked, and lets the result wrap around."""
    for others in (0, 100):
        payloads = [b'{"a":0.25}'] * others + [b'{"a":%s}' % text.encode()]
        found = run(pa.struct([("a", kind)]), *payloads)
        assert found.bad_rows.tolist() == [others]


NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,120})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
NUMBER_TYPES = (pa.float32(), pa.float64(), pa.int64(), pa.decimal128(20, 5), pa.string())
NEAR_LARGEST = "340282356779733661637539395458142568447"  # of floats, and rounded down to it
BETWEEN = "1.000000059604644775390625"  # two floats


@pytest.mark.slow
@given(text=NUMBERS)
@example("-0")
@example("-0 ")
@example(NEAR_LARGEST)
@example(f"-{NEAR_LARGEST}.{'9' * 100}")
@example("340282356779733661637539395458142568448")
@example("3.4028235677973366e38")
@example("1.7976931348623159e308")
@example(f"{BETWEEN}{'0' * 90}1")
@example("7.0064923216240854e-46")
@settings(max_examples=examples(40))
def test_a_number_is_among_many_what_it_is_alone(text: str) -> None:
    for kind in NUMBER_TYPES:
        good = b'{"a":"x"}' if kind == pa.string() else b'{"a":1}'
        payload = b'{"a":%s}' % text.encode()
        alone = run(pa.struct([("a", kind)]), payload)
        among = run(pa.struct([("a", kind)]), *[good] * decode.MIN_BLOCK_ROWS, payload)
        assert among.reasons == alone.reasons
        assert repr(among.values[-1].as_py()) == repr(alone.values[0].as_py())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-0", -0.0),
        (NEAR_LARGEST, 3.4028234663852886e38),
        (f"{BETWEEN}{'0' * 90}1", 1.0000001192092896),
        ("3.4028235677973367e38", "field f: is a number too large for a float"),
    ],
)
def test_floats_are_rounded_once(text: str, value: float | str) -> None:
    assert repr(value_in(pa.float32(), text)) == repr(value)
