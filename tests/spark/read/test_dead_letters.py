"""How dead letters are written."""

from __future__ import annotations

import pytest

from sparkkafka.config.options import ClientOptions
from sparkkafka.spark.read.dead_letters import producer_options


@pytest.mark.parametrize(
    ("host", "codec", "is_limited"),
    [("kafka.example.org", "lz4", False), ("ns.servicebus.windows.net", "gzip", True)],
)
def test_codec_and_request_size_suit_the_service(host: str, codec: str, is_limited: bool) -> None:
    producer = producer_options(ClientOptions(bootstrap_servers=((host, 9093),)))
    assert producer.compression_type == codec
    assert (producer.max_request_size < 1_046_528) is is_limited
