"""SCRAM users by Admin on fake brokers: what is stored, each error, and where a password is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from sparkkafka.client import (
    Admin,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from sparkkafka.errors import (
    BrokerError,
    ErrorCode,
    KafkaTimeoutError,
    OptionError,
    UnsupportedVersionError,
)
from sparkkafka.protocol.messages import DescribeUserScramCredentialsResponse as Described
from sparkkafka.protocol.messages import DescribeUserScramCredentialsResult as OfUser
from sparkkafka.secret import Secret
from sparkkafka.testing.fake.faults import Drop, ErrorResponse
from tests.client.support import settings
from tests.support.frames import variables_of

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HUSH = "hush-hush"


def setting(user: str = "alice", mechanism: str = SHA_512, **more: Any) -> Any:
    return UserScramCredentialUpsertion(user, mechanism, **{"password": HUSH} | more)


def deleting(user: str = "alice", mechanism: str = SHA_512) -> UserScramCredentialDeletion:
    return UserScramCredentialDeletion(user, mechanism)


@pytest.fixture
def admin(fake_cluster: Any) -> Iterator[Admin]:
    with Admin(settings(fake_cluster)) as admin:
        yield admin


def sent(fake: Any) -> list[Any]:
    return [
        row
        for request in fake.requests_of("AlterUserScramCredentials")
        for row in request.message.upsertions
    ]


def test_passwords_are_set_described_and_deleted(admin: Admin, fake_cluster: Any) -> None:
    assert admin.describe_user_scram_credentials().all() == {}
    both = [setting(), setting(mechanism=SHA_256, iterations=8192), setting("bob")]
    assert admin.alter_user_scram_credentials(both).all() == {"alice": None, "bob": None}
    of_alice = (ScramCredentialInfo(SHA_256, 8192), ScramCredentialInfo(SHA_512, 4096))
    assert admin.describe_user_scram_credentials().all() == {
        "alice": of_alice,
        "bob": (ScramCredentialInfo(SHA_512, 4096),),
    }
    found = admin.describe_user_scram_credentials(["carol", "alice"])
    assert found["alice"] == of_alice
    with pytest.raises(BrokerError, match=r"RESOURCE_NOT_FOUND.*user carol"):
        found.all()
    assert admin.describe_user_scram_credentials([]).all() == {}
    # A broker that refuses it dies of None.
    assert [row.message.users for row in fake_cluster.requests if "Describe" in row.api][:1] == [[]]

    admin.alter_user_scram_credentials([deleting(), setting("bob", iterations=5000)]).all()
    assert admin.describe_user_scram_credentials().all() == {
        "alice": of_alice[:1],
        "bob": (ScramCredentialInfo(SHA_512, 5000),),
    }


def test_only_the_salted_password_is_sent(admin: Admin, fake_cluster: Any, caplog: Any) -> None:
    admin.alter_user_scram_credentials([setting(), setting("bob", SHA_256, iterations=5000)]).all()
    assert "PLAINTEXT sends salted passwords in the clear" in caplog.text
    assert HUSH not in caplog.text
    alice, bob = sorted(sent(fake_cluster), key=lambda row: row.name)
    for row, hash_name in ((alice, "sha512"), (bob, "sha256")):
        assert row.salted_password == hashlib.pbkdf2_hmac(
            hash_name, HUSH.encode(), row.salt, row.iterations
        )
        assert len(row.salt) >= 16
        assert HUSH not in repr(row)
        assert repr(row.salted_password) not in repr(row)
    assert alice.salt != bob.salt


def test_a_reference_is_looked_up_and_a_secret_is_not(
    admin: Admin, fake_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OF_ALICE", HUSH)
    (tmp_path / "word").write_text(f"{HUSH}\n")
    reference = "${env:OF_ALICE}"
    for given, password in (
        (reference, HUSH),
        (f"${{directory:{tmp_path}:word}}", HUSH),
        (Secret(reference), reference),
    ):
        admin.alter_user_scram_credentials([setting(password=given)]).all()
        row = sent(fake_cluster)[-1]
        assert row.salted_password == hashlib.pbkdf2_hmac(
            "sha512", password.encode(), row.salt, row.iterations
        )
    with pytest.raises(OptionError, match=r"password of user alice.*\$\{env:NOT_THERE\}"):
        admin.alter_user_scram_credentials([setting(password="${env:NOT_THERE}")])


def test_one_user_that_is_refused_is_no_error_of_the_others(
    admin: Admin, fake_cluster: Any
) -> None:
    results = admin.alter_user_scram_credentials([setting(), deleting("bob"), setting("carol")])
    assert list(results.values_by_item) == ["alice", "carol"]
    with pytest.raises(BrokerError, match=r"RESOURCE_NOT_FOUND.*user bob"):
        results.all()
    # Of one user each change goes by itself: brokers take no two in one request.
    results = admin.alter_user_scram_credentials(
        [deleting("alice", SHA_256), setting("alice", iterations=9000)]
    )
    with pytest.raises(BrokerError, match=r"RESOURCE_NOT_FOUND.*user alice for SCRAM-SHA-256"):
        results.all()
    assert admin.describe_user_scram_credentials(["alice"])["alice"] == (
        ScramCredentialInfo(SHA_512, 9000),
    )


def test_a_user_with_an_error_does_not_hide_the_others(admin: Admin, fake_cluster: Any) -> None:
    bad = OfUser(user="alice", error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message="why")
    fake_cluster.fault(
        lambda _: Described(results=[OfUser(user="bob"), bad]), api="DescribeUserScramCredentials"
    )
    results = admin.describe_user_scram_credentials()
    assert list(results) == ["alice", "bob"]
    assert results["bob"] == ()
    with pytest.raises(BrokerError, match=r"user alice.*why"):
        results.all()


CALLS = {
    "DescribeUserScramCredentials": lambda admin: admin.describe_user_scram_credentials().all(),
    "AlterUserScramCredentials": lambda admin: admin.alter_user_scram_credentials(
        [setting()]
    ).all(),
}


@pytest.mark.parametrize("api", CALLS)
def test_each_error_and_no_password_in_it(admin: Admin, fake_cluster: Any, api: str) -> None:
    grant = "DESCRIBE" if api.startswith("Describe") else "ALTER"
    for code, message in (
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"grant {grant} on the cluster"),
        (ErrorCode.UNACCEPTABLE_CREDENTIAL, r"UNACCEPTABLE_CREDENTIAL.*so it is"),
        (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "UNSUPPORTED_SASL_MECHANISM"),
    ):
        fake_cluster.fault(ErrorResponse(code, message="so it is"), api=api)
        with pytest.raises(BrokerError, match=message) as caught:
            CALLS[api](admin)
        assert HUSH not in variables_of(caught.value)


@pytest.mark.parametrize("drop", list(Drop))
def test_a_lost_response(admin: Admin, fake_cluster: Any, drop: Drop) -> None:
    for change in (setting(), deleting()):
        rule = fake_cluster.fault(drop, api="AlterUserScramCredentials")
        admin.alter_user_scram_credentials([change]).all()
        assert rule.fired == 1
    assert admin.describe_user_scram_credentials().all() == {}
    assert len({row.salt for row in sent(fake_cluster)}) == 1  # the same when it is sent again
    fake_cluster.fault(drop, api="AlterUserScramCredentials", times=None)
    with Admin(settings(fake_cluster, default_api_timeout_ms=300)) as short:
        with pytest.raises(KafkaTimeoutError) as caught:
            short.alter_user_scram_credentials([setting()]).all()
    seen = variables_of(caught.value)
    assert HUSH not in seen
    assert repr(sent(fake_cluster)[-1].salted_password)[2:-1] not in seen


def test_the_controller_is_asked(fake_cluster_factory: Any) -> None:
    fake = fake_cluster_factory(3, kafka_version="2.8")
    with Admin(settings(fake)) as admin:
        admin.alter_user_scram_credentials([setting()]).all()
        assert list(admin.describe_user_scram_credentials()) == ["alice"]
        fake.broker_down(0)  # which was the controller
        admin.alter_user_scram_credentials([deleting()]).all()
    assert fake.requests_of("AlterUserScramCredentials")[-1].broker == 1


def test_brokers_before_2_7(fake_cluster_factory: Any) -> None:
    with Admin(settings(fake_cluster_factory(kafka_version="2.1"))) as admin:
        for act in CALLS.values():
            with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.7 or later"):
                act(admin)


WRONG: list[tuple[Any, str]] = [
    ([setting(mechanism="SHA-512")], "mechanism must be one of SCRAM-SHA-256, SCRAM-SHA-512"),
    ([setting(mechanism="scram-sha-512")], "did you mean 'SCRAM-SHA-512'"),
    (
        [setting(iterations=4095)],
        "user alice: iterations is a whole number from 4096 to 16384, got 4095",
    ),
    ([setting(iterations=16385)], "from 4096 to 16384, got 16385"),
    ([setting(iterations="4096")], "iterations is a whole number"),
    ([setting("")], "name is not empty"),
    ([setting(user=None)], "a SCRAM user is a name as text"),
    ([setting(password="")], "user alice: the password is empty"),
    ([setting(password=Secret())], "the password is empty"),
    ([setting(password=HUSH.encode())], "the password is text, or a Secret, got bytes"),
    ([setting(password=f"{HUSH}\udcff")], "a character that UTF-8 cannot encode"),
    ([setting(), setting()], "SCRAM-SHA-512 is altered twice in one call"),
    ([setting(), deleting()], "SCRAM-SHA-512 is altered twice in one call"),
    (["alice"], "one in it is of type str"),
    (setting(), "alterations is a list"),
    (deleting(), "alterations is a list: write"),
]


def test_what_cannot_be_a_user_is_an_error_without_the_password(
    admin: Admin, fake_cluster: Any
) -> None:
    for given, message in WRONG:
        with pytest.raises(OptionError, match=message) as caught:
            admin.alter_user_scram_credentials(given)
        assert HUSH not in variables_of(caught.value), message
    with pytest.raises(OptionError, match="users is a list of names"):
        admin.describe_user_scram_credentials("alice")
    assert fake_cluster.requests == []
    assert HUSH not in repr(setting())
