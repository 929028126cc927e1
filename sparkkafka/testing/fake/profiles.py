"""What managed Kafka services, and brokers by other hands, do otherwise than Apache Kafka.

    with FakeCluster(profile="event-hubs") as cluster: ...

`source` is the public page that says so: of the service, or of its own repository. `differs` is
what the rules here do, in a sentence. They are rules of a fake broker, not the service: the rest is
as in Kafka. docs/managed.md says what else the services' documents have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.records.compression import Codec
from sparkkafka.testing.fake.faults import Action, Delay, Drop, RecordedRequest, Throttle
from sparkkafka.testing.fake.log.records import parse_header
from sparkkafka.testing.fake.state import Quirk
from sparkkafka.testing.fake.versions import DEFAULT_RELEASE, VersionRange

SHARE_GROUPS: Final = ("ShareGroupHeartbeat", "ShareFetch", "ShareAcknowledge")
QUOTAS: Final = ("DescribeClientQuotas", "AlterClientQuotas")
ACLS: Final = ("DescribeAcls", "CreateAcls", "DeleteAcls")
REASSIGNMENTS: Final = ("AlterPartitionReassignments", "ListPartitionReassignments")
SCRAM_USERS: Final = ("DescribeUserScramCredentials", "AlterUserScramCredentials")
TRANSACTIONS: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
GZIP_ONLY: Final = frozenset({Codec.NONE, Codec.GZIP})


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How the fake brokers of one service behave.

    `api_versions` are changes as of `FakeCluster`. `codecs` are those that it accepts, any other
    gets `codec_error`. `sasl_mechanisms` are the ways to log in; a client may also use none.
    `rules`: (API, action, how often) of faults that are always there.
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
    quirks: frozenset[Quirk] = frozenset()
    max_groups: int | None = None
    max_idle_ms: int | None = None
    sasl_mechanisms: tuple[str, ...] | None = None
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


def _without(*apis: str) -> dict[str, None]:
    """Return the change of `api_versions` that takes these APIs away."""
    return dict.fromkeys(apis)


def _close_above_3(request: RecordedRequest) -> Drop | None:
    """Close the connection at ApiVersions above version 3, instead of KIP-511's response."""
    return Drop.BEFORE if request.version > 3 else None


PROFILES: Final[dict[str, Profile]] = {
    "event-hubs": Profile(
        service="Azure Event Hubs",
        source="https://learn.microsoft.com/azure/event-hubs/apache-kafka-configurations",
        differs="closes at requests above 1,046,528 bytes, at ApiVersions above 3, and after 240 s "
        "without a request; old Produce, Fetch and Metadata; gzip only; empty throttled fetches; "
        "no topic administration",
        api_versions={
            "ApiVersions": (0, 3),
            "Produce": (3, 7),
            "Fetch": (4, 6),
            "Metadata": (4, 5),
            **_without("CreateTopics", "DeleteTopics", "ConsumerGroupHeartbeat"),
        },
        max_request_bytes=1_046_527,
        max_offset_metadata_bytes=1_024,
        max_idle_ms=240_000,
        codecs=GZIP_ONLY,
        codec_error=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        rules=(("ApiVersions", _close_above_3, None), ("Fetch", Throttle(20, empty=True), 2)),
    ),
    "redpanda": Profile(
        service="Redpanda",
        source="https://github.com/redpanda-data/redpanda/tree/dev/src/v/kafka/server/handlers",
        differs="ListOffsets up to 4, with the current leader epoch for each offset; no "
        "transactions V2 (KIP-890), no KIP-848",
        api_versions={
            "AddPartitionsToTxn": (0, 3),
            "EndTxn": (0, 3),
            "ListOffsets": (0, 4),
            **_without("ConsumerGroupHeartbeat"),
        },
        quirks=frozenset({Quirk.CURRENT_EPOCH}),
    ),
    "warpstream": Profile(
        service="WarpStream",
        source="https://docs.warpstream.com/warpstream/reference/protocol-and-feature-support",
        differs="acknowledges after some 400 ms; any broker leads; no DescribeProducers, "
        "DeleteRecords, DescribeLogDirs, quotas, SCRAM users and KIP-848",
        api_versions=_without(
            "DeleteRecords",
            "DescribeLogDirs",
            "ElectLeaders",
            "UpdateFeatures",
            "ListConfigResources",
            "ConsumerGroupHeartbeat",
            *REASSIGNMENTS,
            *QUOTAS,
            *SCRAM_USERS,
            *SHARE_GROUPS,
        ),
        quirks=frozenset({Quirk.ANY_BROKER_LEADS}),
        rules=(("Produce", Delay(400), 2),),
    ),
    "bufstream": Profile(
        service="Bufstream",
        source="https://buf.build/docs/bufstream/kafka-compatibility/conformance",
        differs="Kafka 3.7, with approximate offsets for times; no ACLs, quotas and KIP-848",
        kafka_version="3.7",
        api_versions=_without(
            "AlterPartitionReassignments",
            "ElectLeaders",
            "ListConfigResources",
            "ConsumerGroupHeartbeat",
            *ACLS,
            *QUOTAS,
        ),
        quirks=frozenset({Quirk.BATCH_TIMES}),
    ),
    "ursa": Profile(
        service="StreamNative Ursa",
        source="https://docs.streamnative.io/docs/kafka-protocol-and-features",
        differs="no transactions (AddPartitionsToTxn, AddOffsetsToTxn, EndTxn); no "
        "DescribeLogDirs, ElectLeaders and reassignments",
        api_versions=_without(
            "DescribeTransactions",
            "ListTransactions",
            "DescribeLogDirs",
            "ElectLeaders",
            *REASSIGNMENTS,
            *TRANSACTIONS,
        ),
    ),
    "oci": Profile(
        service="OCI Streaming",
        source="https://docs.cloud.oracle.com/en-us/iaas/Content/Streaming/Tasks/"
        "kafkacompatibility.htm",
        differs="no idempotent producers, no transactions and no CreatePartitions; closes "
        "connections now and then; gzip only",
        api_versions=_without(
            "InitProducerId",
            "TxnOffsetCommit",
            "CreatePartitions",
            "ConsumerGroupHeartbeat",
            *TRANSACTIONS,
        ),
        codecs=GZIP_ONLY,
        rules=(("Fetch", Drop.BEFORE, 2),),
    ),
    "ydb": Profile(
        service="YDB Topics",
        source="https://ydb.tech/docs/en/reference/kafka-api/constraints",
        differs="no CRC in fetched batches; no compression; no DeleteTopics, ACLs and KIP-848; "
        "SASL PLAIN only",
        api_versions=_without("DeleteTopics", "ConsumerGroupHeartbeat", *ACLS),
        codecs=frozenset({Codec.NONE}),
        quirks=frozenset({Quirk.NO_CRC}),
        sasl_mechanisms=("PLAIN",),
    ),
    "msk-serverless": Profile(
        service="Amazon MSK Serverless",
        source="https://docs.aws.amazon.com/msk/latest/developerguide/serverless.html",
        differs="login only by IAM; no ACLs; throttles above its quotas",
        api_versions=_without(*ACLS),
        sasl_mechanisms=("AWS_MSK_IAM", "OAUTHBEARER"),
        rules=(("Produce", Throttle(50), 3), ("Fetch", Throttle(20, empty=True), 2)),
    ),
    "confluent-cloud": Profile(
        service="Confluent Cloud",
        source="https://docs.confluent.io/cloud/current/client-apps/jmx-monitoring.html",
        differs="throttles above its quotas",
        rules=(("Produce", Throttle(50), 3), ("Fetch", Throttle(20), 3)),
    ),
    "google": Profile(
        service="Google Managed Service for Apache Kafka",
        source="https://cloud.google.com/managed-service-for-apache-kafka/docs/authentication-kafka",
        differs="SASL: only OAUTHBEARER and PLAIN",
        sasl_mechanisms=("OAUTHBEARER", "PLAIN"),
    ),
    "aiven": Profile(
        service="Aiven for Apache Kafka",
        source="https://aiven.io/docs/products/kafka",
        differs="nothing: it is Apache Kafka",
    ),
    "automq": Profile(
        service="AutoMQ",
        source="https://github.com/AutoMQ/automq",
        differs="Kafka 3.9, a fork of it on an object store",
        kafka_version="3.9",
    ),
    "ibm": Profile(
        service="IBM Event Streams",
        source="https://cloud.ibm.com/docs/EventStreams?topic=EventStreams-kafka_quotas",
        differs="10 consumer groups (Lite plan); throttles above its quotas",
        max_groups=10,
        rules=(("Produce", Throttle(50), 2),),
    ),
}
