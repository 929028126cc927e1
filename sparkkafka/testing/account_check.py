"""`python -m sparkkafka.testing.account_check`: what works with an account at a Kafka service.

It reads by default. With --write TOPIC it writes a few small records to that topic, which it
creates and deletes if the topic does not exist, with and without a transaction and in a group. The
report has no secrets; host names and the names of topics are in it.

Each step has a deadline, and its line says how long it took. It begins with ok; with -- for what
the service does not offer, or this account may not do; or with !! for an error. The exit code is 1
if a line begins with !!.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sparkkafka.cli.profile import Sources, settings_of
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.auth.sasl import connection_security
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.consumer.consumer import Consumer
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import BootstrapServers, connect, start_tls
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.config.kinds import address_text
from sparkkafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    counted,
    printable,
    some,
)
from sparkkafka.protocol.messages import REQUESTS, release_of
from sparkkafka.protocol.records.compression import Codec

OK: Final = "ok"
NOT_OFFERED: Final = "--"
FAILED: Final = "!!"

NAME: Final = "sparkkafka-account-check"
"""The group and the transactional id of the check."""

VALUES: Final = tuple(b"sparkkafka account check %d" % number for number in range(10))

GROUP_APIS: Final = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit")
TRANSACTION_APIS: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")
FEATURES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "reads": (("Metadata", "ListOffsets", "Fetch"), "sparkkafka needs them"),
    "writes": (("Metadata", "Produce"), "read only"),
    "idempotent producers": (("InitProducerId",), "set enable.idempotence=false"),
    "transactions": (
        ("InitProducerId", "FindCoordinator", *TRANSACTION_APIS),
        "set deliveryGuarantee=at-least-once, and no transactional.id",
    ),
    "groups": ((*GROUP_APIS, "LeaveGroup", "OffsetFetch"), "use assign instead of subscribe"),
    "the consumer protocol (KIP-848)": (("ConsumerGroupHeartbeat",), "set group.protocol=classic"),
    "creating topics": (("CreateTopics",), "create topics with the service's own tools"),
    "deleting topics": (("DeleteTopics",), "delete topics with the service's own tools"),
    "topic settings": (("DescribeConfigs", "IncrementalAlterConfigs"), "use the service's tools"),
    "deleting records": (("DeleteRecords",), "set retention.ms with the service's own tools"),
    "ACLs": (("DescribeAcls", "CreateAcls", "DeleteAcls"), "use the service's own tools"),
    "quotas": (("DescribeClientQuotas", "AlterClientQuotas"), "use the service's own tools"),
    "log dirs": (("DescribeLogDirs",), "no sizes of topics"),
}
"""By feature: the APIs that it needs, and what to do without it."""


@dataclass
class AccountCheck:
    """The steps. `timeout_s` is the deadline of each; `marks` are those of the lines so far."""

    sources: Sources
    timeout_s: float
    marks: list[str] = field(default_factory=list)

    def settings(self, kind: str, **more: str) -> dict[str, str]:
        """Return the settings of a client whose calls end within a step."""
        limit_ms = int(self.timeout_s * 1000)
        limits = {"request.timeout.ms": limit_ms // 2, "default.api.timeout.ms": limit_ms}
        if kind == "producer":
            limits = {"request.timeout.ms": limit_ms // 2, "max.block.ms": limit_ms}
            limits |= {"delivery.timeout.ms": limit_ms, "linger.ms": 20}
        bounded = {name: str(value) for name, value in limits.items()}
        given = {name.replace("_", "."): value for name, value in more.items()}
        of_file = settings_of(self.sources, kind)
        if kind == "consumer":
            # A group of the file is not this program's: a consumer would commit for it.
            of_file = {name: of_file[name] for name in of_file if not name.startswith("group.")}
        return of_file | bounded | given

    def report(self, mark: str, step: str, text: object, seconds: float = 0.0) -> None:
        """Print one line of the report."""
        self.marks.append(mark)
        # Texts of a broker may move the cursor of a terminal.
        line = " ".join(printable(str(text)).split())
        sys.stdout.write(f"{mark}  {seconds * 1000:6.0f} ms  {step}: {line}\n")
        sys.stdout.flush()

    def step(self, name: str, work: Callable[[], Any], *, optional: bool = False) -> Any:
        """Do one step and report its result, or its error. Return the result, None after an error.

        A broker's refusal of an optional step is no error: services do not offer all of Kafka.
        """
        started_at_s = time.monotonic()
        try:
            result = work()
        except KafkaError as error:
            answered = not isinstance(error, KafkaConnectionError | KafkaTimeoutError)
            is_refusal = isinstance(error, UnsupportedVersionError) or (optional and answered)
            mark = NOT_OFFERED if is_refusal else FAILED
            self.report(mark, name, error, time.monotonic() - started_at_s)
            return None
        self.report(OK, name, result, time.monotonic() - started_at_s)
        return result

    def run(self, topic: str | None, write: str | None) -> None:
        """Run all steps: connections, the cluster, and then reads and writes of the given
        topics."""
        options = parse_admin_settings(self.settings("admin"))
        self.report(OK, "security.protocol", options.security.protocol)
        reached = False
        for host, port in BootstrapServers(options).addresses():
            server = address_text(host, port)
            if "SSL" in options.security.protocol:
                self.step(f"TLS {server}", partial(self.tls, host, port))
            connection = self.step(f"connection {server}", partial(self.connect, host, port))
            if connection is None:
                continue
            reached = True
            self.report_features(connection.offered)
        if not reached:
            return
        with Admin(self.settings("admin")) as admin:
            self.step("cluster", lambda: _cluster_text(admin))
            topics = self.step("topics", lambda: _Topics(admin.list_topics()))
            self.step("groups", lambda: counted(len(admin.list_groups().all()), "group"))
            read = write or topic or (topics.first if topics else None)
            if read is None:
                self.report(NOT_OFFERED, "reads", "there is no topic: name one with --topic")
            elif write is None or (topics and write in topics.names):
                self.read_steps(admin, read)
            self.step("committed offsets", lambda: _committed_text(admin))
            for name, work in (
                ("ACL", admin.describe_acls),
                ("quota", admin.describe_client_quotas),
                ("log dir", lambda: admin.describe_log_dirs().all()),
            ):
                self.step(f"{name}s", partial(_count, work, name), optional=True)
            if write is not None:
                with self.topic(admin, write, exists=bool(topics and write in topics.names)) as has:
                    if has:
                        self.write_steps(admin, write)

    # --- connections -----------------------------------------------------------------------------

    def tls(self, host: str, port: int) -> str:
        """Open a TLS connection; return its version and cipher, and whether the server's
        certificate was verified."""
        options = parse_admin_settings(self.settings("admin"))
        deadline = Deadline(self.timeout_s * 1000)
        security = connection_security(options, host, port)
        if security.context is None or security.tls_settings is None:
            return "not used"
        sock = connect(host, port, options, deadline)
        server, prefix = address_text(host, port), options.prefix
        settings = security.tls_settings
        with start_tls(sock, security.context, settings, host, server, deadline, prefix) as tls:
            cipher = tls.cipher()
            verified = "verified" if settings.verify else "not verified"
            return f"{tls.version()}, {cipher[0] if cipher else ''}, certificate {verified}"

    def connect(self, host: str, port: int) -> _Connected:
        """Open a connection with authentication; return the versions that the broker offers."""
        options = parse_admin_settings(self.settings("admin"))
        security = connection_security(options, host, port)
        with Connection.open(host, port, options, Deadline(self.timeout_s * 1000)) as connection:
            versions = connection.versions
            offered = {
                request.API_NAME: versions[key][1]
                for key, request in REQUESTS.items()
                if key in versions and connection.supports(request)
            }
        sasl = security.sasl.text if security.sasl is not None else "no SASL"
        return _Connected(sasl, len(versions), offered)

    def report_features(self, offered: Mapping[str, int]) -> None:
        """Report the features for which the broker lacks an API, or has no version in common."""
        for feature, (apis, hint) in FEATURES.items():
            missing = [api for api in apis if api not in offered]
            if missing:
                text = f"not offered ({some(missing, 9)}): {hint}"
                self.report(NOT_OFFERED, f"ApiVersions, {feature}", text)

    # --- reads -----------------------------------------------------------------------------------

    def read_steps(self, admin: Admin, topic: str) -> None:
        """Run the steps that read from a topic."""
        resource = ConfigResource("topic", topic)
        describe = partial(admin.describe_configs, [resource])
        self.step(
            f"settings of {topic}",
            lambda: counted(len(describe()[resource]), "setting"),
            optional=True,
        )
        spans = self.step(f"offsets of {topic}", lambda: _Spans.of(admin, topic))
        if spans is None:
            return
        self.step(f"offsets by time of {topic}", lambda: _by_time_text(admin, spans.begins))
        if not spans.count:
            self.report(NOT_OFFERED, f"fetch of {topic}", "the topic has no records")
            return
        self.step(f"fetch of {topic}", lambda: self.fetch(spans.filled()))

    def fetch(self, begins: Mapping[TopicPartition, int], **settings: str) -> str:
        """Read the first records from these offsets on."""
        with Consumer(self.settings("consumer", **settings)) as consumer:
            consumer.assign(list(begins))
            for tp, offset in begins.items():
                consumer.seek(tp, offset)
            records = next(self.polled(consumer))
        return f"{counted(len(records), 'record')} of {records[0].topic}"

    def polled(self, consumer: Consumer) -> Iterator[list[Any]]:
        """Yield what polls return. Raises KafkaTimeoutError at the step's deadline."""
        deadline = Deadline(self.timeout_s * 1000)
        while deadline.remaining_s() > 0:
            if found := list(consumer.poll(min(1.0, deadline.remaining_s()))):
                yield found
        raise KafkaTimeoutError(f"no more records came within {self.timeout_s:g} s")

    # --- writes ----------------------------------------------------------------------------------

    @contextmanager
    def topic(self, admin: Admin, topic: str, *, exists: bool) -> Iterator[bool]:
        """Yield whether there is the topic to write to. One that was created here is deleted, also
        if the response was lost."""
        if exists:
            yield True
            return
        maybe_created = True

        def create() -> str:
            """Create the topic. After some errors it may exist: `maybe_created`."""
            nonlocal maybe_created
            try:
                admin.create_topic(topic, partitions=1)
            except KafkaError as error:
                maybe_created = isinstance(error, KafkaConnectionError | KafkaTimeoutError)
                raise
            return "done"

        try:
            yield self.step(f"creation of {topic}", create) is not None
        finally:
            if maybe_created:
                delete = partial(admin.delete_topic, topic)
                self.step(f"deletion of {topic}", partial(_done, delete))

    def write_steps(self, admin: Admin, topic: str) -> None:
        """Run the steps that write to a topic."""
        tp = TopicPartition(topic, 0)
        spans = self.step("offsets before the writes", lambda: _Spans.of(admin, topic))
        if spans is None:
            return
        begin = spans.ends[tp]
        written = 0
        idempotent = self.step("idempotent producer", partial(self.send, tp), optional=True)
        plain = self.step("producer without idempotence", partial(self.send, tp, "false"))
        written += sum(len(VALUES) for sent in (idempotent, plain) if sent is not None)
        safe = "false" if idempotent is None else "true"
        for codec in Codec:
            name = codec.name.lower()
            work = partial(self.send, tp, safe, name)
            sent = self.step(f"codec {name}", work, optional=codec is not Codec.NONE)
            written += len(VALUES) if sent is not None else 0
        if written:
            self.step("read what was written", lambda: self.read_back(tp, begin, written))
        begin = self.step("end before transactions", lambda: _End(admin, tp))
        transact = partial(self.transact, tp)
        if begin is not None and self.step("transactions", transact, optional=True):
            self.step(
                "read_committed", lambda: self.read_back(tp, begin.offset, 1, "read_committed")
            )
        if self.step("group", lambda: self.join(topic)) is not None:
            delete = partial(admin.delete_consumer_groups, [NAME])
            self.step("deletion of the group", partial(_done, lambda: delete().all()))

    def send(self, tp: TopicPartition, idempotent: str = "true", codec: str | None = None) -> str:
        """Send the test records, and wait for their acknowledgement. `idempotent` is
        enable.idempotence."""
        codecs = {} if codec is None else {"compression_type": codec}
        settings = self.settings("producer", enable_idempotence=idempotent, **codecs)
        with Producer(settings) as producer:
            sent = [producer.send(tp.topic, value, partition=tp.partition) for value in VALUES]
            offsets = [delivery.result(self.timeout_s).offset for delivery in sent]
        return f"{counted(len(offsets), 'record')} at offset {offsets[0]} of {tp}"

    def transact(self, tp: TopicPartition) -> str:
        """Commit a transaction with one record, and abort another one."""
        settings = self.settings("producer", transactional_id=NAME)
        with Producer(settings) as producer:
            producer.init_transactions(self.timeout_s)
            for value, end in (
                (b"aborted", producer.abort_transaction),
                (VALUES[0], producer.commit_transaction),
            ):
                producer.begin_transaction()
                delivery = producer.send(tp.topic, value, partition=tp.partition)
                producer.flush(self.timeout_s)
                delivery.result(self.timeout_s)
                end(self.timeout_s)
        return "one committed, one aborted"

    def read_back(
        self, tp: TopicPartition, begin: int, count: int, level: str = "read_uncommitted"
    ) -> str:
        """Read that many records. Raises KafkaError if others are there."""
        values: list[bytes] = []
        with Consumer(self.settings("consumer", isolation_level=level)) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, begin)
            for records in self.polled(consumer):
                values += [record.value for record in records]
                if len(values) >= count:
                    break
        if unknown := [value for value in values if value not in VALUES]:
            raise KafkaError(
                f"{counted(len(unknown), 'record')} of other writers, or of an aborted "
                "transaction: use a topic that nobody writes to"
            )
        return f"{counted(len(values), 'record')} from offset {begin}, as written"

    def join(self, topic: str) -> str:
        """Join a group, read as its only member, and commit."""
        group = {"group_id": NAME, "auto_offset_reset": "earliest"}
        with Consumer(self.settings("consumer", **group)) as consumer:
            consumer.subscribe([topic])
            records = next(self.polled(consumer))
            consumer.commit()
        return f"read {counted(len(records), 'record')} and committed"


@dataclass(frozen=True)
class _Connected:
    sasl: str
    apis: int
    offered: Mapping[str, int]

    def __str__(self) -> str:
        release = release_of(self.offered) or "one before 2.1"
        return f"{self.sasl}; {self.apis} APIs, those of Kafka {release}"


@dataclass(frozen=True)
class _Topics:
    names: Mapping[str, Any]

    @property
    def first(self) -> str | None:
        return next(iter(self.names), None)

    def __str__(self) -> str:
        return counted(len(self.names), "topic")


@dataclass(frozen=True)
class _Spans:
    """The first and the end offsets of a topic's partitions."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, admin: Admin, topic: str) -> _Spans:
        """Look up the first offsets and the ends of a topic."""
        rows = admin.describe_topic(topic).partitions
        partitions = [TopicPartition(topic, row.partition) for row in rows]
        begins = _offsets(admin, partitions, OffsetSpec.earliest())
        return cls(begins, _offsets(admin, partitions, OffsetSpec.latest()))

    @property
    def count(self) -> int:
        return sum(self.ends[tp] - self.begins[tp] for tp in self.begins)

    def filled(self) -> dict[TopicPartition, int]:
        return {tp: begin for tp, begin in self.begins.items() if self.ends[tp] > begin}

    def __str__(self) -> str:
        return f"{counted(len(self.begins), 'partition')}, {counted(self.count, 'offset')}"


class _End:
    """The end offset of a partition."""

    def __init__(self, admin: Admin, tp: TopicPartition) -> None:
        self.offset = _offsets(admin, [tp], OffsetSpec.latest())[tp]

    def __str__(self) -> str:
        return f"offset {self.offset}"


def _offsets(
    admin: Admin, partitions: Iterable[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    """Return the offset of each partition that `spec` names."""
    listed = admin.list_offsets(dict.fromkeys(partitions, spec)).all()
    return {tp: row.offset for tp, row in listed.items()}


def _by_time_text(admin: Admin, partitions: Iterable[TopicPartition]) -> str:
    """Return how many partitions have records of the last hour."""
    hour_ago = OffsetSpec.for_timestamp(int(time.time() - 3600) * 1000)
    found = _offsets(admin, partitions, hour_ago)
    filled = sum(offset >= 0 for offset in found.values())
    return f"{filled} of {counted(len(found), 'partition')} with records of the last hour"


def _count(work: Callable[[], Any], what: str) -> str:
    return counted(len(work()), what)


def _cluster_text(admin: Admin) -> str:
    cluster = admin.describe_cluster()
    return f"{cluster.cluster_id}, {counted(len(cluster.brokers), 'broker')}"


def _committed_text(admin: Admin) -> str:
    committed = admin.list_consumer_group_offsets(NAME).all()
    return f"{counted(len(committed), 'offset')} of the group {NAME}"


def _done(work: Callable[[], object]) -> str:
    work()
    return "done"


def _seconds(text: str) -> float:
    """Parse the argument --timeout."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 3600 seconds")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and return the exit code: 1 after an error, 2 for a wrong setting, 130 after
    Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkkafka.testing.account_check", description=__doc__
    )
    parser.add_argument(
        "-b", "--bootstrap-server", metavar="HOST:PORT,…", help="brokers to connect to first"
    )
    parser.add_argument(
        *("-F", "--config-file", "--command-config"),
        metavar="FILE",
        help="a properties file with settings of a Java client or of librdkafka",
    )
    parser.add_argument(
        *("-X", "--property"),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting with Kafka's name; may be repeated",
    )
    parser.add_argument("--topic", help="the topic to read (the first one)")
    parser.add_argument("--write", metavar="TOPIC", help="write to this topic")
    parser.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="of each step (30)"
    )
    given = parser.parse_args(arguments)
    # The report has all errors; the client's warnings would repeat some.
    logging.getLogger("sparkkafka").addHandler(logging.NullHandler())
    sources = Sources(given.bootstrap_server, None, given.config_file, tuple(given.property))
    check = AccountCheck(sources, given.timeout)
    try:
        check.run(given.topic, given.write)
    except KafkaError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return 1 if FAILED in check.marks else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its topic is deleted
    sys.exit(main())
