"""Rules of a registry: which count, what a write refuses and a read warns of, in whose words.

Responses have the JSON that Confluent's client writes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Metadata, MetadataTags, Rule, RuleSet
from confluent_kafka.schema_registry import RuleKind as Kind
from confluent_kafka.schema_registry import RuleMode as Mode
from confluent_kafka.schema_registry.common.avro import get_inline_tags
from confluent_kafka.schema_registry.schema_registry_client import RuleParams

from sparkkafka.config.formats import ColumnFormat, FormatOptions
from sparkkafka.config.kinds import AVRO, JSON, PROTOBUF
from sparkkafka.config.registry import RegistryOptions
from sparkkafka.errors import SchemaError
from sparkkafka.functions import to_avro
from sparkkafka.schemas.column import ColumnDecoder, ColumnPlan, format_module
from sparkkafka.schemas.registry import client as registry_client
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.schemas.schema_choice import encode_plan, reader_schema
from sparkkafka.schemas.values import Schema
from sparkkafka.spark.read.typed_columns import column_plan
from tests.schemas.small_registry import SmallRegistry, small_registry

PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "com.acme",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "ssn", "type": "string", "confluent:tags": ["PII"]},
        {
            "name": "homes",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Home",
                    "fields": [
                        {
                            "name": "street",
                            "type": ["null", "string"],
                            "confluent:tags": ["PII", "LOCATION"],
                        }
                    ],
                },
            },
        },
    ],
}
TEXT = json.dumps(PERSON)
BARE = json.dumps({**PERSON, "doc": "before it had rules"})
HOME = pa.struct([pa.field("street", pa.string())])
ROWS = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("ssn", pa.string(), nullable=False),
        pa.field("homes", pa.list_(pa.field("item", HOME, nullable=False)), nullable=False),
    ]
)
COLUMN = ColumnFormat(column="value", format=AVRO)
PLAIN_TEXT = "com.acme.Person.ssn, com.acme.Home.street (tagged PII): encryptPII (ENCRYPT)"


def rule(
    type: str = "ENCRYPT",
    mode: Mode = Mode.WRITEREAD,
    *,
    name: str = "encryptPII",
    tags: list[str] | None = None,
    disabled: bool = False,
) -> Rule:
    params = RuleParams({"encrypt.kek.name": "kek"})
    kind = Kind.CONDITION if type == "CEL" else Kind.TRANSFORM
    return Rule(name, None, kind, mode, type, tags, params, None, None, None, disabled)


def rules(
    *domain: Rule,
    migration: Rule | None = None,
    encoding: Rule | None = None,
    at: str | None = None,
) -> dict[str, Any]:
    """A rule set, in the JSON of Confluent's client."""
    found = RuleSet(
        [migration] if migration else [], list(domain), [encoding] if encoding else None, at
    ).to_dict()
    return {"ruleSet": found}


PII = rules(rule(tags=["PII"]))


pytestmark = pytest.mark.usefixtures("no_warnings_so_far", "nothing_is_cached")


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        yield one


def client(registry: SmallRegistry) -> RegistryClient:
    return RegistryClient(RegistryOptions(url=registry.url, max_retries=0))


def plan(registry: SmallRegistry, column: ColumnFormat = COLUMN, **more: Any) -> Any:
    formats = FormatOptions(value=column, **more)
    return encode_plan(formats, column, "t", ROWS, client(registry))


# --- writes ----------------------------------------------------------------------------------

WAYS: dict[str, Callable[[SmallRegistry], Any]] = {
    "the latest version": lambda registry: plan(registry, use_latest_version=True),
    "a version": lambda registry: plan(
        registry, ColumnFormat(column="value", format=AVRO, schema_version=2)
    ),
    "an older version": lambda registry: plan(
        registry, ColumnFormat(column="value", format=AVRO, schema_version=1)
    ),
    "a schema that is looked up": lambda registry: plan(
        registry, ColumnFormat(column="value", format=AVRO, schema=TEXT)
    ),
    "an older schema": lambda registry: plan(
        registry, ColumnFormat(column="value", format=AVRO, schema=BARE)
    ),
    "the rows' own": lambda registry: plan(registry, auto_register_schemas=True),
    "without frames": lambda registry: plan(
        registry,
        ColumnFormat(column="value", format=AVRO, framing="none"),
        use_latest_version=True,
    ),
    "a function": lambda registry: to_avro(
        "v", {"schema.registry.url": registry.url}, subject="t-value"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_write_to_a_subject_with_an_encryption_rule_is_refused(
    registry: SmallRegistry, way: str
) -> None:
    registry.add("t-value", BARE)
    registry.add("t-value", TEXT, **PII)
    with pytest.raises(SchemaError) as caught:
        WAYS[way](registry)
    assert str(caught.value).startswith(
        f"subject t-value has rules that encrypt {PLAIN_TEXT}. No rules of a registry are run "
        "here, so column value would be written in plain text"
    )
    assert "or set ignoreEncryptionRules=true" in str(caught.value)
    assert not any(
        request.startswith("POST /subjects/t-value/versions") for request in registry.requests
    )


def test_an_older_version_with_a_rule_is_refused_too(registry: SmallRegistry) -> None:
    registry.add("t-value", TEXT, **PII)
    registry.add("t-value", BARE)
    for schema in (
        ColumnFormat(column="value", format=AVRO, schema_version=1),
        ColumnFormat(column="value", format=AVRO, schema=TEXT),
    ):
        with pytest.raises(SchemaError, match="would be written in plain text"):
            plan(registry, schema)
    assert plan(registry, use_latest_version=True).writer.schema_id == 2


def test_a_user_who_may_only_register_is_refused_by_the_response(
    registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.guids = True  # it answers with the whole schema
    response = registry.respond

    def write_only(method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "GET":
            return 403, {"error_code": 40301, "message": "User is denied operation Read"}
        status, found = response(method, path, body)
        return status, {**found, **contract}

    monkeypatch.setattr(registry, "respond", write_only)
    contract: dict[str, Any] = {}
    assert plan(registry, auto_register_schemas=True).writer.schema_id == 1
    contract = PII  # as a registry gives it to all versions (defaultRuleSet)
    with pytest.raises(SchemaError, match="would be written in plain text"):
        plan(registry, auto_register_schemas=True)


def test_plain_text_can_be_allowed(
    registry: SmallRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.add("t-value", TEXT, **PII)
    for _ in range(2):
        made = plan(registry, use_latest_version=True, ignore_encryption_rules=True)
    assert made.writer.schema_id == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"column value: subject t-value has rules that encrypt {PLAIN_TEXT}. They are written in "
        "plain text (ignoreEncryptionRules=true)"
    ]


@pytest.mark.parametrize(
    "contract",
    [
        rules(rule(disabled=True)),
        rules(rule(mode=Mode.READ)),
        rules(rule(mode=Mode.UPGRADE)),
        rules(rule(), at="SERVER"),
        rules(),
        {"metadata": Metadata(MetadataTags({"**.ssn": ["PII"]}), None, None).to_dict()},
    ],
    ids=["disabled", "of reads", "of migrations", "of the server", "none", "only tags"],
)
def test_rules_that_encrypt_no_write(registry: SmallRegistry, contract: dict[str, Any]) -> None:
    registry.add("t-value", TEXT, **contract)
    assert plan(registry, use_latest_version=True).writer.schema_id == 1


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (rules(rule("encrypt", Mode.WRITE)), "encrypt all fields of text and bytes: encryptPII ("),
        (rules(rule(), at="CLIENT"), "encrypt all fields of text and bytes"),
        (rules(encoding=rule("ENCRYPT_PAYLOAD")), "encrypt the whole payload: encryptPII (ENCRYPT"),
        (
            rules(rule(tags=["LOCATION"]), rule("CEL", name="check")),
            "encrypt com.acme.Home.street (tagged LOCATION): encryptPII (ENCRYPT). No",
        ),
        (
            {
                **rules(rule(tags=["SECRET"])),
                "metadata": Metadata(
                    MetadataTags({"**.ssn": ["SECRET"], "**.id": ["OTHER"]}), None, None
                ).to_dict(),
            },
            "encrypt **.ssn (tagged SECRET)",
        ),
        (rules(rule(tags=["NOBODY"])), "encrypt the fields (tagged NOBODY)"),
        (
            {"ruleSet": {"domainRules": [{"type": "ENCRYPT", "mode": "TOMORROW"}]}},
            "bytes: without a name (ENCRYPT)",
        ),
    ],
)
def test_rules_that_encrypt_a_write(
    registry: SmallRegistry, contract: dict[str, Any], message: str
) -> None:
    registry.add("t-value", TEXT, **contract)
    with pytest.raises(SchemaError) as caught:
        plan(registry, use_latest_version=True)
    assert message in str(caught.value)


def test_other_rules_are_warned_of_once(
    registry: SmallRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    check_age = rule("CEL", Mode.WRITE, name="checkAge")
    rename = rule("JSONATA", Mode.UPGRADE, name="rename")
    registry.add("t-value", TEXT, **rules(check_age, migration=rename))
    for _ in range(2):
        plan(registry, use_latest_version=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "column value: rules of subject t-value are not run here: checkAge (CEL). Values are "
        "written as they are; Confluent's clients check or change them by these rules"
    )
    caplog.clear()
    for _ in range(2):
        reader_schema(COLUMN, "t", client(registry))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "column value: rules of subject t-value, version 1 are not run here: rename (JSONATA). "
        "Values are read as they were written"
    )


# --- reads -----------------------------------------------------------------------------------


def test_a_read_warns_once_and_names_the_fields(
    registry: SmallRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.add("t-value", TEXT, **PII)
    for _ in range(2):
        chosen = reader_schema(COLUMN, "t", client(registry))
        reader_schema(COLUMN, "t", client(registry), pinned=1)
        formats = FormatOptions(value=replace(COLUMN, subject="t-value"))
        column_plan(formats, client(registry), None)  # of from_avro
    assert chosen.schema_id == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "column value: subject t-value, version 1 has rules that encrypt "
        f"{PLAIN_TEXT}. Encrypted fields stay encrypted, since no rules of a registry are run "
        "here: Confluent's deserializers decrypt them"
    )


@pytest.mark.parametrize("by_guid", [False, True])
def test_a_task_that_meets_an_id_with_rules_warns_without_asking_more(
    registry: SmallRegistry, caplog: pytest.LogCaptureFixture, by_guid: bool
) -> None:
    registry.guids = by_guid
    reader = Schema(AVRO, '{"type": "record", "name": "Person", "fields": []}')
    registry.add("t-value", TEXT, **PII)
    made = ColumnPlan("value", AVRO, "confluent", reader, pa.struct([]), subject="t-value")
    frame = b"\0\0\0\0\1"
    if by_guid:
        found = client(registry).latest("t-value").guid
        assert found is not None
        frame = b"\1" + found
        registry.requests.clear()
    for _ in range(2):  # two tasks of a worker
        decoder = ColumnDecoder(made, lambda: client(registry))
        for _ in range(3):
            assert not decoder.decode(pa.array([frame + b"\2\2x\0"] * 5), None).bad
    assert len(registry.requests) == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("column value: schema ")
    assert PLAIN_TEXT in record.getMessage()


def test_rules_of_what_a_schema_refers_to_do_not_count(registry: SmallRegistry) -> None:
    registry.add("base", '{"type": "fixed", "name": "F", "size": 1}', **PII)
    reference = {"name": "F", "subject": "base", "version": 1}
    registry.add("t-value", '{"type": "array", "items": "F"}', references=[reference])
    assert client(registry).latest("t-value").schema.contract is None


# --- tags ------------------------------------------------------------------------------------


def test_tags_of_avro_are_those_that_confluents_client_finds() -> None:
    schema = {
        "type": "record",
        "name": "a.b.Outer",
        "fields": [
            {"name": "one", "type": {"type": "map", "values": PERSON}, "confluent:tags": ["X"]},
            {
                "name": "two",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Inner",
                        "fields": [{"name": "x", "type": "int", "confluent:tags": ["Y", "Z"]}],
                    },
                ],
            },
        ],
    }
    found = format_module(AVRO).inline_tags(Schema(AVRO, json.dumps(schema)))
    assert found == dict(get_inline_tags(schema))
    assert set(found) == {
        "a.b.Outer.one",
        "a.b.Inner.x",
        "com.acme.Person.ssn",
        "com.acme.Home.street",
    }


def test_tags_of_protobuf_are_those_of_the_file_and_of_what_it_uses() -> None:
    text = """
        syntax = "proto3";
        package p;
        import "confluent/meta.proto";
        import "other.proto";
        message M {
          string ssn = 1 [(confluent.field_meta).tags = "PII"];
          repeated Other other = 2 [(confluent.field_meta) = { tags: ["A", "B"], doc: "x" }];
          M again = 3;
        }
    """
    other = """
        syntax = "proto3";
        import "confluent/meta.proto";
        message Other { bytes raw = 1 [(confluent.field_meta).tags = "PII"]; }
    """
    references = (("other.proto", Schema(PROTOBUF, other)),)
    text = text.replace("repeated Other", "repeated .Other")
    found = format_module(PROTOBUF).inline_tags(Schema(PROTOBUF, text, references))
    assert found == {"p.M.ssn": {"PII"}, "p.M.other": {"A", "B"}, "Other.raw": {"PII"}}


def test_tags_of_a_json_schema() -> None:
    text = {
        "properties": {
            "ssn": {"type": "string", "confluent:tags": ["PII"]},
            "homes": {"items": {"properties": {"street": {"confluent:tags": ["PII", "L"]}}}},
        },
        "oneOf": [{"properties": {"x": {"confluent:tags": ["X"]}}}],
        "$defs": {"Card": {"properties": {"number": {"confluent:tags": ["PCI", 7]}}}},
    }
    assert format_module(JSON).inline_tags(Schema(JSON, json.dumps(text))) == {
        "$.ssn": {"PII"},
        "$.homes.street": {"PII", "L"},
        "$.x": {"X"},
        "Card.number": {"PCI"},
    }


@pytest.mark.parametrize(
    ("kind", "text"), [(AVRO, "[" * 100_000), (AVRO, "{"), (JSON, "["), (PROTOBUF, "message {")]
)
def test_a_schema_that_cannot_be_used_still_refuses_and_warns(
    registry: SmallRegistry, kind: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry.add("t-value", text, kind.upper(), **PII)
    column = ColumnFormat(column="value", format=kind)
    with pytest.raises(SchemaError, match=r"encrypt the fields \(tagged PII\)"):
        plan(registry, column, use_latest_version=True)
    reader_schema(column, "t", client(registry))
    assert "encrypt the fields (tagged PII)" in caplog.text


# --- whatever a registry answers --------------------------------------------------------------


@pytest.mark.parametrize(
    "contract",
    [
        {"ruleSet": 7, "metadata": []},
        {"ruleSet": {"domainRules": {"a": 1}, "encodingRules": 7}, "metadata": {"tags": [1]}},
        {"ruleSet": {"domainRules": [7, None, []]}, "metadata": {"tags": {}}},
    ],
)
def test_odd_rule_sets_are_none(registry: SmallRegistry, contract: dict[str, Any]) -> None:
    registry.add("t-value", TEXT, **contract)
    assert client(registry).latest("t-value").schema.contract is None


@pytest.mark.parametrize(
    "contract",
    [
        {"ruleSet": {"domainRules": [{}] * 10_001}},
        {"ruleSet": {"migrationRules": [{"mode": "UPGRADE", "tags": ["x"] * 10_001}]}},
        {"metadata": {"tags": {str(number): [] for number in range(10_001)}}},
    ],
)
def test_a_contract_is_bounded(registry: SmallRegistry, contract: dict[str, Any]) -> None:
    registry.add("t-value", TEXT, **contract)
    with pytest.raises(SchemaError, match="subject 't-value' has more than 10000 rules or tags"):
        client(registry).latest("t-value")


def test_what_a_contract_says_is_shown_short_and_without_control_characters(
    registry: SmallRegistry,
) -> None:
    odd = "a\x1b[31m\n" + "b" * 5000
    many = {
        "metadata": {"tags": {f"f{number}": ["PII"] for number in range(1000)}},
        "ruleSet": {
            "domainRules": [
                {"name": odd, "type": "ENCRYPT", "mode": "WRITE", "tags": ["PII", odd, 7]}
            ]
            * 50
        },
    }
    registry.add("t-value", '"string"', **many)
    with pytest.raises(SchemaError) as caught:
        plan(registry, use_latest_version=True)
    assert len(str(caught.value)) < 2000
    assert str(caught.value).isprintable()
    assert "f8, f9 and 990 more (tagged PII, a [31m" in str(caught.value)
    chosen = client(registry).by_id(1)
    assert chosen.contract is not None
    assert registry_client.text_size(chosen) > 1000 * 100
