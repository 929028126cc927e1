"""Texts are compiled without a system protoc; hostile ones are errors within limits."""

from __future__ import annotations

import base64
import pickle
import sys

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError
from sparkkafka.schemas.protobuf import compiler
from sparkkafka.schemas.protobuf import format as protobuf
from sparkkafka.schemas.values import Schema
from tests.schemas.protobuf.protos import ALL3, COMMON, MIDDLE


def text(content: str, **references: Schema) -> Schema:
    return Schema(
        PROTOBUF,
        content,
        tuple((name.replace("__", "/") + ".proto", ref) for name, ref in references.items()),
    )


def in_base64(schema: Schema, name: str | None = None) -> str:
    """As Confluent's Python client registers it."""
    files = descriptor_pb2.FileDescriptorSet.FromString(compiler.descriptor_set(schema))
    file = files.file[-1]
    file.name = name or file.name
    return base64.b64encode(file.SerializeToString()).decode()


def test_imports_of_imports_are_found() -> None:
    assert protobuf.arrow_type(MIDDLE) == pa.struct(
        [("at", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])), ("name", pa.string())]
    )


@pytest.mark.parametrize("which", [0b01, 0b10, 0b11])
def test_texts_in_base64_as_confluent_s_python_client_registers_them(which: int) -> None:
    common = Schema(PROTOBUF, in_base64(COMMON)) if which & 1 else COMMON
    references = (("lib/common.proto", common),)
    content = in_base64(MIDDLE) if which & 2 else MIDDLE.text
    if which == 0b01:
        with pytest.raises(SchemaError, match=r"lib/common\.proto"):
            protobuf.arrow_type(Schema(PROTOBUF, content, references))
        return
    found = protobuf.arrow_type(Schema(PROTOBUF, content, references))
    assert found == protobuf.arrow_type(MIDDLE)


def test_base64_with_built_in_imports() -> None:
    schema = Schema(PROTOBUF, in_base64(ALL3), ALL3.references)
    assert protobuf.arrow_type(schema) == protobuf.arrow_type(ALL3)
    timed = text(
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message M { google.protobuf.Timestamp t = 1; }"
    )
    assert protobuf.arrow_type(Schema(PROTOBUF, in_base64(timed))) == protobuf.arrow_type(timed)


def test_compiled_schema_is_plain_text_and_needs_no_protoc(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = pickle.loads(pickle.dumps(compiler.compiled(ALL3)))
    expected = protobuf.arrow_type(ALL3)
    monkeypatch.setattr(compiler, "_protoc", None)
    assert protobuf.arrow_type(ready) == expected
    assert compiler.compiled(ready) == ready
    with pytest.raises(SchemaError, match="damaged"):
        protobuf.arrow_type(Schema(PROTOBUF, ready.text[:-400] + "A"))
    with pytest.raises(SchemaError, match="damaged"):
        protobuf.arrow_type(Schema(PROTOBUF, "FileDescriptorSet:AAAA"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        ("", "declares no message"),
        ('syntax = "proto3";', "declares no message"),
        ("hello", "line 1, column 1: Expected top-level statement"),
        ('syntax = "proto3"; message M { Foo a = 1; }', 'line 1, column 32: "Foo" is not defined'),
        (
            'syntax = "proto3";\nmessage M { int32 a = 1; int32 b = 1; }',
            "line 2, .* already been used",
        ),
        ('syntax = "proto4"; message M {}', "proto4"),
        ('syntax = "proto3"; import "gone.proto"; message M {}', r"gone\.proto"),
        ('syntax = "proto3"; import "/etc/passwd"; message M {}', "passwd"),
        ('syntax = "proto3"; import "../out.proto"; message M {}', r"\.\./out\.proto"),
        ('syntax = "proto3"; import "schema.proto"; message M {}', "recursive"),
        ("\0\1\2 message M {}", "control|Invalid"),
        ("message \ud800 {}", "line 1"),
        ('syntax = "proto3"; message M { string \u00e4 = 1; }', "line 1"),
        ("message M { " * 5000 + "}" * 5000, "nested|recursion|signal|depth"),
        ('option java_package = "' + "x" * (5 << 20) + '";', "more than 4194304 bytes"),
    ],
)
def test_a_text_that_cannot_be_used_says_where(content: str, expected_error: str) -> None:
    with pytest.raises(SchemaError, match=expected_error) as caught:
        protobuf.arrow_type(text(content))
    assert "sparkkafka-proto" not in str(caught.value)
    assert "/tmp" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../up", "/abs", "a//b", "./a", "a/../b", "a\nb", "a\\b", "x" * 300]
)
def test_names_of_imports_stay_in_the_folder(name: str) -> None:
    schema = Schema(PROTOBUF, 'syntax = "proto3"; message M { bool a = 1; }', ((name, COMMON),))
    with pytest.raises(SchemaError, match="cannot be the name of an import"):
        protobuf.arrow_type(schema)


def test_a_file_and_a_folder_of_one_name() -> None:
    schema = Schema(PROTOBUF, "", (("a", COMMON), ("a/b.proto", COMMON)))
    with pytest.raises(SchemaError, match="both a file and a folder"):
        protobuf.arrow_type(schema)


@pytest.mark.parametrize("base64", ["", "reference", "both"])
def test_a_reference_is_used_before_the_built_in_file_of_its_name(base64: str) -> None:
    newer = text(
        'syntax = "proto3"; package google.type; message Money { int64 units = 2; bool new = 9; }'
    )
    other = text('syntax = "proto3"; package google.protobuf; message Duration { string iso = 1; }')
    meta = text('syntax = "proto3"; package confluent; message Meta { bool own = 1; }')
    names = "google/type/money.proto", "google/protobuf/duration.proto", "confluent/meta.proto"
    imports = "".join(f'import "{name}"; ' for name in names)
    schema = text(
        f'syntax = "proto3"; {imports} import "google/protobuf/timestamp.proto"; message M '
        "{ google.type.Money m = 1; google.protobuf.Duration d = 2; confluent.Meta meta = 3; "
        "google.protobuf.Timestamp t = 4; }"
    )
    references = tuple(zip(names, (newer, other, meta), strict=True))
    schema = Schema(PROTOBUF, schema.text, references)
    if base64:
        references = tuple((name, Schema(PROTOBUF, in_base64(one))) for name, one in references)
        content = in_base64(schema) if base64 == "both" else schema.text
        schema = Schema(PROTOBUF, content, references)
    assert protobuf.arrow_type(schema) == pa.struct(
        [
            ("m", pa.struct([("units", pa.int64()), ("new", pa.bool_())])),
            ("d", pa.struct([("iso", pa.string())])),
            ("meta", pa.struct([("own", pa.bool_())])),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )


def test_a_reference_that_another_one_imports_is_used_before_a_built_in_file() -> None:
    date = text('syntax = "proto3"; package google.type; message Date { string iso = 1; }')
    path = "google/type/date.proto"
    middle = text(f'syntax = "proto3"; import "{path}"; message Day {{ google.type.Date d = 1; }}')
    middle = Schema(PROTOBUF, middle.text, ((path, date),))
    schema = Schema(
        PROTOBUF,
        'syntax = "proto3"; import "day.proto"; message M { Day day = 1; }',
        (("day.proto", middle),),
    )
    inner = pa.struct([("d", pa.struct([("iso", pa.string())]))])
    assert protobuf.arrow_type(schema) == pa.struct([("day", inner)])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("google/type/money.proto", "google.type.Money"),
        ("google/rpc/status.proto", "google.rpc.Status"),
        ("google/api/distribution.proto", "google.api.Distribution"),
    ],
)
def test_files_of_googleapis_need_no_reference(path: str, name: str) -> None:
    kind = protobuf.arrow_type(
        text(f'syntax = "proto3"; import "{path}"; message M {{ {name} m = 1; }}')
    )
    assert pa.types.is_struct(kind.field("m").type)


def test_a_message_that_only_has_the_name_of_a_special_one() -> None:
    own = text(
        'syntax = "proto3"; package confluent.type; message M { Decimal d = 1; } '
        "message Decimal { string text = 1; }"
    )
    assert protobuf.arrow_type(own) == pa.struct([("d", pa.struct([("text", pa.string())]))])


@pytest.mark.slow
def test_messages_nested_too_deep_and_too_many_fields() -> None:
    levels = "".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(100))
    deep = text(f'syntax = "proto3"; {levels} message M100 {{ bool x = 1; }}')
    with pytest.raises(SchemaError, match=r"field m\.m.* more than 64 levels"):
        protobuf.arrow_type(deep)
    # Two fields of the next level in each: 2 ** 40 in all.
    wide = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40))
    bomb = text(f'syntax = "proto3"; {wide} message M40 {{ bool x = 1; }}')
    with pytest.raises(SchemaError, match="more than 20000 fields"):
        protobuf.arrow_type(bomb)


@pytest.mark.parametrize("params", ['"39"', '"0"', '"x"'])
def test_decimals_that_spark_lacks(params: str) -> None:
    schema = text(
        'syntax = "proto3"; import "confluent/type/decimal.proto"; import "confluent/meta.proto"; '
        "message M { confluent.type.Decimal d = 1 [(confluent.field_meta) = { params: "
        f'[{{ key: "precision", value: {params} }}] }}]; }}'
    )
    with pytest.raises(SchemaError, match="field d: "):
        protobuf.arrow_type(schema)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = text('syntax = "proto3"; message Unseen { bool only_here = 1; }')
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "grpc_tools", None)
        with pytest.raises(OptionError, match=r"pip install 'sparkkafka\[protobuf\]'"):
            protobuf.arrow_type(new)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "google.protobuf", None)
        patch.setattr("google.protobuf", None, raising=False)
        with pytest.raises(OptionError, match=r"pip install 'sparkkafka\[protobuf\]'"):
            protobuf.arrow_type(new)


def test_what_protoc_takes_too_long_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT_S", 0.001)
    with pytest.raises(SchemaError, match=r"protoc took more than 0\.001 s"):
        protobuf.arrow_type(text('syntax = "proto3"; message Slow { bool only_here = 1; }'))


def test_protoc_runs_where_the_limits_are_lower_than_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    low = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (40, 40))\n"
    monkeypatch.setattr(compiler, "_PROTOC", low + compiler._PROTOC)
    assert protobuf.arrow_type(text('syntax = "proto3"; message Low { int32 a = 1; }'))


def test_what_protoc_refuses_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = compiler._run
    monkeypatch.setattr(compiler, "_run", lambda *args: calls.append(args) or run(*args))
    refused = text('syntax = "proto3"; message RefusedOnce { Nowhere n = 1; }')
    for index in range(3):
        with pytest.raises(SchemaError, match="Nowhere"):
            protobuf.arrow_type(refused, message=(index,))
    assert len(calls) == 1


def test_what_the_log_of_protoc_says_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
W0000 00:00:1700000000.000001    12 descriptor.cc:1] absl warns
I0000 00:00:1700000000.000001    12 descriptor.cc:1] absl tells
[libprotobuf WARNING google/protobuf/compiler/parser.cc:1] an older protoc warns
in/schema.proto:1:1: warning: Import unused.proto is unused.
in/schema.proto:7:3: "Nobody" is not defined."""
    script = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
    monkeypatch.setattr(compiler, "_PROTOC", script)
    with pytest.raises(SchemaError) as caught:
        protobuf.arrow_type(text('syntax = "proto3"; message WithLog { int32 a = 1; }'))
    assert str(caught.value) == (
        'the .proto cannot be compiled: line 7, column 3: "Nobody" is not defined.'
    )


def test_a_protoc_that_was_too_slow_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = text('syntax = "proto3"; message SlowOnce { int32 n = 1; }')
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "COMPILE_TIMEOUT_S", -1.0)  # 1 ms may be enough
        with pytest.raises(SchemaError, match="took more than"):
            protobuf.arrow_type(slow)
    assert protobuf.arrow_type(slow) == pa.struct([("n", pa.int32())])
