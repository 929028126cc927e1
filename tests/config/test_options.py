"""Options: one table, parsed once, never dropped in silence."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkkafka.config import parsed_options
from sparkkafka.config.client_settings import parse_producer_settings
from sparkkafka.config.kinds import FOREVER_MS, REGISTRY_PREFIX, parse_duration_ms, parse_servers
from sparkkafka.config.option_table import CONNECTOR, KAFKA, Option, Side, Status
from sparkkafka.config.options import (
    ClientOptions,
    FetchOptions,
    ProducerOptions,
    ReadOptions,
    StreamOptions,
    WriteOptions,
    parse_read_options,
    parse_stream_options,
    parse_stream_write_options,
    parse_write_options,
)
from sparkkafka.config.parsed_options import without_unused_values
from sparkkafka.errors import OptionError
from tests.support.options import parse_client_options, parse_fetch_options, parse_producer_options
from tests.tools import option_docs
from tests.tools.option_docs import GROUPS

ROOT = Path(__file__).parents[2]
SERVERS = {"kafka.bootstrap.servers": "host:9092"}
READ = {**SERVERS, "subscribe": "t"}
WRITE = {**SERVERS, "topic": "t"}


pytestmark = pytest.mark.usefixtures("no_warnings_so_far")


def read(**more: str) -> ReadOptions:
    return parse_read_options({**READ, **{k.replace("__", "."): v for k, v in more.items()}})


def write(**more: str) -> WriteOptions:
    return parse_write_options({**WRITE, **{k.replace("__", "."): v for k, v in more.items()}})


# --- the table -------------------------------------------------------------------------------


def test_each_used_row_fills_a_field_and_each_field_has_a_row() -> None:
    rows = {row.field for row in (*CONNECTOR, *KAFKA) if row.status is Status.USED}
    fields = {
        f"{group}.{f.name}"
        for group, cls in GROUPS.items()
        for f in dataclasses.fields(cls)
        if f.name not in ("client", "fetch", "producer", "stream", "security", "formats")
        and group != "registry_tls"  # some of the brokers': test_formats.py
        and group not in ("consumer", "settings", "share")  # of the client library
    }
    for column in ("key", "value"):
        fields -= {f"{column}.column", f"{column}.infer"}  # of the schema
        fields -= {
            f"{column}.{name}" for name in ("envelope", "unwraps", "placeholder", "is_optional")
        }
    fields -= {"format.key", "format.value", "format.registry", "registry.tls", "registry.names"}
    fields.remove("security.names")  # which rows were given
    fields.remove("client.prefix")  # how the user writes names
    fields.remove("client.kept_max_idle_ms")  # filled by connections.max.idle.ms too
    fields.remove("client.first_contact_ms")  # filled by default.api.timeout.ms too
    fields.remove("client.hooks")  # functions, of the library alone: `hooks_of`
    fields.remove("client.allow_auto_create_topics")  # of the library: Spark has createTopic
    # Filled from the rows of the same names of reads.
    fields -= {"write.fail_on_data_loss", "write.metrics_address"}
    assert {row for row in rows if not row.startswith("registry_tls.")} == fields


def test_names_are_unique_per_side() -> None:
    for rows in (CONNECTOR, KAFKA):
        seen: dict[str, list[Side]] = {}
        for row in rows:
            assert not any(
                side.covers(row.side)
                for side in seen.get(row.key, [])
                if row.status is not Status.IGNORED
            ), row.name
            seen.setdefault(row.key, []).append(row.side)


def test_defaults_are_those_of_a_parse_without_options() -> None:
    assert read().client == ClientOptions(bootstrap_servers=(("host", 9092),), prefix="kafka.")
    assert read().fetch == FetchOptions()
    assert write().producer == ProducerOptions()


def test_defaults_pass_their_own_parsers() -> None:
    """The default that a table shows can be written down and means the same."""
    for row in (*CONNECTOR, *KAFKA):
        if row.status is Status.USED and row.default_text is None:
            group, _, name = row.field.partition(".")
            default = next(f.default for f in dataclasses.fields(GROUPS[group]) if f.name == name)
            if option_docs.has_no_default(default):
                continue
            assert row.kind.parse(parsed_options.as_text(default)) == default, row.name


PAGES = sorted(option_docs.DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_the_docs_are_current(page: Path) -> None:
    text = page.read_text("utf-8")
    assert option_docs.update(text) == text, "run: python -m tests.tools.option_docs"


def test_each_table_is_on_one_page() -> None:
    everything = "".join(page.read_text("utf-8") for page in PAGES)
    found = re.findall(r"^<!-- options:(.*) -->$", everything, re.MULTILINE)
    assert sorted(found) == sorted(option_docs.TABLES)
    assert len(found) == everything.count("<!-- options:")


def test_the_tables_of_the_client_library() -> None:
    entry = "### `batch.size`\n\n*a whole number of 0 or more (32 bits)*; default: 524288\n"
    assert entry in option_docs.client_table("producer")
    assert "`group.id`" in option_docs.client_table("consumer")
    assert "`sasl.password`" not in option_docs.client_table("client")


OF_FORMATS = ("formats", "registry", "registry-not-used")


@pytest.mark.parametrize(
    ("rows", "prefix", "tables"),
    [
        ([row for row in CONNECTOR if row.side.covers(Side.READ)], "", ["read", *OF_FORMATS]),
        ([row for row in CONNECTOR if row.side.covers(Side.WRITE)], "", ["write", *OF_FORMATS]),
        (KAFKA, "kafka.", ["kafka", "kafka-not-used", "security", "security-not-used"]),
    ],
    ids=["read", "write", "kafka"],
)
def test_the_tables_name_every_option(
    rows: Sequence[Option], prefix: str, tables: list[str]
) -> None:
    text = "".join(option_docs.TABLES[table]() for table in tables)
    # Names of librdkafka for what has one of Java's stand in that row, without the prefix.
    missing = [
        row.name
        for row in rows
        if f"`{prefix}{row.name}`" not in text
        and f"`{row.name}`" not in text
        and row.alias_of != REGISTRY_PREFIX + row.name  # the page says which may stand without
    ]
    assert missing == []


def test_the_rows_speak_of_what_the_docs_link_to() -> None:
    docs = [row.doc for row in (*CONNECTOR, *KAFKA)]
    unused = [words for words in option_docs.LINKS if not any(words in doc for doc in docs)]
    assert unused == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("true: yes. false: no.", "- `true`: yes.\n- `false`: no."),
        ("What to do. TRUE: a b. false: c.", "What to do.\n\n- TRUE: a b.\n- `false`: c."),
        (
            "true: only one is described. Nothing else.",
            "true: only one is described. Nothing else.",
        ),
    ],
)
def test_values_of_an_option_are_a_list_in_the_docs(text: str, shown: str) -> None:
    assert option_docs.with_list_of_values(text, "true or false") == shown


def test_names_of_settings_are_code_in_the_docs() -> None:
    text = "Set linger.ms, startingOffsets=committed or ${env:A}, e.g. `a.bc` [x](batch.md)."
    assert option_docs.with_code(text) == (
        "Set `linger.ms`, `startingOffsets=committed` or `${env:A}`, e.g. `a.bc` [x](batch.md)."
    )


# --- names -----------------------------------------------------------------------------------


def test_names_in_any_case() -> None:
    given = {"KAFKA.Bootstrap.Servers": "h:1", "SubScribe": "t", "startingoffsets": "Earliest "}
    assert parse_read_options(given).subscription.topics == ("t",)
    assert parse_read_options(given).starting.kind == "earliest"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOfsets", "startingOffsets"),
        ("failondataloss ", "failOnDataLoss"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka-bootstrap-servers", "kafka.bootstrap.servers"),
        ("subscribepatern", "subscribePattern"),
        ("compression", "kafka.compression.type"),
    ],
)
def test_unknown_connector_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match="unknown option") as caught:
        parse_read_options({**READ, name: "x"})
    assert f"did you mean '{nearest}'?" in str(caught.value)


def test_unknown_connector_option_without_a_near_one() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'zzzz'$"):
        read(zzzz="1")


@pytest.mark.parametrize("name", ["path", "paths"])
def test_load_with_a_path_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=rf"option {name} .*load\(\)"):
        read(**{name: "x"})


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(OptionError, match="the name of an option is text, got 1"):
        parse_read_options({1: 2})  # type: ignore[dict-item]


def test_same_name_twice_in_different_case() -> None:
    with pytest.raises(OptionError, match="given twice"):
        parse_read_options({**READ, "Subscribe": "u"})


@pytest.mark.parametrize(
    ("name", "side", "reason"),
    [
        ("auto.offset.reset", "read", "startingOffsets"),
        ("key.deserializer", "read", "binary"),
        ("value.deserializer", "read", "binary"),
        ("enable.auto.commit", "read", "group"),
        ("interceptor.classes", "read", "Java class"),
        ("interceptor.classes", "write", "Java class"),
        ("key.serializer", "write", "as they are"),
        ("value.serializer", "write", "as they are"),
        (
            "transactional.id",
            "write",
            "set deliveryGuarantee=exactly-once, and transactionalIdPrefix",
        ),
    ],
)
def test_refused_as_the_jvm_connector_refuses(name: str, side: str, reason: str) -> None:
    parse, base = (parse_read_options, READ) if side == "read" else (parse_write_options, WRITE)
    with pytest.raises(OptionError) as caught:
        parse({**base, f"kafka.{name}": "x"})
    assert str(caught.value).startswith(f"Kafka option '{name}' is not supported")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.max.poll.records": "5"}, "kafka.max.poll.records has no effect"),
        ({"kafka.fetch.max.byte": "5"}, "did you mean 'kafka.fetch.max.bytes'?"),
        ({"kafka.socket.timeout.ms": "5"}, "did you mean 'kafka.request.timeout.ms'?"),
        ({"startingTimestamp": "1700000000"}, "startingTimestamp: 1700000000 ms after 1970 is in"),
        ({"kafka.acks": "1"}, "kafka.acks has no effect here: it is for writing"),
        ({"kafka.what.ever": "x"}, "unknown Kafka property 'kafka.what.ever' has no effect"),
        ({"topic": "t"}, "option topic has no effect here: it is for writing"),
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer has no effect here"),
        (
            {"startingTimestamp": "5", "startingOffsets": "earliest"},
            "option startingOffsets has no effect beside startingTimestamp",
        ),
        (
            {"endingOffsetsByTimestamp": '{"t":{"0":5}}', "endingOffsets": "latest"},
            "option endingOffsets has no effect beside endingOffsetsByTimestamp",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "Strategy has no effect: the read does not start at a time",
        ),
    ],
)
def test_one_warning_per_option(
    given: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            parse_read_options({**READ, **given})
    assert len(caplog.records) == 1
    assert message in caplog.text


def test_include_headers_on_a_write_has_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    write(includeHeaders="true")
    assert "headers are written if" in caplog.text


def test_options_without_the_one_that_they_need_have_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    levels = {"kafka.compression.gzip.level": "1", "kafka.compression.zstd.level": "1"}
    write(kafka__compression__type="zstd", **levels)
    parse_stream_options({**READ, "maxTriggerDelay": "5s"})
    parse_stream_options({**READ, "maxTriggerDelay": "5s", "minOffsetsPerTrigger": "5"})
    assert [record.getMessage() for record in caplog.records] == [
        "kafka.compression.gzip.level has no effect with kafka.compression.type=zstd",
        "option maxTriggerDelay has no effect without minOffsetsPerTrigger",
    ]


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["true", "TRUE", " false "])
def test_booleans(text: str) -> None:
    assert read(failOnDataLoss=text).fail_on_data_loss is (text.strip().lower() == "true")


@pytest.mark.parametrize("text", ["ture", "1", "yes", ""])
def test_other_booleans_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(failOnDataLoss=text)
    assert str(caught.value) == f"failOnDataLoss must be true or false, got {text!r}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kafka.request.timeout.ms", "2147483648"),  # int32
        ("kafka.request.timeout.ms", "-1"),
        ("kafka.request.timeout.ms", "1.5"),
        ("kafka.request.timeout.ms", "1_000"),
        ("kafka.request.timeout.ms", "٣"),
        ("kafka.request.timeout.ms", "9" * 5000),
        ("kafka.fetch.max.bytes", "-1"),
        ("kafka.fetch.max.bytes", "4294967296"),
        ("kafka.send.buffer.bytes", "-2"),
        ("kafka.isolation.level", "READ_COMMITTED"),
        ("kafkaConsumer.pollTimeoutMs", "0"),
    ],
)
def test_bad_values_name_option_and_value(name: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**READ, name: text})
    assert str(caught.value).startswith(f"{name} must be ")
    assert repr(text[:200]) in str(caught.value)


def test_java_long_max_means_for_ever() -> None:
    assert write(kafka__max__block__ms=str(2**63 - 1)).producer.max_block_ms == 10**12
    with pytest.raises(OptionError):
        write(kafka__max__block__ms=str(2**63))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b:2,, a:1", (("a", 1), ("b", 2))),
        ("[::1]:9092", (("::1", 9092),)),
        ("[fe80::1%eth0]:65535", (("fe80::1%eth0", 65535),)),
        ("PLAINTEXT://a:1", (("a", 1),)),
        ("SASL_SSL://[::1]:1", (("::1", 1),)),
        ("10.0.0.1:9092", (("10.0.0.1", 9092),)),
        ("a,b:2, 10.0.0.1", (("a", 9092), ("b", 2), ("10.0.0.1", 9092))),
        ("[::1],SASL_SSL://[fe80::1%eth0]", (("::1", 9092), ("fe80::1%eth0", 9092))),
        ("PLAINTEXT://a,a:9092", (("a", 9092),)),
    ],
)
def test_servers(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert parse_servers(text) == expected


@pytest.mark.parametrize(
    ("text", "entry", "hint"),
    [
        ("a:1,b:", "'b:'", "port is missing"),
        ("[::1]:", "'[::1]:'", "port is missing"),
        ("::1:9092", "'::1:9092'", "brackets"),
        ("::1", "'::1'", "brackets"),
        ("a,9092", "'9092'", "the host is missing"),
        ("[::1]9092", "'[::1]9092'", ""),
        ("a:0", "'a:0'", ""),
        ("a:65536", "'a:65536'", ""),
        ("a:99999999", "'a:99999999'", ""),
        ("a:x", "'a:x'", ""),
        (":9092", "':9092'", ""),
        ("a b:1", "'a b:1'", ""),
        ("['a:1']", "['a:1']", ""),  # a list of Python as text
        ('"a:1"', "'\"a:1\"'", ""),
        (" , ", "", "no server"),
    ],
)
def test_bad_servers_name_the_entry(text: str, entry: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**READ, "kafka.bootstrap.servers": text})
    assert "kafka.bootstrap.servers must be host:port" in str(caught.value)
    assert entry in str(caught.value)
    assert hint in str(caught.value)


def test_servers_are_required() -> None:
    with pytest.raises(
        OptionError,
        match=r"^Option 'kafka.bootstrap.servers' must be specified for .* Kafka consumer$",
    ):
        parse_read_options({"subscribe": "t"})
    with pytest.raises(
        OptionError, match=r"^Option 'kafka.bootstrap.servers' must be .* producer$"
    ):
        parse_write_options({"topic": "t"})
    with pytest.raises(OptionError, match=r"^Option 'bootstrap.servers' must"):
        parse_client_options({"client.id": "x"})


def test_no_option_at_all_hints_at_sql_tables() -> None:
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        parse_read_options({})


def test_dns_lookup() -> None:
    for choice in ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"):
        assert read(kafka__client__dns__lookup=choice).client.client_dns_lookup == choice
    with pytest.raises(OptionError, match=r"client\.dns\.lookup must be use_all_dns_ips or"):
        read(kafka__client__dns__lookup="default")


def test_security_protocol_in_any_case() -> None:
    assert read(kafka__security__protocol="plaintext").client.security.protocol == "PLAINTEXT"
    with pytest.raises(OptionError, match=r"security.protocol must be one of"):
        read(kafka__security__protocol="TLS")


# --- subscription and offsets ----------------------------------------------------------------


def test_exactly_one_strategy() -> None:
    with pytest.raises(
        OptionError, match="One of the following options must be specified for Kafka source"
    ) as caught:
        parse_read_options({**SERVERS, "topic": "orders"})
    assert "set subscribe to its name: topic is the option of writes" in str(caught.value)
    with pytest.raises(
        OptionError,
        match=r"Only one of the following options can be specified.*subscribe and assign",
    ):
        read(assign='{"t":[0]}')


def test_subscribe_is_a_list() -> None:
    assert read(subscribe=" b, a,,b ").subscription.topics == ("b", "a")
    with pytest.raises(OptionError, match="No topics to subscribe to"):
        read(subscribe=" ,")


def test_pattern_must_not_be_empty() -> None:
    with pytest.raises(OptionError, match="Pattern to subscribe is empty"):
        parse_read_options({**SERVERS, "subscribePattern": " "})


def test_assign() -> None:
    given = {**SERVERS, "assign": ' {"b":[1,0],"a":[2]}'}
    assert parse_read_options(given).subscription.partitions == (("a", 2), ("b", 0), ("b", 1))
    with pytest.raises(OptionError, match="No topicpartitions to assign"):
        parse_read_options({**SERVERS, "assign": "t:0"})


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("startingOffsets", "latest", "starting offset can't be latest for batch queries on Kafka"),
        (
            "endingOffsets",
            " EARLIEST",
            "ending offset can't be earliest for batch queries on Kafka",
        ),
        ("startingOffsets", '{"t":{"0":-1}}', "startingOffsets for t-0 can't be latest for batch"),
        ("endingOffsets", '{"t":{"3":-2}}', "endingOffsets for t-3 can't be earliest for batch"),
        ("startingOffsets", "begin", "startingOffsets must be earliest, committed or JSON"),
        ("startingOffsets", "", "startingOffsets must be earliest, committed or JSON"),
        ("endingOffsets", "end", "endingOffsets must be latest or JSON"),
    ],
)
def test_bounds_of_a_batch(option: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**READ, option: text})
    assert message in str(caught.value)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_the_example_for_offsets_is_taken_as_they_are(option: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**READ, option: "{"})
    example = re.search(r"e\.g\. (\{.*?\}\})", str(caught.value))[1]
    assert parse_read_options({**READ, option: example})


def test_a_list_of_topics_in_subscribe_is_an_error_that_says_how_to_write_it() -> None:
    with pytest.raises(OptionError, match=r"separated by commas: topicA,topicB; got a list, \['a"):
        parse_read_options({**SERVERS, "subscribe": str(["a", "b"])})


def test_specific_offsets() -> None:
    bounds = read(startingOffsets='{"t":{"0":-2,"1":5}}', endingOffsets='{"t":{"0":-1,"1":9}}')
    assert bounds.starting.offsets == {("t", 0): -2, ("t", 1): 5}
    assert bounds.ending.offsets == {("t", 0): -1, ("t", 1): 9}


def test_times_come_before_offsets_and_the_whole_before_partitions() -> None:
    by_partition = '{"t":{"0":5}}'
    both = read(startingTimestamp=" 7 ", startingOffsetsByTimestamp="no JSON", startingOffsets="x")
    assert (both.starting.kind, both.starting.timestamp_ms) == ("timestamp", 7)
    assert both.starting.option == "startingTimestamp"
    some = read(endingOffsetsByTimestamp=by_partition, endingOffsets="earliest")
    assert (some.ending.kind, some.ending.offsets) == ("timestamps", {("t", 0): 5})
    assert some.starting.kind == "earliest"


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("startingTimestamp", "yesterday", "Expected a single long value, got yesterday"),
        (
            "endingTimestamp",
            "-1",
            "got -1: it is in milliseconds since 1970, for example 1700000000000, and not negative",
        ),
        ("endingTimestamp", str(2**63), "Expected a single long value"),
        (
            "startingOffsetsByTimestamp",
            '{"t":{"0":-1}}',
            "'t' partition 0 is -1, before 1970",
        ),
        ("endingOffsetsByTimestamp", '{"t":{"0":1.5}}', "partition 0 is not a whole number: 1.5"),
        ("endingOffsetsByTimestamp", "earliest", "Expected e.g. {"),
        ("startingOffsetsByTimestampStrategy", "first", "must be error or latest, got 'first'"),
        ("minPartitions", "0", "minPartitions must be a whole number of 1 or more"),
        ("maxRecordsPerPartition", "-1", "maxRecordsPerPartition must be a whole number of 1"),
    ],
)
def test_times_and_splits_that_mean_nothing(option: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**READ, option: text})
    assert message in str(caught.value)
    assert option in str(caught.value)


def test_splits_and_strategy() -> None:
    given = read(
        minPartitions="8",
        maxRecordsPerPartition="5000000000",
        startingOffsetsByTimestampStrategy="Latest",
    )
    assert (given.min_partitions, given.max_records_per_partition) == (8, 5_000_000_000)
    assert given.no_match_strategy == "latest"
    assert (read().min_partitions, read().no_match_strategy) == (None, "error")


# --- rules between settings --------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acks_below_all_switch_idempotence_off(acks: str, caplog: pytest.LogCaptureFixture) -> None:
    producer = parse_producer_options({"acks": acks})
    assert (producer.acks, producer.enable_idempotence) == (int(acks), False)
    assert not caplog.records


@pytest.mark.parametrize(
    "given", [{"retries": "0"}, {"max.in.flight.requests.per.connection": "6"}]
)
def test_other_conflicts_switch_it_off_with_a_warning(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert not parse_producer_options(given).enable_idempotence
    assert "turns idempotence off" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acks": "1"}, "needs acks=all, but acks is 1"),
        ({"retries": "0"}, "needs retries above 0, but retries is 0"),
        ({"max.in.flight.requests.per.connection": "6"}, "needs at most 5 max.in.flight"),
    ],
)
def test_explicit_idempotence_conflicts(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_producer_options({"enable.idempotence": "true", **given})
    assert message in str(caught.value)
    given = {"enable.idempotence": "false", **given}
    assert not parse_producer_options(given).enable_idempotence


def test_acks_all_and_minus_one() -> None:
    assert parse_producer_options({"acks": "all"}).acks == -1
    assert parse_producer_options({"acks": "-1", "enable.idempotence": "true"}).enable_idempotence


@pytest.mark.parametrize(
    ("servers", "size_bytes"),
    [
        ("ns.servicebus.windows.net:9093", 1_000_000),
        ("broker:9092,NS.ServiceBus.Windows.Net.:9093", 1_000_000),
        ("ns.servicebus.usgovcloudapi.net:9093", 1_000_000),
        ("servicebus.windows.net.example.org:9093", 1_048_576),
        ("broker:9092", 1_048_576),
    ],
)
def test_event_hubs_has_defaults_of_its_own(
    servers: str, size_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"kafka.bootstrap.servers": servers, "topic": "t"}
    assert parse_write_options(given).producer.max_request_size == size_bytes
    assert parse_producer_settings({"bootstrap.servers": servers}).producer.max_request_size == (
        size_bytes
    )
    is_event_hubs = size_bytes == 1_000_000
    assert (parse_write_options(given).client.connections_max_idle_ms == 180_000) is is_event_hubs
    given["kafka.connections.max.idle.ms"] = "7"
    assert parse_write_options(given).client.connections_max_idle_ms == 7
    given["kafka.max.request.size"] = "1046527"
    assert parse_write_options(given).producer.max_request_size == 1_046_527
    assert not caplog.records
    given["kafka.max.request.size"] = "1046528"
    assert parse_write_options(given).producer.max_request_size == 1_046_528
    assert ("kafka.max.request.size=1046528 is above the limit" in caplog.text) is is_event_hubs


def test_delivery_timeout() -> None:
    with pytest.raises(OptionError, match=r"should be equal to or larger than linger.ms"):
        write(kafka__delivery__timeout__ms="30000")
    exact = {"kafka__delivery__timeout__ms": "30000", "kafka__linger__ms": "0"}
    assert write(**exact).producer.delivery_timeout_ms == 30_000
    # What is enough with Java's default of linger.ms is enough with ours: ours is what fits.
    for delivery, linger_ms in (("30005", 5), ("30100", 100), ("60000", 500)):
        assert write(kafka__delivery__timeout__ms=delivery).producer.linger_ms == linger_ms
    # As in Java, a default that does not fit is moved.
    assert write(kafka__request__timeout__ms="200000").producer.delivery_timeout_ms == 200_500
    huge = write(kafka__request__timeout__ms="2147483647").producer
    assert huge.delivery_timeout_ms == 2**31 - 1


def test_default_api_timeout_moves_with_the_request_timeout() -> None:
    assert read(kafka__request__timeout__ms="90000").client.default_api_timeout_ms == 90_000
    short = read(kafka__default__api__timeout__ms="5000").client
    assert (short.default_api_timeout_ms, short.request_timeout_ms) == (5_000, 30_000)


def test_a_longer_max_block_moves_the_default_of_a_write() -> None:
    assert write(kafka__max__block__ms="180000").client.default_api_timeout_ms == 180_000
    assert write(kafka__max__block__ms="1000").client.default_api_timeout_ms == 60_000
    assert write(kafka__max__block__ms=str(2**63 - 1)).client.default_api_timeout_ms == 2**31 - 1
    given = {"kafka.max.block.ms": "180000", "kafka.default.api.timeout.ms": "5000"}
    assert parse_write_options({**WRITE, **given}).client.default_api_timeout_ms == 5_000


def test_backoff_above_its_maximum(caplog: pytest.LogCaptureFixture) -> None:
    assert read(kafka__retry__backoff__ms="5000").client.retry_backoff_ms == 1_000
    assert "retry.backoff.ms is above retry.backoff.max.ms" in caplog.text
    assert read(kafka__reconnect__backoff__max__ms="10").client.reconnect_backoff_ms == 10


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"compression.type": "gzip", "compression.gzip.level": "-1"}, None),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, 9),
        ({"compression.type": "zstd", "compression.gzip.level": "9"}, None),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, -5),
        ({"compression.type": "lz4", "compression.lz4.level": "17"}, 17),
        ({"compression.type": "none", "compression.lz4.level": "17"}, None),
    ],
)
def test_compression_levels(given: dict[str, str], level: int | None) -> None:
    producer = parse_producer_options(given)
    assert (producer.compression_type, producer.compression_level) == (
        given["compression.type"],
        level,
    )


@pytest.mark.parametrize(
    "given",
    [
        {"compression.gzip.level": "0"},
        {"compression.lz4.level": "18"},
        {"compression.type": "brotli"},
    ],
)
def test_bad_compression(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        parse_producer_options(given)


# --- without Spark ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", "murmur2_random"),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", "random"),
        (" org.apache.kafka.clients.producer.RoundRobinPartitioner ", "round_robin"),
        ("consistent_random", "consistent_random"),
        ("fnv1a", "fnv1a"),
        ("round_robin", "round_robin"),
    ],
)
def test_partitioners(text: str, word: str) -> None:
    assert write(kafka__partitioner__class=text).producer.partitioner == word


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("com.acme.ByRegion", r"got 'com.acme.ByRegion': no Java class runs here$"),
        ("Murmur2", r"got 'Murmur2'$"),
        ("", r"got ''$"),
    ],
)
def test_other_partitioners_are_refused_with_those_that_there_are(text: str, message: str) -> None:
    listed = r"must be one of murmur2_random, murmur2, consistent_random, .*RoundRobinPartitioner, "
    with pytest.raises(OptionError, match=rf"^kafka\.partitioner\.class {listed}{message}"):
        write(kafka__partitioner__class=text)


def test_ignoring_keys_is_for_the_default_partitioner_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert write(kafka__partitioner__ignore__keys="true").producer.partitioner_ignore_keys
    assert not caplog.records
    given = {"kafka.partitioner.class": "fnv1a", "kafka.partitioner.ignore.keys": "true"}
    options = parse_write_options({**WRITE, **given}).producer
    assert (options.partitioner, options.partitioner_ignore_keys) == ("fnv1a", False)
    assert "kafka.partitioner.ignore.keys has no effect" in caplog.text


def test_transaction_timeout() -> None:
    assert write().producer.transaction_timeout_ms is None
    given = write(kafka__transaction__timeout__ms="45000")
    assert given.producer.transaction_timeout_ms == 45_000


def test_one_mapping_serves_all_three_parsers() -> None:
    config = {
        "bootstrap.servers": "h:1",
        "acks": 1,
        "check.crcs": False,
        "request.timeout.ms": 7000,
    }
    assert parse_client_options(config).request_timeout_ms == 7000
    assert parse_fetch_options(config).check_crcs is False
    assert parse_producer_options(config).acks == 1


def test_unknown_settings_are_errors_without_spark() -> None:
    with pytest.raises(
        OptionError, match=r"unknown setting 'bootstrap.server'; did you mean 'bootstrap.servers'"
    ):
        parse_client_options({"bootstrap.server": "h:1"})


def test_none_is_not_given() -> None:
    assert parse_producer_options({"acks": None}) == ProducerOptions()


# --- secrets ---------------------------------------------------------------------------------


def test_values_of_secret_options_hide_their_text() -> None:
    for row in (*CONNECTOR, *KAFKA):
        if row.secret:
            text = "10.0.0.7:1/" + "5e" * 16 if row.name == "metricsAddress" else "5e" * 16
            if row.name.endswith("user.info"):
                text = f"user:{text}"
            assert "5e5e" not in repr(row.kind.parse(text)), row.name


def test_secret_values_are_not_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(parsed_options._KAFKA["request.timeout.ms"], secret=True)
    monkeypatch.setitem(parsed_options._KAFKA, "request.timeout.ms", row)
    with pytest.raises(OptionError, match="must be") as caught:
        read(kafka__request__timeout__ms="hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_password_as_the_value_of_another_setting_of_security_is_not_in_errors() -> None:
    given = {**READ, "valueFormat": "avro", "schema.registry.url": "https://h"}
    errors = []
    for row in (*KAFKA, *CONNECTOR):
        if re.search(r"\b(?:security|ssl|sasl|auth)\.", row.name):
            name = row.name if row in CONNECTOR else f"kafka.{row.name}"
            try:
                parse_read_options({**given, name: "hunter2"})
            except OptionError as error:
                errors.append(str(error))
    assert len(errors) > 20
    assert not [error for error in errors if "hunter2" in error]


def test_a_wrong_security_protocol_names_the_right_ones() -> None:
    with pytest.raises(OptionError) as raised:
        parse_read_options({**READ, "kafka.security.protocol": "SASL_TLS"})
    assert str(raised.value) == (
        "kafka.security.protocol must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, "
        "got 'SASL_TLS'"
    )


def test_unknown_properties_are_not_kept() -> None:
    given = {**READ, "kafka.my.password": "hunter2"}
    assert b"hunter2" not in pickle.dumps(parse_read_options(given))
    kept = without_unused_values(given)
    assert kept["kafka.my.password"] == ""
    assert kept["kafka.bootstrap.servers"] == "host:9092"


def test_options_survive_pickle() -> None:
    for parsed in (read(startingOffsets='{"t":{"0":1}}'), write()):
        assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize(
    "name",
    [
        "kafka.security.protocl",
        "kafka.security.foo",
        "kafka.sasl.mechanismo",
        "kafka.sasl.foo",
        "kafka.ssl.foo.location",
        "kafka.bootstrap.server",
        "kafka.boostrap.servers",
    ],
)
def test_unknown_properties_that_matter_are_errors(name: str) -> None:
    """A job must not talk in plain text, or to the wrong cluster, because of a typo."""
    with pytest.raises(OptionError, match=f"unknown Kafka property '{name}'") as raised:
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", name: "hunter2"})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    ["kafka.ssl.engine.location", "kafka.ssl.engine.id", "password"],
)
def test_values_that_nothing_reads_are_not_kept(name: str) -> None:
    kept = without_unused_values({**SERVERS, "subscribe": "t", name: "hunter2"})
    assert kept[name] == ""
    assert kept["subscribe"] == "t"
    with pytest.raises(OptionError) as raised:
        parse_read_options(kept)
    assert name.removeprefix("kafka.") in str(raised.value)


def test_messages_do_not_repeat_long_values_or_passwords() -> None:
    for name in ("failOnDataLoss", "startingOffsets", "endingOffsets"):
        with pytest.raises(OptionError, match=name) as raised:
            parse_read_options({**READ, name: "x" * 10_000})
        assert len(str(raised.value)) < 500
    with pytest.raises(OptionError) as raised:
        parse_read_options({"kafka.bootstrap.servers": "user:hunter2@host", "subscribe": "t"})
    assert "hunter2" not in str(raised.value)
    assert "host" in str(raised.value)


# --- streams ---------------------------------------------------------------------------------


def stream(**more: str) -> ReadOptions:
    return parse_stream_options({**READ, **{k.replace("__", "."): v for k, v in more.items()}})


def test_a_stream_starts_at_latest_by_default() -> None:
    assert stream().starting.kind == "latest"
    assert stream(startingOffsets=" Earliest").starting.kind == "earliest"
    offsets = stream(startingOffsets='{"t":{"0":-1,"1":-2,"2":7}}').starting.offsets
    assert offsets == {("t", 0): -1, ("t", 1): -2, ("t", 2): 7}
    assert stream(startingTimestamp="5", startingOffsets="what").starting.timestamp_ms == 5


@pytest.mark.parametrize(
    ("text", "fallback"),
    [("committed", ""), ("Committed, earliest", "earliest"), ("committed,latest", "latest")],
)
def test_committed_offsets_need_a_group(text: str, fallback: str) -> None:
    for parse in (parse_stream_options, parse_read_options):
        found = parse({**READ, "startingOffsets": text, "kafka.group.id": "g"})
        assert (found.starting.kind, found.starting.fallback) == ("committed", fallback)
        assert found.group_id == "g"
        with pytest.raises(OptionError, match="set kafka"):
            parse({**READ, "startingOffsets": text})


def test_ends_of_a_stream_are_refused() -> None:
    for name, what in [
        ("endingOffsets", "ending offset not valid in streaming queries"),
        ("endingOffsetsByTimestamp", "ending timestamp not valid in streaming queries"),
        ("endingTimestamp", "ending timestamp not valid in streaming queries"),
    ]:
        with pytest.raises(OptionError, match=what):
            stream(**{name: "1"})


def test_limits_of_a_stream() -> None:
    assert stream().stream == StreamOptions()
    found = stream(
        maxOffsetsPerTrigger="10", minOffsetsPerTrigger="3", maxTriggerDelay="2m",
        maxBytesPerTrigger="1000",
    )  # fmt: skip
    assert found.stream == StreamOptions(
        max_offsets_per_trigger=10,
        min_offsets_per_trigger=3,
        max_trigger_delay_ms=120_000,
        max_bytes_per_trigger=1000,
    )
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"):
        for bad in ("0", "-1", "x", "1.5"):
            with pytest.raises(OptionError, match=name):
                stream(**{name: bad})
    message = r"minOffsetPerTrigger\(9\) is higher than the maxOffsetsPerTrigger\(3\)"
    with pytest.raises(OptionError, match=message):
        stream(maxOffsetsPerTrigger="3", minOffsetsPerTrigger="9")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250", 250),
        ("250ms", 250),
        ("2s", 2000),
        ("3 m", 180_000),
        ("1min", 60_000),
        ("1h", 3_600_000),
        ("2D", 172_800_000),
        ("5000us", 5),
        ("999999999999999999d", FOREVER_MS),
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P2DT0.5S", 172_800_500),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms
    assert stream(maxTriggerDelay=text).stream.max_trigger_delay_ms == ms


@pytest.mark.parametrize(
    "text",
    ["", "m", "1.5s", "-1s", "1 week", "1s2", "P", "PT", "1D1", "P1M", "P-1D", "PT1H2D", "P1DT"],
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_ms(text)
    with pytest.raises(OptionError, match="maxTriggerDelay must be a duration like"):
        stream(maxTriggerDelay=text)


def test_limits_have_no_effect_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    read(maxOffsetsPerTrigger="5", maxTriggerDelay="1s")
    assert [record.getMessage() for record in caplog.records] == [
        f"option {name} has no effect in a batch read: it is for streams"
        for name in ("maxOffsetsPerTrigger", "maxTriggerDelay")
    ]


def test_looking_up_offsets() -> None:
    assert (read().fetch_offset_num_retries, read().fetch_offset_retry_interval_ms) == (3, 1000)
    found = read(fetchOffset__numRetries="7", fetchOffset__retryIntervalMs="0")
    assert (found.fetch_offset_num_retries, found.fetch_offset_retry_interval_ms) == (7, 0)
    with pytest.raises(OptionError, match=r"fetchOffset\.numRetries"):
        read(fetchOffset__numRetries="0")


def test_a_group_id_prefix_has_nothing_to_name(caplog: pytest.LogCaptureFixture) -> None:
    stream(groupIdPrefix="g")
    assert "groupIdPrefix has no effect: the read forms no consumer group" in caplog.text


# --- topics that are made --------------------------------------------------------------------


def test_create_topic_options() -> None:
    given = {
        **WRITE,
        "createTopic": "true",
        "createTopic.partitions": "12",
        "createTopic.replicationFactor": "3",
        "createTopic.configs": '{"cleanup.policy": "compact", "retention.ms": 5, "x": true}',
    }
    parsed = parse_write_options(given)
    assert (parsed.create_topic, parsed.create_partitions) == (True, 12)
    assert parsed.create_replication_factor == 3
    assert dict(parsed.create_configs) == {
        "cleanup.policy": "compact",
        "retention.ms": "5",
        "x": "true",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compact", "createTopic.configs must be JSON"),
        ("[1]", "createTopic.configs must be JSON"),
        ("[" * 100_000, "its brackets are nested too deep"),
        ('{"a": "1", "a": "2"}', "a name occurs twice"),
        ('{"a": null}', "the value of 'a' must be a string or a number"),
        ('{"a": {"b": "c"}}', "the value of 'a' must be a string or a number"),
        ('{"a": NaN}', "the value of 'a' is not a number that JSON or Kafka has"),
        ('{"a": 1e999}', "the value of 'a' is not a number that JSON or Kafka has"),
    ],
)
def test_bad_configs_of_topics(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_write_options({**WRITE, "createTopic": "true", "createTopic.configs": text})
    assert message in str(caught.value)


def test_how_to_make_topics_without_making_them_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse_write_options({**WRITE, "createTopic.partitions": "3"})
    assert caplog.messages == [
        "option createTopic.partitions has no effect without createTopic=true"
    ]


def test_spark_s_own_options_of_a_streaming_write_are_passed_over() -> None:
    own = {"checkpointLocation": "/x", "queryname": "q", "asyncProgressTrackingEnabled": "true"}
    assert parse_stream_write_options({**WRITE, **own}) == parse_write_options(WRITE)
    with pytest.raises(OptionError, match="unknown option"):
        parse_write_options({**WRITE, **own})


@pytest.mark.parametrize("name", ["transactionalIdPrefix", "kafka.client.id"])
@pytest.mark.parametrize("value", ["é" * 16_001, "a\ud800"])
def test_names_that_are_too_long_for_the_wire(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"{name} must be text of at most 32000 bytes") as caught:
        write(**{"deliveryGuarantee": "exactly-once", name: value})
    assert len(str(caught.value)) < 500
    assert write(**{"deliveryGuarantee": "exactly-once", name: "é" * 16_000})


def test_exactly_once_needs_the_idempotent_producer() -> None:
    for name, value in (("acks", "1"), ("enable.idempotence", "false"), ("retries", "0")):
        with pytest.raises(OptionError, match="needs the idempotent producer"):
            write(**{"deliveryGuarantee": "exactly-once", f"kafka.{name}": value})
    options = write(deliveryGuarantee="Exactly-Once", transactionalIdPrefix=" a ")
    assert (options.delivery_guarantee, options.transactional_id_prefix) == ("exactly-once", "a")
    assert write().delivery_guarantee == "at-least-once"
    with pytest.raises(OptionError, match="transactionalIdPrefix is empty"):
        write(deliveryGuarantee="exactly-once", transactionalIdPrefix=" ")
    with pytest.raises(OptionError, match="deliveryGuarantee must be"):
        write(deliveryGuarantee="at-most-once")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transactionalIdPrefix", "a"),
        ("failOnDataLoss", "false"),
        ("kafka.transaction.timeout.ms", "1000"),
    ],
)
def test_what_is_only_for_exactly_once_says_so(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sparkkafka.config.options")
    write(**{name: value})
    assert f"option {name} has no effect in a write without" in caplog.text
    caplog.clear()
    write(**{name: value, "deliveryGuarantee": "exactly-once"})
    assert caplog.text == ""


def test_async_progress_and_exactly_once_exclude_each_other() -> None:
    later = {**WRITE, "asyncProgressTrackingEnabled": "true"}
    assert parse_stream_write_options(later).topic == WRITE["topic"]
    with pytest.raises(OptionError, match="exclude each other"):
        parse_stream_write_options({**later, "deliveryGuarantee": "exactly-once"})
