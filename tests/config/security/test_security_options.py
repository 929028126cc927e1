"""security.*, ssl.* and sasl.*: every name, the rules between them, and what they come to."""

from __future__ import annotations

import logging
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.config.client_settings import (
    parse_admin_settings,
    parse_consumer_settings,
    parse_producer_settings,
)
from sparkkafka.config.option_table import KAFKA, SECURITY, Status
from sparkkafka.config.options import (
    ClientOptions,
    parse_read_options,
)
from sparkkafka.config.parsed_options import without_unused_values
from sparkkafka.config.security.options import SecureSettings, SecurityOptions, secure_settings
from sparkkafka.config.security.settings import (
    AssertionSettings,
    KerberosSettings,
    OAuthSettings,
    SaslChoice,
    Store,
    TlsSettings,
    TokenMethod,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.frames import variables_of
from tests.support.options import parse_client_options

SERVERS = {"bootstrap.servers": "host:9092"}
MODULES = "org.apache.kafka.common.security"


pytestmark = pytest.mark.usefixtures("no_warnings_so_far")


def options(**given: Any) -> ClientOptions:
    """Names with underscores for dots."""
    return parse_client_options(SERVERS | {k.replace("_", "."): v for k, v in given.items()})


def secure(**given: Any) -> SecureSettings:
    parsed = options(**given)
    return secure_settings(parsed.security, parsed.bootstrap_servers)


def tls(**given: Any) -> TlsSettings:
    found = secure(security_protocol="SSL", **given).tls
    assert found is not None
    return found


def sasl(mechanism: str, **given: Any) -> SaslChoice:
    found = secure(security_protocol="SASL_SSL", sasl_mechanism=mechanism, **given).sasl
    assert found is not None
    return found


def oauth(mechanism: str = "OAUTHBEARER", **given: Any) -> OAuthSettings:
    found = sasl(mechanism, **given)
    assert found.mechanism == "OAUTHBEARER"
    assert found.oauth is not None
    return found.oauth


def jaas(module: str, **given: str) -> str:
    pairs = " ".join(f'{name}="{value}"' for name, value in given.items())
    return f"{MODULES}.{module} required {pairs};"


# --- names -----------------------------------------------------------------------------------

# SslConfigs, SaslConfigs and CommonClientConfigs of Kafka 4.1, for clients.
JAVA_NAMES = """
security.protocol security.providers ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url
"""


def test_every_name_of_java_is_there() -> None:
    assert set(JAVA_NAMES.split()) <= {row.name for row in KAFKA}


@pytest.mark.parametrize(
    "row", [row for row in SECURITY if row.status is Status.REFUSED], ids=lambda row: row.name
)
def test_refusals_say_what_to_do_instead(row: Any) -> None:
    spark = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", f"kafka.{row.name}": "hush"}
    for parse, given in (
        (parse_client_options, SERVERS | {row.name: "hush"}),
        (parse_read_options, spark),
    ):
        with pytest.raises(OptionError, match="is not supported") as caught:
            parse(given)
        assert row.doc in str(caught.value)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "row", [row for row in SECURITY if row.status is Status.IGNORED], ids=lambda row: row.name
)
def test_what_has_no_effect_is_said(row: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_client_options(SERVERS | {row.name: "hush"}).security == SecurityOptions()
    assert f"{row.name} has no effect: {row.doc}" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    "row", [row for row in SECURITY if row.status is Status.UNNEEDED], ids=lambda row: row.name
)
def test_what_is_not_needed_is_taken_quietly(row: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert parse_client_options(SERVERS | {row.name: "hush"}).security == SecurityOptions()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", f"option {row.name} is not needed: {row.doc}")
    ]


# Of the JVM connector's jobs: by the names of Kafka 2 to 4, and as Databricks moves them.
SHADES = ("", "kafkashaded.", "shadedmskiam.")


@pytest.mark.parametrize("shade", SHADES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.engine.factory.class", f"{MODULES}.ssl.DefaultSslEngineFactory"),
        ("sasl.login.class", f"{MODULES}.authenticator.DefaultLogin"),
        (
            "sasl.client.callback.handler.class",
            f"{MODULES}.authenticator.SaslClientCallbackHandler",
        ),
        (
            "sasl.login.callback.handler.class",
            f"{MODULES}.authenticator.AbstractLogin$DefaultLoginCallbackHandler",
        ),
    ],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_javas_defaults_may_be_spelled_out(
    shade: str, name: str, value: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = {"sasl_username": "alice", "sasl_password": "hush"}
    given = {name.replace(".", "_"): f" {shade}{value}"}
    assert sasl(mechanism, **user, **given) == sasl(mechanism, **user)
    assert not caplog.records


@pytest.mark.parametrize(
    "name",
    [
        "ssl.engine.factory.class",
        "sasl.login.class",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.jwt.retriever.class",
    ],
)
@pytest.mark.parametrize("value", ["com.example.Mine", "org.x.DefaultLoginHandler"])
def test_another_class_of_java_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name} must be .*, got '{value}'"):
        parse_client_options(SERVERS | {name: value})


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "scram.ScramLoginModule"), ("SCRAM-SHA-256", "plain.PlainLoginModule")],
)
def test_either_module_hands_over_a_user(mechanism: str, module: str) -> None:
    """As in Java."""
    found = sasl(mechanism, sasl_jaas_config=jaas(module, username="alice", password="hush"))
    assert found == SaslChoice(mechanism=mechanism, username="alice", password=Secret("hush"))


LEFT_OVERS = {
    "sasl_oauthbearer_token_endpoint_url": "https://id.example/hush",
    "sasl_oauthbearer_client_id": "me",
    "sasl_oauthbearer_client_secret": "hush",
    "sasl_oauthbearer_scope": "s",
    "sasl_kerberos_service_name": "kafka",
    "sasl_kerberos_keytab": "/hush",
    "sasl_kerberos_principal": "hush",
}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "AWS_MSK_IAM"])
def test_left_overs_that_java_never_looks_at_are_taken(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = {} if mechanism == "AWS_MSK_IAM" else {"sasl_username": "a", "sasl_password": "hush"}
    with caplog.at_level(logging.DEBUG):
        assert sasl(mechanism, **user, **LEFT_OVERS) == sasl(mechanism, **user)
    assert f"no effect with sasl.mechanism={mechanism}: sasl.oauthbearer.token.endpoint.url, " in (
        caplog.text
    )
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    assert "hush" not in caplog.text


@pytest.mark.parametrize("name", [row.name for row in SECURITY if row.secret])
def test_secrets_are_hidden(name: str) -> None:
    parsed = parse_client_options(SERVERS | {name: "hush ${env:X}"})
    assert "hush" not in f"{parsed!r} {parsed} {parsed.security!r} {parsed.security}"
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    kept = without_unused_values({f"kafka.{name}": "hush"})
    assert kept == {f"kafka.{name}": "hush"}  # it has to get to the executors


@pytest.mark.parametrize("name", ["username", "usernam"])
def test_an_attribute_cannot_be_set(name: str) -> None:
    with pytest.raises(FrozenInstanceError, match=f"field {name!r}"):
        setattr(SecurityOptions(), name, "alice")


def test_repr_shows_what_is_no_secret() -> None:
    shown = repr(options(sasl_username="alice", sasl_password="hush", ssl_key_location="/x"))
    assert "security=SecurityOptions(key_location='/x', username='alice', password=[hidden])" in (
        shown
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:hush@idp.example/x", "https://[hidden]@idp.example/x"),
        ("https://u:hu/sh?hush@idp.example/x", "https://[hidden]@idp.example/x"),
        ("https://idp.example/x?key=hush", "https://idp.example/x?[hidden]"),
        ("https://idp.example/x?key=hush@hush#hush", "https://[hidden]@hush"),
        ("https://idp.example/x#hush", "https://idp.example/x"),
        ("https:idp.example/x?key=hush", "https:idp.example/x"),
        ("file:/tmp/token", "file:/tmp/token"),
        ("https://idp.example:1/${env:X}", "https://idp.example:1/${env:X}"),
    ],
)
def test_repr_hides_what_may_be_secret_in_a_url(url: str, shown: str) -> None:
    parsed = parse_client_options(
        SERVERS
        | {
            "security.protocol": "${env:X}",
            "sasl.oauthbearer.token.endpoint.url": url.replace("@hush#", "@#"),
        }
    )
    assert f"oauth_token_endpoint_url='{shown.removesuffix('hush')}'" in repr(parsed)
    assert "hush" not in repr(parsed)


def test_no_variable_of_a_frame_has_what_may_be_secret_in_a_url() -> None:
    given = {"sasl.oauthbearer.token.endpoint.url": "https://idp.example/x?key=hush"}
    given |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    parsed = parse_client_options(SERVERS | given | {"sasl.oauthbearer.client.id": "${env:NO}"})
    with pytest.raises(OptionError, match="no such environment variable") as caught:
        secure_settings(parsed.security)
    assert "hush" not in variables_of(caught.value)
    whole = replace(parsed.security, oauth_client_id="")
    with pytest.raises(OptionError, match="needs a client id") as caught:
        secure_settings(whole)
    assert "hush" not in variables_of(caught.value)


@pytest.mark.parametrize(
    ("name", "alias"), [(row.alias_of, row.name) for row in SECURITY if row.alias_of]
)
def test_librdkafkas_names_mean_the_same(name: str, alias: str) -> None:
    value = "PLAIN" if "mechanism" in name else "some ${env:X}"
    by_name, by_alias = (parse_client_options(SERVERS | {key: value}) for key in (name, alias))
    assert by_name.security == by_alias.security != SecurityOptions()
    for both in ({name: value, alias: value}, {alias: value, name: value}):
        with pytest.raises(OptionError, match="are two names of one setting: remove one") as caught:
            parse_client_options(SERVERS | both)
        assert name in str(caught.value)
        assert alias in str(caught.value)


def test_all_clients_and_spark_have_them() -> None:
    given = {"security.protocol": "ssl", "ssl.ca.location": "/ca.pem"}
    spark = {f"kafka.{name}": value for name, value in (given | SERVERS).items()}
    group = {"group.id": "g"}
    found = [
        parse_client_options(SERVERS | given),
        parse_consumer_settings(SERVERS | given | group).client,
        parse_producer_settings(SERVERS | given).client,
        parse_admin_settings(SERVERS | given),
        parse_read_options({"subscribe": "t", **spark}).client,
    ]
    assert {row.security for row in found} == {
        SecurityOptions(protocol="SSL", truststore_location="/ca.pem")
    }


PROVIDERS = {
    "config.providers": "vault",
    "config.providers.vault.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


def test_references_by_the_names_of_config_providers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECW_VALUE", "hush")
    given = SERVERS | PROVIDERS | {"sasl.password": "${vault:SECW_VALUE}"}
    given |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
    spark = {"subscribe": "t"} | {f"kafka.{name}": value for name, value in given.items()}
    for options in (
        parse_client_options(given),
        parse_read_options(without_unused_values(spark)).client,
    ):
        found = secure_settings(options.security).sasl
        assert found is not None
        assert found.password == Secret("hush")
    assert not caplog.records
    given |= {"config.providers.vault.class": "com.example.Vault"}
    with pytest.raises(OptionError, match=r"sasl\.password refers to the provider vault of"):
        parse_client_options(given)
    without = SERVERS | {"config.providers": "x", "sasl.password": "hush-hush"}
    with pytest.raises(OptionError, match="is not set") as caught:
        parse_client_options(without)
    assert "hush-hush" not in variables_of(caught.value).replace(repr(without), "")
    parse_client_options(SERVERS | PROVIDERS | {"config.providers.vault.param.x": "hush"})
    assert "config.providers.NAME.param.KEY has no effect" in caplog.text
    assert "hush" not in caplog.text


def test_a_password_that_looks_like_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    found = sasl("PLAIN", sasl_username="a", sasl_password="${hush:hush}")
    assert found.password == Secret("${hush:hush}")
    assert "sasl.password has a ${…:…} of no provider that is set up: it is used" in caplog.text
    assert "hush" not in caplog.text
    text = jaas("plain.PlainLoginModule", username="a", password="${hush:hush}")
    assert sasl("PLAIN", sasl_jaas_config=text) == found


# --- TLS -------------------------------------------------------------------------------------


def test_plaintext_is_neither() -> None:
    assert secure() == (None, None)


def test_stores() -> None:
    assert tls() == TlsSettings()
    assert tls(
        ssl_truststore_location=" /ca.p12 ",
        ssl_truststore_password=" hush ",
        ssl_keystore_location="/me.p12",
        ssl_keystore_password="hush2",
        ssl_key_password="hush3",
    ) == TlsSettings(
        truststore=Store("ssl.truststore.location", "/ca.p12", password=Secret(" hush ")),
        certificates=Store("ssl.keystore.location", "/me.p12", password=Secret("hush2")),
        key=Store("ssl.keystore.location", "/me.p12", password=Secret("hush2")),
        key_password=Secret("hush3"),
    )
    assert tls(
        ssl_truststore_certificates="CA",
        ssl_keystore_certificate_chain="CHAIN",
        ssl_keystore_key="KEY",
    ) == TlsSettings(
        truststore=Store("ssl.truststore.certificates", text=Secret("CA")),
        certificates=Store("ssl.keystore.certificate.chain", text=Secret("CHAIN")),
        key=Store("ssl.keystore.key", text=Secret("KEY")),
    )


def test_stores_by_librdkafkas_names() -> None:
    """Messages name what was given."""
    found = tls(
        ssl_ca_location="/ca.pem",
        ssl_certificate_location="/me.pem",
        ssl_key_location="/key.pem",
        ssl_key_password="hush",
    )
    assert found == TlsSettings(
        truststore=Store("ssl.ca.location", "/ca.pem"),
        certificates=Store("ssl.certificate.location", "/me.pem"),
        key=Store("ssl.key.location", "/key.pem"),
        key_password=Secret("hush"),
    )
    mixed = tls(ssl_certificate_pem="CHAIN", ssl_key_location="/key.pem")
    assert mixed.certificates == Store("ssl.certificate.pem", text=Secret("CHAIN"))
    assert mixed.key == Store("ssl.key.location", "/key.pem")


def test_how_much_is_verified(caplog: pytest.LogCaptureFixture) -> None:
    assert (tls().verify, tls().check_hostname) == (True, True)
    assert not caplog.records
    assert not tls(ssl_endpoint_identification_algorithm="").check_hostname
    assert "name is not in their certificate" in caplog.text
    assert not tls(ssl_endpoint_identification_algorithm="None").check_hostname
    assert tls(ssl_endpoint_identification_algorithm="HTTPS").check_hostname
    assert not tls(enable_ssl_certificate_verification="False").verify


def test_versions_and_ciphers() -> None:
    assert tls(ssl_enabled_protocols="TLSv1.3").versions == ("TLSv1.3",)
    assert tls(ssl_enabled_protocols="TLSv1.2, TLSv1.3").versions == ("TLSv1.2", "TLSv1.3")
    assert tls(ssl_cipher_suites="A_B,C-D:E").cipher_suites == ("A_B", "C-D", "E")
    assert tls(ssl_cipher_suites="").cipher_suites == ()
    with pytest.raises(OptionError, match=r"TLSv1\.2, TLSv1\.3, got 'TLSv1\.1': TLS before 1\.2"):
        tls(ssl_enabled_protocols="TLSv1.1")
    with pytest.raises(OptionError, match=r"TLSv1\.2, TLSv1\.3, got 'TLSv1\.2,TLSv2'$"):
        tls(ssl_enabled_protocols="TLSv1.2,TLSv2")


def test_broken_versions_beside_safe_ones_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert tls(ssl_enabled_protocols="TLSv1.2").versions == ("TLSv1.2",)
    assert not caplog.records
    assert tls(ssl_enabled_protocols="TLSv1.2,TLSv1.1,TLSv1").versions == ("TLSv1.2",)
    assert (
        "ssl.enabled.protocols has TLSv1.1, TLSv1, which attackers can break: only TLSv1.2 is used"
        in (caplog.text)
    )


def test_spark_shows_a_key_of_pem(caplog: pytest.LogCaptureFixture) -> None:
    """Its redaction knows other words."""
    pem = {"ssl.keystore.certificate.chain": "C", "security.protocol": "SSL"}
    given = SERVERS | pem | {"ssl.keystore.key": "hush"}
    spark = {f"kafka.{name}": value for name, value in given.items()} | {"subscribe": "t"}
    parse_client_options(given)  # no Spark
    parse_read_options(spark | {"kafka.ssl.keystore.key": "${env:X}"})
    assert not caplog.records
    parse_read_options(spark)
    assert (
        "kafka.ssl.keystore.key is shown by Spark's plans, UI and event log unless spark.red"
        in (caplog.text)
    )
    assert "hush" not in caplog.text


BOTH = "exclude each other"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl_truststore_location": "a", "ssl_truststore_certificates": "b"}, BOTH),
        ({"ssl_ca_location": "a", "ssl_ca_pem": "b"}, "ssl.ca.location and ssl.ca.pem exclude"),
        ({"ssl_keystore_location": "a", "ssl_keystore_key": "b"}, BOTH),
        ({"ssl_keystore_location": "a", "ssl_certificate_location": "b"}, BOTH),
        ({"ssl_key_location": "a", "ssl_key_pem": "b", "ssl_certificate_pem": "c"}, BOTH),
        ({"ssl_truststore_password": "hush"}, "ssl.truststore.password is set, and"),
        ({"ssl_keystore_password": "hush"}, "ssl.keystore.location is not"),
        ({"ssl_keystore_key": "hush"}, "ssl.keystore.certificate.chain or ssl.certificate"),
        ({"ssl_keystore_certificate_chain": "a"}, "ssl.keystore.key or ssl.key.location is not"),
        ({"ssl_key_password": "hush"}, "ssl.key.password is set, and"),
    ],
)
def test_conflicts_of_stores(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        tls(**given)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


# --- user and password -----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users(mechanism: str) -> None:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    expected = SaslChoice(mechanism=mechanism, username="alice", password=Secret(" hush "))
    assert sasl(mechanism, sasl_username="alice", sasl_password=" hush ") == expected
    text = jaas(module, username="alice", password=" hush ")
    assert sasl(mechanism.lower(), sasl_jaas_config=text) == expected
    assert "hush" not in repr(expected)


def test_delegation_tokens() -> None:
    text = jaas("scram.ScramLoginModule", username="id", password="hmac", tokenauth="true")
    assert sasl("SCRAM-SHA-256", sasl_jaas_config=text).token_auth


PLAIN_JAAS = jaas("plain.PlainLoginModule", username="alice", password="hush")


def krb5(**options: str) -> str:
    pairs = "".join(f' {name}="{value}"' for name, value in options.items())
    return f"com.sun.security.auth.module.Krb5LoginModule required{pairs};"


KEYTAB = {"useKeyTab": "true", "storeKey": "true", "keyTab": "file:/k", "principal": "me@R"}
BY_KEYTAB = KerberosSettings(principal="me@R", keytab="/k")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sasl_jaas_config": krb5(**KEYTAB)}, BY_KEYTAB),
        ({"sasl_kerberos_keytab": "/k", "sasl_kerberos_principal": "me@R"}, BY_KEYTAB),
        (
            {"sasl_jaas_config": krb5(**KEYTAB, useTicketCache="true", ticketCache="/c")},
            replace(BY_KEYTAB, ticket_cache="/c", prefer_cache=True),
        ),
        (
            {"sasl_jaas_config": krb5(useTicketCache="true", serviceName="bus")},
            KerberosSettings(service_name="bus", prefer_cache=True),
        ),
        (
            {"sasl_kerberos_service_name": "bus", "sasl_oauthbearer_scope": "left over"},
            KerberosSettings(service_name="bus", prefer_cache=True),
        ),
    ],
)
def test_whose_ticket(given: dict[str, str], expected: KerberosSettings) -> None:
    choice = sasl("GSSAPI", **given)
    assert choice == SaslChoice(mechanism="GSSAPI", username=expected.principal, kerberos=expected)
    if "sasl_jaas_config" in given:  # Java's mechanism, if none is said
        assert secure(security_protocol="SASL_SSL", **given).sasl == choice


@pytest.mark.parametrize(
    ("mechanism", "given", "message"),
    [
        ("PLAIN", {"sasl_jaas_config": PLAIN_JAAS, "sasl_username": "bob"}, BOTH),
        ("PLAIN", {"sasl_jaas_config": PLAIN_JAAS, "sasl_password": "hush"}, BOTH),
        ("OAUTHBEARER", {"sasl_jaas_config": PLAIN_JAAS}, "needs OAuthBearerLoginModule"),
        ("PLAIN", {"sasl_username": "alice"}, "needs a password"),
        ("PLAIN", {"sasl_password": "hush"}, "needs a user"),
        ("PLAIN", {}, "set sasl.username and sasl.password"),
        ("PLAIN", {"sasl_jaas_config": "hush"}, "sasl.jaas.config cannot be read"),
        ("PLAIN", {"sasl_jaas_config": jaas("x.HushHush")}, "a login module that is not supported"),
        ("PLAIN", {"sasl_jaas_config": jaas("x.Krb5LoginModule")}, "needs PlainLoginModule"),
        ("GSSAPI", {"sasl_jaas_config": PLAIN_JAAS}, "needs Krb5LoginModule"),
        ("GSSAPI", {"sasl_jaas_config": krb5()}, "would ask for a password: add useKeyTab=true"),
        ("GSSAPI", {"sasl_jaas_config": krb5(useKeyTab="true")}, "without keyTab: name the file"),
        (
            "GSSAPI",
            {"sasl_jaas_config": krb5(useKeyTab="true", keyTab="/k")},
            "set principal in sasl.jaas.config",
        ),
        ("GSSAPI", {"sasl_kerberos_keytab": "/k"}, "set sasl.kerberos.principal"),
        (
            "GSSAPI",
            {
                "sasl_jaas_config": krb5(useTicketCache="true", serviceName="a"),
                "sasl_kerberos_service_name": "b",
            },
            "sasl.kerberos.service.name=b, and sasl.jaas.config has serviceName=a: remove one",
        ),
        (
            "GSSAPI",
            {"sasl_jaas_config": krb5(useTicketCache="true"), "sasl_kerberos_principal": "me"},
            "sasl.kerberos.principal and sasl.jaas.config exclude each other",
        ),
        ("GSSAPI", {"sasl_password": "hush"}, "sasl.password is not for sasl.mechanism=GSSAPI"),
        (
            "GSSAPI",
            {"sasl_login_callback_handler_class": "my.module:token"},
            "is not for sasl.mechanism=GSSAPI",
        ),
        ("NTLM", {}, "sasl.mechanism must be one of PLAIN"),
        (
            "PLAIN",
            {"sasl_username": "a", "sasl_password": "hush", "sasl_oauthbearer_token": "hush"},
            "sasl.oauthbearer.token is for OAUTHBEARER",
        ),
        (
            "SCRAM-SHA-512",
            {
                "sasl_login_callback_handler_class": "software.amazon.msk.auth.iam."
                "IAMOAuthBearerLoginCallbackHandler"
            },
            "sasl.login.callback.handler.class is for OAUTHBEARER",
        ),
        ("OAUTHBEARER", {"sasl_username": "alice"}, "sasl.username is for PLAIN and SCRAM"),
    ],
)
def test_faults_of_users(mechanism: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        sasl(mechanism, **given)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value).lower()


def test_no_mechanism() -> None:
    """Java would take GSSAPI."""
    with pytest.raises(OptionError, match=r"needs sasl\.mechanism: set it to one of PLAIN"):
        secure(security_protocol="SASL_SSL")
    with pytest.raises(OptionError, match=r"set it to PLAIN, as sasl\.jaas\.config says"):
        secure(security_protocol="SASL_SSL", sasl_jaas_config=PLAIN_JAAS)
    in_spark = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SASL_SSL"}
    with pytest.raises(OptionError, match=r"In Spark these names begin with kafka\.$"):
        parse_read_options(in_spark | {"subscribe": "t"})


def test_what_the_protocol_has_no_use_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    options(ssl_ca_location="/x", sasl_mechanisms="PLAIN", sasl_password="hush")
    assert "ssl.ca.location: no effect with security.protocol=PLAINTEXT; set it to SSL" in (
        caplog.text
    )
    assert "sasl.mechanisms, sasl.password: no effect" in caplog.text
    assert "hush" not in caplog.text


def test_a_password_in_the_clear_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "hush"}
    options(security_protocol="SASL_SSL", **given)
    assert not caplog.records
    options(security_protocol="SASL_PLAINTEXT", **given)
    assert "sends the password of PLAIN in the clear" in caplog.text


# --- tokens ----------------------------------------------------------------------------------

URL = "https://id.example/token"
CLIENT = {"clientId": "me", "clientSecret": "hush"}
OAUTH_MODULE = "oauthbearer.OAuthBearerLoginModule"


def test_client_credentials() -> None:
    expected = OAuthSettings(
        method=TokenMethod.CLIENT_CREDENTIALS,
        token_endpoint_url=URL,
        client_id="me",
        client_secret=Secret("hush"),
        scope="s",
        extensions=(("logicalCluster", "lkc-1"),),
        tls=TlsSettings(truststore=Store("ssl.truststore.location in sasl.jaas.config")),
    )
    url = {"sasl_oauthbearer_token_endpoint_url": URL}
    text = jaas(OAUTH_MODULE, **CLIENT, scope="s", extension_logicalCluster="lkc-1")
    handler = f"{MODULES}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    assert oauth(**url, sasl_jaas_config=text) == expected
    assert (
        oauth(**url, sasl_jaas_config=text, sasl_login_callback_handler_class=handler) == expected
    )
    new = {
        "sasl_oauthbearer_client_credentials_client_id": "me",
        "sasl_oauthbearer_client_credentials_client_secret": "hush",
        "sasl_oauthbearer_scope": "s",
    }
    old = {
        "sasl_oauthbearer_method": "OIDC",
        "sasl_oauthbearer_client_id": "me",
        "sasl_oauthbearer_client_secret": "hush",
        "sasl_oauthbearer_scope": "s",
        "sasl_oauthbearer_extensions": "logicalCluster=lkc-1",
    }
    assert oauth(**url, **old) == expected
    extended = jaas(OAUTH_MODULE, extension_logicalCluster="lkc-1")
    assert oauth(**url, **new, sasl_jaas_config=extended) == expected
    assert "hush" not in repr(expected)


def test_times_and_authorities_of_the_endpoint() -> None:
    found = oauth(
        sasl_oauthbearer_token_endpoint_url=URL,
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret="hush",
        sasl_login_connect_timeout_ms="1",
        sasl_login_read_timeout_ms="2",
        sasl_login_retry_backoff_ms="3",
        sasl_login_retry_backoff_max_ms="4",
        sasl_oauthbearer_header_urlencode="true",
        https_ca_location="/ca.pem",
        ssl_ca_location="/brokers.pem",
    )
    assert (found.connect_timeout_ms, found.read_timeout_ms) == (1, 2)
    assert (found.retry_backoff_ms, found.retry_backoff_max_ms) == (3, 4)
    assert found.header_urlencode
    assert found.tls == TlsSettings(truststore=Store("https.ca.location", "/ca.pem"))


def a_token() -> str:
    return "t"


def test_other_ways_to_a_token() -> None:
    assert oauth(sasl_oauthbearer_token="t").method == TokenMethod.GIVEN_TOKEN
    assert oauth(sasl_jaas_config=jaas(OAUTH_MODULE, token="t")).token == Secret("t")
    for url in ("file:/a/b", "file:///a/b", "file://host/a/b"):
        found = oauth(sasl_oauthbearer_token_endpoint_url=url)
        assert (found.method, found.token_path) == (TokenMethod.TOKEN_FILE, "/a/b")
    by_name = oauth(sasl_login_callback_handler_class="my.module:token")
    assert (by_name.method, by_name.callback) == (TokenMethod.CALLBACK, "my.module:token")
    assert oauth(sasl_login_callback_handler_class=a_token).callback is a_token


BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def test_an_assertion_instead_of_a_secret() -> None:
    given = {
        "sasl_oauthbearer_token_endpoint_url": URL,
        "sasl_oauthbearer_assertion_private_key_file": "/key.pem",
        "sasl_oauthbearer_assertion_private_key_passphrase": "hush",
        "sasl_oauthbearer_assertion_algorithm": "ES256",
        "sasl_oauthbearer_assertion_template_file": "/template.json",
        "sasl_oauthbearer_assertion_claim_iss": "me",
        "sasl_oauthbearer_assertion_claim_exp_seconds": "5",
        "sasl_oauthbearer_assertion_claim_nbf_seconds": "6",
        "sasl_oauthbearer_assertion_claim_jti_include": "true",
        "sasl_oauthbearer_scope": "kafka",
    }
    expected = AssertionSettings(
        key=Store("sasl.oauthbearer.assertion.private.key.file", "/key.pem"),
        passphrase=Secret("hush"),
        template=Store("sasl.oauthbearer.assertion.template.file", "/template.json"),
        algorithm="ES256",
        claims=(("iss", "me"),),
        exp_s=5,
        nbf_s=6,
        include_jti=True,
    )
    retriever = f"{MODULES}.oauthbearer.JwtBearerJwtRetriever"
    for way in (
        {"sasl_oauthbearer_jwt_retriever_class": retriever},
        {"sasl_oauthbearer_grant_type": BEARER},
    ):
        found = oauth(**given, **way)
        assert (found.method, found.assertion, found.scope) == (
            TokenMethod.CLIENT_CREDENTIALS, expected, "kafka"
        )  # fmt: skip
        assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "an assertion needs sasl.oauthbearer.assertion.private.key.file (or "),
        (
            {
                "sasl_oauthbearer_assertion_file": "/a",
                "sasl_oauthbearer_assertion_claim_sub": "hush",
            },
            "sasl.oauthbearer.assertion.file and sasl.oauthbearer.assertion.claim.sub exclude",
        ),
        (
            {
                "sasl_oauthbearer_assertion_file": "/a",
                "sasl_oauthbearer_assertion_private_key_file": "/k",
            },
            "exclude each other: an assertion comes from a file, or is signed here",
        ),
        (
            {"sasl_oauthbearer_assertion_file": "/a", "sasl_oauthbearer_client_id": "me"},
            "sasl.oauthbearer.client.id (or clientId and clientSecret in sasl.jaas.config) is not",
        ),
        (
            {
                "sasl_oauthbearer_assertion_file": "/a",
                "sasl_oauthbearer_grant_type": "client_credentials",
            },
            "sasl.oauthbearer.assertion.file is for a grant with an assertion: set sasl.oauth",
        ),
    ],
)
def test_faults_of_assertions(given: dict[str, str], message: str) -> None:
    given = {
        "sasl_oauthbearer_token_endpoint_url": URL,
        "sasl_oauthbearer_grant_type": BEARER,
    } | given
    with pytest.raises(OptionError) as caught:
        oauth(**given)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


ALLOWED = {"enable_sasl_oauthbearer_unsecure_jwt": "true"}


def test_unsecured_tokens_of_java(caplog: pytest.LogCaptureFixture) -> None:
    text = jaas(
        OAUTH_MODULE,
        unsecuredLoginStringClaim_sub="alice",
        unsecuredLoginListClaim_scope="|a|b",
        unsecuredLoginNumberClaim_level="3",
        unsecuredLoginLifetimeSeconds="60",
        unsecuredLoginExtension_traceId="1",
        extension_other="2",
    )
    handler = f"{MODULES}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
    given = ALLOWED | {"sasl_jaas_config": text}
    for more in ({}, {"sasl_login_callback_handler_class": handler}):
        found = oauth(**given, **more)
        assert (found.method, found.unsecured_life_s) == (TokenMethod.UNSECURED, 60)
        assert found.unsecured_claims == (("sub", "alice"), ("scope", ("a", "b")), ("level", 3))
        assert found.extensions == (("other", "2"), ("traceId", "1"))
    assert "the token has no signature, and anybody can make one" in caplog.text
    who = {"unsecuredLoginPrincipalClaimName": "who", "unsecuredLoginStringClaim_who": "a"}
    text = jaas(OAUTH_MODULE, **who)
    assert oauth(**ALLOWED, sasl_jaas_config=text).unsecured_claims == (("who", "a"),)


def test_unsecured_tokens_of_librdkafka() -> None:
    words = 'principal=alice scope=a,b lifeSeconds=60 extension_x="y z"'
    found = oauth(**ALLOWED, sasl_oauthbearer_config=words)
    assert found.unsecured_claims == (("sub", "alice"), ("scope", ("a", "b")))
    assert (found.unsecured_life_s, found.extensions) == (60, (("x", "y z"),))
    # The permission alone asks for nothing.
    assert oauth(**ALLOWED, sasl_oauthbearer_token="t").method == TokenMethod.GIVEN_TOKEN


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sasl_oauthbearer_config": "principal=a"}, "sasl.oauthbearer.config asks for an unsec"),
        (ALLOWED | {"sasl_oauthbearer_config": "hush"}, "is name=value name=value"),
        (ALLOWED | {"sasl_oauthbearer_config": "hush=a"}, "has names that are not known"),
        (ALLOWED | {"sasl_oauthbearer_config": "scope=hush"}, "needs a principal"),
        (ALLOWED | {"sasl_oauthbearer_config": "principal=a lifeSeconds=hush"}, "must be a number"),
        (
            ALLOWED | {"sasl_jaas_config": jaas(OAUTH_MODULE, unsecuredLoginStringClaim_x="hush")},
            "needs a principal: unsecuredLoginStringClaim_sub",
        ),
        (
            ALLOWED | {"sasl_jaas_config": jaas(OAUTH_MODULE, unsecuredLoginHush="hush")},
            "an option unsecuredLogin… that Java does not know",
        ),
        (
            ALLOWED | {"sasl_oauthbearer_token": "hush", "sasl_oauthbearer_config": "principal=a"},
            "sasl.oauthbearer.token and enable.sasl.oauthbearer.unsecure.jwt exclude each other",
        ),
        (ALLOWED, "needs a token"),
    ],
)
def test_faults_of_unsecured_tokens(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        oauth(**given)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value).lower()


def test_an_endpoint_in_the_clear_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = {"sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": "hush"}
    given |= {"sasl_oauthbearer_token_endpoint_allow_http": "true"}
    assert oauth(sasl_oauthbearer_token_endpoint_url=URL, **given).allow_http
    assert not caplog.records
    oauth(sasl_oauthbearer_token_endpoint_url="HTTP://id.example/token", **given)
    assert "is not https: anyone on the network path can read the client's secret" in caplog.text


MSK = "b-1.x.y1.c2.kafka.eu-west-1.amazonaws.com:9198"


def amazon(**options: str) -> OAuthSettings:
    return oauth("AWS_MSK_IAM", sasl_jaas_config=jaas("IAMLoginModule", **options))


def test_amazon() -> None:
    """Every option of Amazon's library for Java."""
    handler = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    text = jaas(
        "software.amazon.msk.auth.iam.IAMLoginModule",
        awsProfileName="p",
        awsRoleArn="r",
        awsRoleSessionName="s",
        awsRoleExternalId="e",
        awsRoleAccessKeyId="k",
        awsRoleSecretAccessKey="hush",
        awsRoleSessionToken="hush-2",
        awsStsRegion="us-east-1",
        awsShouldUseFips="true",
        awsAddDefaultProviders="false",
        awsDebugCreds="true",
        awsMaxRetries="7",
        awsMaxBackOffTimeMs="50",
    )
    found = oauth(
        "AWS_MSK_IAM",
        bootstrap_servers=f"{MSK},{MSK.replace('b-1', 'b-2')}",
        sasl_jaas_config=text,
        sasl_client_callback_handler_class=handler,
    )
    assert found == OAuthSettings(
        method=TokenMethod.AWS_MSK_IAM,
        aws_region="eu-west-1",
        aws_profile="p",
        aws_role_arn="r",
        aws_role_session_name="s",
        aws_role_external_id="e",
        aws_role_access_key_id="k",
        aws_role_secret_access_key=Secret("hush"),
        aws_role_session_token=Secret("hush-2"),
        aws_sts_region="us-east-1",
        aws_use_fips=True,
        aws_max_retries=7,
        retry_backoff_ms=50,
        retry_backoff_max_ms=50,
    )
    assert "hush" not in repr(found)
    login = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
    other = oauth(sasl_login_callback_handler_class=login, sasl_jaas_config=jaas(OAUTH_MODULE))
    assert (other.method, other.aws_region) == (TokenMethod.AWS_MSK_IAM, "")
    serverless = "boot-x.c1.kafka-serverless.us-east-2.amazonaws.com:9098"
    assert oauth("AWS_MSK_IAM", bootstrap_servers=serverless).aws_region == "us-east-2"


KEYS = {"awsRoleAccessKeyId": "k", "awsRoleSecretAccessKey": "hush"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"awsRoleExternalId": "hush"}, "awsRoleExternalId in sasl.jaas.config is for a role"),
        ({"awsRoleSessionName": "s"}, "is for a role: awsRoleArn is missing"),
        (KEYS, "awsRoleAccessKeyId in sasl.jaas.config is for a role"),
        ({"awsRoleArn": "r", "awsRoleAccessKeyId": "k"}, "needs awsRoleSecretAccessKey, too"),
        ({"awsRoleArn": "r", "awsRoleSecretAccessKey": "hush"}, "needs awsRoleAccessKeyId, too"),
        (
            {"awsRoleArn": "r", "awsRoleSessionToken": "hush"},
            "awsRoleSessionToken in sasl.jaas.config needs awsRoleAccessKeyId and awsRoleSecretAcc",
        ),
        ({"awsRoleARN": "hush"}, "unknown for AWS_MSK_IAM; use awsProfileName, awsRoleArn"),
        ({"awsRoleArn": ""}, "awsRoleArn in sasl.jaas.config is empty"),
        ({"awsRoleArn": "r", "awsAddDefaultProviders": "true"}, "sign as whoever the machine is"),
        ({"awsAddDefaultProviders": "false"}, "no identity to sign with: give awsProfileName"),
        ({"awsMskRegionProvider": "com.x.Hush"}, "names a Java class, which cannot run here"),
        ({"awsDebugCreds": "hush"}, "awsDebugCreds in sasl.jaas.config must be true or false"),
        ({"awsMaxRetries": "-1"}, "awsMaxRetries in sasl.jaas.config must be a whole number"),
        ({"awsMaxBackOffTimeMs": ""}, "awsMaxBackOffTimeMs in sasl.jaas.config must be a whole"),
        (
            {"awsRoleArn": "r", "awsShouldUseFips": "true"},
            "token service of a region: awsStsRegion is missing",
        ),
    ],
)
def test_nothing_that_names_an_identity_of_amazon_is_dropped(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        amazon(**options)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs a token: set sasl.oauthbearer.token.endpoint.url"),
        (
            {"sasl_oauthbearer_token": "hush", "sasl_oauthbearer_client_id": "me"},
            "sasl.oauthbearer.client.id is for sasl.oauthbearer.token.endpoint.url, and the token "
            "comes from sasl.oauthbearer.token: remove one",
        ),
        (
            {"sasl_jaas_config": jaas(OAUTH_MODULE, token="hush", clientSecret="hush")},
            "clientSecret in sasl.jaas.config is for sasl.oauthbearer.token.endpoint.url",
        ),
        (
            {
                "sasl_login_callback_handler_class": "my.module:token",
                "sasl_jaas_config": jaas(OAUTH_MODULE, scope="s"),
            },
            "scope in sasl.jaas.config is for",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": URL}, "needs a client id"),
        (
            {"sasl_oauthbearer_token_endpoint_url": URL, "sasl_oauthbearer_client_id": "me"},
            "sasl.oauthbearer.client.credentials.client.secret",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://hush"}, "begins with https:// or file:/"),
        (
            {"sasl_oauthbearer_token": "hush", "sasl_oauthbearer_token_endpoint_url": URL},
            "sasl.oauthbearer.token and sasl.oauthbearer.token.endpoint.url exclude",
        ),
        (
            {
                "sasl_oauthbearer_token_endpoint_url": URL,
                "sasl_oauthbearer_client_id": "me",
                "sasl_jaas_config": jaas(OAUTH_MODULE, **CLIENT),
            },
            "sasl.oauthbearer.client.id and clientId in sasl.jaas.config exclude",
        ),
        (
            {"sasl_jaas_config": jaas(OAUTH_MODULE, unsecuredLoginStringClaim_sub="hush")},
            "unsecured token",
        ),
        ({"sasl_login_callback_handler_class": "com.x.Hush"}, "module:function"),
        ({"sasl_oauthbearer_grant_type": "jwt-bearer"}, "must be client_credentials"),
        ({"sasl_oauthbearer_extensions": "a"}, "name=value"),
        (
            {"sasl_mechanism": "AWS_MSK_IAM", "sasl_oauthbearer_token": "hush"},
            "is not for tokens of AWS",
        ),
    ],
)
def test_faults_of_tokens(given: dict[str, str], message: str) -> None:
    given = {"sasl_mechanism": "OAUTHBEARER", "security_protocol": "SASL_SSL"} | given
    with pytest.raises(OptionError) as caught:
        secure(**given)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


# --- references ------------------------------------------------------------------------------


def test_every_setting_may_be_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up, nor checked, before it is needed."""
    rows = [row for row in SECURITY if row.status is Status.USED and not row.alias_of]
    for row in rows:
        parse_client_options(SERVERS | {row.name: "${env:SECW_NOT_THERE}"})
    monkeypatch.setenv("SECW_PROTOCOL", "sasl_ssl")
    monkeypatch.setenv("SECW_MECHANISM", "plain")
    monkeypatch.setenv("SECW_VERIFY", "false")
    monkeypatch.setenv("SECW_CA", "/ca.pem")
    (tmp_path / "hush").write_text("hush\n")
    text = jaas("plain.PlainLoginModule", username="${env:SECW_USER}", password="DIR")
    parsed = options(
        security_protocol="${env:SECW_PROTOCOL}",
        sasl_mechanism="${env:SECW_MECHANISM}",
        enable_ssl_certificate_verification="${env:SECW_VERIFY}",
        ssl_ca_location="${env:SECW_CA}",
        sasl_jaas_config=text.replace("DIR", f"${{directory:{tmp_path}:hush}}"),
    )
    with pytest.raises(OptionError, match=r"sasl\.jaas\.config: \$\{env:SECW_USER\} cannot"):
        secure_settings(parsed.security)
    monkeypatch.setenv("SECW_USER", "alice")
    found = secure_settings(parsed.security)
    assert found.tls == TlsSettings(truststore=Store("ssl.ca.location", "/ca.pem"), verify=False)
    assert found.sasl == SaslChoice(mechanism="PLAIN", username="alice", password=Secret("hush"))
    dumped = pickle.dumps(parsed)
    assert b"alice" not in dumped
    assert b"${env:SECW_USER}" in dumped


@pytest.mark.parametrize("whole", [False, True])
def test_references_in_jaas(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """A password that is looked up needs no escapes; a whole line does."""
    password = """x"; y\\ 'z' ${env:HOME}"""
    text = jaas("plain.PlainLoginModule", username="alice", password="${env:SECW_PASSWORD}")
    monkeypatch.setenv("SECW_PASSWORD", password)
    if whole:
        escaped = password.replace("\\", "\\\\").replace('"', '\\"')
        monkeypatch.setenv("SECW_JAAS", text.replace("${env:SECW_PASSWORD}", escaped))
        text = "${env:SECW_JAAS}"
    assert sasl("PLAIN", sasl_jaas_config=text).password == Secret(password)


def test_what_a_reference_stands_for_is_checked_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECW_MECHANISM", "hush")
    parsed = options(security_protocol="SASL_SSL", sasl_mechanisms="${env:SECW_MECHANISM}")
    with pytest.raises(OptionError, match=r"option sasl\.mechanisms must be one of") as caught:
        secure_settings(parsed.security)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sasl_password": "hush${env:SECW_NO}"}, "no such environment variable"),
        (
            {"sasl_jaas_config": jaas("PlainLoginModule", username="u", password="hush${env:SECW}")}
            | {"sasl_username": "u"},
            "exclude each other",
        ),
        (
            {"sasl_jaas_config": jaas("PlainLoginModule", username="hush", password="${env:NO}")},
            "no such environment variable",
        ),
        (
            {"sasl_jaas_config": jaas("OAuthBearerLoginModule", clientSecret="hush${env:SECW}")}
            | {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_client_secret": "hush"}
            | {"sasl_oauthbearer_token_endpoint_url": "https://h/?hush"},
            "exclude each other",
        ),
    ],
)
def test_no_variable_of_a_frame_has_what_was_looked_up(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str
) -> None:
    monkeypatch.setenv("SECW", "hush")
    monkeypatch.setenv("SECW_SCOPE", "kafka")
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"} | given
    if "username" not in "".join(given):
        given["sasl_oauthbearer_scope"] = "${env:SECW_SCOPE}"  # so that nothing is checked before
    parsed = options(**given)
    with pytest.raises(OptionError, match=message) as caught:
        secure_settings(parsed.security)
    assert "hush" not in variables_of(caught.value)


def test_warnings_are_of_the_options_logger(caplog: pytest.LogCaptureFixture) -> None:
    options(ssl_provider="x")
    assert caplog.record_tuples == [
        ("sparkkafka.config.options", logging.WARNING, caplog.records[0].getMessage())
    ]
