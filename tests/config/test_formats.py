"""Options of formats and of the Schema Registry: values, rules between them, and what is hidden."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.config.formats import MAX_SCHEMA_BYTES, ColumnFormat, FormatOptions
from sparkkafka.config.kinds import (
    RECORD_NAME,
    TOPIC_NAME,
    TOPIC_RECORD_NAME,
    HttpUrl,
    parse_registry_urls,
)
from sparkkafka.config.option_table import FORMATS, REGISTRY
from sparkkafka.config.options import (
    parse_read_options,
    parse_stream_options,
    parse_stream_write_options,
    parse_write_options,
)
from sparkkafka.config.registry import RegistryOptions, registry_settings
from sparkkafka.config.security.options import SecurityOptions
from sparkkafka.config.security.settings import (
    TokenMethod,
)
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret
from tests.support.certificates import signed

READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
WRITE = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
URL = {"schema.registry.url": "https://registry:8081"}
RECORD = '{"type": "record", "name": "R", "fields": []}'


pytestmark = pytest.mark.usefixtures("no_warnings_so_far")


def named(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def read(**options: str) -> FormatOptions:
    found = parse_read_options(READ | named(options)).formats
    assert found is not None
    return found


def write(**options: str) -> FormatOptions:
    found = parse_write_options(WRITE | named(options)).formats
    assert found is not None
    return found


def registry(**options: str) -> RegistryOptions:
    given = {"valueFormat": "avro", **URL, **named(options)}
    formats = parse_read_options(READ | given).formats
    assert formats is not None
    assert formats.registry is not None
    return formats.registry


def refused(parse: Any, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    text = str(caught.value)
    assert "hush" not in text
    return text


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"valueFormat": "binary"}, {"keyFormat": " Binary "}])
def test_without_a_format_there_is_nothing(more: dict[str, str]) -> None:
    assert parse_read_options(READ | more).formats is None
    assert parse_stream_options(READ | more).formats is None
    assert parse_write_options(WRITE | more).formats is None
    assert parse_stream_write_options(WRITE | more).formats is None


def test_names_as_spark_hands_them_over() -> None:
    given = {"valueformat": "AVRO", "valueschemaversion": "3", "keyformat": "String"}
    given |= {"schema.registry.url": "http://h:8081", "onbadrecord": "DEADLETTER"}
    given |= {"deadletter.topic": "bad", "valueframing": "Headers"}
    formats = parse_stream_options(READ | given).formats
    assert formats == FormatOptions(
        key=ColumnFormat(column="key", format="string"),
        value=ColumnFormat(column="value", format="avro", schema_version=3, framing="headers"),
        registry=RegistryOptions(url="http://h:8081", tls=formats.registry.tls),
        on_bad_record="deadLetter",
        dead_letter_topic="bad",
    )
    assert pickle.loads(pickle.dumps(formats)) == formats
    assert hash(formats) == hash(copy.deepcopy(formats))


def test_both_columns_and_what_writes_have() -> None:
    formats = write(
        valueFormat="protobuf",
        keyFormat="json",
        valueSchemaMessage=" shop.Order ",
        keySubject="keys",
        auto__register__schemas="true",
        normalize__schemas="true",
        schema__registry__url="https://a,http://b:1/api/",
    )
    assert formats.value.message == "shop.Order"
    assert formats.key.subject == "keys"
    assert (formats.auto_register_schemas, formats.normalize_schemas) == (True, True)
    assert not formats.use_latest_version
    assert formats.registry is not None
    assert registry_settings(formats.registry).urls == (
        HttpUrl(True, "a", 443, ""),
        HttpUrl(False, "b", 1, "/api"),
    )


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("Topic", TOPIC_NAME),
        ("io.confluent.kafka.serializers.subject.TopicNameStrategy", TOPIC_NAME),
        ("record", RECORD_NAME),
        ("RecordNameStrategy", RECORD_NAME),
        ("topic-record", TOPIC_RECORD_NAME),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", TOPIC_RECORD_NAME),
        ("topic_record_subject_name_strategy", TOPIC_RECORD_NAME),
    ],
)
def test_strategies(text: str, strategy: str) -> None:
    found = write(valueFormat="avro", value__subject__name__strategy=text, **URL)
    assert found.value.strategy == strategy


def test_a_strategy_of_the_users_own_is_refused() -> None:
    text = refused(write, valueFormat="avro", key__subject__name__strategy="com.acme.Mine", **URL)
    assert "no Java class runs here but Confluent's three" in text


# --- schemas: text or path -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("avro", RECORD),
        ("avro", ' ["null", "long"] '),
        ("avro", '"string"'),
        ("avro", "long"),
        ("protobuf", 'syntax = "proto3"; message M {}'),
        ("json", '{"type": "object"}'),
    ],
)
def test_the_text_of_a_schema(kind: str, text: str) -> None:
    column = read(valueFormat=kind, valueSchema=text).value
    assert column.schema == text.strip()
    assert "object" not in repr(column)
    assert "proto3" not in repr(column)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_the_file_of_a_schema(tmp_path: Path, form: str) -> None:
    file = tmp_path / "order.avsc"
    file.write_bytes(b"\xef\xbb\xbf" + RECORD.encode() + b"\n")
    column = read(valueFormat="avro", valueSchema=form.format(file)).value
    assert column.schema == RECORD


def test_files_that_give_no_schema(tmp_path: Path) -> None:
    def failure(path: object) -> str:
        return refused(read, keyFormat="avro", keySchema=str(path))

    missing = failure(tmp_path / "nope.avsc")
    assert "option keySchema: the file" in missing
    assert "nope.avsc" in missing
    assert "No such file" in missing
    assert "A text with one of the characters" in missing
    assert "Is a directory" in failure(tmp_path)
    (tmp_path / "empty").write_text(" \n")
    assert "is empty" in failure(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in failure(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b" " * (MAX_SCHEMA_BYTES + 1))
    assert f"is larger than {MAX_SCHEMA_BYTES} bytes" in failure(tmp_path / "large")
    assert "is not a file on this machine" in failure("s3://bucket/order.avsc")
    assert "cannot be read" in failure("a\0b")
    assert "option keySchema is empty" in failure("  ")


def test_a_primitives_name_is_a_path_unless_it_is_avros() -> None:
    text = refused(read, valueFormat="json", valueSchema="long")
    assert "the file 'long' cannot be read" in text


def test_a_schema_is_inferred() -> None:
    column = read(valueFormat="json", valueSchema="Infer", valueFraming="none").value
    assert column.infer
    assert column.schema is None


# --- rules between options -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "avro"}, "valueFormat=avro needs a schema: set schema.registry.url"),
        ({"keyFormat": "protobuf"}, "or keySchema to the schema's text or a file's path"),
        (
            {"valueFormat": "avro", "valueFraming": "none", **URL},
            "valueFormat=avro with valueFraming=none needs valueSchema: records do not say",
        ),
        (
            {"valueFormat": "avro", "valueSchema": RECORD, "valueSchemaVersion": "1", **URL},
            "option valueSchemaVersion and valueSchema exclude each other",
        ),
        (
            {"valueFormat": "avro", "valueSchema": RECORD, "valueSubject": "s", **URL},
            "option valueSubject and valueSchema exclude each other",
        ),
        ({"valueSchema": RECORD}, "option valueSchema needs valueFormat: set it to one of avro"),
        ({"keySchemaVersion": "1", **URL}, "option keySchemaVersion needs keyFormat"),
        (
            {"valueFormat": "string", "valueFraming": "none"},
            "option valueFraming has no effect with valueFormat=string",
        ),
        (
            {"valueFormat": "binary", "valueSchemaMessage": "M"},
            "option valueSchemaMessage has no effect with valueFormat=binary",
        ),
        (URL, "option schema.registry.url has no effect while keys and values are binary"),
        ({"onBadRecord": "null"}, "option onBadRecord has no effect while keys and values are"),
        (
            {"valueFormat": "string", **URL},
            "option schema.registry.url has no effect: valueFormat=string needs no registry",
        ),
        (
            {"valueFormat": "avro", "valueSchema": RECORD, "valueFraming": "none", **URL},
            "has valueFraming=none and its schema from valueSchema; remove it",
        ),
        (
            {"valueFormat": "json", "valueSchema": "infer", "valueFraming": "none", **URL},
            "option schema.registry.url has no effect",
        ),
        (
            {"valueFormat": "avro", "valueSchema": "infer", **URL},
            "valueSchema=infer is for valueFo",
        ),
        (
            {"valueFormat": "json", "valueSchema": "infer", "valueSchemaVersion": "2", **URL},
            "option valueSchemaVersion and valueSchema exclude each other",
        ),
        (
            {"valueFormat": "avro", "valueSchemaMessage": "M", **URL},
            "option valueSchemaMessage has no effect with valueFormat=avro: it is for protobuf",
        ),
        ({"valueFormat": "avro", "valueSubject": " ", **URL}, "option valueSubject is empty"),
        (
            {"valueFormat": "avro", "valueSubject": "s", "value.subject.name.strategy": "record"}
            | URL,
            "option value.subject.name.strategy has no effect beside valueSubject",
        ),
        (
            {"valueFormat": "avro", "value.subject.name.strategy": "record", **URL},
            "needs the record's name, which a read does not know without the schema",
        ),
        (
            {"valueFormat": "json", "valueSchemaVersion": "2"},
            "option valueSchemaVersion is for the Schema Registry: set schema.registry.url",
        ),
        (
            {"valueFormat": "json", "onBadRecord": "deadLetter"},
            "onBadRecord=deadLetter needs the topic for bad records: set deadLetter.topic",
        ),
        (
            {"valueFormat": "json", "deadLetter.topic": "bad", "onBadRecord": "column"},
            "option deadLetter.topic has no effect without onBadRecord=deadLetter",
        ),
        (
            {"valueFormat": "avro", "rescuedColumn": "true", **URL},
            "rescuedColumn=true has no effect with valueFormat=avro: it is for json",
        ),
        (
            {"valueFormat": "json", "recursive.fields.max.depth": "2"},
            "option recursive.fields.max.depth has no effect with valueFormat=json: there is",
        ),
        (
            {"valueFormat": "json", "valueSchema": "infer", "recursive.fields.max.depth": "2"},
            "option recursive.fields.max.depth has no effect with valueFormat=json: there is",
        ),
        (
            {"valueFormat": "avro", "recursive.fields.max.depth": "0", **URL},
            "recursive.fields.max.depth must be a whole number from 1 to 15",
        ),
        ({"onBadRecord": "null"}, "set valueFormat or keyFormat to avro, protobuf or json"),
        (URL, "set valueFormat or keyFormat to avro, protobuf or json"),
        ({"valueFormat": "xml"}, "valueFormat must be one of binary, string, avro, protobuf, json"),
        ({"valueFormat": "json", "onBadRecord": "drop"}, "onBadRecord must be one of fail, null"),
        ({"valueFormat": "avro", "schema.registry.max.retries": "1"}, "schema.registry.url is not"),
    ],
)
def test_reads_that_are_refused(options: dict[str, str], message: str) -> None:
    assert message in refused(read, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "avro"}, "needs the Schema Registry, which assigns the schema's id"),
        ({"valueFormat": "avro"}, "or valueFraming=none to write bare payloads (with valueSchema)"),
        ({"valueFormat": "json"}, "or valueFraming=none to write bare payloads"),
        (
            {"keyFormat": "avro", "keySchema": RECORD, "keyFraming": "headers"},
            "keyFormat=avro needs the Schema Registry",
        ),
        ({"valueFormat": "avro", "valueFraming": "none"}, "needs valueSchema"),
        ({"valueFormat": "json", "valueSchema": "infer", **URL}, "valueSchema=infer is for reads"),
        (
            {"valueFormat": "json", "valueFraming": "none", "auto.register.schemas": "true"},
            "option auto.register.schemas is for the Schema Registry: set schema.registry.url",
        ),
        (
            {"valueFormat": "avro", "use.latest.version": "true", "auto.register.schemas": "true"}
            | URL,
            "use.latest.version=true and auto.register.schemas=true exclude each other",
        ),
        (
            {"valueFormat": "avro", "use.latest.version": "true", "valueSchema": RECORD, **URL},
            "use.latest.version=true and valueSchema exclude each other",
        ),
        (
            {"valueFormat": "avro", "use.latest.version": "true", "valueSchemaVersion": "1"} | URL,
            "use.latest.version=true and valueSchemaVersion exclude each other",
        ),
        (
            {"valueFormat": "avro", "normalize.schemas": "true", "valueSchemaVersion": "1"} | URL,
            "option normalize.schemas has no effect beside valueSchemaVersion",
        ),
        (
            {"valueFormat": "json", "valueFraming": "none", "ignoreEncryptionRules": "true"},
            "option ignoreEncryptionRules is for the Schema Registry: set schema.registry.url",
        ),
    ],
)
def test_writes_that_are_refused(options: dict[str, str], message: str) -> None:
    assert message in refused(write, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"valueFormat": "json", "valueFraming": "none"},
        {"valueFormat": "avro", "valueFraming": "none", "valueSchema": RECORD},
        {"valueFormat": "string"},
        {"valueFormat": "avro", "valueSubject": "s", "valueSchema": RECORD, **URL},
        {"valueFormat": "avro", "value.subject.name.strategy": "record", **URL},
        {"valueFormat": "avro", "auto.register.schemas": "false", "use.latest.version": "true"}
        | URL,
    ],
)
def test_writes_that_are_taken(options: dict[str, str]) -> None:
    assert write(**options).value.format == options["valueFormat"]


@pytest.mark.parametrize(
    "options",
    [
        {"valueFormat": "json"},  # `.schema(…)` has the type
        {"valueFormat": "json", "rescuedColumn": "true", "valueFraming": "none"},
        {"valueFormat": "avro", "valueSchema": RECORD},
        {"valueFormat": "json", "valueFraming": "none", **URL},
        {"valueFormat": "string", "onBadRecord": "null"},
        {"valueFormat": "avro", "valueSchema": RECORD, "value.subject.name.strategy": "record"}
        | URL,
    ],
)
def test_reads_that_are_taken(options: dict[str, str]) -> None:
    assert read(**options).value.format == options["valueFormat"]


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("valueFormt", "valueFormat"),
        ("schema.registry.ulr", "schema.registry.url"),
        ("schema.registry.basic.auth.userinfo", "schema.registry.basic.auth.user.info"),
        ("deadLetterTopic", "deadLetter.topic"),
        ("auto.register.schema", "auto.register.schemas"),
        ("kafka.schema.registry.url", "schema.registry.url"),
        ("kafka.schema.registry.ssl.truststore.pasword", "schema.registry.ssl.truststore.password"),
        ("kafka.valueFormat", "valueFormat"),
        ("kafka.value.subject.name.strategy", "value.subject.name.strategy"),
        ("kafka.startingOffsets", "startingOffsets"),
        ("kafka.deliveryGuarantee", "deliveryGuarantee"),
    ],
)
def test_misspelt_names_are_errors_with_near_ones(name: str, near: str) -> None:
    text = refused(read, valueFormat="json", **{name: "hush"})
    assert f"did you mean '{near}'?" in text


def test_other_kafka_properties_are_still_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparkkafka.config.options"):
        read(valueFormat="string", **{"kafka.my.own": "1"})
    assert "unknown Kafka property 'kafka.my.own' has no effect" in caplog.text


def test_options_of_the_other_side_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparkkafka.config.options"):
        read(valueFormat="avro", auto__register__schemas="true", **URL)
        write(valueFormat="avro", onBadRecord="null", **URL)
    assert "option auto.register.schemas has no effect here: it is for writing" in caplog.text
    assert "option onBadRecord has no effect here: it is for reading" in caplog.text


def test_an_option_by_two_names() -> None:
    text = refused(
        registry,
        schema__registry__basic__auth__user__info="a:hush",
        basic__auth__user__info="a:hush",
    )
    assert "are two names of one setting" in text


# --- the registry ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("registry:8081", "begins neither with https:// nor with http://"),
        ("ftp://h", "is not a URL of the form https://host:port/path"),
        ("http://", "is not a URL of the form"),
        ("http://h:99999", "is not a URL"),
        ("http://h:x", "is not a URL"),
        ("http://h:0", "(port 1 to 65535)"),
        ("http://h/?key=hush", "has a query or a fragment"),
        ("http://h/#hush", "has a query or a fragment"),
        ("https://me:hush@h", "user or a password in it: set schema.registry.basic.auth.user.info"),
        ("https://ok,https://me:hush@h", "user or a password in it"),
        ("https://h h", "is not a URL"),
        (" , ", "no URL is given"),
    ],
)
def test_urls_that_are_refused(text: str, message: str) -> None:
    given = {"schema.registry.url": text}
    assert message in refused(read, valueFormat="avro", **given)


def test_urls() -> None:
    text = "http://[::1]:8081/a/b/, https://h ,http://[::1]:8081/a/b"
    assert list(map(str, parse_registry_urls(text))) == ["http://[::1]:8081/a/b", "https://h:443"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"basic.auth.user.info": "a:hush", "bearer.auth.token": "hush"},
            "schema.registry.basic.auth.user.info and schema.registry.bearer.auth.token exclude",
        ),
        (
            {"basic.auth.credentials.source": "USER_INFO"},
            "needs user and password: set schema.registry.basic.auth.user.info=user:password",
        ),
        (
            {"basic.auth.credentials.source": "SASL_INHERIT"},
            "must be USER_INFO, got 'SASL_INHERIT': write user and password into",
        ),
        ({"bearer.auth.credentials.source": "CUSTOM"}, "got 'CUSTOM': give a token in"),
        ({"basic.auth.user.info": "hush"}, "is written user:password; it has no :"),
        (
            {"bearer.auth.credentials.source": "STATIC_TOKEN"},
            "needs a token: set schema.registry.bearer.auth.token",
        ),
        ({"bearer.auth.logical.cluster": "lsrc-1"}, "needs a token"),
        (
            {"bearer.auth.token": "hush", "bearer.auth.issuer.endpoint.url": "https://i/hush"},
            "schema.registry.bearer.auth.issuer.endpoint.url is for",
        ),
        (
            {
                "bearer.auth.token": "hush",
                "bearer.auth.issuer.endpoint.url": "https://i/hush",
                "bearer.auth.credentials.source": "oauthbearer",
            },
            "the token is set, or requested from the issuer",
        ),
        (
            {"bearer.auth.client.id": "me", "bearer.auth.client.secret": "hush"},
            "schema.registry.bearer.auth.issuer.endpoint.url is not set",
        ),
        (
            {"bearer.auth.issuer.endpoint.url": "https://i", "bearer.auth.client.id": "me"},
            "schema.registry.bearer.auth.client.secret is not set",
        ),
        ({"ssl.keystore.key": "hush"}, "schema.registry.ssl.keystore.key is set, and"),
        (
            {"ssl.truststore.password": "hush"},
            "schema.registry.ssl.truststore.password is set, and "
            "schema.registry.ssl.truststore.location is not",
        ),
        ({"ssl.ca.location": "/a", "ssl.truststore.location": "/a"}, "two names of one setting"),
        ({"request.timeout.ms": "0"}, "schema.registry.request.timeout.ms must be a whole number"),
        ({"cache.capacity": "0"}, "schema.registry.cache.capacity must be"),
    ],
)
def test_registries_that_are_refused(options: dict[str, str], message: str) -> None:
    given = {f"schema.registry.{name}": value for name, value in options.items()}
    assert message in refused(registry, **given)


def test_tls_without_https_is_an_error() -> None:
    given = {"schema.registry.url": "http://h", "schema.registry.ssl.ca.location": "/ca.pem"}
    text = refused(registry, **given)
    assert "schema.registry.ssl.ca.location has no effect: no URL of schema.registry.url" in text


def test_user_and_password() -> None:
    found = registry(
        basic__auth__user__info="me:hu:sh", basic__auth__credentials__source="user_info"
    )
    settings = registry_settings(found)
    assert settings.user_info == Secret("me:hu:sh")
    assert settings.oauth is None


def test_a_token_that_is_given() -> None:
    found = registry(bearer__auth__token="hush", bearer__auth__logical__cluster="lsrc-1")
    settings = registry_settings(found)
    assert settings.oauth is not None
    assert (settings.oauth.method, settings.oauth.token) == (
        TokenMethod.GIVEN_TOKEN,
        Secret("hush"),
    )
    assert settings.headers == (("target-sr-cluster", "lsrc-1"),)


def test_a_token_of_an_issuer() -> None:
    authority = signed("authority")
    found = registry(
        schema__registry__bearer__auth__issuer__endpoint__url="https://issuer/token",
        schema__registry__bearer__auth__client__id="me",
        schema__registry__bearer__auth__client__secret="hush",
        schema__registry__bearer__auth__scope="s",
        schema__registry__bearer__auth__identity__pool__id="pool-1",
        schema__registry__ssl__ca__pem=authority.pem,
        schema__registry__request__timeout__ms="77",
    )
    settings = registry_settings(found)
    oauth = settings.oauth
    assert oauth is not None
    assert (oauth.method, oauth.token_endpoint_url) == (
        TokenMethod.CLIENT_CREDENTIALS,
        "https://issuer/token",
    )
    assert (oauth.client_id, oauth.client_secret, oauth.scope) == ("me", Secret("hush"), "s")
    assert (oauth.connect_timeout_ms, oauth.read_timeout_ms) == (77, 77)
    assert oauth.tls.truststore == settings.tls.truststore
    assert settings.tls.truststore.text == Secret(authority.pem)
    assert settings.tls.truststore.option == "schema.registry.ssl.ca.pem"
    assert settings.headers == (("Confluent-Identity-Pool-Id", "pool-1"),)


def test_references_are_looked_up_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "p.properties").write_text("login=me:hush\n")
    found = registry(
        schema__registry__url="${env:OUR_REGISTRY}",
        schema__registry__basic__auth__user__info=f"${{file:{tmp_path}/p.properties:login}}",
        schema__registry__ssl__endpoint__identification__algorithm="${env:OUR_CHECK}",
    )
    assert found.has_references
    with pytest.raises(OptionError, match=r"schema\.registry\.url: .*OUR_REGISTRY.* cannot"):
        registry_settings(found)
    monkeypatch.setenv("OUR_REGISTRY", "https://me:hush@h")
    monkeypatch.setenv("OUR_CHECK", "")
    with pytest.raises(OptionError, match=r"schema\.registry\.url must be https") as caught:
        registry_settings(found)
    assert "hush" not in str(caught.value)
    monkeypatch.setenv("OUR_REGISTRY", "https://one,https://two")
    settings = registry_settings(pickle.loads(pickle.dumps(found)))
    assert [url.host for url in settings.urls] == ["one", "two"]
    assert settings.user_info == Secret("me:hush")
    assert not settings.tls.check_hostname


def test_the_names_of_config_providers_count_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIN", "me:hush")
    found = registry(
        kafka__config__providers="vars",
        **{
            "kafka.config.providers.vars.class": (
                "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
            ),
            "basic.auth.user.info": "${vars:LOGIN}",
        },
    )
    assert registry_settings(found).user_info == Secret("me:hush")


SECRETS = {
    "schema.registry.basic.auth.user.info": "me:hush",
    "schema.registry.bearer.auth.token": "hush",
    "schema.registry.bearer.auth.client.secret": "hush",
    "schema.registry.ssl.truststore.password": "hush",
    "schema.registry.ssl.keystore.password": "hush",
    "schema.registry.ssl.keystore.key": "hush",
    "schema.registry.ssl.key.password": "hush",
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_hidden(name: str) -> None:
    rows = {row.name: row for row in REGISTRY}
    assert rows[name].secret
    field = (rows[name].field or "").split(".")
    tls = (
        SecurityOptions(protocol="SSL", **{field[1]: Secret("hush")})
        if "_tls" in field[0]
        else None
    )
    options = RegistryOptions(
        url="https://h", **({"tls": tls} if tls is not None else {field[1]: Secret("hush")})
    )
    formats = FormatOptions(registry=options)
    assert "[hidden]" in repr(formats)
    assert "hush" not in repr(formats) + str(formats)


def test_addresses_are_shown_without_what_may_be_secret() -> None:
    options = RegistryOptions(url="https://me:hush@h", issuer_url="https://me:hush@i/t?key=hush")
    assert "hush" not in repr(options)
    assert "https://[hidden]@i/t?[hidden]" in repr(options)


def test_every_option_of_the_registry_may_be_secret_or_a_reference_or_a_number() -> None:
    for row in REGISTRY:
        if row.field and row.secret:
            assert row.kind is not None
            assert isinstance(row.kind.parse("${env:X}"), Secret), row.name


def test_what_spark_would_show_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparkkafka.config.options"):
        registry(basic__auth__user__info="me:hush")
        registry(schema__registry__basic__auth__user__info="${env:HOME}")
    assert caplog.text.count("is shown by Spark's plans, UI and event log") == 1
    assert "hush" not in caplog.text


def test_secrets_in_the_clear_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparkkafka.config.options"):
        registry(schema__registry__url="http://localhost:1", basic__auth__user__info="me:hush")
        registry(schema__registry__url="http://127.0.0.1:1", bearer__auth__token="hush")
        registry(schema__registry__url="http://h:1")
    assert "in the clear" not in caplog.text
    with caplog.at_level(logging.WARNING, "sparkkafka.config.options"):
        registry(schema__registry__url="https://g,http://h:1", bearer__auth__token="hush")
    assert "the token is sent to http://h:1 in the clear" in caplog.text


def test_the_rows_about_tls_fill_fields_of_the_brokers() -> None:
    fields = {row.field for row in REGISTRY if (row.field or "").startswith("registry_tls.")}
    assert len(fields) == 13
    for field in fields:
        assert hasattr(SecurityOptions(), str(field).partition(".")[2])


def test_keys_have_the_same_options_as_values() -> None:
    names = {row.name for row in FORMATS}
    of_values = {name for name in names if name.startswith("value")}
    assert {"key" + name.removeprefix("value") for name in of_values} == {
        name for name in names if name.startswith("key")
    }


def test_the_depth_of_schemas_that_contain_themselves() -> None:
    """One option for both columns and both sides, under Spark's name."""
    given = {"valueFormat": "avro", "recursive.fields.max.depth": "3", **URL}
    assert read(**given).recursive_fields_max_depth == 3
    assert write(**given).recursive_fields_max_depth == 3
    keys = {"keyFormat": "json", "keySchema": "{}", "recursive.fields.max.depth": "15"}
    assert read(valueFormat="json", **keys).recursive_fields_max_depth == 15
    assert read(valueFormat="avro", **URL).recursive_fields_max_depth is None
