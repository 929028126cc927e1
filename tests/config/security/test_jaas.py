"""sasl.jaas.config: what people write, what Java takes, and messages without the password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkkafka.config.security.sasl import (
    LoginModule,
    parse_jaas,
)

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
    ("text", "words"),
    [
        ("", "begins with a login module's class"),
        ('username="hush"', "begins with a login module's class"),
        (f'{PLAIN} username="u" password="hush";', "one of required, requisite, sufficient, opt"),
        (f'{PLAIN} required username="u" password="hush"', "semicolon, which is missing"),
        (f'{PLAIN} required password="hush;', "a quotation mark is not closed"),
        (f"{PLAIN} required password=hush hush;", "options are name=value"),
        (f"{PLAIN} required password=;hush", "options are name=value"),
        (f"{PLAIN} required =hush;", "options are name=value"),
        (f'{PLAIN} required a="hush" a="hush";', "the name of an option is there twice"),
        (f"{PLAIN} required; {PLAIN} required;", "something follows the semicolon"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
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
