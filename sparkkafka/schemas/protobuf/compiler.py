"""Compiles a .proto, with all that it imports, to a FileDescriptorSet, without a system protoc.

grpcio-tools has protoc as a library. It runs in a process of its own, with limits of time and
memory: a text that crashes or stalls it costs an error, not the worker. The result is cached in
this process. `compiled` makes a Schema that needs no protoc: the driver gives that to tasks.

Texts and names come from a registry, and may be hostile. So protoc gets only our own arguments: an
option or a path among them could run a program, or read and write any file. Imported files lie in
one temporary folder, the only one in which protoc looks, under names that `_check_import` allows.

A schema's text may also be what Confluent's clients in Python register: a FileDescriptorProto in
Base64.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from sparkkafka.config.kinds import PROTOBUF
from sparkkafka.errors import OptionError, SchemaError, needs_extra
from sparkkafka.schemas.schema_errors import schema_errors
from sparkkafka.schemas.values import Schema

MAX_TEXT_BYTES: Final = 4 << 20
MAX_FILES: Final = 1000
COMPILE_TIMEOUT_S: Final = 60
_SET_PREFIX: Final = "FileDescriptorSet:"

_ARGUMENTS: Final = ("-Iin", "--include_imports", "-oout")
_PROTOC = """
import resource, sys
for name, limit in (("CPU", 50), ("AS", 4 << 30), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(kind)[1]  # a process may only lower it
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
from grpc_tools import _protoc_compiler
sys.exit(_protoc_compiler.run_main([a.encode() for a in sys.argv]))
"""


# --- files that can be imported without a reference -----------------------------------------------
#
# Those of google/protobuf come with protoc, those of google/type, api and rpc with
# googleapis-common-protos. Here are the registry's own, as Confluent's clients have them
# (confluent/), and google/type/date.proto, which our own schemas import. A reference of the same
# name replaces them.

DECIMAL_PROTO: Final = "confluent/type/decimal.proto"
META_PROTO: Final = "confluent/meta.proto"
DATE_PROTO: Final = "google/type/date.proto"

BUILTIN_PROTOS: Final = {
    META_PROTO: """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    DECIMAL_PROTO: """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
    "confluent/types/decimal.proto": """
syntax = "proto3";
import public "confluent/type/decimal.proto";
""",
    "confluent/type/variant.proto": """
syntax = "proto3";
package confluent.type;
message Variant {
  bytes metadata = 1;
  bytes value = 2;
}
""",
    DATE_PROTO: """
syntax = "proto3";
package google.type;
message Date {
  int32 year = 1;
  int32 month = 2;
  int32 day = 3;
}
""",
}


# --- compiling ------------------------------------------------------------------------------------


class _TransientError(SchemaError):
    """Compiling may succeed the next time, so the error is not cached."""


def descriptor_set(schema: Schema) -> bytes:
    """Return a serialized FileDescriptorSet of all files: imports before the files that import
    them, the schema's own last. Raises SchemaError for a text that cannot be compiled, OptionError
    without the extra."""
    result = _set_or_reason(schema)
    if isinstance(result, str):
        raise SchemaError(result)
    return result


@lru_cache(256)
def _set_or_reason(schema: Schema) -> bytes | str:
    """Return the descriptor set, or (a str) why the schema cannot be compiled: errors are cached
    too."""
    try:
        return _compile(schema)
    except _TransientError:
        raise
    except SchemaError as error:
        return str(error)


@schema_errors("Protobuf schema")
def compiled(schema: Schema) -> Schema:
    """Return the same schema as text that needs no protoc, for tasks. Not for the registry."""
    data = base64.b64encode(descriptor_set(schema)).decode("ascii")
    return Schema(PROTOBUF, _SET_PREFIX + data)


def library() -> Any:
    """Return the package of protobuf's runtime, with its modules that are used here. Raises
    OptionError if it is not installed."""
    modules = ("descriptor_pb2", "descriptor_pool", "json_format", "message", "message_factory")
    with needs_extra("Protobuf needs protobuf", "protobuf", error=OptionError):
        for name in (*modules, "struct_pb2"):
            importlib.import_module(f"google.protobuf.{name}")
        return importlib.import_module("google.protobuf")


def _compile(schema: Schema) -> bytes:
    """Return a serialized FileDescriptorSet of the schema and its imports. Raises SchemaError."""
    if schema.text.startswith(_SET_PREFIX):
        return _from_base64(schema.text.removeprefix(_SET_PREFIX))
    files = dict(_walk_references(schema))
    if sum(map(len, files.values())) + len(schema.text) > MAX_TEXT_BYTES:
        raise SchemaError(
            f"the .proto and its imports are more than {MAX_TEXT_BYTES} bytes of text"
        )
    own_name = _unused_name("schema.proto", files)
    texts = {**files, own_name: schema.text}
    descriptors = {name: _as_descriptor(name, text) for name, text in texts.items()}
    if any(descriptors.values()):
        return _with_descriptors(own_name, texts, descriptors)
    return _protoc(texts, own_name)


def _unused_name(name: str, used: Collection[str]) -> str:
    """Return a name of our own for a file, different from all used ones."""
    while name in used:
        name = f"_{name}"
    return name


def _walk_references(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the name and text of all references, each once, in the registry's order."""
    seen: set[str] = set()
    waiting = list(reversed(schema.references))
    while waiting:
        name, referenced = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if len(seen) > MAX_FILES:
            raise SchemaError(f"the .proto has more than {MAX_FILES} imports")
        yield _check_import(name), referenced.text
        waiting.extend(reversed(referenced.references))


_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}", re.ASCII)


def _check_import(name: str) -> str:
    """Return the name of an import, which becomes that of a file in a temporary folder. Raises
    SchemaError for a name that could lead elsewhere."""
    parts = name.split("/")
    if len(name) > 1000 or len(parts) > 64 or not all(map(_PART.fullmatch, parts)):
        raise SchemaError(
            f"{name[:300]!r} cannot be the name of an import: it is a relative path of letters, "
            f"digits, _, - and ., as in my/own.proto"
        )
    return name


def _from_base64(text: str) -> bytes:
    """Return the descriptor set in the text of `compiled`. Raises SchemaError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SchemaError("the schema's text is damaged: it is not Base64") from error


def _as_descriptor(name: str, text: str) -> Any:
    """Return the FileDescriptorProto that the text has in Base64, under `name`; None for plain
    .proto."""
    compact = "".join(text.split())
    if not compact or any(char in text for char in ";{}\"'"):
        return None
    try:
        data = base64.b64decode(compact, validate=True)
    except (binascii.Error, ValueError):
        return None
    protobuf = library()
    try:
        descriptor = protobuf.descriptor_pb2.FileDescriptorProto.FromString(data)
    except protobuf.message.DecodeError:
        return None
    descriptor.name = name
    return descriptor


def _with_descriptors(own_name: str, texts: dict[str, str], descriptors: dict[str, Any]) -> bytes:
    """Return the descriptor set where some files are descriptors already. Files that are text are
    compiled, which works if they import only text; imported files that are built in are compiled as
    well. `own_name`: the name of the schema's own file; `texts`: the text of each file, by name;
    `descriptors`: its descriptor, None for .proto text."""
    protobuf = library()
    result = protobuf.descriptor_pb2.FileDescriptorSet()
    files = {name: proto for name, proto in descriptors.items() if proto is not None}
    proto_texts = {name: text for name, text in texts.items() if descriptors[name] is None}
    imports = {name for proto in files.values() for name in proto.dependency}
    # For any other name there is no file: an error below.
    built_in = imports & (BUILTIN_PROTOS.keys() | _well_known().keys()) - files.keys()
    uncompiled = sorted(proto_texts.keys() | built_in)
    if uncompiled:
        entry = _unused_name("entry.proto", texts)
        text = "".join(f'import "{name}";\n' for name in uncompiled)
        data = _protoc({**proto_texts, entry: f'syntax = "proto3";\n{text}'}, entry, own_name)
        descriptor_set = protobuf.descriptor_pb2.FileDescriptorSet.FromString(data)
        files = {**{file.name: file for file in descriptor_set.file if file.name != entry}, **files}
    # Imports before the files that import them: depth first, with a stack instead of calls.
    done: set[str] = set()
    path: set[str] = set()  # files whose imports are being added
    waiting: list[tuple[str, bool]] = [(own_name, False)]  # name, and whether its imports are done
    while waiting:
        name, imports_done = waiting.pop()
        if imports_done:
            path.discard(name)
            done.add(name)
            result.file.append(files[name])
            continue
        if name in done:
            continue
        if name in path:
            raise SchemaError(f"the import {name[:300]!r} leads back to itself")
        if name not in files:
            raise SchemaError(f"the import {name[:300]!r} is not among the schema's references")
        path.add(name)
        waiting.append((name, True))
        waiting.extend((other, False) for other in reversed(files[name].dependency))
    return bytes(result.SerializeToString())


def _protoc(texts: dict[str, str], entry: str, own_name: str | None = None) -> bytes:
    """Return the descriptor set that protoc makes of the file `entry`, with all imports. `texts`:
    of all files that are not built in, by name; `own_name`: the name of the schema's own file, for
    errors (None: it is `entry`)."""
    with needs_extra("Protobuf needs grpcio-tools", "protobuf", error=OptionError):
        import grpc_tools  # noqa: F401
    with tempfile.TemporaryDirectory(prefix="sparkkafka-proto-") as folder:
        root = Path(folder)
        contents = {
            name: text.encode("utf-8", "surrogatepass")
            for name, text in {**BUILTIN_PROTOS, **texts}.items()
        }
        for name, content in {**_well_known(), **contents}.items():
            file = root / "in" / _check_import(name)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                raise SchemaError(f"the import {name!r} is both a file and a folder") from None
        errors = _run(entry, root, own_name or entry)
        if errors is not None:
            is_json = texts.get(entry, "").lstrip().startswith(("{", "["))
            hint = " (the text looks like JSON: is it an Avro or a JSON Schema?)" if is_json else ""
            raise SchemaError(f"the .proto cannot be compiled{hint}: {errors}")
        return (root / "out").read_bytes()


def _run(entry: str, folder: Path, own_name: str) -> str | None:
    """Run protoc in `folder`, which has the files in "in"; return its errors, or None. `entry` is
    one of our own names (`_unused_name`), `own_name` as in `_protoc`."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    log = folder / "errors"
    with log.open("wb") as sink:
        try:
            done = subprocess.run(  # noqa: S603 - our own Python, with a list of arguments
                [sys.executable, "-P", "-c", _PROTOC, *_ARGUMENTS, entry],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                cwd=folder,
                env=environment,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _TransientError(
                f"the .proto cannot be compiled: protoc took more than {COMPILE_TIMEOUT_S} s"
            ) from None
        except OSError as error:
            raise _TransientError(
                f"the .proto cannot be compiled: Python, where protoc runs, does not start: {error}"
            ) from None
    if done.returncode == 0:
        return None
    with log.open("rb") as source:
        output = source.read(64 << 10).decode("utf-8", "replace")
    if done.returncode < 0:
        return f"protoc ended by signal {-done.returncode}: the text is nested too deep, or too big"
    # Lines of protoc and its log (absl) that are not errors.
    warning = r"warning:|^WARNING: All log messages|^[IW]\d{4} |^\[libprotobuf (INFO|WARNING)"
    lines = [line for line in output.splitlines() if line.strip() and not re.search(warning, line)]
    shown = "; ".join(
        _with_position(line.removeprefix("in/"), own_name)[:300] for line in lines[:5]
    )
    return shown or f"protoc ended with {done.returncode}"


def _with_position(line: str, own_name: str) -> str:
    """Return protoc's "schema.proto:3:7: error" as "line 3, column 7: error", with the file's name
    unless it is the schema's own."""
    match = re.match(r"(.*\.proto):(\d+):(\d+): (.*)", line)
    if match is None:
        return line
    file, row, column, error = match.groups()
    position = f"line {row}, column {column}"
    return f"{position}: {error}" if file == own_name else f"{position} of {file}: {error}"


@cache
def _well_known() -> dict[str, bytes]:
    """Return the files of google/protobuf, type, api and rpc, by name."""
    files: dict[str, bytes] = {}
    for folder in _include_folders():
        for package in ("protobuf", "type", "api", "rpc"):
            for file in sorted((folder / "google" / package).glob("**/*.proto")):
                name = file.relative_to(folder).as_posix()
                if name not in BUILTIN_PROTOS and all(map(_PART.fullmatch, name.split("/"))):
                    files.setdefault(name, file.read_bytes())
    return files


def _include_folders() -> Iterator[Path]:
    """Yield the folders of protoc's files and of googleapis-common-protos."""
    tools = importlib.util.find_spec("grpc_tools")
    for folder in (tools.submodule_search_locations or []) if tools else []:
        yield Path(folder) / "_proto"
    try:
        types = importlib.util.find_spec("google.type")
    except ImportError:
        return
    for folder in (types.submodule_search_locations or []) if types else []:
        yield Path(folder).parent.parent
