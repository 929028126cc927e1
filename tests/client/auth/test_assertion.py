"""The JWT bearer grant: what is said, and that the signature is one."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sparkkafka.client.auth.oauth import fetch_token, make_assertion
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.security.settings import (
    AssertionSettings,
    OAuthSettings,
    Store,
    TokenMethod,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.certificates import signed
from tests.support.frames import variables_of
from tests.support.token_server import HttpResponse, TokenServer

RSA = signed("rsa", key=rsa.generate_private_key(65537, 2048))
EC = signed("ec")
OTHER_CURVE = signed("other", key=ec.generate_private_key(ec.SECP384R1()))
OPTION = "sasl.oauthbearer.assertion.private.key.file"
CLAIMS = (("aud", "https://id.example"), ("iss", "me"), ("sub", "me"))


def settings(identity: Any = RSA, /, **more: Any) -> AssertionSettings:
    text = Store("sasl.oauthbearer.assertion.private.key.pem", text=Secret(identity.key_pem()))
    return AssertionSettings(**({"key": text, "claims": CLAIMS} | more))


def parts(text: Secret) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    """Header, claims, what is signed, and the signature."""
    said, _, signature = text.reveal().rpartition(".")
    header, claims = (json.loads(_decoded(part)) for part in said.split("."))
    return header, claims, said.encode(), _decoded(signature)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "==")


def test_rs256() -> None:
    header, claims, said, signature = parts(make_assertion(settings()))
    assert header == {"alg": "RS256", "typ": "JWT"}
    assert {name: claims[name] for name in ("aud", "iss", "sub")} == dict(CLAIMS)
    assert abs(claims["iat"] - time.time()) < 60
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"]) == (300, 60)
    assert "jti" not in claims
    public = RSA.key.public_key()
    public.verify(signature, said, padding.PKCS1v15(), hashes.SHA256())
    with pytest.raises(InvalidSignature):
        public.verify(signature, said + b"x", padding.PKCS1v15(), hashes.SHA256())


def test_es256() -> None:
    header, _, said, signature = parts(make_assertion(settings(EC, algorithm="ES256")))
    assert header["alg"] == "ES256"
    assert len(signature) == 64
    pair = [int.from_bytes(half, "big") for half in (signature[:32], signature[32:])]
    EC.key.public_key().verify(encode_dss_signature(*pair), said, ec.ECDSA(hashes.SHA256()))


def test_a_template_an_id_and_an_encrypted_key(tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"header": {"kid": "7"}, "payload": {"sub": "x", "a": [1]}}))
    key = tmp_path / "key.pem"
    key.write_text(RSA.key_pem("hush"))
    wanted = settings(
        RSA,
        key=Store(OPTION, str(key)),
        passphrase=Secret("hush"),
        template=Store("sasl.oauthbearer.assertion.template.file", str(template)),
        include_jti=True,
        exp_s=10,
    )
    header, claims, _, _ = parts(make_assertion(wanted))
    assert header == {"kid": "7", "alg": "RS256", "typ": "JWT"}
    assert (claims["sub"], claims["a"], claims["aud"]) == ("x", [1], "https://id.example")
    assert parts(make_assertion(wanted))[1]["jti"] != claims["jti"]


def test_an_assertion_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    file.write_text("a.b.c\n")
    given = AssertionSettings(file=Store("sasl.oauthbearer.assertion.file", str(file)))
    assert make_assertion(given).reveal() == "a.b.c"
    file.write_text("renewed")
    assert make_assertion(given).reveal() == "renewed"


def test_what_the_server_is_asked() -> None:
    with TokenServer(None) as server:
        server.responses.append(HttpResponse(200, {"access_token": "t", "expires_in": 60}))
        wanted = OAuthSettings(
            method=TokenMethod.CLIENT_CREDENTIALS,
            token_endpoint_url=server.url,
            scope="kafka",
            assertion=settings(),
        )
        assert fetch_token(wanted, Deadline(10_000)).text == Secret("t")
        (asked,) = server.requests
    assert "authorization" not in {name.lower() for name in asked.headers}
    assert asked.form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    assert asked.form["scope"] == ["kafka"]
    assert parts(Secret(asked.form["assertion"][0]))[1]["sub"] == "me"


def wrong(folder: Path) -> dict[str, tuple[AssertionSettings, str]]:
    locked = Store(OPTION, str(folder / "locked.pem"))
    (folder / "locked.pem").write_text(RSA.key_pem("hush"))
    (folder / "bad.json").write_text("[1]")
    (folder / "empty").write_text(" ")
    base = settings()
    return {
        "no file": (
            replace(base, key=Store(OPTION, "/none")),
            r"/none cannot be read on this mach",
        ),
        "no passphrase": (
            replace(base, key=locked),
            r"locked\.pem is not a private key.*is missing",
        ),
        "wrong passphrase": (
            replace(base, key=locked, passphrase=Secret("hush!")),
            r"locked\.pem is not a private key in PEM, or its passphrase .* is wrong",
        ),
        "another kind of key": (settings(EC), "does not fit .*RS256, which needs an RSA key"),
        "another curve": (settings(OTHER_CURVE, algorithm="ES256"), "a key of the curve P-256"),
        "no JSON object": (
            replace(base, template=Store("t", str(folder / "bad.json"))),
            "must be JSON of the form",
        ),
        "an empty file": (replace(base, file=Store("f", str(folder / "empty"))), "is empty"),
    }


WRONG = ("no file", "no passphrase", "wrong passphrase", "another kind of key", "another curve",
         "no JSON object", "an empty file")  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    given, message = wrong(tmp_path)[case]
    with pytest.raises(OptionError, match=message) as caught:
        make_assertion(given)
    assert "hush" not in str(caught.value)
    assert "PRIVATE KEY-----" not in variables_of(caught.value)


def test_every_case_is_run(tmp_path: Path) -> None:
    assert (*wrong(tmp_path),) == WRONG
