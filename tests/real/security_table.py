"""Tries the sets of `security_sets` with Java's client and with ours.

    python -m tests.real.security_table docs/security.md

writes the table of the page. tests/real/test_security_sets.py runs the same and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sparkkafka.client import Admin
from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.jars import CONNECTOR_JARS, ensure_jars
from tests.real.java_clients import java_process, spark_jars
from tests.real.secured import Secured, secured_broker
from tests.real.security_sets import sets

TIMEOUT_S = 20.0
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"


@contextmanager
def java_clients(secured: Secured) -> Iterator[Any]:
    """A JVM with the Kafka client that Spark's connector has; gives its view for py4j."""
    urls = f"{secured.tokens.url},{(secured.folder / 'token.jwt').as_uri()}"
    flag = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}"
    jars = [*ensure_jars(CONNECTOR_JARS), *spark_jars().glob("*.jar")]
    with java_process(jars, flag) as jvm:
        yield jvm


def java_connects(jvm: Any, settings: Mapping[str, str]) -> str:
    """ "" if it does, else what it says."""
    properties = jvm.java.util.Properties()
    for name, value in settings.items():
        properties.setProperty(name, value)
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        properties.setProperty(name, str(int(TIMEOUT_S * 1000)))
    admin = None
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        admin.describeCluster().nodes().get()
    except Exception as error:  # py4j's, around Java's
        cause = getattr(error, "java_exception", None)
        while cause is not None and cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause or error)[:300]
    finally:
        if admin is not None:
            admin.close()
    return ""


def we_connect(settings: Mapping[str, str]) -> str:
    """The same of ours."""
    try:
        with Admin(dict(settings)) as admin:
            admin.describe_cluster(timeout_s=TIMEOUT_S)
    except KafkaError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Outcome(NamedTuple):
    """Why a client does not connect, "" if it does; `java` is None if it cannot be asked."""

    name: str
    java: str | None
    ours: str


def tried(secured: Secured) -> list[Outcome]:
    found = []
    with java_clients(secured) as jvm:
        for item in sets(secured):
            protocol = secured.ours(item.listener, "PLAIN")["security.protocol"]
            servers = secured.servers(item.listener)
            given = {"bootstrap.servers": servers, "security.protocol": protocol, **item.settings}
            java = java_connects(jvm, given) if item.java else None
            found.append(Outcome(item.name, java, we_connect(given)))
    return found


def table(outcomes: list[Outcome]) -> str:
    def word(said: str | None) -> str:
        return "class missing" if said is None else "connects" if not said else "fails"

    rows = [f"| {row.name} | {word(row.java)} | {word(row.ours)} |\n" for row in outcomes]
    return "".join(["| settings | Java's client | pykafka |\n", "|---|---|---|\n", *rows])


def main() -> None:
    page = Path(sys.argv[1])
    with secured_broker() as secured:
        outcomes = tried(secured)
    for row in outcomes:
        print(row)
    text = page.read_text()
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + table(outcomes) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
