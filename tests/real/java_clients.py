"""Java's own clients, driven from a test: a JVM with py4j's gateway, which Spark brings."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.find_spark_home import _find_spark_home

from sparkkafka.testing.kafka.jars import ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import find_java
from tests.support.quick_spark import QUICK


def spark_jars() -> Path:
    return Path(_find_spark_home()) / "jars"


@contextmanager
def java_process(jars: Iterable[Path], *flags: str) -> Iterator[Any]:
    """A JVM with these jars; gives its view for py4j."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            str(find_java()), "-Xmx256m", *QUICK, "-cp", ":".join(map(str, jars)), *flags,
            "py4j.GatewayServer", str(port),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    gateway = None
    try:
        end_s = time.monotonic() + 60
        while gateway is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
            except OSError:
                if time.monotonic() > end_s or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield gateway.jvm
    finally:
        if gateway is not None:
            gateway.close()
        process.kill()
        process.wait(30)


@contextmanager
def newest_java_clients() -> Iterator[Any]:
    """The clients of the brokers' own release."""
    jars = [*ensure_jars(kafka_jars()), *spark_jars().glob("py4j-*.jar")]
    with java_process(jars, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off") as jvm:
        yield jvm
