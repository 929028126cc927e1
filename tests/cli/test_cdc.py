"""`read --envelope` and `cdc check`, on records as Debezium's connectors write them."""

from __future__ import annotations

import base64
import io
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sparkkafka.cli.changes import ChangeLines, parse_change, python_values
from sparkkafka.client import Producer
from sparkkafka.errors import BadRecordError
from tests.support.registry_server import RegistryServer

TOPIC = "shop.public.orders"
SOURCE = {"version": "3.6.1.Final", "connector": "postgresql", "name": "shop", "lsn": 7}
PLACEHOLDER = "__debezium_unavailable_value"
DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}


def envelope(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    found = SOURCE | {"schema": "public", "table": "orders"} | source
    return {"op": op, "before": before, "after": after, "source": found, "ts_ms": 1}


def send(fake: Any, *records: tuple[Any, Any], topic: str = TOPIC, **configs: str) -> None:
    """Write (key, value) with None as null and other values as JSON; partitions by the key."""
    fake.create_topic(topic, partitions=1, configs=configs)
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for key, value in records:
            texts = (None if part is None else json.dumps(part) for part in (value, key))
            producer.send(topic, *texts)


def lines(command: Any, topic: str = TOPIC) -> list[str]:
    out: str = command("read", topic, "-e", "--envelope", "debezium").out
    return out.splitlines()


def findings(command: Any, topic: str = TOPIC, *options: str) -> dict[str, tuple[str, str]]:
    run = command("cdc", "check", topic, "--json", *options, code=None)
    found = {row["about"]: (row["mark"], row["text"]) for row in run.json}
    assert run.code == int(any(mark == "!!" for mark, _ in found.values()))
    return found


def test_each_kind_of_record_has_a_line(fake, command):
    row = {"id": 1, "city": "Bonn", "note": None}
    send(
        fake,
        ({"id": 1}, envelope("r", None, row)),
        ({"id": 1}, envelope("u", row, row | {"city": "Kiel\x1b[2J"})),
        ({"id": 1}, envelope("u", None, row | {"note": PLACEHOLDER})),
        ({"id": 1}, envelope("u", row, row | {"note": PLACEHOLDER})),
        ({"id": 1}, envelope("d", row)),
        ({"id": 1}, None),
        (None, envelope("t")),
        ({"prefix": "p"}, {"op": "m", "source": SOURCE, "message": {"prefix": "p", "content": ""}}),
        ({"id": "9:1"}, {"status": "BEGIN", "id": "9:1", "event_count": None}),
        ({"serverName": "shop"}, {"ts_ms": 5}),
        ({"databaseName": "shop"}, {"databaseName": "shop", "ddl": "CREATE TABLE t"}),
    )
    assert lines(command) == [
        '0/0  r  id=1  city="Bonn"',
        '0/1  u  id=1  city: "Bonn" → "Kiel\\u001b[2J"',
        '0/2  u  id=1  city="Bonn"  note=(not sent)',
        "0/3  u  id=1",
        '0/4  d  id=1  city="Bonn"',
        "0/5  tombstone  id=1",
        "0/6  truncate  public.orders",
        '0/7  message  prefix="p"  content=""',
        '0/8  transaction  id="9:1"  status="BEGIN"',
        '0/9  heartbeat  serverName="shop"  ts_ms=5',
        '0/10  schema_change  databaseName="shop"  ddl="CREATE TABLE t"',
    ]


def test_the_schema_beside_a_value_is_not_shown(fake, command):
    value = {"schema": {"type": "struct"}, "payload": envelope("c", None, {"id": 1, "n": 2})}
    send(fake, ({"schema": {}, "payload": {"id": 1}}, value))
    assert lines(command) == ["0/0  c  id=1  n=2"]


def test_values_have_the_types_of_the_schema_beside_them(fake, command):
    def column(field: str, type: str, name: str, **parameters: str) -> dict[str, Any]:
        return {"field": field, "type": type, "name": name, "parameters": parameters}

    decimal = "org.apache.kafka.connect.data.Decimal"
    fields = [
        column("id", "int32", "io.debezium.time.Date"),
        column("price", "bytes", decimal, scale="2"),
        column("at", "int64", "io.debezium.time.MicroTimestamp"),
        {"field": "raw", "type": "bytes"},
        {"field": "tags", "type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
    ]
    fields = [{**field, "optional": True} for field in fields]
    row = {"type": "struct", "fields": fields, "optional": True}
    parts = [{**row, "field": "after"}, {"field": "op", "type": "string"}]
    schema = {"type": "struct", "fields": parts}
    at = 1_700_000_000_123_456
    after = {
        "id": 1,
        "price": "BNI=",
        "at": at,
        "raw": "AP8=",
        "tags": {"a": "b"},
    }
    plain = {name: after[name] for name in ("id", "price")}
    key = {"schema": {**row, "fields": fields[:1]}, "payload": {"id": 1}}
    unsent = {**after, "raw": base64.b64encode(PLACEHOLDER.encode()).decode()}
    send(
        fake,
        *(
            (key, {"schema": schema, "payload": {"op": "c", "after": row}})
            for row in (after, unsent)
        ),
        ({"id": 1}, {"op": "c", "after": plain}),
    )
    typed = 'price="12.34"  at="2023-11-14 22:13:20.123456"'
    assert lines(command) == [
        f'0/0  c  id="1970-01-02"  {typed}  raw="AP8="  tags={{"a": "b"}}',
        f'0/1  c  id="1970-01-02"  {typed}  raw=(not sent)  tags={{"a": "b"}}',
        '0/2  c  id=1  price="BNI="',
    ]


def test_the_row_is_a_document_or_has_columns_of_any_name():
    row = {"schema": "a", "payload": "b"}
    assert parse_change(None, envelope("c", None, row)).after == row
    assert parse_change(None, envelope("c", None, '{"_id": 1}')).after == {"_id": 1}


def test_a_terminal_gets_colours(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    writer = ChangeLines(skips_bad=False)
    before, after = {"id": 1, "n": 2}, {"id": 1, "n": 3}
    change = parse_change(b'{"id": 1}', json.dumps(envelope("u", before, after)).encode())
    (line,) = ["  ".join(writer._parts("0/0", change))]
    assert "\x1b[33m\x1b[1mu\x1b[0m" in line
    assert "n: \x1b[31m2\x1b[0m → \x1b[32m3\x1b[0m" in line
    monkeypatch.setenv("NO_COLOR", "1")
    (plain,) = ["  ".join(ChangeLines(skips_bad=False)._parts("0/0", change))]
    assert plain == "0/0  u  id=1  n: 2 → 3"


def test_a_record_that_is_no_change_is_an_error_with_its_location(fake, command):
    send(fake, (None, {"id": 1}), ({"id": 2}, envelope("c", None, {"id": 2})))
    read = ("read", TOPIC, "-e", "--envelope", "debezium")
    run = command(*read, code=1)
    assert f"topic {TOPIC} partition 0 offset 0: the value: it is not a record" in run.error
    bad, good = command(*read, "--on-bad", "skip").out.splitlines()
    assert bad.startswith("0/0  bad  the value: it is not a record")
    assert good == "0/1  c  id=2"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"a", b"{}", "the key is not JSON"),
        (None, b"[]", "not a JSON object"),
        (None, b"x", "not JSON"),
        (None, b"[" * 100_000, "not JSON"),
        (None, b'{"op": ["c"], "after": {}}', r"field op: \["),
    ],
)
def test_what_is_no_change(key, value, reason):
    with pytest.raises(BadRecordError, match=reason):
        parse_change(key, value)


@pytest.mark.parametrize("option", ["--json", "-K:", "--output=f.csv"])
def test_other_shapes_are_refused_with_the_envelope(command, option):
    run = command("read", "t", "--envelope", "debezium", option, code=2)
    assert "--envelope has lines of its own" in run.error


def test_an_unknown_envelope_is_refused(command):
    assert "--envelope is debezium" in command("read", "t", "--envelope", "x", code=2).error


# --- cdc check -----------------------------------------------------------------------------------


def test_nothing_hurts(fake, command):
    field = {
        "field": "price",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    }
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [field]}]}

    def typed(*parts: Any) -> dict[str, Any]:
        return {"schema": schema, "payload": envelope(*parts)}

    row = {"id": 1, "price": "AA=="}
    send(
        fake,
        ({"id": 1}, typed("c", None, row)),
        ({"id": 1}, typed("u", row, row)),
        ({"id": 1}, typed("d", row)),
        ({"id": 1}, None),
        **{"cleanup.policy": "compact"},
    )
    fake.create_topic("__debezium-heartbeat.shop")
    fake.create_topic("shop.transaction")
    found = findings(command)
    assert {mark for mark, _ in found.values()} == {"ok"}
    assert found["records"][1] == "3 row, 1 tombstone (c 1, u 1, d 1)"
    assert found["envelope"][1] == "Debezium (postgresql 3.6.1.Final), JSON, of public.orders"
    assert found["keys"][1].startswith("id; ")
    assert found["tombstones"][1] == "after 1 of 1 delete"
    assert found["decimals"][1] == "exact: price"
    assert found["heartbeats"][1] == "__debezium-heartbeat.shop"


def test_what_hurts(fake, command):
    row = {"id": 1, "note": "a"}
    send(
        fake,
        (None, envelope("c", None, row)),
        (None, envelope("u", None, row | {"note": PLACEHOLDER}, table="others")),
        (None, envelope("d", {"id": 1, "note": None})),
    )
    found = findings(command)
    hurts = {about: text for about, (mark, text) in found.items() if mark == "!!"}
    assert "public.orders, public.others" in hurts["envelope"]
    assert hurts["keys"].startswith("3 of 3 rows have none")
    assert hurts["tombstones"].startswith("none after 1 delete")
    assert "note (1)" in hurts["updates"]
    assert "the JSON has no schema" in hurts["types"]
    assert "also the last one of a row" in hurts["retention"]
    assert "a compacted topic would refuse" in hurts["retention"]
    assert "heartbeat.interval.ms" in hurts["heartbeats"]


def test_keys_in_several_partitions_hurt(fake, command):
    fake.create_topic(TOPIC, partitions=2)
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        for partition in (0, 1):
            value = json.dumps({"op": "c", "after": {"id": 1}, "source": {}})
            producer.send(TOPIC, value, b'{"id": 1}', partition=partition)
    found = findings(command)
    assert "changes of 1 key are in several partitions" in found["keys"][1]
    assert found["envelope"][1] == "Debezium, JSON (the source names no table)"


@pytest.mark.parametrize(
    ("value", "mark", "text"),
    [
        ({"id": 1, "__deleted": "false"}, "!!", "ExtractNewRecordState"),
        ({"database": "d", "table": "t", "type": "insert", "data": {}}, "??", "envelope=maxwell"),
        (
            {"database": "d", "table": "t", "type": "INSERT", "data": [], "isDdl": False},
            "??",
            "envelope=canal",
        ),
        ({"id": 1}, "!!", "1 record of 1 is not Debezium's. The first is partition 0 offset 0"),
    ],
)
def test_another_envelope_is_named(fake, command, value, mark, text):
    send(fake, (None, value))
    found, words = findings(command)["envelope"]
    assert found == mark
    assert text in words


def test_an_empty_topic_cannot_be_checked(fake, command):
    send(fake)
    assert findings(command).keys() == {"records"}


def test_a_larger_count_is_advised_where_it_can_help(fake, command):
    change = ({"id": 1}, envelope("c", None, {"id": 1}))
    send(fake, change)
    send(fake, change, ({"serverName": "shop"}, {"ts_ms": 5}), topic="beats")
    found = findings(command)
    assert found["updates"] == found["deletes"] == ("??", "the topic has none")
    assert "cleanup.policy=compact if no record will lack a key" in found["retention"][1]
    found = findings(command, "beats", "--count=1")
    assert found.keys() == {"records", "rows"}
    assert found["rows"] == ("??", "none were read: give a larger --count")


def test_a_topic_with_truncates_is_not_to_be_compacted(fake, command):
    send(fake, ({"id": 1}, envelope("c", None, {"id": 1})), (None, envelope("t")))
    assert "a compacted topic would refuse" in findings(command)["retention"][1]


def test_avro_has_the_types_of_the_database(fake, command):
    """Also what neither Python nor Spark's decimals have: infinity, and money."""
    decimal = {"type": "bytes", "logicalType": "decimal", "scale": 2}
    decimal["connect.name"] = "org.apache.kafka.connect.data.Decimal"
    digits = {"scale": "2", "connect.decimal.precision": "64"}
    columns = {
        "id": "int",
        "born": DATE,
        "since": DATE,
        "price": {**decimal, "precision": 9},
        "cash": {**decimal, "precision": 64, "connect.parameters": digits},
        "ratio": "double",
    }
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    row = {"type": "record", "name": "Value", "fields": fields}
    parts = {"before": ["null", row], "after": ["null", "Value"], "op": "string"}
    fields = [{"name": name, "type": kind} for name, kind in parts.items()]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    values = [
        {"id": 1, "born": days, "since": 0, "price": Decimal(2), "cash": Decimal(3), "ratio": ratio}
        for days, ratio in ((10957, 0.5), (-2_147_472_692, math.nan))
    ]
    parsed = fastavro.parse_schema(schema)
    with RegistryServer() as registry:
        schema_id = registry.add(f"{TOPIC}-value", json.dumps(schema))
        key_id = registry.add(f"{TOPIC}-key", '"int"')
        fake.create_topic(TOPIC)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            for value in values:
                out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
                out.seek(0, io.SEEK_END)
                fastavro.schemaless_writer(out, parsed, {"after": value, "op": "c"})
                producer.send(TOPIC, out.getvalue(), b"\0" + key_id.to_bytes(4, "big") + b"\2")
        flags = ("--schema-registry", registry.url)
        read = ("read", TOPIC, "-e", "--envelope", "debezium", "--value-format", "avro", *flags)
        rest = 'since="1970-01-01"  price="2.00"  cash="3.00"'
        assert command(*read).out.splitlines() == [
            f'0/0  c  key=1  id=1  born="2000-01-01"  {rest}  ratio=0.5',
            f'0/1  c  key=1  id=1  born="infinity"  {rest}  ratio=NaN',
        ]
        found = findings(command, TOPIC, *flags)
    assert found["records"] == ("ok", "2 row (c 2)")
    assert found["decimals"][0] == "!!"
    assert found["decimals"][1].startswith("cash: more digits")


def test_a_table_without_a_primary_key_has_no_subject_of_keys(fake, command):
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}
    fields = [{"name": "after", "type": ["null", row]}, {"name": "op", "type": "string"}]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    fake.create_topic(TOPIC)
    with RegistryServer() as registry:
        out = io.BytesIO(b"\0" + registry.add(f"{TOPIC}-value", json.dumps(schema)).to_bytes(4))
        out.seek(0, io.SEEK_END)
        change = {"after": {"id": 1}, "op": "c"}
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), change)
        with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
            producer.send(TOPIC, out.getvalue())
        flags = ("--schema-registry", registry.url)
        read = ("read", TOPIC, "-e", "--envelope", "debezium", "--value-format", "avro", *flags)
        assert command(*read).out.splitlines() == ["0/0  c  id=1"]
        mark, text = findings(command, TOPIC, *flags)["keys"]
        assert mark == "!!"
        assert "1 of 1 row have none" in text
        run = command(*read, "--key-format", "avro", code=1)
    assert f"no subject '{TOPIC}-key'" in run.error


def test_only_the_times_that_python_lacks_become_texts():
    instant = pa.timestamp("us", "UTC")
    types = {"at": instant, "list": pa.list_(instant), "map": pa.map_(pa.string(), pa.date32())}
    infinity = 9_223_372_036_825_200_000
    row = {"at": -9_223_372_036_832_400_000, "list": [infinity, 2**62, 0], "map": [("x", -(10**6))]}
    assert python_values(pa.array([row, None], pa.struct(list(types.items())))) == [
        {
            "at": "-infinity",
            "list": ["infinity", "148108-07-06 14:00:27.387904", datetime(1970, 1, 1, tzinfo=UTC)],
            "map": {"x": "-768-02-04"},
        },
        None,
    ]
    days = pa.array([106_751_991, -106_751_992, -106_751_990], pa.int32()).view(pa.date32())
    assert python_values(days) == ["infinity", "-infinity", "-290308-12-23"]


def test_a_record_of_a_registry_needs_its_format(fake, command):
    fake.create_topic(TOPIC)
    with Producer({"bootstrap.servers": fake.bootstrap_servers}) as producer:
        producer.send(TOPIC, b"\0\0\0\0\1a")
    run = command("read", TOPIC, "-e", "--envelope", "debezium", code=1)
    assert "give --value-format avro and --schema-registry" in run.error


def test_placeholders_of_each_type():
    base64_text = base64.b64encode(PLACEHOLDER.encode()).decode()
    codes, uuids = list(PLACEHOLDER.encode()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]
    hstore = json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))
    texts = [PLACEHOLDER, [PLACEHOLDER], {PLACEHOLDER: ""}, PLACEHOLDER.encode(), base64_text]
    for value in [*texts, [base64_text], codes, uuids, hstore]:
        change = parse_change(None, envelope("u", None, {"note": value}))
        assert change.unavailable == ["note"], value
    for value in ("x", None, [], [95], {}, 7):
        assert parse_change(None, envelope("u", None, {"note": value})).unavailable == []
