"""A web service that answers when its record is acknowledged, while a broker is killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sparkkafka.client.aio import AsyncProducer
from tests.client.support import log_values, settings

fastapi, httpx, uvicorn = map(pytest.importorskip, ("fastapi", "httpx", "uvicorn"))

ORDERS = 160
CLIENTS = 20


def test_each_order_that_was_answered_with_200_is_in_the_topic_once(
    fake_cluster_factory: Any,
) -> None:
    positions: set[tuple[int, ...]] = set()
    fake = fake_cluster_factory(2)
    fake.create_topic("orders", partitions=4)

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with AsyncProducer(settings(fake, linger_ms=2)) as producer:
            app.state.producer = producer
            yield

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.post("/orders")  # type: ignore[untyped-decorator]
    async def order(request: fastapi.Request) -> dict[str, int]:
        metadata = await app.state.producer.send("orders", await request.body())
        return {"partition": metadata.partition, "offset": metadata.offset}

    async def main() -> list[bytes]:
        config = uvicorn.Config(app, port=0, log_level="warning", ws="none", timeout_keep_alive=60)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        numbers, acknowledged = iter(range(ORDERS)), []

        async def buy() -> None:
            for number in numbers:
                response = await client.post("/orders", content=b"%d" % number)
                if response.status_code == 200:
                    acknowledged.append(b"%d" % number)
                    positions.add(tuple(response.json().values()))
                if number == ORDERS // 4:
                    await asyncio.to_thread(fake.broker_down, fake.leader("orders", 0))

        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(buy())
        server.should_exit = True
        await serving
        return acknowledged

    acknowledged = asyncio.run(main())
    written = [value for number in range(4) for value in log_values(fake, "orders", number)]
    assert sorted(acknowledged) == sorted(b"%d" % number for number in range(ORDERS))
    assert sorted(written) == sorted(acknowledged)
    assert len(positions) == ORDERS
