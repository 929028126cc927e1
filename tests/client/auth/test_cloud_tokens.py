"""Tokens by the real libraries of Amazon and Google, whose servers are the tests' own."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from cryptography.hazmat.primitives.asymmetric import rsa

from sparkkafka.config.security.settings import (
    OAuthSettings,
    TokenMethod,
)
from sparkkafka.errors import AuthenticationError, OptionError
from sparkkafka.secret import Secret
from tests.client.auth.test_oauth import (
    Clock,
    clock,
    failure,
    fetch,
)
from tests.support.certificates import signed
from tests.support.frames import variables_of

__all__ = ["clock"]  # a fixture

pytestmark = pytest.mark.usefixtures("nothing_is_cached")

# --- Amazon --------------------------------------------------------------------------------------


ROLE = "arn:aws:iam::123456789012:role/r"
ROLE_RESPONSE = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId>
<SecretAccessKey>hush-role</SecretAccessKey><SessionToken>hush-session</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>
"""


class TokenService:
    """Amazon's token service: `asked` has the fields of each request, and who signed it."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.status = 200
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                fields = {name: value[0] for name, value in parse_qs(body).items()}
                signed = self.headers["authorization"].partition("Credential=")[2]
                fields["signed by"] = signed.partition("/")[0]
                fields["token"] = self.headers.get("x-amz-security-token", "")
                service.requests.append(fields)
                self.send_response(service.status)
                self.send_header("content-length", str(len(ROLE_RESPONSE)))
                self.end_headers()
                self.wfile.write(ROLE_RESPONSE)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With AWS credentials, as a machine of Amazon's has them, and a profile "work"."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    profiles = tmp_path / "credentials"
    profiles.write_text("[work]\naws_access_key_id = AKIAWORK\naws_secret_access_key = hush-w\n")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAMACHINE",
        "AWS_SECRET_ACCESS_KEY": "hush-machine",
        "AWS_SHARED_CREDENTIALS_FILE": str(profiles),
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def token_service(machine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    service = TokenService()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{service.server.server_port}")
    yield service
    service.close()


class Signers:
    """Amazon's signer: notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.response: Any = None

    def said(self, *asked: Any) -> Any:
        self.requests.append(asked)
        if isinstance(self.response, Exception):
            raise self.response
        return self.response or (f"signed-{len(self.requests)}", int(time.time() + 900) * 1000)


@pytest.fixture
def amazon(machine: None, monkeypatch: pytest.MonkeyPatch) -> Signers:
    signers = Signers()
    for name in ("", "_from_profile"):
        monkeypatch.setattr(MSKAuthTokenProvider, f"generate_auth_token{name}", signers.said)
    return signers


def aws(**more: Any) -> OAuthSettings:
    return OAuthSettings(method=TokenMethod.AWS_MSK_IAM, **({"aws_region": "eu-north-1"} | more))


def signed_by(**more: Any) -> tuple[str, str]:
    """Whose key the token names, and the region. A token of Amazon's is a signed address."""
    address = base64.urlsafe_b64decode(fetch(aws(**more)) + "===").decode()
    key, _day, region, service, _ = parse_qs(urlsplit(address).query)["X-Amz-Credential"][0].split(
        "/"
    )
    assert (urlsplit(address).hostname, service) == (
        f"kafka.{region}.amazonaws.com",
        "kafka-cluster",
    )
    return key, region


def test_amazons_own_signer_signs_as_the_machine_or_a_profile(machine: None) -> None:
    assert signed_by() == ("AKIAMACHINE", "eu-north-1")
    assert signed_by(aws_profile="work") == ("AKIAWORK", "eu-north-1")


def test_a_role_is_assumed_with_all_that_names_it(token_service: TokenService) -> None:
    asked = token_service.requests
    assert signed_by(aws_role_arn=ROLE) == ("ASIAROLE", "eu-north-1")
    usual = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": ROLE}
    usual |= {"RoleSessionName": "aws-msk-iam-auth", "signed by": "AKIAMACHINE", "token": ""}
    assert asked == [usual]
    keys: dict[str, Any] = {
        "aws_role_access_key_id": "AKIAGIVEN",
        "aws_role_secret_access_key": Secret("hush-given"),
    }
    signed_by(aws_role_arn=ROLE, aws_sts_region="eu-west-1", **keys)
    assert asked[1] == usual | {"signed by": "AKIAGIVEN"}
    keys["aws_role_session_token"] = Secret("given-token")
    signed_by(
        aws_role_arn=ROLE, aws_role_external_id="partner", aws_role_session_name="mine", **keys
    )
    assert asked[2] == usual | {
        "signed by": "AKIAGIVEN",
        "token": "given-token",
        "ExternalId": "partner",
        "RoleSessionName": "mine",
    }


def test_a_profile_comes_before_a_role(
    token_service: TokenService, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Amazon's library for Java."""
    assert signed_by(aws_profile="work", aws_role_arn=ROLE)[0] == "AKIAWORK"
    assert not caplog.messages
    assert signed_by(aws_profile="absent", aws_role_arn=ROLE)[0] == "ASIAROLE"
    (message,) = caplog.messages
    assert f"profile absent gives no token (ProfileNotFound): assuming the role {ROLE}" in message


def test_nobody_else_signs_when_a_profile_or_role_fails(token_service: TokenService) -> None:
    assert "ProfileNotFound" in failure(aws(aws_profile="absent"), AuthenticationError)
    token_service.status = 403
    keys = {"aws_role_secret_access_key": Secret("hush-given"), "aws_role_access_key_id": "AKIA"}
    text = failure(aws(aws_role_arn=ROLE, **keys), AuthenticationError)
    assert "gives no token: ClientError" in text
    assert "hush" not in text


def test_no_variable_of_a_frame_has_a_roles_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **values: Any) -> None:
        assert (values["aws_access_key_id"], values["aws_secret_access_key"]) == ("AKIA", "hush")
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "boto3", types.SimpleNamespace(client=interrupted))
    keys = {"aws_role_secret_access_key": Secret("hush"), "aws_role_access_key_id": "AKIA"}
    with pytest.raises(KeyboardInterrupt) as caught:
        fetch(aws(aws_role_arn=ROLE, **keys))
    assert "hush" not in variables_of(caught.value)


@pytest.mark.parametrize("retries", [0, 2])
def test_the_token_service_is_asked_again_as_often_as_said(
    token_service: TokenService, retries: int
) -> None:
    token_service.status = 500
    failure(aws(aws_role_arn=ROLE, aws_max_retries=retries), AuthenticationError)
    assert len(token_service.requests) == retries + 1


def test_amazons_token_is_kept_for_a_quarter_of_an_hour_at_most(
    amazon: Signers, clock: Clock
) -> None:
    """The signer's end of a token is hours off where the time zone is not UTC."""
    amazon.response = ("signed", int(time.time() + 5 * 3600) * 1000)
    fetch(aws())
    clock.moved_s = 700
    fetch(aws())
    assert len(amazon.requests) == 1
    clock.moved_s = 730
    fetch(aws())
    assert len(amazon.requests) == 2


def test_amazons_region(amazon: Signers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert "region is not known: set awsRegion" in failure(aws(aws_region=""), OptionError)
    session: Any = types.ModuleType("botocore.session")
    session.Session = lambda profile: types.SimpleNamespace(
        get_config_variable=lambda name: f"{name}-of-{profile}"
    )
    monkeypatch.setitem(sys.modules, "botocore.session", session)
    fetch(aws(aws_region="", aws_profile="work"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "second")
    fetch(aws(aws_region=""))
    monkeypatch.setenv("AWS_REGION", "first")
    fetch(aws(aws_region="", aws_profile="home"))
    assert [request[0] for request in amazon.requests] == ["region-of-work", "second", "first"]


def test_amazon_says_no(amazon: Signers) -> None:
    amazon.response = RuntimeError("Unable to locate credentials")
    text = failure(aws(), AuthenticationError)
    assert "gives no token: RuntimeError: Unable to locate credentials" in text


def test_amazons_signer_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", None)
    text = failure(aws(), OptionError)
    assert "pip install 'sparkkafka[aws]' (or aws-msk-iam-sasl-signer-python)" in text


# --- Google --------------------------------------------------------------------------------------

ACCOUNT = "job@project.iam.gserviceaccount.com"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A machine with a service account, and the server that gives its tokens."""
    state: dict[str, Any] = {"status": 200, "asked": []}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            state["asked"].append(parse_qs(body))
            response = {"access_token": "hush-google", "expires_in": 600, "token_type": "Bearer"}
            if state["status"] != 200:
                response = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            content = json.dumps(response).encode()
            self.send_response(state["status"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    key = signed("google", key=rsa.generate_private_key(65537, 2048))
    state["file"] = tmp_path / "account.json"
    state["account"] = {
        "type": "service_account",
        "client_email": ACCOUNT,
        "private_key": key.key_pem(),
        "private_key_id": "1",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    state["file"].write_text(json.dumps(state["account"]))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(state["file"]))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    yield state
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_googles_token(google: dict[str, Any], clock: Clock) -> None:
    """As its GcpLoginCallbackHandler for Java writes it."""
    settings = OAuthSettings(method=TokenMethod.GOOGLE)
    token = fetch(settings)
    parts = [base64.urlsafe_b64decode(part + "==").decode() for part in token.split(".")]
    assert json.loads(parts[0]) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = json.loads(parts[1])
    assert (claims["sub"], claims["scope"], claims["iss"]) == (ACCOUNT, "kafka", "Google")
    assert 500 < claims["exp"] - claims["iat"] <= 600
    assert parts[2] == "hush-google"
    assert fetch(settings) == token
    assert len(google["asked"]) == 1
    clock.moved_s = 590
    fetch(settings)
    assert len(google["asked"]) == 2


def test_google_says_no(google: dict[str, Any]) -> None:
    google["status"] = 400
    text = failure(OAuthSettings(method=TokenMethod.GOOGLE), AuthenticationError)
    assert "Google's library gives no token: RefreshError: " in text
    assert "invalid_grant" in text
    assert "hush" not in text
    google["file"].write_text("{}")
    text = failure(OAuthSettings(method=TokenMethod.GOOGLE), AuthenticationError)
    assert "are there Google credentials on this machine?" in text


def test_a_person_is_no_service_account(google: dict[str, Any]) -> None:
    uri = google["account"]["token_uri"]
    person = {
        "type": "authorized_user",
        "client_id": "i",
        "client_secret": "hush",
        "refresh_token": "hush",
    }
    google["file"].write_text(json.dumps(person | {"token_uri": uri}))
    text = failure(OAuthSettings(method=TokenMethod.GOOGLE), AuthenticationError)
    assert "hush" not in text


def test_googles_library_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    text = failure(OAuthSettings(method=TokenMethod.GOOGLE), OptionError)
    assert "pip install 'sparkkafka[gcp]' (or google-auth and requests)" in text
