"""TLS: an ssl.SSLContext made of the stores of certificates and keys that settings name, and the
messages of its errors.

Stores are PEM (files or text), PKCS#12, JKS, or JCEKS with certificates only. Their content shows
which, since keytool writes PKCS#12 into files that people call .jks. Python's ssl loads keys only
from files, so a key that was text, or in a store, is written to a temporary file for that moment:
mode 0600, encrypted if the key was encrypted or in a store.

Making a context takes long (authorities are parsed), so it is cached while its settings and its
files stay the same.
"""

from __future__ import annotations

import base64
import datetime
import importlib
import logging
import os
import re
import secrets
import ssl
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from sparkkafka.client.auth import java_keystore
from sparkkafka.config.security.settings import TLS_VERSIONS, Store, TlsSettings
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret, SecretBytes

log = logging.getLogger(__name__)

MAX_STORE_BYTES = 16 * 2**20
"""The largest store; a bundle of all public authorities has 250 KB."""

_CERTIFICATE = "(?:TRUSTED )?CERTIFICATE"  # for `_pem_blocks`

_FileVersion = tuple[int, int]
"""Time and size of a file, which change when its certificates are renewed."""
_contexts: OrderedDict[tuple[TlsSettings, tuple[_FileVersion | None, ...]], ssl.SSLContext] = (
    OrderedDict()
)
_lock = threading.Lock()


def _after_fork() -> None:
    # The thread that holds the lock is not in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for these settings and their files as they are now: a cached one, or a new
    one. Raises OptionError."""
    stores = (settings.truststore, settings.revoked, settings.certificates, settings.key)
    key = settings, tuple(_file_version(store.path) for store in stores)
    with _lock:
        context = _contexts.get(key)
        if context is None:
            context = _contexts[key] = make_tls_context(settings)
            while len(_contexts) > 16:  # more than a process has clusters
                _contexts.popitem(last=False)
        _contexts.move_to_end(key)
    return context


def _file_version(path: str) -> _FileVersion | None:
    """Return time and size of the file; None without a path, or if the file cannot be read."""
    if not path:
        return None
    try:
        status = Path(path).stat()
    except (OSError, ValueError):  # reading it will raise the error
        return None
    return status.st_mtime_ns, status.st_size


def make_tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make a context for connections to brokers.

    Raises OptionError, which names the option and the file, never a password or a key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.verify and settings.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify else ssl.CERT_NONE
    by_name = zip(TLS_VERSIONS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True)
    allowed = sorted(version for name, version in by_name if name in settings.versions)
    context.minimum_version, context.maximum_version = allowed[0], allowed[-1]
    if settings.cipher_suites:
        _set_ciphers(context, settings.cipher_suites)
    if settings.verify:
        _load_authorities(context, settings.truststore)
        if settings.revoked:
            _load_revocation_lists(context, settings.revoked)
    if settings.certificates:
        _load_client_certificate(context, settings)
    return context


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Allow only these cipher suites. Raises OptionError if OpenSSL has none of them."""
    # Suites of TLS 1.3 (TLS_AES_128_GCM_SHA256) are a separate list, which Python cannot set before
    # 3.15; all of them are safe. The others may have Java's names (TLS_…_WITH_…).
    older = [
        _openssl_name(name) for name in names if not name.startswith("TLS_") or "_WITH_" in name
    ]
    try:
        if older:
            context.set_ciphers(":".join(older))
        else:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
    except (ssl.SSLError, ValueError):
        raise OptionError(
            f"ssl.cipher.suites={','.join(names)[:200]}: OpenSSL knows none of them; name them as "
            "Java (TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384) or OpenSSL (ECDHE-RSA-AES256-GCM-SHA384) "
            "does"
        ) from None


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher suite, also from Java's name:
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)_(?:CBC_)?", r"AES\1_", cipher)
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    exchange = "" if exchange == "RSA" else f"{exchange}_"
    return f"{exchange}{cipher}".replace("_", "-")


def _load_authorities(context: ssl.SSLContext, store: Store) -> None:
    """Trust the authorities in the store, or without one those of the system."""
    if not store:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        # OpenSSL reads a folder of authorities only when it needs them.
        folder = ssl.get_default_verify_paths().capath
        has_folder = folder is not None and any(Path(folder).iterdir())
        if not (context.cert_store_stats()["x509_ca"] or has_folder):
            # Some builds of Python, and small images, have none.
            with suppress(ImportError):
                context.load_verify_locations(importlib.import_module("certifi").where())
        return
    pem = _read_certificates(store)
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise OptionError(f"{store}: {system_message(error)}") from None


def _load_revocation_lists(context: ssl.SSLContext, store: Store) -> None:
    """Refuse brokers whose certificate is revoked, or whose authority has no valid revocation
    list."""
    content = _read_tls_store(store)
    if _is_pem(content):
        lists = _pem_blocks("X509 CRL", content)
    else:
        body = base64.encodebytes(content.reveal()).decode()
        lists = [f"-----BEGIN X509 CRL-----\n{body}-----END X509 CRL-----"]
    try:
        with _temporary_file(Secret("\n".join(lists) + "\n")) as path:
            context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise OptionError(
            f"{store} has no list of revoked certificates that OpenSSL can read "
            f"({system_message(error)})"
        ) from None
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _load_client_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Send the settings' certificate to brokers that request one."""
    store, key = settings.certificates, settings.key
    content = _read_tls_store(store)
    password = settings.key_password
    if _is_pem(content):
        certificates = "\n".join(_pem_blocks(_CERTIFICATE, content))
        key_content = content if key == store else _read_tls_store(key)
        keys = [Secret(block) for block in _pem_blocks("[A-Z ]*PRIVATE KEY", key_content)]
        if not certificates:
            raise OptionError(f"{store} has no CERTIFICATE in it")
        if not keys:
            raise OptionError(f"{key} has no PRIVATE KEY in it")
        key_pem = keys[0]
    else:
        identity = _read_identity(store, content, password)
        certificates = "\n".join(identity.chain)
        password = Secret(secrets.token_urlsafe(24))  # the temporary file has no key in plain text
        key_pem = _encrypt_key(identity.key, password)
    is_encrypted = False

    # A callable: without one OpenSSL prompts at the terminal, and waits there forever.
    def reveal_password() -> str:
        """Return the password; OpenSSL calls this only for a key that is encrypted."""
        nonlocal is_encrypted
        is_encrypted = True
        return password.reveal()

    with _temporary_file(Secret(f"{certificates}\n{key_pem.reveal()}\n")) as path:
        try:
            context.load_cert_chain(path, password=reveal_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if is_encrypted:
                problem = "is wrong" if password else "is missing"
                raise OptionError(
                    f"{key}: the key is encrypted, and {_key_password_option(key)} {problem}"
                ) from None
            both_names = " and ".join(dict.fromkeys([str(store), str(key)]))
            raise OptionError(
                f"{both_names} do not belong together, or OpenSSL cannot read them "
                f"({system_message(error)})"
            ) from None


def _key_password_option(store: Store) -> str:
    """Return the name of the option for the key's password, which has the same prefix as that of
    the store."""
    return f"{store.option.partition('ssl.')[0]}ssl.key.password"


def _password_problem(store: Store) -> str:
    """Return what is wrong with the store's password if it does not open the store."""
    kind = "keystore" if "keystore" in store.option else "truststore"
    option = f"{store.option.partition('ssl.')[0]}ssl.{kind}.password"
    return f"{option} is {'wrong' if store.password else 'missing'}"


def client_certificates(settings: TlsSettings) -> list[str]:
    """Return the client's certificate, then its chain, each PEM. Raises OptionError."""
    store = settings.certificates
    content = _read_tls_store(store)
    if _is_pem(content):
        return _pem_blocks(_CERTIFICATE, content)
    return _read_identity(store, content, settings.key_password).chain


def _read_certificates(store: Store) -> str:
    """Return the certificates in the store as PEM."""
    content = _read_tls_store(store)
    if _is_pem(content):
        pem = "\n".join(_pem_blocks(_CERTIFICATE, content))
    elif java_keystore.is_java_keystore(content.reveal()):
        keystore = _open_java_keystore(store, content)
        # As Java's PKIX: the first certificate of a key's chain, which is the key's own.
        pem = "\n".join(
            [*keystore.certificates, *(key.chain[0] for key in keystore.keys if key.chain)]
        )
    else:
        loaded = _load_pkcs12(store, content)
        certificates = [
            cert for cert in (loaded.cert, *loaded.additional_certs) if cert is not None
        ]
        pem = "\n".join(map(_to_pem, certificates))
    if not pem:
        raise OptionError(f"{store} has no certificate in it")
    return pem


def _read_tls_store(store: Store) -> SecretBytes:
    """Return the content of a store of TLS. Raises OptionError."""
    return read_store(
        store, MAX_STORE_BYTES, "; each worker reads it, so it must be on all of them"
    )


def read_store(store: Store, max_bytes: int, hint: str = "") -> SecretBytes:
    """Return a store's content. Raises OptionError naming the option, with the `hint` if the file
    cannot be read."""
    if store.text:
        return SecretBytes(store.text.reveal().encode("utf-8", "replace"))
    try:
        with Path(store.path).open("rb") as file:
            content = SecretBytes(file.read(max_bytes + 1))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"{store} cannot be read on this machine ({what}){hint}") from None
    if len(content) > max_bytes:
        raise OptionError(f"{store} is larger than {max_bytes} bytes")
    return content


def _is_pem(content: SecretBytes) -> bool:
    return b"-----BEGIN " in content.reveal()


def _pem_blocks(label: str, content: SecretBytes) -> list[str]:
    """Return the blocks of the PEM text whose label, such as CERTIFICATE, matches a pattern."""
    text = content.reveal().decode("utf-8", "replace")
    pattern = rf"-----BEGIN (?P<label>{label})-----.+?-----END (?P=label)-----"
    return [_normalize_pem(match[0]) for match in re.finditer(pattern, text, re.DOTALL)]


def _normalize_pem(block: str) -> str:
    """Return the PEM block in lines of the usual length. (A property's value is often a PEM block
    on one line.)"""
    if "Proc-Type:" in block:  # the old form of a key: headers, an empty line, then base64
        return "\n".join(line.strip() for line in block.splitlines())
    _, first_line, body, last_line, _ = re.split(r"(-----(?:BEGIN|END) [A-Z0-9 ]+-----)", block)
    return "\n".join([first_line, *body.split(), last_line])


class _Identity(NamedTuple):
    """A private key of `cryptography`, and its certificate chain in PEM."""

    key: Any
    chain: list[str]


def _read_identity(store: Store, content: SecretBytes, key_password: Secret) -> _Identity:
    """Read the key and its certificate chain in a Java keystore or PKCS#12. Raises OptionError."""
    if java_keystore.is_java_keystore(content.reveal()):
        entry = _choose_key(store, _open_java_keystore(store, content).keys)
        # As in Java: a store's password is also that of its keys, unless they have another.
        try:
            der = java_keystore.decrypt_key(entry, key_password or store.password)
            load = _import_serialization(store).load_der_private_key
            return _Identity(load(der.reveal(), None), list(entry.chain))
        except java_keystore.WrongPasswordError as error:
            problem = "is wrong" if key_password else "is missing"
            raise OptionError(
                f"{store}: the key {entry.alias!r} cannot be decrypted: {error}: "
                f"{_key_password_option(store)} {problem}"
            ) from None
        except java_keystore.KeystoreError as error:
            raise OptionError(f"{store}: the key {entry.alias!r}: {error}") from None
        except (ValueError, TypeError):
            raise OptionError(
                f"{store}: the key {entry.alias!r} is of a kind that OpenSSL does not know"
            ) from None
    loaded = _load_pkcs12(store, content)
    if loaded.key is None or loaded.cert is None:
        raise OptionError(f"{store} has no key with its certificate in it")
    chain = list(map(_to_pem, (loaded.cert, *loaded.additional_certs)))
    return _Identity(loaded.key, chain)


def _choose_key(store: Store, keys: Sequence[java_keystore.PrivateKey]) -> java_keystore.PrivateKey:
    """Return the key to send to brokers. Java takes any that the broker's authorities accept."""
    keys = [key for key in keys if key.chain]
    if not keys:
        raise OptionError(f"{store} has no key with its certificate in it")
    chosen = next(filter(_is_valid_now, keys), keys[0])
    if len(keys) > 1:
        log.warning(
            "%s has %d keys (%s): %r is sent to brokers. To send another one, put it into a "
            "store of its own",
            str(store),
            len(keys),
            ", ".join(repr(key.alias) for key in keys[:5]),
            chosen.alias,
        )
    return chosen


def _is_valid_now(key: java_keystore.PrivateKey) -> bool:
    """Return whether the key's certificate is valid now by this machine's clock."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        certificate = load_pem_x509_certificate(key.chain[0].encode())
        now = datetime.datetime.now(datetime.UTC)
        return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
    except ValueError:
        return False


def _open_java_keystore(store: Store, content: SecretBytes) -> java_keystore.JavaKeystore:
    """Decode a keystore in Java's format (JKS). Raises OptionError for damage or its password."""
    try:
        return java_keystore.open_java_keystore(content, store.password)
    except java_keystore.WrongPasswordError:
        raise OptionError(
            f"{store} is a Java keystore that cannot be read: {_password_problem(store)}, or it is "
            "damaged"
        ) from None
    except java_keystore.KeystoreError as error:
        raise OptionError(f"{store} is a Java keystore that cannot be read: {error}") from None


def _import_serialization(store: Store) -> Any:
    """Import the module of `cryptography` that reads keys. Raises OptionError without it."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: F401
    except ImportError:
        raise OptionError(
            f"{store} is not PEM, and reading it needs a library that is missing on this "
            "machine: pip install cryptography, or convert it: openssl pkcs12 -in STORE -out "
            "STORE.pem"
        ) from None
    return serialization


def _load_pkcs12(store: Store, content: SecretBytes) -> Any:
    """Open a store of PKCS#12. Raises OptionError."""
    load = _import_serialization(store).pkcs12.load_pkcs12
    try:
        return load(content.reveal(), store.password.reveal().encode() or None)
    except Exception:  # cryptography raises several types, with messages of OpenSSL
        raise OptionError(
            f"{store} cannot be opened: {_password_problem(store)}, or it is neither PEM, PKCS#12 "
            "nor JKS"
        ) from None


def _to_pem(certificate: Any) -> str:
    """Return a PKCS12Certificate of `cryptography` as PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(certificate.certificate.public_bytes(Encoding.PEM).decode())


def _encrypt_key(key: Any, password: Secret) -> Secret:
    """Return a private key of `cryptography` as encrypted PEM."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.reveal().encode()))
    return Secret(key.private_bytes(*form).decode())


@contextmanager
def _temporary_file(text: Secret) -> Iterator[str]:
    """Yield the path of a file with this text, which only this user can read."""
    descriptor, path = tempfile.mkstemp(prefix="sparkkafka-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text.reveal())
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def system_message(error: BaseException) -> str:
    """Return the message of OpenSSL or the operating system, without number and class."""
    text = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(text or error or type(error).__name__)[:200]


# --- messages of errors ----------------------------------------------------------------------

# OpenSSL's X509_V_ERR_… codes, those of mismatches for a host name and an IP address.
NAME_MISMATCHES: Final = (62, 64)
_DATES = {
    9: "is not valid yet: compare the clocks",
    10: "has expired: it must be renewed at the server, if this machine's clock is right",
}

_WANTS_CERTIFICATE = (
    "the server wants a client certificate: set {prefix}ssl.keystore.location (or "
    "{prefix}ssl.keystore.certificate.chain and {prefix}ssl.keystore.key) to one that its "
    "authorities have signed"
)

# Alerts that a server sends (RFC 8446, 6.2), as OpenSSL names them, and their most likely cause.
_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _WANTS_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses our certificate, or we have none and "
    f"{_WANTS_CERTIFICATE}",
    # What Java's brokers send for both.
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept our certificate "
    "({prefix}ssl.keystore.…), which has expired or is not signed by its authorities",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate ({prefix}ssl.keystore.…) has expired",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it cannot use our certificate's kind "
    "({prefix}ssl.keystore.…)",
    "TLSV1_ALERT_UNKNOWN_CA": "its authorities have not signed our certificate "
    "({prefix}ssl.keystore.…)",
    "TLSV1_ALERT_ACCESS_DENIED": "it refuses our certificate ({prefix}ssl.keystore.…)",
    "TLSV1_ALERT_PROTOCOL_VERSION": "compare {prefix}ssl.enabled.protocols with the server's",
    "UNSUPPORTED_PROTOCOL": "compare {prefix}ssl.enabled.protocols with the server's",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no cipher suite or version in common "
    "({prefix}ssl.cipher.suites, {prefix}ssl.enabled.protocols), or " + _WANTS_CERTIFICATE,
    "TLSV1_UNRECOGNIZED_NAME": "it does not know the host name that was sent to it (SNI)",
}


def alert_hint(error: OSError, prefix: str) -> str:
    """Return what a known alert means and what to do, else "". `prefix` is that of settings."""
    return _ALERTS.get(str(getattr(error, "reason", None) or error), "").format(prefix=prefix)


def untrusted_message(
    error: ssl.SSLCertVerificationError,
    settings: TlsSettings,
    host: str,
    *,
    address: str,
    trust: str,
    prefix: str,
    names: tuple[str, ...] = (),
) -> str:
    """Return why the server's certificate is not trusted, and what to do.

    `address` and `trust` are the options of the server's address and of the authorities; `names`
    are those in the certificate, if they are known.
    """
    code = error.verify_code
    if code in NAME_MISMATCHES:
        its_names = f"has the names {', '.join(names)}" if names else "has other names"
        return (
            f"is not for {host}: it {its_names}. Connect by one of its names ({address}), or have "
            f"this one added to the certificate; {prefix}ssl.endpoint.identification.algorithm set "
            "to nothing accepts any name"
        )
    if code in _DATES:
        return _DATES[code]
    self_signed = 18  # as the others one of OpenSSL's X509_V_ERR_…
    if code in (7, self_signed, 19, 20, 21):  # 7: signed by another key of the same name
        store = settings.truststore
        trusted = store.path or ("the text of " if store else "the system's authorities")
        if store and not store.path:
            trusted += store.option
        what = (
            "is self-signed, and not trusted here"
            if code == self_signed
            else "is not signed by an authority that is trusted here"
        )
        return (
            f"{what} ({trusted}; OpenSSL: {error.verify_message}). Set {trust} to the file (PEM, "
            "PKCS#12 or JKS) of the authority that signed it"
        )
    return f"is not accepted: {error.verify_message}"
