"""confluent-kafka's serializers and we, through a real registry and a real broker."""

from __future__ import annotations

import pytest

from tests.real.peers import confluent_read
from tests.real.schema_peers import AVRO, FORMATS, JSON, PROTOBUF, SchemaPeer, versions
from tests.registry_proxy import guid_of, guid_proxy

pytestmark = pytest.mark.real

PREFIX, HEADERS = "prefix", "headers"


@pytest.fixture(params=[PREFIX, HEADERS])
def peer(request, kafka_cluster, schema_registry):
    """confluent-kafka with ids in payloads, or in headers."""
    with guid_proxy(schema_registry) as proxy:
        servers = kafka_cluster.bootstrap_servers
        yield SchemaPeer(servers, proxy.url, in_headers=request.param == HEADERS)


@pytest.fixture
def mixed(peer, schema_registry, new_topic):
    """A topic of three versions of a schema, a tombstone between two of them: `mixed(AVRO)`."""

    def make(form: str) -> tuple[str, list[object]]:
        topic = new_topic(prefix=f"peers-{form}")
        subject = f"{topic}-value"
        seen: list[object] = []
        for number, version in enumerate(versions(form)):
            if form != AVRO and number == 1:
                # Apicurio's rules for these are not what is tested.
                schema_registry.set_compatibility("NONE", subject)
            if form == PROTOBUF:  # see tests/registry_proxy.py
                schema_registry.register(subject, version.schema, "PROTOBUF")
            records = list(peer.records(topic, form, version.schema, version.values))
            peer.write(topic, records)
            seen += version.seen
            if number == 0:
                peer.write(topic, list(peer.records(topic, form, version.schema, [None])))
                seen.append(None)
        return topic, seen

    return make


@pytest.mark.parametrize("form", [AVRO, PROTOBUF])
def test_what_the_newest_reader_sees_is_what_confluent_says(peer, mixed, form):
    """The rows that ours is held to are those of confluent-kafka's own deserializer."""
    topic, seen = mixed(form)
    assert peer.read(topic, form, versions(form)[-1].schema) == seen


def test_json_is_what_was_written(peer, mixed):
    topic, _ = mixed(JSON)
    written = [dict(value) for version in versions(JSON) for value in version.values]
    assert [value for value in peer.read(topic, JSON) if value is not None] == written


@pytest.mark.parametrize("form", FORMATS)
def test_where_the_ids_are(peer, mixed, schema_registry, form):
    topic, _ = mixed(form)
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
