"""The client for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar, Unpack

import httpx

from ebbflow.client.conversations import AskOptions, Conversations, LookOptions
from ebbflow.client.protocol import (
    Answered,
    Conversation,
    Emit,
    MoreEvents,
    NoReply,
    RequestStatus,
    ServerCall,
    StepResult,
    Wait,
)
from ebbflow.client.transport import (
    CONNECTIONS,
    FAILURES,
    ID_HEADER,
    TIMEOUT,
    arguments_of,
    connection_options,
    no_reply,
    reply_of,
)
from ebbflow.domain.durations import Duration
from ebbflow.domain.spelling import named_options

T = TypeVar("T")


class AsyncClient:
    """Asks a pipeline that serves requests, on one event loop; ``stream`` is for ``async for``.

    ``url`` is where the pipeline listens, ``token`` its bearer token. ``timeout`` is how long a
    call may take in total, including lost connections and a busy server. ``id_header`` is the
    ``msgIDHeaderKey`` of its spec. ``ca`` is a file with the certificates to trust;
    ``verify=False`` trusts any server, which a self-signed certificate of the pipeline requires.
    ``connections`` is the most calls that have a connection at the same time.

    Calls that submit a request accept its ``id``, which the client generates by default, and the
    ``keys`` and ``headers`` that its message has in the pipeline. Every call accepts its own
    ``timeout``. Errors are a ``RequestError``, which has the id.
    """

    @named_options
    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: Duration = TIMEOUT,
        id_header: str = ID_HEADER,
        ca: str | os.PathLike[str] | None = None,
        verify: bool = True,
        connections: int = CONNECTIONS,
    ) -> None:
        self._conversations = Conversations(id_header, timeout)
        self._http = httpx.AsyncClient(**connection_options(url, token, ca, verify, connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    @named_options
    async def ask(self, value: Any, **options: Unpack[AskOptions]) -> Answered:
        """Submits a request and returns its answer.

        ``value`` is bytes, text, or any JSON value. ``RequestFailed`` says which vertex failed and
        why. ``AnswerPending`` means that there was no answer in time, and ``RequestInDoubt`` that
        the connection was lost for that long; both have the id to fetch the answer with.
        """
        return await self._run(self._conversations.ask(value, options))

    @named_options
    async def submit(self, value: Any, **options: Unpack[AskOptions]) -> str:
        """Submits a request and returns its id once the pipeline has stored it."""
        return await self._run(self._conversations.submit(value, options))

    @named_options
    async def fetch(self, id: str, **options: Unpack[LookOptions]) -> Answered | None:
        """Returns the answer to a request, or ``None`` if there is none yet.

        Raises ``UnknownRequest`` if the server has no such request, ``RequestFailed`` if it failed.
        """
        return await self._run(self._conversations.fetch(id, options))

    @named_options
    async def wait(self, id: str, **options: Unpack[LookOptions]) -> Answered:
        """Waits for the answer to a request; raises ``AnswerPending`` if it takes too long."""
        return await self._run(self._conversations.wait(id, options))

    @named_options
    async def status(self, id: str, **options: Unpack[LookOptions]) -> RequestStatus:
        """Returns the status of a request, and its path through the pipeline."""
        return await self._run(self._conversations.status(id, options))

    @named_options
    def stream(self, value: Any = None, **options: Unpack[AskOptions]) -> AsyncIterator[bytes]:
        """Submits a request and yields each result as soon as the pipeline has stored it.

        Without a value it follows the request ``id``. Results arrive in the order of storing.
        ``timeout`` starts again with each result. It raises the errors of ``ask`` while iterating.
        """
        return self._emit(self._conversations.follow(value, options))

    async def _run(self, conversation: Conversation[T]) -> T:
        line = _AsyncLine(self._http)
        reply: StepResult = None
        try:
            while True:
                reply = await line.carry_out(conversation.send(reply))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _emit(self, conversation: Conversation[None]) -> AsyncIterator[bytes]:
        line = _AsyncLine(self._http)
        reply: StepResult = None
        try:
            while True:
                step = conversation.send(reply)
                if isinstance(step, Emit):
                    yield step.result
                reply = await line.carry_out(step)
        except StopIteration:
            return
        finally:
            await line.hang_up()


class _AsyncLine:
    """Carries out the steps of one conversation, and keeps its event stream open between steps."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def carry_out(self, step: object) -> StepResult:
        try:
            match step:
                case Wait(seconds):
                    await asyncio.sleep(seconds)
                case ServerCall():
                    return await self._call(step)
                case MoreEvents() if self._chunks is not None:
                    return await anext(self._chunks, NoReply("the stream broke off", sent=True))
        except FAILURES as error:
            return no_reply(error)
        return None

    async def _call(self, call: ServerCall) -> StepResult:
        await self.hang_up()
        request = self._http.build_request(**arguments_of(call))
        response = await self._http.send(request, stream=call.follows)
        if not call.follows:
            return reply_of(response, response.content)
        self._response, self._chunks = response, response.aiter_bytes()
        return reply_of(response, b"" if response.status_code == 200 else await response.aread())

    async def hang_up(self) -> None:
        if self._response is not None:
            await self._response.aclose()
            self._response = None
