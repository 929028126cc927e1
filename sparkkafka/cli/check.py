"""`check`: is everything there to run a job? Its requests change nothing.

Findings come in this order: the client's certificate, each bootstrap server (name, socket, TLS,
SASL, API versions), the brokers that the cluster names, clocks, the job's topics, its group and
transactional ids, and the certificates of the Schema Registry.
"""

from __future__ import annotations

import datetime
import shutil
import ssl
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Final, NamedTuple

import typer
from typer import Option

from sparkkafka import errors
from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.brokers import release_of_broker
from sparkkafka.cli.commands import AsJson, group_names, seconds_of, session_of, topic_names
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import duration_text, has_colours, print_json, printable
from sparkkafka.client.admin.topics import TopicDescription
from sparkkafka.client.auth.http_exchange import open_connection
from sparkkafka.client.auth.sasl import ConnectionSecurity, connection_security
from sparkkafka.client.auth.tls import client_certificates
from sparkkafka.client.cluster import request_driver
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net import connecting
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Broker
from sparkkafka.config.client_settings import parse_admin_settings, parse_producer_settings
from sparkkafka.config.kinds import address_text
from sparkkafka.config.option_table import Side
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.parsed_options import ParsedOptions
from sparkkafka.config.registry import registry_from, registry_settings
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.protocol import messages
from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.schemas.registry.rest_service import server_of

# --- what the user may do: brokers check ACLs before the rest of a request, so these requests name
# a member and a producer that cannot exist. They change nothing, and the error says whether the
# ACLs allow them.


class _Probe(request_driver.ApiHandler[str, None]):
    """A request about one group or transactional id that changes nothing.

    `expected_codes` are the errors that only a user with the needed ACLs gets.
    """

    coordinator_type: ClassVar[int]
    purpose: ClassVar[str]
    expected_codes: ClassVar[tuple[errors.ErrorCode, ...]]

    def split(self, items: Sequence[str], version: int) -> Iterable[Sequence[str]]:
        return [[item] for item in items]

    def read(self, response: Any, items: Sequence[str]) -> request_driver.Outcomes[str]:
        return [(items[0], request_driver.Outcome(response.error_code))]

    def finding(self, admin: BoundedAdmin, name: str, about: str) -> Finding:
        """Return whether the user may use `name`. The broker's refusal has the ACL to grant
        (`acl`); an error of `expected_codes` comes only after the check of ACLs."""
        with admin.cluster_and_deadline() as (cluster, deadline):
            route = request_driver.ToCoordinator(cluster, self.coordinator_type)
            results = route.call_each([name], self, deadline, self.purpose)
        error = results.errors.get(name)
        if error is None or error.code in self.expected_codes:
            return ok(f"{about} ACLs", f"{self.acl.partition(' ')[0]} allowed")
        return problem(f"{about} ACLs", error)


class _ReadGroup(_Probe):
    """READ on a group: a heartbeat of a member that the group does not have."""

    request_type = messages.HeartbeatRequest
    name_format = "group {!r}"
    acl = "READ on group {}"
    coordinator_type = request_driver.FOR_GROUP
    purpose = "sending a heartbeat"
    expected_codes = (
        errors.ErrorCode.UNKNOWN_MEMBER_ID,
        errors.ErrorCode.ILLEGAL_GENERATION,
        errors.ErrorCode.REBALANCE_IN_PROGRESS,
        errors.ErrorCode.GROUP_ID_NOT_FOUND,
        # A group with the consumer protocol (KIP-848) takes no heartbeats of this kind.
        errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        errors.ErrorCode.UNSUPPORTED_VERSION,
    )

    def build(self, items: Sequence[str], version: int) -> messages.HeartbeatRequest:
        return messages.HeartbeatRequest(
            group_id=items[0], generation_id=-1, member_id="sparkkafka-check"
        )


class _WriteTransactions(_Probe):
    """WRITE on a transactional id: aborts a transaction of a producer id that cannot exist."""

    request_type = messages.EndTxnRequest
    name_format = "transactional id {!r}"
    acl = "WRITE on transactional id {}"
    version = 1  # transactions V2 would change nothing here
    coordinator_type = request_driver.FOR_TRANSACTION
    purpose = "ending a transaction"
    expected_codes = (
        errors.ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        errors.ErrorCode.INVALID_PRODUCER_EPOCH,
        errors.ErrorCode.PRODUCER_FENCED,
        errors.ErrorCode.INVALID_TXN_STATE,
    )

    def build(self, items: Sequence[str], version: int) -> messages.EndTxnRequest:
        return messages.EndTxnRequest(
            transactional_id=items[0], producer_id=-1, producer_epoch=-1, committed=False
        )


# --- the cluster's clock ------------------------------------------------------------------------


class _ControllerTime(request_driver.ApiHandler[str, tuple[int, int]]):
    """Asks for the (node id, ms since 1970) of the active controller. Among the quorum's voters it
    reports when each last caught up with the log; for itself that is its present time."""

    request_type: ClassVar[Any] = messages.DescribeQuorumRequest
    acl = "DESCRIBE on the cluster"

    def build(self, items: Sequence[str], version: int) -> messages.DescribeQuorumRequest:
        topic = messages.QuorumTopic(
            topic_name="__cluster_metadata", partitions=[messages.QuorumPartition()]
        )
        return messages.DescribeQuorumRequest(topics=[topic])

    def needed_versions(self, item: str) -> Mapping[str, int]:
        return {"the controller's time": 1}

    def read(self, response: Any, items: Sequence[str]) -> request_driver.Outcomes[str]:
        """Return (leader's node id, time in ms at which it last caught up) of the metadata quorum,
        as the outcome of the only item. If either is missing, the code is LEADER_NOT_AVAILABLE."""
        code, found = response.error_code, None
        for row in chain.from_iterable(topic.partitions for topic in response.topics):  # only one
            code = code or row.error_code
            for voter in row.current_voters:
                if voter.replica_id == row.leader_id and voter.last_caught_up_timestamp >= 0:
                    found = (row.leader_id, voter.last_caught_up_timestamp)
        if found is None:
            code = code or errors.ErrorCode.LEADER_NOT_AVAILABLE
        return [(items[0], request_driver.Outcome(code, found))]


def _clock_difference(admin: BoundedAdmin) -> tuple[float, float, int]:
    """Return the error of the comparison in seconds, at most half the time of a request; how many
    seconds this machine's clock is ahead of the active controller's (negative: behind); and the
    controller's node id.

    Raises UnsupportedVersionError for a cluster with ZooKeeper or before Kafka 3.3, BrokerError
    without DESCRIBE on the cluster.
    """
    measured = []
    with admin.cluster_and_deadline() as (cluster, deadline):
        for _ in range(2):  # the first request may have to connect
            sent_at_s = time.time()
            results = request_driver.ToAny(cluster).call_each(
                ["clock"], _ControllerTime(), deadline, "describing the quorum"
            )
            answered_at_s = time.time()
            node_id, time_ms = results["clock"]
            ahead_s = (sent_at_s + answered_at_s) / 2 - time_ms / 1000
            measured.append(((answered_at_s - sent_at_s) / 2, ahead_s, node_id))
    return min(measured)  # the faster request has the smaller error


app = typer.Typer(rich_markup_mode=None, add_completion=False)

OK: Final = "ok"
PROBLEM: Final = "!!"
UNKNOWN: Final = "??"

DEFAULT_PREFIX: Final = "sparkkafka"
DECISIONS: Final = "-decisions"
"""Ends the group and the transactional id of an exactly-once query, after its prefix."""


class Finding(NamedTuple):
    """The result of one check. `about` is what was checked. `mark` is OK; PROBLEM, whose text says
    what to do; or UNKNOWN, whose text says what to grant so that the check can be made."""

    mark: str
    about: str
    text: str

    def print(self) -> None:
        """Print the line and flush it: the next finding may take a while."""
        line = printable(f"{self.mark}  {self.about}: {' '.join(self.text.split())}")
        if sys.stdout.isatty():
            # Continuation lines are indented, so that marks stand out.
            width = shutil.get_terminal_size().columns
            line = textwrap.fill(
                line,
                width,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            colours = {OK: typer.colors.GREEN, PROBLEM: typer.colors.RED}
            if has_colours():
                colour = colours.get(self.mark, typer.colors.YELLOW)
                line = typer.style(line[:2], fg=colour, bold=True) + line[2:]
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def ok(about: str, text: str) -> Finding:
    return Finding(OK, about, text)


def problem(about: str, text: object) -> Finding:
    return Finding(PROBLEM, about, str(text))


def unknown(about: str, text: object) -> Finding:
    return Finding(UNKNOWN, about, str(text))


@app.command()
def check(
    context: typer.Context,
    read: list[str] | None = Option(
        None, metavar="TOPIC", autocompletion=topic_names, help="A topic to read; may be repeated."
    ),
    write: list[str] | None = Option(
        None, metavar="TOPIC", autocompletion=topic_names, help="A topic to write; may be repeated."
    ),
    group: str | None = Option(
        None, autocompletion=group_names, help="The consumer group of the reads."
    ),
    exactly_once: bool = Option(
        False, "--exactly-once", help="Check what exactly-once writes need."
    ),
    prefix: str = Option(
        DEFAULT_PREFIX, metavar="TEXT", help="transactionalIdPrefix, with --exactly-once."
    ),
    trigger: str | None = Option(
        None, metavar="TIME", help="Time between two micro-batches of a read: 30s, 15m, 1h, 1d."
    ),
    as_json: AsJson = False,
) -> None:
    """Check whether a job can run: host names, connections, TLS, SASL, API versions, all brokers,
    clocks; for the topics of a job also ACLs, replicas, and harmful settings.

    Each line begins with ok, with !! (what is wrong, and what to do), or with ?? (it could not be
    checked). The requests change nothing. The exit code is 1 if a line begins with !!.

    \b
      sparkkafka -b localhost:9092 check --read orders --group billing --trigger 1h
      sparkkafka -b localhost:9092 check --write results --exactly-once
    """
    if exactly_once and not write:
        raise errors.OptionError("--exactly-once is about writes: name a topic with --write")
    if prefix != DEFAULT_PREFIX and not exactly_once:
        raise errors.OptionError("--prefix is for --exactly-once")
    if trigger is not None and not read:
        raise errors.OptionError("--trigger is about reads: name a topic with --read")
    session = session_of(context)
    settings = session.settings("producer")
    job = Job(
        reads=frozenset(read or ()),
        writes=frozenset(write or ()),
        exactly_once=exactly_once,
        max_request_size=parse_producer_settings(settings).producer.max_request_size,
        trigger_s=None if trigger is None else seconds_of(trigger, "--trigger"),
    )
    topics = list(dict.fromkeys((*(read or ()), *(write or ()))))
    print_findings(
        chain(
            cluster_findings(session, topics, job, group, prefix if exactly_once else None),
            registry_findings(session.registry_options(), session.deadline),
        ),
        as_json,
    )


def print_findings(findings: Iterable[Finding], as_json: bool) -> None:
    """Print each finding as soon as it is known, or all as one JSON document. Raises typer.Exit (1)
    if one is a PROBLEM."""
    printed = []
    for finding in findings:
        printed.append(finding)
        if not as_json:
            finding.print()
    if as_json:
        print_json([finding._asdict() for finding in printed])
    if any(finding.mark == PROBLEM for finding in printed):
        raise typer.Exit(1)


def cluster_findings(
    session: Session, topics: Iterable[str], job: Job, group: str | None, prefix: str | None
) -> Iterator[Finding]:
    """Check servers, brokers, clocks, topics, groups and transactional ids. If no bootstrap server
    is reached, that is all.

    `group` None: no group is checked. `prefix` None: the job does not write exactly-once.
    """
    options = parse_admin_settings(session.settings("admin"))
    is_reached = False
    for finding in bootstrap_findings(options, session.deadline):
        # The last check of a server: all others have passed.
        is_reached = is_reached or finding.about.endswith("API versions")
        yield finding
    if not is_reached:
        return
    with session.admin() as admin:
        try:
            cluster = admin.describe_cluster()
        except errors.KafkaError as error:
            yield problem("cluster", error)
            return
        count = len(cluster.brokers)
        yield ok("cluster", f"{cluster.cluster_id}, {errors.counted(count, 'broker')}")
        yield from broker_findings(cluster.brokers, options, session.deadline)
        yield clock_finding(admin)
        for topic in topics:
            yield from topic_findings(admin, topic, job)
        if group is not None:
            yield _ReadGroup().finding(admin, group, f"group {group}")
        if prefix is not None:
            name = f"{prefix}{DECISIONS}"
            yield _ReadGroup().finding(admin, name, f"group {name}")
            yield _WriteTransactions().finding(admin, name, f"transactional ids {prefix}…")
            yield from internal_findings(admin, count)


def clock_finding(admin: BoundedAdmin) -> Finding:
    """Compare this machine's clock with the cluster's. If they are more than 2 s apart, beyond the
    error of the measurement, ages, retention and tokens look wrong."""
    try:
        within_s, ahead_s, node_id = _clock_difference(admin)
    except errors.UnsupportedVersionError as error:  # ZooKeeper, or before Kafka 3.3
        return unknown("clock", f"this cluster does not report its time ({error})")
    except errors.KafkaError as error:
        return unknown("clock", error)
    direction = "ahead of" if ahead_s > 0 else "behind"
    text = (
        f"{abs(ahead_s):.3f} s {direction} that of the active controller, node {node_id} (to "
        f"{within_s:.3f} s, by DescribeQuorum)"
    )
    if abs(ahead_s) - within_s > 2.0:
        return problem(
            "clock",
            f"{text}: synchronize both with NTP, or ages, retention and tokens will be wrong",
        )
    return ok("clock", text)


# --- servers ----------------------------------------------------------------------------------


def bootstrap_findings(options: ClientOptions, deadline: Deadline) -> Iterator[Finding]:
    """Check the client's own certificate, then each bootstrap server up to the first failure."""
    addresses = connecting.BootstrapServers(options).addresses()
    tls = connection_security(options, *addresses[0]).tls_settings
    if tls is not None:
        yield from client_certificate_findings("client", tls)
    for number, (host, port) in enumerate(addresses):
        server_deadline = _share(deadline, len(addresses) - number)
        yield from _server_findings(host, port, options, server_deadline)


def _share(deadline: Deadline, remaining_servers: int) -> Deadline:
    """Return the deadline for the next of the remaining servers. Each gets an equal share of the
    remaining time, at least a second; one more share is for the checks after the servers."""
    share_ms = deadline.remaining_s() * 1000 / (remaining_servers + 1)
    return deadline.sooner(max(share_ms, 1_000))


def _server_findings(
    host: str, port: int, options: ClientOptions, deadline: Deadline
) -> Iterator[Finding]:
    """Check the name, the socket, TLS, SASL and the API versions of one server, in this order, up
    to the first failure."""
    server = address_text(host, port)
    addresses = connecting.addresses_of(host)
    if not addresses:
        yield problem(
            f"{server} resolves", "no address: is the name right, and this machine's DNS?"
        )
        return
    yield ok(f"{server} resolves", errors.some(addresses))
    try:
        connecting.connect(host, port, options, deadline).close()
    except errors.KafkaError as error:
        yield problem(
            f"{server} connects", f"{error}: does a broker listen there, is a firewall in between?"
        )
        return
    yield ok(f"{server} connects", "TCP")
    security = connection_security(options, host, port)
    if security.context is not None:
        try:
            yield from _tls_findings(host, port, options, security, deadline)
        except errors.KafkaError as error:
            yield problem(f"{server} TLS", error)
            return
    try:
        connection = Connection.open(host, port, options, deadline)
    except errors.KafkaError as error:
        yield problem(f"{server} {'SASL' if security.sasl is not None else 'Kafka'}", error)
        return
    with connection:
        if security.sasl is not None:
            yield ok(f"{server} SASL", security.sasl.text)
        yield _versions_finding(server, connection)


def _tls_findings(
    host: str, port: int, options: ClientOptions, security: ConnectionSecurity, deadline: Deadline
) -> Iterator[Finding]:
    """Check the TLS connection and the certificates of one server."""
    server = address_text(host, port)
    context, settings = security.context, security.tls_settings
    if context is None or settings is None:
        return
    sock = connecting.connect(host, port, options, deadline)
    tls = connecting.start_tls(sock, context, settings, host, server, deadline, options.prefix)
    try:
        cipher = tls.cipher()
        certificates = chain_of(tls)
        text = f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}"
    finally:
        tls.close()
    if not settings.verify:
        yield problem(
            f"{server} TLS", f"{text}; the certificate is not verified: anybody can impersonate it"
        )
    elif not settings.check_hostname:
        yield problem(
            f"{server} TLS",
            f"{text}; the name is not checked: any certificate of these authorities is accepted "
            "(ssl.endpoint.identification.algorithm=https checks it)",
        )
    else:
        yield ok(f"{server} TLS", text)
    yield from certificate_findings(server, certificates)


def _versions_finding(server: str, connection: Connection) -> Finding:
    """Check that broker and client have a version of each API in common."""
    about, release = f"{server} API versions", release_of_broker(connection)
    missing = sorted(
        request.API_NAME
        for key, request in REQUESTS.items()
        if key in connection.versions and not connection.supports(request)
    )
    if missing:
        return problem(about, f"no version in common of {errors.some(missing)}")
    if not release:
        return problem(about, "older than Kafka 2.1, the first that is supported")
    return ok(about, f"those of Kafka {release}, by its response to ApiVersions")


def broker_findings(
    brokers: Iterable[Broker], options: ClientOptions, deadline: Deadline
) -> Iterator[Finding]:
    """Check that each broker can be reached at the address that the cluster gives to clients;
    bootstrap servers are checked already."""
    unchecked = [row for row in brokers if (row.host, row.port) not in options.bootstrap_servers]
    for number, broker in enumerate(unchecked):
        if deadline.expired:
            rest = errors.some((str(row.node_id) for row in unchecked[number:]), limit=10)
            yield unknown("brokers", f"no time left to try {rest}: give --timeout more seconds")
            return
        try:
            broker_deadline = _share(deadline, len(unchecked) - number)
            with Connection.open(broker.host, broker.port, options, broker_deadline) as connection:
                yield _versions_finding(str(broker), connection)
        except errors.KafkaError as error:
            yield problem(
                str(broker),
                f"{error}. This is the address that the cluster gives to clients: compare the "
                "broker's advertised.listeners with what this machine can reach",
            )


# --- certificates -----------------------------------------------------------------------------


def registry_findings(options: Mapping[str, str], deadline: Deadline) -> Iterator[Finding]:
    """Check the certificates of each registry in the options, and the client's for them.

    Raises OptionError.
    """
    registry = registry_from(ParsedOptions(options, Side.READ))
    if registry is None:
        return
    settings = registry_settings(registry)
    secure = [url for url in settings.urls if url.secure]
    if secure:
        yield from client_certificate_findings("registry client", settings.tls)
    for url in secure:
        server = f"registry {url}"
        limit = deadline.sooner(registry.request_timeout_ms)
        try:
            with open_connection(server_of(settings, url, registry.name_of("url")), limit) as sock:
                certificates = chain_of(sock)
        except errors.KafkaError as error:
            yield problem(f"{server} TLS", error)
            continue
        yield from certificate_findings(server, certificates)


def client_certificate_findings(owner: str, settings: TlsSettings) -> Iterator[Finding]:
    """Check the client's own certificate, if the settings name one. Raises OptionError."""
    from cryptography import x509

    if settings.certificates:
        pems = client_certificates(settings)
        certificates = [x509.load_pem_x509_certificate(pem.encode()) for pem in pems]
        yield from certificate_findings(owner, certificates)


def chain_of(tls: Any) -> list[Any]:
    """Return the server's certificate and those of its authorities, parsed by `cryptography`. If
    Python does not have the chain, only the server's is returned."""
    from cryptography import x509

    # Public since Python 3.13; the private object has had it since 3.10.
    source: Any = tls if hasattr(tls, "get_verified_chain") else getattr(tls, "_sslobj", None)
    get_chain: Callable[[], Any] = getattr(source, "get_verified_chain", lambda: [])
    try:
        chain = get_chain() or []
    except (ssl.SSLError, ValueError):
        chain = []
    ders = [
        certificate
        if isinstance(certificate, bytes)
        else ssl.PEM_cert_to_DER_cert(certificate.public_bytes())
        for certificate in chain
    ]
    if not ders and (leaf := tls.getpeercert(binary_form=True)):
        ders = [leaf]
    return [x509.load_der_x509_certificate(der) for der in ders]


def certificate_findings(owner: str, certificates: Iterable[Any]) -> Iterator[Finding]:
    """Check how long the certificates of `owner` (a server or client) are still valid; the leaf is
    the first. A certificate is a problem if less than 30 days and less than a third of its validity
    are left: one that is valid for a day is renewed daily."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def common_name(name: Any) -> str:
        rows = name.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(rows[0].value) if rows else name.rfc4514_string()

    for number, certificate in enumerate(certificates):
        end = certificate.not_valid_after_utc
        remaining = end - datetime.datetime.now(datetime.UTC)
        remaining_text: str | None = f"{remaining.days} days"
        if remaining.days < 2:
            remaining_text = duration_text(max(remaining.total_seconds(), 0))
        about = f"{owner} certificate {common_name(certificate.subject)}"
        text = f"of {common_name(certificate.issuer)}, {remaining_text} left"
        if number == 0:
            with suppress(x509.ExtensionNotFound):
                extensions = certificate.extensions
                names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
                text += f", for {errors.some((str(name.value) for name in names), limit=8)}"
        if remaining.days < 30 and remaining < (end - certificate.not_valid_before_utc) / 3:
            yield problem(about, f"{text}: renew it before {end:%Y-%m-%d}")
        else:
            yield ok(about, text)


# --- topics -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Job:
    """The topics that a job reads and writes, and how. `max_request_size` is the producer's, in
    bytes; `trigger_s` is the time between two micro-batches, None if it is not known."""

    reads: frozenset[str]
    writes: frozenset[str]
    exactly_once: bool
    max_request_size: int
    trigger_s: float | None

    def needed_operations(self, topic: str) -> list[str]:
        """Return the operations that the job needs on a topic."""
        needed = ["READ", "DESCRIBE"] if topic in self.reads else []
        if topic in self.writes:
            needed += ["WRITE", "DESCRIBE"]
            if self.exactly_once:
                needed.append("READ")  # decisions are committed as offsets of the topic
        return list(dict.fromkeys(needed))


def topic_findings(admin: BoundedAdmin, topic: str, job: Job) -> Iterator[Finding]:
    """Check one topic of the job: that it exists, ACLs, replicas, settings."""
    about = f"topic {topic}"
    results = admin.describe_topics([topic], include_authorized_operations=True)
    error = results.errors.get(topic)
    if isinstance(error, errors.UnsupportedVersionError):  # authorized operations, before Kafka 2.3
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
    if error is not None:
        yield problem(about, admin.with_nearest_topics({topic: error})[topic])
        return
    described = results[topic]
    yield _operations_finding(about, described, job.needed_operations(topic))
    yield _partitions_finding(about, described)
    settings = topic_settings(admin, topic)
    if isinstance(settings, errors.KafkaError):
        yield unknown(f"{about} settings", settings)
        return
    problems = list(_settings_problems(described, settings, job))
    for text in problems:
        yield problem(f"{about} settings", text)
    if not problems:
        yield ok(
            f"{about} settings", ", ".join(f"{key}={settings[key]}" for key in sorted(settings))
        )


def _operations_finding(about: str, topic: TopicDescription, needed: list[str]) -> Finding:
    """Check the ACLs of a topic."""
    granted = topic.authorized_operations
    if granted is None:
        return unknown(f"{about} ACLs", "brokers before Kafka 2.3 do not report them")
    missing = [name for name in needed if name not in granted]
    if missing:
        return problem(
            f"{about} ACLs",
            f"not allowed: {' and '.join(missing)}; grant it: sparkkafka acls "
            f"create --principal User:… --topic {topic.name} "
            + " ".join(f"--operation {name.lower()}" for name in missing),
        )
    return ok(f"{about} ACLs", f"{', '.join(needed)} allowed")


def _partitions_finding(about: str, topic: TopicDescription) -> Finding:
    """Check that all partitions have a leader, and all replicas are in sync."""
    about = f"{about} partitions"
    leaderless = [row.partition for row in topic.partitions if row.leader is None]
    if leaderless:
        return problem(
            about, f"no leader in {errors.some(leaderless)}: a broker with a replica must come back"
        )
    behind = [row.partition for row in topic.partitions if len(row.isr) < len(row.replicas)]
    if behind:
        down = sorted({node for row in topic.partitions for node in {*row.replicas} - {*row.isr}})
        return problem(
            about,
            f"replicas of {errors.some(behind)} are not in sync, those of brokers "
            f"{errors.some(down)}: are they up?",
        )
    text = f"{errors.counted(len(topic.partitions), 'partition')}, all led, replicas in sync"
    if _replica_count(topic) == 1:
        text += "; there is one replica: a lost disk loses records"
    return ok(about, text)


def _replica_count(topic: TopicDescription) -> int:
    """Return the smallest number of replicas of any partition."""
    return min((len(row.replicas) for row in topic.partitions), default=0)


def topic_settings(admin: BoundedAdmin, topic: str) -> dict[str, str] | errors.KafkaError:
    """Look up the settings of a topic that matter to a job. Return the error if that fails."""
    resource = ConfigResource("topic", topic)
    keys = (
        "cleanup.policy",
        "max.message.bytes",
        "min.insync.replicas",
        "retention.ms",
        "unclean.leader.election.enable",
    )
    results = admin.describe_configs([resource], keys=keys)
    error = results.errors.get(resource)
    if error is not None:
        return error
    return {key: row.value for key, row in results[resource].items() if row.value is not None}


def _settings_problems(
    topic: TopicDescription, settings: Mapping[str, str], job: Job
) -> Iterator[str]:
    """Yield what is wrong with the settings of a topic for this job."""
    if topic.name in job.writes:
        max_bytes = int(settings.get("max.message.bytes", job.max_request_size))
        if max_bytes < job.max_request_size:
            yield (
                f"max.message.bytes={max_bytes} is below the producer's max.request.size="
                f"{job.max_request_size}: larger batches are refused; set max.request.size to "
                f"{max_bytes}, or raise max.message.bytes"
            )
        min_isr = int(settings.get("min.insync.replicas", 1))
        replicas = _replica_count(topic)
        in_sync = min((len(row.isr) for row in topic.partitions), default=0)
        if min_isr > replicas:
            yield (
                f"min.insync.replicas={min_isr} and there are {replicas} replicas: every write "
                "with acks=all is refused; lower it, or add replicas"
            )
        elif in_sync < min_isr:
            yield (
                f"min.insync.replicas={min_isr} and a partition has {in_sync} in sync: writes with "
                "acks=all are refused until a broker is back"
            )
        elif min_isr == replicas > 1:
            yield (
                f"min.insync.replicas={min_isr} is all there are: when one broker is down, nothing "
                "can be written; lower it by one, or add a replica"
            )
        if settings.get("unclean.leader.election.enable") == "true":
            yield (
                "unclean.leader.election.enable=true: acknowledged records may be lost when a "
                "broker dies; set it to false"
            )
    deletes_records = "delete" in settings.get("cleanup.policy", "")
    if topic.name in job.reads and job.trigger_s is not None and deletes_records:
        retention_ms = int(settings.get("retention.ms", -1))
        if 0 <= retention_ms < job.trigger_s * 1000:
            yield (
                f"retention.ms={retention_ms} is below the trigger's "
                f"{duration_text(job.trigger_s)}: records are deleted before a micro-batch reads "
                "them; raise it well above the longest time that the job may be down"
            )


def internal_findings(admin: BoundedAdmin, broker_count: int) -> Iterator[Finding]:
    """Check the topics in which Kafka keeps offsets, decisions and transactions: an exactly-once
    job depends on them."""
    for topic in ("__consumer_offsets", "__transaction_state"):
        about = f"topic {topic}"
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
        if error is not None:
            is_missing = error.code == errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            hint = "not there, or not shown to you: brokers create it on its first use"
            yield unknown(about, hint if is_missing else error)
            continue
        described = results[topic]
        replicas = _replica_count(described)
        if replicas < min(broker_count, 3):
            yield problem(
                f"{about} partitions",
                f"{replicas} of {broker_count} brokers have it: a lost disk loses decisions; give "
                "it 3 replicas (kafka-reassign-partitions.sh)",
            )
        else:
            yield _partitions_finding(about, described)
        settings = topic_settings(admin, topic)
        if isinstance(settings, errors.KafkaError):
            yield unknown(f"{about} settings", settings)
        elif "compact" not in settings.get("cleanup.policy", ""):
            yield problem(
                f"{about} settings",
                f"cleanup.policy={settings.get('cleanup.policy')}: decisions would be deleted with "
                "time; set it to compact",
            )
        else:
            yield ok(f"{about} settings", f"cleanup.policy={settings['cleanup.policy']}")
