"""`ui`: a local web page of brokers, topics, consumer groups, checkpoints and dead letters.

Its server answers with the files of the page, and with JSON of the snapshots that a thread takes
and of records. It only reads.

- Only GET is served. Nothing that a request says changes anything.
- A page of another site cannot read the responses: none has a CORS header, and a request whose Host
  is a foreign name (DNS rebinding) is refused.
- The page loads nothing from another host: see CSP.
- Responses are limited in size: lists have at most MAX_ROWS rows, and `total` says how many there
  are.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import islice
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import typer
from typer import Option

from sparkkafka.cli import snapshots, tables
from sparkkafka.cli.checkpoint import batch_documents, records_read
from sparkkafka.cli.commands import session_of
from sparkkafka.cli.session import Session
from sparkkafka.cli.top import Every, seconds_of_every
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.lags import list_lags, settings_without_group
from sparkkafka.client.values import TopicPartition
from sparkkafka.config.kinds import address_text, is_loopback
from sparkkafka.errors import KafkaError, OptionError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


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
    session = session_of(context)
    with (
        snapshots.Collector(session.admin()) as collector,
        Watcher(collector, interval_s) as watcher,
    ):
        responses = Responses(watcher, session, checkpoint or (), dead_letters or ())
        with responses, PageServer(host, port, responses.documents) as server:
            if is_remote:
                tables.print_error(
                    f"warning: everybody who reaches {host} port {server.port} can see topics, "
                    "groups and dead letters: there is no authentication"
                )
            # A script's shell starts it in the background with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            cluster_id = watcher.snapshot.cluster_id
            tables.print_line(f"watching cluster {cluster_id} at {server.url} until Ctrl-C")
            sys.stdout.flush()
            server.serve()


# --- the web server ---------------------------------------------------------------------------

Query = Mapping[str, str]
"""The parameters of a URL: the last value of each name."""
Documents = Mapping[str, Callable[[Query], Any]]
"""Functions that make the JSON of each path below /api/."""

FILES: Final = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/logo.svg": ("logo.svg", "image/svg+xml"),
}
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
IDLE_S: Final = 10.0
"""Maximum time for which a connection may neither send nor receive, and for its whole request."""
MAX_CONNECTIONS: Final = 32
"""Maximum number of open connections, each with a thread. A browser opens six."""
BUSY: Final = b"""HTTP/1.0 503 Service Unavailable\r
Content-Type: application/json\r
Content-Length: 38\r
\r
{"error":"there are too many clients"}
"""


class NotFoundError(KafkaError):
    """A request about a topic, group or page that is not there."""


class PageServer(ThreadingHTTPServer):
    """Serves the page at an address. Use it under `with`. Raises OptionError if it cannot listen
    there."""

    daemon_threads = True

    def __init__(self, host: str, port: int, documents: Documents) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._host = host
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self.reading: dict[socket.socket, float] = {}
        """The connections whose request is incomplete, and when they were opened (monotonic)."""
        self.documents = documents
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            hint = ": give another --port" if error.errno == errno.EADDRINUSE else ""
            raise OptionError(
                f"cannot listen at {host} port {port}: {error.strerror or error}{hint}"
            ) from error
        self.port: int = self.server_address[1]

    def server_bind(self) -> None:
        # HTTPServer also looks up the host's name, which may take a minute.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; refuse the request if MAX_CONNECTIONS are open."""
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.send(BUSY)  # one packet, which does not wait
            self.shutdown_request(request)
            return
        self.reading[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: socket.socket) -> None:
        """Let another connection take the place of this one."""
        self.reading.pop(request, None)
        self._free.release()

    def service_actions(self) -> None:
        """Cut connections whose request is incomplete after IDLE_S. `timeout` does not end those
        that send their request byte by byte."""
        for connection, since_s in list(self.reading.items()):
            if time.monotonic() - since_s > IDLE_S:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # OSError: a browser closes connections when a page is left. Others get a traceback.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def serve(self) -> None:
        """Answer requests until an exception, such as Ctrl-C."""
        self.serve_forever(poll_interval=0.2)

    @property
    def url(self) -> str:
        return f"http://{address_text(self._host, self.port)}/"

    def is_own_host(self, header: str | None) -> bool:
        """Return whether a Host header names this server: by an IP address, as localhost, by the
        name in --host or by this machine's name. Another name is what DNS rebinding uses."""
        try:
            parts = urlsplit(f"//{header or ''}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port or parts.username is not None or parts.path:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name in {"localhost", self._host.lower(), socket.gethostname().lower()}


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: PageServer
    server_version, sys_version = "sparkkafka", ""
    timeout = IDLE_S

    def parse_request(self) -> bool:
        """Parse the request line and headers. Then the request is complete, and the connection no
        longer closed for being slow (`reading`)."""
        is_valid = super().parse_request()
        self.server.reading.pop(self.connection, None)
        return is_valid

    def do_GET(self) -> None:
        """Send a file of the page or a JSON document, or the reason for refusing the request."""
        if not self.server.is_own_host(self.headers.get("Host")):
            self._refuse(403, "the Host header is not an address of this server")
            return
        if len(self.path) > 4_096:
            self._refuse(414, "the URL is too long")
            return
        path, _, query = self.path.partition("?")
        if path in FILES:
            name, media_type = FILES[path]
            content = files("sparkkafka.cli").joinpath("page", name).read_bytes()
            self._respond(200, media_type, content)
            return
        document = self.server.documents.get(path)
        if document is None:
            self._refuse(404, f"there is no {path}")
            return
        try:
            self._response_json(200, document(dict(parse_qsl(query))))
        except NotFoundError as error:
            self._refuse(404, str(error))
        except OptionError as error:
            self._refuse(400, str(error))
        except KafkaError as error:
            self._refuse(502, str(error))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no GET, or none at all."""
        if code == 501:
            code, message = 405, "this server only answers GET"
        self._refuse(code, message or "")

    def _refuse(self, code: int, message: str) -> None:
        """Send an error as JSON, and close the connection."""
        self.close_connection = True
        self._response_json(code, {"error": message})

    def _response_json(self, code: int, document: Any) -> None:
        # ASCII, because the name of a topic or a header may have half a pair of surrogates.
        content = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        self._respond(code, "application/json", content)

    def _respond(self, code: int, media_type: str, content: bytes) -> None:
        """Send a response with this status code."""
        self.send_response(code)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if code == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the terminal has the address of the page."""


if TYPE_CHECKING:
    from sparkkafka.client.consumer.consumer import Consumer

# --- JSON of the page -----------------------------------------------------------------------------

PREFIX: Final = "__connect.errors."
"""The prefix of headers that say why a record is bad. Kafka Connect and `deadLetter.topic` write
them."""
PREVIEW_BYTES: Final = 256
"""The part of a key, value or header that is shown."""


class DeadLetterReader:
    """Reads the last records of topics, without a group; one thread at a time."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        fixed = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "max.partition.fetch.bytes": "262144",  # only the last records are shown
        }
        self._settings = settings_without_group(settings, fixed)
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close(0)

    def read(self, ends: Mapping[TopicPartition, int], count: int) -> list[dict[str, Any]]:
        """Return the last `count` records before these ends, the latest first. Records that do not
        arrive within 5 s are left out. Raises KafkaError."""
        # Not at the top: it loads Arrow.
        from sparkkafka.client.consumer.consumer import Consumer

        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        consumer, deadline = self._consumer, Deadline(5_000)
        pending = {tp: end for tp, end in ends.items() if end > 0}
        letters: list[dict[str, Any]] = []
        consumer.assign({tp: max(0, end - count) for tp, end in pending.items()})
        while pending and not deadline.expired:
            table = consumer.poll_arrow(min(deadline.remaining_s(), 0.2), 1_000)
            # As a number: Python has no times after the year 9999, which a producer may write.
            times = table.schema.get_field_index("timestamp")
            micros = table.column(times).cast("int64")
            letters += map(_letter, table.set_column(times, "timestamp", micros).to_pylist())
            letters.sort(key=lambda row: (row["time_ms"], row["offset"]), reverse=True)
            del letters[count:]
            pending = {
                tp: end
                for tp, end in pending.items()
                if consumer.position(tp, deadline.remaining_s()) < end
            }
        consumer.assign({})
        return letters


def _letter(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of a dead-letter topic for JSON."""
    headers = {header["key"]: header["value"] for header in row["headers"] or ()}
    errors = {
        name.removeprefix(PREFIX): _preview(value)
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    reason = errors.pop("exception.message", None)
    if reason is None and "error" in headers:
        reason = _preview(headers["error"])
    return {
        "partition": row["partition"],
        "offset": row["offset"],
        "time_ms": max(0, row["timestamp"] or 0) // 1000,
        "key": _preview(row["key"]),
        "value": _preview(row["value"]),
        "reason": reason,
        "errors": errors,
    }


def _preview(value: bytes | None) -> str | None:
    """Return the beginning of bytes as text: as hex if they are not UTF-8."""
    if value is None:
        return None
    shown, more = value[:PREVIEW_BYTES], "…" if len(value) > PREVIEW_BYTES else ""
    for cut in range(4):  # the limit may have cut a character, of four bytes at most
        try:
            return shown[: len(shown) - cut].decode() + more
        except UnicodeDecodeError:
            if not more:
                break
    return f"0x{shown[: PREVIEW_BYTES // 2].hex()}{more}"


MAX_ROWS: Final = 1_000
DEFAULT_ROWS: Final = 100
CURVES: Final = 5
"""The number of topics, or groups, in a plot of the overview."""
MAX_LETTERS: Final = 30
MAX_NAMED: Final = 10
"""Maximum number of topics that are read because their names look like dead letters."""
END_S: Final = 0.5
"""How long the end of the command waits for a thread."""
CACHED_S: Final = 5.0
"""For how long checkpoints and dead letters that were read are shown to all browsers."""


class _Cache:
    """Caches a document that is slow to make, for CACHED_S. One thread at a time makes it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made_at_s = -CACHED_S
        self._document: Any = None

    def document(self) -> Any:
        """Return the document, made again if it is older than CACHED_S."""
        with self._lock:
            if time.monotonic() - self._made_at_s >= CACHED_S:
                self._document = self._make()
                self._made_at_s = time.monotonic()
            return self._document

    def close(self) -> bool:
        """Wait until no thread makes the document, at most END_S, and let none make it again.
        Return whether that was in time."""
        return self._lock.acquire(timeout=END_S)


class Watcher(threading.Thread):
    """Takes a snapshot every `every_s` seconds in a thread. Use it under `with`, which takes the
    first snapshot and raises KafkaError if that fails. If a later one fails, `snapshot` stays and
    `failure` has the error."""

    snapshot: snapshots.Snapshot

    def __init__(self, collector: snapshots.Collector, every_s: float) -> None:
        super().__init__(name="sparkkafka-ui-snapshots", daemon=True)
        self._collector = collector
        self.every_s = every_s
        self.failure = ""
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self.snapshot = self._collector.collect()
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.set()
        self._collector.interrupt()
        self.join(timeout=END_S)

    def run(self) -> None:
        """Take a snapshot every `every_s`, until the watcher is closed."""
        while not self._closing.wait(self.every_s):
            try:
                self.snapshot, self.failure = self._collector.collect(), ""
            except KafkaError as error:
                self.failure = str(error)

    def curves(self, **names: Iterable[str]) -> dict[str, Any]:
        """Return the curves of these topics or groups: see `History.curves`."""
        return self._collector.history.curves(names)


class Responses:
    """Makes the documents of the page: `documents` has a function for each path. `locations` are
    those of checkpoints, `topics` those of dead letters. Use it under `with`: it has connections of
    its own."""

    def __init__(
        self, watcher: Watcher, session: Session, locations: Sequence[str], topics: Sequence[str]
    ) -> None:
        self._watcher = watcher
        self._locations = list(dict.fromkeys(locations))
        self._topics = list(dict.fromkeys(topics))
        self._admin = session.admin(session.new_deadline())
        self._reader = DeadLetterReader(session.settings("consumer"))
        self._checkpoints_cache = _Cache(self._checkpoints)
        self._letters_cache = _Cache(self._dead_letters)
        self.documents: Documents = {
            "/api/state": self._state,
            "/api/overview": self._overview,
            "/api/topics": lambda query: _choose_rows(
                watcher.snapshot.topics, query, "topic", snapshots.TOPIC_ORDERS, vars
            ),
            "/api/topic": self._topic,
            "/api/groups": lambda query: _choose_rows(
                watcher.snapshot.groups, query, "group", snapshots.GROUP_ORDERS, _without_topics
            ),
            "/api/group": self._group,
            "/api/checkpoints": lambda query: self._checkpoints_cache.document(),
            "/api/dead-letters": lambda query: self._letters_cache.document(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # The thread that makes a document may wait long for a broker or a file system. The process
        # ends without waiting for it.
        self._admin.interrupt()
        if self._checkpoints_cache.close():
            self._admin.close()
        if self._letters_cache.close():
            self._reader.close()

    # --- cluster

    # Each of these makes the document of a path. `query` has the parameters of the URL.

    def _state(self, query: Query) -> dict[str, Any]:
        """The document of the cluster and its last snapshot."""
        watcher, snapshot = self._watcher, self._watcher.snapshot
        return {
            "cluster_id": snapshot.cluster_id,
            "time_ms": snapshot.time_ms,
            "took_s": round(snapshot.took_s, 3),
            "every_s": watcher.every_s,
            "rates_s": snapshot.rates_s,
            "failure": watcher.failure,
        }

    def _overview(self, query: Query) -> dict[str, Any]:
        """Return the totals and the brokers, and the CURVES topics and groups with the largest
        rates and lags."""
        watcher, snapshot = self._watcher, self._watcher.snapshot
        fastest = sorted(snapshot.topics, key=snapshots.TOPIC_ORDERS["rate"])
        behind = sorted(snapshot.groups, key=snapshots.GROUP_ORDERS["lag"])
        topics = [row.topic for row in fastest[:CURVES]]
        groups = [row.group for row in behind[:CURVES]]
        return {
            "problems": snapshot.problems,
            "totals": snapshot.totals,
            "brokers": [vars(row) for row in snapshot.brokers],
            "topics": [vars(row) for row in fastest[:CURVES]],
            "groups": [_without_topics(row) for row in behind[:CURVES]],
            "curves": watcher.curves(records=["", *topics], bytes=["", *topics], lag=["", *groups]),
        }

    def _topic(self, query: Query) -> dict[str, Any]:
        """The document of one topic (`name` of the query): its partitions, its readers, its
        curves."""
        snapshot, name = self._watcher.snapshot, query.get("name", "")
        row = _row_of(snapshot.topics, "topic", name)
        partitions = sorted(tp for tp in snapshot.leaders if tp.topic == name)
        rows = [
            {
                "partition": tp.partition,
                "leader": snapshot.leaders[tp],
                "end": snapshot.ends.get(tp),
                "records_per_s": snapshot.rates.get(tp),
                "size_bytes": snapshot.sizes.get(tp),
            }
            for tp in partitions
        ]
        readers: list[dict[str, Any]] = sorted(
            (
                {"group": group.group, "lag": group.lag_by_topic[name]}
                for group in snapshot.groups
                if name in group.lag_by_topic
            ),
            key=lambda reader: (-reader["lag"], reader["group"]),
        )
        return {
            "row": vars(row),
            "curves": self._watcher.curves(records=[name], bytes=[name]),
            "partitions": {"total": len(rows), "rows": rows[:MAX_ROWS]},
            "groups": {"total": len(readers), "rows": readers[:DEFAULT_ROWS]},
        }

    def _group(self, query: Query) -> dict[str, Any]:
        """The document of one group (`name` of the query): its partitions, those with most lag
        first."""
        snapshot, name = self._watcher.snapshot, query.get("name", "")
        row = _row_of(snapshot.groups, "group", name)
        partitions = [
            {**tp._asdict(), "committed": offset, "end": end, "lag": end and max(0, end - offset)}
            for tp, offset in sorted(snapshot.committed.get(name, {}).items())
            for end in (snapshot.ends.get(tp),)
        ]
        partitions.sort(key=lambda row: -(row["lag"] or 0))
        return {
            "row": vars(row),
            "curves": self._watcher.curves(lag=[name]),
            "partitions": {"total": len(partitions), "rows": partitions[:DEFAULT_ROWS]},
        }

    # --- checkpoints and dead letters

    def _checkpoints(self) -> dict[str, Any]:
        """Return the document of all checkpoints of --checkpoint."""
        self._admin.restart_deadline()
        return {"checkpoints": [self._checkpoint(location) for location in self._locations]}

    def _checkpoint(self, location: str) -> dict[str, Any]:
        """Describe a checkpoint: its last batches, and the lag of its query."""
        from sparkkafka.checkpoints.against_kafka import next_offsets
        from sparkkafka.checkpoints.logs import Checkpoint

        errors: list[KafkaError] = []
        document: dict[str, Any] = {"location": location}
        try:
            checkpoint = Checkpoint(location)
            document["stateful"] = checkpoint.is_stateful
            document["batches"] = []
            for row in reversed(batch_documents(checkpoint, count=10, errors=errors)):
                read = [part for source in row["sources"] for part in source["partitions"]]
                document["batches"].append(
                    {
                        **{name: row[name] for name in ("batch", "finished", "planned_ms")},
                        "records": records_read(read),
                        "topics": sorted({part["topic"] for part in read}),
                    }
                )
            document["query_id"] = checkpoint.query_id
            lags = list_lags(self._admin, next_offsets(checkpoint, self._admin))
            lags.sort(key=lambda row: -(row.lag or 0))
            document["lag"] = tables.sum_of(row.lag for row in lags)
            document["partitions"] = {
                "total": len(lags),
                "rows": [
                    {
                        **row.partition._asdict(),
                        "next": row.committed,
                        "end": row.latest,
                        "lag": row.lag,
                        "lost": row.gone,
                    }
                    for row in lags[:DEFAULT_ROWS]
                ],
            }
        except KafkaError as error:
            errors.append(error)
        # A file that was read twice has two equal errors.
        document["errors"] = list({str(error): None for error in errors})
        return document

    def _dead_letters(self) -> dict[str, Any]:
        """Return the last records of the topics of --dead-letters, and of those that are named
        like dead letters and have headers with a reason."""
        snapshot = self._watcher.snapshot
        likely = (
            row.topic
            for row in snapshot.topics
            if re.search("dead|dlq|dlt", row.topic.lower()) and row.topic not in self._topics
        )
        documents = []
        for name in [*self._topics, *islice(likely, MAX_NAMED)]:
            ends = {tp: end for tp, end in snapshot.ends.items() if tp.topic == name}
            document: dict[str, Any] = {
                "topic": name,
                "records": sum(ends.values()),
                "letters": [],
                "error": "" if ends else f"there is no topic {name!r}, or it has no leader",
            }
            try:
                document["letters"] = self._reader.read(ends, MAX_LETTERS)
            except KafkaError as error:
                document["error"] = str(error)
            if name in self._topics or any(
                letter["reason"] is not None for letter in document["letters"]
            ):
                documents.append(document)
        return {"topics": documents}


def _without_topics(row: snapshots.GroupRow) -> dict[str, Any]:
    """Return a group for a list: with the topic of its largest lag, and the number of topics."""
    document = {**vars(row), "topics": len(row.lag_by_topic)}
    by_topic = document.pop("lag_by_topic")
    document["topic"] = max(by_topic, key=lambda name: (by_topic[name], name), default=None)
    return document


def _row_of(rows: Iterable[Any], kind: str, name: str) -> Any:
    """Return the row of a topic or group (`kind`). Raises NotFoundError."""
    for row in rows:
        if getattr(row, kind) == name:
            return row
    raise NotFoundError(f"there is no {kind} {name!r} (any more)")


def _choose_rows(
    rows: Iterable[Any],
    query: Query,
    kind: str,
    orders: Mapping[str, Callable[[Any], Any]],
    document_of: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the rows of topics or groups (`kind`) whose names contain the filter, in one of the
    `orders`, by default the first: at most `limit` of them from `start` on, and the total."""
    sort = query.get("sort", next(iter(orders)))
    if sort not in orders:
        raise OptionError(f"sort is one of {', '.join(orders)}")
    text = query.get("filter", "").lower()
    chosen = sorted((row for row in rows if text in getattr(row, kind).lower()), key=orders[sort])
    numbers = []
    for name, default in (("start", 0), ("limit", DEFAULT_ROWS)):
        text = query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise OptionError(f"{name} is a whole number")
        numbers.append(int(text))
    start, limit = numbers
    shown = chosen[start : start + min(limit, MAX_ROWS)]
    return {"total": len(chosen), "start": start, "rows": [document_of(row) for row in shown]}
