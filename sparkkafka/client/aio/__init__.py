"""The client library for asyncio: `from sparkkafka.client.aio import AsyncConsumer, AsyncProducer`.

Each class wraps the blocking class: it has the same methods, settings and errors, and its methods
are coroutines. `worker.py` has the thread that runs the blocking calls. AsyncProducer sends records
without it: there the Producer's own I/O thread does the work. docs/client-asyncio.md shows how to
use the classes.
"""

from sparkkafka.client.aio.admin import AsyncAdmin
from sparkkafka.client.aio.consumer import AsyncConsumer, AsyncShareConsumer
from sparkkafka.client.aio.producer import AsyncDelivery, AsyncProducer

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncDelivery", "AsyncProducer", "AsyncShareConsumer"]
