"""The client library for asyncio: `from sparkkafka.client.aio import AsyncConsumer, AsyncProducer`.

Each class runs the class of the threads: the same methods, settings and errors, awaited. Begin with
`worker.py`, the thread that runs blocking calls; `producer.py` needs it for few of its methods.
docs/client-asyncio.md shows how to use them.
"""

from sparkkafka.client.aio.admin import AsyncAdmin
from sparkkafka.client.aio.consumer import AsyncConsumer, AsyncShareConsumer
from sparkkafka.client.aio.producer import AsyncDelivery, AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncDelivery", "AsyncProducer", "AsyncShareConsumer"]
