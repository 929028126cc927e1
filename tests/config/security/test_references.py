"""Values that stand elsewhere: ${env:…}, ${file:…}, ${directory:…}."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkkafka import logs
from sparkkafka.config.security.references import (
    MAX_BYTES,
    has_reference,
    parse_properties,
    provider_names,
    replace_provider_aliases,
    resolve_references,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.frames import variables_of

PROPERTIES = r"""
# a comment
! another
user=alice
password : hush\u0020hush
spaced   value with blanks
long = one, \
       two
empty=
sign\=\:key = a=b:c
tab=\ta\\b
user=bob
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.properties").write_text(PROPERTIES)
    (tmp_path / "password").write_text("hush-hush\n")
    (tmp_path / "windows").write_bytes(b"\xef\xbb\xbfhush\r\n")
    (tmp_path / "empty").write_text("")
    monkeypatch.setenv("SECW_VALUE", "from ${env:HOME}")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("$ {env:X} ${} ${x} {env:X} $env:X", "$ {env:X} ${} ${x} {env:X} $env:X"),
        ("${env:SECW_VALUE}", "from ${env:HOME}"),  # what was looked up is not looked at again
        ("${env::SECW_VALUE}", "from ${env:HOME}"),
        ("<${directory:DIR:password}>${directory:DIR:windows}", "<hush-hush>hush"),
        ("${directory:DIR:empty}", ""),
        ("${file:DIR/p.properties:password}", "hush hush"),
        ("${file:DIR/p.properties:user}", "bob"),
        ("${file:DIR/p.properties:sign=:key}", "a=b:c"),
    ],
)
def test_values(files: Path, text: str, value: str) -> None:
    given = Secret(text.replace("DIR", str(files)))
    assert resolve_references(given, "sasl.password").reveal() == value


def test_properties_as_java_reads_them() -> None:
    assert parse_properties(PROPERTIES) == {
        "user": "bob",
        "password": "hush hush",
        "spaced": "value with blanks",
        "long": "one, two",
        "empty": "",
        "sign=:key": "a=b:c",
        "tab": "\ta\\b",
    }
    assert parse_properties("a=1\rb=2\r\nc=3\\") == {"a": "1", "b": "2", "c": "3"}
    assert parse_properties("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:SECW_NOT_THERE}", "there is no such environment variable"),
        ("${file:DIR/p.properties}", "it is written ${file:"),
        ("${file:DIR/p.properties:nothing}", "the file has no such key"),
        ("${file:DIR/none:key}", "No such file or directory"),
        ("${file:DIR/large:key}", "is larger than"),
        ("${file:DIR/binary:key}", "is not UTF-8"),
        ("${directory:DIR}", "it is written ${directory:"),
        ("${directory:DIR:../password}", "without a folder"),
        ("${directory:DIR:..}", "without a folder"),
        ("${directory:DIR:none}", "No such file or directory"),
        ("${directory:DIR:a\0b}", "null"),
    ],
)
def test_what_cannot_be_looked_up(
    files: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (files / "large").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (files / "binary").write_bytes(b"hush=\xff\xfe")
    monkeypatch.setattr(logs, "_role", "a Spark executor")
    text = text.replace("DIR", str(files))
    with pytest.raises(OptionError) as caught:
        resolve_references(Secret(f"hush{text}hush"), "sasl.password")
    said = str(caught.value)
    assert said.startswith(f"option sasl.password: {text} cannot be looked up in a Spark executor")
    assert message in said
    assert "hush" not in said.replace(str(files), "")
    assert "hush" not in variables_of(caught.value).replace(str(files), "")


def test_what_only_looks_like_a_reference_is_text(files: Path) -> None:
    """As in Java."""
    text = "${vault:hush/hush}${x}"
    assert not has_reference(text)
    assert resolve_references(Secret(text), "sasl.password").reveal() == text
    mixed = Secret(text + "${env:SECW_VALUE}")
    assert resolve_references(mixed, "sasl.password").reveal() == f"{text}from ${{env:HOME}}"
    assert has_reference("a${env:X}b")


PROVIDER = "org.apache.kafka.common.config.provider."


def test_providers_may_have_any_name() -> None:
    given = {
        "config.providers": "secrets, dir,env,vault",
        "config.providers.secrets.class": f"{PROVIDER}FileConfigProvider",
        "config.providers.dir.class": f"kafkashaded.{PROVIDER}DirectoryConfigProvider",
        "config.providers.env.class": f"{PROVIDER}FileConfigProvider",
        "config.providers.vault.class": "com.example.Vault",
        "config.providers.unlisted.class": f"{PROVIDER}FileConfigProvider",
    }
    names = provider_names(given)
    assert names == {
        "secrets": "file", "dir": "directory", "env": "file", "vault": "com.example.Vault"
    }  # fmt: skip
    text = "<${secrets:/p:k}|${dir:/p:n}|${env:/p:k}|${unlisted:/p:k}|${file:/p:k}>"
    assert replace_provider_aliases(text, names, "o") == (
        "<${file:/p:k}|${directory:/p:n}|${file:/p:k}|${unlisted:/p:k}|${file:/p:k}>"
    )
    with pytest.raises(OptionError, match=r"o refers to the provider vault .* com\.example\.Vault"):
        replace_provider_aliases("${vault:hush}", names, "o")
    with pytest.raises(OptionError, match=r"names 'x', and config\.providers\.NAME\.class is not"):
        provider_names({"config.providers": "x"})
    with pytest.raises(OptionError, match=r"names 'yy[^ ]*… \(5000 characters\), and"):
        provider_names({"config.providers": "y" * 5_000})
    assert provider_names({}) == {}
