"""The value of `metricsAddress`: where reads and writes tell their numbers, and the signing key.

10.0.0.7:40123/6f1c…        made by `sparkkafka.metrics(…)`, never by hand
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from sparkkafka.config.kinds import Kind

KEY_BYTES = 16
_ADDRESS = re.compile(rf"(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{{1,5}})/([0-9a-f]{{{2 * KEY_BYTES}}})")


class MetricsAddress(NamedTuple):
    """An IP address, so that no task looks a name up; `key` is not to be shown."""

    host: str
    port: int
    key: bytes

    def __repr__(self) -> str:
        return f"MetricsAddress({self._place}/***)"

    @property
    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def text(self) -> str:
        """The value of the option."""
        return f"{self._place}/{self.key.hex()}"


def parse_metrics_address(text: str) -> MetricsAddress:
    """Raises ValueError."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ValueError
    host = found[1].strip("[]")
    ipaddress.ip_address(host)
    return MetricsAddress(host, int(found[2]), bytes.fromhex(found[3]))


METRICS_ADDRESS = Kind("what sparkkafka.metrics(…).options has", parse_metrics_address)
