"""`brokers`: list them and describe one: controller, disks, Kafka release, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer
from typer import Argument, Option

from sparkkafka.cli import tables
from sparkkafka.cli.bounded_admin import BoundedAdmin, config_values, partial_values
from sparkkafka.cli.commands import AsJson, fail_each, session_of
from sparkkafka.client.admin.brokers import ClusterDescription, LogDirDescription
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Broker
from sparkkafka.errors import KafkaError, OptionError, some
from sparkkafka.protocol.messages import REQUESTS, release_of

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback()
def brokers() -> None:
    """Brokers: list, describe.

    \b
      sparkkafka -b localhost:9092 brokers list
      sparkkafka -b localhost:9092 brokers describe 1
    """


@app.command("list")
def list_brokers(context: typer.Context, as_json: AsJson = False) -> None:
    """List all live brokers: address, rack, controller, release, and the space on their disks.

    A KRaft cluster reports any broker as its controller.
    """
    with session_of(context).admin() as admin:
        cluster = admin.describe_cluster()
        node_ids = [broker.node_id for broker in cluster.brokers]
        log_dirs = partial_values("sizes", admin.describe_log_dirs(node_ids))
        releases = _releases(admin, node_ids)
    rows = [
        {**_identity(broker, cluster, releases), **_disk_space(log_dirs.get(broker.node_id))}
        for broker in cluster.brokers
    ]
    if as_json:
        tables.print_json({"cluster_id": cluster.cluster_id, "brokers": rows})
        return
    tables.print_line(f"cluster {cluster.cluster_id}")
    tables.print_table(
        (
            *("broker", "address", "rack", "controller", "release", "replicas", "size_bytes"),
            *("free_bytes", "offline_dirs"),
        ),
        [{**row, "address": f"{row['host']}:{row['port']}"} for row in rows],
    )


def _identity(
    broker: Broker, cluster: ClusterDescription, releases: Mapping[int, str]
) -> dict[str, Any]:
    """Return what describes a broker itself, for JSON."""
    return {
        "broker": broker.node_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "controller": broker.node_id == cluster.controller_id,
        "release": releases.get(broker.node_id),
    }


def _disk_space(directories: Mapping[str, LogDirDescription] | None) -> dict[str, Any]:
    """Return the space on a broker's disks, for JSON; nulls if the broker did not report it."""
    if directories is None:
        return dict.fromkeys(("replicas", "size_bytes", "free_bytes", "offline_dirs"))
    return {
        "replicas": sum(len(row.replicas) for row in directories.values()),
        "size_bytes": sum(row.size_bytes for row in directories.values()),
        "free_bytes": tables.sum_of(row.usable_bytes for row in directories.values()),
        "offline_dirs": [path for path, row in directories.items() if row.error is not None],
    }


def _releases(admin: BoundedAdmin, node_ids: Iterable[int]) -> dict[int, str]:
    """Return the release of each broker that can be reached; a line on stderr reports each other
    one."""
    releases: dict[int, str] = {}
    with admin.cluster_and_deadline() as (cluster, deadline):
        for node_id in node_ids:
            try:
                releases[node_id] = release_of_broker(cluster.connection(node_id, deadline))
            except KafkaError as error:
                tables.print_error(f"broker {node_id}: {error}")
    return releases


def release_of_broker(connection: Connection) -> str:
    """Derive a broker's release ("4.1"; "" if it is too old) from its API versions: Kafka does not
    report it."""
    ranges = connection.versions  # (lowest, highest) by API key
    return release_of(
        {request.API_NAME: ranges[key][1] for key, request in REQUESTS.items() if key in ranges}
    )


@app.command()
def describe(
    context: typer.Context,
    broker: int = Argument(..., metavar="ID", help="The broker's node id."),
    all_configs: bool = Option(False, "--all", help="Include settings that have their default."),
    as_json: AsJson = False,
) -> None:
    """Show a broker's directories, its release, and settings that are not the default."""
    with session_of(context).admin() as admin:
        cluster = admin.describe_cluster()
        found = next((row for row in cluster.brokers if row.node_id == broker), None)
        if found is None:
            live = some((row.node_id for row in cluster.brokers), limit=20)
            raise OptionError(f"there is no broker {broker}: live ones are {live}")
        directories = admin.describe_log_dirs([broker])
        releases = _releases(admin, [broker])
        resource = ConfigResource("broker", str(broker))
        settings = admin.describe_configs([resource])
    errors: list[KafkaError] = [*directories.errors.values(), *settings.errors.values()]
    configs = config_values(settings.values_by_item.get(resource, {}), with_defaults=all_configs)
    log_dirs: list[dict[str, Any]] = [
        {
            "path": path,
            "replicas": len(directory.replicas),
            "size_bytes": directory.size_bytes,
            "total_bytes": directory.total_bytes,
            "free_bytes": directory.usable_bytes,
            "error": None if directory.error is None else str(directory.error),
        }
        for path, directory in directories.values_by_item.get(broker, {}).items()
    ]
    identity = _identity(found, cluster, releases)
    if as_json:
        tables.print_json({**identity, "log_dirs": log_dirs, "configs": configs})
    else:
        rack = f", rack {found.rack}" if found.rack else ""
        release = f", speaks as Kafka {identity['release']}" if identity["release"] else ""
        tables.print_line(
            f"{found}{rack}{release}{', controller' if identity['controller'] else ''}"
        )
        tables.print_configs(configs)
        tables.print_table(
            ("path", "replicas", "size_bytes", "total_bytes", "free_bytes", "error"), log_dirs
        )
    fail_each(errors)
