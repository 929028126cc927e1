"""What managed Kafka services, and brokers by other hands, do otherwise than Apache Kafka.

    with FakeCluster(profile="event-hubs") as cluster: ...

Each profile has only what the service's own public documents say, and its `source` is the page.
`differs` is that in a sentence. These are rules of a fake broker, not the service: what its
documents leave out is as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.records.codecs import Codec
from sparkkafka.testing.fake.faults import Action, Delay, Drop, RecordedRequest, Throttle
from sparkkafka.testing.fake.log.records import parse_header
from sparkkafka.testing.fake.versions import DEFAULT_RELEASE, VersionRange

GZIP_ONLY: Final = frozenset({Codec.NONE, Codec.GZIP})
TRANSACTIONS: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit")
NO_TRANSACTIONS: Final[Mapping[str, None]] = dict.fromkeys(TRANSACTIONS)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How the fake brokers of one service behave.

    `api_versions` are changes as of `FakeCluster`. `codecs` are those that it accepts, any other
    gets `codec_error`. `rules`: (API, action, how often) of faults that are always there.
    """

    service: str
    source: str
    differs: str
    kafka_version: str = DEFAULT_RELEASE
    api_versions: Mapping[str, VersionRange | None] = field(default_factory=dict)
    max_request_bytes: int | None = None
    max_offset_metadata_bytes: int | None = None
    codecs: frozenset[Codec] = frozenset(Codec)
    codec_error: ErrorCode = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    rules: tuple[tuple[str, Action, int | None], ...] = ()

    def check_codec(self, request: RecordedRequest) -> ErrorCode | None:
        """Return the error for a Produce request with another codec."""
        codecs = {
            parse_header(row.records).codec
            for topic in request.message.topic_data
            for row in topic.partition_data
            if row.records
        }
        return None if codecs <= self.codecs else self.codec_error


def _close_above_3(request: RecordedRequest) -> Drop | None:
    """Close the connection at ApiVersions above version 3, instead of KIP-511's answer."""
    return Drop.BEFORE if request.version > 3 else None


PROFILES: Final[dict[str, Profile]] = {
    "event-hubs": Profile(
        service="Azure Event Hubs",
        source="https://learn.microsoft.com/azure/event-hubs/apache-kafka-configurations",
        differs="closes at requests above 1,046,528 bytes and at ApiVersions above 3; gzip only; "
        "1,024 bytes of offset metadata; empty throttled fetches; no topic administration",
        api_versions={
            "ApiVersions": (0, 3),
            "CreateTopics": None,
            "DeleteTopics": None,
            "ConsumerGroupHeartbeat": None,
        },
        max_request_bytes=1_046_527,
        max_offset_metadata_bytes=1_024,
        codecs=GZIP_ONLY,
        codec_error=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        rules=(
            ("ApiVersions", _close_above_3, None),
            ("Fetch", Throttle(20, empty=True), 2),
        ),
    ),
    "redpanda": Profile(
        service="Redpanda",
        source="https://docs.redpanda.com/current/develop/kafka-clients/",
        differs="no transactions V2 (KIP-890); older versions of ListOffsets",
        api_versions={
            "AddPartitionsToTxn": (0, 3),
            "EndTxn": (0, 3),
            "ListOffsets": (0, 4),
            "ConsumerGroupHeartbeat": None,
        },
    ),
    "warpstream": Profile(
        service="WarpStream",
        source="https://docs.warpstream.com/warpstream/reference/protocol-and-feature-support",
        differs="acknowledges after some 400 ms; no DescribeProducers, DeleteRecords, "
        "DescribeLogDirs, and no KIP-848",
        api_versions={
            "DeleteRecords": None,
            "DescribeLogDirs": None,
            "ConsumerGroupHeartbeat": None,
        },
        rules=(("Produce", Delay(400), 2),),
    ),
    "bufstream": Profile(
        service="Bufstream",
        source="https://buf.build/docs/bufstream/kafka-compatibility/conformance/",
        differs="acknowledges late, as its storage is an object store; no KIP-848",
        api_versions={"ConsumerGroupHeartbeat": None, "DescribeLogDirs": None},
        rules=(("Produce", Delay(250), 2),),
    ),
    "ursa": Profile(
        service="StreamNative Ursa",
        source="https://docs.streamnative.io/cloud/build/kafka-clients/kafka-compatibility",
        differs="no transactions",
        api_versions=NO_TRANSACTIONS,
    ),
    "oci": Profile(
        service="OCI Streaming",
        source="https://docs.oracle.com/en-us/iaas/Content/Streaming/Tasks/kafkacompatibility.htm",
        differs="no idempotent producers and no transactions; gzip only",
        api_versions={**NO_TRANSACTIONS, "InitProducerId": None, "ConsumerGroupHeartbeat": None},
        codecs=GZIP_ONLY,
    ),
    "ydb": Profile(
        service="YDB Topics",
        source="https://ydb.tech/docs/en/reference/kafka-api/constraints",
        differs="no compression; no transactions",
        api_versions={**NO_TRANSACTIONS, "ConsumerGroupHeartbeat": None},
        codecs=frozenset({Codec.NONE}),
    ),
    "msk-serverless": Profile(
        service="Amazon MSK Serverless",
        source="https://docs.aws.amazon.com/msk/latest/developerguide/serverless.html",
        differs="IAM only; throttles above its quotas",
        kafka_version="2.8",
        rules=(("Produce", Throttle(50), 3), ("Fetch", Throttle(20, empty=True), 2)),
    ),
    "confluent-cloud": Profile(
        service="Confluent Cloud",
        source="https://docs.confluent.io/cloud/current/clusters/cluster-types.html",
        differs="throttles above its quotas; no DescribeLogDirs",
        api_versions={"DescribeLogDirs": None},
        rules=(("Produce", Throttle(50), 3), ("Fetch", Throttle(20), 3)),
    ),
    "google": Profile(
        service="Google Managed Service for Apache Kafka",
        source="https://cloud.google.com/managed-service-for-apache-kafka/docs/overview",
        differs="Kafka 3.7, with its own way to log in",
        kafka_version="3.9",
    ),
    "aiven": Profile(
        service="Aiven for Apache Kafka",
        source="https://aiven.io/docs/products/kafka",
        differs="Kafka 3.9 as it is",
        kafka_version="3.9",
    ),
    "automq": Profile(
        service="AutoMQ",
        source="https://docs.automq.com/automq/what-is-automq/compatibility-with-apache-kafka",
        differs="Kafka 3.9 on an object store; no DescribeLogDirs",
        kafka_version="3.9",
        api_versions={"DescribeLogDirs": None},
    ),
    "ibm": Profile(
        service="IBM Event Streams",
        source="https://cloud.ibm.com/docs/EventStreams?topic=EventStreams-kafka_using",
        differs="Kafka 3.9 with quotas",
        kafka_version="3.9",
        rules=(("Produce", Throttle(50), 2),),
    ),
}
