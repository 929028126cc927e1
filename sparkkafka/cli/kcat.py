"""kcat's options: `sparkkafka -b host -C -t topic -e` does what kcat does.

    -C consume   -P produce   -L list metadata   -Q offsets of times

The output is kcat's, byte for byte where formats are shared (see `text_formats.py`). A letter that
is not supported is an error that names it: none is ignored.
"""

from __future__ import annotations

import getopt
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sparkkafka.cli.session import Session
from sparkkafka.errors import OptionError, exclusive

if TYPE_CHECKING:
    from sparkkafka.cli.read import Bound
    from sparkkafka.client.admin.topics import PartitionDescription

# kcat's own getopt string, so that arguments are split as kcat splits them.
_LETTERS: Final = "PCG:LQt:p:b:z:o:eED:K:k:H:Od:qvF:X:c:Tuf:ZlVhs:r:Jm:U"
_LONG: Final = ("profile=", "timeout=", "debug", "bootstrap-server=", "config-file=", "property=")
_MODES: Final = ("-C", "-P", "-L", "-Q", "-G")
_SESSION_OPTIONS: Final = {
    "-b": "bootstrap_server",
    "--bootstrap-server": "bootstrap_server",
    "-F": "config_file",
    "--config-file": "config_file",
    "--profile": "profile",
}
_ALTERNATIVES: Final = {
    "-G": "`read TOPIC --group GROUP` begins at a group's offsets, and joins no group",
    "-O": "-f '%o %s\\n' shows offsets",
    "-E": "errors that are no end are retried anyway",
    "-d": "--debug shows more",
    "-v": "--debug shows more",
    "-V": "`sparkkafka --version`",
    "-h": "`sparkkafka --help`",
    "-U": "there is none",
    "--json": "-C and -L print JSON with -J",
}


def run_if_kcat(arguments: Sequence[str], session: Session) -> bool:
    """Run kcat's arguments, if one of its modes stands before any verb. Return whether that is so.

    Raises OptionError, also for -t without a mode, which kcat guesses; and what read and write
    raise.
    """
    letters = _letters_before_verb(arguments)
    if any(letter in _MODES for letter in letters):
        parsed = _parse(arguments, session)
        {"-C": _consume, "-P": _produce, "-L": _list, "-Q": _query}[parsed.mode](parsed, session)
        return True
    if "-t" in letters:
        raise OptionError("-t needs a mode beside it: -C reads, -P writes (or name a verb: --help)")
    return False


def _letters_before_verb(arguments: Sequence[str]) -> list[str]:
    """Return the options before the first argument that is not an option (a verb). If one of them
    is not kcat's, only kcat's modes among all arguments."""
    try:
        options, _ = getopt.getopt(list(arguments), _LETTERS, list(_LONG))
    except getopt.GetoptError:
        return [text[:2] for text in arguments if text[:2] in _MODES]
    return [letter for letter, _ in options]


@dataclass
class _Arguments:
    """The parsed arguments: `values` by option ("-t"), and `files`, which follow no option."""

    mode: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def last(self, letter: str) -> str | None:
        """Return the last value of a letter; None if it is not given."""
        return self.values[letter][-1] if letter in self.values else None

    def has(self, letter: str) -> bool:
        """Whether a letter is given."""
        return letter in self.values

    def integer(self, letter: str) -> int | None:
        """Return the last value of a letter as a number. Raises OptionError."""
        text = self.last(letter)
        if text is None:
            return None
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise OptionError(f"{letter} is a whole number, got {text!r}")
        return int(text)

    def count(self) -> int | None:
        """Return the value of -c. Raises OptionError."""
        count = self.integer("-c")
        if count is not None and count < 1:
            raise OptionError(f"-c is a number above 0, got {count}")
        return count

    def delimiters(self) -> tuple[bytes, bytes | None]:
        """Return the delimiters of records and of keys."""
        from sparkkafka.cli.text_formats import parse_delimiters

        return parse_delimiters(self.values.get("-D", ["\\n"])[-1], self.last("-K"))

    @property
    def topic(self) -> str:
        """The value of -t. Raises OptionError unless there is exactly one."""
        topics = self.values.get("-t", [])
        if len(topics) != 1:
            raise OptionError(f"{self.mode} needs one topic: -t TOPIC")
        return topics[0]


def _parse(arguments: Sequence[str], session: Session) -> _Arguments:
    """Parse the arguments, and pass the options of all verbs to the session. Raises OptionError."""
    # gnu_getopt: as in kcat, letters may stand after file names.
    try:
        options, files = getopt.gnu_getopt(list(arguments), _LETTERS, list(_LONG))
    except getopt.GetoptError as error:
        letters = _letters_before_verb(arguments)
        mode = next((letter for letter in letters if letter in _MODES), "kcat's options")
        hint = _ALTERNATIVES.get(f"--{error.opt}", "see kcat-compatible options in docs/cli.md")
        raise OptionError(f"{mode}: {error.msg}; {hint}") from None
    parsed = _Arguments(files=files)
    for letter, value in options:
        if letter == "-G":
            raise OptionError(f"-G is not here: {_ALTERNATIVES['-G']}")
        if letter in _MODES:
            if parsed.mode not in ("", letter):
                raise exclusive(parsed.mode, letter)
            parsed.mode = letter
        elif letter in _SESSION_OPTIONS:
            session.set_option(_SESSION_OPTIONS[letter], value)
        elif letter in ("-X", "--property"):
            if value in ("list", "dump"):
                raise OptionError(f"-X {value} is not here: the docs list all settings")
            session.set_option("property", [value.removeprefix("topic.")])
        elif letter in ("-m", "--timeout"):
            try:
                timeout_s = float(value)
            except ValueError:
                raise OptionError(f"{letter} is a number of seconds, got {value!r}") from None
            session.set_option("timeout", timeout_s)
        elif letter == "--debug":
            session.set_option("debug", True)
        else:
            parsed.values.setdefault(letter, []).append(value)
    # The letters that each mode takes, besides those above.
    supported = {"-C": "tqpoefJDKcZusr", "-P": "tqpDKkcZHzlT", "-L": "tqJ", "-Q": "tq"}
    for letter in parsed.values:
        if letter[1:] not in supported[parsed.mode]:
            hint = f": {_ALTERNATIVES[letter]}" if letter in _ALTERNATIVES else ""
            raise OptionError(f"{parsed.mode} has no {letter} here{hint}")
    if parsed.files and parsed.mode != "-P":
        raise OptionError(f"{parsed.mode} takes no {parsed.files[0]!r}: a topic is -t TOPIC")
    return parsed


# --- -C ------------------------------------------------------------------------------------------


def _consume(parsed: _Arguments, session: Session) -> None:
    """Run -C: read a topic."""
    from sparkkafka.cli.format_flags import TEXT
    from sparkkafka.cli.read import Output, ReadPlan, read_topic
    from sparkkafka.cli.text_formats import Nulls

    partition = parsed.integer("-p")
    if partition is not None and partition < 0:
        raise OptionError(f"-p of -C is a partition, got {partition}")
    start, until = _bounds(parsed)
    output = Output(
        format="json" if parsed.has("-J") else TEXT,
        template=parsed.last("-f"),
        delimiters=parsed.delimiters(),
        nulls=Nulls(b"NULL", and_empty=True) if parsed.has("-Z") else Nulls(),
        prints_ends=parsed.has("-e") and not parsed.has("-q"),
    )
    plan = ReadPlan(
        topic=parsed.topic,
        partitions=None if partition is None else (partition,),
        start=start,
        until=until,
        count=parsed.count(),
    )
    read_topic(session, plan, output, None, _format_options(parsed, session))


def _bounds(parsed: _Arguments) -> tuple[Bound, Bound | None]:
    """Return where reading starts and where it ends (None: never), from -o and -e. -o may be given
    twice: s@MS and e@MS are the times of the first and of the end."""
    from sparkkafka.cli.read import Bound, parse_bound

    start = Bound("earliest")
    until = Bound("latest") if parsed.has("-e") else None
    for text in parsed.values.get("-o", []):
        side, at_sign, number = text.partition("@")
        if not at_sign or side not in ("s", "e"):
            start = parse_bound(text, "-o")
            continue
        if not re.fullmatch("[0-9]{1,18}", number):
            raise OptionError(f"-o {side}@ is a time in ms since 1970, got {text!r}")
        if side == "e":
            until = Bound("time", int(number))
        else:
            start = Bound("time", int(number))
    return start, until


def _format_options(parsed: _Arguments, session: Session) -> dict[str, str]:
    """Translate -s avro, -s key=avro and -r URL. kcat's pack strings are not supported."""
    options: dict[str, str] = {}
    for text in parsed.values.get("-s", []):
        named_column, equals, name = text.rpartition("=")
        if name != "avro" or named_column not in ("", "key", "value"):
            raise OptionError(f"-s is avro, key=avro or value=avro, got {text!r}")
        for column in (named_column,) if equals else ("key", "value"):
            options[f"{column}Format"] = name
    url = parsed.last("-r")
    if url is not None and not options:
        raise OptionError("-r has no effect without -s avro")
    if options:
        options |= session.registry_options()
    if url is not None:
        options["schema.registry.url"] = url
    return options


# --- -P ------------------------------------------------------------------------------------------


def _produce(parsed: _Arguments, session: Session) -> None:
    """Run -P: write to a topic."""
    from sparkkafka.cli.commands import parse_headers
    from sparkkafka.cli.files import LineFormat
    from sparkkafka.cli.write import Input, write_topic

    partition = parsed.integer("-p")
    count = parsed.count()
    settings = {}
    if not {"partitioner.class", "partitioner"} & session.settings("producer").keys():
        # librdkafka's default, so that keys go to the same partitions as with kcat.
        settings["partitioner.class"] = "random" if partition == -1 else "consistent_random"
    if (codec := parsed.last("-z")) is not None:
        settings["compression.type"] = codec
    key = parsed.last("-k")
    lines = LineFormat(*parsed.delimiters(), empty_is_null=parsed.has("-Z"), skips_empty=True)
    paths: list[Path | None] = [Path(name) for name in parsed.files] or [None]
    if parsed.has("-l") and (len(paths) != 1 or paths[0] is None):
        raise OptionError("-l needs one file")
    if len(paths) > 1 and count is not None:
        raise OptionError("-c is for lines: of files each is one record")
    for path in paths:
        is_record = path is not None and not parsed.has("-l")
        write_topic(
            session,
            parsed.topic,
            Input(
                path=path,
                kind="record" if is_record else "lines",
                lines=lines,
                key=None if key is None else os.fsencode(key),
                headers=parse_headers(parsed.values.get("-H", [])),
                partition=partition if partition is not None and partition >= 0 else None,
                count=count,
                tee=parsed.has("-T"),
            ),
            settings,
            {},
        )


# --- -L and -Q -----------------------------------------------------------------------------------


def _list(parsed: _Arguments, session: Session) -> None:
    """Run -L: print metadata in kcat's layout. In place of the broker that answered it names the
    first broker of the list."""
    with session.admin() as admin:
        cluster = admin.describe_cluster()
        names = parsed.values.get("-t") or list(admin.list_topics(include_internal=True))
        topics = admin.describe_topics(names).all().values()
    brokers = [
        {"id": broker.node_id, "name": f"{broker.host}:{broker.port}"}
        for broker in sorted(cluster.brokers)
    ]
    first = brokers[0]["id"]
    origin = f"{brokers[0]['name']}/{first}"
    if parsed.has("-J"):
        document = {
            "originating_broker": {"id": first, "name": origin},
            "query": {"topic": parsed.last("-t") or "*"},
            "controllerid": -1 if cluster.controller_id is None else cluster.controller_id,
            "brokers": brokers,
            "topics": [
                {
                    "topic": topic.name,
                    "partitions": [
                        {
                            "partition": row.partition,
                            "leader": _leader_id(row),
                            "replicas": [{"id": node_id} for node_id in row.replicas],
                            "isrs": [{"id": node_id} for node_id in row.isr],
                        }
                        for row in topic.partitions
                    ],
                }
                for topic in topics
            ],
        }
        sys.stdout.write(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
        return
    lines = [
        f"Metadata for {parsed.last('-t') or 'all topics'} (from broker {first}: {origin}):",
        f" {len(brokers)} brokers:",
    ]
    for broker in brokers:
        mark = " (controller)" if broker["id"] == cluster.controller_id else ""
        lines.append(f"  broker {broker['id']} at {broker['name']}{mark}")
    lines.append(f" {len(topics)} topics:")
    for topic in topics:
        lines.append(f'  topic "{topic.name}" with {len(topic.partitions)} partitions:')
        for row in topic.partitions:
            replicas, isrs = (",".join(map(str, ids)) for ids in (row.replicas, row.isr))
            error = ", Broker: Leader not available" if row.leader is None else ""
            lines.append(
                f"    partition {row.partition}, leader {_leader_id(row)}, replicas: {replicas}, "
                f"isrs: {isrs}{error}"
            )
    _print_lines(lines)


def _leader_id(partition: PartitionDescription) -> int:
    """Return the node id of a partition's leader; -1 without one."""
    return -1 if partition.leader is None else partition.leader


def _query(parsed: _Arguments, session: Session) -> None:
    """Run -Q: print the first offset at or after the time of each -t TOPIC:PARTITION:MS; -1 if
    there is none."""
    from sparkkafka.client.cluster.offsets import OffsetSpec
    from sparkkafka.client.values import TopicPartition

    specs: dict[TopicPartition, OffsetSpec] = {}
    for text in parsed.values.get("-t", []):
        match = re.fullmatch(r"(.+):([0-9]{1,9}):(-[12]|[0-9]{1,18})", text)
        if match is None:
            raise OptionError(f"-Q needs -t TOPIC:PARTITION:MS, got {text!r}")
        tp = TopicPartition(match[1], int(match[2]))
        if tp in specs:
            raise OptionError(f"-t names partition {tp} twice")
        specs[tp] = OffsetSpec(int(match[3]))  # for both, -1 is the end, and -2 the earliest
    if not specs:
        raise OptionError("-Q needs -t TOPIC:PARTITION:MS")
    with session.admin() as admin:
        offsets = admin.list_offsets(specs).all()
    _print_lines(f"{tp.topic} [{tp.partition}] offset {row.offset}" for tp, row in offsets.items())


def _print_lines(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
