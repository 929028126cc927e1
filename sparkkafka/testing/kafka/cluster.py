"""Real Apache Kafka brokers on loopback, for tests: no Docker, no set-up, nothing left behind.

    with KafkaCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6, replication_factor=3)
        spark.read.format("pykafka").option("kafka.bootstrap.servers", cluster.bootstrap_servers)

Brokers run in KRaft mode from the jars of jars.py. The first three are controllers as well, so of
three brokers any one may be killed and the quorum stays. (Of two brokers only broker 0 is a
controller, because a quorum of two does not survive a loss: kill broker 1.)
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.offsets import OffsetLookup
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.errors import BrokerError, ErrorCode, KafkaTimeoutError, is_retriable
from sparkkafka.protocol.constants import LATEST
from sparkkafka.testing.kafka import admin
from sparkkafka.testing.kafka.jars import KAFKA_VERSION, ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import find_java
from sparkkafka.testing.kafka.java import say as say_on_stderr
from sparkkafka.testing.kafka.ports import LOOPBACK, ReservedPorts
from sparkkafka.testing.kafka.process import LeashedProcess, UnavailableError
from sparkkafka.testing.kafka.properties import as_texts, default_properties, write_properties
from sparkkafka.testing.kafka.storage import format_storage

CLIENT_LISTENER = "CLIENT"
_CONTROLLER_LISTENER = "CONTROLLER"

_CALL_SECONDS = 5.0
_POLL_SECONDS = 0.05
_PORT_ATTEMPTS = 3


@dataclass
class Broker:
    """A broker of the cluster. `ports` are by listener; `process` is None while it does not run."""

    id: int
    folder: Path
    ports: dict[str, int]
    properties: dict[str, str] = field(default_factory=dict)
    process: LeashedProcess | None = None

    @property
    def config(self) -> Path:
        return self.folder / "server.properties"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def address(self) -> tuple[str, int]:
        return LOOPBACK, self.ports[CLIENT_LISTENER]

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running


class KafkaCluster:
    """1..n real Kafka brokers on 127.0.0.1; a context manager.

    `brokers`: their number; the ids are 0 to n-1. `properties`: broker properties for all,
    `broker_properties` for one by its id; both win over `default_properties`. `listeners`: further
    client listeners by name with their security protocol, {"SECURE": "SASL_SSL"}; what they need
    comes as properties, their address from `address_list`. `client_ports`: the ports of the
    brokers' main listener. `heap_mb`, `jvm_options`: for each broker's Java, after what is in
    KAFKA_JVM_PERFORMANCE_OPTS. `start_timeout_seconds` bounds every start. `say` shows progress;
    None is silence, except for downloads.

    Raises `UnavailableError` when Java, jars or ports are not available or a broker does not start;
    the message then holds the end of its log.
    """

    def __init__(
        self,
        brokers: int = 1,
        properties: Mapping[str, object] | None = None,
        kafka_version: str = KAFKA_VERSION,
        *,
        broker_properties: Mapping[int, Mapping[str, object]] | None = None,
        listeners: Mapping[str, str] | None = None,
        client_ports: Sequence[int] = (),
        heap_mb: int = 512,
        jvm_options: Sequence[str] = (),
        start_timeout_seconds: float = 180.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers must be at least 1, got {brokers}")
        if len(client_ports) > brokers:
            raise ValueError(f"{len(client_ports)} client_ports for {brokers} brokers")
        self._properties = as_texts(properties or {})
        self._broker_properties = {
            number: as_texts(values) for number, values in (broker_properties or {}).items()
        }
        for number in self._broker_properties:
            if not 0 <= number < brokers:
                raise ValueError(f"broker_properties names broker {number} of {brokers}")
        self._count = brokers
        self.kafka_version = kafka_version
        self._extra_listeners = dict(listeners or {})
        self._client_ports = tuple(client_ports)
        self._heap_mb = heap_mb
        self._jvm_options = tuple(jvm_options)
        self._start_seconds = start_timeout_seconds
        self._say = say or (lambda _text: None)
        self._ports = ReservedPorts()
        self.brokers: dict[int, Broker] = {}
        self.folder: Path | None = None
        self._java: list[str] = []

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> KafkaCluster:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start all brokers, and return once each serves requests and knows all others."""
        if self.folder is not None:
            raise RuntimeError("the cluster is open already")
        jars = ensure_jars(kafka_jars(self.kafka_version))
        self._java = [
            str(find_java(say=say_on_stderr)),
            f"-Xmx{self._heap_mb}m",
            *shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseG1GC")),
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",  # else every Java leaves a file in the system's temp folder
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            # Hundreds of lines of settings at each start, which would fill the log's tail.
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.server.config=warn",
            *self._jvm_options,
            "-cp",
            f"{jars[0].parent}/*",
        ]
        for attempt in range(_PORT_ATTEMPTS):
            try:
                self._open()
                return
            except _PortClashError as error:
                self.close()
                if attempt + 1 == _PORT_ATTEMPTS or self._client_ports:
                    raise UnavailableError(str(error)) from error
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Kill the brokers that run, and remove all data. May be called again."""
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.kill()
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.close()
        self.brokers.clear()
        self._ports.release()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    # -- addresses -------------------------------------------------------------------------

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Ids of all brokers, running or not."""
        return tuple(self.brokers)

    @property
    def bootstrap_servers(self) -> str:
        """The value for kafka.bootstrap.servers: `host:port,host:port`."""
        return self.address_list(CLIENT_LISTENER)

    def address_list(self, listener: str) -> str:
        """Return `host:port,host:port` of one of the further `listeners`."""
        self._require_open()
        return ",".join(f"{LOOPBACK}:{b.ports[listener]}" for b in self.brokers.values())

    def address(self, broker_id: int) -> tuple[str, int]:
        """Return host and port of one broker's main listener."""
        return self.broker(broker_id).address

    # -- single brokers --------------------------------------------------------------------

    def is_running(self, broker_id: int) -> bool:
        """Return whether the broker's process runs."""
        return self.broker(broker_id).running

    def stop(self, broker_id: int, timeout_seconds: float = 60.0) -> None:
        """Stop one broker (SIGTERM: it first moves its leaders to others). It keeps its data.

        A broker that has not ended after `timeout_seconds` is killed, which raises
        `KafkaTimeoutError`.
        """
        process = self.broker(broker_id).process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise KafkaTimeoutError(
                f"broker {broker_id} did not end within {timeout_seconds:.0f} s and was killed; "
                f"the end of its log:\n{self.log_tail(broker_id)}"
            ) from error
        finally:
            self._forget(broker_id)

    def kill(self, broker_id: int) -> None:
        """Kill one broker (`kill -9`), and return once it is gone. Its data stays for `start`."""
        self._forget(broker_id)

    def start(self, broker_id: int) -> None:
        """Start a broker that was stopped or killed, with its old port and data, and wait for it.

        After a kill this takes up to broker.session.timeout.ms more: the controller refuses the id
        while it assumes that the old process may still run.
        """
        broker = self.broker(broker_id)
        if broker.running:
            raise RuntimeError(f"broker {broker_id} runs already")
        self._forget(broker_id)
        self._launch(broker)
        self._wait_until_ready([broker])

    def restart(self, broker_id: int) -> None:
        """`stop`, then `start`."""
        self.stop(broker_id)
        self.start(broker_id)

    def log_tail(self, broker_id: int, lines: int = 40) -> str:
        """Return the last lines of a broker's log."""
        return _tail(self.broker(broker_id).log, lines)

    # -- topics ----------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, object] | None = None,
        *,
        timeout_seconds: float = 30.0,
    ) -> None:
        """Create a topic, and return once every running broker knows a leader of each partition and
        the leaders serve it.

        Raises `BrokerError` with the broker's message (36: it exists), `KafkaTimeoutError`.
        """
        deadline = time.monotonic() + timeout_seconds
        settings = as_texts(configs or {})
        last_error: Exception | None = None
        may_exist = False  # an attempt without a result may have created it
        while True:
            for broker in self._running():
                try:
                    code, message = admin.create_topic(
                        broker.address,
                        name,
                        partitions,
                        replication_factor,
                        settings,
                        _CALL_SECONDS,
                    )
                except OSError as error:
                    last_error = error
                    may_exist |= not isinstance(error, ConnectionRefusedError)
                    continue
                if code == 0 or (may_exist and code == ErrorCode.TOPIC_ALREADY_EXISTS):
                    self._wait_for_leaders(name, partitions, deadline)
                    self._wait_until_served(name, partitions, deadline)
                    return
                last_error = BrokerError(code, f"CreateTopics {name}", message)
                may_exist |= code == ErrorCode.REQUEST_TIMED_OUT
                # 38: the other brokers have not registered yet.
                if not (is_retriable(code) or code == 38):
                    raise last_error
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(
                    f"topic {name} could not be created within {timeout_seconds:.0f} s: "
                    f"{last_error or 'no broker runs'}"
                ) from last_error
            time.sleep(_POLL_SECONDS)

    def _wait_for_leaders(self, topic: str, partitions: int, deadline: float) -> None:
        """Wait until every running broker knows a leader of each partition."""
        expected = set(range(partitions))
        for broker in self._running():
            while True:
                with contextlib.suppress(OSError):
                    known = admin.view(broker.address, _CALL_SECONDS).leaders.get(topic, {})
                    if {number for number, leader in known.items() if leader >= 0} == expected:
                        break
                if not broker.running:
                    break
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(
                        f"broker {broker.id} knows no leader for every partition of {topic}"
                    )
                time.sleep(_POLL_SECONDS)

    def _wait_until_served(self, topic: str, partitions: int, deadline: float) -> None:
        """Wait until the leaders of all partitions answer.

        Metadata names a leader a moment before it accepts records. A producer that writes then,
        with several requests in flight and without idempotence, could have its records reordered.
        """
        options = parse_admin_settings({"bootstrap.servers": self.bootstrap_servers})
        latest = {TopicPartition(topic, number): LATEST for number in range(partitions)}
        with Cluster(options) as cluster:
            remaining_ms = max(1.0, (deadline - time.monotonic()) * 1000)
            OffsetLookup(cluster).offsets(latest, Deadline(remaining_ms))

    # -- starts and files ------------------------------------------------------------------

    def _require_open(self) -> None:
        if not self.brokers:
            raise RuntimeError("the cluster is not open: use it in a with statement")

    def broker(self, broker_id: int) -> Broker:
        """Return one broker, with its process, ports and files."""
        self._require_open()
        if broker_id not in self.brokers:
            raise ValueError(f"there is no broker {broker_id}, only {list(self.brokers)}")
        return self.brokers[broker_id]

    def _running(self) -> list[Broker]:
        self._require_open()
        return [broker for broker in self.brokers.values() if broker.running]

    def _forget(self, broker_id: int) -> None:
        """Close the process of a broker that has ended."""
        broker = self.broker(broker_id)
        if broker.process is not None:
            broker.process.close()
            broker.process = None

    def _open(self) -> None:
        """Start all nodes, and wait until they are ready."""
        started = time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="sparkkafka-cluster-"))
        for number in range(self._count):
            port = self._client_ports[number] if number < len(self._client_ports) else 0
            ports = {CLIENT_LISTENER: self._ports.take(port)}
            if number < self._controllers:
                ports[_CONTROLLER_LISTENER] = self._ports.take()
            for name in self._extra_listeners:
                ports[name] = self._ports.take()
            folder = self.folder / f"broker-{number}"
            (folder / "tmp").mkdir(parents=True)
            self.brokers[number] = Broker(number, folder, ports)
        for broker in self.brokers.values():
            broker.properties = self.properties_of(broker)
            write_properties(broker.config, broker.properties)
        self._ports.hand_over()
        format_storage(
            list(self.brokers.values()),
            self.kafka_version,
            self.run_java,
            lambda broker: _tail(broker.log),
        )
        for broker in self.brokers.values():
            self._launch(broker)
        self._wait_until_ready(list(self.brokers.values()))
        seconds = time.monotonic() - started
        self._say(
            f"Kafka {self.kafka_version} answers at {self.bootstrap_servers} ({seconds:.1f} s)"
        )

    @property
    def _controllers(self) -> int:
        return 1 if self._count < 3 else 3

    def properties_of(self, broker: Broker) -> dict[str, str]:
        """Return the content of the broker's server.properties for its next start."""
        controller = _CONTROLLER_LISTENER in broker.ports
        protocols = {
            CLIENT_LISTENER: "PLAINTEXT",
            _CONTROLLER_LISTENER: "PLAINTEXT",
            **self._extra_listeners,
        }
        voters = [
            f"{other.id}@{LOOPBACK}:{other.ports[_CONTROLLER_LISTENER]}"
            for other in self.brokers.values()
            if _CONTROLLER_LISTENER in other.ports
        ]
        return {
            **default_properties(self._count),
            **self._properties,
            **self._broker_properties.get(broker.id, {}),
            "process.roles": "broker,controller" if controller else "broker",
            "node.id": str(broker.id),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": _CONTROLLER_LISTENER,
            "inter.broker.listener.name": CLIENT_LISTENER,
            "listeners": ",".join(
                f"{name}://{LOOPBACK}:{port}" for name, port in broker.ports.items()
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "log.dirs": str(broker.data),
        }

    def _launch(self, broker: Broker) -> None:
        broker.process = self.run_java(broker, ["kafka.Kafka", str(broker.config)])

    def run_java(self, broker: Broker, arguments: Sequence[str]) -> LeashedProcess:
        """Start a program of this Kafka in a broker's folder, with the cluster's Java."""
        # The codecs' native libraries are unpacked into java.io.tmpdir and stay there after a kill.
        temporary = f"-Djava.io.tmpdir={broker.folder / 'tmp'}"
        with broker.log.open("ab") as log:
            return LeashedProcess(
                [self._java[0], temporary, *self._java[1:], *arguments],
                output=log,
                working_directory=broker.folder,
                remove=broker.folder,
            )

    def _wait_until_ready(self, brokers: Sequence[Broker]) -> None:
        """Wait until each of `brokers` responses and every running broker knows them all."""
        deadline = time.monotonic() + self._start_seconds
        starting = {broker.id for broker in brokers}
        waiting = [*brokers, *(b for b in self._running() if b.id not in starting)]
        while waiting:
            broker = waiting[0]
            self._check_alive(brokers)
            with contextlib.suppress(OSError):
                # Short: a port of a dead neighbour refuses immediately, a starting one may hang.
                seen = admin.view(broker.address, min(_CALL_SECONDS, 1.0)).broker_ids
                if starting <= seen:
                    waiting.pop(0)
                    continue
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"broker {broker.id} did not answer within {self._start_seconds:.0f} s; "
                    f"the end of its log:\n{self.log_tail(broker.id)}"
                )
            if broker.id not in starting and not broker.running:
                waiting.pop(0)
            time.sleep(_POLL_SECONDS)

    def _check_alive(self, brokers: Sequence[Broker]) -> None:
        """Raise UnavailableError, or _PortClashError, if one of the brokers has ended."""
        for broker in brokers:
            if broker.process is None or broker.process.running:
                continue
            status = broker.process.wait()
            log = self.log_tail(broker.id)
            text = f"broker {broker.id} ended (status {status}); the end of its log:\n{log}"
            if "Address already in use" in broker.log.read_text(errors="replace"):
                raise _PortClashError(text)
            raise UnavailableError(text)


class _PortClashError(Exception):
    """Another program took a port between its choice and the broker's start."""


def _tail(path: Path, lines: int = 40) -> str:
    """Return the last lines of a log file."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"
