"""Settings from -X, -b, -F and profiles: their precedence, their forms, and errors."""

from __future__ import annotations

import logging

import pytest

from sparkkafka.cli.profile import Sources, registry_options_of, settings_of
from sparkkafka.client import Admin, Consumer, Producer
from sparkkafka.errors import OptionError

CONFIG = """
default = "local"

[profiles.local]
bootstrap.servers = "local:9092"

[profiles.prod]
bootstrap.servers = "prod:9093"
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "alice"
sasl.password = "${env:PROD_PASSWORD}"
"fetch.min.bytes" = 1000
enable.auto.commit = false
schema.registry.url = "https://registry"

[profiles.java]
config-file = "client.properties"
client.id = "mine"
"""

PROPERTIES = r"""
# a Java client's
bootstrap.servers = java:9092,\
                    java:9093
security.protocol: SASL_PLAINTEXT
sasl.mechanism PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="b\u00f6b" password="${env:SECRET}";
client.id=theirs
linger.ms=5
key.serializer=org.apache.kafka.common.serialization.StringSerializer
value.deserializer=org.apache.kafka.common.serialization.StringDeserializer
"""

LIBRDKAFKA = """
metadata.broker.list=rd:9092
sasl.mechanisms=PLAIN
security.protocol=sasl_ssl
sasl.username=carol
sasl.password=${env:SECRET}
ssl.ca.location=/ca.pem
enable.ssl.certificate.verification=false
socket.timeout.ms=1234
compression.codec=zstd
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, no_warnings_so_far):
    """The folder of config.toml, in XDG_CONFIG_HOME."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "sparkkafka"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    (folder / "client.properties").write_text(PROPERTIES)
    return folder


@pytest.fixture
def librdkafka(tmp_path):
    path = tmp_path / "rd.properties"
    path.write_text(LIBRDKAFKA)
    return str(path)


def test_without_options_the_default_profile_is_used(folder):
    assert settings_of(Sources(), "admin") == {"bootstrap.servers": "local:9092"}


def test_a_profile_serves_all_kinds_of_clients(folder):
    sources = Sources(profile="prod")
    admin = settings_of(sources, "admin")
    assert admin == {
        "bootstrap.servers": "prod:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "${env:PROD_PASSWORD}",
    }
    consumer = settings_of(sources, "consumer")
    assert consumer == {**admin, "fetch.min.bytes": "1000", "enable.auto.commit": "false"}
    assert settings_of(sources, "producer") == admin
    assert registry_options_of(sources) == {"schema.registry.url": "https://registry"}
    for kind, client in (("admin", Admin), ("consumer", Consumer), ("producer", Producer)):
        client(settings_of(sources, kind)).close()


def test_a_java_file(folder):
    found = settings_of(Sources(profile="java"), "producer")
    assert found["bootstrap.servers"] == "java:9092,java:9093"
    assert found["security.protocol"] == "SASL_PLAINTEXT"
    assert 'username="böb"' in found["sasl.jaas.config"]
    assert found["linger.ms"] == "5"
    assert found["client.id"] == "mine"  # the profile takes precedence over its file
    for kind, client in (("admin", Admin), ("consumer", Consumer), ("producer", Producer)):
        client(settings_of(Sources(profile="java"), kind)).close()


def test_librdkafkas_names(folder, librdkafka):
    found = settings_of(Sources(config_file=librdkafka), "producer")
    assert found["bootstrap.servers"] == "rd:9092"
    assert found["request.timeout.ms"] == "1234"
    assert found["compression.type"] == "zstd"
    Producer(found).close()


def test_precedence_of_sources(folder, librdkafka):
    sources = Sources(
        bootstrap_server="b:1",
        profile="prod",
        config_file=librdkafka,
        properties=("sasl.mechanism=SCRAM-SHA-256", "ssl.ca.location=/other.pem"),
    )
    found = settings_of(sources, "admin")
    assert found["bootstrap.servers"] == "b:1"
    assert found["sasl.username"] == "carol"
    # Names of one setting replace each other.
    assert found["sasl.mechanism"] == "SCRAM-SHA-256"
    assert "sasl.mechanisms" not in found
    Admin(found).close()
    last = settings_of(
        Sources(bootstrap_server="b:1", properties=("metadata.broker.list=x:2",)), "admin"
    )
    assert last == {"bootstrap.servers": "x:2"}


def test_a_named_cluster_has_no_default_profile(folder):
    assert settings_of(Sources(bootstrap_server="b:1"), "admin") == {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (Sources(profile="none"), "there are: local, prod, java"),
        (Sources(config_file="/no/such/file"), "-F: /no/such/file cannot be read: No such file"),
        (Sources(bootstrap_server="b:1", properties=("hunter2",)), "-X is written KEY=VALUE"),
        (
            Sources(bootstrap_server="b:1", properties=("batch.num.messages=3",)),
            "batch.size (in bytes)",
        ),
        (
            Sources(bootstrap_server="b:1", properties=("value.serializer=x",)),
            "convert them before the write",
        ),
        (Sources(bootstrap_server="b:1", properties=("sasl.kerberos.x=1",)), "sasl.kerberos.x"),
        (
            Sources(bootstrap_server="b:1", properties=("ssl.engine.location=x",)),
            "'ssl.engine.location' is not supported",
        ),
    ],
)
def test_invalid_settings_are_named(folder, sources, message):
    with pytest.raises(OptionError) as caught:
        Producer(settings_of(sources, "producer"))
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_settings_of_records_are_no_settings_of_an_admin():
    properties = ("value.serializer=x", "interceptor.classes=x")
    sources = Sources(bootstrap_server="b:1", properties=properties)
    assert settings_of(sources, "admin") == {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "default = 'a'\n[profiles.a]\nbootstrap.server = 'b:1'",
            "did you mean 'bootstrap.servers'",
        ),
        (
            "default = 'a'\n[profiles.a]\nbootstrap_servers = 'b:1'",
            "did you mean 'bootstrap.servers'",
        ),
        ("[profiles.a]\n[profiles.b]", r"\(there are profiles: a, b\)"),
        ("[profiles.a", "is not TOML"),
        ("[profile.a]\nx = 1", "has profile:"),
        ("profiles = 3", "profiles that are not tables"),
        ('default = "gone"', "there is no profile 'gone'"),
        ("default = 'a'\n[profiles.a]\nlinger.ms = 2020-01-01", "linger.ms is text"),
        ("default = 'a'\n[profiles]\na = 3", "not a table of settings"),
    ],
)
def test_a_broken_file_of_profiles(folder, text, message):
    (folder / "config.toml").write_text(text)
    with pytest.raises(OptionError, match=message):
        settings_of(Sources(), "admin")


def test_a_file_of_profiles_that_is_nested_without_end(folder):
    (folder / "config.toml").write_text("a=" + "[" * 50_000)
    with pytest.raises(OptionError, match="is not TOML"):
        settings_of(Sources(), "admin")


def test_a_readable_file_with_a_password_is_a_warning(folder, caplog):
    path = folder / "client.properties"
    path.write_text("bootstrap.servers=b:1\nsasl.password=hunter2\n")
    sources = Sources(config_file=str(path))
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        settings_of(sources, "admin")
        assert caplog.text == ""
        path.chmod(0o644)
        settings_of(sources, "admin")
        settings_of(sources, "admin")
    (record,) = caplog.records
    assert "sasl.password" in record.getMessage()
    assert "chmod 600" in record.getMessage()
    assert "hunter2" not in record.getMessage()


def test_no_password_is_shown():
    assert "hunter2" not in repr(Sources(properties=("sasl.password=hunter2",)))
