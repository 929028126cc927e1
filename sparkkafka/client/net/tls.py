"""The TLS handshake on a connected socket, and what its failures mean in words.

Failures of trust are final (AuthenticationError): asking again makes nobody trustworthy. A server
that hangs up in the middle may be one that is just starting, so that is worth another attempt.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import replace

from sparkkafka.client.auth.tls_context import context_of
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.refusals import first_words, is_plain, tls_refusal
from sparkkafka.config.security.settings import TlsSettings
from sparkkafka.errors import AuthenticationError, KafkaConnectionError, KafkaTimeoutError

LOOK_TIMEOUT_MS = 3_000
"""For a second look at a server, after it failed, to say what is wrong with it."""

_MOST_NAMES = 8

# {prefix} stands before names of settings that have one in Spark.
_NO_TLS = (
    "a listener without TLS, perhaps: compare {prefix}security.protocol with the listener's "
    "(PLAINTEXT or SASL_PLAINTEXT)"
)
# X509_V_ERR_… of OpenSSL.
_MISMATCHES = (62, 64)  # of a host name, of an IP address
_UNTRUSTED = (7, 18, 19, 20, 21)  # 7: signed by another key of the same name
_DATES = {
    9: "is not valid yet: compare the clocks",
    10: "has expired: it must be renewed at the broker, if this machine's clock is right",
}

_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def encrypt(
    sock: socket.socket,
    context: ssl.SSLContext,
    settings: TlsSettings,
    host: str,
    where: str,
    deadline: Deadline,
    prefix: str,
) -> ssl.SSLSocket:
    """The socket with TLS; takes it over, and closes it if anything fails.

    `where` is host and port for messages, `prefix` that of the user's settings. Raises
    AuthenticationError for a certificate that is not trusted and for a refusal,
    KafkaConnectionError and KafkaTimeoutError for the rest.
    """
    started_s = time.monotonic()
    try:
        peer = sock.getpeername()  # fails if it has hung up already
        # A dot at the end makes a name complete, but is not part of it in certificates and SNI.
        tls = context.wrap_socket(
            sock, server_hostname=host.removesuffix("."), do_handshake_on_connect=False
        )
    except (ValueError, OSError) as error:  # a name that IDNA does not know
        sock.close()
        raise KafkaConnectionError(f"{where}: TLS cannot begin ({error})") from error
    try:
        if deadline.close_signal is not None:
            deadline.close_signal.watch(tls)
        tls.settimeout(max(deadline.remaining_s(), 0.001))
        tls.do_handshake()
    except ssl.SSLCertVerificationError as error:
        tls.close()
        names = _names_of(peer, settings, host) if error.verify_code in _MISMATCHES else ()
        raise AuthenticationError(
            _untrusted(error, settings, host, where, names, prefix)
        ) from error
    except TimeoutError as error:
        tls.close()
        late = KafkaTimeoutError(
            f"{where}: TLS was not agreed on within {time.monotonic() - started_s:.1f} s; "
            f"{_no_tls(prefix)}"
        )
        late.retriable = True
        raise late from error
    except OSError as error:
        tls.close()
        if getattr(error, "reason", "") in _NO_TLS_REASONS:
            raise _not_tls(where, peer, context, prefix) from error
        gone = ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError
        if isinstance(error, ssl.SSLError) and not isinstance(error, gone):
            raise AuthenticationError(tls_refusal(error, where, prefix)) from error
        if is_plain(peer):
            raise _plain_listener(where, prefix) from error
        what = "the server closed the connection"
        if not isinstance(error, gone):
            what = f"the connection broke ({error.strerror or error})"
        raise KafkaConnectionError(
            f"{where}: {what} when TLS was to begin; {_no_tls(prefix)}"
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls


def _no_tls(prefix: str) -> str:
    return _NO_TLS.format(prefix=prefix)


def _plain_listener(where: str, prefix: str) -> KafkaConnectionError:
    error = KafkaConnectionError(
        f"{where}: this listener is one of Kafka's without TLS, it answers what is not encrypted: "
        f"set {prefix}security.protocol to PLAINTEXT or SASL_PLAINTEXT (then nothing is encrypted, "
        "passwords neither), or connect to a listener with TLS"
    )
    error.retriable = False
    return error


def _not_tls(
    where: str, peer: tuple[str, int], context: ssl.SSLContext, prefix: str
) -> KafkaConnectionError:
    """OpenSSL only says that something's version number is wrong: look at what it is."""
    first = first_words(peer, context, LOOK_TIMEOUT_MS)
    if first.startswith(b"HTTP"):
        what = "HTTP: this port is a web server's, not a Kafka listener's"
    elif first.startswith(b"SSH-"):
        what = "SSH: this port is not a Kafka listener's"
    else:
        what = f"something else than TLS; {_no_tls(prefix)}"
    error = KafkaConnectionError(f"{where}: the answer is {what}")
    error.retriable = False
    return error


def _untrusted(
    error: ssl.SSLCertVerificationError,
    settings: TlsSettings,
    host: str,
    where: str,
    names: tuple[str, ...],
    prefix: str,
) -> str:
    code = error.verify_code
    if code in _MISMATCHES:
        has = f"has the names {', '.join(names)}" if names else "has other names"
        return (
            f"{where}: the broker's certificate is not for {host}: it {has}. Connect by one of "
            f"its names ({prefix}bootstrap.servers, and the brokers' advertised.listeners), or "
            "have this one added to the certificate; "
            f"{prefix}ssl.endpoint.identification.algorithm set to nothing accepts any name"
        )
    if code in _DATES:
        return f"{where}: the broker's certificate {_DATES[code]}"
    if code in _UNTRUSTED:
        store = settings.truststore
        trusted = store.path or ("the text of " if store else "the system's authorities")
        if store and not store.path:
            trusted += store.option
        kind = "is signed by itself" if code == 18 else "is not signed by an authority"
        return (
            f"{where}: the broker's certificate {kind} that is trusted here ({trusted}; OpenSSL: "
            f"{error.verify_message}). Set {prefix}ssl.truststore.location to the PEM or PKCS#12 "
            "file of the authority that signed it"
        )
    return f"{where}: the broker's certificate is not accepted: {error.verify_message}"


def _names_of(peer: tuple[str, int], settings: TlsSettings, host: str) -> tuple[str, ...]:
    """The names in a certificate that is sound but for them; empty if it shows none.

    Python gives the certificate of a handshake that succeeded only, so there is another one,
    without a look at the name, that ends with it.
    """
    context = context_of(replace(settings, check_hostname=False))
    try:
        with (
            socket.create_connection(peer[:2], timeout=LOOK_TIMEOUT_MS / 1000) as sock,
            context.wrap_socket(sock, server_hostname=host.removesuffix(".")) as tls,
        ):
            found = tls.getpeercert() or {}
    except (OSError, ValueError):
        return ()
    rows = found.get("subjectAltName", ())
    names = [str(row[1]) for row in rows if isinstance(row, tuple)][:_MOST_NAMES]
    return tuple(name if name.isprintable() else repr(name) for name in names)
