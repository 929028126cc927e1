"""Messages that contain themselves: to a depth, by name, as text and bytes, and written back.
All is held against protobuf's runtime; OpenTelemetry's messages are those of its package."""

from __future__ import annotations

import base64
import importlib
import json
import random
from functools import cache
from importlib import metadata
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor as Kind

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema, ValueRowError
from tests.schemas.protobuf import oracle

PERSON = Schema(
    PROTOBUF, 'syntax = "proto3"; message Person { string name = 1; Person friend = 2; }'
)
ALL = Schema(
    PROTOBUF,
    """
    syntax = "proto3";
    package rec;
    import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto";
    message Node {
      int64 id = 1;
      repeated Node items = 2;
      map<string, Node> by = 3;
      oneof kind { Node one = 4; Other other = 5; string text = 6; }
      google.protobuf.Struct json = 7;
      google.protobuf.Timestamp at = 8;
      repeated double numbers = 9;
      map<int32, bytes> blobs = 10;
      Level level = 11;
      optional uint64 big = 12;
    }
    message Other { Node back = 1; Other again = 2; }
    enum Level { NONE = 0; LOW = 1; }
    """,
)
GROUPS = Schema(
    PROTOBUF,
    """
    syntax = "proto2";
    package rec;
    message G { optional int32 a = 1; optional group Inner = 2 { optional G g = 1; }
                repeated group More = 3 { optional Inner inner = 1; } }
    message R { required int32 id = 1; optional R next = 2; }
    """.replace("optional Inner inner", "optional G.Inner inner"),
)


def wrong_or_value(text: Any) -> Any:
    """JSON text as its value; what is none as it is."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


def normal(value: Any, kind: pa.DataType) -> Any:
    """As `oracle.comparable`, with JSON texts as values."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {column.name: normal(value[column.name], column.type) for column in kind}
    if pa.types.is_map(kind):
        pairs = [(key, normal(item, kind.item_type)) for key, item in value]
        return sorted(pairs, key=lambda pair: repr(pair[0]))
    if pa.types.is_list(kind):
        return [normal(item, kind.value_type) for item in value]
    if pa.types.is_string(kind):
        return repr(wrong_or_value(value))
    return oracle.comparable(value, kind)


def filled(rng: random.Random, descriptor: Any, depth: int) -> Any:
    """A message with some fields, as deep as that."""
    message = message_factory.GetMessageClass(descriptor)()
    if descriptor.full_name == "google.protobuf.Struct":
        message["k"] = rng.choice([1.5, "v", True])
        return message
    for field in descriptor.fields:
        inner = field.message_type
        if oracle.is_map(field):
            value = inner.fields_by_name["value"]
            target = getattr(message, field.name)
            for number in range(rng.randrange(3)):
                key = (
                    f"k{number}" if inner.fields_by_name["key"].type == Kind.TYPE_STRING else number
                )
                if value.message_type is None:
                    target[key] = scalar(rng, value)
                elif depth:
                    target[key].CopyFrom(filled(rng, value.message_type, depth - 1))
        elif inner is not None:
            if depth and rng.random() < 0.6:
                made = [filled(rng, inner, depth - 1) for _ in range(1 + rng.randrange(2))]
                if field.is_repeated:
                    getattr(message, field.name).extend(made)
                else:
                    getattr(message, field.name).CopyFrom(made[0])
        elif field.is_repeated:
            getattr(message, field.name).extend(scalar(rng, field) for _ in range(rng.randrange(3)))
        elif field.is_required or rng.random() < 0.7:
            setattr(message, field.name, scalar(rng, field))
    return message


def scalar(rng: random.Random, field: Any) -> Any:
    if field.full_name == "google.protobuf.Timestamp.nanos":
        return rng.randrange(1_000_000) * 1000
    if field.type == Kind.TYPE_STRING:
        return rng.choice(["", "x", 'ä"\n', "long " * 9])
    if field.type == Kind.TYPE_BYTES:
        return rng.choice([b"", b"\x00\xff", b"bytes" * 5])
    if field.type == Kind.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == Kind.TYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    if field.type in (Kind.TYPE_DOUBLE, Kind.TYPE_FLOAT):
        return rng.choice([0.0, 0.25, -1.5e10])
    return rng.choice([0, 1, 300, 70_000])


def check(schema: Schema, name: str, messages: list[Any], kind: pa.DataType) -> None:
    """What is read is what the runtime says; what is written back is the same messages."""
    truth = oracle.Oracle(schema, name)
    indexes = protobuf.message_indexes(schema, name)
    payloads = [message.SerializeToString(deterministic=True) for message in messages]
    decoder = protobuf.decoder(schema, None, kind, message=indexes)
    assert decoder.type == kind
    got = decoder.decode(pa.array(payloads, pa.binary()))
    got.values.validate(full=True)
    assert got.reasons == ()
    for row, payload in zip(oracle.rows_of(got.values), payloads, strict=True):
        expected = truth.value(payload, kind)
        assert normal(row, kind) == normal(expected, kind), payload
    written = protobuf.encoder(schema, kind, message=indexes).encode(got.values)
    for payload, message in zip(written.to_pylist(), messages, strict=True):
        assert truth.message.FromString(payload) == truth.message.FromString(
            message.SerializeToString()
        )


# --- to a depth ---------------------------------------------------------------------------------


def test_a_depth_is_counted_as_spark_counts_it() -> None:
    """The examples of Spark's ProtobufOptions, with a string where Spark leaves the field out."""
    first = pa.struct([("name", pa.string()), ("friend", pa.string())])
    second = pa.struct([("name", pa.string()), ("friend", first)])
    assert protobuf.arrow_type(PERSON, depth=1) == first
    assert protobuf.arrow_type(PERSON, depth=2) == second
    assert protobuf.arrow_type(PERSON, depth=3).field("friend").type == second
    kind = protobuf.arrow_type(ALL, depth=1)
    text = pa.field("element", pa.string(), nullable=False)
    assert kind.field("items").type == pa.list_(text)
    assert kind.field("by").type.item_type == pa.string()
    assert kind.field("other").type == pa.struct([("back", pa.string()), ("again", pa.string())])
    assert kind.field("json").type == pa.string()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
def test_what_is_deeper_is_json_text(depth: int) -> None:
    descriptor = oracle.Oracle(ALL, "rec.Node").descriptor
    messages = [filled(random.Random(seed), descriptor, 5) for seed in range(20)]
    check(ALL, "rec.Node", messages, protobuf.arrow_type(ALL, depth=depth))


def test_the_text_is_protobuf_s_json() -> None:
    truth = oracle.Oracle(ALL, "rec.Node")
    message = truth.message(id=1)
    message.one.id = 1 << 40
    message.one.level = 1
    message.one.at.seconds = 5
    kind = protobuf.arrow_type(ALL, depth=1)
    decoder = protobuf.decoder(ALL, None, kind)
    text = decoder.decode(pa.array([message.SerializeToString()])).values[0].as_py()["one"]
    assert text == '{"id":"1099511627776","at":"1970-01-01T00:00:05Z","level":"LOW"}'
    assert json_format.Parse(text, truth.message()) == message.one


def test_without_a_depth_the_error_names_the_ways() -> None:
    expected_error = (
        r"field friend: message Person contains itself, which no Spark type can\. Set "
        r"recursive\.fields\.max\.depth to .*, or in \.schema\(…\) .*"
        r"string \(its JSON text\) or binary$"
    )
    with pytest.raises(SchemaError, match=expected_error):
        protobuf.arrow_type(PERSON)


@pytest.mark.slow
def test_a_depth_that_makes_too_large_a_type() -> None:
    fields = " ".join(f"M f{n} = {n + 1};" for n in range(20))
    wide = Schema(PROTOBUF, f'syntax = "proto3"; message M {{ {fields} }}')
    assert protobuf.arrow_type(wide, depth=3).num_fields == 20
    expected_error = (
        r"with recursive\.fields\.max\.depth=5 .* more than 20,000 fields\. Set a lower depth"
    )
    with pytest.raises(SchemaError, match=expected_error):
        protobuf.arrow_type(wide, depth=5)
    chain = " ".join(f"message M{n} {{ map<string, M{(n + 1) % 6}> m = 1; }}" for n in range(6))
    deep = Schema(PROTOBUF, f'syntax = "proto3"; {chain}')
    with pytest.raises(SchemaError, match=r"depth=15 .* levels\. Set a lower depth"):
        protobuf.arrow_type(deep, depth=15)


def test_names_that_would_be_in_each_text() -> None:
    long = "n" * 300
    for body in (f"string {long} = 1;", f"E e = 1; enum E {{ {long} = 0; }}"):
        text = Schema(PROTOBUF, f'syntax = "proto3"; message M {{ {body} M m = 2; }}')
        with pytest.raises(SchemaError, match=r"name of more than 255"):
            protobuf.arrow_type(text, depth=1)


# --- by name ------------------------------------------------------------------------------------


def test_fields_are_named_to_a_depth() -> None:
    id_ = ("id", pa.int64())
    inner = pa.struct([id_, ("items", pa.list_(pa.struct([id_, ("one", pa.struct([id_]))])))])
    kind = pa.struct([id_, ("other", pa.struct([("back", inner)])), ("one", inner)])
    descriptor = oracle.Oracle(ALL, "rec.Node").descriptor
    messages = [filled(random.Random(seed), descriptor, 5) for seed in range(40)]
    truth = oracle.Oracle(ALL, "rec.Node")
    payloads = [message.SerializeToString() for message in messages]
    got = protobuf.decoder(ALL, None, kind).decode(pa.array(payloads))
    assert got.reasons == ()
    for row, payload in zip(oracle.rows_of(got.values), payloads, strict=True):
        assert normal(row, kind) == normal(truth.value(payload, kind), kind)
    written = protobuf.encoder(ALL, kind).encode(got.values)
    again = protobuf.decoder(ALL, None, kind).decode(written)
    assert again.values.equals(got.values)


def test_the_recurring_field_as_text_and_as_bytes() -> None:
    truth = oracle.Oracle(ALL, "rec.Node")
    messages = [filled(random.Random(seed), truth.descriptor, 4) for seed in range(30)]
    payloads = [message.SerializeToString() for message in messages]
    text = pa.struct([("items", pa.list_(pa.string())), ("one", pa.string())])
    raw = pa.struct(
        [
            ("items", pa.list_(pa.binary())),
            ("one", pa.binary()),
            ("other", pa.binary()),
            ("by", pa.map_(pa.string(), pa.binary())),
        ]
    )
    got = protobuf.decoder(ALL, None, raw).decode(pa.array(payloads))
    assert got.reasons == ()
    for row, message in zip(got.values.to_pylist(), messages, strict=True):
        if message.HasField("one"):
            assert truth.message.FromString(row["one"]) == message.one
        assert [truth.message.FromString(each) for each in row["items"]] == list(message.items)
        assert {key: truth.message.FromString(each) for key, each in row["by"]} == message.by
    for kind in (text, raw):
        values = protobuf.decoder(ALL, None, kind).decode(pa.array(payloads)).values
        written = protobuf.encoder(ALL, kind).encode(values)
        for payload, message in zip(written.to_pylist(), messages, strict=True):
            parsed = truth.message.FromString(payload)
            assert parsed.items == message.items and parsed.one == message.one
    # What does not contain itself stays a struct.
    with pytest.raises(OptionError, match=r"field at is a google\.protobuf\.Timestamp"):
        protobuf.decoder(ALL, None, pa.struct([("at", pa.string())]))


def test_a_list_and_a_map_as_one_text() -> None:
    text = Schema(
        PROTOBUF,
        'syntax = "proto3"; message T { int32 id = 1; repeated T all = 2; map<string, T> by = 3; '
        "map<int32, T> of = 4; map<bool, T> if = 5; }",
    )
    truth = oracle.Oracle(text, "T")
    messages = [filled(random.Random(seed), truth.descriptor, 4) for seed in range(30)]
    payloads = [message.SerializeToString() for message in messages]
    names = ("all", "by", "of", "if")
    kind = pa.struct([("id", pa.int32()), *((name, pa.string()) for name in names)])
    got = protobuf.decoder(text, None, kind).decode(pa.array(payloads))
    assert got.reasons == ()
    for row, message in zip(got.values.to_pylist(), messages, strict=True):
        shown = json_format.MessageToDict(message, preserving_proto_field_name=True)
        empty: Any = {"all": []}
        for name in names:
            assert json.loads(row[name]) == shown.get(name, empty.get(name, {}))
    written = protobuf.encoder(text, kind).encode(got.values)
    for payload, message in zip(written.to_pylist(), messages, strict=True):
        assert truth.message.FromString(payload) == message
    for name, wrong in (
        *(("all", "{}"), ("by", "[]"), ("of", '{"x": {}}'), ("if", '{"1": {}}')),
        *(("of", '{"2147483648": {}}'), ("all", '[{"id": 1e400}]'), ("all", r'[{"\ud800": 1}]')),
    ):
        with pytest.raises(ValueRowError, match=f"field {name}: not the JSON of"):
            rows = pa.array([{name: wrong}], pa.struct([(name, pa.string())]))
            protobuf.encoder(text, rows.type).encode(rows)
    with pytest.raises(OptionError, match="becomes an array, not binary"):
        protobuf.decoder(text, None, pa.struct([("all", pa.binary())]))


def test_texts_and_bytes_that_are_not_of_the_message() -> None:
    for kind, wrong, expected_error in (
        (pa.string(), "{", "field friend: not the JSON of a Person"),
        (pa.string(), '{"nme": "x"}', "no field named"),
        (pa.string(), '{"name": 5}', "field friend: not the JSON of a Person"),
        (pa.binary(), b"\x0a\x05x", "field friend: not the bytes of a Person"),
    ):
        given = pa.struct([("name", pa.string()), ("friend", kind)])
        rows = pa.array([{"name": "a", "friend": None}, {"name": "b", "friend": wrong}], given)
        with pytest.raises(ValueRowError, match=expected_error) as caught:
            protobuf.encoder(PERSON, given).encode(rows)
        assert caught.value.row == 1


# --- groups, required fields, damage, other schemas -----------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_groups_that_contain_themselves(depth: int) -> None:
    descriptor = oracle.Oracle(GROUPS, "rec.G").descriptor
    messages = [filled(random.Random(seed), descriptor, 6) for seed in range(30)]
    check(GROUPS, "rec.G", messages, protobuf.arrow_type(GROUPS, depth=depth))


def test_a_required_field_is_missing_in_the_text() -> None:
    indexes = protobuf.message_indexes(GROUPS, "rec.R")
    kind = protobuf.arrow_type(GROUPS, message=indexes, depth=1)
    decoder = protobuf.decoder(GROUPS, None, kind, message=indexes)
    payloads = [b"\x08\x01\x12\x02\x08\x02", b"\x08\x01\x12\x00", b"\x08\x01"]
    got = decoder.decode(pa.array(payloads))
    assert got.bad_rows.tolist() == [1]
    assert "field next: " in got.reasons[0] and "required" in got.reasons[0]
    assert [row and row["next"] for row in got.values.to_pylist()] == ['{"id":2}', None, None]


def test_a_message_that_protobuf_s_json_cannot_write_is_a_bad_row() -> None:
    text = Schema(
        PROTOBUF,
        'syntax = "proto3"; import "google/protobuf/duration.proto"; '
        "message M { google.protobuf.Duration wait = 1; M next = 2; }",
    )
    decoder = protobuf.decoder(text, None, protobuf.arrow_type(text, depth=1))
    signs_differ = b"\x0a\x0d\x08\x01\x10" + b"\xff" * 9 + b"\x01"  # 1 s and -1 ns
    got = decoder.decode(pa.array([b"\x12\x0f" + signs_differ, b"\x12\x02\x0a\x00"]))
    assert got.bad_rows.tolist() == [0]
    assert got.reasons[0].startswith("field next: this M cannot be written as JSON: ")
    assert got.values.to_pylist() == [None, {"wait": None, "next": '{"wait":"0s"}'}]


def test_messages_deeper_than_the_runtime_reads() -> None:
    payload = b"\x0a\x01x"
    for _ in range(90):
        payload = b"\x12" + varint(len(payload)) + payload
    decoder = protobuf.decoder(PERSON, None, protobuf.arrow_type(PERSON, depth=1))
    deeper = payload
    for _ in range(2000):
        deeper = b"\x12" + varint(len(deeper)) + deeper
    got = decoder.decode(pa.array([payload, deeper, b"\x0a\x01y"]))
    assert got.bad_rows.tolist() == [1]
    assert "field friend" in got.reasons[0]


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_damage_in_text_is_the_runtime_s_value_or_a_bad_row() -> None:
    truth = oracle.Oracle(ALL, "rec.Node")
    payload = filled(random.Random(3), truth.descriptor, 3).SerializeToString()[:200]
    changed = [
        payload[:at] + bytes([byte]) + payload[at + 1 :]
        for at in range(len(payload))
        for byte in (0, 1, 0x12, 0x7F, 0xFF)
    ]
    kind = protobuf.arrow_type(ALL, depth=1)
    got = protobuf.decoder(ALL, None, kind).decode(pa.array(changed))
    bad = set(got.bad_rows.tolist())
    for row, value in enumerate(oracle.rows_of(got.values)):
        if row in bad:
            assert value is None
            continue
        expected = truth.value(changed[row], kind)
        assert expected is not oracle.BAD
        assert normal(value, kind) == normal(expected, kind)


def test_text_of_an_older_writer() -> None:
    newer = Schema(
        PROTOBUF,
        'syntax = "proto3"; message Person { string name = 1; Person friend = 2; int32 age = 3; }',
    )
    kind = protobuf.arrow_type(newer, depth=1)
    payload = b"\x0a\x01a\x12\x03\x0a\x01b"
    got = protobuf.decoder(PERSON, newer, kind).decode(pa.array([payload]))
    assert got.values.to_pylist() == [{"name": "a", "friend": '{"name":"b"}', "age": 0}]
    other = Schema(
        PROTOBUF,
        'syntax = "proto3"; message Person { N n = 9; Person friend = 2; N name = 1; } '
        "message N { int32 a = 1; }",
    )
    wanted = pa.struct([("friend", pa.string())])
    with pytest.raises(SchemaError, match=r"Person\.name \(number 1\) is string in the writer"):
        protobuf.decoder(PERSON, other, wanted)


# --- OpenTelemetry ------------------------------------------------------------------------------


@cache
def telemetry() -> dict[str, Any]:
    """The package's file descriptors, by their names."""
    files = [str(path) for path in metadata.files("opentelemetry-proto") or ()]
    modules = [path[:-3].replace("/", ".") for path in files if path.endswith("_pb2.py")]
    found = [importlib.import_module(module).DESCRIPTOR for module in modules]
    return {file.name: file for file in found}


@cache
def telemetry_schema(name: str) -> Schema:
    """A file as a registry has it, its imports as references."""
    file = telemetry()[name]
    text = base64.b64encode(file.serialized_pb).decode()
    return Schema(
        PROTOBUF,
        text,
        tuple(
            (dependency.name, telemetry_schema(dependency.name)) for dependency in file.dependencies
        ),
    )


def telemetry_messages() -> list[tuple[str, str]]:
    return [
        (file, name)
        for file in sorted(telemetry())
        for name, _ in protobuf.file_of(telemetry_schema(file)).messages()
    ]


@pytest.mark.slow
def test_all_messages_of_opentelemetry() -> None:
    recursive = 0
    for file, name in telemetry_messages():
        schema = telemetry_schema(file)
        indexes = protobuf.message_indexes(schema, name)
        try:
            protobuf.arrow_type(schema, message=indexes)
        except SchemaError as error:
            assert "contains itself" in str(error)
            recursive += 1
        descriptor = oracle.Oracle(schema, name).descriptor
        messages = [filled(random.Random(f"{name}{seed}"), descriptor, 9) for seed in range(2)]
        check(schema, name, messages, protobuf.arrow_type(schema, message=indexes, depth=2))
    assert len(telemetry_messages()) == 60 and recursive > 30


def test_the_protos_of_protobuf_itself() -> None:
    """descriptor.proto: proto2, with messages in themselves and extension ranges."""
    file = descriptor_pb2.DESCRIPTOR
    schema = Schema(PROTOBUF, base64.b64encode(file.serialized_pb).decode())
    name = "google.protobuf.FileDescriptorProto"
    indexes = protobuf.message_indexes(schema, name)
    kind = protobuf.arrow_type(schema, message=indexes, depth=2)
    messages = [
        descriptor_pb2.FileDescriptorProto.FromString(item.serialized_pb)
        for item in (file, *telemetry().values())
    ]
    payloads = [message.SerializeToString() for message in messages]
    decoder = protobuf.decoder(schema, None, kind, message=indexes)
    got = decoder.decode(pa.array(payloads))
    assert got.reasons == ()
    assert [row["name"] for row in got.values.to_pylist()] == [item.name for item in messages]
    # Absent fields with a default of their own are written as such.
    written = protobuf.encoder(schema, kind, message=indexes).encode(got.values)
    assert decoder.decode(written).values.equals(got.values)
