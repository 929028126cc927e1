"""Prints what the newest Kafka has and this project lacks: requests, their versions, error codes.

`python -m tests.tools.drift` reads the protocol out of the jar of that Kafka's client, whose
`Protocol` and `Errors` print Kafka's own page about it: the layout of each version of each message,
and all error codes. `tests/protocol/test_newest_kafka.py` fails for what `ACCEPTED` does not name.
"""

from __future__ import annotations

import functools
import html
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.protocol.wire.schema import (
    RECORDS,
    UUID,
    ArrayOf,
    Field,
    Message,
    Primitive,
    fields,
    is_flexible,
)
from sparkkafka.testing.kafka.jars import JarSet, ensure_jars
from sparkkafka.testing.kafka.java import find_java

NEWEST_KAFKA = "4.4.0"
"""The newest Kafka of Maven Central."""

JARS = JarSet(
    name=f"kafka-clients-{NEWEST_KAFKA}",
    title=f"the client of Apache Kafka {NEWEST_KAFKA}",
    modules=(
        ("org.apache.kafka", "kafka-clients", NEWEST_KAFKA, False),
        ("org.slf4j", "slf4j-api", "1.7.36", False),
    ),
    jar_count=2,
)

_STATE = "brokers send it to each other, for the state of share groups"
_STREAMS = "only Kafka Streams has such groups"
_TELEMETRY = "client telemetry (KIP-714) needs a plug-in of the brokers: see docs/metrics.md"
_VOTERS = "changes the controllers themselves: kafka-metadata-quorum.sh does that"
ACCEPTED: Mapping[str, str] = {
    "AlterConfigs": "deprecated: it resets what it does not name. IncrementalAlterConfigs does not",
    "OffsetForLeaderEpoch": "Fetch 12 (Kafka 2.7) itself finds that a log was truncated (KIP-320)",
    "DescribeTopicPartitions": "Metadata has all partitions in one response, some megabytes",
    "AlterReplicaLogDirs": "moves replicas between the disks of a broker: a tool of its operators",
    "GetTelemetrySubscriptions": _TELEMETRY,
    "PushTelemetry": _TELEMETRY,
    "UnregisterBroker": _VOTERS,
    "AddRaftVoter": _VOTERS,
    "RemoveRaftVoter": _VOTERS,
    "UnregisterController": _VOTERS,
    "InitializeShareGroupState": _STATE,
    "ReadShareGroupState": _STATE,
    "WriteShareGroupState": _STATE,
    "DeleteShareGroupState": _STATE,
    "ReadShareGroupStateSummary": _STATE,
    "StreamsGroupHeartbeat": _STREAMS,
    "StreamsGroupDescribe": _STREAMS,
    "StreamsGroupTopologyDescriptionUpdate": _STREAMS,
    "AddPartitionsToTxn 4": "only brokers may send it (CLUSTER_ACTION)",
    "AddPartitionsToTxn 5": "only brokers may send it (CLUSTER_ACTION)",
    "InitProducerId 6": "no broker offers it: two-phase commit (KIP-939) is not stable",
}
"""What this project lacks on purpose: an API, or one version of it, and why."""


class Gap(NamedTuple):
    """Something that Kafka has and this project lacks."""

    name: str
    text: str


class NewestProtocol(NamedTuple):
    """`layouts` by API, "Request" or "Response", and version; `errors`: name and code with Kafka's
    text and whether it is retriable."""

    layouts: Mapping[str, Mapping[tuple[str, int], str]]
    errors: Mapping[tuple[str, int], tuple[bool, str]]


@functools.cache
def newest_protocol() -> NewestProtocol:
    """Return the protocol of `NEWEST_KAFKA`. Raises UnavailableError without Java or jars."""
    layouts: dict[str, dict[tuple[str, int], str]] = {}
    for text in re.findall(r"<pre>(.*?)</pre>", _printed("Protocol"), re.DOTALL):
        head = re.match(r"(\w+) (Request|Response) \(Version: (\d+)\)", text)
        if head is not None:
            layout = html.unescape(text).rstrip()
            layouts.setdefault(head[1], {})[head[2], int(head[3])] = layout
    cells = re.findall(
        r"<tr><td>(\w+)</td><td>(-?\d+)</td><td>(\w+)</td><td>(.*?)</td></tr>", _printed("Errors")
    )
    errors = {
        (name, int(code)): (retriable == "True", html.unescape(text))
        for name, code, retriable, text in cells
    }
    return NewestProtocol(layouts, errors)


def _printed(name: str) -> str:
    """Return what a class of Kafka's package `common.protocol` prints."""
    classpath = ":".join(map(str, ensure_jars(JARS)))
    # A JVM that starts fast, which is all that it does.
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath]
    command = [str(find_java()), *flags, f"org.apache.kafka.common.protocol.{name}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def gaps() -> Iterator[Gap]:
    """Yield what this project lacks, also what `ACCEPTED` names."""
    newest = newest_protocol()
    ours = {request.API_NAME: request for request in REQUESTS.values()}
    for api, layouts in newest.layouts.items():
        versions = sorted({version for _, version in layouts})
        request = ours.get(api)
        if request is None:
            yield Gap(api, f"versions {versions[0]} to {versions[-1]}")
            continue
        for version in versions:
            if version > request.MAX_VERSION:
                yield Gap(f"{api} {version}", layouts["Request", version])
    known = {(row.name, int(row)): row.retriable for row in ErrorCode}
    for (name, code), (is_retriable, text) in newest.errors.items():
        if known.get((name, code)) is not is_retriable:
            yield Gap(f"error {code} {name}", f"retriable: {is_retriable}; {text}")


def differences() -> Iterator[str]:
    """Yield our layout and Kafka's for each version of a message where they differ."""
    layouts = newest_protocol().layouts
    for request in REQUESTS.values():
        for cls, kind in ((request, "Request"), (request.RESPONSE, "Response")):
            for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
                theirs = layouts.get(request.API_NAME, {}).get((kind, version))
                if theirs is not None and theirs != (ours := _layout(cls, kind, version)):
                    yield f"ours:\n{ours}\nKafka's:\n{theirs}"


# --- our declarations in the notation of Kafka's page ---------------------------------------------


def _layout(cls: type[Message], kind: str, version: int) -> str:
    flexible = is_flexible(cls, version)
    head = f"{cls.API_NAME} {kind} (Version: {version}) => {_names(cls, version, flexible)}"
    return "\n".join([head, *_lines(cls, version, flexible, "  ")])


def _present(cls: type[Any], version: int) -> list[Field]:
    """The fields of a version, tagged ones at the end."""
    present = [row for row in fields(cls) if row.exists(version)]
    return sorted(present, key=lambda row: -1 if row.tag is None else row.tag)


def _names(cls: type[Any], version: int, flexible: bool) -> str:
    words = []
    for row in _present(cls, version):
        if row.tag is not None:
            words.append(f"{row.name}<tag: {row.tag}>")
        elif isinstance(row.wire_type, ArrayOf):
            array = f"({row.name})" if flexible else f"[{row.name}]"
            words.append(("?" if row.nullable(version) else "") + array)
        else:
            words.append(row.name)
    return " ".join(["{", *words, "}"])


def _lines(cls: type[Any], version: int, flexible: bool, indent: str) -> Iterator[str]:
    for row in _present(cls, version):
        name = row.name if row.tag is None else f"{row.name}<tag: {row.tag}>"
        is_array = isinstance(row.wire_type, ArrayOf)
        element: Any = (
            row.wire_type.element if isinstance(row.wire_type, ArrayOf) else row.wire_type
        )
        nullable = row.nullable(version) and not is_array
        if isinstance(element, Primitive):
            yield f"{indent}{name} => {_type_name(element, nullable, flexible)}"
        else:
            question = "?" if nullable else ""
            yield f"{indent}{name} => {question}{_names(element, version, flexible)}"
            yield from _lines(element, version, flexible, f"{indent}  ")


def _type_name(kind: Primitive[Any], nullable: bool, flexible: bool) -> str:
    if kind.code:
        return "BOOLEAN" if kind.name == "bool" else kind.name.upper()
    if kind is UUID:
        return "UUID"
    words = ["COMPACT"] if flexible else []
    words += ["NULLABLE"] if nullable else []
    return "_".join([*words, "RECORDS" if kind is RECORDS else kind.name.upper()])


def main() -> int:
    """Print all gaps, and return 1 if one of them is not accepted."""
    new = []
    for gap in gaps():
        reason = ACCEPTED.get(gap.name)
        if reason is None:
            new.append(gap.name)
        print(f"{gap.name}: {gap.text if reason is None else f'accepted: {reason}'}")
    print(f"Kafka {NEWEST_KAFKA}: {', '.join(new) or 'nothing else'} is missing")
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
