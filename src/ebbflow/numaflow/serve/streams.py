"""The streams of maps, transformers and sinks, served to the runtime.

A stream begins with a handshake of both sides. Requests to a map or transformer are answered one by
one. Waiting requests are gathered and answered together; an ``async`` function works on all of them
concurrently, and each is answered when it is done. Requests to a batch map or sink arrive as a
batch with an end mark, and the responses end with one as well. A stream map answers in pieces, each
sent as it is yielded.

If the function fails on some of the requests, the responses to the others are sent first; then the
stream ends with the failure. So the runtime never waits in vain for a response.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import grpc

from ebbflow.engine.blame import USER_ERRORS
from ebbflow.engine.verdict import Verdict
from ebbflow.numaflow.serve.function import ServedFunction
from ebbflow.numaflow.serve.messages import FunctionFailure, MapResults, Request, responses_of
from ebbflow.numaflow.services import Method, Service, pack

Fail = Callable[[Any, FunctionFailure], Awaitable[None]]
"""Ends a stream with a failure; always raises."""

Answer = Callable[[bytes], Awaitable[tuple[list[bytes], FunctionFailure | None]]]
"""Answers one request; returns the responses, and the failure if there is one."""

EOF = grpc.aio.EOF
# Requests that may wait here; gRPC's flow control makes further ones wait in the client.
_MOST_WAITING = 4_096
# Seconds that the calls for gathered requests should take, so as not to delay the first responses.
_GATHER_FOR = 0.05
_MOST_GATHERED = 1_000


async def greet(context: Any, method: Method, greeting: bytes | None = None) -> None:
    """Exchanges handshakes; ends the stream if it does not begin with one."""
    first = await context.read()
    if first is EOF or not method.request.FromString(first).handshake.sot:
        code = grpc.StatusCode.INVALID_ARGUMENT
        await context.abort(code, "a stream begins with a handshake: sot must be true")
    await context.write(greeting or method.greeted)


async def write_all(context: Any, responses: Iterable[bytes]) -> None:
    """Sends the responses in their order."""
    for response in responses:
        await context.write(response)


class WaitingRequests:
    """The requests of one stream that wait for the function."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._ended = False
        self._reading = asyncio.ensure_future(self._read())
        self._limit = 1

    async def _read(self) -> None:
        while (message := await self._context.read()) is not EOF:
            await self._waiting.put(message)
        await self._waiting.put(None)

    async def take(self, limit: int | None = None) -> list[bytes]:
        """Waits for a request and returns all waiting ones; none when the stream has ended.

        Returns at most ``limit``, by default as many as the function processes in a short time.
        """
        taken: list[bytes] = []
        most = limit or self._limit
        while not self._ended and len(taken) < most and (not taken or self._waiting.qsize()):
            message = await self._waiting.get()
            if message is None:
                self._ended = True
            else:
                taken.append(message)
        return taken

    def note_duration(self, requests: int, seconds: float) -> None:
        """Adjusts how many requests to gather, so that the first responses are not delayed."""
        rate = requests / max(seconds, 1e-6)
        self._limit = max(1, min(int(rate * _GATHER_FOR), 2 * self._limit, _MOST_GATHERED))

    def close(self) -> None:
        """Reads no more."""
        self._reading.cancel()


class ServedStream(ABC):
    """The stream of a map, a transformer or a sink. Subclasses differ in when they answer."""

    def __init__(self, function: ServedFunction, service: Service, fail: Fail) -> None:
        self._function, self._fail = function, fail
        self._method = service.stream
        self._respond = responses_of(service)

    @property
    def handlers(self) -> dict[str, Any]:
        """The handler of each method of the service."""
        return {self._method.name: self.serve}

    async def serve(self, _: Any, context: Any) -> None:
        """Serves one stream to its end."""
        await greet(context, self._method)
        await self._answer_all(context)

    @abstractmethod
    async def _answer_all(self, context: Any) -> None:
        """Answers the requests after the handshake."""

    def _read(self, raw: bytes) -> Request:
        return Request.of(self._method.request.FromString(raw))

    def _reply_to(self, requests: Sequence[Request]) -> tuple[list[bytes], FunctionFailure | None]:
        """Calls the function; returns its responses, and why some requests have none."""
        reply = self._function.reply_to(requests)
        return list(self._respond(reply)), self._function.failure_in(reply)


class OneByOne(ServedStream):
    """Serves a map or transformer whose requests are answered one by one."""

    async def _answer_all(self, context: Any) -> None:
        waiting = WaitingRequests(context)
        sending: asyncio.Future[None] | None = None
        try:
            while messages := await waiting.take():
                began = time.monotonic()
                responses, failure = await self._function.run(self._answer, messages)
                waiting.note_duration(len(messages), time.monotonic() - began)
                # The function works on the next requests while these responses are sent.
                if sending is not None:
                    await sending
                sending = asyncio.ensure_future(write_all(context, responses))
                if failure is not None:
                    await sending
                    await self._fail(context, failure)
            if sending is not None:
                await sending
        finally:
            waiting.close()

    def _answer(self, messages: Sequence[bytes]) -> tuple[list[bytes], FunctionFailure | None]:
        return self._reply_to([self._read(message) for message in messages])


class InBatches(ServedStream):
    """Serves a batch map or a sink, whose requests arrive in batches."""

    async def _answer_all(self, context: Any) -> None:
        batch: list[Request] = []
        while (raw := await context.read()) is not EOF:
            message = self._method.request.FromString(raw)
            if not message.status.eot:
                batch.append(Request.of(message))
                continue
            if batch:
                responses, failure = await self._function.run(self._reply_to, batch)
                await write_all(context, responses)
                if failure is not None:
                    await self._fail(context, failure)
            await context.write(self._method.end_of_responses)
            batch = []


class InPieces(ServedStream):
    """Serves a stream map: one request at a time, each output sent when it is yielded."""

    def __init__(self, function: ServedFunction, service: Service, fail: Fail) -> None:
        super().__init__(function, service, fail)
        self._results = MapResults(service)

    async def _answer_all(self, context: Any) -> None:
        waiting = WaitingRequests(context)
        try:
            while messages := await waiting.take(1):
                request = self._read(messages[0])
                pieces = _Pieces(request, self._results, context)
                rest, failure = await self._function.run(self._answer, request, pieces)
                if failure is not None:
                    await self._fail(context, failure)
                await write_all(context, rest)
        finally:
            waiting.close()

    def _answer(
        self, request: Request, pieces: _Pieces
    ) -> tuple[list[bytes], FunctionFailure | None]:
        reply = self._function.reply_to([request], pieces)
        response = self._method.response
        nothing = pack(response, id=request.id)
        end = pack(response, id=request.id, status={"eot": True})
        rest = [packed for packed in self._respond(reply) if packed != nothing]
        return [*rest, end], self._function.failure_in(reply)


class _Pieces:
    """Sends the outputs of a stream map from the function's thread, as fast as the client reads."""

    def __init__(self, request: Request, results: MapResults, context: Any) -> None:
        self._request, self._results, self._context = request, results, context
        self._loop = asyncio.get_running_loop()

    def is_due(self) -> bool:
        """Returns true, because each output is sent at once."""
        return True

    def emit(self, part: Verdict) -> int:
        """Sends the outputs of the part; returns how many there were."""
        responses = self._results.pieces([self._request], part.outputs)
        for response in responses:
            asyncio.run_coroutine_threadsafe(self._context.write(response), self._loop).result()
        return len(responses)


_MOST_IN_FLIGHT = 1_000
"""Requests that are worked on at once; further ones wait in the client."""

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Passes items to an event loop from another thread; one wake-up serves many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._put: deque[T] = deque()
        self._delivered: asyncio.Queue[T] = asyncio.Queue()
        self._woken = False

    def put(self, item: T) -> None:
        """Sends an item; does nothing if the loop is closed, because nothing reads it then."""
        self._put.append(item)
        if not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the loop, so that later items wake the event loop again
        while self._put:
            self._delivered.put_nowait(self._put.popleft())

    async def get(self) -> T:
        """Waits for the next item, in the loop."""
        return await self._delivered.get()


class Concurrently(ServedStream):
    """Serves an ``async`` map or transformer: every request is answered when its call is done.

    The function's event loop runs on the function's own thread, the server's on another: a call
    that blocks by mistake keeps the other calls waiting, but not the server. Requests pass to the
    function's loop one by one, and responses pass back.
    """

    async def _answer_all(self, context: Any) -> None:
        exchanges = _Exchanges(self._function, self._answer)
        calling = asyncio.ensure_future(self._function.run(exchanges.run))
        reading = asyncio.ensure_future(self._read_all(context, exchanges))
        try:
            while (answer := await exchanges.answers.get()) is not None:
                if isinstance(answer, FunctionFailure):
                    await self._fail(context, answer)
                else:
                    await context.write(answer)
                    exchanges.room.release()
            await calling
        finally:
            reading.cancel()
            exchanges.end()

    async def _answer(self, raw: bytes) -> tuple[list[bytes], FunctionFailure | None]:
        reply = await self._function.reply_to_one(self._read(raw))
        return list(self._respond(reply)), self._function.failure_in(reply)

    async def _read_all(self, context: Any, exchanges: _Exchanges) -> None:
        await exchanges.begun.wait()
        await exchanges.room.acquire()
        while (message := await context.read()) is not EOF:
            exchanges.ask(message)
            await exchanges.room.acquire()
        exchanges.end()


class _Exchanges:
    """The requests and answers of one stream, between the loops of the server and the function."""

    def __init__(self, function: ServedFunction, answer: Answer) -> None:
        self._function, self._answer = function, answer
        self._failure: FunctionFailure | None = None
        self._requests: Mailbox[bytes | None] | None = None
        self._over = False
        self._server = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.room = asyncio.Semaphore(_MOST_IN_FLIGHT)
        self.answers: Mailbox[bytes | FunctionFailure | None] = Mailbox(self._server)

    # --- for the server's loop ------------------------------------------------------------------

    def ask(self, message: bytes | None) -> None:
        """Passes a request to the function; ``None`` marks the end. Only after ``begun``."""
        assert self._requests is not None
        self._requests.put(message)

    def end(self) -> None:
        """Ends the requests. Safe to call twice, before the start and after the end."""
        self._over = True
        if self._requests is not None:
            self._requests.put(None)

    # --- on the function's thread ---------------------------------------------------------------

    def run(self) -> None:
        """Answers requests until the end; the last answer is ``None`` or the failure."""
        try:
            self._function.renew()
        except USER_ERRORS as error:
            self._failure = self._function.failure_of(error)
        self._function.run_coroutine(self._answer_all())

    async def _answer_all(self) -> None:
        # Set before checking whether the client has gone, so that a later end() finds a mailbox.
        self._requests = requests = Mailbox[bytes | None](asyncio.get_running_loop())
        if self._over:
            return
        self._server.call_soon_threadsafe(self.begun.set)
        running: set[asyncio.Task[None]] = set()
        while self._failure is None and (message := await requests.get()) is not None:
            task = asyncio.ensure_future(self._answer_one(message))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running)
        self.answers.put(self._failure)

    async def _answer_one(self, message: bytes) -> None:
        responses, failure = await self._answer(message)
        for response in responses:
            self.answers.put(response)
        if self._failure is None and failure is not None:
            self._failure = failure
            self.ask(None)
