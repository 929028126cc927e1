"""spark.kafka.clusters.*: what it says, and whose login a query has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client import DelegationToken
from sparkkafka.config.security import java
from sparkkafka.errors import BrokerError, ErrorCode, OptionError
from sparkkafka.secret import SecretBytes
from sparkkafka.spark import delegation_tokens
from sparkkafka.spark.delegation_tokens import (
    CLUSTERS,
    VARIABLE,
    TokenKeeper,
    parse_clusters,
    with_token,
)

MAIN = f"{CLUSTERS}main."
SERVERS = {f"{MAIN}auth.bootstrap.servers": "h:1,h:2"}


def test_the_defaults_are_sparks() -> None:
    (found,) = parse_clusters(SERVERS | {"spark.master": "local"})
    assert (found.name, found.protocol, found.mechanism) == ("main", "SASL_SSL", "SCRAM-SHA-512")
    assert found.target.pattern == ".*"
    assert found.settings == {
        "bootstrap.servers": "h:1,h:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "GSSAPI",
    }


def test_everything_at_once() -> None:
    conf = SERVERS | {
        f"{MAIN}target.bootstrap.servers.regex": "k.*:9093",
        f"{MAIN}security.protocol": "SASL_PLAINTEXT",
        f"{MAIN}sasl.token.mechanism": "SCRAM-SHA-256",
        f"{MAIN}sasl.kerberos.service.name": "broker",
        f"{MAIN}ssl.truststore.location": "/a",
        f"{MAIN}kafka.ssl.truststore.location": "/b",
        f"{MAIN}kafka.retries": "3",
        "spark.kerberos.keytab": "/k",
        "spark.kerberos.principal": "p@R",
        f"{CLUSTERS}other.auth.bootstrap.servers": "o:1",
        f"{CLUSTERS}other.security.protocol": "SSL",
    }
    main, other = parse_clusters(conf)
    assert (main.target.pattern, main.mechanism) == ("k.*:9093", "SCRAM-SHA-256")
    assert main.settings == {
        "bootstrap.servers": "h:1,h:2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "broker",
        "ssl.truststore.location": "/b",
        "retries": "3",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.keytab": "/k",
        "sasl.kerberos.principal": "p@R",
    }
    assert other.settings == {"bootstrap.servers": "o:1", "security.protocol": "SSL"}
    assert "/k" not in repr(main)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("auth.bootstrap.servers", "", "main.auth.bootstrap.servers is not set"),
        ("target.bootstrap.servers.regex", "(", "target.bootstrap.servers.regex is not a regular"),
        ("sasl.token.mechanism", "PLAIN", "must be a SCRAM mechanism, got 'PLAIN'"),
    ],
)
def test_what_cannot_be(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_clusters(SERVERS | {f"{MAIN}{name}": value})


Put = Callable[..., None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """The driver's file has these rows."""
    monkeypatch.setattr(java, "jvm_property", lambda name: "")
    path = tmp_path / "tokens.json"
    monkeypatch.setenv(VARIABLE, str(path))

    def write(*rows: dict[str, Any]) -> None:
        row = {
            "name": "main",
            "target": "h:.*",
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "failure": "",
            "token_id": "id",
            "hmac": "aG1hYw==",
            "ends_ms": time.time() * 1000 + 60_000,
        }
        path.write_text(json.dumps([row | item for item in rows]))

    return write


GIVEN = {"kafka.bootstrap.servers": "g:9, h:1"}


def test_the_token_of_the_servers(put: Put) -> None:
    put({"name": "else", "target": "x"}, {})
    found = with_token(GIVEN)
    assert found == GIVEN | {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        'required tokenauth="true" username="id" password="aG1hYw==";',
    }
    put({"target": "h"})  # all of it has to fit
    assert with_token(GIVEN) is GIVEN


@pytest.mark.parametrize(
    "own",
    [
        {"kafka.sasl.jaas.config": "x"},
        {"kafka.sasl.username": "u"},
        {"kafka.security.protocol": "SSL"},
        {"kafka.security.protocol": "plaintext"},
    ],
)
def test_a_login_of_its_own_comes_first(put: Put, own: dict[str, str]) -> None:
    put({})
    given = GIVEN | own
    assert with_token(given) is given


def test_names_in_any_case(put: Put) -> None:
    put({})
    given = {"Kafka.Bootstrap.Servers": "h:1", "KAFKA.SASL.MECHANISM": "GSSAPI"}
    found = with_token(given)
    assert {name.lower() for name in found} == {name.lower() for name in with_token(GIVEN)}
    assert len(found) == 4
    own = {"Kafka.Bootstrap.Servers": "h:1", "Kafka.Security.Protocol": "SSL"}
    assert with_token(own) is own


def test_a_mechanism_without_a_login_is_the_tokens(put: Put) -> None:
    put({})
    given = GIVEN | {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "GSSAPI"}
    found = with_token(given)
    assert found["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-512"


def test_the_login_of_the_jvm_comes_first(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put({})
    monkeypatch.setattr(java, "jvm_property", lambda name: "/jaas.conf")
    assert with_token(GIVEN) is GIVEN


def test_two_tokens_for_one_query(put: Put) -> None:
    put({}, {"name": "second", "target": ".*"})
    with pytest.raises(OptionError, match=r"clusters\.\{main, second\} all are for"):
        with_token(GIVEN)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ends_ms": 1}, "token: it has expired"),
        ({"ends_ms": 1, "failure": "no broker"}, "token: no broker"),
    ],
)
def test_a_token_that_does_not_help(put: Put, row: dict[str, Any], message: str) -> None:
    put(row)
    with pytest.raises(OptionError, match=message) as caught:
        with_token(GIVEN)
    assert "aG1hYw" not in str(caught.value)


def test_a_file_that_is_gone_or_damaged_is_an_error(put: Put, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"No such file.*register\(spark\) again"):
        with_token(GIVEN)
    (tmp_path / "tokens.json").write_text("[")
    with pytest.raises(OptionError, match="it is damaged"):
        with_token(GIVEN)
    own = GIVEN | {"kafka.sasl.username": "u"}
    assert with_token(own) is own


def test_a_token_that_the_brokers_lost_gives_way_to_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    now_ms = int(time.time() * 1000)

    class Brokers:
        def __init__(self, settings: Any) -> None:
            assert settings["bootstrap.servers"] == "h:1,h:2"

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def create_delegation_token(self, timeout_s: float) -> DelegationToken:
            made.append(f"token-{len(made)}")
            ends = (now_ms, now_ms + 60_000, now_ms + 120_000)
            return DelegationToken(made[-1], SecretBytes(b"x"), "User:a", "", (), *ends)

        def renew_delegation_token(self, token: DelegationToken, timeout_s: float) -> int:
            raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "RenewDelegationToken")

    monkeypatch.setattr("sparkkafka.client.admin.admin.Admin", Brokers)
    monkeypatch.setattr(delegation_tokens, "RENEWAL_RATIO", 0.0)
    monkeypatch.delenv(VARIABLE, raising=False)
    keeper = TokenKeeper(parse_clusters(SERVERS))
    try:
        end_s = time.monotonic() + 20
        while len(made) < 2 and time.monotonic() < end_s:
            time.sleep(0.02)
        assert made[:2] == ["token-0", "token-1"]
    finally:
        keeper.close()
