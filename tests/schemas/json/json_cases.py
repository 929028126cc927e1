"""Types, values and damaged texts for the tests of JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa

UTC = pa.timestamp("us", "UTC")

FLAT = pa.struct(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("price", pa.float64()),
        ("ratio", pa.float32()),
        ("name", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("at", UTC),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
    ]
)
NESTED = pa.struct(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("grid", pa.list_(pa.list_(pa.int16()))),
        ("lines", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64()), ("at", UTC)]))),
        ("home", pa.struct([("zip", pa.int64()), ("geo", pa.struct([("lat", pa.float64())]))])),
    ]
)
MAPS = pa.struct(
    [
        ("id", pa.int64()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("none", pa.null()),
        ("nones", pa.list_(pa.null())),
        ("sums", pa.map_(pa.string(), pa.list_(pa.decimal128(38, 4)))),
    ]
)
TYPES = [
    FLAT,
    NESTED,
    MAPS,
    pa.list_(pa.int64()),
    pa.int32(),
    pa.string(),
    pa.struct([("id", pa.int64())]),
]

# fmt: off
_NUMBERS = [
    "0", "-0", "1", "-7", "127", "128", "-129", "32768", "2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1.0", "1.5", "1e2", "1E-2", "12.34",
    "12.345", "12.340", "99999999.99", "100000000.00", "1e400", "-1e400", "1e-400",
    "0e999999999999999999999", "3.4028235e38", "3.5e38", "1e39", "99e307", "0.1", "16777217",
    "123456789012345678901234567890", "1e38", "5e-324", "17.976931348623159e307",
    "9007199254740993", "9007199254740993.0", "1" + "0" * 400, "0." + "0" * 400 + "1",
    "1.7976931348623157e308",
]
# fmt: on
# fmt: off
_STRINGS = [
    "", "a", "é", "\U0001f600", "a\nb", '"q"', "\\", "\x00", "NaN", "Info", "x, Infinity",
    ":NaN", "{x}n", "}n{", "} null {", "[{", "null", "2024-01-02", "2024-02-29", "2023-02-29",
    "0001-01-01", "2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123456Z",
    "2024-01-02T03:04:05.123456789+02:30", "2024-01-02 03:04:05", "2024-01-02T03:04:05",
    "2024-01-02t03:04:05z", "2024-02-30T03:04:05Z", "2024-01-31T23:59:59-0800",
    "2024-01-02T03:04Z", "2024-01-02T24:00:00Z", "2024-01-02T23:59:60Z",
    "2024-01-02T03:04:05+24:00", "2024-01-02T03", "2024-01-02Z", "2024-1-2", "aGk=", "aGk",
    "aGk=\n", "a-_=", "====", "1.5", "+1.25", ".5", "1.", "-1e2", "12345678901", "1.234", " 1",
]
# fmt: on


class Raw(str):
    """JSON text that stands for itself."""


def text_of(value: Any, dice: random.Random) -> str:
    """JSON in one of its spellings."""
    gap = dice.choice(["", "", "", " ", "\n", "\r\n\t"])
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        pairs = [f"{text_of(name, dice)}{gap}:{gap}{text_of(v, dice)}" for name, v in value.items()]
        if pairs and dice.random() < 0.03:
            pairs.append(dice.choice(pairs))  # the same name twice
        return "{" + gap + f"{gap},{gap}".join(pairs) + gap + "}"
    if isinstance(value, list):
        return "[" + gap + f"{gap},{gap}".join(text_of(each, dice) for each in value) + gap + "]"
    return json.dumps(value, ensure_ascii=dice.random() < 0.5)


def value_of(kind: pa.DataType, dice: random.Random, misfits: float) -> Any:
    """A value that mostly fits a type."""
    types = pa.types
    if dice.random() < 0.08:
        return None
    if dice.random() < misfits:
        return anything(dice, 2)
    if types.is_struct(kind):
        names = [each for each in kind if dice.random() < 0.8]
        if dice.random() < 0.2:
            dice.shuffle(names)
        value = {each.name: value_of(each.type, dice, misfits) for each in names}
        if dice.random() < 0.2:
            value[dice.choice(["extra", "n", "id2", "Ω"])] = anything(dice, 3)
        return value
    if types.is_map(kind):
        keys = dice.sample(["a", "b", "k\n", "é", ""], dice.randrange(4))
        return {key: value_of(kind.item_type, dice, misfits) for key in keys}
    if types.is_list(kind):
        return [value_of(kind.value_type, dice, misfits) for _ in range(dice.randrange(4))]
    if types.is_boolean(kind):
        return dice.random() < 0.5
    if types.is_integer(kind):
        return dice.randrange(-128, 128)
    if types.is_floating(kind):
        return dice.choice([dice.random(), dice.randrange(1000), -dice.random() * 1e10])
    if types.is_decimal(kind):
        return Raw(f"{dice.randrange(-1000, 1000)}.{dice.randrange(100):02}")
    if types.is_date(kind):
        return f"20{dice.randrange(100):02}-01-{dice.randrange(1, 32):02}"
    if types.is_timestamp(kind):
        zone = dice.choice(["Z", "+01:00", "-0930", "+05"]) if kind.tz else ""
        fraction = dice.choice(["", ".5", ".123456", ".1234567"])
        return f"2024-02-{dice.randrange(1, 30):02}T12:34:{dice.randrange(60):02}{fraction}{zone}"
    if types.is_binary(kind):
        return dice.choice(["", "aGk=", "AAAA", "/+8="])
    if types.is_null(kind):
        return None
    return dice.choice(_STRINGS)


def anything(dice: random.Random, levels: int) -> Any:
    which = dice.randrange(8 if levels else 5)
    if which == 0:
        return Raw(dice.choice(_NUMBERS))
    if which == 1:
        return dice.choice(_STRINGS)
    if which == 2:
        return dice.choice([True, False, None])
    if which == 3:
        return dice.randrange(1000)
    if which == 4:
        return dice.choice(
            [{}, [], Raw("NaN"), Raw("-Infinity"), Raw('"\\ud800"'), Raw('"\\ud83d\\ude00"')]
        )
    if which == 5:
        return [anything(dice, levels - 1) for _ in range(dice.randrange(4))]
    return {
        dice.choice(["a", "id", "n", "é"]): anything(dice, levels - 1)
        for _ in range(dice.randrange(3))
    }


# fmt: off
_PIECES = [
    b"null", b"}", b"{", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b" ", b"\0", b"NaN",
    b"Infinity", b"\xff", b"\xed\xa0\x80", b"\xc3", b"1", b"-", b".", b"e5", b"}null{", b"}{",
    b'"}', b"{}", b"\t", b"\xef\xbb\xbf", b"\\u0000", b"\\ud800", b"/**/", b"'", b"true",
]
# fmt: on


def damaged(payload: bytes, dice: random.Random) -> bytes:
    """A payload with a few bytes changed."""
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        at = dice.randrange(len(payload) + 1)
        to = min(len(payload), at + dice.choice([0, 0, 1, 1, 2, 8, 1000]))
        which = dice.randrange(6)
        if which == 0:
            payload = payload[:at] + payload[to:]
        elif which == 1:
            payload = payload[:to] + payload[at:]
        elif which == 2 and payload:
            at %= len(payload)
            payload = (
                payload[:at] + bytes([payload[at] ^ 1 << dice.randrange(8)]) + payload[at + 1 :]
            )
        elif which == 3:
            payload = payload[:at] + bytes([dice.randrange(256)]) + payload[to:]
        else:
            payload = payload[:at] + dice.choice(_PIECES) + payload[to:]
    return payload


def payload_of(kind: pa.DataType, dice: random.Random, *, misfits: float, damage: float) -> bytes:
    text = text_of(value_of(kind, dice, misfits), dice)
    if dice.random() < 0.1:
        text = dice.choice([" ", "\n", "\r\n"]) + text + dice.choice(["", "\n", " \t"])
    payload = text.encode()
    return damaged(payload, dice) if dice.random() < damage else payload
