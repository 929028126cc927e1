"""TLS contexts from every kind of store, tried in handshakes with a server of Python's own."""

from __future__ import annotations

import datetime
import functools
import logging
import socket
import ssl
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    pkcs12,
)

from sparkkafka.client.auth.tls import MAX_STORE_BYTES, make_tls_context
from sparkkafka.config.security.settings import Store, TlsSettings
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.certificates import java_keystore, java_truststore, signed
from tests.support.frames import variables_of

HUSH = "hush-hush"


AUTHORITY = signed("authority")
SERVER = signed("broker.example", AUTHORITY)
CLIENT = signed("client", AUTHORITY, rsa.generate_private_key(65537, 2048))
STRANGER = signed("authority")
TRUST = TlsSettings(truststore=Store("ssl.truststore.certificates", text=Secret(AUTHORITY.pem)))
EXPIRED = signed("expired", AUTHORITY, days=(-2, -1))
OWN = "hush-own"


@functools.cache
def of_java(kind: str, *keys: str, key_password: str = "") -> bytes:
    """A store by keytool: of these keys, or of the authority."""
    known = {"client": CLIENT, "expired": EXPIRED}
    with tempfile.TemporaryDirectory() as folder:
        if not keys:
            return java_truststore(Path(folder), kind, HUSH, signed("another"), AUTHORITY)
        named = {name: known[name] for name in keys}
        return java_keystore(Path(folder), kind, HUSH, named, key_password)


@pytest.fixture(scope="module")
def server_context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    context = SERVER.server_context(tmp_path_factory.mktemp("server"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=AUTHORITY.pem)
    return context


@pytest.fixture
def shake(server_context: ssl.SSLContext) -> Callable[..., tuple[str, Any]]:
    """A handshake: (version, the client's name as the server sees it)."""

    def run(settings: TlsSettings, host: str = "broker.example") -> tuple[str, Any]:
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        theirs.settimeout(10)
        seen: list[Any] = []

        def serve() -> None:
            try:
                with server_context.wrap_socket(theirs, server_side=True) as tls:
                    seen.append(tls.getpeercert())
                    tls.sendall(b"!")
            except OSError:
                theirs.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with make_tls_context(settings).wrap_socket(ours, server_hostname=host) as tls:
                assert tls.recv(1) == b"!"
                version = str(tls.version())
        finally:
            ours.close()
            thread.join(10)
        names = [value for row in (seen[0] or {}).get("subject", ()) for _, value in row]
        return version, names[0] if names else None

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def file(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# --- whom we trust -------------------------------------------------------------------------------


@functools.cache
def stores(folder: Path) -> dict[str, Store]:
    pem, option = AUTHORITY.pem, "ssl.truststore.location"
    certificates = [pkcs12.PKCS12Certificate(AUTHORITY.certificate, b"authority")]
    p12 = pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(HUSH.encode()))
    noise = "# an authority\nsubject=…\n"
    return {
        "a PEM file": Store(option, file(folder, "ca.pem", pem)),
        "several, with words between": Store(
            option, file(folder, "all.pem", noise + SERVER.pem + noise + pem)
        ),
        "PEM in a file called .jks": Store(option, file(folder, "ca.jks", pem)),
        "Windows' line ends": Store(option, file(folder, "win.pem", pem.replace("\n", "\r\n"))),
        "text": Store("ssl.truststore.certificates", text=Secret(pem)),
        "text in one line": Store(
            "ssl.truststore.certificates", text=Secret(pem.replace("\n", " "))
        ),
        "PKCS#12": Store(option, file(folder, "ca.p12", p12), password=Secret(HUSH)),
        "PKCS#12 by keytool": Store(
            option, file(folder, "ca12.jks", of_java("PKCS12")), password=Secret(HUSH)
        ),
        "JKS": Store(option, file(folder, "trust.jks", of_java("JKS")), password=Secret(HUSH)),
        "JKS without its password": Store(option, file(folder, "trust.jks", of_java("JKS"))),
        "JCEKS": Store(option, file(folder, "trust", of_java("JCEKS")), password=Secret(HUSH)),
    }


STORES = (
    "a PEM file",
    "several, with words between",
    "PEM in a file called .jks",
    "Windows' line ends",
    "text",
    "text in one line",
    "PKCS#12",
    "PKCS#12 by keytool",
    "JKS",
    "JKS without its password",
    "JCEKS",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_a_truststore(kind: str, folder: Path, shake: Callable[..., Any]) -> None:
    assert shake(TlsSettings(truststore=stores(folder)[kind])) == ("TLSv1.3", None)


def test_whom_nobody_signed_is_refused(shake: Callable[..., Any]) -> None:
    other = Store("ssl.truststore.certificates", text=Secret(STRANGER.pem))
    for settings in (TlsSettings(truststore=other), TlsSettings()):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake(settings)


def test_certifi_where_the_system_has_no_authorities(
    tmp_path: Path, shake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker of the test's own authority shows it: certifi is made to name that one."""
    own: Any = types.ModuleType("certifi")
    own.where = lambda: file(tmp_path, "certifi.pem", AUTHORITY.pem)
    monkeypatch.setitem(sys.modules, "certifi", own)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    folder = tmp_path / "authorities"
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    assert shake(TlsSettings())
    folder.mkdir()
    (folder / "a").write_text(STRANGER.pem)  # the system's choice counts
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(TlsSettings())


def test_the_name_is_checked_by_default(shake: Callable[..., Any]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
        shake(TRUST, "other.example")
    assert shake(replace(TRUST, check_hostname=False), "other.example")
    # Without a name to compare, the signature still counts.
    stranger = Store("ssl.truststore.certificates", text=Secret(STRANGER.pem))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(TlsSettings(truststore=stranger, check_hostname=False), "other.example")
    assert shake(TlsSettings(verify=False), "other.example")


def revoked_list(*revoked: Any, days: tuple[int, int] = (-1, 1)) -> x509.CertificateRevocationList:
    """By the authority."""
    now = datetime.datetime.now(datetime.UTC)
    last, following = (now + datetime.timedelta(days=count) for count in days)
    builder = x509.CertificateRevocationListBuilder(AUTHORITY.certificate.subject, last, following)
    for identity in revoked:
        number = identity.certificate.serial_number
        row = x509.RevokedCertificateBuilder(number, now).build()
        builder = builder.add_revoked_certificate(row)
    return builder.sign(AUTHORITY.key, hashes.SHA256())


@pytest.mark.parametrize("form", [Encoding.PEM, Encoding.DER])
def test_certificates_that_were_revoked(
    form: Encoding, tmp_path: Path, shake: Callable[..., Any]
) -> None:
    def with_list(*revoked: Any, **more: Any) -> TlsSettings:
        content = revoked_list(*revoked, **more).public_bytes(form)
        path = file(tmp_path, f"{len(list(tmp_path.iterdir()))}.crl", content)
        return replace(TRUST, revoked=Store("ssl.crl.location", path))

    assert shake(with_list())
    assert shake(with_list(CLIENT))
    for settings, message in (
        (with_list(SERVER), "certificate revoked"),
        (with_list(SERVER, CLIENT), "certificate revoked"),
        (with_list(days=(-2, -1)), "CRL has expired"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError, match=message):
            shake(settings)


def test_a_list_of_another_authority_is_not_enough(
    tmp_path: Path, shake: Callable[..., Any]
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    other = x509.CertificateRevocationListBuilder(name, now, now + datetime.timedelta(days=1))
    content = other.sign(STRANGER.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    store = Store("ssl.crl.location", file(tmp_path, "other.crl", content))
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        shake(replace(TRUST, revoked=store))


# --- who we are ----------------------------------------------------------------------------------


@functools.cache
def identities(folder: Path) -> dict[str, TlsSettings]:
    option = "ssl.keystore.location"
    chain = CLIENT.pem + AUTHORITY.pem
    together = Store(option, file(folder, "client.pem", chain + CLIENT.key_pem()))
    encrypted = Store(option, file(folder, "secret.pem", CLIENT.key_pem(HUSH) + chain))
    old_text = CLIENT.key_pem(HUSH, PrivateFormat.TraditionalOpenSSL) + chain
    old = Store(option, file(folder, "old.pem", old_text.replace("\n", "\r\n")))
    p12 = pkcs12.serialize_key_and_certificates(
        b"me",
        CLIENT.key,
        CLIENT.certificate,
        [AUTHORITY.certificate],
        BestAvailableEncryption(HUSH.encode()),
    )
    store = Store(option, file(folder, "client.p12", p12), password=Secret(HUSH))
    text = Store("ssl.keystore.certificate.chain", text=Secret(CLIENT.pem.replace("\n", " ")))
    key = Store("ssl.keystore.key", text=Secret(CLIENT.key_pem(HUSH).replace("\n", " ")))
    apart = Store("ssl.key.location", file(folder, "key.pem", CLIENT.key_pem()))

    def java(kind: str, key_password: str = "") -> TlsSettings:
        name = f"{kind}{key_password}"
        content = of_java(kind, "client", key_password=key_password)
        store = Store(option, file(folder, name, content), password=Secret(HUSH))
        given = Secret(key_password)
        return replace(TRUST, certificates=store, key=store, key_password=given)

    return {
        "one PEM file": replace(TRUST, certificates=together, key=together),
        "an encrypted key": replace(
            TRUST, certificates=encrypted, key=encrypted, key_password=Secret(HUSH)
        ),
        "an old encrypted key": replace(
            TRUST, certificates=old, key=old, key_password=Secret(HUSH)
        ),
        "text": replace(TRUST, certificates=text, key=key, key_password=Secret(HUSH)),
        "two files": replace(TRUST, certificates=together, key=apart),
        "PKCS#12": replace(TRUST, certificates=store, key=store),
        "PKCS#12 by keytool": java("PKCS12"),
        "JKS": java("JKS"),
        "JKS, another key password": java("JKS", OWN),
    }


IDENTITIES = (
    "one PEM file",
    "an encrypted key",
    "an old encrypted key",
    "text",
    "two files",
    "PKCS#12",
    "PKCS#12 by keytool",
    "JKS",
    "JKS, another key password",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IDENTITIES)
def test_a_client_certificate(
    kind: str,
    folder: Path,
    tmp_path: Path,
    shake: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = tmp_path / "temporary"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    assert shake(identities(folder)[kind]) == ("TLSv1.3", "client")
    assert list(kept.iterdir()) == []


@pytest.mark.slow
def test_of_several_keys_the_one_that_has_not_ended_is_shown(
    tmp_path: Path, shake: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    content = of_java("JKS", "expired", "client")
    path = file(tmp_path, "two.jks", content)
    store = Store("ssl.keystore.location", path, password=Secret(HUSH))
    with caplog.at_level(logging.WARNING):
        assert shake(replace(TRUST, certificates=store, key=store))[1] == "client"
    (message,) = caplog.messages
    assert message.startswith(f"ssl.keystore.location={path} has 2 keys ('")
    assert "): 'client' is sent to brokers. To send another one" in message


# --- versions and ciphers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({"versions": ("TLSv1.2",)}, "TLSv1.2"),
        ({"versions": ("TLSv1.3",)}, "TLSv1.3"),
        ({"cipher_suites": ("TLS_AES_256_GCM_SHA384",)}, "TLSv1.3"),
        (
            {
                "versions": ("TLSv1.2",),
                "cipher_suites": ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",),
            },
            "TLSv1.2",
        ),
        (
            {"versions": ("TLSv1.2",), "cipher_suites": ("ECDHE-ECDSA-CHACHA20-POLY1305",)},
            "TLSv1.2",
        ),
    ],
)
def test_versions_and_ciphers(
    changes: dict[str, Any], version: str, shake: Callable[..., Any]
) -> None:
    settings = replace(TRUST, **changes)
    assert shake(settings)[0] == version
    if "cipher_suites" in changes and version == "TLSv1.2":
        named = {row["name"] for row in make_tls_context(settings).get_ciphers()}
        assert len([name for name in named if not name.startswith("TLS_")]) == 1


def test_a_cipher_that_nobody_knows() -> None:
    with pytest.raises(OptionError, match=r"ssl\.cipher\.suites=TLS_X_WITH_Y: OpenSSL knows none"):
        make_tls_context(replace(TRUST, cipher_suites=("TLS_X_WITH_Y",)))


# --- errors --------------------------------------------------------------------------------------


@functools.cache
def wrong(folder: Path) -> dict[str, tuple[TlsSettings, str]]:
    known = identities(folder)
    trust = stores(folder)
    option = "ssl.truststore.location"
    sparse = folder / "sparse"
    with sparse.open("wb") as hole:
        hole.truncate(MAX_STORE_BYTES + 1)
    locked, p12 = known["an encrypted key"], known["PKCS#12"]
    no_key = Store("ssl.keystore.location", file(folder, "no-key.pem", CLIENT.pem))
    only_key = Store("ssl.keystore.location", file(folder, "only-key.pem", CLIENT.key_pem()))
    own = known["JKS, another key password"]
    broken = Store(option, file(folder, "broken.pem", AUTHORITY.pem.replace("M", "-", 3)))
    other = signed("client", AUTHORITY)
    other_key = Store("ssl.keystore.key", text=Secret(other.key_pem()))

    def trusting(store: Store) -> TlsSettings:
        return TlsSettings(truststore=store)

    return {
        "not there": (
            trusting(Store(option, str(folder / "no.pem"))),
            r"ssl\.truststore\.location=.*no\.pem cannot be read on this machine \(No such file",
        ),
        "a folder": (trusting(Store(option, str(folder))), "Is a directory"),
        "NUL in the path": (trusting(Store(option, "a\0b")), "cannot be read"),
        "wrong password of JKS": (
            trusting(replace(trust["JKS"], password=Secret(HUSH + "!"))),
            r"trust\.jks is a Java keystore that cannot be read: "
            r"ssl\.truststore\.password is wrong, or ",
        ),
        "wrong key password in JKS": (
            replace(own, key_password=Secret(HUSH + "!")),
            r"the key 'client' cannot be decrypted: it has another password: .*password is wrong",
        ),
        "no key password for JKS": (
            replace(own, key_password=Secret("")),
            r"the key 'client' cannot be decrypted: it has another password: .*password is missing",
        ),
        "JKS without a key": (
            replace(TRUST, certificates=trust["JKS"], key=trust["JKS"]),
            r"trust\.jks has no key with its certificate in it",
        ),
        "no list of revoked certificates": (
            replace(
                TRUST, revoked=Store("ssl.crl.location", file(folder, "no.crl", AUTHORITY.pem))
            ),
            r"no\.crl has no list of revoked certificates that OpenSSL can read",
        ),
        "rubbish for a list": (
            replace(TRUST, revoked=Store("ssl.crl.location", file(folder, "x.crl", b"\x00" * 99))),
            r"x\.crl has no list of revoked certificates that OpenSSL can read",
        ),
        "too large": (trusting(Store(option, str(sparse))), "is larger than"),
        "rubbish": (
            trusting(Store(option, file(folder, "rubbish", b"\x00\x01" * 500))),
            r"ssl\.truststore\.password is missing, or it is neither PEM, PKCS#12 nor JKS",
        ),
        "empty": (
            trusting(Store(option, file(folder, "empty", b""))),
            "neither PEM, PKCS#12 nor JKS",
        ),
        "broken": (trusting(broken), r"broken\.pem"),
        "a key, no certificate": (
            trusting(only_key),
            r"only-key\.pem has no certificate in it",
        ),
        "wrong store password": (
            trusting(replace(trust["PKCS#12"], password=Secret(HUSH + "!"))),
            r"ca\.p12 cannot be opened: ssl\.truststore\.password is wrong",
        ),
        "no store password": (
            replace(p12, certificates=replace(p12.certificates, password=Secret(""))),
            r"client\.p12 cannot be opened: ssl\.keystore\.password is missing",
        ),
        "wrong key password": (
            replace(locked, key_password=Secret(HUSH + "!")),
            r"secret\.pem: the key is encrypted, and ssl\.key\.password is wrong",
        ),
        "no key password": (
            replace(locked, key_password=Secret("")),
            r"secret\.pem: the key is encrypted, and ssl\.key\.password is missing",
        ),
        "no key": (replace(TRUST, certificates=no_key, key=no_key), "has no PRIVATE KEY in it"),
        "no certificate": (
            replace(TRUST, certificates=only_key, key=only_key),
            "has no CERTIFICATE in it",
        ),
        "another's key": (
            replace(TRUST, certificates=no_key, key=other_key),
            r"no-key\.pem and ssl\.keystore\.key do not belong together, or OpenSSL cannot",
        ),
    }


WRONG = (
    "not there", "a folder", "NUL in the path", "wrong password of JKS",
    "wrong key password in JKS", "no key password for JKS", "JKS without a key",
    "no list of revoked certificates", "rubbish for a list", "too large",
    "rubbish", "empty", "broken", "a key, no certificate", "wrong store password",
    "no store password", "wrong key password", "no key password", "no key", "no certificate",
    "another's key",
)  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_without_secrets(case: str, folder: Path) -> None:
    settings, message = wrong(folder)[case]
    with pytest.raises(OptionError, match=message) as caught:
        make_tls_context(settings)
    assert HUSH not in str(caught.value)
    assert HUSH not in repr(settings)
    assert "PRIVATE KEY-----" not in f"{caught.value}{settings!r}"
    seen = variables_of(caught.value)
    assert HUSH not in seen
    assert "PRIVATE KEY-----" not in seen


def test_every_case_is_run(folder: Path) -> None:
    assert (*stores(folder),) == STORES
    assert (*identities(folder),) == IDENTITIES
    assert (*wrong(folder),) == WRONG
