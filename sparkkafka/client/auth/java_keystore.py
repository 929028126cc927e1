"""JKS and JCEKS, Java's keystores before PKCS#12.

    int32 magic, int32 version (1 or 2), int32 number of entries
    each entry: int32 kind, alias, int64 creation time, and then
      1, a private key: int32 length, EncryptedPrivateKeyInfo (RFC 5208), int32 number, certificates
      2, a certificate: its type (version 2), int32 length, DER
      3, a secret key (JCEKS): an object serialized by Java
    SHA-1 of the password (UTF-16), "Mighty Aphrodite" and all of the above

Certificates are not encrypted. A key has the password of the store, or its own; the encryption of
those in JCEKS is not supported. Sources: OpenJDK's sun.security.provider.JavaKeyStore and
KeyProtector, com.sun.crypto.provider.JceKeyStore.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import struct
from typing import Final, NamedTuple

from sparkkafka.secret import Secret, SecretBytes

JKS: Final = b"\xfe\xed\xfe\xed"
JCEKS: Final = b"\xce\xce\xce\xce"

_DIGEST_BYTES = 20  # SHA-1


class KeystoreError(ValueError):
    """A store cannot be read. The message says why, and contains nothing of the store."""


class WrongPasswordError(KeystoreError):
    """The password of the store or of a key is wrong."""


class PrivateKey(NamedTuple):
    """An encrypted private key, with its certificate and chain as PEM, its own first."""

    alias: str
    protected: SecretBytes
    chain: tuple[str, ...]


class JavaKeystore(NamedTuple):
    """The entries, in their order in the file. `certificates` are those without a key, PEM."""

    keys: tuple[PrivateKey, ...]
    certificates: tuple[str, ...]


def is_java_keystore(content: bytes) -> bool:
    return content.startswith((JKS, JCEKS))


def open_java_keystore(content: SecretBytes, password: Secret) -> JavaKeystore:
    """Read a store. Raises KeystoreError, WrongPasswordError.

    As in Java certificates can be read without a password, but then changes of the file are not
    detected.
    """
    data = content.reveal()
    if len(data) < 12 + _DIGEST_BYTES:  # magic, version, number of entries
        raise KeystoreError("it is cut short")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password:
        # The text is a constant of the format.
        expected = hashlib.sha1(
            _utf16(password) + b"Mighty Aphrodite" + body, usedforsecurity=False
        )
        if not hmac.compare_digest(expected.digest(), digest):
            raise WrongPasswordError("its password is wrong, or it is damaged")
    reader = _KeystoreReader(body, len(JKS))
    version, count = reader.int32(), reader.int32()
    if version not in (1, 2):
        raise KeystoreError(f"it has version {version}, and there are 1 and 2")
    keys, certificates = [], []
    for _ in range(count):  # each takes bytes, so it ends
        kind, alias, _created_ms = reader.int32(), reader.text(), reader.take(8)
        if kind == 1:  # a private key
            protected = SecretBytes(reader.length_prefixed())
            chain = tuple(reader.certificate(version) for _ in range(reader.int32()))
            keys.append(PrivateKey(alias, protected, chain))
        elif kind == 2:  # a certificate
            certificates.append(reader.certificate(version))
        elif kind == 3:  # a secret key
            raise KeystoreError(
                "it has a secret key in it, which only Java can read: keep keys for TLS in another "
                "store"
            )
        else:
            raise KeystoreError("it is damaged: an entry is neither key nor certificate")
    return JavaKeystore(tuple(keys), tuple(certificates))


def decrypt_key(key: PrivateKey, password: Secret) -> SecretBytes:
    """Decrypt the key: PKCS#8, DER. Raises KeystoreError, WrongPasswordError."""
    sequence, octet_string = 0x30, 0x04  # tags of DER
    reader = _KeystoreReader(_KeystoreReader(key.protected.reveal()).der_element(sequence))
    algorithm, data = reader.der_element(sequence), reader.der_element(octet_string)
    # Sun's object identifier 1.3.6.1.4.1.42.2.17.1.1.
    if algorithm.startswith(bytes.fromhex("060a2b060104012a02110101")):
        return _decrypt_jks(data, password)
    raise KeystoreError(
        "its encryption is not that of JKS: convert the store to PKCS#12 with keytool "
        "-importkeystore -deststoretype PKCS12"
    )


class _KeystoreReader:
    """Reads the fields of a store, or the elements of DER, one after the other."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises KeystoreError if there are fewer."""
        start = self._position
        if size < 0 or size > len(self._data) - start:
            raise KeystoreError("it is cut short, or damaged")
        self._position += size
        return self._data[start : self._position]

    def int32(self) -> int:
        number: int = struct.unpack(">i", self.take(4))[0]
        return number

    def text(self) -> str:
        """Return the next text: its size in two bytes, then Java's UTF-8."""
        return self.take(struct.unpack(">H", self.take(2))[0]).decode("utf-8", "replace")

    def length_prefixed(self) -> bytes:
        """Return the next bytes, which their length precedes."""
        return self.take(self.int32())

    def certificate(self, version: int) -> str:
        """Return the next certificate as PEM; `version` is the store's."""
        if version == 2 and self.text() != "X.509":
            raise KeystoreError("it has a certificate that is not X.509")
        return ssl.DER_cert_to_PEM_cert(self.length_prefixed())

    def der_element(self, tag: int) -> bytes:
        """Return the content of the next element of DER, which must have this tag."""
        found_tag, size = self.take(2)
        if size & 0x80:  # the long form: the number of bytes of the size
            size = int.from_bytes(self.take(min(size & 0x7F, 4)), "big")
        if found_tag != tag:
            raise KeystoreError("it is damaged")
        return self.take(size)


def _utf16(password: Secret) -> bytes:
    """Return the password encoded as JKS hashes it."""
    return password.reveal().encode("utf-16-be")


def _decrypt_jks(data: bytes, password: Secret) -> SecretBytes:
    """Decrypt a key of JKS: its bytes XOR a stream of SHA-1 digests, between a salt and a
    digest."""
    if len(data) < 2 * _DIGEST_BYTES:
        raise KeystoreError("it is damaged")
    start, end = _DIGEST_BYTES, len(data) - _DIGEST_BYTES
    secret, block = SecretBytes(_utf16(password)), data[:start]
    stream = bytearray()
    while len(stream) < end - start:
        block = hashlib.sha1(secret.reveal() + block, usedforsecurity=False).digest()
        stream += block
    size = end - start
    number = int.from_bytes(data[start:end], "big") ^ int.from_bytes(stream[:size], "big")
    decrypted = SecretBytes(number.to_bytes(size, "big"))
    check = hashlib.sha1(secret.reveal() + decrypted.reveal(), usedforsecurity=False).digest()
    if not hmac.compare_digest(check, data[end:]):
        raise WrongPasswordError("it has another password")
    return decrypted
