"""Offsets in the progress of streaming queries: what a query has read, and how far behind it is.

Spark reports the offsets of each source as JSON; those of Kafka sources are {"topic": {"0": 23}}.
PySpark 4.0 and 4.1 tell a query's own `lastProgress` as the text of a Python dictionary instead.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sparkkafka.client.values import TopicPartition
from sparkkafka.config.offset_json import offsets_of_tree
from sparkkafka.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

Offsets = dict[TopicPartition, int]

# Any Python source is called by Spark's class, so ours is not told from another one's by it.
_MAY_BE_KAFKA = ("PythonMicroBatchStream", "KafkaV2[")

# Spark 4.0 and 4.1 show the end of the batch as latestOffset of a Python source.
_LATEST_IS_REPORTED = find_spec("pyspark.sql.streaming.datasource") is not None


def lag(
    query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any] | str | None,
    options: Mapping[str, Any] | None = None,
) -> Offsets:
    """How many offsets the query's last micro-batch left unread, by partition.

    `query` is a streaming query, one of its progress reports, or such a report as a dictionary or
    as JSON; of several Kafka sources each partition counts once, with its largest lag. Empty if
    there was no batch yet.

    Behind what? Without `options`, behind the end of the log when Spark asked for it before the
    batch: that is in the report of Spark 4.2 and later, but for a batch that was repeated after
    a restart; where it is not, this raises OptionError. With `options`, those of the query
    (`kafka.bootstrap.servers`, …), the brokers are asked now, which always works and raises what
    looking up offsets raises.

    Sources that are not Kafka's do not count. OptionError too if a source may be Kafka's and what
    the report says of its offsets cannot be read.
    """
    sources = _sources(query)
    behind: Offsets = {}
    ends = _ends_now(options, sources) if options is not None else None
    for read, latest in sources:
        known = latest if ends is None else ends
        if known is None:
            why = (
                "its last batch is one that was repeated after a restart"
                if _LATEST_IS_REPORTED
                else "Spark 4.2 and later does"
            )
            raise OptionError(
                f"the progress of this query does not say where the logs end ({why}); pass the "
                "query's options to ask the brokers: lag(query, options)"
            )
        for tp, offset in read.items():
            if tp in known:
                behind[tp] = max(behind.get(tp, 0), known[tp] - offset)
    return dict(sorted(behind.items()))


def read_until(progress: Any) -> Offsets:
    """The offsets that the reported batch has read up to, of all Kafka sources of the query.

    Where two sources read one partition, the smaller one: so far all of them are. Raises
    OptionError if what a source that may be Kafka's reports cannot be read.
    """
    until: Offsets = {}
    for read, _ in _sources(progress):
        for tp, offset in read.items():
            until[tp] = min(offset, until.get(tp, offset))
    return until


def _sources(query: Any) -> list[tuple[Offsets, Offsets | None]]:
    """(end of the batch, end of the log if it is known) of each Kafka source of a report."""
    progress = getattr(query, "lastProgress", query)
    if progress is None:
        return []
    if isinstance(progress, str):
        try:
            progress = json.loads(progress)
        except ValueError:
            raise OptionError(
                f"lag() takes a query, a report of its progress, or that as JSON, not "
                f"{progress[:100]!r}"
            ) from None
    found = []
    for source in _get(progress, "sources") or ():
        description = str(_get(source, "description"))
        read = _offsets(_get(source, "endOffset"), description)
        if read is not None:
            latest = None
            if _LATEST_IS_REPORTED:
                latest = _offsets(_get(source, "latestOffset"), description)
            found.append((read, latest))
    return found


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _offsets(value: Any, description: str) -> Offsets | None:
    """None for what is not the offsets of a Kafka source, or none at all."""
    try:
        tree = _parsed(value) if isinstance(value, str) else value
    except ValueError:
        if any(name in description for name in _MAY_BE_KAFKA):
            raise OptionError(
                f"the progress of this query reports offsets of the source {description} that "
                f"cannot be read: {value[:200]!r} is neither JSON nor a dictionary of Python's"
            ) from None
        return None
    if not isinstance(tree, Mapping):
        return None
    try:
        return {TopicPartition(*key): at for key, at in offsets_of_tree(tree).items()}
    except OptionError:  # another source's
        return None


def _parsed(text: str) -> Any:
    """What JSON stands for, or the text of a Python value (see the top). Raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _ends_now(
    options: Mapping[str, Any], sources: Iterable[tuple[Offsets, Offsets | None]]
) -> Offsets:
    from sparkkafka.client.cluster.cluster import Cluster
    from sparkkafka.client.cluster.offsets import LATEST, list_offsets
    from sparkkafka.config.options import parse_group_options

    given = parse_group_options(options)
    with Cluster(given.client) as cluster:
        listed = list_offsets(
            cluster,
            {tp: LATEST for read, _ in sources for tp in read},
            isolation_level=given.isolation_level,
        )
    return {tp: row.offset for tp, row in listed.items()}
