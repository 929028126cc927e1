"""JKS byte by byte; tests/client/net/test_tls.py makes connections with them."""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key

from sparkkafka.client.auth.java_keystore import (
    JavaKeystore,
    KeystoreError,
    PrivateKey,
    WrongPasswordError,
    decrypt_key,
    is_java_keystore,
    open_java_keystore,
)
from sparkkafka.secret import Secret, SecretBytes
from tests.support.certificates import java_keystore, signed

ASCII = "hush-hush"
IDENTITY = signed("me")


@pytest.fixture(scope="module")
def store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return java_keystore(Path(folder), "JKS", ASCII, {"me": IDENTITY})


def opened(content: bytes, password: str = "") -> JavaKeystore:
    return open_java_keystore(SecretBytes(content), Secret(password))


@pytest.mark.slow
def test_a_key_comes_back(store: bytes) -> None:
    assert is_java_keystore(store)
    (key,) = opened(store, ASCII).keys
    assert (key.alias, key.chain) == ("me", (IDENTITY.pem,))
    found = load_der_private_key(decrypt_key(key, Secret(ASCII)).reveal(), None)
    assert found.private_numbers() == IDENTITY.key.private_numbers()
    for wrong in ("", "hush", "é"):
        with pytest.raises(WrongPasswordError):
            decrypt_key(key, Secret(wrong))
    with pytest.raises(KeystoreError, match="its password is wrong, or it is damaged"):
        opened(store, ASCII + "!")
    assert ASCII not in f"{key!r}"


def test_any_damage_is_seen_with_the_password(store: bytes) -> None:
    for position in range(4, len(store), 7):
        damaged = bytearray(store)
        damaged[position] ^= 1
        with pytest.raises(KeystoreError):
            opened(bytes(damaged), ASCII)


def test_hostile_bytes_are_an_error_of_one_kind_and_take_no_memory(store: bytes) -> None:
    """Without a password nothing says that somebody changed the store."""
    random_ = random.Random(5)
    for _ in range(2_000):
        damaged = bytearray(store)
        for _ in range(random_.randint(1, 4)):
            damaged[random_.randrange(4, len(store))] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
        content = bytes(damaged[: random_.randint(5, len(store))])
        try:
            for key in opened(content).keys:
                decrypt_key(key, Secret(ASCII))
        except KeystoreError:
            pass


def test_a_key_of_jceks_is_not_supported() -> None:
    algorithm = bytes.fromhex("06092b060104012a021301 300d 0408 0102030401020304 0201 03")
    info = b"\x30" + bytes([len(algorithm)]) + algorithm + b"\x04\x08" + bytes(8)
    key = PrivateKey("me", SecretBytes(b"\x30" + bytes([len(info)]) + info), ())
    with pytest.raises(KeystoreError, match="convert the store to PKCS#12 with keytool"):
        decrypt_key(key, Secret("secret"))


def test_a_secret_key_is_named() -> None:
    entry = struct.pack(">IH2sQ", 3, 2, b"me", 0)
    content = b"\xce\xce\xce\xce" + struct.pack(">II", 2, 1) + entry + bytes(20)
    with pytest.raises(KeystoreError, match="a secret key in it, which only Java can read"):
        opened(content)
