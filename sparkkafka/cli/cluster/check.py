"""`check`: is everything there to run a job? It asks, and changes nothing."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Final

import typer

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.cluster.certificates import registry_findings
from sparkkafka.cli.cluster.check_connections import bootstrap_findings, broker_findings
from sparkkafka.cli.cluster.check_topics import Job, internal_findings, topic_findings
from sparkkafka.cli.cluster.findings import WRONG, Finding, unknown, well, wrong
from sparkkafka.cli.cluster.probes import clock, may_read_group, may_write_transactions
from sparkkafka.cli.commands import AsJson, session_of
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import print_json
from sparkkafka.cli.times import seconds_of
from sparkkafka.config.client_settings import parse_admin_settings, parse_producer_settings
from sparkkafka.errors import AuthenticationError, BrokerError, KafkaError, OptionError

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
