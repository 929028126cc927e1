"""The assertion of the JWT bearer grant (RFC 7523): a signed statement that stands in place of a
client's secret. As Java's JwtBearerJwtRetriever (KIP-1139), with a key in PEM."""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import Any, Final

from sparkkafka.client.auth.tls_context import read_store
from sparkkafka.config.security.settings import AssertionSettings, Store
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

MOST_FILE_BYTES: Final = 1_000_000
_ES256_BYTES: Final = 32  # of each of the two numbers of a signature (RFC 7518, 3.4)


def assertion(settings: AssertionSettings) -> Secret:
    """The content of the file, or a statement of now. Raises OptionError, naming the option."""
    if settings.file:
        text = (
            read_store(settings.file, MOST_FILE_BYTES).reveal().decode("utf-8", "replace").strip()
        )
        if not text:
            raise OptionError(f"{settings.file} is empty")
        return Secret(text)
    now_s = int(time.time())
    header, claims = _template(settings.template)
    claims = {**dict(settings.claims), **claims}
    claims |= {"iat": now_s, "exp": now_s + settings.exp_s, "nbf": now_s - settings.nbf_s}
    if settings.include_jti:
        claims["jti"] = str(uuid.uuid4())
    header = {**header, "alg": settings.algorithm, "typ": "JWT"}
    said = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
    return Secret(f"{said}.{_base64(_signature(settings, said.encode()))}")


def _signature(settings: AssertionSettings, data: bytes) -> bytes:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError:
        raise OptionError(
            f"{settings.key.option}: signing needs a library that is missing on this machine: pip "
            "install cryptography"
        ) from None
    key = _key(settings)
    if settings.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    curve = key.curve if isinstance(key, ec.EllipticCurvePrivateKey) else None
    if settings.algorithm == "ES256" and isinstance(curve, ec.SECP256R1):
        pair = utils.decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return b"".join(number.to_bytes(_ES256_BYTES, "big") for number in pair)
    wanted = "an RSA key" if settings.algorithm == "RS256" else "a key of the curve P-256"
    raise OptionError(
        f"{settings.key} does not fit sasl.oauthbearer.assertion.algorithm="
        f"{settings.algorithm}, which wants {wanted}"
    )


def _key(settings: AssertionSettings) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    store, passphrase = settings.key, settings.passphrase
    content = read_store(store, MOST_FILE_BYTES)
    try:
        return load_pem_private_key(content.reveal(), passphrase.reveal().encode() or None)
    except Exception:  # of several kinds, and words of OpenSSL that help nobody
        raise OptionError(
            f"{store} is no private key in PEM, or its passphrase "
            f"(sasl.oauthbearer.assertion.private.key.passphrase) is "
            f"{'wrong' if passphrase else 'missing'}"
        ) from None


def _template(store: Store) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of the file of JSON."""
    if not store:
        return {}, {}
    try:
        found = json.loads(read_store(store, MOST_FILE_BYTES).reveal())
        header, claims = found.get("header", {}), found.get("payload", {})
        return dict(header), dict(claims)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise OptionError(
            f'{store} must be JSON of the form {{"header": {{…}}, "payload": {{…}}}}'
        ) from None


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
