"""What the pages about security show works: on a real broker, or, for services of others, as far as
the options go."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client.admin.brokers import describe_cluster
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.config.options import parse_read_options
from sparkkafka.config.security.options import secure_settings
from tests.docs.snippets import SECURITY, page, snippets
from tests.real.secured import PASSWORDS, TOKEN_SECRETS, Secured

SNIPPETS = snippets(page(SECURITY))
# With Kerberos tests/kerberos connects.
OWN = [text for text in SNIPPETS if "broker.example" in text and "GSSAPI" not in text]
SERVICES = [text for text in SNIPPETS if text not in OWN and "options = {" in text]
USER = "alice"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "KAFKA_USER": USER,
        "KAFKA_PASSWORD": PASSWORDS[USER],
        "KAFKA_KEY_PASSWORD": "hush-key",
        "CLIENT_ID": USER,
        "CLIENT_SECRET": TOKEN_SECRETS[USER],
    }.items():
        monkeypatch.setenv(name, value)


def options_of(snippet: str, secured: Secured, folder: Path) -> dict[str, str]:
    """The snippet's options, for the broker of the tests."""
    names: dict[str, Any] = {}
    exec(snippet.partition("orders = ")[0], names)
    (folder / "client.pem").write_text(secured.client.pem)
    (folder / "client.key").write_text(secured.client.key_pem("hush-key"))
    (folder / "token").write_text(secured.tokens.signer.token(USER))
    options = names["options"]
    listener = "SASLTLS" if "SASL" in options["kafka.security.protocol"] else "TLS"
    listener = "MTLS" if "kafka.ssl.key.location" in options else listener
    positions = {
        "broker.example:9093": secured.servers(listener),
        "/etc/kafka/ca.pem": secured.authority_file,
        "/etc/kafka": str(folder),
        "/var/run/kafka": str(folder),
        "https://id.example/token": secured.tokens.url,
    }
    for old, new in positions.items():
        options = {name: value.replace(old, new) for name, value in options.items()}
    return options


@pytest.mark.real
@pytest.mark.parametrize("number", range(len(OWN)))
def test_the_snippets_connect(
    secured: Secured, environment: None, tmp_path: Path, monkeypatch: Any, number: int
) -> None:
    module = types.ModuleType("my_tokens")
    module.token = lambda: secured.tokens.signer.token(USER)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_tokens", module)
    options = options_of(OWN[number], secured, tmp_path)
    parsed = parse_read_options({**options, "subscribe": "t"}).client
    with Cluster(parsed) as cluster:
        assert len(describe_cluster(cluster, cluster.deadline()).brokers) == 1


@pytest.mark.real
def test_the_snippet_of_the_client_library_runs(
    secured: Secured, environment: None, tmp_path: Path, capsys: Any
) -> None:
    (snippet,) = [text for text in SNIPPETS if "removeprefix" in text]
    exec(snippet, {"options": options_of(OWN[0], secured, tmp_path)})
    assert "Broker(" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(len(SERVICES)))
def test_the_snippets_of_services_are_sound(monkeypatch: Any, number: int) -> None:
    names: dict[str, Any] = {}
    exec(SERVICES[number], names)
    for name in re.findall(r"\$\{env:(\w+)\}", SERVICES[number]):
        monkeypatch.setenv(name, "hush")
    parsed = parse_read_options({**names["options"], "subscribe": "t"}).client
    tls, sasl = secure_settings(parsed.security, parsed.bootstrap_servers)
    assert tls is not None
    assert tls.verify
    assert (sasl is not None and sasl.kerberos is not None) == ("GSSAPI" in SERVICES[number])
    assert (sasl is not None) == ("SASL" in names["options"]["kafka.security.protocol"])
    if "AWS" in names["options"].get("kafka.sasl.mechanism", ""):
        assert sasl is not None
        assert sasl.oauth is not None
        assert sasl.oauth.aws_region == "eu-west-1"


def test_all_snippets_are_found() -> None:
    assert len(OWN) >= 6
    assert len(SERVICES) >= 4
    assert len(OWN) + len(SERVICES) + 1 == len(SNIPPETS)
