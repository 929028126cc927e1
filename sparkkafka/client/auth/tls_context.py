"""TLS: stores of certificates and keys, as Java names them -> an ssl.SSLContext.

Stores are PEM (files or text), PKCS#12, JKS or JCEKS; which of them, their content says, since
keytool writes PKCS#12 into files that people call .jks. Python's ssl takes keys from files only, so
a key that was text, or in a store, is in a file of its own for the moment in which it is loaded:
mode 0600, encrypted if it came so or from a store.

A context takes long to make (authorities are parsed), so each is kept as long as its settings and
its files are the same.
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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from sparkkafka.client.auth.java_keystore import (
    JavaKeystore,
    KeystoreError,
    PrivateKey,
    WrongPasswordError,
    is_java_keystore,
    open_java_keystore,
    unprotected,
)
from sparkkafka.config.security.settings import TLS_VERSIONS, Store, TlsSettings
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret, SecretBytes

log = logging.getLogger(__name__)

MAX_STORE_BYTES = 16 * 2**20
"""Of a store; a bundle of all the world's authorities has 250 KB."""
_ON_ALL = "; each worker reads it, so it must be on all of them"

VERSIONS: Final = dict(
    zip(TLS_VERSIONS, (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3), strict=True)
)

_CERTIFICATES = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)
_REVOKED = re.compile(r"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z ]*PRIVATE KEY)-----.+?-----END (?P=kind)-----", re.DOTALL
)


MAX_CONTEXTS: Final = 16

_Stamp = tuple[int, int]
_contexts: OrderedDict[tuple[TlsSettings, tuple[_Stamp | None, ...]], ssl.SSLContext] = (
    OrderedDict()
)
_lock = threading.Lock()


def _after_fork() -> None:
    # The thread that holds the lock is not in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """The context for these settings and their files as they are now. Raises OptionError."""
    stores = (settings.truststore, settings.revoked, settings.certificates, settings.key)
    key = settings, tuple(_stamp(store.path) for store in stores)
    with _lock:
        known = _contexts.get(key)
        if known is None:
            known = _contexts[key] = tls_context(settings)
            while len(_contexts) > MAX_CONTEXTS:
                _contexts.popitem(last=False)
        _contexts.move_to_end(key)
    return known


def _stamp(path: str) -> _Stamp | None:
    """Of a file that may be written anew, as those of certificates that live for days are."""
    if not path:
        return None
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # whoever reads it says what is wrong
        return None
    return found.st_mtime_ns, found.st_size


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """A context for connections to brokers.

    Raises OptionError, which names the option and the file, never a password or a key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.verify and settings.check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify else ssl.CERT_NONE
    allowed = sorted(VERSIONS[name] for name in settings.versions)
    context.minimum_version, context.maximum_version = allowed[0], allowed[-1]
    if settings.cipher_suites:
        _set_ciphers(context, settings.cipher_suites)
    if settings.verify:
        _trust(context, settings.truststore)
        if settings.revoked:
            _distrust(context, settings.revoked)
    if settings.certificates:
        _identify(context, settings)
    return context


def _set_ciphers(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    # OpenSSL has a list of its own for TLS 1.3, which Python cannot set before 3.15; all of them
    # are sound. The others may have Java's names.
    older = [_openssl_name(name) for name in names if not _is_tls13(name)]
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


def _is_tls13(name: str) -> bool:
    return name.startswith("TLS_") and "_WITH_" not in name


def _openssl_name(name: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 -> ECDHE-RSA-AES128-GCM-SHA256."""
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)_(?:CBC_)?", r"AES\1_", cipher)
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    exchange = "" if exchange == "RSA" else f"{exchange}_"
    return f"{exchange}{cipher}".replace("_", "-")


def _trust(context: ssl.SSLContext, store: Store) -> None:
    if not store:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if not (context.cert_store_stats()["x509_ca"] or _has_folder_of_authorities()):
            # Some builds of Python, and small images, have none.
            with suppress(ImportError):
                context.load_verify_locations(importlib.import_module("certifi").where())
        return
    pem = _certificates_of(store)
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise OptionError(f"{store}: {_reason(error)}") from None


def _has_folder_of_authorities() -> bool:
    """OpenSSL looks into it when it needs one, so that none of it is counted before."""
    folder = ssl.get_default_verify_paths().capath
    return folder is not None and any(Path(folder).iterdir())


def _distrust(context: ssl.SSLContext, store: Store) -> None:
    """Refuse a broker that its authority's list names, or that has no valid list."""
    content = read_store(store, MAX_STORE_BYTES, _ON_ALL)
    if _is_pem(content):
        lists = _found(_REVOKED, content)
    else:
        body = base64.encodebytes(content.reveal()).decode()
        lists = [f"-----BEGIN X509 CRL-----\n{body}-----END X509 CRL-----"]
    try:
        with _file_of(Secret("\n".join(lists) + "\n")) as path:
            context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise OptionError(
            f"{store} has no list of revoked certificates that OpenSSL can read ({_reason(error)})"
        ) from None
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _identify(context: ssl.SSLContext, settings: TlsSettings) -> None:
    store, key = settings.certificates, settings.key
    content = read_store(store, MAX_STORE_BYTES, _ON_ALL)
    password = settings.key_password
    if _is_pem(content):
        certificates = "\n".join(_found(_CERTIFICATES, content))
        key_content = content if key == store else read_store(key, MAX_STORE_BYTES, _ON_ALL)
        keys = [Secret(row) for row in _found(_KEY, key_content)]
        if not certificates:
            raise OptionError(f"{store} has no CERTIFICATE in it")
        if not keys:
            raise OptionError(f"{key} has no PRIVATE KEY in it")
        key_pem = keys[0]
    else:
        identity = _identity(store, content, password)
        certificates = "\n".join(identity.chain)
        password = Secret(secrets.token_urlsafe(24))
        key_pem = _encrypted(identity.key, password)
    # A callable: else OpenSSL asks at the terminal, and waits there forever.
    asked: list[bool] = []

    def answer() -> str:
        asked.append(True)
        return password.reveal()

    with ExitStack() as stack:
        both = stack.enter_context(_file_of(Secret(f"{certificates}\n{key_pem.reveal()}\n")))
        try:
            context.load_cert_chain(both, password=answer)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                given = "is wrong" if password else "is missing"
                raise OptionError(
                    f"{key}: the key is encrypted, and {_key_password(key)} {given}"
                ) from None
            both_names = " and ".join(dict.fromkeys([str(store), str(key)]))
            raise OptionError(
                f"{both_names} do not belong together, or OpenSSL cannot read them "
                f"({_reason(error)})"
            ) from None


def _key_password(store: Store) -> str:
    """The option, with what stands before the names of the others."""
    return f"{store.option.partition('ssl.')[0]}ssl.key.password"


def own_certificates(settings: TlsSettings) -> list[str]:
    """The client's certificate, then its chain, each PEM. Raises OptionError."""
    store = settings.certificates
    content = read_store(store, MAX_STORE_BYTES, _ON_ALL)
    if _is_pem(content):
        return _found(_CERTIFICATES, content)
    return _identity(store, content, settings.key_password).chain


def _certificates_of(store: Store) -> str:
    content = read_store(store, MAX_STORE_BYTES, _ON_ALL)
    if _is_pem(content):
        pem = "\n".join(_found(_CERTIFICATES, content))
    elif is_java_keystore(content.reveal()):
        opened = _java_keystore(store, content)
        # As Java's PKIX: of a key's chain its own certificate.
        pem = "\n".join([*opened.certificates, *(row.chain[0] for row in opened.keys if row.chain)])
    else:
        loaded = _pkcs12(store, content)
        rows = [row for row in (loaded.cert, *loaded.additional_certs) if row is not None]
        pem = "\n".join(map(_pem_of, rows))
    if not pem:
        raise OptionError(f"{store} has no certificate in it")
    return pem


def read_store(store: Store, most_bytes: int, hint: str = "") -> SecretBytes:
    """What a store holds; `hint` is for those who see that it cannot be read. Raises OptionError,
    naming the option."""
    if store.text:
        return SecretBytes(store.text.reveal().encode("utf-8", "replace"))
    try:
        with Path(store.path).open("rb") as file:
            content = SecretBytes(file.read(most_bytes + 1))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise OptionError(f"{store} cannot be read on this machine ({what}){hint}") from None
    if len(content) > most_bytes:
        raise OptionError(f"{store} is larger than {most_bytes} bytes")
    return content


def _is_pem(content: SecretBytes) -> bool:
    return b"-----BEGIN " in content.reveal()


def _found(pattern: re.Pattern[str], content: SecretBytes) -> list[str]:
    text = content.reveal().decode("utf-8", "replace")
    return [_in_lines(row[0]) for row in pattern.finditer(text)]


def _in_lines(block: str) -> str:
    """Base64 in lines, whatever blanks it came with (a property's value is often one line)."""
    if "Proc-Type:" in block:  # a key of the old kind: headers, an empty line, then base64
        return "\n".join(line.strip() for line in block.splitlines())
    _, begin, body, end, _ = re.split(r"(-----(?:BEGIN|END) [A-Z0-9 ]+-----)", block)
    return "\n".join([begin, *body.split(), end])


class _Identity(NamedTuple):
    """A private key of `cryptography`, and its certificate with the chain, PEM."""

    key: Any
    chain: list[str]


def _identity(store: Store, content: SecretBytes, key_password: Secret) -> _Identity:
    if is_java_keystore(content.reveal()):
        entry = _key_entry(store, _java_keystore(store, content).keys)
        # As in Java: a store's password is the one of its keys, unless they have another.
        try:
            der = unprotected(entry, key_password or store.password)
            return _Identity(
                _serialization(store).load_der_private_key(der.reveal(), None), list(entry.chain)
            )
        except WrongPasswordError as error:
            wrong = "is wrong" if key_password else "is missing"
            raise OptionError(
                f"{store}: the key {entry.alias!r} cannot be decrypted: {error}: "
                f"{_key_password(store)} {wrong}"
            ) from None
        except KeystoreError as error:
            raise OptionError(f"{store}: the key {entry.alias!r}: {error}") from None
        except (ValueError, TypeError):
            raise OptionError(
                f"{store}: the key {entry.alias!r} is of a kind that OpenSSL does not know"
            ) from None
    loaded = _pkcs12(store, content)
    if loaded.key is None or loaded.cert is None:
        raise OptionError(f"{store} has no key with its certificate in it")
    chain = [_pem_of(row) for row in (loaded.cert, *loaded.additional_certs)]
    return _Identity(loaded.key, chain)


def _key_entry(store: Store, keys: Sequence[PrivateKey]) -> PrivateKey:
    """The one to show to brokers. Java takes any that fits the broker's authorities."""
    keys = [row for row in keys if row.chain]
    if not keys:
        raise OptionError(f"{store} has no key with its certificate in it")
    chosen = next(filter(_is_valid_now, keys), keys[0])
    if len(keys) > 1:
        log.warning(
            "%s has %d keys (%s): %r is shown to brokers. Put the one that is meant into a store "
            "of its own",
            str(store),
            len(keys),
            ", ".join(repr(row.alias) for row in keys[:5]),
            chosen.alias,
        )
    return chosen


def _is_valid_now(key: PrivateKey) -> bool:
    from cryptography.x509 import load_pem_x509_certificate

    try:
        found = load_pem_x509_certificate(key.chain[0].encode())
        now = datetime.datetime.now(datetime.UTC)
        return found.not_valid_before_utc <= now <= found.not_valid_after_utc
    except ValueError:
        return False


def _java_keystore(store: Store, content: SecretBytes) -> JavaKeystore:
    try:
        return open_java_keystore(content, store.password)
    except KeystoreError as error:
        raise OptionError(f"{store} is a Java keystore that cannot be read: {error}") from None


def _serialization(store: Store) -> Any:
    """The module of `cryptography` that reads keys."""
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


def _pkcs12(store: Store, content: SecretBytes) -> Any:
    load = _serialization(store).pkcs12.load_pkcs12
    try:
        return load(content.reveal(), store.password.reveal().encode() or None)
    except Exception:  # of several kinds, and words of OpenSSL that help nobody
        raise OptionError(
            f"{store} cannot be opened: its password is "
            f"{'wrong' if store.password else 'missing'}, or it is neither PEM, PKCS#12 nor JKS"
        ) from None


def _pem_of(row: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(row.certificate.public_bytes(Encoding.PEM).decode())


def _encrypted(key: Any, password: Secret) -> Secret:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.reveal().encode()))
    return Secret(key.private_bytes(*form).decode())


@contextmanager
def _file_of(text: Secret) -> Iterator[str]:
    descriptor, path = tempfile.mkstemp(prefix="sparkkafka-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text.reveal())
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)[:200]
