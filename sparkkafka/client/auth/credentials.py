"""What a connection is secured with, from its options: the TLS context and who to be.

References are looked up for each connection anew, so that a password or a file that changes counts
from the next connection on. A TLS context takes long to make (authorities are parsed), so each is
kept as long as its settings and its files are the same; contexts and secrets are never pickled.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sparkkafka.client.auth.sasl import SaslSettings
from sparkkafka.client.auth.tls_context import tls_context
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.options import ClientOptions
from sparkkafka.config.security.options import secure_settings
from sparkkafka.config.security.settings import SaslChoice, TlsSettings
from sparkkafka.secret import Secret

MOST_CONTEXTS: Final = 16

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


class ConnectionSecurity(NamedTuple):
    """None: without. `tls_settings` are what `context` was made of."""

    context: ssl.SSLContext | None = None
    tls_settings: TlsSettings | None = None
    sasl: SaslSettings | None = None


NOT_SECURED: Final = ConnectionSecurity()


def connection_security(options: ClientOptions, host: str, port: int) -> ConnectionSecurity:
    """For one connection to this broker. Raises OptionError for what cannot be had here."""
    if options.security.protocol == "PLAINTEXT":
        return NOT_SECURED
    servers = ((host, port), *options.bootstrap_servers)
    tls, sasl = secure_settings(options.security, servers)
    return ConnectionSecurity(
        None if tls is None else context_of(tls),
        tls,
        None if sasl is None else _sasl_settings(sasl),
    )


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """The context for these settings and their files as they are now. Raises OptionError."""
    stores = (settings.truststore, settings.certificates, settings.key)
    key = settings, tuple(_stamp(store.path) for store in stores)
    with _lock:
        known = _contexts.get(key)
        if known is None:
            known = _contexts[key] = tls_context(settings)
            while len(_contexts) > MOST_CONTEXTS:
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


def _sasl_settings(choice: SaslChoice) -> SaslSettings:
    settings = SaslSettings(
        choice.mechanism, choice.username, choice.password, token_auth=choice.token_auth
    )
    if choice.oauth is None:
        return settings
    # Here, since few need it, and it takes a while to import.
    from sparkkafka.client.auth.oauth import TokenSource, token_source

    source = token_source(choice.oauth)
    used: list[Secret] = []

    def token(deadline: Deadline) -> Secret:
        used.append(source(deadline))
        return used[-1]

    def forget() -> None:
        """The next connection is to have another token: this one may have been called back."""
        if isinstance(source, TokenSource) and used:
            source.forget(used[-1])

    extensions = dict(choice.oauth.extensions)
    return replace(settings, token=token, forget=forget, extensions=extensions)
