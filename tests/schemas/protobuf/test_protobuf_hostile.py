"""Schemas that attack: names that are options or paths, descriptors that protoc never makes."""

from __future__ import annotations

import base64
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import KafkaError, SchemaError
from sparkkafka.schemas import schema_errors
from sparkkafka.schemas.protobuf import compiler
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema

EMPTY = Schema(PROTOBUF, 'syntax = "proto3"; message Empty { bool a = 1; }')


def descriptor(*imports: str, **public: Any) -> Schema:
    file = descriptor_pb2.FileDescriptorProto(
        name="a.proto", syntax="proto3", dependency=[*imports, "confluent/meta.proto"], **public
    )
    file.message_type.add(name="M").field.add(name="a", number=1, type=5, label=1)
    return Schema(PROTOBUF, base64.b64encode(file.SerializeToString()).decode())


def in_a_set(file: descriptor_pb2.FileDescriptorProto) -> Schema:
    """As text that `compiled` could have made."""
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return Schema(PROTOBUF, "FileDescriptorSet:" + base64.b64encode(data).decode())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each protoc that was started."""
    seen: list[list[str]] = []
    run = subprocess.run

    def noted(command: list[str], **given: Any) -> Any:
        seen.append(command)
        return run(command, **given)

    monkeypatch.setattr(compiler.subprocess, "run", noted)
    return seen


def arguments(command: list[str]) -> list[str]:
    return command[command.index(compiler._PROTOC) + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"public_dependency": [0, 1]}, {"weak_dependency": [0, 1]}])
def test_a_descriptor_s_imports_are_no_options_of_protoc(
    how: dict[str, list[int]], tmp_path: Path, runs: list[list[str]]
) -> None:
    mark, out = tmp_path / "mark", tmp_path / "out"
    out.mkdir()
    plugin = f"--x_out=\ntouch {mark}\nexit 0\n:{out}"
    for names in (
        ["--plugin=protoc-gen-x=/bin/sh", plugin],
        [f"--python_out={out}", "-I/"],
        ["@/etc/passwd", "-o/dev/null"],
    ):
        with pytest.raises(SchemaError, match="is not among the schema's references"):
            protobuf.arrow_type(descriptor(*names, **how))
    assert not mark.exists() and not list(out.iterdir())
    for command in runs:
        assert arguments(command) == [*compiler._ARGUMENTS, "entry.proto"]


@pytest.mark.parametrize(
    "name",
    [
        *("--plugin=protoc-gen-x=/bin/sh", "@/etc/passwd", "-I", "a/-b", "a/@b", "a=b", "a:b"),
        *("", ".", "..", "a/", "/", "a/.b/c", "a\n", "a b", "a\0b", 'a"b', "\u00e4", "\ud800"),
        *("/".join("a" * 65), "/".join(["x" * 200] * 6)),
    ],
)
def test_a_reference_s_name_is_a_plain_path(name: str, runs: list[list[str]]) -> None:
    with pytest.raises(SchemaError, match="cannot be the name of an import"):
        protobuf.arrow_type(Schema(PROTOBUF, EMPTY.text, ((name, EMPTY),)))
    assert not runs


def test_a_reference_with_the_name_of_the_schema_s_own_file(runs: list[list[str]]) -> None:
    text = 'syntax = "proto3"; import "schema.proto"; message Own { Empty e = 1; }'
    schema = Schema(PROTOBUF, text, (("schema.proto", EMPTY), ("entry.proto", descriptor())))
    with pytest.raises(SchemaError, match=r"wanted\.proto"):
        protobuf.arrow_type(Schema(PROTOBUF, text.replace("schema.", "wanted."), schema.references))
    assert [arguments(run)[-1] for run in runs] == ["_entry.proto"]
    assert protobuf.arrow_type(Schema(PROTOBUF, text, schema.references[:1])) == pa.struct(
        [("e", pa.struct([("a", pa.bool_())]))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("word", ["", "public ", "weak "])
@pytest.mark.parametrize("up", ["", "a/../../", "../" * 9, "file://"])
def test_no_file_outside_is_read(word: str, up: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.proto"
    secret.write_text("hunter2 = 1;")
    text = f'syntax = "proto3"; import {word}"{up}{secret}"; message M {{ bool a = 1; }}'
    for schema in (Schema(PROTOBUF, text), descriptor(f"{up}{secret}")):
        with pytest.raises(SchemaError) as caught:
            protobuf.arrow_type(schema)
        assert "hunter2" not in str(caught.value)


def test_no_file_beside_python_s_packages_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "google" / "type").mkdir(parents=True)
    (tmp_path / "google" / "type" / "ours.proto").write_text(EMPTY.text)
    (tmp_path / "secret.proto").write_text("hunter2 = 1;")
    folders = [*compiler._include_folders(), tmp_path]
    monkeypatch.setattr(compiler, "_include_folders", lambda: folders)
    compiler._well_known.cache_clear()
    try:
        good = Schema(
            PROTOBUF, f'{EMPTY.text[:18]} import "google/type/ours.proto"; message M {{}}'
        )
        assert protobuf.arrow_type(good) == pa.struct([])
        bad = Schema(PROTOBUF, 'syntax = "proto3"; import "secret.proto"; message M {}')
        with pytest.raises(SchemaError, match="not found") as caught:
            protobuf.arrow_type(bad)
        assert "hunter2" not in str(caught.value)
    finally:
        compiler._well_known.cache_clear()


SPECIAL = [
    "Int32Value { Q2 value = 1; }",
    "Int32Value { string value = 1; }",
    "Int32Value { repeated int32 value = 1; }",
    "Int32Value { optional int32 value = 1; }",
    "Int32Value { int32 value = 2; }",
    "Timestamp { repeated int64 seconds = 1; int32 nanos = 2; }",
    "Timestamp { optional int64 seconds = 1; int32 nanos = 2; }",
    "Duration { int64 seconds = 1; repeated int32 nanos = 2; }",
    "Struct { int32 a = 1; }",
    "ListValue { string values = 1; }",
    "Value { string null_value = 1; }",
]


@pytest.mark.slow
@pytest.mark.parametrize("body", SPECIAL)
def test_messages_that_only_have_the_names_of_google_s(body: str) -> None:
    name = body.split()[0]
    schema = Schema(
        PROTOBUF,
        f'syntax = "proto3"; package google.protobuf; message Q {{ {name} t = 1; }} '
        f"message {body} message Q2 {{ int32 a = 1; }}",
    )
    decoder = protobuf.decoder(schema, None, None)
    assert pa.types.is_struct(decoder.type.field("t").type)
    payloads = pa.array([b"", b"\x0a\x00", b"\x0a\x02\x08\x05", b"\x0a\x04\x08\x05\x10\x07"])
    decoded = decoder.decode(payloads)
    decoded.values.validate(full=True)
    encoder = protobuf.encoder(schema, decoder.type)
    assert encoder.encode(decoded.values).to_pylist()[1] == b"\x0a\x00"


def broken(what: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    field = message.field.add(name="a", number=1, type=9, label=1)
    if what == "default":
        field.default_value = "xyzzy"
    elif what == "name":
        field.name = "xyzzy"
    elif what == "package":
        file.package = "xyzzy"
    elif what == "entry":
        entry = message.nested_type.add(name="AEntry")
        entry.options.map_entry = True
        entry.field.add(name="k", number=1, type=5, label=1)
        entry.field.add(name="v", number=2, type=5, label=1)
        field.type, field.label, field.type_name = 11, 3, ".M.AEntry"
    return file


@pytest.mark.parametrize("what", ["default", "name", "package", "entry"])
@pytest.mark.usefixtures("with_boundary")
def test_descriptors_that_protoc_never_makes(what: str) -> None:
    good = in_a_set(broken(what)).text.removeprefix("FileDescriptorSet:")
    data = base64.b64decode(good).replace(b"xyzzy", b"\xff\xed\xa0\x80\xfe")
    schema = Schema(PROTOBUF, "FileDescriptorSet:" + base64.b64encode(data).decode())
    for use in (
        protobuf.arrow_type,
        lambda one: protobuf.decoder(one, None, None),
        lambda one: protobuf.decoder(one, EMPTY, None),
        lambda one: protobuf.encoder(one, pa.struct([("a", pa.string())])),
    ):
        with pytest.raises(SchemaError):
            use(schema)


@pytest.mark.usefixtures("with_boundary")
def test_an_import_s_name_that_is_no_utf_8() -> None:
    data = base64.b64decode(descriptor("xyzzy").text).replace(b"xyzzy", b"\xff\xed\xa0\x80\xfe")
    schema = Schema(PROTOBUF, base64.b64encode(data).decode())
    for use in (protobuf.arrow_type, protobuf.compiled, protobuf.glue_messages):
        with pytest.raises(SchemaError):
            use(schema)


@pytest.mark.usefixtures("with_boundary")
@pytest.mark.parametrize(
    "meta",
    [
        "extend Other { optional int32 field_meta = 1; } message Other { extensions 1 to 9; }",
        "extend google.protobuf.FieldOptions { optional int32 field_meta = 1088; }",
        "message Meta { optional string params = 1; } "
        "extend google.protobuf.FieldOptions { optional Meta field_meta = 1088; }",
    ],
)
def test_a_field_meta_that_is_none(meta: str) -> None:
    own = Schema(
        PROTOBUF,
        'syntax = "proto2"; package confluent; import "google/protobuf/descriptor.proto"; '
        'import "confluent/type/decimal.proto"; message M { optional type.Decimal d = 1; } ' + meta,
    )
    try:
        protobuf.arrow_type(own)
    except SchemaError as error:
        assert "field d" in str(error) or "cannot be used" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x"), TypeError("x"), KeyError("x"), IndexError("x"), AttributeError("x")),
        *(RecursionError("x"), OverflowError("x"), pa.ArrowInvalid("x"), pa.ArrowKeyError("x")),
        *(pa.ArrowNotImplementedError("x"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "\ud800")),
    ],
)
@pytest.mark.usefixtures("with_boundary")
def test_whatever_a_schema_breaks_is_an_error_of_the_schema(error: Exception) -> None:
    @schema_errors.schema_errors("Protobuf schema")
    def use() -> None:
        raise error

    with pytest.raises(SchemaError, match=r"the Protobuf schema (cannot be|is|has) ") as caught:
        use()
    assert caught.value.__cause__ is error
    str(caught.value).encode()


def test_our_own_errors_are_seen_in_tests_and_long_ones_are_cut() -> None:
    @schema_errors.schema_errors("Protobuf schema")
    def use(error: Exception) -> None:
        raise error

    for error in (KeyError("x"), KafkaError("x"), OSError("x"), MemoryError("x")):
        with pytest.raises(type(error)):
            use(error)
    with pytest.raises(SchemaError) as caught:
        use(SchemaError("y" * 1_000_000))
    assert len(str(caught.value)) < 3000


@pytest.mark.usefixtures("with_boundary")
def test_bytes_that_are_changed_at_random_are_errors_of_the_schema() -> None:
    good = Schema(
        PROTOBUF,
        'syntax = "proto2"; message In { required int32 x = 1; optional string s = 2; } '
        "enum E { A = 0; B = 1; } message M { optional E e = 1 [default = B]; "
        'optional bytes b = 2 [default = "\\001"]; repeated group G = 3 { optional In in = 4; } '
        "map<string, In> m = 5; oneof o { In oa = 6; int32 ob = 7; } }",
    )
    data = base64.b64decode(protobuf.compiled(good).text.removeprefix("FileDescriptorSet:"))
    chance = random.Random(int(os.environ.get("SEED", "3")))
    payloads = pa.array([b"", b"\x08\x01", b"\x1a\x00", b"\x2a\x04\x0a\x00\x12\x00", b"\x32\x00"])
    used = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 2)):
            changed[chance.randrange(len(data))] = chance.choice([0, 1, 0x80, 0xFF, 11, 32])
        text = "FileDescriptorSet:" + base64.b64encode(changed).decode()
        schema = Schema(PROTOBUF, text)
        try:
            decoder = protobuf.decoder(schema, None, None, message=(1,))
        except SchemaError:
            continue
        decoder.decode(payloads).values.validate(full=True)
        used += 1
    assert used


@pytest.mark.parametrize("where", ["file", "field"])
def test_options_without_what_they_must_have(where: str) -> None:
    file = broken("")
    options = file.options if where == "file" else file.message_type[0].field[0].options
    options.uninterpreted_option.add().name.add()
    data = file.SerializePartialToString()
    whole = descriptor_pb2.FileDescriptorSet(file=[file]).SerializePartialToString()
    for prefix, some in (("", data), ("FileDescriptorSet:", whole)):
        schema = Schema(PROTOBUF, prefix + base64.b64encode(some).decode())
        for use in (protobuf.arrow_type, protobuf.glue_messages):
            with pytest.raises(SchemaError):
                use(schema)
