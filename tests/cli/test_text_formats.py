"""Text of whole columns against kcat's output and a simple loop."""

from __future__ import annotations

import io
import json
import random
import tracemalloc

import pyarrow as pa
import pytest

from sparkkafka.cli.read import StdoutSink
from sparkkafka.cli.text_formats import (
    Nulls,
    escape,
    hex_columns,
    json_format,
    parse_escapes,
    parse_hex,
    template_format,
    text_format,
)
from sparkkafka.client.consumer.record import RECORD_SCHEMA
from sparkkafka.errors import OptionError
from tests.cli.kcat_cases import EVERY_LETTER, VECTORS, batch

KCAT_NULLS = Nulls(b"NULL", and_empty=True)
FORMATS = {
    "text": text_format(),
    "json": json_format({0: 0}),
    "keys": text_format(key_delimiter=b":"),
    "nulls": text_format(nulls=KCAT_NULLS),
    "keys-nulls": text_format(key_delimiter=b"\t", nulls=KCAT_NULLS),
    "delimiter": text_format(b"\x01;\t"),
    "template": template_format(EVERY_LETTER),
    "template-nulls": template_format(r"%k=%s;%h\n", KCAT_NULLS),
}


def printed(format, rows):
    return b"".join(bytes(text) for text in format.texts(rows))


@pytest.mark.parametrize("name", FORMATS)
def test_the_text_is_kcat_s(name):
    assert printed(FORMATS[name], batch()) == (VECTORS / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_a_slice_is_the_same_rows(name):
    """The offsets and bitmaps of slices begin in the middle."""
    rows = batch()
    parts = [printed(FORMATS[name], rows.slice(at, 1)) for at in range(rows.num_rows)]
    assert b"".join(parts) == printed(FORMATS[name], rows)
    assert printed(FORMATS[name], rows.slice(3, 5)) == b"".join(parts[3:8])
    assert printed(FORMATS[name], rows.slice(0, 0)) == b""


def test_escapes_are_the_same_as_in_a_simple_loop():
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}

    def plain(text):
        found = b""
        for code in text:
            escape = short.get(code) or (f"\\u{code:04X}" if code < 32 else None)
            found += bytes([code]) if escape is None else escape.encode()
        return found

    rng = random.Random(5)
    alphabet = [*range(32), 34, 92, 92, 65, 66, 128, 255]
    for _ in range(300):
        rows = [
            rng.choice([None, bytes(rng.choices(alphabet, k=rng.randrange(9)))])
            for _ in range(rng.randrange(1, 8))
        ]
        start = rng.randrange(len(rows))
        column = escape(pa.array(rows, pa.binary()).slice(start))
        assert column.to_pylist() == [None if r is None else plain(r) for r in rows[start:]]


def test_json_lines_are_json():
    rows = batch()
    for line in printed(json_format({0: 7}), rows.slice(0, 8)).splitlines():
        assert json.loads(line)["broker"] == 7


def test_json_columns_stand_in_the_line_as_they_are():
    rows = batch().slice(0, 2)
    texts = pa.array([b'{"a": 1}', None], pa.binary())
    rows = rows.set_column(6, RECORD_SCHEMA.field("value"), texts)
    lines = printed(json_format({}, frozenset({"value"})), rows).splitlines()
    assert [json.loads(line)["payload"] for line in lines] == [{"a": 1}, None]


@pytest.mark.parametrize(
    ("types", "found"),
    [
        ([0, 1, -1], ['"tstype":"create","ts":5', '"tstype":"logappend","ts":6', '"offset":2,"br']),
        ([1, 1, 1], ['"tstype":"logappend"'] * 3),
        ([-1, -1, -1], ['"offset":0,"broker"', '"offset":1,"broker"', '"offset":2,"broker"']),
    ],
)
def test_timestamp_types(types, found):
    rows = [
        {"topic": "t", "partition": 3, "offset": n, "timestamp": (5 + n) * 1000}
        | {"timestamp_type": kind, "next_offset": n + 1}
        for n, kind in enumerate(types)
    ]
    lines = printed(json_format({}), pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)).decode()
    for line, message in zip(lines.splitlines(), found, strict=True):
        assert message in line
        json.loads(line)


def test_hexadecimal_digits():
    rows = hex_columns(batch().slice(8, 1))
    assert printed(text_format(key_delimiter=b" "), rows) == b"fffe 80616263\n"


def test_hexadecimal_digits_are_parsed():
    column = pa.array([b"00", None, b"", b"80fF", b"0", b"ff"]).slice(1)
    good, bad = parse_hex(column)
    assert (good.to_pylist(), bad) == ([None, b"", b"\x80\xff"], 3)
    assert parse_hex(pa.array(["0g", "00"]))[1] == 0
    assert parse_hex(pa.array(["0a", "0b"]))[0].to_pylist() == [b"\n", b"\x0b"]


def test_a_long_row_before_one_that_is_not_hexadecimal_takes_no_more_memory():
    column = pa.array([b"ab" * 2_000_000, b"zz"])
    tracemalloc.start()
    try:
        assert parse_hex(column)[1] == 1
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_header_s_zero_byte_is_kept():
    row = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestamp_type": 0}
    row |= {"headers": [{"key": "h", "value": b"a\0b"}], "next_offset": 1}
    rows = pa.RecordBatch.from_pylist([row], RECORD_SCHEMA)
    assert printed(template_format("%h"), rows) == b"h=a\0b"


def test_a_topic_s_name_is_escaped():
    row = {"topic": 'a"b', "partition": 0, "offset": 0, "timestamp": 0, "timestamp_type": 0}
    rows = pa.RecordBatch.from_pylist([row | {"next_offset": 1}], RECORD_SCHEMA)
    assert json.loads(printed(json_format({}), rows))["topic"] == 'a"b'


@pytest.mark.parametrize("template", ["%b", "%", "%x %t", r"\q", "a\\"])
def test_an_unknown_letter_is_named(template):
    with pytest.raises(OptionError, match="-f: there is no"):
        template_format(template)


@pytest.mark.parametrize(
    ("text", "found"),
    [(r"\n\r\t\\\0", b"\n\r\t\\\0"), (r"\x41\xfF\x9!", b"A\xff\t!"), ("é", "é".encode())],
)
def test_escapes_of_delimiters(text, found):
    assert parse_escapes(text, "-D") == found


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters_of_records():
    value = "é\t\x1b]0;pwn\x07\x1b[2J\u009b31m\u202e\r\n".encode() + b"\xff"
    rows = batch().slice(0, 1).set_column(6, "value", pa.array([value]))
    terminal, pipe = Terminal(), io.BytesIO()
    for out in (terminal, pipe):
        StdoutSink(text_format(), out).write(rows)
    assert pipe.getvalue() == value + b"\n"
    assert terminal.getvalue().decode() == (
        "é\t\\x1b]0;pwn\\x07\\x1b[2J\\x9b31m\\u202e\\r\n\\xff\n"
    )
