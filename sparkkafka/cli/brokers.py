"""`brokers`: list them and describe one: controller, disks, Kafka release, settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from sparkkafka.cli.bounded_admin import BoundedAdmin
from sparkkafka.cli.commands import AsJson, fail_each, session_of
from sparkkafka.cli.tables import bytes_text, print_error, print_json, print_line, print_table
from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.configs import ConfigResource
from sparkkafka.client.net.connection import Connection
from sparkkafka.errors import KafkaError, OptionError, some
from sparkkafka.protocol.messages import REQUESTS
from sparkkafka.protocol.wire.releases import release_of

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def brokers() -> None:
    """Brokers: list, describe.

    \b
      sparkkafka -b localhost:9092 brokers list
      sparkkafka -b localhost:9092 brokers describe 1
    """


@app.command("list")
def list_brokers(context: typer.Context, as_json: AsJson = False) -> None:
    """All live brokers: address, rack, controller, release, and the space on their disks.

    A KRaft cluster reports any broker as its controller.
    """
    with session_of(context).admin() as admin:
        cluster = admin.describe_cluster()
        node_ids = [broker.node_id for broker in cluster.brokers]
        disks = _disks(admin, node_ids)
        releases = _releases(admin, node_ids)
    rows: list[dict[str, Any]] = [
        {
            "broker": broker.node_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "controller": broker.node_id == cluster.controller_id,
            "release": releases.get(broker.node_id),
            **disks.get(broker.node_id, _NO_DISKS),
        }
        for broker in cluster.brokers
    ]
    if as_json:
        print_json({"cluster_id": cluster.cluster_id, "brokers": rows})
        return
    print_line(f"cluster {cluster.cluster_id}")
    print_table(
        ("broker", "address", "rack", "controller", "kafka", "replicas", "size", "free", "offline"),
        [
            (
                row["broker"],
                f"{row['host']}:{row['port']}",
                row["rack"],
                row["controller"] or None,
                row["release"],
                row["replicas"],
                bytes_text(row["size_bytes"]),
                bytes_text(row["free_bytes"]),
                ", ".join(row["offline_dirs"] or ()) or None,
            )
            for row in rows
        ],
    )


_NO_DISKS: dict[str, Any] = dict.fromkeys(("replicas", "size_bytes", "free_bytes", "offline_dirs"))


def _releases(admin: BoundedAdmin, node_ids: Iterable[int]) -> dict[int, str]:
    """Return the release of each broker that can be reached."""
    releases: dict[int, str] = {}
    with admin.cluster_and_deadline() as (cluster, deadline):
        for node_id in node_ids:
            try:
                releases[node_id] = release_of_broker(cluster.connection(node_id, deadline))
            except KafkaError as error:
                print_error(f"broker {node_id}: {error}")
    return releases


def release_of_broker(connection: Connection) -> str:
    """Derive a broker's release ("4.1"; "" if it is too old) from its API versions: Kafka does not
    report it."""
    offered = connection.versions
    return release_of(
        {row.API_NAME: offered[key][1] for key, row in REQUESTS.items() if key in offered}
    )


def _disks(admin: Admin, node_ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return each broker's space on disk. A line on stderr says that some did not report it."""
    results = admin.describe_log_dirs(node_ids)
    for error in list(results.errors.values())[:1]:
        print_error(f"sizes are not all shown: {error}")
    disks = {}
    for node_id, directories in results.values_by_item.items():
        free = [row.usable_bytes for row in directories.values() if row.usable_bytes is not None]
        disks[node_id] = {
            "replicas": sum(len(row.replicas) for row in directories.values()),
            "size_bytes": sum(row.size_bytes for row in directories.values()),
            "free_bytes": sum(free) if free else None,
            "offline_dirs": [path for path, row in directories.items() if row.error is not None],
        }
    return disks


@app.command()
def describe(
    context: typer.Context,
    broker: Annotated[int, typer.Argument(metavar="ID", help="The broker's node id.")],
    all_configs: Annotated[
        bool, typer.Option("--all", help="Also settings that have their default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """One broker: its directories, the version it speaks, and settings that are not the default."""
    with session_of(context).admin() as admin:
        cluster = admin.describe_cluster()
        row = next((row for row in cluster.brokers if row.node_id == broker), None)
        if row is None:
            live = some((row.node_id for row in cluster.brokers), limit=20)
            raise OptionError(f"there is no broker {broker}: live ones are {live}")
        directories = admin.describe_log_dirs([broker])
        releases = _releases(admin, [broker])
        resource = ConfigResource("broker", str(broker))
        settings = admin.describe_configs([resource])
    errors: list[KafkaError] = [*directories.errors.values(), *settings.errors.values()]
    configs = {
        key: entry.value
        for key, entry in sorted(settings.values_by_item.get(resource, {}).items())
        if all_configs or not entry.is_default
    }
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
    document = {
        "broker": row.node_id,
        "host": row.host,
        "port": row.port,
        "rack": row.rack,
        "controller": row.node_id == cluster.controller_id,
        "release": releases.get(broker),
        "log_dirs": log_dirs,
        "configs": configs,
    }
    if as_json:
        print_json(document)
    else:
        rack = f", rack {row.rack}" if row.rack else ""
        release = f", speaks as Kafka {document['release']}" if document["release"] else ""
        print_line(f"{row}{rack}{release}{', controller' if document['controller'] else ''}")
        for key, value in configs.items():
            print_line(f"  {key}={'(hidden)' if value is None else value}")
        columns = ("directory", "replicas", "size", "volume", "free", "error")
        print_table(
            columns,
            [
                (
                    row["path"],
                    row["replicas"],
                    *(bytes_text(row[key]) for key in ("size_bytes", "total_bytes", "free_bytes")),
                    row["error"],
                )
                for row in log_dirs
            ],
        )
    fail_each(errors)
