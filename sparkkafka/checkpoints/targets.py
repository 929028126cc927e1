"""Where a reset leads: a source's offsets before, the user's wish and the brokers' word, made into
offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparkkafka.checkpoints.logs import Offsets, SourceOffsets
from sparkkafka.checkpoints.positions import ends_of
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.offsets import NO_OFFSET, OffsetSpec
from sparkkafka.client.values import TopicPartition, some_partitions
from sparkkafka.config.source import EARLIEST_OFFSET, LATEST_OFFSET, OffsetBound
from sparkkafka.errors import OptionError, counted, some


def moved(
    source: SourceOffsets,
    before: Offsets,
    to: OffsetBound,
    admin: Admin | None,
    topics: Collection[str],
) -> tuple[dict[TopicPartition, int], list[str]]:
    """The offsets of the source after the reset, and what is worth knowing."""
    strange = sorted(set(topics) - set(source.topics))
    if strange:
        raise OptionError(
            f"source {source.name} does not read {some(strange)}; it reads {some(source.topics)}"
        )
    given = {TopicPartition(*key): at for key, at in to.offsets.items()}
    elsewhere = sorted({tp.topic for tp in given} - set(source.topics))
    if elsewhere:
        raise OptionError(
            f"offsets of {some(elsewhere)}: source {source.name} does not read that; it reads "
            f"{some(source.topics)}"
        )
    if to.kind == "specific" and not given:
        return dict(before), []
    if admin is None:
        return _unchecked(before, to, given), ["the offsets are not compared with the brokers'"]
    return _asked(source, before, to, given, admin, set(topics) or set(source.topics))


def _unchecked(
    before: Offsets, to: OffsetBound, given: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    unknown = sorted(set(given) - set(before))
    if to.kind != "specific" or unknown or min(given.values()) < 0:
        what = f"partitions {some_partitions(unknown)} of" if unknown else f"{to.kind} in"
        raise OptionError(
            f"{what} the topics can only be looked up with brokers: say where they are"
        )
    return {**before, **given}


def _asked(
    source: SourceOffsets,
    before: Offsets,
    to: OffsetBound,
    given: Mapping[TopicPartition, int],
    admin: Admin,
    topics: set[str],
) -> tuple[dict[TopicPartition, int], list[str]]:
    ends = ends_of(admin, source.topics)
    there = sorted(tp for tp in ends.latest if tp.topic in topics)
    notes: list[str] = []
    if to.kind == "specific":
        wanted = _within(given, ends.earliest, ends.latest)
    elif to.kind in ("earliest", "latest"):
        side = ends.earliest if to.kind == "earliest" else ends.latest
        wanted = {tp: side[tp] for tp in there}
    elif to.kind == "timestamp":
        spec = OffsetSpec.for_timestamp(to.timestamp_ms)
        found = admin.list_offsets(dict.fromkeys(there, spec)).all() if there else {}
        none = [tp for tp, row in found.items() if row.offset == NO_OFFSET]
        wanted = {
            tp: ends.latest[tp] if row.offset == NO_OFFSET else row.offset
            for tp, row in found.items()
        }
        if none:
            notes.append(f"no record is that new in {some_partitions(none)}: set to the end")
    else:
        raise OptionError(f"a reset goes to earliest, latest, a time or offsets, not to {to.kind}")
    after = {**before, **wanted}
    gone = sorted(tp for tp in before if tp.topic in topics and tp not in ends.latest)
    for tp in gone:
        after.pop(tp, None)
    if gone:
        notes.append(f"{some_partitions(gone)} are not there any more, and left out")
    new = sorted(set(after) - set(before))
    if new:
        notes.append(
            f"{counted(len(new), 'partition')} that no batch has read yet: {some_partitions(new)}"
        )
    beyond = [
        tp
        for tp, at in after.items()
        if tp in ends.latest and not ends.earliest[tp] <= at <= ends.latest[tp]
    ]
    if beyond:
        notes.append(
            f"offsets of {some_partitions(beyond)} stay where there are no records: the next start "
            "finds data lost (failOnDataLoss)"
        )
    return after, notes


def _within(given: Mapping[TopicPartition, int], earliest: Offsets, latest: Offsets) -> Offsets:
    """Given offsets, words for ends resolved. Raises OptionError for one that is not there."""
    wanted = {}
    for tp, at in sorted(given.items()):
        if tp not in latest:
            raise OptionError(f"there is no partition {tp}")
        number = {EARLIEST_OFFSET: earliest[tp], LATEST_OFFSET: latest[tp]}.get(at, at)
        if not earliest[tp] <= number <= latest[tp]:
            raise OptionError(
                f"offset {number} of {tp} is not there: it has {earliest[tp]} to {latest[tp]}"
            )
        wanted[tp] = number
    return wanted
