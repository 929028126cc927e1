"""A real broker of before KRaft, with its ZooKeeper: by default 2.1.1, the oldest supported.

    with OldKafka() as kafka:
        Admin({"bootstrap.servers": kafka.bootstrap_servers})

KafkaCluster starts brokers in KRaft mode only. Nothing else of it is needed here.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

from sparkkafka.testing.kafka import admin
from sparkkafka.testing.kafka.jars import JarSet, ensure_jars
from sparkkafka.testing.kafka.java import find_java, say
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts
from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError
from sparkkafka.testing.kafka.properties import write_properties
from tests.support.quick_spark import QUICK

JARS = JarSet(
    name="kafka-2.1.1",
    title="Apache Kafka 2.1.1",
    modules=(
        ("org.apache.kafka", "kafka_2.12", "2.1.1", True),
        ("org.slf4j", "slf4j-simple", "1.7.25", False),
    ),
    jar_count=18,
)
_KEEPER = "keeper"
_START_SECONDS = 90.0


class OldKafka:
    """One broker on 127.0.0.1; a context manager. Raises UnavailableError with the broker's log."""

    def __init__(self, jars: JarSet = JARS) -> None:
        self._jars = jars
        self._folder = Path()
        self._ports = ReservedPorts()
        self._processes: list[LeashedProcess] = []
        self._address = (LOOPBACK, 0)

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`."""
        return f"{self._address[0]}:{self._address[1]}"

    def __enter__(self) -> Self:
        jars = ensure_jars(self._jars)
        self._java = [str(find_java(say=say)), "-Xmx384m", "-XX:-UsePerfData", *QUICK]
        # ZooKeeper would look for log4j's beans; the jars bind slf4j-simple.
        self._java += ["-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.admin.enableServer=false"]
        self._java += ["-cp", f"{jars[0].parent}/*"]
        self._folder = Path(tempfile.mkdtemp(prefix="sparkkafka-old-"))
        # Since Java 14 the text of an address that is not looked up yet has another end, which
        # ZooKeeper 3.4 takes for a part of the name (ZOOKEEPER-3779).
        hosts = self._folder / "hosts"
        hosts.write_text(f"{LOOPBACK} localhost {_KEEPER} {_KEEPER}/<unresolved>\n")
        self._java.append(f"-Djdk.net.hosts.file={hosts}")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill both processes and remove their data."""
        for process in reversed(self._processes):
            process.close()
        self._processes.clear()
        self._ports.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        keeper, port = self._ports.take(), self._ports.take()
        self._address = (LOOPBACK, port)
        properties = self._folder / "server.properties"
        write_properties(
            properties,
            {
                "broker.id": "1",
                "zookeeper.connect": f"{_KEEPER}:{keeper}",
                "zookeeper.connection.timeout.ms": "30000",
                "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
                "log.dirs": str(self._folder / "data"),
                "offsets.topic.replication.factor": "1",
                "offsets.topic.num.partitions": "4",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "transaction.state.log.num.partitions": "4",
                "group.initial.rebalance.delay.ms": "0",
                "group.min.session.timeout.ms": "1000",
                "auto.create.topics.enable": "false",
                "log.cleaner.dedupe.buffer.size": "16777216",
                "authorizer.class.name": "kafka.security.auth.SimpleAclAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )
        self._ports.hand_over()
        data = str(self._folder / "keeper")
        self._run("org.apache.zookeeper.server.ZooKeeperServerMain", str(keeper), data)
        self._run("kafka.Kafka", str(properties))
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if admin.view(self._address, 1.0).broker_ids:
                    return
            if time.monotonic() > deadline or not all(row.running for row in self._processes):
                text = "\n".join(
                    log.read_text(errors="replace")[-4000:] for log in self._folder.glob("*.log")
                )
                raise UnavailableError(f"{self._jars.title} did not start:\n{text}")
            time.sleep(0.1)

    def _run(self, main: str, *arguments: str) -> None:
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        java, *options = self._java
        with (self._folder / f"{main.rsplit('.', 1)[-1]}.log").open("ab") as log:
            self._processes.append(
                LeashedProcess(
                    [java, f"-Djava.io.tmpdir={temporary}", *options, main, *arguments],
                    output=log,
                    working_directory=self._folder,
                    remove=self._folder,
                )
            )
