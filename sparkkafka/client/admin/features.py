"""Features of a cluster and their levels (KIP-584), such as metadata.version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sparkkafka import __version__
from sparkkafka.client.admin.topics import broker_timeout_ms
from sparkkafka.client.arguments import flag, mapping, one_name, one_of, whole
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.lookups import ToAny, ToController
from sparkkafka.client.cluster.request_driver import ApiHandler, Row, call_all, call_each
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import Results
from sparkkafka.errors import OptionError
from sparkkafka.protocol.messages import (
    ApiVersionsRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)

UPGRADE_TYPES: Final = {"UPGRADE": 1, "SAFE_DOWNGRADE": 2, "UNSAFE_DOWNGRADE": 3}

_MAX_LEVEL = 2**15 - 1
_TYPES_VERSION = 1  # of UpdateFeatures


class FeatureRange(NamedTuple):
    """The lowest and the highest level of a feature."""

    min_version_level: int
    max_version_level: int


@dataclass(frozen=True)
class FeatureMetadata:
    """The levels that the whole cluster uses, with their epoch (None: not known), and those that
    the broker that answered could use."""

    finalized_features: Mapping[str, FeatureRange]
    finalized_features_epoch: int | None
    supported_features: Mapping[str, FeatureRange]


@dataclass(frozen=True)
class FeatureUpdate:
    """The new level of a feature, 0 to take it away. `upgrade_type` is UPGRADE, SAFE_DOWNGRADE
    (where nothing is lost) or UNSAFE_DOWNGRADE."""

    max_version_level: int
    upgrade_type: str = "UPGRADE"


class _Describe(ApiHandler[str, FeatureMetadata]):
    request_type = ApiVersionsRequest

    def build(self, items: Sequence[str], version: int) -> ApiVersionsRequest:
        return ApiVersionsRequest(
            client_software_name="sparkkafka", client_software_version=__version__
        )

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        epoch = response.finalized_features_epoch
        finalized = {
            row.name: FeatureRange(row.min_version_level, row.max_version_level)
            for row in response.finalized_features
        }
        supported = {
            row.name: FeatureRange(row.min_version, row.max_version)
            for row in response.supported_features
        }
        found = FeatureMetadata(finalized, epoch if epoch >= 0 else None, supported)
        return [(item, Row(0, found)) for item in items]


def describe_features(cluster: Cluster, deadline: Deadline) -> FeatureMetadata:
    """Raises KafkaError."""
    item = "features"
    return call_all(cluster, [item], _Describe(), ToAny(), deadline, item)[item]


class _Update(ApiHandler[str, None]):
    request_type = UpdateFeaturesRequest
    named = "feature {}"
    acl = "ALTER on the cluster"

    def __init__(
        self, updates: Mapping[str, FeatureUpdate], timeout_ms: int, validate_only: bool
    ) -> None:
        self._updates = updates
        self._timeout_ms = timeout_ms
        self._validate_only = validate_only

    def lacking(self, item: str, version: int) -> str | None:
        if version < _TYPES_VERSION and self._validate_only:
            return self.needs("validate_only", _TYPES_VERSION)
        return None

    def build(self, items: Sequence[str], version: int) -> UpdateFeaturesRequest:
        request = UpdateFeaturesRequest(
            timeout_ms=self._timeout_ms, validate_only=self._validate_only
        )
        for name in items:
            row = self._updates[name]
            key = FeatureUpdateKey(feature=name, max_version_level=row.max_version_level)
            if version < _TYPES_VERSION:
                key.allow_downgrade = row.upgrade_type != "UPGRADE"
            else:
                key.upgrade_type = UPGRADE_TYPES[row.upgrade_type]
            request.feature_updates.append(key)
        return request

    def read(self, response: Any, items: Sequence[str]) -> Iterable[tuple[str, Row]]:
        # From version 2 on an answer without an error of the whole has none.
        rows = dict.fromkeys(items, Row(0))
        rows |= {
            row.feature: Row(row.error_code, None, row.error_message) for row in response.results
        }
        return list(rows.items())


def update_features(
    cluster: Cluster,
    updates: Mapping[str, FeatureUpdate],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> Results[str, None]:
    """Set levels of features. Raises OptionError for what cannot be an update."""
    flag(validate_only, "validate_only")
    example = '"metadata.version": FeatureUpdate(20)'
    for name, row in mapping(updates, "updates", example).items():
        one_name(name, "each key of updates")
        if not isinstance(row, FeatureUpdate):
            raise OptionError(f"updates is a dict such as {{{example}}}, got {row!r} in it")
        level = whole(row.max_version_level, f"feature {name}: max_version_level")
        if not 0 <= level <= _MAX_LEVEL:
            raise OptionError(
                f"feature {name}: max_version_level is from 0 to {_MAX_LEVEL}, got {level}"
            )
        one_of(row.upgrade_type, UPGRADE_TYPES, f"feature {name}: upgrade_type")
    api = _Update(updates, broker_timeout_ms(cluster, deadline), validate_only)
    route = ToController(cluster)
    return call_each(cluster, updates, api, route, deadline, "updating features")
