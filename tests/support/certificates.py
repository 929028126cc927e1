"""Certificates for tests: an authority, and whoever it signs for."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)


@dataclass(frozen=True)
class Identity:
    """A private key with its certificate."""

    key: Any
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str = "", form: PrivateFormat = PrivateFormat.PKCS8) -> str:
        how = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return str(self.key.private_bytes(Encoding.PEM, form, how).decode())

    def server_context(self, folder: Path) -> ssl.SSLContext:
        """For a server; its file goes into the folder."""
        file = folder / "server.pem"
        file.write_text(self.pem + self.key_pem())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def pkcs12(self, password: str, chain: Sequence[Identity] = ()) -> bytes:
        """A store with key, certificate and those who signed it."""
        return pkcs12.serialize_key_and_certificates(
            b"me",
            self.key,
            self.certificate,
            [row.certificate for row in chain],
            BestAvailableEncryption(password.encode()),
        )


def signed(
    name: str,
    by: Identity | None = None,
    key: Any = None,
    *,
    hosts: Sequence[str] = (),
    days: tuple[float, float] = (-1, 1),
) -> Identity:
    """A certificate for `name`, by itself if nobody else signs it. `hosts`: names and addresses
    that it is for, `name` if none is given. `days` from now: when it is valid."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    first, last = (now + datetime.timedelta(days=count) for count in days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([_general(host) for host in hosts or (name,)]),
            critical=False,
        )
    )
    return Identity(key, builder.sign(by.key if by else key, hashes.SHA256()))


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def keytool(folder: Path, *arguments: str) -> None:
    """Java's own tool; file names are of the folder."""
    done = subprocess.run(
        ["keytool", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", *arguments, "-noprompt"],
        cwd=folder,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout.decode()


def java_keystore(
    folder: Path, kind: str, password: str, keys: Mapping[str, Identity], key_password: str = ""
) -> bytes:
    """A store of Java's, written by keytool, with the keys by their aliases."""
    for alias, identity in keys.items():
        given = folder / f"{alias}.p12"
        given.write_bytes(identity.pkcs12(password))
        keytool(
            folder, "-importkeystore", "-srckeystore", given.name, "-srcstorepass", password,
            "-srcalias", "me", "-destalias", alias, "-destkeystore", "keys", "-deststoretype", kind,
            "-deststorepass", password, "-destkeypass", key_password or password,
        )  # fmt: skip
    return (folder / "keys").read_bytes()


def java_truststore(folder: Path, kind: str, password: str, *trusted: Identity) -> bytes:
    """The same of certificates."""
    rows = [
        pkcs12.PKCS12Certificate(identity.certificate, b"ca%d" % number)
        for number, identity in enumerate(trusted)
    ]
    encryption = BestAvailableEncryption(password.encode())
    (folder / "given.p12").write_bytes(pkcs12.serialize_java_truststore(rows, encryption))
    keytool(
        folder, "-importkeystore", "-srckeystore", "given.p12", "-srcstorepass", password,
        "-destkeystore", "ca", "-deststoretype", kind, "-deststorepass", password,
    )  # fmt: skip
    return (folder / "ca").read_bytes()
