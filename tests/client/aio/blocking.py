"""The asyncio classes behind the methods of the threads', so that one test holds for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, Self, TypeVar

from sparkkafka.errors import KafkaTimeoutError

T = TypeVar("T")


@cache
def background_loop() -> asyncio.AbstractEventLoop:
    """A loop that runs in a thread until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, background_loop()).result()


class BlockingDelivery:
    """`Delivery` of the future of `send_nowait`."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future
        self._is_done = threading.Event()
        future.add_done_callback(lambda _: self._is_done.set())

    def done(self) -> bool:
        return self._is_done.is_set()

    def result(self, timeout_s: float | None = None) -> Any:
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._future.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        if not self._is_done.wait(timeout_s):
            raise KafkaTimeoutError(f"not acknowledged after {timeout_s} s")
        return self._future.exception()


class Blocking:
    """An asyncio client whose methods block."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: run(found(*args, **kwargs))

    def __enter__(self) -> Self:
        run(self._client.__aenter__())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        run(self._client.__aexit__(*exc_info))

    def __repr__(self) -> str:
        return repr(self._client)

    def send(self, *args: Any, **kwargs: Any) -> BlockingDelivery:
        async def send() -> BlockingDelivery:
            return BlockingDelivery(self._client.send_nowait(*args, **kwargs))

        return run(send())
