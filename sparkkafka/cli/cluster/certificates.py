"""The part of `check` about certificates: of brokers, of the registry, and the client's own."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from sparkkafka.cli.cluster.findings import Finding, well, wrong
from sparkkafka.cli.tables import duration_text
from sparkkafka.client.auth.http_exchange import connected
from sparkkafka.client.auth.tls_context import own_certificates
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.check import GivenOptions
from sparkkafka.config.kinds import Side
from sparkkafka.config.registry import registry_from, registry_settings
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import KafkaError, some
from sparkkafka.schemas.registry.rest_service import server_of

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
