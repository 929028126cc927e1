"""The part of `check` about a job's topics: are they there and led, may this user do it, and which
of their settings will hurt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.cluster.findings import Finding, unknown, well, wrong
from sparkkafka.cli.tables import duration_text
from sparkkafka.client.admin.topics import TopicDescription
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, counted, some

READ: Final = ("READ", "DESCRIBE")
WRITE: Final = ("WRITE", "DESCRIBE")
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
_KEYS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "min.insync.replicas",
    "retention.ms",
    "unclean.leader.election.enable",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job does with a topic. `max_request_size` is the producer's, in bytes; `trigger_s` how
    long it may be until the next micro-batch, None if it was not said."""

    reads: bool = False
    writes: bool = False
    exactly_once: bool = False
    max_request_size: int = 0
    trigger_s: float | None = None


def topic_findings(admin: BoundedAdmin, topic: str, job: Job) -> Iterator[Finding]:
    """One topic of a job."""
    about = f"topic {topic}"
    results = admin.describe_topics([topic], include_authorized_operations=True)
    error = results.errors.get(topic)
    if error is not None and _is_unsupported(error):  # operations, before Kafka 2.3
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
    if error is not None:
        yield wrong(about, admin.with_nearest_topics({topic: error})[topic])
        return
    found = results[topic]
    yield _operations(about, found, _needed(job))
    yield _partitions(about, found)
    settings = _settings(admin, topic)
    if isinstance(settings, KafkaError):
        yield unknown(f"{about} settings", settings)
        return
    problems = list(_problems(found, settings, job))
    for words in problems:
        yield wrong(f"{about} settings", words)
    if not problems:
        yield well(f"{about} settings", ", ".join(f"{key}={settings[key]}" for key in settings))


def _is_unsupported(error: KafkaError) -> bool:
    from sparkkafka.errors import UnsupportedVersionError

    return isinstance(error, UnsupportedVersionError)


def _needed(job: Job) -> list[str]:
    needed = [*(READ if job.reads else ()), *(WRITE if job.writes else ())]
    if job.exactly_once and job.writes:
        needed.append("READ")  # decisions are stored beside offsets of the topic
    return list(dict.fromkeys(needed))


def _operations(about: str, found: TopicDescription, needed: list[str]) -> Finding:
    granted = found.authorized_operations
    if granted is None:
        return unknown(f"{about} ACLs", "brokers before Kafka 2.3 do not tell what a user may do")
    missing = [name for name in needed if name not in granted]
    if missing:
        return wrong(
            f"{about} ACLs",
            f"not allowed: {' and '.join(missing)}; grant it: kafka-acls.sh --add "
            f"--allow-principal User:… --topic {found.name} "
            + " ".join(f"--operation {name.title()}" for name in missing),
        )
    return well(f"{about} ACLs", f"{', '.join(needed)} allowed")


def _partitions(about: str, found: TopicDescription) -> Finding:
    about = f"{about} partitions"
    leaderless = [row.partition for row in found.partitions if row.leader is None]
    if leaderless:
        return wrong(
            about, f"no leader in {some(leaderless)}: a broker with a replica must come back"
        )
    behind = [row.partition for row in found.partitions if len(row.isr) < len(row.replicas)]
    if behind:
        down = {one for row in found.partitions for one in {*row.replicas} - {*row.isr}}
        return wrong(
            about,
            f"replicas of {some(behind)} are not in sync, those of brokers {some(sorted(down))}: "
            "are they up?",
        )
    replicas = min((len(row.replicas) for row in found.partitions), default=0)
    words = f"{counted(len(found.partitions), 'partition')}, all led, replicas in sync"
    if replicas == 1:
        words += "; there is one replica: a lost disk loses records"
    return well(about, words)


# --- settings -----------------------------------------------------------------------------------


def _settings(admin: BoundedAdmin, topic: str) -> dict[str, str] | KafkaError:
    resource = ConfigResource("topic", topic)
    results = admin.describe_configs([resource], keys=_KEYS)
    error = results.errors.get(resource)
    if error is not None:
        return error
    return {key: row.value for key, row in results[resource].items() if row.value is not None}


def _problems(found: TopicDescription, settings: Mapping[str, str], job: Job) -> Iterator[str]:
    policy = settings.get("cleanup.policy", "")
    replicas = min((len(row.replicas) for row in found.partitions), default=0)
    if job.writes:
        most = int(settings.get("max.message.bytes", job.max_request_size))
        if most < job.max_request_size:
            yield (
                f"max.message.bytes={most} is below the producer's max.request.size="
                f"{job.max_request_size}: larger batches are refused; set max.request.size to "
                f"{most}, or raise max.message.bytes"
            )
        least = int(settings.get("min.insync.replicas", 1))
        in_sync = min((len(row.isr) for row in found.partitions), default=0)
        if least > replicas:
            yield (
                f"min.insync.replicas={least} and there are {replicas} replicas: every write with "
                "acks=all is refused; lower it, or add replicas"
            )
        elif in_sync < least:
            yield (
                f"min.insync.replicas={least} and a partition has {in_sync} in sync: writes with "
                "acks=all are refused until a broker is back"
            )
        elif least == replicas > 1:
            yield (
                f"min.insync.replicas={least} is all there are: when one broker is down, nothing "
                "can be written; lower it by one, or add a replica"
            )
        if settings.get("unclean.leader.election.enable") == "true":
            yield (
                "unclean.leader.election.enable=true: what was acknowledged may be lost when a "
                "broker dies; set it to false"
            )
    if job.reads and job.trigger_s is not None and "delete" in policy:
        retention_ms = int(settings.get("retention.ms", -1))
        if 0 <= retention_ms < job.trigger_s * 1000:
            yield (
                f"retention.ms={retention_ms} is below the trigger's "
                f"{duration_text(job.trigger_s)}: records are deleted before a micro-batch reads "
                "them; raise it well above the longest time that the job may be away"
            )


def internal_findings(admin: BoundedAdmin, broker_count: int) -> Iterator[Finding]:
    """Where Kafka keeps offsets, decisions and transactions; an exactly-once job depends on it."""
    for topic in INTERNAL:
        about = f"topic {topic}"
        results = admin.describe_topics([topic])
        error = results.errors.get(topic)
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            yield unknown(about, "not there, or not shown to you: brokers make it when it is used")
            continue
        if error is not None:
            yield unknown(about, error)
            continue
        found = results[topic]
        partitions = _partitions(about, found)
        replicas = min((len(row.replicas) for row in found.partitions), default=0)
        if replicas < min(broker_count, 3):
            yield wrong(
                f"{about} partitions",
                f"{replicas} of {broker_count} brokers have it: a lost disk loses decisions; give "
                "it 3 replicas (kafka-reassign-partitions.sh)",
            )
        else:
            yield partitions
        settings = _settings(admin, topic)
        if isinstance(settings, KafkaError):
            yield unknown(f"{about} settings", settings)
        elif "compact" not in settings.get("cleanup.policy", ""):
            yield wrong(
                f"{about} settings",
                f"cleanup.policy={settings.get('cleanup.policy')}: decisions would be deleted with "
                "time; set it to compact",
            )
        else:
            yield well(f"{about} settings", f"cleanup.policy={settings['cleanup.policy']}")
