"""kcat's letters: `sparkkafka -b host -C -t topic -e` does what kcat does.

    -C consume   -P produce   -L list metadata   -Q offsets of times

Output is kcat's, byte for byte where formats are shared (see `formats.py`). A letter that is not
here is an error that names it: none is taken and ignored.
"""

from __future__ import annotations

import getopt
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sparkkafka.cli.session import Session
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from sparkkafka.cli.read import Place
    from sparkkafka.client.admin.topics import TopicDescription

# kcat's own table (getopt of its main), so that what follows a letter is read as kcat reads it.
_LETTERS: Final = "PCG:LQt:p:b:z:o:eED:K:k:H:Od:qvF:X:c:Tuf:ZlVhs:r:Jm:U"
_LONG: Final = ("profile=", "timeout=", "debug", "bootstrap-server=", "config-file=", "property=")
_MODES: Final = ("-C", "-P", "-L", "-Q", "-G")
_OURS: Final = {
    "-b": "bootstrap_server",
    "--bootstrap-server": "bootstrap_server",
    "-F": "config_file",
    "--config-file": "config_file",
    "--profile": "profile",
}

_SHARED: Final = frozenset({"-t", "-q"})
_TAKEN: Final = {
    "-C": _SHARED
    | frozenset(["-p", "-o", "-e", "-f", "-J", "-D", "-K", "-c", "-Z", "-u", "-s", "-r"]),
    "-P": _SHARED | frozenset(["-p", "-D", "-K", "-k", "-c", "-Z", "-H", "-z", "-l", "-T"]),
    "-L": _SHARED | frozenset({"-J"}),
    "-Q": _SHARED,
}
_INSTEAD: Final = {
    "-G": "`read TOPIC --group GROUP` begins at a group's offsets, and joins no group",
    "-O": "-f '%o %s\\n' shows offsets",
    "-E": "errors that are no end are retried anyway",
    "-d": "--debug shows more",
    "-v": "--debug shows more",
    "-V": "`sparkkafka --version`",
    "-h": "`sparkkafka --help`",
    "-U": "there is none",
}


def is_kcat(arguments: Sequence[str]) -> bool:
    """Whether these are kcat's: one of its modes stands before any verb."""
    try:
        options, _ = getopt.getopt(list(arguments), _LETTERS, list(_LONG))
    except getopt.GetoptError:
        return False
    return any(letter in _MODES for letter, _ in options)


def check_mode(arguments: Sequence[str]) -> None:
    """Raises OptionError for a topic as kcat has it, without a mode: kcat guesses it."""
    try:
        options, _ = getopt.getopt(list(arguments), _LETTERS, list(_LONG))
    except getopt.GetoptError:
        return
    if "-t" in dict(options):
        raise OptionError("-t needs a mode beside it: -C reads, -P writes (or name a verb: --help)")


@dataclass
class _Given:
    """The letters, sorted out."""

    mode: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    def last(self, letter: str) -> str | None:
        return self.values[letter][-1] if letter in self.values else None

    def has(self, letter: str) -> bool:
        return letter in self.values

    def whole(self, letter: str) -> int | None:
        text = self.last(letter)
        if text is None:
            return None
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise OptionError(f"{letter} is a whole number, got {text!r}")
        return int(text)

    @property
    def topic(self) -> str:
        found = self.values.get("-t", [])
        if len(found) != 1:
            raise OptionError(f"{self.mode} needs one topic: -t TOPIC")
        return found[0]


def run(arguments: Sequence[str], session: Session) -> None:
    """Does what the letters say. Raises OptionError, and what read and write raise."""
    given = _parsed(arguments, session)
    {"-C": _consume, "-P": _produce, "-L": _list, "-Q": _query}[given.mode](given, session)


def _parsed(arguments: Sequence[str], session: Session) -> _Given:
    # As in kcat, letters may stand behind names; what no letter takes are files.
    options, rest = getopt.gnu_getopt(list(arguments), _LETTERS, list(_LONG))
    given = _Given(rest=rest)
    for letter, value in options:
        if letter == "-G":
            raise OptionError(f"-G is not here: {_INSTEAD['-G']}")
        if letter in _MODES:
            if given.mode not in ("", letter):
                raise OptionError(f"{given.mode} and {letter} exclude each other")
            given.mode = letter
        elif letter in _OURS:
            session.give(_OURS[letter], value)
        elif letter in ("-X", "--property"):
            _property(value, session)
        elif letter in ("-m", "--timeout"):
            session.give("timeout", _seconds(letter, value))
        elif letter == "--debug":
            session.give("debug", True)
        else:
            given.values.setdefault(letter, []).append(value)
    for letter in given.values:
        if letter not in _TAKEN[given.mode]:
            instead = f": {_INSTEAD[letter]}" if letter in _INSTEAD else ""
            raise OptionError(f"{given.mode} has no {letter} here{instead}")
    if given.rest and given.mode != "-P":
        raise OptionError(f"{given.mode} takes no {given.rest[0]!r}: a topic is -t TOPIC")
    return given


def _property(text: str, session: Session) -> None:
    if text in ("list", "dump"):
        raise OptionError(f"-X {text} is not here: the docs list all settings")
    session.give("property", [text.removeprefix("topic.")])


def _seconds(letter: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{letter} is a number of seconds, got {text!r}") from None


# --- -C ------------------------------------------------------------------------------------------


def _consume(given: _Given, session: Session) -> None:
    from sparkkafka.cli.format_flags import TEXT
    from sparkkafka.cli.read import EARLIEST, JSON_LINES, Output, Place, ReadPlan, read_topic
    from sparkkafka.cli.text_formats import Nulls, unescaped

    partition = given.whole("-p")
    if partition is not None and partition < 0:
        raise OptionError(f"-p of -C is a partition, got {partition}")
    start, until = _places(given)
    key_delimiter = given.last("-K")
    count = given.whole("-c")
    if count is not None and count < 1:
        raise OptionError(f"-c is a number above 0, got {count}")
    output = Output(
        format=JSON_LINES if given.has("-J") else TEXT,
        template=given.last("-f"),
        delimiter=unescaped(given.last("-D") or "\\n", "-D"),
        key_delimiter=None if key_delimiter is None else unescaped(key_delimiter, "-K"),
        nulls=Nulls(b"NULL", and_empty=True) if given.has("-Z") else Nulls(),
    )
    plan = ReadPlan(
        topic=given.topic,
        partitions=None if partition is None else (partition,),
        start=start or Place(EARLIEST),
        until=until,
        count=count,
    )
    read_topic(
        session,
        plan,
        output,
        group=session.settings("consumer").get("group.id"),
        format_options=_formats(given, session),
        says_ends=given.has("-e") and not given.has("-q"),
    )


def _places(given: _Given) -> tuple[Place | None, Place | None]:
    from sparkkafka.cli.read import LATEST, TIME, Place, place_of

    start: Place | None = None
    until = Place(LATEST) if given.has("-e") else None
    for text in given.values.get("-o", []):
        kind, at, number = text.partition("@")
        if at and kind in ("s", "e"):
            if not re.fullmatch("[0-9]{1,18}", number):
                raise OptionError(f"-o {kind}@ is a time in ms since 1970, got {text!r}")
            if kind == "e":
                until = Place(TIME, int(number))
                continue
            start = Place(TIME, int(number))
        else:
            start = place_of(text, "-o")
    return start, until


def _formats(given: _Given, session: Session) -> dict[str, str]:
    """-s avro, -s key=avro, -r URL. kcat's pack strings are not here."""
    options: dict[str, str] = {}
    for text in given.values.get("-s", []):
        which, equals, name = text.rpartition("=")
        if name != "avro" or which not in ("", "key", "value"):
            raise OptionError(f"-s is avro, key=avro or value=avro, got {text!r}")
        for column in (which,) if equals else ("key", "value"):
            options[f"{column}Format"] = name
    url = given.last("-r")
    if url is not None and not options:
        raise OptionError("-r has no effect without -s avro")
    if options:
        options |= session.registry_options()
    if url is not None:
        options["schema.registry.url"] = url
    return options


# --- -P ------------------------------------------------------------------------------------------


def _produce(given: _Given, session: Session) -> None:
    from sparkkafka.cli.input import LineFormat
    from sparkkafka.cli.text_formats import unescaped
    from sparkkafka.cli.write import Input, fixed_headers, write_topic

    partition = given.whole("-p")
    count = given.whole("-c")
    if count is not None and count < 1:
        raise OptionError(f"-c is a number above 0, got {count}")
    settings = {}
    # librdkafka's default, so that keys go where kcat sends them.
    settings["partitioner.class"] = "random" if partition == -1 else "consistent_random"
    if any(name in session.settings("producer") for name in ("partitioner.class", "partitioner")):
        settings = {}
    if (codec := given.last("-z")) is not None:
        settings["compression.type"] = codec
    key, key_delimiter = given.last("-k"), given.last("-K")
    lines = LineFormat(
        unescaped(given.last("-D") or "\\n", "-D"),
        None if key_delimiter is None else unescaped(key_delimiter, "-K"),
        empty_is_null=given.has("-Z"),
        skips_empty=True,
    )
    paths: list[Path | None] = [Path(name) for name in given.rest] or [None]
    if given.has("-l") and (len(paths) != 1 or paths[0] is None):
        raise OptionError("-l needs one file")
    if len(paths) > 1 and count is not None:
        raise OptionError("-c is for lines: of files each is one record")
    for path in paths:
        is_record = path is not None and not given.has("-l")
        write_topic(
            session,
            given.topic,
            Input(
                path=path,
                lines=None if is_record else lines,
                whole=is_record,
                key=None if key is None else os.fsencode(key),
                headers=fixed_headers(given.values.get("-H", [])),
                partition=partition if partition is not None and partition >= 0 else None,
                count=count,
            ),
            settings=settings,
            tee=given.has("-T"),
        )


# --- -L and -Q -----------------------------------------------------------------------------------


def _list(given: _Given, session: Session) -> None:
    """kcat's own layout. Whom it asked kcat knows; here it is the first broker of the list."""
    with session.admin() as admin:
        cluster = admin.describe_cluster()
        names = given.values.get("-t") or list(admin.list_topics(include_internal=True))
        topics = list(admin.describe_topics(names).all().values())
    brokers = sorted(cluster.brokers)
    if given.has("-J"):
        _list_json(brokers, cluster.controller_id, topics, given)
        return
    first = brokers[0]
    what = given.last("-t") or "all topics"
    lines = [
        f"Metadata for {what} (from broker {first.node_id}: "
        f"{first.host}:{first.port}/{first.node_id}):",
        f" {len(brokers)} brokers:",
    ]
    for one in brokers:
        mark = " (controller)" if one.node_id == cluster.controller_id else ""
        lines.append(f"  broker {one.node_id} at {one.host}:{one.port}{mark}")
    lines.append(f" {len(topics)} topics:")
    for topic in topics:
        lines.append(f'  topic "{topic.name}" with {len(topic.partitions)} partitions:')
        for row in topic.partitions:
            leader = -1 if row.leader is None else row.leader
            replicas = ",".join(map(str, row.replicas))
            isrs = ",".join(map(str, row.isr))
            lack = ", Broker: Leader not available" if row.leader is None else ""
            lines.append(
                f"    partition {row.partition}, leader {leader}, replicas: {replicas}, "
                f"isrs: {isrs}{lack}"
            )
    _print(lines)


def _list_json(
    brokers: list[Any], controller: int | None, topics: list[TopicDescription], given: _Given
) -> None:
    import json

    def name(one: Any) -> str:
        return f"{one.host}:{one.port}"

    first = brokers[0]
    found = {
        "originating_broker": {
            "id": first.node_id,
            "name": f"{name(first)}/{first.node_id}",
        },
        "query": {"topic": given.last("-t") or "*"},
        "controllerid": -1 if controller is None else controller,
        "brokers": [{"id": one.node_id, "name": name(one)} for one in brokers],
        "topics": [
            {
                "topic": topic.name,
                "partitions": [
                    {
                        "partition": row.partition,
                        "leader": -1 if row.leader is None else row.leader,
                        "replicas": [{"id": number} for number in row.replicas],
                        "isrs": [{"id": number} for number in row.isr],
                    }
                    for row in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    sys.stdout.write(json.dumps(found, separators=(",", ":"), ensure_ascii=False))


def _query(given: _Given, session: Session) -> None:
    """-t TOPIC:PARTITION:MS, several times: the first offset of that time; -1 if there is none."""
    from sparkkafka.client.cluster.offsets import OffsetSpec
    from sparkkafka.client.values import TopicPartition

    wanted: dict[TopicPartition, OffsetSpec] = {}
    for text in given.values.get("-t", []):
        match = re.fullmatch(r"(.+):([0-9]{1,9}):(-[12]|[0-9]{1,18})", text)
        if match is None:
            raise OptionError(f"-Q needs -t TOPIC:PARTITION:MS, got {text!r}")
        tp = TopicPartition(match[1], int(match[2]))
        if tp in wanted:
            raise OptionError(f"-t names partition {tp} twice")
        wanted[tp] = OffsetSpec(int(match[3]))
    if not wanted:
        raise OptionError("-Q needs -t TOPIC:PARTITION:MS")
    with session.admin() as admin:
        found = admin.list_offsets(wanted).all()
    _print(f"{tp.topic} [{tp.partition}] offset {row.offset}" for tp, row in found.items())


def _print(lines: Any) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
