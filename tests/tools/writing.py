"""Records that come into a topic while a picture is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sparkkafka.client import Producer


@contextmanager
def written(
    servers: str, records: Callable[[float], Iterable[dict[str, Any]]], every_s: float = 0.1
) -> Iterator[None]:
    """Meanwhile a thread writes `records` of the seconds so far, as `send` has them, to orders."""
    done = threading.Event()

    def write() -> None:
        begun_s = time.monotonic()
        with Producer({"bootstrap.servers": servers}) as producer:
            while not done.wait(every_s):
                for record in records(time.monotonic() - begun_s):
                    producer.send("orders", **record)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
