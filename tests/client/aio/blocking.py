"""The asyncio classes behind the methods of the threads', so that one test holds for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, Self, TypeVar

from sparkkafka.client.aio import AsyncDelivery
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
    """`Delivery` of what `send_nowait` returns."""

    def __init__(self, delivery: AsyncDelivery) -> None:
        self._delivery = delivery

    def done(self) -> bool:
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> Any:
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self._delivery.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        async def wait() -> BaseException | None:
            done, _ = await asyncio.wait([self._delivery], timeout=timeout_s)  # type: ignore[type-var]
            if not done:
                raise KafkaTimeoutError(f"not acknowledged after {timeout_s} s")
            return self._delivery.exception()

        return run(wait())


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
