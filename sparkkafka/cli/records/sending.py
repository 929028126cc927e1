"""Batches to a topic, each record acknowledged or named as lost."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from sparkkafka.cli.refused_servers import check_not_refused
from sparkkafka.client.producer.producer import Producer
from sparkkafka.client.producer.tables import TableDelivery
from sparkkafka.config.client_settings import parse_producer_settings
from sparkkafka.errors import EncodeError, KafkaError, OptionError, ProduceError

DEFAULTS: Final = {"linger.ms": 5, "batch.size": 512 << 10}
"""Of a Producer, where nothing else is said. Java's batches of 16 KB are for services: a file's
records of one partition take four times as long in them."""

THE_ROW: Final = "{row}"

_ROW = re.compile(r"row (\d+) of the table")
_MAX_WAITING = 1_000  # handles; their records are bounded by buffer.memory
_MAX_REQUEST_MS = 30_000


def bounded(timeout_s: float) -> dict[str, Any]:
    """Settings of a Producer for which so much time is enough for each record."""
    timeout_ms = max(1, int(timeout_s * 1000))
    return {
        **DEFAULTS,
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms + DEFAULTS["linger.ms"],
        "request.timeout.ms": min(timeout_ms, _MAX_REQUEST_MS),
    }


class NotWrittenError(KafkaError):
    """Some records were given up; the message counts them and has the first one's error."""


class TopicWriter:
    """Sends batches to one topic; use it under `with`, which waits for all acknowledgements.

    `settings` are a Producer's; `timeout_s` is for each record, unless they say something else.
    `written` counts acknowledged records. Raises NotWrittenError, and what Producer.send_table
    raises.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, timeout_s: float) -> None:
        if "transactional.id" in settings:
            raise OptionError("transactional.id: records go without a transaction here: remove it")
        self._topic = topic
        given = {**bounded(timeout_s), **settings}
        self._options = parse_producer_settings(given).client
        self._producer = Producer(given)
        self._waiting: deque[tuple[TableDelivery, int]] = deque()
        self.sent = 0
        self.written = 0
        self.failed = 0
        self._first: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._producer.__exit__(kind or self._failure_kind(), error, traceback)
            if isinstance(error, KeyboardInterrupt):
                self._settle_done()
                error.add_note(
                    f"{self.written:,} records were written to {self._topic}{self._rest()}"
                )

    def _failure_kind(self) -> type[BaseException] | None:
        return NotWrittenError if self.failed else None

    def send(self, batch: pa.RecordBatch) -> None:
        """Queues the rows; waits while the producer's memory is full. Raises NotWrittenError once
        records before were given up; KafkaConnectionError, before anything is sent, if all servers
        refuse connections."""
        if not self.sent:
            check_not_refused(self._options)
        self._waiting.append((self._producer.send_table(batch, self._topic), batch.num_rows))
        self.sent += batch.num_rows
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) > _MAX_WAITING):
            self._settle(*self._waiting.popleft())
        self._check()

    def send_good(self, batch: pa.RecordBatch) -> tuple[int, str | None]:
        """Sends the rows before the first that no record can be made of: how many they are, and
        what is wrong with that one, which the text calls `THE_ROW` (None: all are sent). Raises as
        `send`."""
        reason = None
        while batch.num_rows:
            try:
                self.send(batch)  # which checks all rows before it queues any
                break
            except (EncodeError, ProduceError) as error:
                found = _ROW.search(str(error))
                if found is None:
                    raise
                reason = str(error).replace(found[0], THE_ROW)
                batch = batch.slice(0, int(found[1]))  # a row before it may have another fault
        return batch.num_rows, reason

    def finish(self) -> None:
        """Waits until all that was sent is acknowledged. Raises NotWrittenError."""
        while self._waiting:
            self._settle(*self._waiting.popleft())
        self._check()

    def _settle(self, handle: TableDelivery, rows: int) -> None:
        failures = handle.failures()
        self.failed += len(failures)
        self.written += rows - len(failures)
        if failures and self._first is None:
            self._first = failures[0].error

    def _check(self) -> None:
        if not self.failed:
            return
        self._settle_done()
        raise NotWrittenError(
            f"{self.failed:,} of {self.sent:,} records were not written to topic {self._topic}"
            f"{self._rest()}; the first: {self._first}"
        ) from self._first

    def _settle_done(self) -> None:
        for handle, rows in self._waiting:
            if handle.done():
                self._settle(handle, rows)

    def _rest(self) -> str:
        open_ = self.sent - self.written - self.failed
        return f", and of {open_:,} it is not known" if open_ > 0 else ""


_LONGEST_SLEEP_S = 3600.0


class Pace:
    """Keeps a rate: `wait` before so many units returns when those before them are due."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._since_s = time.monotonic()
        self._units = 0.0

    def wait(self, units: float) -> None:
        due_s = self._since_s + self._units / self._per_second
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LONGEST_SLEEP_S))
        self._units += units
