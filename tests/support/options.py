"""Settings of connections, the fetcher and the producer alone, under Kafka's names, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkkafka.config.option_table import Side
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    client_from,
    producer_from,
)
from sparkkafka.config.parsed_options import ParsedOptions


def parse_client_options(config: Mapping[str, Any]) -> ClientOptions:
    return client_from(ParsedOptions(config, Side.BOTH, prefixed=False))


def parse_fetch_options(config: Mapping[str, Any]) -> FetchOptions:
    return FetchOptions(**ParsedOptions(config, Side.BOTH, prefixed=False).group("fetch"))


def parse_producer_options(config: Mapping[str, Any]) -> ProducerOptions:
    return producer_from(ParsedOptions(config, Side.BOTH, prefixed=False))
