"""APIs and versions that a fake broker offers: those of a Kafka release that are implemented
here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.protocol.wire.schema import release_number, releases

VersionRange = tuple[int, int]

DEFAULT_RELEASE = "4.0"

# KAFKA-18659: librdkafka concludes from Produce 0 that a broker is recent. 4.x offers it and then
# refuses it; so does this one, at any release.
_LOWEST_OFFERED = {"Produce": 0}

# Kafka 3.7 to 3.9 have it as a preview, which is off (group.version, 4.0).
_KIP_848 = "ConsumerGroupHeartbeat"


class Release(NamedTuple):
    """A release of Kafka: the versions of APIs, and other rules that depend on it."""

    versions: Mapping[str, VersionRange]
    # KIP-511 (2.4): the refusal of an ApiVersions version lists the range of ApiVersions.
    names_own_range: bool
    # Before KRaft only the controller creates and deletes topics.
    has_controller_broker: bool
    # message.timestamp.after.max.ms: one hour since 4.0 (KIP-1030)
    timestamp_after_max_ms: int
    # KIP-890: a leader verifies with the coordinator before it writes to a transaction (3.6) ...
    verifies_transactions: bool
    # The coordinator keeps the last epoch of a transaction that it aborts (transactions V2, 4.0).
    keeps_last_epoch: bool


def release(
    name: str, implemented: Mapping[str, VersionRange], changes: Mapping[str, VersionRange | None]
) -> Release:
    """Return the release `name`, such as "2.1" or "4.4", limited to `implemented`.

    `changes` sets the offered range of an API, or removes the API with None. It may have versions
    that are not implemented, for tests of the client's choice.
    """
    known = {other for request in REQUESTS.values() for other in releases(request)}
    if name not in known:
        names = ", ".join(sorted(known, key=release_number))
        raise ValueError(f"no such Kafka release here: {name!r}, there are {names}")
    unknown = set(changes) - set(implemented)
    if unknown:
        raise ValueError(f"no such API here: {sorted(unknown)}, there are {sorted(implemented)}")
    number = release_number(name)
    newest = {
        request.API_NAME: version
        for request in REQUESTS.values()
        for other, version in releases(request).items()
        if release_number(other) <= number
    }
    if number < (4, 0):
        newest.pop(_KIP_848, None)
    versions: dict[str, VersionRange] = {}
    for api, (lowest, highest) in implemented.items():
        if api in newest:
            versions[api] = (_LOWEST_OFFERED.get(api, lowest), min(highest, newest[api]))
        change = changes.get(api, ())
        if change is None:
            versions.pop(api, None)
        elif change:
            versions[api] = change
    return Release(
        versions,
        names_own_range=number >= (2, 4),
        has_controller_broker=number < (3, 0),
        timestamp_after_max_ms=3_600_000 if number >= (4, 0) else (1 << 63) - 1,
        verifies_transactions=number >= (3, 6),
        keeps_last_epoch=number >= (4, 0),
    )
