"""Decoders of envelopes in JSON: what a record means does not depend on the others of its batch."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkkafka.schemas.envelopes.decode import Envelope, decoder, sample_type
from sparkkafka.schemas.json import format as json_format
from sparkkafka.schemas.json.normalizer import JsonNormalizer
from sparkkafka.schemas.values import Schema
from tests.schemas.envelopes.debezium_records import (
    connect_envelope,
    connect_field,
    payload,
    with_schema,
)

ROW = pa.struct([("id", pa.int32()), ("a", pa.string())])
COLUMNS = [connect_field("id", "int32"), connect_field("a", "string")]
FLAT_SCHEMA = {
    "type": "struct",
    "fields": [*COLUMNS, connect_field("__op", "string"), connect_field("__lsn", "int64")],
}
GOOD = {"id": 1, "a": "x"}
WHOLE = with_schema(connect_envelope(COLUMNS), payload("c", None, GOOD))
TRANSACTION = {"status": "END", "id": "571:53195829", "event_count": 2}
TRANSACTION_SCHEMA = {
    "type": "struct",
    "name": "io.debezium.connector.common.TransactionMetadataValue",
    "fields": [
        connect_field("status", "string"),
        connect_field("id", "string"),
        connect_field("event_count", "int64"),
    ],
}
PREFIX = WHOLE[: WHOLE.index(b'"payload":') + len(b'"payload":')]

Result = tuple[Any, str | None]
"""The value of a record, and why it is bad."""


def decode(form: str, texts: list[bytes | None], row: pa.DataType = ROW) -> list[Result]:
    """Decode records with a new decoder. `form`: an envelope, or "key" for keys."""
    fields = [("op", pa.string()), ("kind", pa.string()), ("ts_ms", pa.int64())]
    unavailable = pa.list_(pa.field("element", pa.string()))
    change = pa.struct([*fields, ("unavailable", unavailable)])
    target = row if form == "key" else pa.struct([("row", row), ("change", change)])
    if form == "canal":
        target = pa.list_(pa.field("element", target))
    envelope = Envelope("debezium" if form == "key" else form, unwraps=form != "key")
    made = decoder(json_format, envelope, Schema("json", ""), None, target)
    decoded = made.decode(pa.array(texts, pa.binary()))
    decoded.values.validate(full=True)
    reasons = dict(zip(decoded.bad_rows.tolist(), decoded.reasons, strict=True))
    return [(value, reasons.get(row)) for row, value in enumerate(decoded.values.to_pylist())]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (WHOLE[:-1] + b"]", None),
        (WHOLE[:-1], None),
        (WHOLE + b"\x0c", None),
        (PREFIX + b"nullX", None),
        (PREFIX + b"null", None),
        (PREFIX + b"}", None),
        (PREFIX + b'null,"x":1}', None),
        (PREFIX + b"null\n}\n", "tombstone"),
        (WHOLE + b"\n", "row"),
    ],
)
def test_what_surrounds_a_payload_is_json(text: bytes, kind: str | None) -> None:
    [alone] = decode("debezium", [text])
    assert decode("debezium", [WHOLE, text])[1] == alone
    value, reason = alone
    assert (reason is None) == (kind is not None)
    assert value is None if kind != "row" else value["change"]["kind"] == kind


SAMPLES = {
    "debezium": WHOLE,
    "debezium-flat": with_schema(FLAT_SCHEMA, GOOD | {"__op": "c", "__lsn": 5}),
    "key": with_schema({"type": "struct", "fields": COLUMNS}, GOOD),
    "maxwell": json.dumps({"type": "insert", "ts": 1, "data": GOOD}).encode(),
    "canal": json.dumps({"type": "INSERT", "ts": 1, "isDdl": False, "data": [GOOD]}).encode(),
    "ogg": json.dumps({"op_type": "I", "current_ts": "", "pos": "1", "after": GOOD}).encode(),
}


@pytest.mark.parametrize("form", SAMPLES)
def test_a_damaged_record_is_the_same_alone_and_behind_others(form: str) -> None:
    sample, random_ = SAMPLES[form], random.Random(form)
    texts: list[bytes | None] = []
    for _ in range(50):
        start = sample.find(b'"payload"') if random_.random() < 0.8 else 0
        at = random_.choice([len(sample) - 1, random_.randrange(max(start, 0), len(sample))])
        stop = at + random_.randrange(2)
        new = random_.choice(
            [b"", b"", b"}", b"]", b" ", b"\n", b"\x0c", b",", b"0", b"null", b'"']
        )
        tail = random_.choice([b"", b"", b"", b"}", b"\n", b"null"])
        texts.append(sample[:at] + new + sample[stop:] + tail)
    alone = [decode(form, [text])[0] for text in texts]
    assert len({reason is None for _, reason in alone}) == 2
    for others in ([sample], [sample] * 70):
        together = decode(form, [*others, *texts])[len(others) :]
        for text, expected, found in zip(texts, alone, together, strict=True):
            assert (text, found) == (text, expected)


@pytest.mark.parametrize(
    ("source", "position"),
    [
        ({"lsn": 23, "txId": 5, "sequence": '["21","22"]'}, f"{23:020}"),
        ({"lsn": None, "sequence": '["21","22"]'}, f"{22:020}"),  # of an incremental snapshot
        ({"lsn": None, "sequence": '["21",null]'}, None),
        ({"file": "binlog.7", "pos": 4, "row": 1}, f"{7:020}:{4:020}:{1:010}"),
        (
            {"change_lsn": "27:ac:2", "commit_lsn": "27:ac:3", "event_serial_no": 2},
            f"{'27:ac:2':0>20}:{2:010}",
        ),
        ({"scn": "2868546"}, f"{2868546:020}"),
        (
            {"scn": "2868546", "rs_id": " 0x00009c.00001100.0010", "ssn": 3},
            f"{2868546:020}: 0x00009c.00001100.0010:{3:010}",
        ),
        ({"ord": 3, "ts_ms": 9}, f"{9:020}:{3:010}"),
    ],
)
@pytest.mark.parametrize("form", ["debezium", "debezium-flat"])
def test_positions_of_each_connector_are_read_many_at_once(
    form: str, source: dict[str, Any], position: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are read one by one take four times as long."""
    monkeypatch.setattr(JsonNormalizer, "read", None)
    record: dict[str, Any] = {"op": "c", "source": source, "before": None, "after": GOOD}
    if form == "debezium-flat":
        record = {"__op": "c", **{f"__source_{name}": source[name] for name in source}, **GOOD}
    change = pa.struct([("position", pa.string())])
    target = pa.struct([("row", ROW), ("change", change)])
    made = decoder(json_format, Envelope(form, unwraps=True), Schema("json", ""), None, target)
    values = made.decode(pa.array([json.dumps(record).encode()] * 70, pa.binary())).values
    assert values.to_pylist() == [{"row": GOOD, "change": {"position": position}}] * 70


@pytest.mark.parametrize(
    ("text", "ts_ms"),
    [
        ("2024-01-01 00:00:00.123999", 1_704_067_200_123),
        ("1969-12-31T23:59:59.9999", -1),
        ("1600-01-01 00:00:00.5", -11_676_095_999_500),
        ("9999-12-31 00:00:00", 253_402_214_400_000),
        ("2024-02-30 00:00:00", None),
        ("2024-13-01 00:00:00", None),
        ("2024-01-01 25:00:00", None),
        ("2024-01-01 00:00:60", None),
        ("", None),
    ],
)
def test_a_time_of_golden_gate(text: str, ts_ms: int | None) -> None:
    record = {"op_type": "I", "current_ts": text, "after": GOOD}
    good = {**record, "current_ts": "1970-01-01 00:00:00"}
    values = decode("ogg", [json.dumps(item).encode() for item in (good, record)])
    assert [reason for _, reason in values] == [None, None]
    assert [value["change"]["ts_ms"] for value, _ in values] == [0, ts_ms]


@pytest.mark.parametrize(
    ("form", "text", "kind"),
    [
        ("debezium", b'{"ts_ms": 5}', "heartbeat"),
        ("debezium-flat", b' {"ts_ms" : 5 }\n', "heartbeat"),
        ("debezium-flat", with_schema(None, {"ts_ms": 5}), "heartbeat"),
        ("debezium-flat", b'{"id": 1, "ts_ms": 5}', "row"),
        ("debezium-flat", b'{"ts_ms": 5, "id": 1}', "row"),
        ("debezium", b'{"ts_ms": 5, "id": 1}', None),
        ("debezium", b'{"id": 1, "ts_ms": 5}', None),
        ("debezium", b'{"status": "END", "id": "7:1", "event_count": 1}', "transaction"),
        ("debezium", b'{"id": 1, "status": "paid"}', None),
        ("debezium", b'{"source": {"a": 1}, "databaseName": "d", "ddl": null}', "schema_change"),
        ("debezium", b'{"source":{},"ts_ms":5,"databaseName":"d"}', "schema_change"),
        ("debezium", b'{"source":{"q":"}\\"{"},"ddl":"d"}', "schema_change"),
        ("debezium", b'{"source": {"ddl": 1}, "id": 3}', None),
        ("debezium", b'{"source":{},"a":{"ddl":1},"b":"\\"ddl\\":"}', None),
        ("debezium", b'{"source": "s", "databaseName": "d"}', None),
        ("debezium", b'{"id": 1, "ddl": "d", "databaseName": "d"}', None),
        ("debezium", b'{"op": "m", "source": {}, "message": {}}', "message"),
        ("debezium-flat", b'{"status": "BEGIN", "id": "7:1", "event_count": null}', "transaction"),
        ("debezium-flat", with_schema(TRANSACTION_SCHEMA, TRANSACTION), "transaction"),
        ("debezium-flat", json.dumps({**TRANSACTION, "a": "x"}).encode(), "transaction"),
        ("debezium-flat", b'{"status": "BEGIN", "id": 1, "ts_ms": 5}', "row"),
        ("debezium-flat", b'{"op": "m", "source": {}, "message": {}}', "message"),
        ("debezium-flat", b'{"op": "m", "ts_ms": 5, "source": {}, "a": {}}', "message"),
        ("debezium-flat", b'{"op": "m", "__op": "u"}', "row"),
        ("debezium-flat", b'{"before": null, "after": {"id": 1}, "op": "c"}', None),
        ("debezium-flat", b'{"source": "s", "op": "sell"}', "row"),
    ],
)
def test_a_row_is_no_other_record_of_debezium(form: str, text: bytes, kind: str | None) -> None:
    [(value, reason)] = decode(form, [text])
    assert (value and value["change"]["kind"]) == kind
    assert (reason is None) == (kind is not None)
    assert value is None or (value["row"] is None) == (kind != "row")


@pytest.mark.parametrize(
    ("name", "column", "value", "expected"),
    [
        ("data.Uuid", pa.string(), "a0ee", "a0ee"),
        ("data.Json", pa.string(), "{}", "{}"),
        ("time.ZonedTime", pa.string(), "10:00:00Z", "10:00:00Z"),
        ("data.Bits", pa.binary(), "AQ==", b"\1"),
        ("time.Year", pa.int32(), 2024, 2024),
        ("time.MicroTime", pa.string(), 1, "00:00:00.000001"),
        ("data.VariableScaleDecimal", pa.string(), {"scale": 2, "value": "MDk="}, "123.45"),
        (
            "data.VariableScaleDecimal",
            pa.decimal128(10, 2),
            {"scale": 1, "value": "MDk="},
            Decimal("1234.5"),
        ),
    ],
)
def test_a_column_s_comment_names_its_semantic_type(
    name: str, column: pa.DataType, value: Any, expected: Any
) -> None:
    """In records without a schema."""
    row = pa.struct([("id", pa.int32()), ("a", column)])
    target = pa.struct([("row", row), ("change", pa.struct([("op", pa.string())]))])
    envelope = Envelope("debezium", unwraps=True, names=(("a", f"io.debezium.{name}"),))
    made = decoder(json_format, envelope, Schema("json", ""), None, target)
    texts = [json.dumps(payload("c", None, {"id": 1, "a": item})) for item in (value, None)]
    decoded = made.decode(pa.array(texts))
    assert [item["row"]["a"] for item in decoded.values.to_pylist()] == [expected, None]


def test_other_types_of_the_fields_of_flattened_rows() -> None:
    """They make their records bad, not the batch."""
    types = ["int64", "string", "int32"]
    times: list[Any] = [5, "x", 7]
    texts = []
    for kind, time in zip(types, times, strict=True):
        fields = [connect_field("__ts_ms", kind), connect_field("__source_lsn", "int64")]
        schema = {"type": "struct", "fields": [*COLUMNS, *fields, connect_field("__lsn", kind)]}
        row = {**GOOD, "__ts_ms": time, "__source_lsn": 3, "__lsn": time}
        texts.append(with_schema(schema, row))
    values = decode("debezium-flat", texts)
    assert [value and value["change"]["ts_ms"] for value, _ in values] == [5, None, 7]
    assert values[1][1] == "field __ts_ms: 'x' is not of type bigint"


def test_a_flattened_row_with_added_fields_is_no_other_record() -> None:
    row = {"status": "END", "id": "7", "ts_ms": 5}
    kind = pa.struct([("status", pa.string()), ("id", pa.string()), ("ts_ms", pa.int64())])
    texts = [json.dumps({**row, "__op": "c"}).encode(), json.dumps(TRANSACTION).encode()]
    values = [value for value, _ in decode("debezium-flat", texts, kind)]
    assert [value["row"] for value in values] == [row, None]
    assert [value["change"]["kind"] for value in values] == ["row", "transaction"]


def test_a_time_of_maxwell_that_is_too_large() -> None:
    times = [1_596_684_883, 2**63 - 1, -1]
    texts = [json.dumps({"type": "insert", "ts": ts, "data": GOOD}).encode() for ts in times]
    values = decode("maxwell", texts)
    assert [value and value["change"]["ts_ms"] for value, _ in values] == [
        *(1_596_684_883_000, None, -1_000),
    ]
    reason = "field change.ts_ms: '9223372036854775807000' is not of type bigint"
    assert [reason for _, reason in values] == [None, reason, None]


@pytest.mark.parametrize(
    ("op", "after", "unavailable"),
    [
        ("U", '{"id": 1}', ["a"]),
        ("U", '{"id": 1, "a": null}', None),
        ("U", '{"id": 1, "a": "x"}', None),
        ("U", '{"id": 1, "\\u0061": null}', None),
        ("U", '{"id": 1, "\\u0062": {"a": 1}, "b": "\\"a\\":"}', ["a"]),
        ("I", '{"id": 1}', None),
    ],
)
def test_a_column_that_an_update_of_golden_gate_omits(
    op: str, after: str, unavailable: list[str] | None
) -> None:
    """COMPRESSUPDATES, the default: an update has the key and the columns that changed."""
    good = b'{"op_type": "U", "before": {"id": 1}, "after": {"id": 1, "a": "y"}}'
    text = good.replace(b'{"id": 1, "a": "y"}', after.encode()).replace(b"U", op.encode(), 1)
    values = decode("ogg", [good, None, text, good])
    assert [reason for _, reason in values] == [None] * 4
    found = [value and value["change"]["unavailable"] for value, _ in values]
    assert found == [None, None, unavailable, None]


@pytest.mark.parametrize("after", ["", ', "after": null', ', "after": {"id": 1}, "after": null'])
def test_an_update_of_golden_gate_without_a_row_is_bad(after: str) -> None:
    good = b'{"op_type": "U", "after": {"id": 1, "a": "y"}}'
    values = decode("ogg", [good, f'{{"op_type": "U"{after}}}'.encode(), good])
    reason = "field after: it is missing, and op is not a delete"
    assert [reason for _, reason in values] == [None, reason, None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int(10) unsigned", pa.int64()),
        ("INTEGER UNSIGNED", pa.int64()),
        ("bigint unsigned", pa.decimal128(20, 0)),
        ("smallint unsigned", pa.int32()),
    ],
)
def test_unsigned_numbers_of_canal(text: str, expected: pa.DataType) -> None:
    record = {"type": "INSERT", "isDdl": False, "data": [{"id": "1"}], "mysqlType": {"id": text}}
    samples = [json.dumps(record).encode()]
    found = sample_type(json_format, Envelope("canal", unwraps=True), samples, [], infers=False)
    assert found is not None
    assert found.value_type.field("row").type.field("id").type == expected
