"""Sets of security settings as jobs have them, for Java's client and for ours on one broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkkafka.client import Admin
from tests.real.secured import PASSWORDS, TOKEN_SECRETS, Secured, jaas_text
from tests.support.certificates import java_keystore, java_truststore, signed

SECURITY = "org.apache.kafka.common.security"
PROVIDER = "org.apache.kafka.common.config.provider"
OAUTH_HANDLER = f"{SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
STORE_PASSWORD, KEY_PASSWORD = "hush-store", "hush-own"
ODD_PASSWORD = "p${a:b}w"


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
    for name, own in (("jks", ""), ("own.jks", KEY_PASSWORD)):
        found = java_keystore(_new(folder, f"k-{name}"), "JKS", STORE_PASSWORD, keys, own)
        (folder / f"client.{name}").write_bytes(found)
    (folder / "client.pkcs12").write_bytes(secured.client.pkcs12(STORE_PASSWORD))
    (folder / "ca12.jks").write_bytes((folder / "ca.pkcs12").read_bytes())
    (folder / "client.pem").write_text(secured.client.key_pem() + secured.client.pem)
    (folder / "locked.pem").write_text(secured.client.key_pem("hush-pem") + secured.client.pem)
    stranger = signed("stranger")
    (folder / "stranger.pem").write_text(stranger.pem)
    (folder / "two.pem").write_text(stranger.pem + secured.authority.pem)
    spaced = _new(folder, "of the team") / "ca.pem"
    spaced.write_text(secured.authority.pem)
    (folder / "alice.password").write_text(PASSWORDS["alice"])
    return [
        *_tls(secured),
        *_refused_tls(secured),
        *_mtls(secured),
        *_users(secured),
        *_refused_users(secured),
        *_tokens(secured),
    ]


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
        "truststore: jks in lower case": store("ca.jks", "jks"),
        "truststore: PEM, two authorities": pem | {"ssl.truststore.location": f"{folder}/two.pem"},
        "truststore: a path with spaces": pem
        | {"ssl.truststore.location": f"{folder}/of the team/ca.pem"},
    }
    for name, settings in trust.items():
        yield Set(name, "TLS", settings)
    more = {
        "TLSv1.2,TLSv1.1,TLSv1": {"ssl.enabled.protocols": "TLSv1.2,TLSv1.1,TLSv1"},
        "TLSv1.3 only": {"ssl.enabled.protocols": "TLSv1.3"},
        "ssl.protocol=TLSv1.2": {"ssl.protocol": "TLSv1.2"},
        "a cipher suite of Java's": {
            "ssl.enabled.protocols": "TLSv1.2",
            "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        },
        "Java's engine factory": {
            "ssl.engine.factory.class": f"{SECURITY}.ssl.DefaultSslEngineFactory"
        },
        "cipher suites of TLSv1.3": {
            "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384"
        },
        "ssl.protocol, Java's default": {"ssl.protocol": "TLSv1.3"},
        "ssl.endpoint.identification.algorithm=HTTPS": {
            "ssl.endpoint.identification.algorithm": "HTTPS"
        },
        "client.dns.lookup": {"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"},
        "unused SASL settings with SSL": {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": _jaas("plain.PlainLoginModule", username="x", password="y"),
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
    yield Set("host names not verified", "OTHERNAME", pem | unnamed)


def _refused_tls(secured: Secured) -> Iterator[Set]:
    """What both clients have to turn away."""
    folder = secured.folder
    pem = {"ssl.truststore.location": f"{folder}/ca.pem", "ssl.truststore.type": "PEM"}
    jks = {"ssl.truststore.location": f"{folder}/ca.jks", "ssl.truststore.password": "wrong"}
    found = {
        "no truststore": ("TLS", {}),
        "another authority": ("TLS", pem | {"ssl.truststore.location": f"{folder}/stranger.pem"}),
        "a truststore that does not exist": (
            "TLS",
            pem | {"ssl.truststore.location": f"{folder}/none.pem"},
        ),
        "truststore: a wrong password": ("TLS", jks),
        "a certificate for another name": ("OTHERNAME", pem),
        "a certificate that has expired": ("EXPIRED", pem),
        "no client certificate, on a listener that requires one": ("MTLS", pem),
        "a keystore that cannot be opened, on a listener that does not request it": (
            "TLS",
            pem
            | {
                "ssl.keystore.location": f"{folder}/client.jks",
                "ssl.keystore.password": "wrong",
            },
        ),
    }
    for name, (listener, settings) in found.items():
        yield Set(name, listener, settings)


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
        "keystore: PEM file, encrypted key": {
            "ssl.keystore.location": f"{folder}/locked.pem",
            "ssl.keystore.type": "PEM",
            "ssl.key.password": "hush-pem",
        },
        "keystore: PKCS#12": store("client.pkcs12", "PKCS12"),
        "keystore: PKCS#12, ssl.key.password the same": store(
            "client.pkcs12", "PKCS12", STORE_PASSWORD
        ),
        "keystore: JKS": store("client.jks", "JKS"),
        "keystore: JKS, another key password": store("client.own.jks", "JKS", KEY_PASSWORD),
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
    odd = jaas_text(PASSWORDS["bob"])
    found = {
        "PLAIN": plain | by_plain,
        "SCRAM-SHA-256": scram | {"sasl.mechanism": "SCRAM-SHA-256"} | by_scram,
        "SCRAM-SHA-512": scram | by_scram,
        "PLAIN by ScramLoginModule": plain | by_scram,
        "SCRAM by PlainLoginModule": scram | by_plain,
        "a login module with options of another module": plain
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
        "a keystore that the listener does not request": scram
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
        "unused Kerberos settings": scram
        | by_scram
        | {
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
            "sasl.kerberos.min.time.before.relogin": "60000",
        },
        "unused OAUTHBEARER settings": scram
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
        "config.providers with a custom name": scram
        | {
            "config.providers": "hidden",
            "config.providers.hidden.class": f"{PROVIDER}.FileConfigProvider",
            "sasl.jaas.config": _jaas(
                "scram.ScramLoginModule",
                username="alice",
                password=f"${{hidden:{folder}/secrets.properties:alice}}",
            ),
        },
        "config.providers: DirectoryConfigProvider": scram
        | {
            "config.providers": "dir",
            "config.providers.dir.class": f"{PROVIDER}.DirectoryConfigProvider",
            "sasl.jaas.config": _jaas(
                "scram.ScramLoginModule",
                username="alice",
                password=f"${{dir:{folder}:alice.password}}",
            ),
        },
        "a password with quotes, spaces, = and \\ (PLAIN)": plain
        | {"sasl.jaas.config": _jaas("plain.PlainLoginModule", username="bob", password=odd)},
        "a password with quotes, spaces, = and \\ (SCRAM)": scram
        | {"sasl.jaas.config": _jaas("scram.ScramLoginModule", username="bob", password=odd)},
        "a delegation token": scram
        | {
            "sasl.jaas.config": _jaas("scram.ScramLoginModule", tokenauth="true", **_token(secured))
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
    moved = {"sasl.jaas.config": f"kafkashaded.{by_plain['sasl.jaas.config']}"}
    yield Set("Databricks: kafkashaded.…PlainLoginModule", "SASLTLS", plain | moved, java=False)
    yield Set("sessions that are renewed (KIP-368)", "SHORT", scram | by_scram)
    clear = {"sasl.mechanism": "PLAIN"} | by_plain
    yield Set("SASL_PLAINTEXT, SCRAM", "SCRAMONLY", {"sasl.mechanism": "SCRAM-SHA-512"} | by_scram)
    yield Set("SASL_PLAINTEXT", "SASLTEXT", clear)
    left = {"ssl.truststore.location": "/no/such/file.jks", "ssl.truststore.password": "x"}
    yield Set("SASL_PLAINTEXT with unused TLS settings", "SASLTEXT", clear | left)
    yield Set("PLAINTEXT with unused TLS and SASL settings", "CLIENT", scram | by_scram | left)


def _token(secured: Secured) -> dict[str, str]:
    with Admin(secured.ours("SASLTLS", "PLAIN")) as admin:
        token = admin.create_delegation_token()
    return {"username": token.token_id, "password": token.hmac_as_base64.reveal()}


def _refused_users(secured: Secured) -> Iterator[Set]:
    """What both clients have to turn away."""
    tls = {"ssl.truststore.location": f"{secured.folder}/ca.pem", "ssl.truststore.type": "PEM"}
    scram = tls | {"sasl.mechanism": "SCRAM-SHA-512"}
    user = {"username": "alice", "password": PASSWORDS["alice"]}
    by_scram = {"sasl.jaas.config": _jaas("scram.ScramLoginModule", **user)}
    wrong = {"sasl.jaas.config": _jaas("scram.ScramLoginModule", username="alice", password="no")}
    found = {
        "a wrong password": ("SASLTLS", scram | wrong),
        "no login": ("SASLTLS", scram),
        "a mechanism that the listener does not support": (
            "SCRAMONLY",
            by_scram | {"sasl.mechanism": "SCRAM-SHA-256"},
        ),
        "a login module that does not exist": (
            "SASLTLS",
            scram | {"sasl.jaas.config": "com.example.NoLoginModule required;"},
        ),
        "sasl.jaas.config without the semicolon": (
            "SASLTLS",
            scram | {"sasl.jaas.config": by_scram["sasl.jaas.config"].rstrip(";")},
        ),
    }
    for name, (listener, settings) in found.items():
        yield Set(name, listener, settings)


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
        "OAUTHBEARER: custom retry and refresh settings": endpoint
        | jaas
        | {
            "sasl.login.connect.timeout.ms": "5000",
            "sasl.login.read.timeout.ms": "5000",
            "sasl.login.retry.backoff.ms": "200",
            "sasl.login.refresh.buffer.seconds": "60",
            "sasl.login.refresh.window.jitter": "0.1",
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
