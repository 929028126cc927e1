"""GSSAPI with Kerberos (RFC 4752), by the package gssapi and the system's Kerberos library.

The library finds the KDC by krb5.conf, gets tickets and keeps them; here are its settings and the
order of messages. It has waits of its own, of half a minute and more: they are not waited for
beyond the deadline.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sparkkafka.client.auth.sasl import Conversation, printable
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.java import jvm_property
from sparkkafka.config.security.settings import KerberosSettings
from sparkkafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaTimeoutError,
    OptionError,
)
from sparkkafka.extras import needs_extra
from sparkkafka.secret import SecretBytes

KRB5_CONF: Final = "java.security.krb5.conf"
NO_LAYER: Final = 1
"""Of the layers that a server offers: Kafka's messages follow bare, or in TLS."""

_UNREACHABLE: Final = (2529639068, -1765328228)
"""KRB5_KDC_UNREACH, as the library's minor code is read with and without a sign."""

_T = TypeVar("_T")


def kerberos(settings: KerberosSettings, host: str, deadline: Deadline) -> Conversation:
    """What a client says to the broker on `host`, whose name in Kerberos has this host too.

    Raises OptionError without the package, AuthenticationError without a ticket, and
    KafkaConnectionError or KafkaTimeoutError if no KDC answers.
    """
    gssapi = _library()
    context = None
    try:
        context, token = _within(deadline, lambda: _first_step(gssapi, settings, host))
        while True:
            answer = yield SecretBytes(token or b"")
            if context.complete:
                break
            token = context.step(answer)
        offer = context.unwrap(answer).message
        if len(offer) != 4 or not offer[0] & NO_LAYER:
            raise AuthenticationError(
                "GSSAPI: the broker wants to wrap messages (auth-int or auth-conf), which Kafka's "
                "clients do not: set sasl.qop to auth there"
            )
        yield SecretBytes(context.wrap(bytes((NO_LAYER, 0, 0, 0)), False).message)
    except gssapi.exceptions.GSSError as error:
        raise _told(error, settings, host) from None


def _library() -> Any:
    needs = "sasl.mechanism=GSSAPI needs the package gssapi and the system's Kerberos library"
    note = ", on the driver and each executor (on Debian first apt-get install libkrb5-dev gcc)"
    conf = jvm_property(KRB5_CONF).reveal()
    if conf:  # the library reads it once, when it is loaded
        os.environ.setdefault("KRB5_CONFIG", conf)
    with needs_extra(needs, "kerberos", error=OptionError, note=note):
        return importlib.import_module("gssapi")


def _first_step(gssapi: Any, settings: KerberosSettings, host: str) -> tuple[Any, bytes | None]:
    """The context, and its first message: here the KDC is asked, if tickets are wanting."""
    names = gssapi.NameType
    context = gssapi.SecurityContext(
        name=gssapi.Name(f"{settings.service_name}@{host}", names.hostbased_service),
        creds=_credentials(gssapi, settings),
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
    )
    return context, context.step()


def _credentials(gssapi: Any, settings: KerberosSettings) -> Any:
    """Tickets by a keytab stay in this process' memory, and the library renews them."""
    name = None
    if settings.principal:
        name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
    cached = {"ccache": f"FILE:{settings.ticket_cache}"} if settings.ticket_cache else None
    if settings.prefer_cache or not settings.keytab:
        try:
            found = gssapi.Credentials(name=name, usage="initiate", store=cached)
            if found.lifetime or not settings.keytab:
                return found
        except gssapi.exceptions.GSSError:
            if not settings.keytab:
                raise
    if not os.access(settings.keytab, os.R_OK):
        raise AuthenticationError(
            f"GSSAPI: the keytab {settings.keytab} cannot be read on this machine"
        )
    own = hashlib.sha256(f"{settings.principal}\0{settings.keytab}".encode()).hexdigest()[:16]
    store = {"client_keytab": f"FILE:{settings.keytab}", "ccache": f"MEMORY:sparkkafka-{own}"}
    return gssapi.Credentials(name=name, usage="initiate", store=store)


def _within(deadline: Deadline, action: Callable[[], _T]) -> _T:
    """What `action` returns or raises, in a thread that is left behind at the deadline."""
    found: list[_T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="sparkkafka-kerberos", daemon=True)
    thread.start()
    thread.join(max(deadline.remaining_s(), 0.0))
    if failed:
        raise failed[0]
    if not found:
        raise KafkaTimeoutError(
            f"GSSAPI: no answer of the KDC within {deadline.text}: see krb5.conf for its address"
        )
    return found[0]


def _told(error: Any, settings: KerberosSettings, host: str) -> Exception:
    words = printable(" ".join(str(error).split()))[:500]
    who = f" of {settings.principal}" if settings.principal else ""
    source = f"the keytab {settings.keytab}" if settings.keytab else "the ticket cache (kinit)"
    text = f"GSSAPI: the ticket{who}, by {source}, for {settings.service_name}/{host}: {words}"
    kind = KafkaConnectionError if error.min_code in _UNREACHABLE else AuthenticationError
    return kind(text)
