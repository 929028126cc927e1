"""confluent-kafka's serializers and we, through a real registry and a real broker, in Spark."""

from __future__ import annotations

import pytest

from tests.real.peers import confluent_read
from tests.real.schema_peers import (
    AVRO,
    JSON,
    ORDER,
    PROTOBUF,
    SchemaPeer,
    plain,
    versions,
)
from tests.support.protoc import compiled
from tests.support.registry_proxy import guid_of, guid_proxy

pytestmark = pytest.mark.real

PREFIX, HEADERS = "prefix", "headers"
"""Where schema ids are."""

# Protobuf has more behind the id, so it is read and written with both.
KINDS = [(AVRO, PREFIX), (PROTOBUF, PREFIX), (PROTOBUF, HEADERS), (JSON, HEADERS)]

MESSAGE = {AVRO: {}, JSON: {}, PROTOBUF: {"valueSchemaMessage": ORDER}}


@pytest.fixture
def peer(request, kafka_cluster, schema_registry):
    """confluent-kafka with ids in payloads, or in headers."""
    with guid_proxy(schema_registry) as proxy:
        servers = kafka_cluster.bootstrap_servers
        yield SchemaPeer(servers, proxy.url, in_headers=request.param == HEADERS)


each_kind = pytest.mark.parametrize(("form", "peer"), KINDS, indirect=["peer"])


@pytest.fixture(scope="module")
def kept():
    """What `mixed` has made: its topics are read only."""
    return {}


@pytest.fixture
def mixed(peer, schema_registry, new_topic, kept):
    """A topic of three versions of a schema, a tombstone between two of them: `mixed(AVRO)`."""

    def make(form: str) -> tuple[str, list[object]]:
        if (peer.in_headers, form) in kept:
            return kept[peer.in_headers, form]
        topic = new_topic(prefix=f"peers-{form}")
        subject = f"{topic}-value"
        seen: list[object] = []
        for number, version in enumerate(versions(form)):
            if form != AVRO and number == 1:
                # Apicurio's rules for these are not what is tested.
                schema_registry.set_compatibility("NONE", subject)
            if form == PROTOBUF:  # see tests/support/registry_proxy.py
                schema_registry.register(subject, version.schema, "PROTOBUF")
            records = list(peer.records(topic, form, version.schema, version.values))
            peer.write(topic, records)
            seen += version.seen
            if number == 0:
                peer.write(topic, list(peer.records(topic, form, version.schema, [None])))
                seen.append(None)
        kept[peer.in_headers, form] = topic, seen
        return topic, seen

    return make


@each_kind
def test_what_confluent_says(peer, mixed, schema_registry, form):
    """The rows that ours is held to are those of confluent-kafka's own deserializer, and the ids
    are where they should be."""
    topic, seen = mixed(form)
    if form == JSON:
        seen = [dict(value) for version in versions(JSON) for value in version.values]
        assert [value for value in peer.read(topic, JSON) if value is not None] == seen
    else:
        assert peer.read(topic, form, versions(form)[-1].schema) == seen
    subject = f"{topic}-value"
    ids = [
        schema_registry.call("GET", f"/subjects/{subject}/versions/{number}")["id"]
        for number in (1, 2, 3)
    ]
    found = set()
    for row in confluent_read(peer.servers, topic):
        if row.value is None:
            continue
        if peer.in_headers:
            ((name, content),) = row.headers
            assert name == "__value_schema_id"
            found.add(content[:17])
        else:
            assert not row.headers
            found.add(row.value[:5])
    if peer.in_headers:
        assert found == {b"\x01" + guid_of(number).bytes for number in ids}
    else:
        assert found == {b"\x00" + number.to_bytes(4, "big") for number in ids}


# --- they write, we read ------------------------------------------------------------------------


def read(spark, peer, topic, form, schema=None, **options):
    reader = (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", peer.servers)
        .option("subscribe", topic)
        .option("valueFormat", form)
        .option("schema.registry.url", peer.registry_url)
        .options(**MESSAGE[form], **options)
    )
    return (reader.schema(schema) if schema else reader).load()


def values(frame):
    return [plain(row["value"]) for row in frame.orderBy("offset").collect()]


@pytest.mark.spark
@each_kind
def test_we_read_three_versions_as_the_newest(spark, peer, mixed, form):
    """All fields, and those that are asked for by the names of the newest version; `title` had
    another one before."""
    topic, seen = mixed(form)
    assert values(read(spark, peer, topic, form)) == seen
    text = "name" if form == JSON else "title"
    schema = f"value struct<weight: double, {text}: string, id: bigint>, offset bigint"
    expected = [row and {name: row[name] for name in ("weight", text, "id")} for row in seen]
    assert values(read(spark, peer, topic, form, schema)) == expected


@pytest.mark.spark
@pytest.mark.parametrize("peer", [PREFIX], indirect=True)
def test_we_read_an_older_version_of_avro(spark, peer, mixed):
    """Its reader finds a field under the name that it had: in the newest version it is missing."""
    topic, _ = mixed(AVRO)
    old = read(spark, peer, topic, AVRO, valueSchemaVersion=2, onBadRecord="column")
    rows = old.orderBy("offset").collect()
    first, second, third = versions(AVRO)
    count = len(first.values) + 1 + len(second.values)
    assert [row.value and row.value.name for row in rows[:count]] == [
        *(value["name"] for value in first.values),
        None,
        *(value["name"] for value in second.values),
    ]
    assert all(row.bad_record is None for row in rows[:count])
    assert len(rows) == count + len(third.values)
    assert all("name" in row.bad_record.error for row in rows[count:])


# --- we write, they read ------------------------------------------------------------------------


def write(frame, peer, topic, form, message=ORDER, **options):
    (
        frame.orderBy("offset")
        .coalesce(1)
        .select("value")
        .write.format("pykafka")
        .option("kafka.bootstrap.servers", peer.servers)
        .option("topic", topic)
        .option("valueFormat", form)
        .option("schema.registry.url", peer.registry_url)
        .option("valueFraming", "headers" if peer.in_headers else "confluent")
        .options(**(MESSAGE[form] if message else {}), **options)
        .mode("append")
        .save()
    )


@pytest.mark.spark
@each_kind
def test_they_read_what_we_write_with_the_latest_version(
    spark, peer, mixed, new_topic, schema_registry, form
):
    source, seen = mixed(form)
    topic = new_topic(prefix=f"ours-{form}")
    newest = versions(form)[-1].schema
    schema_registry.register(f"{topic}-value", newest, form.upper())
    options = {"use.latest.version": "true"}
    write(read(spark, peer, source, form), peer, topic, form, **options)
    assert values(read(spark, peer, topic, form)) == seen
    found = peer.read(topic, form, newest)
    if form == JSON:  # what is null there is absent here
        seen = [without_nulls(row) for row in seen]
        found = [without_nulls(row) for row in found]
    assert found == seen


@pytest.mark.spark
@each_kind
def test_they_read_what_we_write_with_a_schema_of_the_rows(
    spark, peer, mixed, new_topic, schema_registry, form
):
    source, seen = mixed(form)
    topic = new_topic(prefix=f"ours-made-{form}")
    options = {"auto.register.schemas": "true"}
    write(read(spark, peer, source, form), peer, topic, form, message="", **options)
    if form == PROTOBUF:
        path = f"/subjects/{topic}-value/versions/latest"
        text = schema_registry.call("GET", path)["schema"]
        made = compiled(text)[-1]
        name = ".".join(filter(None, (made.package, made.message_type[0].name)))
        found = peer.read(topic, form, text, name)
    else:
        found = peer.read(topic, form)
    if form == JSON:
        seen = [without_nulls(row) for row in seen]
        found = [without_nulls(row) for row in found]
    assert found == seen


@pytest.mark.spark
def test_a_protobuf_schema_that_is_a_descriptor_in_base64(
    spark, kafka_cluster, schema_registry, new_topic
):
    """Apicurio's registry keeps what confluent-kafka sends; Confluent's makes a text of it."""
    peer = SchemaPeer(kafka_cluster.bootstrap_servers, schema_registry.url)
    topic = new_topic(prefix="base64")
    version = versions(PROTOBUF)[-1]
    peer.write(topic, list(peer.records(topic, PROTOBUF, version.schema, version.values)))
    kept = schema_registry.call("GET", f"/subjects/{topic}-value/versions/latest")["schema"]
    assert "syntax" not in kept
    assert values(read(spark, peer, topic, PROTOBUF)) == version.seen


def without_nulls(row):
    if isinstance(row, dict):
        return {name: without_nulls(item) for name, item in row.items() if item is not None}
    return row
