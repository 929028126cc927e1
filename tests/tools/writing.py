"""Writes records into a topic while a picture is made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sparkkafka.client import Producer


@contextmanager
def write_in_background(
    servers: str, records: Callable[[float], Iterable[dict[str, Any]]], every_s: float = 0.1
) -> Iterator[None]:
    """Let a thread write to the topic orders: every `every_s` seconds `records`, which gets the
    seconds since the start, and yields the arguments of `Producer.send`."""
    done = threading.Event()

    def write() -> None:
        started_s = time.monotonic()
        with Producer({"bootstrap.servers": servers}) as producer:
            while not done.wait(every_s):
                for record in records(time.monotonic() - started_s):
                    producer.send("orders", **record)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
