"""The storage of new brokers, as `kafka-storage format` leaves it.

The tool starts a Java of its own, which takes a fourth of a broker's start. It writes two files:
the broker's identity, and the cluster's first features (since Kafka 4.4 as the first snapshot of
the metadata log). So it runs once for each configuration:
brokers that differ only in folders and ids get the same files with their own ids.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError
from sparkkafka.testing.kafka.properties import write_properties

FORMAT_SECONDS = 60.0
MAX_KEPT = 100

_NOT_IN_FILES = frozenset(
    {"process.roles", "node.id", "controller.quorum.voters", "listeners", "log.dirs"}
)
"""Settings on which the files do not depend, except for the id."""

_IDENTITY = "meta.properties"

Configuration = tuple[str, frozenset[tuple[str, str]]]

Files = dict[Path, bytes]
"""Files by their paths in the log folder."""

known_features: dict[Configuration, Files] = {}
"""The features files that the tool has written in this process."""


class NewBroker(Protocol):
    """A broker to format: `config` is its file of properties, `data` its log folder, which does not
    exist yet."""

    @property
    def id(self) -> int: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def config(self) -> Path: ...
    @property
    def data(self) -> Path: ...


AnyBroker = TypeVar("AnyBroker", bound=NewBroker)


def format_storage(
    brokers: Sequence[AnyBroker],
    kafka_version: str,
    run: Callable[[AnyBroker, Sequence[str]], LeashedProcess],
    tail: Callable[[AnyBroker], str],
) -> None:
    """Format the folders of a new cluster's brokers. `run` starts a program of this Kafka for a
    broker, `tail` returns the end of its output. Raises UnavailableError, which has this end, if
    the tool refuses a configuration."""
    cluster_id = _new_id()
    kept = dict(known_features)  # another thread may clear it meanwhile
    by_tool: list[AnyBroker] = []
    configurations: set[Configuration] = set()
    for broker in brokers:
        configuration = _configuration(broker, kafka_version)
        if configuration is None or configuration not in kept.keys() | configurations:
            by_tool.append(broker)
        if configuration is not None:
            configurations.add(configuration)
    arguments = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c")
    with contextlib.ExitStack() as stack:
        tools = [(broker, run(broker, (*arguments, str(broker.config)))) for broker in by_tool]
        for _, tool in tools:
            stack.callback(tool.close)
        for broker, tool in tools:
            try:
                status = tool.wait(FORMAT_SECONDS)
            except subprocess.TimeoutExpired:
                status = -1
            if status != 0:
                raise UnavailableError(
                    f"Kafka's storage tool did not format broker {broker.id} (status {status})"
                    f"; the end of its output:\n{tail(broker)}"
                )
    features = {known: kept[known] for known in configurations & kept.keys()}
    for broker in by_tool:
        if (configuration := _configuration(broker, kafka_version)) is not None:
            features[configuration] = {
                path.relative_to(broker.data): path.read_bytes()
                for path in broker.data.rglob("*.checkpoint")
            }
    if len(known_features) > MAX_KEPT:
        known_features.clear()
    known_features.update(features)
    for broker in brokers:
        if (
            not broker.data.exists()
            and (configuration := _configuration(broker, kafka_version)) is not None
        ):
            _write_storage(broker, cluster_id, features[configuration])


def _configuration(broker: NewBroker, kafka_version: str) -> Configuration | None:
    """Return the settings on which the files depend; None if some files are in another folder than
    the log folder."""
    if "metadata.log.dir" in broker.properties:
        return None
    rows = {(name, value) for name, value in broker.properties.items() if name not in _NOT_IN_FILES}
    return kafka_version, frozenset(rows)


def _write_storage(broker: NewBroker, cluster_id: str, features: Files) -> None:
    broker.data.mkdir()
    for path, content in features.items():
        (broker.data / path).parent.mkdir(exist_ok=True)
        (broker.data / path).write_bytes(content)
    identity = {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(broker.id),
        "directory.id": _new_id(),
    }
    write_properties(broker.data / _IDENTITY, identity)


def _new_id() -> str:
    """Return a new id like Kafka's `Uuid`: 22 letters, the first no dash, as of an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{text[1:]}" if text.startswith("-") else text
