"""GSSAPI's order of messages and its failures, on a stand-in for the package gssapi, which has no
KDC and no bytes of Kerberos: `make kerberos` tries the real ones."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkkafka.client.auth.sasl import kerberos_conversation
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import KerberosSettings
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    OptionError,
)

KDC_UNREACHABLE = 2**32 - 1765328228


class GSSError(Exception):
    min_code = 0


class Library:
    """What of gssapi is used. `first` is done at a context's first step."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.NameType = SimpleNamespace(hostbased_service="service", kerberos_principal="user")
        self.MechType = SimpleNamespace(kerberos="krb5")
        self.RequirementFlag = SimpleNamespace(mutual_authentication=2, integrity=32)
        self.asked: list[Any] = []
        self.cache_lifetime: int | None = None  # no ticket in the cache
        self.first: Any = lambda: None

    def Name(self, text: str, kind: str) -> tuple[str, str]:
        return kind, text

    def Credentials(self, **given: Any) -> Any:
        self.asked.append(given)
        by_keytab = "client_keytab" in (given["store"] or {})
        if not by_keytab and self.cache_lifetime is None:
            raise GSSError("no credentials\ncache found")
        return SimpleNamespace(lifetime=self.cache_lifetime)

    def SecurityContext(self, **given: Any) -> Any:
        library = self
        library.asked.append(given)

        class Context:
            complete = False

            def step(self, response: bytes | None = None) -> bytes | None:
                if response is None:
                    library.first()
                    return b"ticket"
                if response != b"theirs":
                    raise GSSError("a token that is not Kerberos'")
                self.complete = True
                return None

            def unwrap(self, wrapped: bytes) -> Any:
                return SimpleNamespace(message=wrapped.removeprefix(b"wrapped "))

            def wrap(self, message: bytes, encrypt: bool) -> Any:
                assert encrypt is False
                return SimpleNamespace(message=b"wrapped " + message)

        return Context()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setitem(sys.modules, "gssapi", found)
    return found


@pytest.fixture
def keytab(tmp_path: Path) -> str:
    path = tmp_path / "me.keytab"
    path.write_bytes(b"key")
    return str(path)


def said(settings: KerberosSettings, *responses: bytes) -> list[bytes]:
    talk = kerberos_conversation(settings, "host", Deadline(5_000))
    found = [next(talk).reveal()]
    for response in responses:
        try:
            found.append(talk.send(response).reveal())
        except StopIteration:
            return [*found, b"end"]
    return found


def test_a_conversation(library: Library, keytab: str) -> None:
    by_keytab = KerberosSettings(principal="me", keytab=keytab, service_name="bus")
    rounds = said(by_keytab, b"theirs", b"wrapped \x07\x00\x10\x00", b"")
    assert rounds == [b"ticket", b"", b"wrapped \x01\x00\x00\x00", b"end"]
    credentials, context = library.asked
    assert credentials["name"] == ("user", "me")
    assert credentials["store"]["client_keytab"] == f"FILE:{keytab}"
    assert context["name"] == ("service", "bus@host")


def test_where_the_ticket_comes_from(library: Library, keytab: str) -> None:
    """The cache first, if both are named; a keytab after one that is empty or has ended."""
    both = KerberosSettings(principal="me", keytab=keytab, ticket_cache="/c", prefer_cache=True)
    for lifetime, asked in ((60, 1), (0, 2), (None, 2)):
        library.asked.clear()
        library.cache_lifetime = lifetime
        said(both)
        stores = [item["store"] for item in library.asked if "store" in item]
        assert stores[0] == {"ccache": "FILE:/c"}
        assert len(stores) == asked
    library.cache_lifetime = 60
    library.asked.clear()
    said(KerberosSettings())
    assert library.asked[0] == {"name": None, "usage": "initiate", "store": None}


def failures() -> Iterator[Any]:
    lost = GSSError("Cannot contact any KDC")
    lost.min_code = KDC_UNREACHABLE
    strange = GSSError("Server not\nfound")
    for error, kind, retriable in (
        (lost, KafkaConnectionError, True),
        (strange, AuthenticationError, False),
    ):
        yield pytest.param(error, kind, retriable, id=kind.__name__)


@pytest.mark.parametrize(("error", "kind", "retriable"), [*failures()])
def test_what_the_library_says(
    library: Library, keytab: str, error: GSSError, kind: type[KafkaError], retriable: bool
) -> None:
    def fail() -> None:
        raise error

    library.first = fail
    with pytest.raises(kind) as failed:
        said(KerberosSettings(principal="me", keytab=keytab))
    assert failed.value.retriable is retriable
    words = f"GSSAPI: the ticket of me, from the keytab {keytab}, for kafka/host: "
    assert str(failed.value) == words + " ".join(str(error).split())


def test_what_is_wrong(library: Library, keytab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_keytab = KerberosSettings(principal="me", keytab=keytab)
    with pytest.raises(AuthenticationError, match=r"set sasl\.qop to auth"):
        said(by_keytab, b"theirs", b"wrapped \x06\x00\x10\x00")
    with pytest.raises(AuthenticationError, match=r"set sasl\.qop to auth"):
        said(by_keytab, b"theirs", b"wrapped ")
    with pytest.raises(AuthenticationError, match="not Kerberos'"):
        said(by_keytab, b"noise")
    with pytest.raises(AuthenticationError, match=r"the ticket cache \(kinit\).*no credentials"):
        said(KerberosSettings())
    with pytest.raises(AuthenticationError, match="the keytab /no/such cannot be read"):
        said(KerberosSettings(principal="me", keytab="/no/such"))
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(OptionError, match=r"sparkkafka\[kerberos\].*libkrb5-dev"):
        said(by_keytab)


def test_a_kdc_that_hangs(library: Library, keytab: str) -> None:
    over = threading.Event()
    library.first = lambda: over.wait(60)
    talk = kerberos_conversation(
        KerberosSettings(principal="me", keytab=keytab), "host", Deadline(50)
    )
    try:
        with pytest.raises(KafkaTimeoutError, match=r"no response from the KDC within 0\.05 s"):
            next(talk)
    finally:
        over.set()
