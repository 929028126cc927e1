"""Columns with a schema while a real registry is away, and by TLS, in Spark."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from tests.real.peers import Record
from tests.real.schema_peers import AVRO, SchemaPeer
from tests.support.certificates import signed

pytestmark = [pytest.mark.real, pytest.mark.spark]

API_TIMEOUT_MS = 3000

FIRST = json.dumps({"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "int"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "Sale",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string", "default": ""},
        ],
    }
)


def records(peer, topic, schema, ids) -> list[Record]:
    return list(peer.records(topic, AVRO, schema, [{"id": number, "note": "n"} for number in ids]))


def reader(frames, peer, topic, **options):
    return (
        frames.format("pykafka")
        .option("kafka.bootstrap.servers", peer.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", AVRO)
        .option("schema.registry.url", peer.registry_url)
        .option("schema.registry.request.timeout.ms", "1000")
        .option("schema.registry.api.timeout.ms", str(API_TIMEOUT_MS))
        .options(**options)
    )


def ids(frame) -> list[int]:
    return sorted(row.id for row in frame.select("value.id").collect())


def test_while_the_registry_is_away(
    spark, kafka_cluster, schema_registry_factory, new_topic, tmp_path
):
    """A stream goes on with the schemas that it knows. Reads, by TLS, fail in time and work again
    when it is back."""
    authority, stranger = signed("authority"), signed("stranger")
    server = signed("server", authority, hosts=["127.0.0.1"])
    (tmp_path / "server.pem").write_text(server.pem)
    (tmp_path / "server.key").write_text(server.key_pem())
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "other.pem").write_text(stranger.pem)
    registry = schema_registry_factory(
        "NONE", certificate=(tmp_path / "server.pem", tmp_path / "server.key")
    )
    plain = SchemaPeer(kafka_cluster.bootstrap_servers, registry.plain_url)
    peer = SchemaPeer(kafka_cluster.bootstrap_servers, registry.url)
    topic = new_topic(prefix="outage")
    first = records(plain, topic, FIRST, range(30))
    second = records(plain, topic, SECOND, range(30, 40))  # registered, and written later
    plain.write(topic, first[:10])
    seen: list[int] = []

    def keep(frame, _number) -> None:
        seen.extend(ids(frame))

    def read(authority_file="ca.pem"):
        trust = {
            "schema.registry.ssl.truststore.type": "PEM",
            "schema.registry.ssl.truststore.location": str(tmp_path / authority_file),
        }
        return reader(spark.read, peer, topic, **trust).load()

    stream = reader(spark.readStream, plain, topic).load()
    assert stream.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string>"
    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert sorted(seen) == list(range(10))
        plain.write(topic, second[:5])
        query.processAllAvailable()
        with pytest.raises(PySparkException, match=r"(?i)certificate"):
            read("other.pem")
        registry.kill()
        plain.write(topic, second[5:])
        plain.write(topic, first[10:20])
        query.processAllAvailable()
        assert sorted(seen) == [*range(20), *range(30, 40)]
        with pytest.raises(PySparkException) as caught:
            read()
        assert peer.registry_url in str(caught.value)
        assert f"{topic}-value" in str(caught.value)
        assert "Connection refused" in str(caught.value)
        registry.start()
        plain.write(topic, first[20:])
        query.processAllAvailable()
        assert sorted(seen) == list(range(40))
    finally:
        query.stop()
    assert ids(read()) == list(range(40))
