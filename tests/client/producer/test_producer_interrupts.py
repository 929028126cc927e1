"""Ctrl-C in a call of a Producer: what earlier calls queued is sent, once, and nothing hangs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sparkkafka.client.producer import record_accumulator
from sparkkafka.client.producer.producer import Producer
from sparkkafka.testing.fake.cluster import FakeCluster
from tests.client.support import log_values, settings

WAIT_S = 20
MAX_LINES = 400


class _Interrupt:
    """Ctrl-C before the `number`-th line that the accumulator runs in this thread."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.came = False

    def __enter__(self) -> _Interrupt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if Path(frame.f_code.co_filename).name != Path(record_accumulator.__file__).name:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                sys.settrace(None)
                self.came = True
                raise KeyboardInterrupt
        return self._trace


CALLS: dict[str, Callable[[Producer], Any]] = {
    "send": lambda producer: producer.send("t", b"call"),
    "send of another topic": lambda producer: producer.send("u", b"call"),
    "send that fills a chunk": lambda producer: producer.send("t", b"call" * 8_000),
    "send_many": lambda producer: producer.send_many("t", [b"call", b"more"]),
    "flush": lambda producer: producer.flush(WAIT_S),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_earlier_records_are_sent_once_whenever_ctrl_c_comes(
    fake_cluster: FakeCluster, call: str
) -> None:
    fake_cluster.create_topic("t")
    fake_cluster.create_topic("u")
    expected = []
    config = settings(fake_cluster, linger_ms=60_000, buffer_memory=131_072, batch_size=16_384)
    for number in range(1, MAX_LINES):
        with Producer(config) as producer:
            before = producer.send("t", b"before %d" % number)
            with _Interrupt(number) as interrupt:
                try:
                    CALLS[call](producer)
                except KeyboardInterrupt:
                    assert interrupt.came
            after = producer.send("t", b"after %d" % number)
            producer.flush(WAIT_S)
            assert before.result(WAIT_S).offset < after.result(WAIT_S).offset
            assert producer._buffer.used_bytes == 0
        # (Not before: the I/O thread forgets records after the callers that wait for them.)
        assert not producer._buffer.unfinished
        expected += [b"before %d" % number, b"after %d" % number]
        if not interrupt.came:
            break
    else:
        raise AssertionError(f"more than {MAX_LINES} lines")
    reported = [value for value in log_values(fake_cluster, "t") if value and value[:4] != b"call"]
    assert [value for value in reported if value != b"more"] == expected
