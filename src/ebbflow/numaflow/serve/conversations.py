"""Streams to an ``async`` map or transformer: every request is answered when its call is done.

The function's event loop runs on the function's own thread, the server's on another: a call that
blocks by mistake keeps the other calls waiting, but not the server. Requests go over to the
function's loop one by one, and answers come back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

from ebbflow.numaflow.serve.failures import FunctionFailure
from ebbflow.numaflow.serve.function import ServedFunction
from ebbflow.numaflow.serve.results import MapResults
from ebbflow.numaflow.serve.streams import EOF, Fail, StreamShape, greet
from ebbflow.usercode.calling import USER_ERRORS

_MOST_IN_FLIGHT = 1_000
"""Requests that are worked on at once; those beyond wait in the client."""


T = TypeVar("T")


class Mailbox(Generic[T]):
    """Takes things over to an event loop from another thread; many of them wake it up once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._put: deque[T] = deque()
        self._there: asyncio.Queue[T] = asyncio.Queue()
        self._woken = False

    def put(self, thing: T) -> None:
        """Sends it; nothing happens if the loop is closed, for nobody takes it any more."""
        self._put.append(thing)
        if not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before looking: what is put from now on wakes the loop again
        while self._put:
            self._there.put_nowait(self._put.popleft())

    async def get(self) -> T:
        """Waits for the next one, in the loop."""
        return await self._there.get()


class SideBySide:
    """Serves a map or transformer that works on many requests at once."""

    def __init__(
        self, function: ServedFunction, shape: StreamShape, results: MapResults, fail: Fail
    ) -> None:
        self._function, self._shape, self._results = function, shape, results
        self._fail = fail

    async def serve(self, _: Any, context: Any) -> None:
        """Serves one stream to its end."""
        await greet(context, self._shape.parse, self._shape.greeting)
        conversation = _Exchanges(self._function, self._shape, self._results)
        calling = asyncio.ensure_future(self._function.run(conversation.hold))
        reading = asyncio.ensure_future(self._read(context, conversation))
        try:
            while (answer := await conversation.answers.get()) is not None:
                if isinstance(answer, FunctionFailure):
                    await self._fail(context, answer)
                else:
                    await context.write(answer)
                    conversation.room.release()
            await calling
        finally:
            reading.cancel()
            conversation.end()

    async def _read(self, context: Any, conversation: _Exchanges) -> None:
        await conversation.begun.wait()
        await conversation.room.acquire()
        while (message := await context.read()) is not EOF:
            conversation.ask(message)
            await conversation.room.acquire()
        conversation.end()


class _Exchanges:
    """One stream's requests and answers, between the loop of the server and the function's."""

    def __init__(self, function: ServedFunction, shape: StreamShape, results: MapResults) -> None:
        self._function, self._shape, self._results = function, shape, results
        self._failure: FunctionFailure | None = None
        self._requests: Mailbox[bytes | None] | None = None
        self._over = False
        self._server = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.room = asyncio.Semaphore(_MOST_IN_FLIGHT)
        self.answers: Mailbox[bytes | FunctionFailure | None] = Mailbox(self._server)

    # --- for the server's loop ------------------------------------------------------------------

    def ask(self, message: bytes | None) -> None:
        """Gives the function a request; ``None`` is the last one. After ``begun``."""
        assert self._requests is not None
        self._requests.put(message)

    def end(self) -> None:
        """Asks for nothing more; may be said twice, before it has begun and when it is over."""
        self._over = True
        if self._requests is not None:
            self._requests.put(None)

    # --- on the function's thread ---------------------------------------------------------------

    def hold(self) -> None:
        """Answers requests to the end; the last answer is ``None``, or why the stream ends."""
        try:
            self._function.renew()
        except USER_ERRORS as error:
            self._failure = self._function.failure_of(error)
        self._function.converse(self._answer_all())

    async def _answer_all(self) -> None:
        # Before looking whether the client has gone: whoever ends it from now on finds a mailbox.
        self._requests = requests = Mailbox[bytes | None](asyncio.get_running_loop())
        if self._over:
            return
        self._server.call_soon_threadsafe(self.begun.set)
        running: set[asyncio.Task[None]] = set()
        while self._failure is None and (message := await requests.get()) is not None:
            task = asyncio.ensure_future(self._answer(message))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)
        self.answers.put(self._failure)

    async def _answer(self, message: bytes) -> None:
        request = self._shape.request_of(self._shape.parse(message))
        reply = await self._function.reply_to_one(request)
        for response in self._results.responses(reply):
            self.answers.put(response)
        if self._failure is None and (failure := self._function.failure_in(reply)) is not None:
            self._failure = failure
            self.ask(None)
