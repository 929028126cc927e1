"""Messages about options of formats name the command's flags."""

from __future__ import annotations

import io
import socket
import sys

import pytest

from sparkkafka import logs
from sparkkafka.cli.app import main
from sparkkafka.cli.format_flags import replace_options_by_flags


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "keyFormat=json needs it: set schema.registry.url, or keyFraming=none (with keySchema)",
            "--key-format json needs it: set --schema-registry, or --option keyFraming=none (with "
            "--key-schema)",
        ),
        (
            "set auto.register.schemas=true, or valueSchema to a schema",
            "set --option auto.register.schemas=true, or --value-schema to a schema",
        ),
        ("option valueSchemaVersion is set.", "--option valueSchemaVersion is set."),
        ("onBadRecord=fail", "--on-bad fail"),
        # not an option's name, or already a flag
        ("schema.registry.url.x", "schema.registry.url.x"),
        ("did you mean 'valueSubject'?", "did you mean 'valueSubject'?"),
        ("--option valueSubject", "--option valueSubject"),
    ],
)
def test_options_are_named_as_flags(given, shown):
    assert replace_options_by_flags(given) == shown


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("/nowhere/x.avsc", "cannot be read (No such file or directory). (A text with one of"),
        (
            '{"type": "record", "name": "n", "fields": [{"name": "n", "type": ["null", "n"]}]}',
            "Set --option recursive.fields.max.depth to the levels to be read (what is deeper "
            "becomes JSON text)\n",
        ),
    ],
)
def test_hints_for_users_of_spark_are_left_out(schema, message, capsys):
    given = ["-b", "127.0.0.1:9", "read", "t", "--value-format", "avro", "--value-schema", schema]
    assert main([*given, "--option", "valueFraming=none"]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("timeout", "given", "limit"),
    [
        (["--timeout", "0.3"], [], "300"),
        (["--timeout", "0.3"], ["--option", "schema.registry.api.timeout.ms=200"], "200"),
        (["--timeout", "0.3", "-X", "Schema.Registry.Api.Timeout.Ms=100"], [], "100"),
        (["--timeout", "2073600"], ["--option", "schema.registry.request.timeout.ms=50"], None),
    ],
)
@pytest.mark.parametrize("verb", ["read", "write"])
def test_the_timeout_counts_for_the_registry(verb, timeout, given, limit, capsys, monkeypatch):
    """The registry and the broker accept connections and never answer."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"http://{address}"
        arguments = ["-b", address, *timeout, verb, "t", "--value-format", "avro", *given]
        arguments += ["--option", "schema.registry.retries.max.wait.ms=1"]
        assert main([*arguments, "--schema-registry", url]) == 1
    err = capsys.readouterr().err
    assert f"the Schema Registry {url}: no response in time" in err
    assert limit is None or f"(schema.registry.api.timeout.ms={limit})" in err


@pytest.mark.usefixtures("no_warnings_so_far")
def test_messages_do_not_mention_spark(capsys, monkeypatch):
    monkeypatch.setattr(logs, "_role", "this process")  # as in the command's own process
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = ["-b", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "1"]
        given += ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"]
        given += ["-X", "sasl.username=u", "-X", "sasl.password=${env:NOT_THERE}"]
        assert main([*given, "read", "t"]) == 2
    err = capsys.readouterr().err
    assert "${env:NOT_THERE} cannot be looked up in this process" in err
    given = ["-b", "127.0.0.1:9", "-X", "schema.registry.url=http://localhost:9"]
    given += ["-X", "schema.registry.basic.auth.user.info=a:b", "-X"]
    given += ["schema.registry.max.retries=0", "read", "t", "--value-format", "avro"]
    assert main(given) == 1
    err += capsys.readouterr().err
    assert "http://localhost:9" in err
    assert not any(word in err for word in ("Spark", "driver", "executor"))
