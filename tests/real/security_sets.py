"""Sets of security settings as jobs have them, tried by Java's client and by ours on one broker.

    python -m tests.real.security_sets docs/security-java.md

writes the table of the page. tests/real/test_security_sets.py runs the same and compares.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.find_spark_home import _find_spark_home

from sparkkafka.client import Admin
from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.jars import CONNECTOR_JARS, ensure_jars
from sparkkafka.testing.kafka.java import find_java
from tests.certificates import java_keystore, java_truststore
from tests.real.secured import PASSWORDS, TOKEN_SECRETS, Secured, secured_broker

SECURITY = "org.apache.kafka.common.security"
PROVIDER = "org.apache.kafka.common.config.provider"
OAUTH_HANDLER = f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
STORE_PASSWORD, KEY_PASSWORD = "hush-store", "hush-own"
ODD_PASSWORD = "p${a:b}w"
TIMEOUT_S = 20.0
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"


class Set(NamedTuple):
    """What a job says beside bootstrap.servers. `java`: whether Java's client can be asked, which
    lacks the classes of platforms."""

    name: str
    listener: str
    settings: Mapping[str, str]
    java: bool = True


def _jaas(module: str, **options: str) -> str:
    pairs = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{SECURITY}.{module} required {pairs};"


def sets(secured: Secured) -> list[Set]:
    """Writes the stores into the broker's folder."""
    folder = secured.folder
    secured.set_password("carol", ODD_PASSWORD)
    (folder / "secrets.properties").write_text(f"alice={PASSWORDS['alice']}\n")
    (folder / "token.jwt").write_text(secured.tokens.signer.token("alice"))
    for kind in ("JKS", "JCEKS", "PKCS12"):
        content = java_truststore(
            _new(folder, f"ca-{kind}"), kind, STORE_PASSWORD, secured.authority
        )
        (folder / f"ca.{kind.lower()}").write_bytes(content)
        keys = {"client": secured.client}
        for name, own in ((kind.lower(), ""), (f"own.{kind.lower()}", KEY_PASSWORD)):
            if kind == "PKCS12" and own:
                continue
            found = java_keystore(_new(folder, f"k-{name}"), kind, STORE_PASSWORD, keys, own)
            (folder / f"client.{name}").write_bytes(found)
    (folder / "ca12.jks").write_bytes((folder / "ca.pkcs12").read_bytes())
    (folder / "client.pem").write_text(secured.client.key_pem() + secured.client.pem)
    return [*_tls(secured), *_mtls(secured), *_users(secured), *_tokens(secured)]


def _new(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


def _tls(secured: Secured) -> Iterator[Set]:
    folder = secured.folder
    pem = {"ssl.truststore.location": f"{folder}/ca.pem", "ssl.truststore.type": "PEM"}

    def store(file: str, kind: str = "", password: str = STORE_PASSWORD) -> dict[str, str]:
        found = {"ssl.truststore.location": f"{folder}/{file}"}
        found |= {"ssl.truststore.type": kind} if kind else {}
        return found | ({"ssl.truststore.password": password} if password else {})

    trust = {
        "truststore: PEM file": pem,
        "truststore: PEM text": {
            "ssl.truststore.certificates": secured.authority.pem,
            "ssl.truststore.type": "PEM",
        },
        "truststore: JKS": store("ca.jks", "JKS"),
        "truststore: JKS, no type": store("ca.jks"),
        "truststore: JKS, no password": store("ca.jks", "JKS", ""),
        "truststore: JCEKS": store("ca.jceks", "JCEKS"),
        "truststore: PKCS#12": store("ca.pkcs12", "PKCS12"),
        "truststore: PKCS#12 in a file .jks, no type": store("ca12.jks"),
    }
    for name, settings in trust.items():
        yield Set(name, "TLS", settings)
    more = {
        "TLSv1.2,TLSv1.1,TLSv1": {"ssl.enabled.protocols": "TLSv1.2,TLSv1.1,TLSv1"},
        "TLSv1.3 alone": {"ssl.enabled.protocols": "TLSv1.3"},
        "ssl.protocol=TLSv1.2": {"ssl.protocol": "TLSv1.2"},
        "a cipher suite of Java's": {
            "ssl.enabled.protocols": "TLSv1.2",
            "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        },
        "Java's engine factory": {
            "ssl.engine.factory.class": f"{SECURITY}.ssl.DefaultSslEngineFactory"
        },
        "Java's algorithms": {
            "ssl.keymanager.algorithm": "SunX509",
            "ssl.trustmanager.algorithm": "PKIX",
            "ssl.secure.random.implementation": "SHA1PRNG",
        },
    }
    for name, settings in more.items():
        yield Set(name, "TLS", pem | settings)
    unnamed = {"ssl.endpoint.identification.algorithm": ""}
    yield Set("names not checked", "OTHERNAME", pem | unnamed)


def _mtls(secured: Secured) -> Iterator[Set]:
    folder, client = secured.folder, secured.client
    pem = {"ssl.truststore.location": f"{folder}/ca.pem", "ssl.truststore.type": "PEM"}

    def store(file: str, kind: str, key_password: str = "") -> dict[str, str]:
        found = {"ssl.keystore.location": f"{folder}/{file}", "ssl.keystore.type": kind}
        found["ssl.keystore.password"] = STORE_PASSWORD
        return found | ({"ssl.key.password": key_password} if key_password else {})

    text = {"ssl.keystore.certificate.chain": client.pem, "ssl.keystore.type": "PEM"}
    keys = {
        "keystore: PEM text": text | {"ssl.keystore.key": client.key_pem()},
        "keystore: PEM text, encrypted key": text
        | {"ssl.keystore.key": client.key_pem("hush-pem"), "ssl.key.password": "hush-pem"},
        "keystore: PEM file": {
            "ssl.keystore.location": f"{folder}/client.pem",
            "ssl.keystore.type": "PEM",
        },
        "keystore: PKCS#12": store("client.pkcs12", "PKCS12"),
        "keystore: PKCS#12, ssl.key.password the same": store(
            "client.pkcs12", "PKCS12", STORE_PASSWORD
        ),
        "keystore: JKS": store("client.jks", "JKS"),
        "keystore: JKS, another key password": store("client.own.jks", "JKS", KEY_PASSWORD),
        "keystore: JCEKS": store("client.jceks", "JCEKS"),
        "keystore: JCEKS, another key password": store("client.own.jceks", "JCEKS", KEY_PASSWORD),
    }
    for name, settings in keys.items():
        yield Set(name, "MTLS", pem | settings)


def _users(secured: Secured) -> Iterator[Set]:
    folder, word = secured.folder, PASSWORDS["alice"]
    tls = {"ssl.truststore.location": f"{folder}/ca.pem", "ssl.truststore.type": "PEM"}
    user = {"username": "alice", "password": word}
    plain = tls | {"sasl.mechanism": "PLAIN"}
    scram = tls | {"sasl.mechanism": "SCRAM-SHA-512"}
    by_plain = {"sasl.jaas.config": _jaas("plain.PlainLoginModule", **user)}
    by_scram = {"sasl.jaas.config": _jaas("scram.ScramLoginModule", **user)}
    found = {
        "PLAIN": plain | by_plain,
        "SCRAM-SHA-256": scram | {"sasl.mechanism": "SCRAM-SHA-256"} | by_scram,
        "SCRAM-SHA-512": scram | by_scram,
        "PLAIN by ScramLoginModule": plain | by_scram,
        "SCRAM by PlainLoginModule": scram | by_plain,
        "a login module with options that are not its own": plain
        | {"sasl.jaas.config": _jaas("plain.PlainLoginModule", **user, serviceName="kafka")},
        "sasl.jaas.config: single quotes, a comment, several lines": plain
        | {
            "sasl.jaas.config": (
                f"{SECURITY}.plain.PlainLoginModule /* users */ sufficient\n"
                f"  username = 'alice' // me\n  password='{word}'\n;\n"
            )
        },
        "sasl.jaas.config: escapes": plain
        | {"sasl.jaas.config": by_plain["sasl.jaas.config"].replace("alice", "\\141lice", 1)},
        "security.protocol in lower case": scram | by_scram | {"security.protocol": "sasl_ssl"},
        "a keystore that the listener does not ask for": scram
        | by_scram
        | {
            "ssl.keystore.location": f"{folder}/client.jks",
            "ssl.keystore.password": STORE_PASSWORD,
        },
        "sasl.login.class, Java's default": scram
        | by_scram
        | {"sasl.login.class": f"{SECURITY}.authenticator.DefaultLogin"},
        "sasl.client.callback.handler.class, Java's default": scram
        | by_scram
        | {
            "sasl.client.callback.handler.class": (
                f"{SECURITY}.authenticator.SaslClientCallbackHandler"
            )
        },
        "sasl.login.callback.handler.class, Java's default": scram
        | by_scram
        | {
            "sasl.login.callback.handler.class": (
                f"{SECURITY}.authenticator.AbstractLogin$DefaultLoginCallbackHandler"
            )
        },
        "left-overs of Kerberos": scram
        | by_scram
        | {
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
            "sasl.kerberos.min.time.before.relogin": "60000",
        },
        "left-overs of OAUTHBEARER": scram
        | by_scram
        | {
            "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
            "sasl.oauthbearer.jwks.endpoint.url": "https://id.example/keys",
            "sasl.login.refresh.window.factor": "0.8",
        },
        "a password with ${a:b} in it": scram
        | {
            "sasl.jaas.config": _jaas(
                "scram.ScramLoginModule", username="carol", password=ODD_PASSWORD
            )
        },
        "config.providers with a name of one's own": scram
        | {
            "config.providers": "hidden",
            "config.providers.hidden.class": f"{PROVIDER}.FileConfigProvider",
            "sasl.jaas.config": _jaas(
                "scram.ScramLoginModule",
                username="alice",
                password=f"${{hidden:{folder}/secrets.properties:alice}}",
            ),
        },
        "SCRAM with a truststore of JKS": by_scram
        | {
            "sasl.mechanism": "SCRAM-SHA-512",
            "ssl.truststore.location": f"{folder}/ca.jks",
            "ssl.truststore.password": STORE_PASSWORD,
        },
    }
    for name, settings in found.items():
        yield Set(name, "SASLTLS", settings)
    moved = {"sasl.jaas.config": f"kafkashaded.{by_scram['sasl.jaas.config']}"}
    yield Set("Databricks: kafkashaded.…ScramLoginModule", "SASLTLS", scram | moved, java=False)
    clear = {"sasl.mechanism": "PLAIN"} | by_plain
    yield Set("SASL_PLAINTEXT", "SASLTEXT", clear)
    left = {"ssl.truststore.location": "/no/such/file.jks", "ssl.truststore.password": "x"}
    yield Set("SASL_PLAINTEXT with left-overs of TLS", "SASLTEXT", clear | left)


def _tokens(secured: Secured) -> Iterator[Set]:
    ca = {"ssl.truststore.location": secured.authority_file}
    base = {"sasl.mechanism": "OAUTHBEARER", "ssl.truststore.type": "PEM"} | ca
    client = {"clientId": "alice", "clientSecret": TOKEN_SECRETS["alice"]}
    module = "oauthbearer.OAuthBearerLoginModule"
    https = ca | {"ssl.truststore.type": "PEM"}
    endpoint = base | {
        "sasl.oauthbearer.token.endpoint.url": secured.tokens.url,
        "sasl.login.callback.handler.class": OAUTH_HANDLER,
    }
    jaas = {"sasl.jaas.config": _jaas(module, **client, **https)}
    found = {
        "OAUTHBEARER: client id and secret": endpoint | jaas,
        "OAUTHBEARER: scope": endpoint
        | {"sasl.jaas.config": _jaas(module, **client, **https, scope="kafka")},
        "OAUTHBEARER: an extension": endpoint
        | {"sasl.jaas.config": _jaas(module, **client, **https, extension_traceId="1")},
        "OAUTHBEARER: URL-encoded header": endpoint
        | jaas
        | {"sasl.oauthbearer.header.urlencode": "true"},
        "OAUTHBEARER: client handler, Java's default": endpoint
        | jaas
        | {
            "sasl.client.callback.handler.class": (
                f"{SECURITY}.oauthbearer.internals.OAuthBearerSaslClientCallbackHandler"
            )
        },
        "OAUTHBEARER: a token in a file": base
        | {
            "sasl.oauthbearer.token.endpoint.url": (secured.folder / "token.jwt").as_uri(),
            "sasl.login.callback.handler.class": OAUTH_HANDLER,
            "sasl.jaas.config": _jaas(module),
        },
    }
    for name, settings in found.items():
        yield Set(name, "SASLTLS", settings)
    secured_name = f"{SECURITY}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    handler = "sasl.login.callback.handler.class"
    yield Set(
        "OAUTHBEARER: the handler's name before Kafka 3.4",
        "SASLTLS",
        endpoint | jaas | {handler: secured_name},
        java=False,
    )
    yield Set(
        "OAUTHBEARER: kafkashaded.…OAuthBearerLoginCallbackHandler",
        "SASLTLS",
        endpoint | jaas | {handler: f"kafkashaded.{secured_name}"},
        java=False,
    )
    strimzi = _jaas(
        module,
        **{
            "oauth.token.endpoint.uri": secured.tokens.url,
            "oauth.client.id": "alice",
            "oauth.client.secret": TOKEN_SECRETS["alice"],
            "oauth.ssl.truststore.location": secured.authority_file,
            "oauth.ssl.truststore.type": "PEM",
        },
    )
    strimzi_class = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
    given = base | {"sasl.jaas.config": strimzi, handler: strimzi_class}
    yield Set("OAUTHBEARER: Strimzi's handler", "SASLTLS", given, java=False)


# --- trying --------------------------------------------------------------------------------------


@contextmanager
def java_clients(secured: Secured) -> Iterator[Any]:
    """A JVM with the Kafka client that Spark's connector has; gives its view for py4j."""
    spark = Path(_find_spark_home()) / "jars"
    jars = [*ensure_jars(CONNECTOR_JARS), *spark.glob("*.jar")]
    urls = f"{secured.tokens.url},{(secured.folder / 'token.jwt').as_uri()}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            str(find_java()), "-Xmx256m", "-cp", ":".join(map(str, jars)),
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}",
            "py4j.GatewayServer", str(port),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    gateway = None
    try:
        end_s = time.monotonic() + 60
        while gateway is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
            except OSError:
                if time.monotonic() > end_s or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield gateway.jvm
    finally:
        if gateway is not None:
            gateway.close()
        process.kill()
        process.wait(30)


def java_connects(jvm: Any, settings: Mapping[str, str]) -> str:
    """ "" if it does, else what it says."""
    properties = jvm.java.util.Properties()
    for name, value in settings.items():
        properties.setProperty(name, value)
    for name in ("request.timeout.ms", "default.api.timeout.ms"):
        properties.setProperty(name, str(int(TIMEOUT_S * 1000)))
    admin = None
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        admin.describeCluster().nodes().get()
    except Exception as error:  # py4j's, around Java's
        cause = getattr(error, "java_exception", None)
        while cause is not None and cause.getCause() is not None:
            cause = cause.getCause()
        return str(cause or error)[:300]
    finally:
        if admin is not None:
            admin.close()
    return ""


def we_connect(settings: Mapping[str, str]) -> str:
    """The same of ours."""
    try:
        with Admin(dict(settings)) as admin:
            admin.describe_cluster(timeout_s=TIMEOUT_S)
    except KafkaError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Outcome(NamedTuple):
    """Why a client does not connect, "" if it does; `java` is None if it cannot be asked."""

    name: str
    java: str | None
    ours: str


def tried(secured: Secured) -> list[Outcome]:
    found = []
    with java_clients(secured) as jvm:
        for one in sets(secured):
            protocol = secured.ours(one.listener, "PLAIN")["security.protocol"]
            servers = secured.servers(one.listener)
            given = {"bootstrap.servers": servers, "security.protocol": protocol, **one.settings}
            java = java_connects(jvm, given) if one.java else None
            found.append(Outcome(one.name, java, we_connect(given)))
    return found


def table(outcomes: list[Outcome]) -> str:
    def word(said: str | None) -> str:
        return "has not the class" if said is None else "connects" if not said else "does not"

    rows = [f"| {row.name} | {word(row.java)} | {word(row.ours)} |\n" for row in outcomes]
    return "".join(["| settings | Java's client | pykafka |\n", "|---|---|---|\n", *rows])


def main() -> None:
    page = Path(sys.argv[1])
    with secured_broker() as secured:
        outcomes = tried(secured)
    for row in outcomes:
        print(row)
    text = page.read_text()
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + table(outcomes) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
