"""The part of `check` before any question of Kafka's: names, sockets, TLS, SASL, API versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sparkkafka.cli.cluster.certificates import (
    certificate_findings,
    chain_of,
    client_certificate_findings,
)
from sparkkafka.cli.cluster.findings import Finding, unknown, well, wrong
from sparkkafka.client.auth.credentials import ConnectionSecurity, connection_security
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
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import KafkaError, some
from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.protocol.wire.releases import release_of

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
            yield well(f"{at} SASL", security.sasl.who)
        yield _versions(at, connection)


def release_at(connection: Connection) -> str:
    """The Kafka that this broker speaks as: "4.1", or "" for one that is too old."""
    offered = connection.versions
    return release_of(
        {row.API_NAME: offered[key][1] for key, row in REQUESTS.items() if key in offered}
    )


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
