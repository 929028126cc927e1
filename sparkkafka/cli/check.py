"""`check`: is everything there to run a job? Its requests change nothing."""

from __future__ import annotations

import datetime
import shutil
import ssl
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

import typer

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.brokers import release_at
from sparkkafka.cli.commands import AsJson, session_of
from sparkkafka.cli.probes import clock, may_read_group, may_write_transactions
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import duration_text, print_json, printable
from sparkkafka.cli.times import seconds_of
from sparkkafka.client.admin.topics import TopicDescription
from sparkkafka.client.auth.credentials import ConnectionSecurity, connection_security
from sparkkafka.client.auth.http_exchange import connected
from sparkkafka.client.auth.tls import own_certificates
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import (
    BootstrapServers,
    addresses_of,
    connect,
    encrypt,
    where,
)
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Broker
from sparkkafka.config.client_settings import parse_admin_settings, parse_producer_settings
from sparkkafka.config.given_options import GivenOptions
from sparkkafka.config.option_table import Side
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.registry import registry_from, registry_settings
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import (
    AuthenticationError,
    BrokerError,
    ErrorCode,
    KafkaError,
    OptionError,
    counted,
    some,
)
from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.schemas.registry.rest_service import server_of

WELL = "ok"
WRONG = "!!"
UNKNOWN = "??"


class Finding(NamedTuple):
    """`mark`: WELL; WRONG, where `words` say what to do; UNKNOWN, where nobody would tell, and the
    words say what to grant. `about` is what was looked at."""

    mark: str
    about: str
    words: str

    @property
    def line(self) -> str:
        return printable(f"{self.mark}  {self.about}: {' '.join(self.words.split())}")

    @property
    def document(self) -> dict[str, Any]:
        return self._asdict()


def well(about: str, words: str) -> Finding:
    return Finding(WELL, about, words)


def wrong(about: str, words: object) -> Finding:
    return Finding(WRONG, about, str(words))


def unknown(about: str, words: object) -> Finding:
    return Finding(UNKNOWN, about, str(words))


# --- certificates -----------------------------------------------------------------------------

FEW_DAYS: Final = 30
LAST_PART: Final = 1 / 3
"""Of a certificate's life: those that live for a day are renewed each day."""


def registry_findings(options: Mapping[str, str], deadline: Deadline) -> Iterator[Finding]:
    """The certificates of each registry that the options name, and the client's for them.

    Raises OptionError.
    """
    registry = registry_from(GivenOptions(options, Side.READ, prefixed=True))
    if registry is None:
        return
    settings = registry_settings(registry)
    secure = [url for url in settings.urls if url.secure]
    if secure:
        yield from client_certificate_findings("registry client", settings.tls)
    for url in secure:
        at = f"registry {url}"
        limit = deadline.sooner(registry.request_timeout_ms)
        try:
            with connected(server_of(settings, url, registry.name_of("url")), limit) as sock:
                chain = chain_of(sock)
        except KafkaError as error:
            yield wrong(f"{at} TLS", error)
            continue
        yield from certificate_findings(at, chain)


def client_certificate_findings(whose: str, settings: TlsSettings) -> Iterator[Finding]:
    """Of the certificate with which the client says who it is, if the settings name one.

    Raises OptionError.
    """
    from cryptography import x509

    if settings.certificates:
        pems = own_certificates(settings)
        chain = [x509.load_pem_x509_certificate(pem.encode()) for pem in pems]
        yield from certificate_findings(whose, chain)


def certificate_findings(at: str, chain: Iterable[Any]) -> Iterator[Finding]:
    """A chain's, the one in question first."""
    for number, certificate in enumerate(chain):
        yield certificate_finding(at, certificate, is_leaf=number == 0)


def chain_of(tls: Any) -> list[Any]:
    """The certificates from the server's up to the authority, as `cryptography` reads them; the
    server's alone where Python does not tell the others."""
    from cryptography import x509

    # Public since Python 3.13; the object below has had it since 3.10.
    source: Any = tls if hasattr(tls, "get_verified_chain") else getattr(tls, "_sslobj", None)
    ask: Callable[[], Any] = getattr(source, "get_verified_chain", lambda: [])
    try:
        rows = ask() or []
    except (ssl.SSLError, ValueError):
        rows = []
    found = [
        row if isinstance(row, bytes) else ssl.PEM_cert_to_DER_cert(row.public_bytes())
        for row in rows
    ]
    if not found and (leaf := tls.getpeercert(binary_form=True)):
        found = [leaf]
    return [x509.load_der_x509_certificate(der) for der in found]


def certificate_finding(at: str, certificate: Any, *, is_leaf: bool) -> Finding:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def common_name(name: Any) -> str:
        rows = name.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(rows[0].value) if rows else name.rfc4514_string()

    names: Iterable[str] = ()
    if is_leaf:
        try:
            extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = [str(one.value) for one in extension.value]
        except x509.ExtensionNotFound:
            names = ()
    end = certificate.not_valid_after_utc
    left = end - datetime.datetime.now(datetime.UTC)
    shown = f"{left.days} days" if left.days > 1 else duration_text(max(left.total_seconds(), 0))
    about = f"{at} certificate {common_name(certificate.subject)}"
    words = f"of {common_name(certificate.issuer)}, {shown} left"
    if names:
        words += f", for {some(names, most=8)}"
    if left.days < FEW_DAYS and left < (end - certificate.not_valid_before_utc) * LAST_PART:
        return wrong(about, f"{words}: renew it before {end:%Y-%m-%d}")
    return well(about, words)


# --- bootstrap servers and brokers ------------------------------------------------------------

MIN_MS: Final = 1_000


def bootstrap_findings(options: ClientOptions, deadline: Deadline) -> Iterator[Finding]:
    """The client's own certificate, then each entry of bootstrap.servers, as far as it goes."""
    addresses = BootstrapServers(options).addresses()
    tls = connection_security(options, *addresses[0]).tls_settings
    if tls is not None:
        yield from client_certificate_findings("client", tls)
    for number, (host, port) in enumerate(addresses):
        share_ms = deadline.remaining_s() * 1000 / (len(addresses) - number + 1)
        yield from _server(host, port, options, deadline.sooner(max(share_ms, MIN_MS)))


def _server(host: str, port: int, options: ClientOptions, deadline: Deadline) -> Iterator[Finding]:
    at = where(host, port)
    found = addresses_of(host)
    if not found:
        yield wrong(f"{at} resolves", "no address: is the name right, and this machine's DNS?")
        return
    yield well(f"{at} resolves", some(found))
    try:
        connect(host, port, options, deadline).close()
    except KafkaError as error:
        yield wrong(f"{at} connects", f"{error}: does a broker listen there, is a firewall before?")
        return
    yield well(f"{at} connects", "TCP")
    security = connection_security(options, host, port)
    if security.context is not None:
        try:
            yield from _tls(host, port, options, security, deadline)
        except KafkaError as error:
            yield wrong(f"{at} TLS", error)
            return
    try:
        connection = Connection.open(host, port, options, deadline)
    except KafkaError as error:
        yield wrong(f"{at} {'SASL' if security.sasl is not None else 'Kafka'}", error)
        return
    with connection:
        if security.sasl is not None:
            yield well(f"{at} SASL", security.sasl.text)
        yield _versions(at, connection)


def _versions(at: str, connection: Connection) -> Finding:
    offered = connection.versions
    release = release_at(connection)
    missing = sorted(
        request.API_NAME
        for key, request in REQUESTS.items()
        if key in offered and not connection.supports(request)
    )
    if not release or missing:
        return wrong(
            f"{at} API versions",
            f"no version in common of {some(missing)}"
            if missing
            else "older than Kafka 2.1, the first that is supported",
        )
    return well(f"{at} API versions", f"those of Kafka {release}, by its answer to ApiVersions")


# --- TLS ---------------------------------------------------------------------------------------


def _tls(
    host: str, port: int, options: ClientOptions, security: ConnectionSecurity, deadline: Deadline
) -> Iterator[Finding]:
    at = where(host, port)
    context, settings = security.context, security.tls_settings
    if context is None or settings is None:
        return
    sock = connect(host, port, options, deadline)
    tls = encrypt(sock, context, settings, host, at, deadline, options.prefix)
    try:
        cipher = tls.cipher()
        chain = chain_of(tls)
        words = f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}"
    finally:
        tls.close()
    if not settings.verify:
        yield wrong(
            f"{at} TLS", f"{words}; the certificate is not verified: anybody can pose as it"
        )
    elif not settings.check_hostname:
        yield wrong(
            f"{at} TLS",
            f"{words}; the name is not checked: any certificate of these authorities would do "
            "(ssl.endpoint.identification.algorithm=https checks it)",
        )
    else:
        yield well(f"{at} TLS", words)
    yield from certificate_findings(at, chain)


# --- the brokers that the cluster names -----------------------------------------------------------


def broker_findings(
    brokers: Iterable[Broker], options: ClientOptions, deadline: Deadline
) -> Iterator[Finding]:
    """Whether each can be reached at the address that the cluster gives to clients."""
    waiting = [one for one in brokers if (one.host, one.port) not in options.bootstrap_servers]
    for number, broker in enumerate(waiting):
        if deadline.expired:
            rest = some((str(one.node_id) for one in waiting[number:]), most=10)
            yield unknown("brokers", f"no time left to try {rest}: give --timeout more seconds")
            return
        share_ms = deadline.remaining_s() * 1000 / (len(waiting) - number + 1)
        try:
            limit = deadline.sooner(max(share_ms, MIN_MS))
            with Connection.open(broker.host, broker.port, options, limit) as connection:
                yield _versions(str(broker), connection)
        except KafkaError as error:
            yield wrong(
                str(broker),
                f"{error}. This is the address that the cluster gives to clients: compare the "
                "broker's advertised.listeners with what this machine can reach",
            )


# --- topics -----------------------------------------------------------------------------------

READ: Final = ("READ", "DESCRIBE")
WRITE: Final = ("WRITE", "DESCRIBE")
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_KEYS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "min.insync.replicas",
    "retention.ms",
    "unclean.leader.election.enable",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job does with a topic. `max_request_size` is the producer's, in bytes; `trigger_s` how
    long it may be until the next micro-batch, None if it was not said."""

    reads: bool = False
    writes: bool = False
    exactly_once: bool = False
    max_request_size: int = 0
    trigger_s: float | None = None


def topic_findings(admin: BoundedAdmin, topic: str, job: Job) -> Iterator[Finding]:
    """One topic of a job."""
    about = f"topic {topic}"
    results = admin.describe_topics([topic], include_authorized_operations=True)
    error = results.errors.get(topic)
    if error is not None and _is_unsupported(error):  # operations, before Kafka 2.3
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
    if error is not None:
        yield wrong(about, admin.with_nearest_topics({topic: error})[topic])
        return
    found = results[topic]
    yield _operations(about, found, _needed(job))
    yield _partitions(about, found)
    settings = _settings(admin, topic)
    if isinstance(settings, KafkaError):
        yield unknown(f"{about} settings", settings)
        return
    problems = list(_problems(found, settings, job))
    for words in problems:
        yield wrong(f"{about} settings", words)
    if not problems:
        yield well(f"{about} settings", ", ".join(f"{key}={settings[key]}" for key in settings))


def _is_unsupported(error: KafkaError) -> bool:
    from sparkkafka.errors import UnsupportedVersionError

    return isinstance(error, UnsupportedVersionError)


def _needed(job: Job) -> list[str]:
    needed = [*(READ if job.reads else ()), *(WRITE if job.writes else ())]
    if job.exactly_once and job.writes:
        needed.append("READ")  # decisions are stored beside offsets of the topic
    return list(dict.fromkeys(needed))


def _operations(about: str, found: TopicDescription, needed: list[str]) -> Finding:
    granted = found.authorized_operations
    if granted is None:
        return unknown(f"{about} ACLs", "brokers before Kafka 2.3 do not tell what a user may do")
    missing = [name for name in needed if name not in granted]
    if missing:
        return wrong(
            f"{about} ACLs",
            f"not allowed: {' and '.join(missing)}; grant it: kafka-acls.sh --add "
            f"--allow-principal User:… --topic {found.name} "
            + " ".join(f"--operation {name.title()}" for name in missing),
        )
    return well(f"{about} ACLs", f"{', '.join(needed)} allowed")


def _partitions(about: str, found: TopicDescription) -> Finding:
    about = f"{about} partitions"
    leaderless = [row.partition for row in found.partitions if row.leader is None]
    if leaderless:
        return wrong(
            about, f"no leader in {some(leaderless)}: a broker with a replica must come back"
        )
    behind = [row.partition for row in found.partitions if len(row.isr) < len(row.replicas)]
    if behind:
        down = {one for row in found.partitions for one in {*row.replicas} - {*row.isr}}
        return wrong(
            about,
            f"replicas of {some(behind)} are not in sync, those of brokers {some(sorted(down))}: "
            "are they up?",
        )
    replicas = min((len(row.replicas) for row in found.partitions), default=0)
    words = f"{counted(len(found.partitions), 'partition')}, all led, replicas in sync"
    if replicas == 1:
        words += "; there is one replica: a lost disk loses records"
    return well(about, words)


# --- settings -----------------------------------------------------------------------------------


def _settings(admin: BoundedAdmin, topic: str) -> dict[str, str] | KafkaError:
    resource = ConfigResource("topic", topic)
    results = admin.describe_configs([resource], keys=_KEYS)
    error = results.errors.get(resource)
    if error is not None:
        return error
    return {key: row.value for key, row in results[resource].items() if row.value is not None}


def _problems(found: TopicDescription, settings: Mapping[str, str], job: Job) -> Iterator[str]:
    policy = settings.get("cleanup.policy", "")
    replicas = min((len(row.replicas) for row in found.partitions), default=0)
    if job.writes:
        most = int(settings.get("max.message.bytes", job.max_request_size))
        if most < job.max_request_size:
            yield (
                f"max.message.bytes={most} is below the producer's max.request.size="
                f"{job.max_request_size}: larger batches are refused; set max.request.size to "
                f"{most}, or raise max.message.bytes"
            )
        least = int(settings.get("min.insync.replicas", 1))
        in_sync = min((len(row.isr) for row in found.partitions), default=0)
        if least > replicas:
            yield (
                f"min.insync.replicas={least} and there are {replicas} replicas: every write with "
                "acks=all is refused; lower it, or add replicas"
            )
        elif in_sync < least:
            yield (
                f"min.insync.replicas={least} and a partition has {in_sync} in sync: writes with "
                "acks=all are refused until a broker is back"
            )
        elif least == replicas > 1:
            yield (
                f"min.insync.replicas={least} is all there are: when one broker is down, nothing "
                "can be written; lower it by one, or add a replica"
            )
        if settings.get("unclean.leader.election.enable") == "true":
            yield (
                "unclean.leader.election.enable=true: what was acknowledged may be lost when a "
                "broker dies; set it to false"
            )
    if job.reads and job.trigger_s is not None and "delete" in policy:
        retention_ms = int(settings.get("retention.ms", -1))
        if 0 <= retention_ms < job.trigger_s * 1000:
            yield (
                f"retention.ms={retention_ms} is below the trigger's "
                f"{duration_text(job.trigger_s)}: records are deleted before a micro-batch reads "
                "them; raise it well above the longest time that the job may be away"
            )


def internal_findings(admin: BoundedAdmin, broker_count: int) -> Iterator[Finding]:
    """Where Kafka keeps offsets, decisions and transactions; an exactly-once job depends on it."""
    for topic in INTERNAL:
        about = f"topic {topic}"
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            yield unknown(about, "not there, or not shown to you: brokers make it when it is used")
            continue
        if error is not None:
            yield unknown(about, error)
            continue
        found = results[topic]
        partitions = _partitions(about, found)
        replicas = min((len(row.replicas) for row in found.partitions), default=0)
        if replicas < min(broker_count, 3):
            yield wrong(
                f"{about} partitions",
                f"{replicas} of {broker_count} brokers have it: a lost disk loses decisions; give "
                "it 3 replicas (kafka-reassign-partitions.sh)",
            )
        else:
            yield partitions
        settings = _settings(admin, topic)
        if isinstance(settings, KafkaError):
            yield unknown(f"{about} settings", settings)
        elif "compact" not in settings.get("cleanup.policy", ""):
            yield wrong(
                f"{about} settings",
                f"cleanup.policy={settings.get('cleanup.policy')}: decisions would be deleted with "
                "time; set it to compact",
            )
        else:
            yield well(f"{about} settings", f"cleanup.policy={settings['cleanup.policy']}")


# --- the verb ---------------------------------------------------------------------------------

app = typer.Typer(rich_markup_mode=None)

CLOCK_S: Final = 2.0
"""Clocks that are further apart make ages, retention and tokens look wrong."""
DECISIONS: Final = "-decisions"
"""Of the group and the transactional id of an exactly-once query, after its prefix."""

DEFAULT_PREFIX: Final = "sparkkafka"

Topics = list[str] | None


@app.command()
def check(
    context: typer.Context,
    read: Annotated[
        Topics, typer.Option("--read", metavar="TOPIC", help="A topic to read; may be repeated.")
    ] = None,
    write: Annotated[
        Topics, typer.Option("--write", metavar="TOPIC", help="A topic to write; may be repeated.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="The group to read with.")
    ] = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Writes are exactly-once.")
    ] = False,
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="TEXT", help="transactionalIdPrefix, of --exactly-once."),
    ] = DEFAULT_PREFIX,
    trigger: Annotated[
        str | None,
        typer.Option(
            "--trigger",
            metavar="TIME",
            help="Between two micro-batches of a read: 30s, 15m, 1h, 1d.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is everything there to run a job? Resolves, connects, TLS, SASL, API versions, all brokers,
    clocks; for the topics of a job also ACLs, replicas, and settings that will hurt.

    Each line begins with ok, with !! (what is wrong, and what to do), or with ?? (nobody would
    tell). It asks Kafka, and changes nothing. The exit code is 1 if a line begins with !!.

    \b
      sparkkafka -b localhost:9092 check --read orders --group billing --trigger 1h
      sparkkafka -b localhost:9092 check --write results --exactly-once
    """
    if exactly_once and not write:
        raise OptionError("--exactly-once is about writes: name a topic with --write")
    if prefix != DEFAULT_PREFIX and not exactly_once:
        raise OptionError("--prefix is for --exactly-once")
    if trigger is not None and not read:
        raise OptionError("--trigger is about reads: name a topic with --read")
    session = session_of(context)
    settings = session.settings("producer")
    found: list[Finding] = []
    jobs = {
        topic: (topic in (read or ()), topic in (write or ()))
        for topic in (*(read or ()), *(write or ()))
    }
    by_topic = {
        topic: Job(
            reads=reads,
            writes=writes,
            exactly_once=exactly_once,
            max_request_size=parse_producer_settings(settings).producer.max_request_size,
            trigger_s=None if trigger is None else seconds_of(trigger, "--trigger"),
        )
        for topic, (reads, writes) in jobs.items()
    }
    findings = _kafka(session, by_topic, group, prefix if exactly_once else None)
    for finding in chain(findings, registry_findings(session.registry_options(), session.deadline)):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print_json([finding.document for finding in found])
    if any(finding.mark == WRONG for finding in found):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    """At once: the next line may take a while."""
    colour = {"ok": typer.colors.GREEN, WRONG: typer.colors.RED}.get(
        finding.mark, typer.colors.YELLOW
    )
    line = finding.line
    if sys.stdout.isatty():
        # A long one goes on below its words, so that the marks stand alone.
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(
            line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        line = typer.style(line[:2], fg=colour, bold=True) + line[2:]
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _kafka(
    session: Session, jobs: dict[str, Job], group: str | None, prefix: str | None
) -> Iterator[Finding]:
    options = parse_admin_settings(session.settings("admin"))
    reached = False
    for finding in bootstrap_findings(options, session.deadline):
        reached = reached or finding.about.endswith("API versions")
        yield finding
    if not reached:
        return
    with session.admin() as admin:
        try:
            cluster = admin.describe_cluster()
        except KafkaError as error:
            yield wrong("cluster", error)
            return
        count = len(cluster.brokers)
        yield well("cluster", f"{cluster.cluster_id}, {count} broker{'' if count == 1 else 's'}")
        yield from broker_findings(cluster.brokers, options, session.deadline)
        yield _clock(admin)
        for topic, job in jobs.items():
            yield from topic_findings(admin, topic, job)
        if group is not None:
            yield _allowed(f"group {group}", "READ", may_read_group(admin, group))
        if prefix is not None:
            name = f"{prefix}{DECISIONS}"
            yield _allowed(f"group {name}", "READ", may_read_group(admin, name))
            refused = may_write_transactions(admin, name)
            yield _allowed(f"transactional ids {prefix}…", "WRITE", refused)
            yield from internal_findings(admin, count)


def _allowed(about: str, operation: str, error: KafkaError | None) -> Finding:
    if error is None:
        return well(f"{about} ACLs", f"{operation} allowed")
    return wrong(f"{about} ACLs", error)


def _clock(admin: BoundedAdmin) -> Finding:
    """By DescribeQuorum: the active controller says the time at which it has caught up with itself,
    which is now."""
    try:
        found = clock(admin)
    except (BrokerError, AuthenticationError) as error:
        return unknown("clock", error)
    except KafkaError as error:
        return unknown("clock", f"this cluster does not tell its time ({error})")
    way = "ahead of" if found.ahead_s > 0 else "behind"
    words = (
        f"{abs(found.ahead_s):.3f} s {way} that of the active controller, node "
        f"{found.controller_id} (to {found.within_s:.3f} s, by DescribeQuorum)"
    )
    if abs(found.ahead_s) - found.within_s > CLOCK_S:
        return wrong(
            "clock", f"{words}: let both follow NTP, or times, ages and tokens will be wrong"
        )
    return well("clock", words)
