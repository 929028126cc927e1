"""`ui`: a local web page of brokers, topics, consumer groups, checkpoints and dead letters.

Here are the options, and its run from the first snapshot until Ctrl-C. `server.py` serves the files
of the page and JSON, `responses.py` makes the JSON from the snapshots that a thread takes, and
from records.
"""

from __future__ import annotations

import ipaddress
import signal
import sys
from typing import Annotated

import typer

from sparkkafka.cli.commands import checked_name, number_option, session_of
from sparkkafka.cli.snapshots import Collector
from sparkkafka.cli.tables import print_error, print_line
from sparkkafka.cli.top import Every, seconds_of_every
from sparkkafka.errors import OptionError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def ui(
    context: typer.Context,
    port: Annotated[
        int,
        number_option("--port", minimum=0, maximum=65_535, help="The port; 0 for any free one."),
    ] = 8585,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen at.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Allow a --host that other machines reach. There is no authentication.",
        ),
    ] = False,
    every: Every = "5s",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR", help="The checkpoint of a streaming query to show; may be repeated."
        ),
    ] = None,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="A topic of dead letters to show; may be repeated. Topics named like "
            "orders-dlq are found without it.",
            callback=checked_name,
        ),
    ] = None,
) -> None:
    """Show a cluster on a local web page, until Ctrl-C.

    The page has curves of the last 15 minutes (records/s, bytes/s, lag), partitions and their skew,
    and, with --checkpoint and --dead-letters, streaming queries and bad records. It only reads, and
    listens at 127.0.0.1. To open it from another machine, forward the port with ssh -L.

    \b
      sparkkafka -b localhost:9092 ui
      sparkkafka -b localhost:9092 ui --checkpoint /data/checkpoints/orders
      sparkkafka -b localhost:9092 ui --dead-letters orders-refused --port 0
    """
    interval_s = seconds_of_every(every)
    is_remote = not _is_loopback(host)
    if is_remote and not allow_remote:
        raise OptionError(
            f"--host {host} is reachable from other machines, and the page has no authentication: "
            "forward the port with ssh -L instead, or give --allow-remote too"
        )
    from sparkkafka.cli.ui.responses import Responses, Watcher
    from sparkkafka.cli.ui.server import PageServer

    session = session_of(context)
    with Collector(session.admin()) as collector, Watcher(collector, interval_s) as watcher:
        responses = Responses(watcher, session, checkpoint or (), dead_letters or ())
        with responses, PageServer(host, port, responses) as server:
            if is_remote:
                print_error(
                    f"warning: everybody who reaches {host} port {server.port} can see topics, "
                    "groups and dead letters: there is no authentication"
                )
            # A script's shell starts it in the background with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            cluster_id = watcher.snapshot.cluster_id
            print_line(f"watching cluster {cluster_id} at {server.url} until Ctrl-C")
            sys.stdout.flush()
            server.serve()


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
