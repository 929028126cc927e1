"""Payloads made to harm: time and memory stay in proportion to their bytes. In a process of its
own, so that a crash is a failed test and memory is measured."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support import forks

IMPORTS = """
import resource
import pyarrow as pa
from sparkkafka.schemas.json.format import decoder
from sparkkafka.schemas.values import Schema
"""
CHILD = """
kind = pa.struct([("a", pa.{kind}), ("l", pa.list_(pa.struct([("x", pa.int64())])))])
rest = {rest}
reader = decoder(Schema("json", ""), None, kind, rest=rest)
reader.decode(pa.array([b'{{"a":null}}'] * 100, pa.binary()))
payload = {payload}
rows = pa.array([b'{{"a":null}}'] * 100 + [payload], pa.binary())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = reader.decode(rows)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert set(read.bad_rows.tolist()) <= {{100}}, read.bad_rows
assert read.values[:100].null_count == 0
assert all(len(reason) < 300 for reason in read.reasons)
print(len(payload) // 1024, grown)
"""

BOMBS = {
    "nested arrays": 'b\'{"x":\' + b"[" * 555_555 + b"]" * 555_555 + b"}"',
    "open arrays": 'b"[" * 1_111_111',
    "nested objects": "b'{\"a\":' * 166_666",
    "nested in a list": "b'{\"l\":[' * 166_666",
    "digits": "b'{\"a\":' + b'9' * 1_111_111 + b'}'",
    "digits of a fraction": "b'{\"a\":0.' + b'3' * 1_111_111 + b'}'",
    "digits of an exponent": "b'{\"a\":1e' + b'9' * 1_111_111 + b'}'",
    "zeros": "b'{\"a\":' + b'1' + b'0' * 1_111_111 + b'e-1111111}'",
    "absurd exponent": "b'{\"a\":1e1000000000}'",
    "unwanted digits": "b'{\"x\":' + b'9' * 1_111_111 + b'}'",
    "a string's quotes": "b'{\"x\":\"' + b'\\\\\\\\\"' * 333_333 + b'}'",
    "backslashes": "b'{\"x\":\"' + b'\\\\\\\\' * 555_555 + b'\"}'",
    "surrogates": "b'{\"x\":\"' + b'\\\\ud83d\\\\ude00' * 266_666 + b'\\\\ud800\"}'",
    "items": "b'{\"l\":[' + b'{},' * 333_333 + b'{}]}'",
    "names": "b'{' + b'\"a\":1,' * 177_777 + b'\"a\":2}'",
    "closing": "b'{\"x\":\"' + b'}' * 1_111_111 + b'\"}'",
    "spaces": "b'{' + b' ' * 1_111_111 + b'}'",
    "spaces after": "b'{}' + b' ' * 1_111_111 + b'n'",
}


DIGITS = [*(name for name in BOMBS if "digit" in name), "zeros"]
KINDS = ["float64()", "decimal128(38, 10)", "string()"]


def ended(bombs: Iterable[str], *kinds: str, rest: bool = False) -> dict[str, forks.Ended]:
    codes = {
        f"{bomb} {kind}": CHILD.format(payload=BOMBS[bomb], kind=kind, rest=rest)
        for kind in kinds
        for bomb in bombs
    }
    return forks.run(IMPORTS, codes)


def check(results: dict[str, forks.Ended]) -> None:
    assert {name: each.text[-2000:] for name, each in results.items() if each.code} == {}
    for name, each in results.items():
        size, grown = map(int, each.text.split())
        # Python's objects for {} in a list are the most: 64 bytes of 3, and 8 for the list's place
        assert grown < 40 * size + 20_000, (name, size, grown)


@pytest.mark.slow
def test_bombs() -> None:
    check(ended(BOMBS, "int64()"))


@pytest.mark.slow
def test_bombs_of_numbers() -> None:
    check(ended(DIGITS, *KINDS))


@pytest.mark.slow
def test_bombs_with_the_rest_asked_for() -> None:
    check(ended(["items", "names", "digits", "nested arrays"], "int64()", rest=True))


COMMAS = """
reader = decoder(Schema("json", ""), None, pa.struct([("m", pa.map_(pa.string(), pa.string()))]))
reader.decode(pa.array([b'{"m":{"a":"1"}}'] * 100, pa.binary()))
rows = pa.array([b'{"m":{"a":"%s"}}' % (b"1," * 4000)] * 300, pa.binary())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = reader.decode(rows)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert read.values.null_count == 0
print(rows.nbytes // 1024, grown)
"""


MISFITS = """
kind = pa.struct([("a", pa.list_(pa.int64()))])
reader = decoder(Schema("json", ""), None, kind, rest=True)
reader.decode(pa.array([b'{"a":["1"]}'] * 100, pa.binary()))
rows = pa.array([b'{"a":[%s"x"]}' % (b"1," * 2000)] * 2000, pa.binary())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = reader.decode(rows)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert len(read.rest) == 2000
print(rows.nbytes // 1024, grown)
"""


@pytest.mark.slow
def test_many_commas_in_maps_and_arrays() -> None:
    check(forks.run(IMPORTS, {"strings of maps": COMMAS, "arrays with misfits": MISFITS}))
