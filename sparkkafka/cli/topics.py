"""`topics`: list, describe, create, alter and delete topics, and add partitions to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sparkkafka.cli import commands, tables
from sparkkafka.cli.bounded_admin import config_values, leader_sizes, partial_values
from sparkkafka.cli.profile import parse_pairs
from sparkkafka.client.admin.topics import BROKER_DEFAULT, NewTopic
from sparkkafka.client.cluster.configs import AlterConfigOp, ConfigResource
from sparkkafka.client.cluster.offsets import OffsetSpec
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import INT32_MAX
from sparkkafka.errors import BrokerError, ErrorCode, OptionError, UnknownTopicError, counted

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Names = Annotated[
    list[str],
    Argument(metavar="TOPIC", help="Names of topics.", autocompletion=commands.topic_names),
]
Configs = Annotated[
    list[str] | None,
    Option("-c", "--config", metavar="KEY=VALUE", help="A setting; may be repeated."),
]
DryRun = Annotated[bool, Option("--dry-run", help="Only let the brokers validate the change.")]


@app.callback()
def topics() -> None:
    """Topics: list, describe, create, alter, add-partitions, delete.

    \b
      sparkkafka -b localhost:9092 topics create orders -p 6 -c retention.ms=86400000
      sparkkafka -b localhost:9092 topics describe orders
    """


@app.command("list")
def list_topics(
    context: typer.Context,
    internal: bool = Option(False, "--internal", help="Include Kafka's internal topics."),
    as_json: commands.AsJson = False,
) -> None:
    """List all topics that you may see, with partitions that lack a leader or replicas in sync."""
    with commands.session_of(context).admin() as admin:
        names = admin.list_topics(include_internal=internal)
        described = admin.describe_topics(list(names))
    rows: list[dict[str, Any]] = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(row.replicas) for row in topic.partitions), default=0),
            "without_leader": sum(row.leader is None for row in topic.partitions),
            "out_of_sync": sum(len(row.isr) < len(row.replicas) for row in topic.partitions),
            "internal": topic.is_internal,
        }
        for name, topic in described.values_by_item.items()
    ]
    columns = ("topic", "partitions", "replicas", "without_leader", "out_of_sync", "internal")
    tables.print_rows(columns, rows, as_json, empty=None if described.errors else "no topics")
    commands.fail_each(described.errors.values())


# --- describe ---------------------------------------------------------------------------------


@app.command()
def describe(context: typer.Context, topics: Names, as_json: commands.AsJson = False) -> None:
    """Show leaders, replicas, replicas in sync, offsets, sizes, and changed settings.

    A size is that of the leader's files, which may be compressed.
    """
    with commands.session_of(context).admin() as admin:
        described = admin.describe_topics(topics)
        errors = admin.with_nearest_topics(described.errors)
        by_name = described.values_by_item
        leaders = {
            TopicPartition(name, row.partition): row.leader
            for name, topic in by_name.items()
            for row in topic.partitions
            if row.leader is not None
        }
        earliest, latest = (
            partial_values("offsets", admin.list_offsets(dict.fromkeys(leaders, spec)))
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        log_dirs = partial_values("sizes", admin.describe_log_dirs(sorted(set(leaders.values()))))
        resources = [ConfigResource("topic", name) for name in by_name]
        configs = partial_values("settings", admin.describe_configs(resources))
    sizes = leader_sizes(log_dirs, leaders)
    documents = [
        {
            "topic": name,
            "topic_id": topic.topic_id,
            "internal": topic.is_internal,
            "partitions": [
                {
                    "partition": row.partition,
                    "leader": row.leader,
                    "replicas": list(row.replicas),
                    "isr": list(row.isr),
                    "offline": list(row.offline_replicas),
                    "earliest": earliest[tp].offset if tp in earliest else None,
                    "latest": latest[tp].offset if tp in latest else None,
                    "size_bytes": sizes.get(tp),
                }
                for row in topic.partitions
                for tp in (TopicPartition(name, row.partition),)
            ],
            "configs": config_values(configs[resource]) if resource in configs else None,
        }
        for (name, topic), resource in zip(by_name.items(), resources, strict=True)
    ]
    tables.print_documents(documents, _print_topic, as_json)
    commands.fail_each(errors.values())


def _print_topic(document: Mapping[str, Any]) -> None:
    """Print a topic: a line, its settings, and a table of its partitions."""
    rows = document["partitions"]
    parts = [
        f"topic {document['topic']}",
        counted(len(rows), "partition"),
        tables.bytes_text(tables.sum_of(row["size_bytes"] for row in rows)),
        f"id {document['topic_id']}" if document["topic_id"] else None,
        "internal" if document["internal"] else None,
    ]
    tables.print_line(", ".join(part for part in parts if part))
    tables.print_configs(document["configs"] or {})
    tables.print_table(
        ("partition", "leader", "replicas", "isr", "offline", "earliest", "latest", "size_bytes"),
        rows,
    )


# --- changes ----------------------------------------------------------------------------------


@app.command()
def create(
    context: typer.Context,
    topic: commands.Topic,
    partitions: int | None = Option(
        None,
        "-p",
        "--partitions",
        min=1,
        max=INT32_MAX,
        help="Number of partitions.",
        show_default="the broker's",
    ),
    replication_factor: int | None = Option(
        None,
        "-r",
        "--replication-factor",
        min=1,
        max=commands.MAX_REPLICAS,
        help="Number of replicas.",
        show_default="the broker's",
    ),
    config: Configs = None,
    if_not_exists: bool = Option(
        False, "--if-not-exists", help="Do not change a topic that exists."
    ),
    dry_run: DryRun = False,
) -> None:
    """Create a topic, and wait until all its partitions have leaders."""
    new = NewTopic(
        topic,
        partitions=partitions or BROKER_DEFAULT,
        replication_factor=replication_factor or BROKER_DEFAULT,
        configs=parse_pairs(config or (), "-c", "retention.ms=86400000"),
    )
    with commands.session_of(context).admin() as admin:
        results = admin.create_topics([new], validate_only=dry_run)
        error = results.errors.get(topic)
        if isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            if if_not_exists:
                tables.print_line(f"topic {topic} already exists")
                return
            text = f"{error.broker_message or 'the topic exists'} (--if-not-exists accepts that)"
            raise BrokerError(error.code, error.where, text)
        results.all()
    tables.print_line(f"topic {topic} {'could be' if dry_run else 'was'} created")


@app.command()
def alter(
    context: typer.Context,
    topic: commands.Topic,
    config: Configs = None,
    default: list[str] | None = Option(
        None, metavar="KEY", help="Reset a setting to its default; may be repeated."
    ),
    append: list[str] | None = Option(
        None, metavar="KEY=VALUE", help="Add to a setting that is a list."
    ),
    subtract: list[str] | None = Option(
        None, metavar="KEY=VALUE", help="Remove from a setting that is a list."
    ),
    dry_run: DryRun = False,
) -> None:
    """Change settings of a topic: all that you name, or none. Other settings are not changed.

    `topics add-partitions` adds partitions.
    """
    changes = [
        *_changes(config, "set", "-c", "retention.ms=1"),
        *(AlterConfigOp(key, None, "delete") for key in default or ()),
        *_changes(append, "append", "--append", "cleanup.policy=compact"),
        *_changes(subtract, "subtract", "--subtract", "cleanup.policy=compact"),
    ]
    if not changes:
        raise OptionError("nothing to change: give -c KEY=VALUE, --default, --append or --subtract")
    resource = ConfigResource("topic", topic)
    with commands.session_of(context).admin() as admin:
        # Its error says that the topic is missing, which brokers before 2.3 do not say below.
        admin.describe_topic(topic)
        admin.incremental_alter_configs({resource: changes}, validate_only=dry_run).all()
    outcome = "could be changed" if dry_run else "changed"
    tables.print_line(f"topic {topic}: {counted(len(changes), 'setting')} {outcome}")


def _changes(
    texts: list[str] | None, operation: str, option: str, example: str
) -> list[AlterConfigOp]:
    """Return the changes that the values KEY=VALUE of an option describe."""
    pairs = parse_pairs(texts or (), option, example)
    return [AlterConfigOp(key, value, operation) for key, value in pairs.items()]


@app.command("add-partitions")
def add_partitions(
    context: typer.Context,
    topic: commands.Topic,
    total: int = Argument(
        ..., metavar="TOTAL", min=1, max=INT32_MAX, help="The new number of partitions."
    ),
    yes: commands.Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Add partitions to a topic. Records of a key may then go to another partition."""
    with commands.session_of(context).admin() as admin:
        if not dry_run:
            current = len(admin.describe_topic(topic).partitions)
            question = (
                f"Topic {topic} gets {total} partitions instead of {current}; new records of a "
                "key may go to another partition than its old ones. Go on?"
            )
            if total > current:
                commands.confirm(question, yes, admin)
        admin.create_partitions({topic: total}, validate_only=dry_run).all()
    tables.print_line(f"topic {topic} {'could have' if dry_run else 'has'} {total} partitions")


@app.command()
def delete(
    context: typer.Context,
    topics: Names,
    if_exists: bool = Option(False, "--if-exists", help="Ignore topics that do not exist."),
    yes: commands.Yes = False,
) -> None:
    """Delete topics with all their records, and wait until brokers no longer show them."""
    with commands.session_of(context).admin() as admin:
        described = admin.describe_topics(topics)
        errors = admin.with_nearest_topics(described.errors)
        missing = [name for name, error in errors.items() if isinstance(error, UnknownTopicError)]
        if if_exists:
            errors = {name: error for name, error in errors.items() if name not in missing}
        commands.fail_each(errors.values())  # before any is deleted
        for name in missing:
            tables.print_line(f"topic {name} does not exist")
        names = list(described.values_by_item)
        if not names:
            return
        commands.confirm(
            f"Delete {counted(len(names), 'topic')} ({', '.join(names)}) for ever?", yes, admin
        )
        results = admin.delete_topics(names)
    for name in results.values_by_item:
        tables.print_line(f"topic {name} was deleted")
    commands.fail_each(results.errors.values())
