"""One real broker with a listener for each way to be secure.

    TLS          SSL                a server certificate for localhost and 127.0.0.1
    MTLS         SSL                demands a client certificate of the test's authority
    OTHERNAME    SSL                its certificate is for other.example
    EXPIRED      SSL                its certificate is of last week
    SASLTLS      SASL_SSL           PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
    SASLTEXT     SASL_PLAINTEXT     the same
    SCRAMONLY    SASL_PLAINTEXT     SCRAM-SHA-512
    SHORT        SASL_SSL           as SASLTLS; sessions last SESSION_MS (KIP-368)
    CLIENT       PLAINTEXT          for the tests' own ends; its user may do everything

There are ACLs: whoever is not User:ANONYMOUS may do everything to what has no rules, nothing to
what only others have rules for (`Secured.guard`). The log tells each authentication and request.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.support.certificates import Identity, signed
from tests.support.token_server import AUDIENCE, ISSUER, TokenServer

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = 12_000
"""Clients renew it 960 ms before its end at the latest: a busy machine may hold one up for long."""

SESSIONS_S = 2.3 * SESSION_MS / 1000
"""Two sessions and a part of the third."""

# Bob's password has what is special in JAAS, properties, SCRAM, URLs and Python.
PASSWORDS = {"alice": "hush-alice", "bob": 'hü, "s=h"\\ ;%20{}'}
TOKEN_SECRETS = {"alice": "hush-alice-token"}

PROTOCOLS = {
    "TLS": "SSL",
    "MTLS": "SSL",
    "OTHERNAME": "SSL",
    "EXPIRED": "SSL",
    "SASLTLS": "SASL_SSL",
    "SASLTEXT": "SASL_PLAINTEXT",
    "SCRAMONLY": "SASL_PLAINTEXT",
    "SHORT": "SASL_SSL",
}

_MODULES = "org.apache.kafka.common.security"
_TOKEN_CHECK = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"


def jaas_text(text: str) -> str:
    """As it stands between double quotes in sasl.jaas.config."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True)
class Secured:
    """The broker, and what clients need: all of it is made anew for each run."""

    cluster: KafkaCluster
    folder: Path
    authority: Identity
    client: Identity
    tokens: TokenServer

    @property
    def authority_file(self) -> str:
        return str(self.folder / "ca.pem")

    def servers(self, listener: str) -> str:
        return self.cluster.address_list(listener)

    def port(self, listener: str) -> int:
        return int(self.servers(listener).rpartition(":")[2])

    def log(self) -> str:
        """All that the broker has logged."""
        return self.cluster.log_tail(0, 10**9)

    def failed_authentications(self) -> int:
        return self.log().count(" Failed authentication with ")

    def authentications(self) -> tuple[int, int]:
        """How many were new, and how many were renewed (KIP-368)."""
        text = self.log()
        again = text.count(" Successfully re-authenticated with ")
        return text.count(" Successfully authenticated with "), again

    def requests(self, client_id: str) -> list[dict[str, Any]]:
        """What a client has asked for, in the words of the broker's request log. SASL is not in
        it, nor what was refused before it was read."""
        found = re.findall(r"Completed request:(\{.*\})$", self.log(), re.MULTILINE)
        rows = [json.loads(text) for text in found if client_id in text]
        return [row for row in rows if row["requestHeader"].get("clientId") == client_id]

    def request_counts(self, client_id: str) -> Counter[str]:
        """How many requests of each kind."""
        rows = self.requests(client_id)
        return Counter(row["requestHeader"]["requestApiKeyName"] for row in rows)

    def requests_seen(self, client_id: str) -> int:
        """How many there were, of any kind."""
        return self.request_counts(client_id).total()

    def connections(self, client_id: str, api: str = "") -> set[str]:
        """The connections that the client's requests, or those of one kind, came by."""
        rows = self.requests(client_id)
        return {
            row["connection"]
            for row in rows
            if api in ("", row["requestHeader"]["requestApiKeyName"])
        }

    def guard(self, kind: ResourceType, name: str, operation: AclOperation, user: str) -> None:
        """From now on `user` alone may do `operation`, and nobody may do anything else."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        rule = AclBinding(
            *(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*"),
            *(operation, AclPermissionType.ALLOW),
        )
        admin.create_acls([rule], request_timeout=30)[rule].result(30)

    def set_password(self, user: str, password: str | None) -> None:
        """Of SCRAM; None takes it away."""
        _alter_scram(self.cluster, user, password)

    # -- what clients want -----------------------------------------------------------------

    def ours(
        self, listener: str, mechanism: str = "", user: str = "alice", password: str = ""
    ) -> dict[str, str]:
        """For our client, in Java's names. `password` is a wrong one, or a client's secret."""
        protocol = PROTOCOLS.get(listener, "PLAINTEXT")
        config = {"bootstrap.servers": self.servers(listener), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            config["ssl.truststore.location"] = self.authority_file
        if listener == "MTLS":
            config["ssl.keystore.certificate.chain"] = self.client.pem
            config["ssl.keystore.key"] = self.client.key_pem()
        if protocol.startswith("SASL"):
            config["sasl.mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                word = jaas_text(password or TOKEN_SECRETS[user])
                config["sasl.oauthbearer.token.endpoint.url"] = self.tokens.url
                config["sasl.jaas.config"] = (
                    f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
                    f'clientId="{user}" clientSecret="{word}" '
                    f'ssl.truststore.location="{self.authority_file}";'
                )
            else:
                word = jaas_text(password or PASSWORDS[user])
                module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
                config["sasl.jaas.config"] = (
                    f'{_MODULES}.{module}LoginModule required username="{user}" password="{word}";'
                )
        return config

    def confluent(self, listener: str, mechanism: str = "", user: str = "alice") -> dict[str, Any]:
        protocol = PROTOCOLS.get(listener, "PLAINTEXT")
        config: dict[str, Any] = {
            "bootstrap.servers": self.servers(listener),
            "security.protocol": protocol,
        }
        if protocol.endswith("SSL"):
            config["ssl.ca.location"] = self.authority_file
        if listener == "MTLS":
            config["ssl.certificate.pem"] = self.client.pem
            config["ssl.key.pem"] = self.client.key_pem()
        if protocol.startswith("SASL"):
            config["sasl.mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                config |= {
                    "sasl.oauthbearer.method": "oidc",
                    "sasl.oauthbearer.client.id": user,
                    "sasl.oauthbearer.client.secret": TOKEN_SECRETS[user],
                    "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                    "https.ca.location": self.authority_file,
                }
            else:
                config |= {"sasl.username": user, "sasl.password": PASSWORDS[user]}
        return config


@contextmanager
def secured_broker(token_life_s: float = 3600.0) -> Iterator[Secured]:
    """Start it; ten seconds. Everything is gone afterwards."""
    authority = signed("authority")
    with (
        tempfile.TemporaryDirectory(prefix="sparkkafka-secured-") as name,
        TokenServer(authority, life_s=token_life_s, secrets=TOKEN_SECRETS) as tokens,
    ):
        folder = Path(name)
        (folder / "ca.pem").write_text(authority.pem)
        (folder / "jwks.json").write_text(tokens.signer.jwks())
        jwks = (folder / "jwks.json").as_uri()
        cluster = KafkaCluster(
            1,
            _properties(folder, authority, jwks),
            listeners=PROTOCOLS,
            jvm_options=[
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}",
                # A line for each authentication and each request.
                "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.network.Selector=debug",
                "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug",
            ],
        )
        with cluster:
            for user, password in PASSWORDS.items():
                _alter_scram(cluster, user, password)
            client = signed("client", authority)
            yield Secured(cluster, folder, authority, client, tokens)


def _properties(folder: Path, authority: Identity, jwks: str) -> dict[str, object]:
    hosts = ("localhost", "127.0.0.1")
    servers = {
        "": signed("broker", authority, hosts=hosts),
        "listener.name.othername.": signed("other", authority, hosts=("other.example",)),
        "listener.name.expired.": signed("expired", authority, hosts=hosts, days=(-8, -7)),
    }
    found: dict[str, object] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
        "super.users": "User:ANONYMOUS",
        "delegation.token.secret.key": "of the test",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem,
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        # Failures are told at once: tests wait for each.
        "connection.failed.authentication.delay.ms": 0,
    }
    for prefix, identity in servers.items():
        path = folder / f"{prefix}server.pem"
        path.write_text(identity.key_pem() + identity.pem)
        found |= {f"{prefix}ssl.keystore.type": "PEM", f"{prefix}ssl.keystore.location": path}
    users = " ".join(f'user_{name}="{jaas_text(word)}"' for name, word in PASSWORDS.items())
    for listener, protocol in PROTOCOLS.items():
        if not protocol.startswith("SASL"):
            continue
        prefix = f"listener.name.{listener.lower()}."
        mechanisms = ("SCRAM-SHA-512",) if listener == "SCRAMONLY" else MECHANISMS
        found[f"{prefix}sasl.enabled.mechanisms"] = ",".join(mechanisms)
        for mechanism in mechanisms:
            one = f"{prefix}{mechanism.lower()}."
            module, options = "scram.ScramLoginModule", ""
            if mechanism == "PLAIN":
                module, options = "plain.PlainLoginModule", users
            elif mechanism == "OAUTHBEARER":
                module = "oauthbearer.OAuthBearerLoginModule"
                found[f"{one}sasl.server.callback.handler.class"] = _TOKEN_CHECK
            found[f"{one}sasl.jaas.config"] = f"{_MODULES}.{module} required {options};"
            if listener == "SHORT":
                found[f"{one}connections.max.reauth.ms"] = SESSION_MS
    return found


def _alter_scram(cluster: KafkaCluster, user: str, password: str | None) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        row: Any = UserScramCredentialDeletion(user, kind)
        if password is not None:
            how = ScramCredentialInfo(kind, 4096)
            row = UserScramCredentialUpsertion(user, how, password.encode())
        for future in admin.alter_user_scram_credentials([row]).values():
            future.result(30)


def confluent_write(config: dict[str, Any], topic: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer(config)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def confluent_read(config: dict[str, Any], topic: str, count: int) -> list[bytes]:
    """The first `count` values of partition 0."""
    errors: list[Any] = []
    consumer = confluent_kafka.Consumer(
        {"group.id": "second-client", "enable.auto.commit": False, "error_cb": errors.append}
        | config
    )
    values: list[bytes] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        until_s = time.monotonic() + 30
        while len(values) < count:
            assert time.monotonic() < until_s, errors[:3]
            for message in consumer.consume(count - len(values), timeout=0.2):
                assert message.error() is None, message.error()
                values.append(message.value())
    finally:
        consumer.close()
    return values
