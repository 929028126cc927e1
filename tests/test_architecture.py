"""Imports go down: spark -> schemas -> client -> protocol -> errors, with config beside protocol;
and inside a layer from package to package in one order.

docs/architecture.md says what each package is for; this holds the code to it. Every import counts,
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

# Layer -> the layers that it may import, besides itself. The modules of the package's top folder
# are layers of their own: what each names, all above it may use.
LAYERS: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "secret": frozenset(),
    "hooks": frozenset({"errors"}),
    "logs": frozenset({"errors"}),
    "config": frozenset({"errors", "secret", "hooks", "logs"}),
    "protocol": frozenset({"errors", "secret"}),
    "client": frozenset({"errors", "secret", "hooks", "config", "protocol"}),
    "schemas": frozenset({"errors", "secret", "hooks", "config", "protocol", "client"}),
    "spark": frozenset(
        {
            "errors",
            "secret",
            "hooks",
            "logs",
            "config",
            "protocol",
            "client",
            "schemas",
        }
    ),
    "functions": frozenset({"errors", "config", "protocol", "schemas", "spark"}),
    "cdc": frozenset({"errors", "schemas"}),
    "plot": frozenset({"errors", "config", "protocol", "client", "spark"}),
    "monitoring": frozenset({"errors", "config", "client", "spark"}),
    "checkpoints": frozenset({"errors", "secret", "hooks", "config", "protocol", "client"}),
    "cli": frozenset(
        {"errors", "secret", "config", "protocol", "client", "schemas", "checkpoints"}
    ),
    "__main__": frozenset({"cli"}),
    "testing": frozenset({"errors", "secret", "hooks", "config", "protocol", "client"}),
    # sparkkafka/__init__.py, the facade; nobody imports it
    "root": frozenset({"spark", "monitoring", "config", "logs"}),
}

# Modules of another layer that a layer may import besides. They know nothing of the layer around
# them: a test holds them to what the importing layer may name.
SINGLE: Mapping[str, frozenset[str]] = {
    # what the exactly-once sink writes down in Kafka, as text
    "checkpoints": frozenset({"sparkkafka.spark.decision_text"}),
    # where a cluster's settings come from, which the account check shares with the command
    "testing": frozenset({"sparkkafka.cli.profile"}),
}

# protocol/ turns values into bytes: sockets, time and chance come from client/ as arguments.
# pyspark belongs to spark/ alone, so that the client is usable without it.
FORBIDDEN: Mapping[str, frozenset[str]] = {
    "errors": frozenset({"pyspark"}),
    "hooks": frozenset({"pyspark"}),
    "config": frozenset({"pyspark", "socket", "ssl"}),
    "protocol": frozenset({"socket", "ssl", "time", "random", "logging", "pyspark"}),
    "client": frozenset({"pyspark"}),
    "schemas": frozenset({"pyspark"}),
    "checkpoints": frozenset({"pyspark"}),
}

# Inside a layer, a package imports only what stands before it in the layer's row; a lone module of
# the layer has its place there too. In one package any module may import any other, in no circle.
# A layer's own `__init__` gathers what is public of it, and nothing in the layer imports that.
ORDERS: Mapping[str, tuple[str, ...]] = {
    "protocol": (
        "constants",
        "wire",
        "messages",
        "framing",
        "records",
        "columns",
        "partitioning",
        "single",
    ),
    "client": (
        "deadline",
        "values",
        "arguments",
        "metrics",
        "auth",
        "net",
        "cluster",
        "group",
        "consumer",
        "share",
        "producer",
        "admin",
        "aio",
        "lags",
    ),
    # The formats do not know the registry, nor each other, but for Avro, whose records that contain
    # themselves become JSON text.
    "schemas": (
        "schema_errors",
        "data_contract",
        "values",
        "arrays",
        "decimals",
        "json",
        "avro",
        "protobuf",
        "envelopes",
        "framings",
        "registry",
        "column",
        "schema_choice",
    ),
    "spark": (
        "delegation_tokens",
        "pyspark_internals",
        "metric_reports",
        "schema",
        "arrow_types",
        "read",
        "decision_text",
        "exactly_once",
        "write",
        "stream",
        "datasource",
        "pyspark_pykafka",
        "registration",
    ),
    "monitoring": (
        "aggregator",
        "prometheus",
        "otel",
        "listener",
        "lineage",
    ),
    "cdc": ("net_changes", "merge_sql", "database_tables", "spark_tables"),
    "checkpoints": (
        "storage",
        "logs",
        "comparison",
        "against_kafka",
        "reset",
    ),
    "testing": ("fake", "kafka", "registry", "account_check", "pytest_plugin"),
    # A verb's module has its name, and is imported when it is used.
    "cli": (
        "tables",
        "profile",
        "bounded_admin",
        "session",
        "format_flags",
        "commands",
        "topics",
        "brokers",
        "check",
        "lag",
        "groups",
        "checkpoint",
        "snapshots",
        "top",
        "ui",
        "acls",
        "users",
        "text_formats",
        "files",
        "typed_records",
        "changes",
        "read",
        "cdc",
        "write",
        "copy",
        "bench",
        "kcat",
        "app",
    ),
}

# Messages never see record batches (their records are bytes), and records never see messages.
APART = (
    frozenset({"protocol.messages", "protocol.framing"}),
    frozenset({"protocol.records", "protocol.columns", "protocol.partitioning"}),
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
        for node in statements(tree):
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


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, those inside others included. (`ast.walk` also visits each expression.)"""
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, field, ())
    return iter(nodes)


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join((ROOT, *(part for part in parts if part != "__init__")))


def layer_of(module: str) -> str:
    parts = module.split(".")
    return "root" if len(parts) == 1 else parts[1]


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
    single = target in SINGLE.get(layer, ())
    if other != layer and other not in LAYERS.get(layer, ()) and not single:
        yield f"{layer} imports {other} ({target})"
    if layer == other and layer in ORDERS:
        part, used = part_of(module), part_of(target)
        if not used:
            yield f"{module} imports {target}, which is the package itself"
        elif part and part != used:
            order = ORDERS[layer]
            here, there = f"{layer}.{part}", f"{layer}.{used}"
            apart = not any({here, there} <= group for group in APART) and all(
                any(name in group for group in APART) for name in (here, there)
            )
            if apart or part not in order or used not in order[: order.index(part)]:
                yield f"{here} may not import {there}"


def part_of(module: str) -> str:
    """'wire' for sparkkafka.protocol.wire.schema, '' for sparkkafka.protocol."""
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


def test_modules_are_named_only_where_they_are_imported() -> None:
    """A package has its module as an attribute only after something has imported the module: Admin
    could not describe the members of a group unless a consumer was imported too."""
    modules = {module_name(path, PACKAGE): path for path in sorted(PACKAGE.rglob("*.py"))}
    for module, path in modules.items():
        tree = ast.parse(path.read_text())
        imported = {
            f"{source}.{name}": name
            for node in statements(tree)
            for source, name in imports(node)
            if source.partition(".")[0] == ROOT
        }
        packages = {name: source for source, name in imported.items() if source in modules}
        for node in ast.walk(tree) if packages else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = f"{packages.get(node.value.id)}.{node.attr}"
                assert named not in modules or named in imported, (
                    f"{module}:{node.lineno} names {named} without importing it"
                )


def folders_of(package: Path) -> Iterator[Path]:
    yield from (path for path in [package, *package.rglob("*")] if any(path.glob("*.py")))


@pytest.mark.parametrize("layer", SINGLE)
def test_single_modules_know_what_the_importing_layer_may_know(layer: str) -> None:
    for module in SINGLE[layer]:
        path = PACKAGE / Path(*module.split(".")[1:]).with_suffix(".py")
        named = [
            target
            for node in statements(ast.parse(path.read_text()))
            for target, _ in imports(node)
        ]
        for target in named:
            assert target.partition(".")[0] not in FORBIDDEN.get(layer, ())
            if target.startswith(f"{ROOT}."):
                assert layer_of(target) in LAYERS[layer], f"{module} imports {target}"


@pytest.mark.parametrize("layer", ORDERS)
def test_every_package_has_its_layer(layer: str) -> None:
    """So that a new one gets its place in ORDERS, and an old one does not keep it."""
    folder = PACKAGE / layer
    there = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    there = {name for name in there if name[0] != "_"}
    assert there == set(ORDERS[layer])


def test_the_layers_are_there() -> None:
    """The checker would find nothing wrong with folders that are called something else."""
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {name for name in there if name[0] != "_"} == {*LAYERS} - {"root", "__main__"}


def test_every_package_says_what_it_is_for() -> None:
    for folder in folders_of(PACKAGE):
        text = (folder / "__init__.py").read_text("utf-8")
        says = ast.get_docstring(ast.parse(text))
        assert says, folder
        if folder.parent != PACKAGE.parent:
            assert len(says.splitlines()) <= 10, folder


# The checker itself

SOUND: Mapping[str, str] = {
    "__init__.py": "__version__ = '1'\nfrom sparkkafka.spark.read.reader import read\n",
    "errors.py": "import enum\n",
    "secret.py": "",
    "config/__init__.py": "",
    "config/options.py": "import logging\nfrom sparkkafka.errors import E\n",
    "protocol/__init__.py": "from sparkkafka.protocol.wire.schema import s\n",
    "protocol/wire/__init__.py": "",
    "protocol/wire/primitives.py": "from sparkkafka.errors import E\n",
    "protocol/wire/schema.py": "from sparkkafka.protocol.wire.primitives import Reader\n",
    "protocol/messages/__init__.py": "from sparkkafka.protocol.messages.data import A\n",
    "protocol/messages/data.py": "from sparkkafka.protocol.wire import schema\n",
    "protocol/framing.py": "import sparkkafka.protocol.messages\n",
    "protocol/records/__init__.py": "",
    "protocol/records/batches.py": "",
    "client/__init__.py": "",
    "client/net/__init__.py": "",
    "client/net/connection.py": "import socket, time\nfrom sparkkafka import __version__\n"
    "from sparkkafka.config.options import O\nfrom sparkkafka.protocol.framing import F\n",
    "client/cluster/__init__.py": "",
    "client/cluster/cluster.py": "from sparkkafka.client.net.connection import C\n",
    "spark/__init__.py": "",
    "spark/read/__init__.py": "",
    "spark/read/reader.py": "import pyspark.sql\nfrom sparkkafka.client.cluster.cluster import C\n",
    "testing/__init__.py": "",
    "testing/fake.py": "assert True\nfrom sparkkafka.protocol.records.batches import r\n"
    "from sparkkafka.client.cluster.cluster import C\n",
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


CLUSTER = "from sparkkafka.client.cluster.cluster import C"
WIRE, DATA = "protocol/wire/primitives.py", "protocol/messages/data.py"
CONNECTION, READER = "client/net/connection.py", "spark/read/reader.py"


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        # layers
        (WIRE, CLUSTER, "protocol imports client"),
        (WIRE, "import sparkkafka.config.options", "protocol imports config"),
        (WIRE, "from sparkkafka.config import options", "protocol imports config"),
        (WIRE, "import sparkkafka.spark.read.reader as r", "protocol imports spark"),
        (CONNECTION, "from sparkkafka.spark.read import reader", "client imports spark"),
        (CONNECTION, "from sparkkafka import read", "client imports root"),
        (CONNECTION, "import sparkkafka", "client imports root"),
        ("config/options.py", CLUSTER, "config imports client"),
        (
            "config/options.py",
            "from sparkkafka.protocol.wire.schema import R",
            "config imports protocol",
        ),
        ("errors.py", "from sparkkafka.config.options import O", "errors imports config"),
        ("newcomer.py", "from sparkkafka.errors import E", "newcomer imports errors"),
        (READER, "from sparkkafka.testing.fake import F", "spark imports testing"),
        ("__init__.py", "from sparkkafka.testing import fake", "root imports testing"),
        ("testing/fake.py", "from sparkkafka.spark.read.reader import r", "testing imports spark"),
        (WIRE, f"def f():\n    {CLUSTER}", "protocol imports client"),
        (WIRE, f"if TYPE_CHECKING:\n    {CLUSTER}", "protocol imports client"),
        # protocol/ is without I/O
        *(
            ("protocol/records/batches.py", f"import {module}", f"protocol imports {module}")
            for module in ("socket", "ssl", "time", "random", "logging", "pyspark")
        ),
        (WIRE, "import enum, socket as s", "protocol imports socket"),
        (WIRE, "from time import monotonic", "protocol imports time"),
        (DATA, "import logging.handlers", "protocol imports logging"),
        (CONNECTION, "from pyspark.sql import Row", "client imports pyspark"),
        # the order of packages in a layer
        (
            WIRE,
            "from sparkkafka.protocol.messages.data import s",
            "protocol.wire may not import protocol.messages",
        ),
        (
            WIRE,
            "from sparkkafka.protocol import messages",
            "protocol.wire may not import protocol.messages",
        ),
        (
            DATA,
            "from sparkkafka.protocol.framing import F",
            "protocol.messages may not import protocol.framing",
        ),
        (
            DATA,
            "import sparkkafka.protocol.records.batches",
            "protocol.messages may not import protocol.records",
        ),
        (
            "protocol/records/batches.py",
            "from sparkkafka.protocol.messages.data import A",
            "protocol.records may not import protocol.messages",
        ),
        (CONNECTION, CLUSTER, "client.net may not import client.cluster"),
        (
            "protocol/newcomer.py",
            "from sparkkafka.protocol.wire.schema import Reader",
            "protocol.newcomer may not import protocol.wire",
        ),
        (WIRE, "from sparkkafka.protocol import nothing", "the package itself"),
        # the rest
        (CONNECTION, "from . import offsets", "relative import"),
        (CONNECTION, "from .offsets import find", "relative import"),
        (CONNECTION, "from sparkkafka.client.gone import x", "no module"),
        (READER, "def f(x):\n    assert x", "assert"),
        (WIRE, "assert True", "assert"),
    ],
)
def test_checker_sees_planted_faults(tmp_path: Path, name: str, line: str, message: str) -> None:
    found = planted(tmp_path, {name: f"{line}\n"})
    assert any(message in fault for fault in found), found
    assert any(fault.startswith(f"{name}:") for fault in found), found


def test_checker_sees_cycles(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        {
            "client/net/pool.py": "from sparkkafka.client.net.frames import f\n",
            "client/net/frames.py": "from sparkkafka.client.net.pool import o\n",
        },
    )
    assert found == [
        "import cycle: sparkkafka.client.net.frames -> sparkkafka.client.net.pool "
        "-> sparkkafka.client.net.frames"
    ]


def test_forbidden_names_exist() -> None:
    """A misspelt module would be forbidden in vain."""
    standard = {name for names in FORBIDDEN.values() for name in names} - {"pyspark"}
    assert standard <= sys.stdlib_module_names
