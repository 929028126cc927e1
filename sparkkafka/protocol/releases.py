"""The API versions of each Kafka release's brokers, from the declarations of the requests."""

from __future__ import annotations

from collections.abc import Mapping

from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.protocol.wire.schema import releases


def release_names() -> list[str]:
    """Return the releases that brought a version, from the oldest that is supported."""
    names = {name for request in REQUESTS.values() for name in releases(request)}
    return sorted(names, key=_number)


def newest_versions(release: str) -> dict[str, int]:
    """Return the highest version of each request that brokers of a release offer."""
    versions: dict[str, int] = {}
    for request in REQUESTS.values():
        for name, version in releases(request).items():
            if _number(name) <= _number(release):
                versions[request.API_NAME] = version
    return versions


def release_of(offered: Mapping[str, int]) -> str:
    """Return the newest Kafka release whose new versions a broker offers all, such as "4.1"; "" if
    the broker is older than the oldest supported one. `offered` has the highest version by the
    request's name.

    Requests that a broker does not offer at all, as managed services do, do not count. A release
    without a new version here cannot be distinguished from the one before.
    """
    newest = ""
    for name in release_names():
        shared = [
            (offered[request.API_NAME], releases(request)[name])
            for request in REQUESTS.values()
            if request.API_NAME in offered and name in releases(request)
        ]
        if shared and all(highest >= version for highest, version in shared):
            newest = name
    return newest


def _number(release: str) -> tuple[int, ...]:
    """Return a release's numbers, so that 3.10 is after 3.9."""
    return tuple(map(int, release.split(".")))
