"""Avro, Protobuf and JSON of read and write: a server with the registry's API, a fake broker."""

from __future__ import annotations

import io
import json
import math
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkkafka.cli.app import main
from sparkkafka.client import Producer
from tests.schemas.small_registry import small_registry

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'
NO_FIELD = "the schema has no such field"
LINES = b'{"id": 1, "note": "a \\"b\\""}\n{"id": 2}\n'


@pytest.fixture
def registry():
    with small_registry() as one:
        yield one


@pytest.fixture
def profile(fake_cluster, monkeypatch, tmp_path):
    """Write a profile for --profile."""

    def write(line: str) -> None:
        (tmp_path / "sparkkafka").mkdir()
        servers = f'bootstrap.servers = "{fake_cluster.bootstrap_servers}"'
        path = tmp_path / "sparkkafka" / "config.toml"
        path.write_text(f"[profiles.all]\n{servers}\n{line}\n")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("SPARKKAFKA_PROFILE", "all")

    return write


@pytest.fixture
def command(fake_cluster, capsysbinary, monkeypatch):
    fake_cluster.create_topic("orders")
    servers = fake_cluster.bootstrap_servers

    class Command:
        err = ""

        def __call__(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> bytes:
            capsysbinary.readouterr()
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            found = main(["-b", servers, "--timeout", "60", *arguments])
            out, err = capsysbinary.readouterr()
            self.err = err.decode()
            assert found == code, f"exit code {found}: {self.err}"
            return out

        def plain(self, *values: bytes) -> None:
            """Write records without a schema."""
            with Producer({"bootstrap.servers": servers}) as producer:
                producer.send_many("orders", values)

    return Command()


@pytest.mark.parametrize(
    ("name", "schema", "kind"), [("avro", ORDER, "AVRO"), ("protobuf", PROTO, "PROTOBUF")]
)
def test_json_lines_through_the_registry_and_back(name, schema, kind, command, registry):
    registry.add("orders-value", schema, kind)
    options = ["--value-format", name, "--schema-registry", registry.url]
    command("write", "orders", *options, stdin=LINES)
    assert command("read", "orders", "-e", "--format", "hex").startswith(b"00000000")
    first, second = map(json.loads, command("read", "orders", "-e", *options).splitlines())
    assert first == {"id": 1, "note": 'a "b"'}
    assert second["id"] == 2
    envelopes = command("read", "orders", "-e", "-J", *options).splitlines()
    assert [json.loads(line)["payload"]["id"] for line in envelopes] == [1, 2]


def test_a_write_without_a_schema_says_how_to_register_one(command, registry):
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    command("write", "orders", *options, stdin=b'{"id": 1}', code=1)
    assert "has no subject 'orders-value'" in command.err
    ways = "set --value-schema and --option auto.register.schemas=true"
    assert f"To register a schema, {ways}\n" in command.err


def test_records_with_encryption_rules_are_not_written(command, registry):
    rule = {"name": "pii", "type": "ENCRYPT", "mode": "WRITEREAD"}
    registry.add("orders-value", ORDER, ruleSet={"domainRules": [rule]})
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    command("write", "orders", *options, code=1, stdin=LINES)
    assert "subject orders-value has rules that encrypt all fields of text and bytes" in command.err
    plain = ["--option", "ignoreEncryptionRules=true"]
    command("write", "orders", *options, *plain, stdin=LINES)
    assert "written in plain text" in command.err
    assert len(command("read", "orders", "-e", *options).splitlines()) == 2
    assert "Encrypted fields stay encrypted" in command.err


NODE = (
    '{"type": "record", "name": "Node", "fields": [{"name": "id", "type": "long"},'
    ' {"name": "next", "type": ["null", "Node"]}]}'
)
NODE_PROTO = 'syntax = "proto3"; message Node { int32 id = 1; Node next = 2; }'
NODE_JSON = '{"properties": {"id": {"type": "integer"}, "next": {"$ref": "#"}}}'


@pytest.mark.parametrize(
    ("name", "schema"), [("avro", NODE), ("protobuf", NODE_PROTO), ("json", NODE_JSON)]
)
def test_a_schema_that_contains_itself(name, schema, command, registry, tmp_path):
    registry.add("orders-value", schema, name.upper())
    options = ["--value-format", name, "--schema-registry", registry.url]
    line = b'{"id": 1, "next": {"id": 2, "next": {"id": 3}}}\n'
    command("write", "orders", *options, stdin=line, code=1)
    assert command.err.rstrip().endswith(
        "Set --option recursive.fields.max.depth to the levels to be read (what is deeper becomes "
        "JSON text)"
    )
    options += ["--option", "recursive.fields.max.depth=2"]
    command("write", "orders", *options, stdin=line)
    path = tmp_path / "read.parquet"
    command("read", "orders", *options, "--output", str(path))
    value = pq.read_table(path).column("value").to_pylist()[0]
    assert value["next"]["id"] == 2
    assert json.loads(value["next"]["next"])["id"] == 3
    # The output can be written again.
    command("write", "orders", *options, stdin=command("read", "orders", "-e", *options))
    command("read", "orders", *options, "--output", str(path))
    first, second = pq.read_table(path).column("value").to_pylist()
    assert first == second == value


def test_the_letters_s_and_r(command, registry):
    registry.add("orders-value", ORDER)
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    command("write", "orders", *options, stdin=LINES)
    out = command("-C", "-t", "orders", "-eq", "-s", "value=avro", "-r", registry.url)
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1, 2]


def test_a_typed_file_and_back(command, registry, tmp_path):
    registry.add("orders-value", ORDER)
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 2], "note": ["x", None]}), rows)
    command(
        "write", "orders", "--input", str(rows), *options, "--option", "use.latest.version=true"
    )
    read = tmp_path / "read.parquet"
    command("read", "orders", *options, "--output", str(read))
    table = pq.read_table(read)
    assert table.column("value").to_pylist() == [{"id": 1, "note": "x"}, {"id": 2, "note": None}]
    command("read", "orders", *options, "--output", str(tmp_path / "a.csv"), code=2)
    assert "not a column of CSV" in command.err


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("versions", [0, 1, 2])
def test_tombstones_in_a_typed_file(versions, ending, command, registry, tmp_path):
    """A null value has no fields, also where the schema's fields are never null."""
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    newer = ORDER.replace('"fields": [', '"fields": [{"name": "n", "type": "long", "default": 5}, ')
    registry.add("orders-value", ORDER)
    if versions:
        command("write", "orders", *options, stdin=b'{"id": 1}\n')
    if versions == 2:
        registry.add("orders-value", newer)
        command("write", "orders", *options, stdin=b'{"id": 2, "n": 6}\n')
    command.plain(None, None)
    path = tmp_path / f"read.{ending}"
    command("read", "orders", *options, "--output", str(path))
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
    old, new = {"id": 1, "note": None}, {"n": 6, "id": 2, "note": None}
    expected = [[], [old], [{"n": 5, **old}, new]][versions]
    assert table.column("value").to_pylist() == [*expected, None, None]
    table.validate(full=True)


@pytest.mark.parametrize(
    ("before", "bad", "text"),
    [
        (2, b'{"id": "x"}', "field id: is a string, not a whole number of 64 bits"),
        (2, b"{}", "field id: null, which the Avro schema does not allow here"),
        (2, b'{"id": 1, "x": 2}', "field x: the schema has no such field; it has id, note"),
        (
            70_000,
            b'{"id": 1, "Note": null}',
            f"field Note: {NO_FIELD}; did you mean note? It has id, note",
        ),
    ],
)
def test_lines_before_one_that_does_not_fit_the_schema_are_written(
    before, bad, text, command, registry
):
    registry.add("orders-value", ORDER)
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    lines = b'{"id": 1}\n' * before + bad + b'\n{"id": 3}\n{"note": 1}\n'
    command("write", "orders", *options, stdin=lines, code=1)
    assert command.err == (
        f"sparkkafka: stdin line {before + 1}: column value: {text}. The {before:,} records "
        f"before it are written to topic orders: continue from stdin line {before + 1}\n"
    )
    assert command("read", "orders", "-e", "-f", ".") == b"." * before


def test_an_unreadable_record_is_named_or_skipped(command, registry):
    registry.add("orders-value", ORDER)
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    command("write", "orders", *options, stdin=LINES)
    command.plain(b"nothing")
    command("read", "orders", "-e", *options, code=1)
    assert "topic orders partition 0 offset 2: column value: " in command.err
    command.plain(b"nothing", b"either")
    out = command("read", "orders", "-e", *options, "--on-bad", "skip")
    assert out == b'{"id":1,"note":"a \\"b\\""}\n{"id":2,"note":null}\n'  # null is not missing
    assert command.err.splitlines()[-1] == (
        "sparkkafka: warning: 3 records that no schema reads were left out"
    )


def test_a_number_that_json_does_not_have_is_named_or_skipped(command, registry):
    number = registry.add("orders-value", '"double"')
    values = (math.nan, 0.5, math.inf)
    frame = b"\0" + number.to_bytes(4, "big")
    command.plain(*(frame + struct.pack("<d", value) for value in values))
    options = ["--value-format", "avro", "--schema-registry", registry.url]
    command("read", "orders", "-e", *options, code=1)
    assert "offset 0: column value: the value is nan, which JSON does not have" in command.err
    assert command("read", "orders", "-e", *options, "--on-bad", "skip") == b"0.5\n"


def test_a_record_of_another_serializer_is_named(command, registry):
    registry.add("orders-value", ORDER)
    command.plain(b"\x1f\x8b\x08" + bytes(20))
    avro = ["--value-format", "avro", "--schema-registry", registry.url]
    command("read", "orders", "-e", *avro, code=1)
    assert "it looks like gzip" in command.err
    assert "column value: some records look like gzip. The producer has compressed" in command.err
    command("read", "orders", "-e", "--value-format", "json", code=1)
    assert "it looks like gzip" in command.err


def test_json_values_stay_as_they_are(command):
    command.plain(b'{"a":\n 1}', b'\x00\x00\x00\x00\x07{"b": 2}')
    out = command("read", "orders", "-e", "-J", "--value-format", "json").splitlines()
    assert [json.loads(line)["payload"] for line in out] == [{"a": 1}, {"b": 2}]
    command.plain(b"{")
    command("read", "orders", "-e", "--value-format", "json", code=1)
    assert "offset 2: column value: it is not JSON" in command.err


def test_json_read_by_a_schema_is_written_back_as_it_was(command, tmp_path):
    """A field that the schema does not type is JSON, not a string that holds JSON."""
    schema = tmp_path / "order.json"
    at = {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"}
    kinds = {"any": {}, "either": {"oneOf": [{"type": "string"}, {"type": "object"}]}, "at": at}
    schema.write_text(json.dumps({"properties": kinds, "required": ["any"]}))
    options = ["--value-format", "json", "--value-schema", str(schema)]
    options += ["--option", "valueFraming=none"]
    line = b'{"any":{"a":[1,null]},"either":"x","at":5}\n'
    command("write", "orders", *options, stdin=line + b'{"any":null}\n')
    shown = command("read", "orders", "-e", *options)
    assert shown == line + b'{"any":null,"either":null,"at":null}\n'
    command("write", "orders", *options, stdin=shown)
    assert command("read", "orders", "-e", *options) == shown * 2


def test_one_profile_serves_calls_that_need_no_registry(command, registry, profile):
    profile(f'schema.registry.url = "{registry.url}"')
    bare = ["--option", "valueFraming=none"]
    command("write", "orders", "--value-format", "string", stdin=b"text\n")
    as_json = ["--value-format", "json", "--no-schema-registry"]
    command("write", "orders", *as_json, *bare, stdin=b'{"a": [1]}\n \n{"b"\n', code=1)
    assert "stdin line 2: column value: the value is empty, which is not JSON" in command.err
    assert "The 1 record before it is written to topic orders: continue from stdin" in command.err
    avro = ["--value-format", "avro", "--value-schema", ORDER, *bare]
    command("write", "orders", *avro, stdin=b'{"id": 5}\n')
    assert command("read", "orders", "-e", "-c", "2", "--key-format", "string") == (
        b'text\n{"a": [1]}\n'
    )
    assert command("read", "orders", "-e", "--from", "-1", *avro) == b'{"id":5,"note":null}\n'
    command("read", "orders", "-e", *as_json, code=1)
    assert "offset 0: column value: it is not JSON" in command.err
    command("write", "orders", "--value-format", "avro", stdin=b'{"id": 5}\n', code=1)
    assert "orders-value" in command.err  # the profile's registry has no such subject


def test_a_schema_of_a_file(command, tmp_path):
    path = tmp_path / "order.avsc"
    path.write_text(ORDER)
    options = ["--value-format", "avro", "--value-schema", str(path)]
    options += ["--option", "valueFraming=none"]
    command("write", "orders", *options, stdin=LINES)
    out = command("read", "orders", "-e", *options).splitlines()
    assert [json.loads(line)["id"] for line in out] == [1, 2]
