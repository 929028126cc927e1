"""What is wrong with a server's certificate or with ours, in words that say what to set."""

from __future__ import annotations

import ssl
from typing import Final

from sparkkafka.config.security.settings import TlsSettings

NAME_MISMATCHES: Final = (62, 64)  # OpenSSL's codes: of a host name, of an IP address
_UNTRUSTED = (7, 18, 19, 20, 21)  # 7: signed by another key of the same name
_BY_ITSELF = 18
_DATES = {
    9: "is not valid yet: compare the clocks",
    10: "has expired: it must be renewed at the server, if this machine's clock is right",
}

_WANTS_CERTIFICATE = (
    "the server wants a client certificate: set {prefix}ssl.keystore.location (or "
    "{prefix}ssl.keystore.certificate.chain and {prefix}ssl.keystore.key) to one that its "
    "authorities have signed"
)

# Alerts that a server sends (RFC 8446, 6.2), in OpenSSL's words, and what most often is behind.
_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _WANTS_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses our certificate, or we have none and "
    f"{_WANTS_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept our certificate "
    "({prefix}ssl.keystore.…)",
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
    "TLSV1_UNRECOGNIZED_NAME": "it does not know the name that it was called by",
}


def alert_words(error: OSError, prefix: str) -> str:
    """What to do if it is an alert that is known, else "". `prefix` stands before names of
    settings."""
    return _ALERTS.get(str(getattr(error, "reason", None) or error), "").format(prefix=prefix)


def untrusted_words(
    error: ssl.SSLCertVerificationError,
    settings: TlsSettings,
    host: str,
    *,
    address: str,
    trust: str,
    prefix: str,
    names: tuple[str, ...] = (),
) -> str:
    """What the server's certificate is or is not, and what to do.

    `address` and `trust` name the options with the server's address and with the authorities.
    `names`: those in the certificate, if they are known.
    """
    code = error.verify_code
    if code in NAME_MISMATCHES:
        has = f"has the names {', '.join(names)}" if names else "has other names"
        return (
            f"is not for {host}: it {has}. Connect by one of its names ({address}), or have this "
            f"one added to the certificate; {prefix}ssl.endpoint.identification.algorithm set to "
            "nothing accepts any name"
        )
    if code in _DATES:
        return _DATES[code]
    if code in _UNTRUSTED:
        store = settings.truststore
        trusted = store.path or ("the text of " if store else "the system's authorities")
        if store and not store.path:
            trusted += store.option
        what = (
            "is signed by itself, and not trusted here"
            if code == _BY_ITSELF
            else "is not signed by an authority that is trusted here"
        )
        return (
            f"{what} ({trusted}; OpenSSL: {error.verify_message}). Set {trust} to the file (PEM, "
            "PKCS#12 or JKS) of the authority that signed it"
        )
    return f"is not accepted: {error.verify_message}"
