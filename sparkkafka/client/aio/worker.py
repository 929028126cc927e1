"""Connects an event loop with threads: the thread that runs a client's blocking calls one at a
time, the user's callbacks on the loop, and queues that wake the loop once for many items.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from sparkkafka.client.arguments import ClientBase
from sparkkafka.client.consumer.consumer import CLOSE_TIMEOUT_S
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.metrics import Metrics
from sparkkafka.errors import KafkaError

T = TypeVar("T")
P = ParamSpec("P")

YIELD_AFTER_S = 0.002
"""After this time, code on the loop yields to other tasks."""
CHECK_INTERVAL_S = 1.0
"""While a callback runs, the thread checks at this interval whether the loop is closed or the
timeout of `close` is over."""


class LoopQueue(Generic[T]):
    """Passes items from other threads to `handle`, which runs on the loop. All items that are added
    before the loop wakes up cost one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[T], object]) -> None:
        self._loop = loop
        self._handle = handle
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """Add an item, from any thread. If the loop is closed, drop all items, which are never
        handled: their futures would keep the client and its threads alive."""
        self._items.append(item)
        if not self._is_woken or self._loop.is_closed():
            self._is_woken = True
            if not call_soon(self._loop, self._handle_items):
                self._items.clear()

    def _handle_items(self) -> None:
        """Handle the queued items on the loop. After YIELD_AFTER_S, leave the others to its next
        iteration."""
        self._is_woken = False
        until_s = self._loop.time() + YIELD_AFTER_S
        while self._items:
            self._handle(self._items.popleft())
            if self._items and self._loop.time() >= until_s:
                if not self._is_woken:  # otherwise `put` has scheduled the next call
                    self._is_woken = True
                    self._loop.call_soon(self._handle_items)
                return


class Turn:
    """Lets other tasks run after YIELD_AFTER_S. The tasks that use a client in one iteration of the
    loop share this time: if each had its own, hundreds of them would hold the loop."""

    def __init__(self) -> None:
        self._began_at_s = 0.0
        self._is_over = False

    def is_over(self) -> bool:
        """Return whether the time is over; then the task must yield to others."""
        if not self._is_over and time.monotonic() - self._began_at_s >= YIELD_AFTER_S:
            self._is_over = True
            asyncio.get_running_loop().call_soon(self.begin)  # before this task's next step
        return self._is_over

    def begin(self) -> None:
        """Begin the next turn: in the next iteration of the loop, or after a wait."""
        self._is_over = False
        self._began_at_s = time.monotonic()


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> bool:
    """Call a function on the loop, from any thread; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


@dataclass(slots=True, eq=False)
class _Call:
    """A call for the worker's thread. `prepare` runs on the loop before the thread gets the call.
    If no task awaits the result any more, `keep` gets it on the loop, or `undo` runs in the thread.
    `interrupt` ends a wait in `function` early."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    context: contextvars.Context
    prepare: Callable[[], object] | None = None
    keep: Callable[[Any], object] | None = None
    undo: Callable[[], object] | None = None
    interrupt: Callable[[], object] | None = None
    is_nested: bool = False


class _Callback:
    """A callback of the user that runs on the loop while the worker's thread waits for it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.is_running = True


_current_callback: contextvars.ContextVar[_Callback | None] = contextvars.ContextVar(
    "sparkkafka_callback", default=None
)


class Worker:
    """Runs the blocking calls of one client in a thread, one at a time and in order.

    The loop passes one call at a time to the thread, and the next one when a task has received the
    last result. So if that task was cancelled, its call can be undone before the next one runs.
    All methods but `call_back` and `_run_call` run on the loop.
    """

    def __init__(self, client: AsyncClient[Any]) -> None:
        self._what = type(client).__name__
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Call] = deque()
        self._running: _Call | None = None
        self._is_closed = False
        self._inbox: queue.SimpleQueue[_Call | _Callback | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # None ends the thread of a client that was garbage-collected.
        weakref.finalize(client, self._inbox.put, None).atexit = False
        self.callback_deadline: Deadline | None = None
        """The deadline of the client's `close`: callbacks that still run then are cancelled."""

    def bind(self) -> asyncio.AbstractEventLoop:
        """Bind the worker to the running loop at the first call, and return the loop. Raises
        KafkaError on another loop, or outside of one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise KafkaError(
                f"this {self._what} was called outside of a running event loop of asyncio: call "
                "it in a coroutine under asyncio.run"
            ) from None
        if self.loop is None:
            self.loop = loop
        if self.loop is not loop:
            raise KafkaError(
                f"this {self._what} belongs to another event loop: make one in each loop"
            )
        return loop

    async def run(
        self,
        function: Callable[[], T],
        *,
        prepare: Callable[[], object] | None = None,
        keep: Callable[[Any], object] | None = None,
        undo: Callable[[], object] | None = None,
        interrupt: Callable[[], object] | None = None,
    ) -> T:
        """Run a call after all earlier ones; return its result, or raise its error.

        A call with `interrupt` may wait for long: the next call without `interrupt` interrupts it,
        and so does the task's cancellation. If a task is cancelled before its call has begun, the
        call never runs. If it has begun, it ends in the thread; then `keep` or `undo` is called.
        """
        loop = self.bind()
        if self._is_closed and self._thread is None:
            return function()  # which raises that the client is closed
        context = contextvars.copy_context()
        call = _Call(function, loop.create_future(), context, prepare, keep, undo, interrupt)
        callback = _current_callback.get()
        if callback is not None and callback.worker is self and callback.is_running:
            # The thread is in `call_back`, in the call that runs the callback: it runs this one.
            call.is_nested = True
            self._put(call)
        else:
            self._waiting.append(call)
            if self._running is None:
                self._start_next()
            elif (
                interrupt is None
                and self._running.interrupt is not None
                and not self._running.future.done()
            ):
                self._running.interrupt()
        try:
            result: T = await call.future
        except asyncio.CancelledError:
            if call.future.done() and not call.future.cancelled():
                # The call ended in the iteration of the loop in which the task was cancelled.
                self._end_call(call, call.future.exception() is None and call.future.result())
            elif interrupt is not None and self._running is call:
                interrupt()
            raise
        except BaseException:
            self._end_call(call)
            raise
        loop.call_soon(self._end_call, call)  # after the task has received the result
        return result

    def close(self) -> None:
        """End the thread after all calls that are queued."""
        self._is_closed = True
        if self._running is None:
            self._start_next()

    def _start_next(self) -> None:
        """Pass the next call that is not cancelled to the thread. If there is none, and the worker
        is closed, end the thread."""
        self._running = None
        while self._waiting:
            call = self._waiting.popleft()
            if not call.future.done():
                self._hand_to_thread(call)
                # A call with `interrupt` may wait for long, as poll. If a call behind it does not,
                # the first one takes only what is there.
                if call.interrupt is not None and any(
                    later.interrupt is None for later in self._waiting
                ):
                    call.interrupt()
                return
        if self._is_closed and self._thread is not None:
            self._thread = None
            self._inbox.put(None)

    def _hand_to_thread(self, call: _Call) -> None:
        """Pass a call to the thread, which is started if there is none."""
        self._running = call
        if self._thread is None:
            name = f"sparkkafka-{self._what}"
            # The thread must not keep the client alive.
            arguments = self._inbox, weakref.ref(self)
            self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
            self._thread.start()
        self._put(call)

    def _put(self, call: _Call) -> None:
        """Prepare a call on the loop, and pass it to the thread."""
        if call.prepare is not None:
            call.prepare()
        self._inbox.put(call)

    def _resolve(self, call: _Call, result: Any, error: BaseException | None) -> None:
        """Pass the outcome of a call to its task, which then ends the call."""
        if call.future.done():  # cancelled: a result is lost, if there is one
            self._end_call(call, error is None and result)
        elif error is not None:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def _end_call(self, call: _Call, lost_result: Any = None) -> None:
        """Start the next call. Before it, keep or undo `lost_result`, what this call has returned
        and no task has received."""
        if call.keep is not None and lost_result:
            call.keep(lost_result)
        if call.undo is not None and lost_result and self.loop is not None:
            undo = _Call(call.undo, self.loop.create_future(), call.context)
            undo.is_nested = call.is_nested
            undo.future.cancel()  # no task awaits it
            if not call.is_nested:
                self._running = undo
            self._inbox.put(undo)
        elif not call.is_nested and self.loop is not None and not self.loop.is_closed():
            # In the next iteration, so that the task first handles the result.
            self.loop.call_soon(self._start_next)

    # --- the thread -------------------------------------------------------------------------------

    def _run_call(self, call: _Call) -> None:
        """Run a call in the thread, and pass its outcome to the loop."""
        result, error = None, None
        try:
            result = call.context.run(call.function)
        except BaseException as failure:
            error = failure
        if self.loop is not None and not call_soon(self.loop, self._resolve, call, result, error):
            self._running = None  # the loop is closed: no task awaits the outcome
            self._waiting.clear()

    def call_back(self, callback: Callable[..., object], *args: Any) -> object:
        """Run a callback, a function or coroutine function, on the loop. Wait for it in the
        worker's thread, which meanwhile runs the calls that the callback makes. Raises its error;
        KafkaError if it is cancelled."""
        loop, running = self.loop, _Callback(self)
        if loop is None:
            raise RuntimeError("called back before the first call")
        context = contextvars.copy_context()
        context.run(_current_callback.set, running)
        task: asyncio.Task[object] | None = None

        def start() -> None:
            """Start the callback as a task of the loop."""
            nonlocal task
            task = loop.create_task(_awaited_result(callback, args), context=context)
            task.add_done_callback(end)

        def end(_task: asyncio.Task[object]) -> None:
            """Wake the worker's thread, which waits for the end of the callback's task."""
            running.is_running = False
            self._inbox.put(running)

        is_open, is_late = call_soon(loop, start), False
        while is_open and running.is_running and not is_late:
            try:
                call = self._inbox.get(timeout=CHECK_INTERVAL_S)
            except queue.Empty:
                is_open = not loop.is_closed()
                is_late = self.callback_deadline is not None and self.callback_deadline.expired
                continue
            if isinstance(call, _Call):
                self._run_call(call)
            elif call is None:  # the client was garbage-collected
                self._inbox.put(None)
                break
        if is_late and task is not None:
            call_soon(loop, task.cancel)
        if task is None or running.is_running or task.cancelled():
            why = " after the timeout of close()" if is_late else ""
            raise KafkaError(f"a callback of this {self._what} was cancelled{why}")
        return task.result()


def _serve(
    inbox: queue.SimpleQueue[_Call | _Callback | None], reference: weakref.ref[Worker]
) -> None:
    """Run the calls of a worker until it is closed or garbage-collected."""
    while (call := inbox.get()) is not None:
        worker = reference()
        if isinstance(call, _Call) and worker is not None:
            worker._run_call(call)
        del call, worker  # the objects that they hold must not live until the next call


async def _awaited_result(callback: Callable[..., object], args: tuple[Any, ...]) -> object:
    """Call a function or coroutine function, and return its result."""
    result = callback(*args)
    return await result if inspect.isawaitable(result) else result


class BlockingClient(Protocol):
    """What AsyncClient needs of the client whose methods it runs in a thread."""

    def __exit__(self, *exc_details: Any) -> None: ...

    def metrics(self) -> Metrics: ...


C = TypeVar("C", bound=BlockingClient)


class AsyncClient(ClientBase, Generic[C]):
    """Base of the asyncio classes: runs the methods of `client` in a thread.

    It belongs to the loop of its first call. All tasks of this loop may call it at any time. Calls
    run one at a time, in the order in which they were made. A call interrupts a poll that waits.
    """

    def __init__(self, client: C) -> None:
        """`client` is the blocking client, which no other code may use."""
        self._client = client
        self._worker = self._closer = Worker(self)
        """The worker that runs `close`. AsyncProducer has a second one, since its `close` ends the
        calls that still run."""

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Async", 1)

    def metrics(self) -> Metrics:
        """Return metrics under Kafka's names, without a request (see `metrics` of the blocking
        client)."""
        return self._client.metrics()

    async def __aenter__(self) -> Self:
        self._worker.bind()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client as its own `__exit__` does, in the worker's thread."""
        if self._worker.loop is not None and self._worker.loop.is_closed():
            return  # the task was dropped with its loop: it cannot wait
        await self._end(functools.partial(self._client.__exit__, exc_type, error, traceback))

    async def _end(self, close: Callable[[], object], timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the client and end the thread, even if the task is cancelled meanwhile. Callbacks
        that still run after `timeout_s` are cancelled."""
        self._worker.bind()  # on another loop nothing is closed
        self._worker.callback_deadline = Deadline(timeout_s * 1000)
        closing = asyncio.ensure_future(self._run(close, self._closer))
        for worker in (self._worker, self._closer):
            closing.add_done_callback(lambda _, worker=worker: worker.close())  # type: ignore[misc]
        await asyncio.shield(closing)

    async def _run(self, call: Callable[[], T], worker: Worker | None = None) -> T:
        """Run a call of one of the client's methods in the worker's thread."""
        return await (worker or self._worker).run(call)


def awaited(
    method: Callable[Concatenate[Any, P], T], run: str = "_run"
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method for an AsyncClient that runs `method` of its client in the thread.
    Callbacks among the arguments run on the loop. `run` is the method that runs the call."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `method` in the thread, with callbacks that run on the loop."""

        def on_loop(value: Any) -> Any:
            """Return a function that runs a callback on the loop; other arguments unchanged."""
            return functools.partial(self._worker.call_back, value) if callable(value) else value

        positional = map(on_loop, args)
        named = {name: on_loop(value) for name, value in kwargs.items()}
        bound: Callable[..., T] = functools.partial(method, self._client)
        result: T = await getattr(self, run)(functools.partial(bound, *positional, **named))
        return result

    call.__qualname__ = f"Async{method.__qualname__}"  # in Python's "was never awaited"
    return call
