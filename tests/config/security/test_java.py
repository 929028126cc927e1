"""sasl.jaas.config and the properties of a JVM: what Java takes, and messages without secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config.security import java
from sparkkafka.config.security.java import LoginModule, parse_jaas
from sparkkafka.config.security.options import secure_settings
from sparkkafka.config.security.settings import SaslChoice, Store
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.options import parse_client_options

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        (
            f'{PLAIN} required username="u" password="p";',
            "PlainLoginModule",
            {"username": "u", "password": "p"},
        ),
        (
            f"{PLAIN}\n  REQUIRED\n\tusername='u'\n\tpassword = 'p'\n ; ",
            "PlainLoginModule",
            {"username": "u", "password": "p"},
        ),
        (
            # Databricks has Kafka's classes under another name; Event Hubs this user.
            f'kafkashaded.{PLAIN} required username="$ConnectionString" '
            'password="Endpoint=sb://x.example/;SharedAccessKey=a/b+c=";',
            "PlainLoginModule",
            {
                "username": "$ConnectionString",
                "password": "Endpoint=sb://x.example/;SharedAccessKey=a/b+c=",
            },
        ),
        (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            r'username="a\"b" password="c\\d\n\101é" tokenauth=true; // a comment',
            "ScramLoginModule",
            {"username": 'a"b', "password": "c\\d\nAé", "tokenauth": "true"},
        ),
        (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            '/* by\nhand */ clientId="i" clientSecret="s" extension_logicalCluster="lkc-1";',
            "OAuthBearerLoginModule",
            {"clientId": "i", "clientSecret": "s", "extension_logicalCluster": "lkc-1"},
        ),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "IAMLoginModule", {}),
    ],
)
def test_a_login_module(text: str, name: str, options: dict[str, str]) -> None:
    module = parse_jaas(text)
    assert module == LoginModule(name, options)
    assert "options" not in repr(module)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with a login module's class"),
        ('username="hush"', "begins with a login module's class"),
        (f'{PLAIN} username="u" password="hush";', "one of required, requisite, sufficient, opt"),
        (f'{PLAIN} required username="u" password="hush"', "semicolon at its end is missing"),
        (f'{PLAIN} required password="hush;', "a quotation mark is not closed"),
        (f"{PLAIN} required password=hush hush;", "options are name=value"),
        (f"{PLAIN} required password=;hush", "options are name=value"),
        (f"{PLAIN} required =hush;", "options are name=value"),
        (f'{PLAIN} required a="hush" a="hush";', "an option occurs twice"),
        (f"{PLAIN} required; {PLAIN} required;", "something follows the semicolon"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_jaas(text)
    assert "hush" not in str(caught.value)


@given(st.text(max_size=300))
def test_any_text_is_a_module_or_a_value_error(text: str) -> None:
    for tried in (text, f"{PLAIN} required {text};"):
        try:
            parse_jaas(tried)
        except ValueError as error:
            assert len(str(error)) < 200


@given(st.text(max_size=50), st.text(max_size=50))
def test_what_is_quoted_comes_back(username: str, password: str) -> None:
    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    found = parse_jaas(f"{PLAIN} required username={quoted(username)} password={quoted(password)};")
    assert found.options == {"username": username, "password": password}


# --- the JVM that started this process --------------------------------------------------------

JAAS = """
// what brokers need
KafkaServer { org.apache.kafka.common.security.plain.PlainLoginModule required username="broker"
  password="hush-broker"; };
KafkaClient {
  org.apache.kafka.common.security.plain.PlainLoginModule required
    username="alice"
    password="hu}sh";
};
"""
SASL = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


class Machine:
    """A /proc in which this process is a grandchild of a JVM."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jvm("-Xmx1g", "org.apache.spark.deploy.SparkSubmit")

    def process(self, pid: int, parent: int, *command: str) -> None:
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        (place / "status").write_text(f"Name:\tx\nPid:\t{pid}\nPPid:\t{parent}\n")
        (place / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))

    def jvm(self, *arguments: str) -> None:
        self.process(os.getpid(), 7, "python3", "-m", "pyspark.daemon")
        self.process(7, 5, "python3", "-m", "pyspark.daemon")
        self.process(5, 1, "/usr/lib/jvm/bin/java", *arguments)
        java._jvm_properties.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "proc"
    folder.mkdir()
    original = java._jvm_command
    monkeypatch.setattr(java, "_jvm_command", lambda pid, proc: original(pid, folder))
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_OPTS"):
        monkeypatch.delenv(name, raising=False)
    yield Machine(folder)
    java._jvm_properties.cache_clear()


def sasl_of(settings: dict[str, str]) -> SaslChoice:
    found = secure_settings(parse_client_options(settings).security).sasl
    assert found is not None
    return found


def test_user_and_password_of_the_jvms_file(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs a user"):
        sasl_of(SASL)
    file = tmp_path / "jaas.conf"
    file.write_text(JAAS)
    for path in (str(file), f"file:{file}"):
        machine.jvm(f"-Djava.security.auth.login.config={path}", "Main")
        found = sasl_of(SASL)
        assert (found.username, found.password) == ("alice", Secret("hu}sh"))
    # What the options say comes first.
    given = sasl_of(SASL | {"sasl.username": "bob", "sasl.password": "x"})
    assert given.username == "bob"
    file.write_text("KafkaServer { x; };")
    with pytest.raises(OptionError, match=r"jaas\.conf, which the JVM's .* has no section Kafka"):
        sasl_of(SASL)
    file.unlink()
    with pytest.raises(OptionError, match=r"cannot be read \(No such file.*set sasl\.jaas\.config"):
        sasl_of(SASL)


def test_a_file_for_another_mechanism_counts_not(machine: Machine, tmp_path: Path) -> None:
    """A cluster's JVMs may have one for another cluster, with Kerberos most often."""
    file = tmp_path / "jaas.conf"
    file.write_text("KafkaClient { com.sun.security.auth.module.Krb5LoginModule required x=y; };")
    machine.jvm(f"-Djava.security.auth.login.config={file}", "Main")
    assert sasl_of(SASL | {"sasl.mechanism": "AWS_MSK_IAM"}).oauth is not None
    with pytest.raises(OptionError, match="needs a user"):
        sasl_of(SASL)
    file.write_text("KafkaClient { hush };")
    with pytest.raises(OptionError, match=r"jaas\.conf, which .* cannot be read: it begins"):
        sasl_of(SASL)


def test_the_handler_of_an_option_with_the_jvms_file(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    words = 'clientId="me" clientSecret="hush"'
    file.write_text(f"KafkaClient {{ {module} required {words}; }};")
    machine.jvm(
        f"-Djava.security.auth.login.config={file}", "-Djavax.net.ssl.trustStore=/ca.jks", "Main"
    )
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    found = sasl_of(
        SASL
        | {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": handler,
            "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
        }
    ).oauth
    assert found is not None
    assert (found.client_id, found.client_secret) == ("me", Secret("hush"))
    assert found.tls.truststore.path == "/ca.jks"  # Java's HTTPS looks there, too


def test_the_jvms_truststore(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = {"bootstrap.servers": "h:1", "security.protocol": "SSL"}

    def truststore(more: dict[str, str] | None = None) -> Store:
        found = secure_settings(parse_client_options(tls | (more or {})).security).tls
        assert found is not None
        return found.truststore

    assert not truststore()
    name = "javax.net.ssl.trustStore"
    machine.jvm(f"-D{name}=/ca.jks", f"-D{name}Password=hush", "Main")
    expected = Store(f"the JVM's {name}", "/ca.jks", password=Secret("hush"))
    assert truststore() == expected
    assert "hush" not in repr(truststore())
    assert truststore({"ssl.truststore.location": "/own.pem"}).path == "/own.pem"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f'-D{name}=/tool.jks "-Dx=a b"')
    java._jvm_properties.cache_clear()
    assert truststore() == expected
    machine.jvm("Main")
    assert truststore().path == "/tool.jks"


def test_without_a_jvm_nothing_is_found(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.process(5, 1, "/usr/bin/bash")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/x")
    java._jvm_properties.cache_clear()
    assert not java.jvm_property("javax.net.ssl.trustStore")
    machine.process(5, 5, "/usr/bin/bash")  # a circle
    java._jvm_properties.cache_clear()
    assert not java.jvm_property("javax.net.ssl.trustStore")
