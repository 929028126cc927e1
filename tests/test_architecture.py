"""Imports go down: spark -> client -> protocol -> errors, with the options beside errors.

README's file map says what each layer is for; this holds the code to it. Every import counts,
also inside functions and under TYPE_CHECKING: what a module names, it depends on.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import sparkkafka

PACKAGE = Path(sparkkafka.__file__).parent
ROOT = "sparkkafka"

# Layer -> the layers that it may import, besides itself. A module of the package's top folder
# other than the first three belongs to `options`: the option table and what parses it. The error
# codes are imported from `errors` by all, so that there is one place for them.
LAYERS: Mapping[str, frozenset[str]] = {
    "error_codes": frozenset(),
    "errors": frozenset({"error_codes"}),
    "secret": frozenset(),
    "options": frozenset({"errors", "secret"}),
    "protocol": frozenset({"errors", "secret"}),
    "client": frozenset({"errors", "secret", "options", "protocol"}),
    "spark": frozenset({"errors", "secret", "options", "protocol", "client"}),
    "testing": frozenset({"errors", "secret", "options", "protocol", "client"}),
    # sparkkafka/__init__.py, the facade; nobody imports it
    "root": frozenset({"spark", "options"}),
}

# protocol/ turns values into bytes: sockets, time and chance come from client/ as arguments.
# pyspark belongs to spark/ alone, so that the client is usable without it.
FORBIDDEN: Mapping[str, frozenset[str]] = {
    "error_codes": frozenset({"pyspark"}),
    "errors": frozenset({"pyspark"}),
    "options": frozenset({"pyspark", "socket", "ssl"}),
    "protocol": frozenset({"socket", "ssl", "time", "random", "logging", "pyspark"}),
    "client": frozenset({"pyspark"}),
}

# Inside protocol/ a module imports only what stands before it in a row that both are in. So
# messages never see record batches (their records are bytes), and records never see messages. The
# package itself gathers what is public of them all, and none of them imports it.
PROTOCOL_ORDERS: tuple[tuple[str, ...], ...] = (
    ("releases", "wire", "fields", "codecs", "schema", "messages", "framing", "consumer_protocol"),
    (
        "wire",
        "compression",
        "varints",
        "legacy",
        "records",
        "record_starts",
        "record_damage",
        "arrow",
        "field_places",
        "record_fields",
        "record_headers",
        "alike_batches",
        "chunk_decode",
        "large_batches",
        "columns_decode",
        "columns_join",
        "columns_encode",
        "columns",
        "key_columns",
        "murmur2_column",
        "crc32",
        "fnv1a",
        "partitioner",
        "single",
    ),
    ("sasl",),
)


def violations(package: Path) -> Iterator[str]:
    """What breaks a rule, as "file:line: what"; `package` is the folder of the package."""
    modules = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        layer = layer_of(module)
        where = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(), where)
        graph[module] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) and layer != "testing":
                yield f"{where}:{node.lineno}: assert, which `python -O` removes"
            for imported, name in imports(node):
                at = f"{where}:{node.lineno}"
                if imported.startswith("."):
                    yield f"{at}: relative import"
                    continue
                if imported.partition(".")[0] != ROOT:
                    if imported.partition(".")[0] in FORBIDDEN.get(layer, ()):
                        yield f"{at}: {layer} imports {imported}"
                    continue
                if imported == ROOT and name == "__version__":
                    continue  # a constant, and the one thing that may come from the top
                target = f"{imported}.{name}" if f"{imported}.{name}" in modules else imported
                if target not in modules:
                    yield f"{at}: no module {target}"
                    continue
                graph[module].add(target)
                yield from (f"{at}: {fault}" for fault in wrong_import(module, target))
    for cycle in cycles(graph):
        yield f"import cycle: {' -> '.join(cycle)}"


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join((ROOT, *(part for part in parts if part != "__init__")))


def layer_of(module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "root"
    return parts[1] if parts[1] in LAYERS else "options"


def imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name in it or "") for each thing an import statement names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, ""
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield "." * node.level + (node.module or ""), alias.name


def wrong_import(module: str, target: str) -> Iterator[str]:
    layer, other = layer_of(module), layer_of(target)
    if other != layer and other not in LAYERS[layer]:
        yield f"{layer} imports {other} ({target})"
    if layer == other == "protocol":
        name, used = protocol_part(module), protocol_part(target)
        if not used:
            yield f"{module} imports {target}, which is the package itself"
        elif (
            name
            and name != used
            and not any(
                used in order[: order.index(name)] for order in PROTOCOL_ORDERS if name in order
            )
        ):
            yield f"protocol.{name} may not import protocol.{used}"


def protocol_part(module: str) -> str:
    """'wire' for sparkkafka.protocol.wire, 'messages' for what is in that package."""
    return ".".join(module.split(".")[2:3])


def cycles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """One cycle for each module that is first found to be in one. A package may import its own."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> Iterator[list[str]]:
        if module in path:
            yield [*path[path.index(module) :], module]
            return
        if module in done:
            return
        for target in sorted(graph[module]):
            yield from visit(target, [*path, module])
        done.add(module)

    for module in sorted(graph):
        yield from visit(module, [])


def test_imports_go_down() -> None:
    assert list(violations(PACKAGE)) == []


def test_every_protocol_module_has_its_place() -> None:
    """So that a new module gets its place in PROTOCOL_ORDERS, and an old one does not keep it."""
    present = {path.stem for path in (PACKAGE / "protocol").iterdir() if path.stem[0] != "_"}
    assert present == {name for order in PROTOCOL_ORDERS for name in order}


def test_the_layers_are_there() -> None:
    """The checker would find nothing wrong with folders that are called something else."""
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == {"protocol", "client", "spark", "testing"}


# The checker itself

SOUND: Mapping[str, str] = {
    "__init__.py": "__version__ = '1'\nfrom sparkkafka.spark.reader import read\n",
    "error_codes.py": "import enum\n",
    "errors.py": "import enum\nfrom sparkkafka.error_codes import C\n",
    "options.py": "import logging\nfrom sparkkafka.errors import E\n",
    "protocol/__init__.py": "",
    "protocol/wire.py": "from sparkkafka.errors import E\n",
    "protocol/schema.py": "from sparkkafka.protocol.wire import Reader\n",
    "protocol/messages/__init__.py": "from sparkkafka.protocol.messages.data import A\n",
    "protocol/messages/data.py": "from sparkkafka.protocol import schema\n",
    "protocol/framing.py": "import sparkkafka.protocol.messages\n",
    "protocol/compression.py": "",
    "protocol/records.py": "from sparkkafka.protocol.compression import c\n",
    "client/__init__.py": "",
    "client/cluster.py": "import socket, time\nfrom sparkkafka import __version__\n"
    "from sparkkafka.options import O\nfrom sparkkafka.protocol.framing import F\n",
    "spark/__init__.py": "",
    "spark/reader.py": "import pyspark.sql\nfrom sparkkafka.client.cluster import C\n",
    "testing/__init__.py": "",
    "testing/fake.py": "assert True\nfrom sparkkafka.protocol.records import r\n"
    "from sparkkafka.client.cluster import C\n",
}


def planted(folder: Path, changes: Mapping[str, str]) -> list[str]:
    """Violations of the sound package above, with lines added to some of its files."""
    package = folder / ROOT
    for name in {**SOUND, **changes}:
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOUND.get(name, "") + changes.get(name, ""))
    return list(violations(package))


def test_checker_passes_a_sound_package(tmp_path: Path) -> None:
    assert planted(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        # layers
        ("protocol/wire.py", "from sparkkafka.client.cluster import C", "protocol imports client"),
        ("protocol/wire.py", "import sparkkafka.options", "protocol imports options"),
        ("protocol/wire.py", "from sparkkafka import options", "protocol imports options"),
        ("protocol/wire.py", "import sparkkafka.spark.reader as r", "protocol imports spark"),
        ("client/cluster.py", "from sparkkafka.spark import reader", "client imports spark"),
        ("client/cluster.py", "from sparkkafka import read", "client imports root"),
        ("client/cluster.py", "import sparkkafka", "client imports root"),
        ("options.py", "from sparkkafka.client.cluster import C", "options imports client"),
        ("offset_json.py", "from sparkkafka.protocol.wire import R", "options imports protocol"),
        ("errors.py", "from sparkkafka.options import O", "errors imports options"),
        ("error_codes.py", "from sparkkafka.errors import E", "error_codes imports errors"),
        ("client/cluster.py", "from sparkkafka.error_codes import C", "client imports error_codes"),
        ("spark/reader.py", "from sparkkafka.testing.fake import F", "spark imports testing"),
        ("__init__.py", "from sparkkafka.testing import fake", "root imports testing"),
        ("testing/fake.py", "from sparkkafka.spark.reader import r", "testing imports spark"),
        (
            "protocol/wire.py",
            "def f():\n    from sparkkafka.client.cluster import C",
            "protocol imports client",
        ),
        (
            "protocol/wire.py",
            "if TYPE_CHECKING:\n    from sparkkafka.client.cluster import C",
            "protocol imports client",
        ),
        # protocol/ is without I/O
        *(
            ("protocol/records.py", f"import {module}", f"protocol imports {module}")
            for module in ("socket", "ssl", "time", "random", "logging", "pyspark")
        ),
        ("protocol/wire.py", "import enum, socket as s", "protocol imports socket"),
        ("protocol/wire.py", "from time import monotonic", "protocol imports time"),
        ("protocol/messages/data.py", "import logging.handlers", "protocol imports logging"),
        ("client/cluster.py", "from pyspark.sql import Row", "client imports pyspark"),
        # order inside protocol/
        (
            "protocol/wire.py",
            "from sparkkafka.protocol.schema import s",
            "protocol.wire may not import protocol.schema",
        ),
        (
            "protocol/schema.py",
            "from sparkkafka.protocol import messages",
            "protocol.schema may not import protocol.messages",
        ),
        (
            "protocol/messages/data.py",
            "from sparkkafka.protocol.framing import F",
            "protocol.messages may not import protocol.framing",
        ),
        (
            "protocol/messages/data.py",
            "import sparkkafka.protocol.records",
            "protocol.messages may not import protocol.records",
        ),
        (
            "protocol/records.py",
            "from sparkkafka.protocol.messages.data import A",
            "protocol.records may not import protocol.messages",
        ),
        (
            "protocol/compression.py",
            "from sparkkafka.protocol.records import r",
            "protocol.compression may not import protocol.records",
        ),
        (
            "protocol/newcomer.py",
            "from sparkkafka.protocol.wire import Reader",
            "protocol.newcomer may not import protocol.wire",
        ),
        ("protocol/wire.py", "from sparkkafka.protocol import nothing", "the package itself"),
        # the rest
        ("client/cluster.py", "from . import offsets", "relative import"),
        ("client/cluster.py", "from .offsets import find", "relative import"),
        ("client/cluster.py", "from sparkkafka.client.gone import x", "no module"),
        ("spark/reader.py", "def f(x):\n    assert x", "assert"),
        ("protocol/wire.py", "assert True", "assert"),
    ],
)
def test_checker_sees_planted_faults(tmp_path: Path, name: str, line: str, words: str) -> None:
    found = planted(tmp_path, {name: f"{line}\n"})
    assert any(words in fault for fault in found), found
    assert any(fault.startswith(f"{name}:") for fault in found), found


def test_checker_sees_cycles(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "client/offsets.py": "from sparkkafka.client.fetcher import f\n",
            "client/fetcher.py": "from sparkkafka.client.offsets import o\n",
        },
    )
    assert found == [
        "import cycle: sparkkafka.client.fetcher -> sparkkafka.client.offsets "
        "-> sparkkafka.client.fetcher"
    ]


def test_forbidden_names_exist() -> None:
    """A misspelt module would be forbidden in vain."""
    standard = {name for names in FORBIDDEN.values() for name in names} - {"pyspark"}
    assert standard <= sys.stdlib_module_names
