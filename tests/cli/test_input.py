"""Lines of text as columns, in chunks of any size, against a simple loop."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pyarrow as pa
import pytest

from sparkkafka.cli.files import (
    BadRowError,
    LineFormat,
    json_batches,
    line_batches,
    read_table_file,
    whole_lines,
    with_constants,
    with_value,
)
from sparkkafka.errors import OptionError


def rows(batches):
    return [row for rows_ in batches for row in rows_.batch.to_pylist()]


def plain(text: bytes, form: LineFormat) -> list[tuple[bytes | None, bytes | None]]:
    lines = text.split(form.delimiter)
    if not lines[-1]:
        lines.pop()  # there is no record after the last delimiter
    found = []
    for line in lines:
        key, value = None, line
        if form.skips_empty and not line:
            continue
        if form.key_delimiter is not None and form.key_delimiter in line:
            key, _, value = line.partition(form.key_delimiter)
        if form.empty_is_null:
            key, value = key or None, value or None
        found.append((key, value))
    return found


def test_lines_are_the_same_as_in_a_simple_loop():
    rng = random.Random(3)
    for _ in range(400):
        form = LineFormat(
            delimiter=rng.choice([b"\n", b"\0", b";;", b"ab"]),
            key_delimiter=rng.choice([None, b":", b"::", b"a"]),
            empty_is_null=rng.random() < 0.3,
            skips_empty=rng.random() < 0.3,
        )
        text = bytes(rng.choices(b"ab:;\n\0x", k=rng.randrange(40)))
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(4)))
        edges = [0, *cuts, len(text)]
        chunks = [text[a:b] for a, b in pairwise(edges) if a < b]
        found = [(row["key"], row["value"]) for row in rows(line_batches(chunks, form))]
        assert found == plain(text, form), (text, chunks, form)


def test_a_line_is_yielded_immediately():
    """`tail -f | sparkkafka write` must not wait for a full block."""
    requests = []

    def chunks():
        for chunk in (b"one\ntw", b"o\n", b"three"):
            requests.append(chunk)
            yield chunk

    batches = line_batches(chunks(), LineFormat())
    assert next(batches).batch.column("value").to_pylist() == [b"one"]
    assert requests == [b"one\ntw"]
    assert rows(batches) == [{"key": None, "value": b"two"}, {"key": None, "value": b"three"}]


def test_a_text_without_lines_is_refused(monkeypatch):
    monkeypatch.setattr("sparkkafka.cli.files.MAX_LINE_BYTES", 10)
    with pytest.raises(OptionError, match="--delimiter right"):
        list(whole_lines([b"12345678", b"9012"], b"\n"))


JSON_ROWS = [
    {"key": "k", "payload": "v", "partition": 3, "ts": 1700000000000},
    {"key": None, "payload": ""},
    {"payload": "ü", "ts": 5, "tstype": "create", "offset": 7, "broker": 0, "topic": "t"},
]


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [{"value": "x"}],
        [{"payload": None}],
        [{"payload": None, "value": "x"}],
        [{"payload": {"a": [1, "ä"]}, "key": 5}],
    ],
)
def test_json_lines_together_and_one_by_one_are_the_same(extra):
    text = b"".join(json.dumps(row).encode() + b"\n" for row in JSON_ROWS + extra)
    found = rows(json_batches([text], keeps_partitions=True))
    times = [row["timestamp"] and int(row["timestamp"].timestamp() * 1000) for row in found]
    assert [(r["key"], r["value"], r["partition"]) for r in found[:3]] == [
        (b"k", b"v", 3),
        (None, b"", None),
        (None, "ü".encode(), None),
    ]
    assert times[:3] == [1700000000000, None, 5]
    if extra == [{"value": "x"}]:
        assert found[3]["value"] == b"x"
    elif extra and extra[0].get("payload", "") is None:
        assert found[3]["value"] is None
    elif extra:
        assert (found[3]["key"], json.loads(found[3]["value"])) == (b"5", {"a": [1, "ä"]})


@pytest.mark.parametrize("more", [b"", b'{"payload":"b","headers":["h","v"]}'])
def test_json_in_json_lines_keeps_its_digits(more):
    lines = b'{"payload": {"n": 1.10, "e": [1e999]}, "key": 2.50, "partition": 3.0}\n' + more
    row = rows(json_batches([lines], keeps_partitions=True))[0]
    assert (row["key"], row["value"], row["partition"]) == (b"2.50", b'{"n":1.10,"e":[1e999]}', 3)


def test_headers_of_json_lines():
    lines = b'{"payload":"a","headers":["h","v","n",null]}\n{"payload":"b","headers":{"o":"w"}}'
    found = rows(json_batches([lines], keeps_partitions=False))
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in found] == [
        [("h", b"v"), ("n", None)],
        [("o", b"w")],
    ]
    assert "partition" not in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "[1]",
        "{}",
        '{"payload":"a","partition":-1}',
        '{"payload":"a","ts":"now"}',
        '{"payload":"a","headers":["h"]}',
        '{"payload":"a","headers":[1,"v"]}',
        r'{"payload":"a","headers":["\ud800","v"]}',
        "null",
        '{"payload":"a"}null',
        '{"payload":"a"} null {"payload":"b"}',
        '{"payload":"a"}{"payload":"b"}',
        '{"payload":"a"}\0{"payload":"b"}',
        '{"payload":"a","more":NaN}',
        '{"payload":-Infinity}',
        '{"payload":"a","ts":9223372036854776}',
        '{"payload":"a","ts":9223372036854775807}',
        '{"payload":"a","ky":"b"}',
    ],
)
def test_lines_before_a_bad_json_line_are_yielded(line):
    text = f'{{"payload":"good"}}\n\n{{"payload":\n"two"}}\n{line}\n'.encode()
    for bad, number in ((text.replace(b":\n", b":").replace(b"two", b"2"), 4), (text, 3)):
        batches = json_batches([bad[:5], bad[5:]], keeps_partitions=True)
        found = next(batches)
        assert found.batch.column("value").to_pylist() == [b"good", b"2"][: number - 2]
        assert list(found.numbers)[: len(found.batch)] == [1, 3][: number - 2]
        with pytest.raises(BadRowError, match="it is not a record in JSON") as caught:
            next(batches)
        assert caught.value.number == number


def test_text_that_crashes_arrow_s_reader_is_an_error_or_nothing():
    for text in (b"null", b"null\n" * 200, b"\nnull\n", b"\n", b"\r\n"):
        try:
            assert rows(json_batches([text], keeps_partitions=False)) == []
        except BadRowError as error:
            assert "is not a record in JSON" in str(error)


def test_json_lines_with_crlf_and_with_nan_in_strings():
    text = b'{"payload":"a}n"} \r\n{"payload":"is: NaN, Inf"}\r\n{"payload":"c"}'
    found = rows(json_batches([text], keeps_partitions=False))
    assert [row["value"] for row in found] == [b"a}n", b"is: NaN, Inf", b"c"]


def test_bytes_that_are_not_utf_8_are_kept():
    (row,) = rows(json_batches([b'{"payload":"\xff\x80","key":"\xfe"}\n'], keeps_partitions=False))
    assert (row["key"], row["value"]) == (b"\xfe", b"\xff\x80")


def test_of_csv_only_an_empty_field_without_quotes_is_null(tmp_path):
    path = tmp_path / "rows.csv"
    texts = ["N/A", "#N/A", "nan", "NULL", "NA", '""', ""]
    path.write_text("key,value\n" + "".join(f"k,{word}\n" for word in texts))
    found = [row["value"] for row in rows(read_table_file(path))]
    assert found == [*texts[:5], "", None]


def test_two_columns_of_one_name_are_an_error(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("key,value,value\nk,a,b\n")
    with pytest.raises(OptionError, match=r"rows\.csv has two columns 'value': rename or drop one"):
        list(read_table_file(path))


@pytest.mark.parametrize("broken", ["b", "b,2,3"])
@pytest.mark.parametrize("good_rows", [0, 1, 1_200_000])  # the last more than a block of 8 MiB
def test_a_row_of_csv_with_another_number_of_columns_is_named(tmp_path, good_rows, broken):
    path = tmp_path / "rows.csv"
    path.write_text("key,value\n" + "abc,def\n" * good_rows + f"{broken}\nc,4\nd\n")
    before = 0
    with pytest.raises(BadRowError, match="and that of the header 2") as caught:
        for batch, _ in read_table_file(path):
            before += batch.num_rows
    assert (before, caught.value.number) == (good_rows, good_rows + 1)


def test_constants():
    batch = pa.RecordBatch.from_pylist([{"key": b"a", "value": b"1"}, {"key": None, "value": b"2"}])
    found = with_constants(batch, b"k", (("h", b"v"), ("n", None)), 4).to_pylist()
    headers = [{"key": "h", "value": b"v"}, {"key": "n", "value": None}]
    assert found == [
        {"key": b"a", "value": b"1", "headers": headers, "partition": 4},
        {"key": b"k", "value": b"2", "headers": headers, "partition": 4},
    ]


def test_a_value_of_all_other_columns():
    batch = pa.RecordBatch.from_pylist(
        [{"key": "k", "id": 1, "name": "x", "partition": 2, "next_offset": 7}]
    )
    assert with_value(batch).to_pylist() == [
        {"key": "k", "partition": 2, "next_offset": 7, "value": {"id": 1, "name": "x"}}
    ]
    with pytest.raises(OptionError, match="no column value"):
        with_value(pa.RecordBatch.from_pylist([{"key": "k"}]))
