"""JKS and JCEKS byte by byte; tests/client/net/test_tls.py makes connections with them."""

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
    _decrypt_jceks,
    decrypt_key,
    is_java_keystore,
    open_java_keystore,
)
from sparkkafka.secret import Secret, SecretBytes
from tests.support.certificates import java_keystore, signed

ASCII = "hush-hush"
IDENTITY = signed("me")


@pytest.fixture(scope="module", params=["JKS", "JCEKS"])
def store(request: pytest.FixtureRequest) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return java_keystore(Path(folder), request.param, ASCII, {"me": IDENTITY})


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
    for place in range(4, len(store), 7):
        damaged = bytearray(store)
        damaged[place] ^= 1
        with pytest.raises(KeystoreError):
            opened(bytes(damaged), ASCII)


def test_hostile_bytes_are_an_error_of_one_kind_and_take_no_room(store: bytes) -> None:
    """Without a password nothing says that somebody changed the store."""
    random_ = random.Random(5)
    for _ in range(2_000):
        damaged = bytearray(store)
        for _ in range(random_.randint(1, 4)):
            damaged[random_.randrange(4, len(store))] = random_.choice((0, 1, 0x7F, 0x80, 0xFF))
        content = bytes(damaged[: random_.randint(5, len(store))])
        try:
            for key in opened(content).keys:
                decrypt_key(key._replace(protected=_few_iterations(key)), Secret(ASCII))
        except KeystoreError:
            pass


def _few_iterations(key: PrivateKey) -> SecretBytes:
    """Java's 200,000 take a third of a second."""
    count = struct.pack(">I", 200_000)[1:]
    return SecretBytes(key.protected.reveal().replace(count, b"\x00\x00\x01", 1))


@pytest.mark.slow
def test_too_many_iterations_are_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = java_keystore(Path(folder), "JCEKS", ASCII, {"me": IDENTITY})
    (key,) = opened(content).keys
    most = key.protected.reveal().replace(struct.pack(">I", 200_000)[1:], b"\x7f\xff\xff", 1)
    with pytest.raises(KeystoreError, match="damaged"):
        decrypt_key(key._replace(protected=SecretBytes(most)), Secret(ASCII))


def test_salt_of_two_equal_halves() -> None:
    """By Java's Cipher, PBEWithMD5AndTripleDES: "a key", salt 1 2 3 4 1 2 3 4, 3 iterations."""
    encrypted = bytes.fromhex("a52c815dbe4a32c5")
    parameters = bytes.fromhex("300d 0408 0102030401020304 0201 03")
    algorithm = bytes.fromhex("06092b060104012a021301") + parameters
    info = b"\x30" + bytes([len(algorithm)]) + algorithm + b"\x04\x08" + encrypted
    key = PrivateKey("me", SecretBytes(b"\x30" + bytes([len(info)]) + info), ())
    assert _decrypt_jceks(parameters, encrypted, Secret("secret")).reveal() == b"a key"
    # What a wrong password leaves has the right padding once in 256 times: it must be a key too.
    with pytest.raises(WrongPasswordError):
        decrypt_key(key, Secret("secret"))


def test_a_secret_key_is_named() -> None:
    entry = struct.pack(">IH2sQ", 3, 2, b"me", 0)
    content = b"\xce\xce\xce\xce" + struct.pack(">II", 2, 1) + entry + bytes(20)
    with pytest.raises(KeystoreError, match="a secret key in it, which only Java can read"):
        opened(content)
