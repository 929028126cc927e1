"""`resolve_offsets` and `commit`: batch jobs that read what is new since their last run.

Spark plans a read in another process, and a task binds the end of the log itself: the program that
runs the job cannot know which offsets a DataFrame has read. So it resolves the offsets first, reads
exactly these, and commits their end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.group.committed_offsets import commit_group_offsets
from sparkkafka.client.values import OffsetAndMetadata, by_topic
from sparkkafka.config.option_table import CONNECTOR
from sparkkafka.config.options import ReadOptions, parse_read_options
from sparkkafka.config.source import encode_topic_id, tree_of_offsets
from sparkkafka.errors import OptionError
from sparkkafka.spark.delegation_tokens import with_token
from sparkkafka.spark.metric_reports import Report
from sparkkafka.spark.read import data_loss, input_partitions
from sparkkafka.spark.read.offset_reader import OffsetReader


def resolve_offsets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Look up now which offsets a batch read with these options reads, and return the options of a
    read of exactly these.

    The result has the partitions as `assign`, their offsets as JSON in `startingOffsets` and
    `endingOffsets`, and the ids of their topics in `topicIds` (Kafka 2.8 and later); the other
    options are unchanged. If both texts of offsets are equal, there is nothing to read. Pass it to
    the read, and to `commit` once the output is written:

        new = sparkkafka.resolve_offsets(options)  # with kafka.group.id, and
        # startingOffsets=committed,earliest
        df = spark.read.format("pykafka").options(**new).load()
        df.write.mode("append").parquet("orders")
        sparkkafka.commit(new)

    With Spark Connect, too, this runs in the program that calls it, which must reach the brokers.

    Raises OptionError, DataLossError if records were deleted before they were read (with
    failOnDataLoss=false a warning; the read starts at the first one that exists), or a connection's
    or broker's error.
    """
    parsed = replace(_parse_options(options, "resolve_offsets"), bind_offsets="plan")
    input_partitions.check_bounds(parsed.starting, parsed.ending)
    report = Report()
    with Cluster(parsed.client) as cluster:
        reader = OffsetReader(cluster, parsed)
        starts, ends, losses = reader.with_attempts(
            "looking up the offsets of the read", reader.batch_offsets, report
        )
        topic_ids = reader.topic_ids(ends)
    if losses:
        data_loss.apply_fail_on_data_loss(losses, report, fail=parsed.fail_on_data_loss)
    report.send(parsed.metrics_address)
    if not ends:
        raise OptionError(
            f"subscribePattern {parsed.subscription.pattern!r} matches no topic: there are no "
            "offsets to read. Create a topic, or change the pattern"
        )
    ids = {name: encode_topic_id(known) for name, known in sorted(topic_ids.items()) if known}
    replaced = {
        row.name.lower()
        for row in CONNECTOR
        if row.field in ("read.subscription", "read.starting", "read.ending", "read.topic_ids")
    }
    return {
        **{name: value for name, value in options.items() if name.lower() not in replaced},
        "assign": json.dumps(by_topic(sorted(ends))),
        "startingOffsets": json.dumps(tree_of_offsets(starts)),
        "endingOffsets": json.dumps(tree_of_offsets(ends)),
        **({"topicIds": json.dumps(ids)} if ids else {}),
    }


def commit(options: Mapping[str, Any], group: str | None = None) -> None:
    """Commit the `endingOffsets` of a batch read to a consumer group.

    `options` are those that `resolve_offsets` returned and with which the DataFrame was loaded.
    `group` is the group's name, `kafka.group.id` of the options if it is not given. Call this after
    the output is written. If the job dies before, the next run reads the same records again, and
    newer ones.

    Raises OptionError if `endingOffsets` is not an offset for each partition (`latest` would commit
    records that nobody has read), UnknownTopicError if a topic was deleted, or recreated since
    `resolve_offsets`, BrokerError if the group has active members or the broker refuses for another
    reason, or a connection's error. A part of the partitions may be committed then.
    """
    parsed = _parse_options(options, "commit")
    ending = parsed.ending
    if ending.kind != "specific" or min(ending.offsets.values(), default=-1) < 0:
        raise OptionError(
            "commit needs endingOffsets with an offset for each partition: a read to latest, or to "
            "a time, does not say where it ended. Pass what resolve_offsets(options) returned, and "
            "load the DataFrame with it, too"
        )
    group_id = parsed.group_id if group is None else group
    if not group_id:
        raise OptionError("commit needs the name of the group: set kafka.group.id, or pass group")
    offsets = {tp: OffsetAndMetadata(offset) for tp, offset in ending.offsets.items()}
    ids = {tp: parsed.topic_ids[tp.topic] for tp in offsets if tp.topic in parsed.topic_ids}
    with Cluster(parsed.client) as cluster:
        commit_group_offsets(cluster, group_id, offsets, topic_ids=ids)


def _parse_options(options: Mapping[str, Any], function: str) -> ReadOptions:
    """Parse the options of a batch read. Raises OptionError, also for a DataFrame."""
    if not isinstance(options, Mapping):
        raise OptionError(
            f"{function} takes the options of a read, not {type(options).__name__}: a DataFrame "
            "does not say which offsets it has read. Use new = resolve_offsets(options), "
            "spark.read.format('pykafka').options(**new).load() and, after the output is written, "
            "commit(new)"
        )
    return parse_read_options(with_token(options))
