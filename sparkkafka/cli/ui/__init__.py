"""`ui`: a local web page of brokers, topics, consumer groups, checkpoints and dead letters.

Here are the options, and its run from the first snapshot until Ctrl-C. `server.py` serves the files
of the page and JSON, `responses.py` makes the JSON from the snapshots that a thread takes, and
from records.
"""

from __future__ import annotations

import signal
import sys

import typer
from typer import Option

from sparkkafka.cli.commands import session_of
from sparkkafka.cli.snapshots import Collector
from sparkkafka.cli.tables import print_error, print_line
from sparkkafka.cli.top import Every, seconds_of_every
from sparkkafka.config.kinds import is_loopback
from sparkkafka.errors import OptionError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def ui(
    context: typer.Context,
    port: int = Option(8585, min=0, max=65_535, help="The port; 0 for any free one."),
    host: str = Option("127.0.0.1", metavar="ADDRESS", help="The address to listen at."),
    allow_remote: bool = Option(
        False,
        "--allow-remote",
        help="Allow a --host that other machines reach. There is no authentication.",
    ),
    every: Every = "5s",
    checkpoint: list[str] | None = Option(
        None, metavar="DIR", help="The checkpoint of a streaming query to show; may be repeated."
    ),
    dead_letters: list[str] | None = Option(
        None,
        metavar="TOPIC",
        help="A topic of dead letters to show; may be repeated. Topics named like "
        "orders-dlq are found without it.",
    ),
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
    if "" in (dead_letters or ()):
        raise OptionError("--dead-letters is an empty name")
    is_remote = not is_loopback(host)
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
        with responses, PageServer(host, port, responses.documents) as server:
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
