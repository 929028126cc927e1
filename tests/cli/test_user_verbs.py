"""`users` on fake brokers: passwords from a prompt, a file and stdin, and never in the output."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest

from sparkkafka.client import ScramCredentialInfo
from sparkkafka.errors import ErrorCode

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HUSH = "hush ${env:HOME}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def word(tmp_path):
    path = tmp_path / "word"
    path.write_text(f"{HUSH}\n")
    return str(path)


def was_sent(fake: Any, password: str = HUSH) -> bool:
    row = fake.requests_of("AlterUserScramCredentials")[-1].message.upsertions[0]
    hash_name = {1: "sha256", 2: "sha512"}[row.mechanism]
    expected = hashlib.pbkdf2_hmac(hash_name, password.encode(), row.salt, row.iterations)
    return bool(expected == row.salted_password)


def test_a_user_from_creation_to_deletion(command, admin, fake, word):
    run = command("users", "create", "etl", "--password-file", word)
    assert run.out == f"user etl has a password for {SHA_512}\n"
    assert was_sent(fake)
    more = ("--mechanism", SHA_256, "--mechanism", "scram-sha-512", "--iterations", "8192")
    asked = command("users", "create", "etl", "--password-file", word, *more, code=2)
    assert f"User etl has a password for {SHA_512}: replace it?" in asked.error
    command("users", "create", "etl", "--password-file", word, *more, "--yes")
    command("users", "create", "other", "--password-file", word)
    assert command("users", "list").out.splitlines() == [
        "USER   MECHANISM      ITERATIONS",
        f"etl    {SHA_256}       8,192",
        f"etl    {SHA_512}       8,192",
        f"other  {SHA_512}       4,096",
    ]
    assert command("users", "list", "other", "--json").json == [
        {"user": "other", "mechanism": SHA_512, "iterations": 4096}
    ]
    assert "RESOURCE_NOT_FOUND" in command("users", "list", "other", "nobody", code=1).error

    assert "--yes" in command("users", "delete", "etl", code=2).error
    run = command("users", "delete", "etl", "--mechanism", SHA_256, "--yes")
    assert run.out == f"user etl: the password for {SHA_256} was deleted\n"
    assert admin.describe_user_scram_credentials(["etl"])["etl"] == (
        ScramCredentialInfo(SHA_512, 8192),
    )
    run = command("users", "delete", "etl", "--mechanism", SHA_256, "--yes", code=1)
    assert f"user etl has no password for {SHA_256}, only for {SHA_512}" in run.error
    # One user is missing: nothing is deleted.
    assert "nobody" in command("users", "delete", "other", "nobody", "--yes", code=1).error
    command("users", "delete", "other", "etl", "--yes")
    assert admin.describe_user_scram_credentials().all() == {}


def test_a_password_from_stdin(command, fake, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{HUSH}\r\n"))
    command("users", "create", "etl", "--password-file", "-")
    assert was_sent(fake)


def test_a_password_from_the_prompt(command, fake, monkeypatch):
    requests: list[tuple[str, dict[str, Any]]] = []

    def prompt(text: str, **options: Any) -> str:
        requests.append((text, options))
        return HUSH

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr("typer.prompt", prompt)
    run = command("users", "create", "etl", "--mechanism", SHA_256)
    assert was_sent(fake)
    ((text, options),) = requests
    assert text == "Password of user etl"
    assert options == {"hide_input": True, "confirmation_prompt": True, "err": True}
    assert HUSH not in run.out + run.err
    # The second time the command asks, and the response is "y".
    run = command("users", "create", "etl", "--mechanism", SHA_256)
    assert "replace it?" in run.err
    assert len(requests) == 2


def test_wrong_use_is_one_line_without_the_password(command, fake, tmp_path):
    def file(content: bytes) -> str:
        path = tmp_path / str(len(content))
        path.write_bytes(content)
        return f"users create etl --password-file {path}"

    for given, code, text in (
        ("users create etl", 2, "give --password-file FILE, or - for stdin"),
        ("users create etl --iterations 4095", 2, "4,096"),
        ("users create etl --iterations 16385", 2, "16,384"),
        ("users create etl --mechanism PLAIN", 2, f"must be one of {SHA_256}, {SHA_512}"),
        ("users create etl --mechanism SHA-512", 2, f"did you mean '{SHA_512}'"),
        ("users create etl --password-file /no/such/file", 1, "/no/such/file"),
        (file(b"\n"), 2, "a password is one line, and not empty"),
        (file(b"hush\nhush\n"), 2, "a password is one line"),
        (file(b"hush\xff"), 2, "not UTF-8"),
        (file(b"hush" * (1 << 19)), 2, "larger than"),
    ):
        run = command(*given.split(), code=code)
        assert text in run.error, given
        assert "hush" not in run.err
    assert fake.requests_of("AlterUserScramCredentials") == []


def test_errors_from_the_brokers(command, fake, word):
    fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="DescribeUserScramCredentials")
    run = command("users", "create", "etl", "--password-file", word, code=1)
    assert "grant DESCRIBE on the cluster" in run.error
    fake.fault(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, api="AlterUserScramCredentials")
    run = command("users", "create", "etl", "--password-file", word, "--debug", code=1)
    assert "grant ALTER on the cluster" in run.err
    assert "hush" not in run.err
