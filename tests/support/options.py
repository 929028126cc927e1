"""Only the settings of connections, the fetcher or the producer, under Kafka's names, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkkafka.config.option_table import KAFKA, Side
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    client_from,
    producer_from,
)
from sparkkafka.config.parsed_options import ParsedOptions

_ROWS = {row.key: row for row in KAFKA}


def parse_client_options(config: Mapping[str, Any]) -> ClientOptions:
    return client_from(_parse(config))


def parse_fetch_options(config: Mapping[str, Any]) -> FetchOptions:
    return FetchOptions(**_parse(config).group("fetch"))


def parse_producer_options(config: Mapping[str, Any]) -> ProducerOptions:
    return producer_from(_parse(config), {})


def _parse(config: Mapping[str, Any]) -> ParsedOptions:
    return ParsedOptions(config, Side.BOTH, settings=_ROWS)
