"""The client for blocking code, made from ``asynchronous`` by ``make client``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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


class Client:
    """Asks a pipeline that serves requests, from any number of threads.

    ``url`` is where it listens, ``token`` its bearer token. ``timeout`` is how long a call may take
    in all, lost connections and a busy server included. ``id_header`` is the ``msgIDHeaderKey`` of
    its spec. ``ca`` is a file with the certificates to trust; ``verify=False`` trusts anybody, as a
    certificate that the pipeline made for itself needs. ``connections`` is how many calls at once
    have a connection.

    Calls that hand in a request take its ``id``, which the client makes if it is left out, and the
    ``keys`` and ``headers`` that its message has in the pipeline. Every call takes its own
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
        self._http = httpx.Client(**connection_options(url, token, ca, verify, connections))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    @named_options
    def ask(self, value: Any, **options: Unpack[AskOptions]) -> Answered:
        """Hands in a request and returns its answer.

        ``value`` is bytes, text, or anything that JSON can say. ``RequestFailed`` says which vertex
        could not do it and why; ``AnswerPending`` that there is no answer in time, and
        ``RequestInDoubt`` that the connection was lost for so long: both name the id to fetch.
        """
        return self._run(self._conversations.ask(value, options))

    @named_options
    def submit(self, value: Any, **options: Unpack[AskOptions]) -> str:
        """Hands in a request and returns its id; the pipeline has stored it then."""
        return self._run(self._conversations.submit(value, options))

    @named_options
    def fetch(self, id: str, **options: Unpack[LookOptions]) -> Answered | None:
        """Returns the answer to a request, or ``None`` while there is none yet.

        ``UnknownRequest`` if the server has no such request, ``RequestFailed`` if it failed.
        """
        return self._run(self._conversations.fetch(id, options))

    @named_options
    def wait(self, id: str, **options: Unpack[LookOptions]) -> Answered:
        """Returns the answer to a request when it is there; ``AnswerPending`` if not in time."""
        return self._run(self._conversations.wait(id, options))

    @named_options
    def status(self, id: str, **options: Unpack[LookOptions]) -> RequestStatus:
        """Returns how far a request is, and its way through the pipeline."""
        return self._run(self._conversations.status(id, options))

    @named_options
    def stream(self, value: Any = None, **options: Unpack[AskOptions]) -> Iterator[bytes]:
        """Hands in a request and returns each result as soon as the pipeline has stored it.

        Without a value it follows the request ``id``. Results come in the order of their storing.
        ``timeout`` is for each result again. Errors are those of ``ask``, raised while iterating.
        """
        return self._emit(self._conversations.follow(value, options))

    def _run(self, conversation: Conversation[T]) -> T:
        line = _Line(self._http)
        came: StepResult = None
        try:
            while True:
                came = line.carry_out(conversation.send(came))
        except StopIteration as end:
            result: T = end.value
            return result

    def _emit(self, conversation: Conversation[None]) -> Iterator[bytes]:
        line = _Line(self._http)
        came: StepResult = None
        try:
            while True:
                step = conversation.send(came)
                if isinstance(step, Emit):
                    yield step.result
                came = line.carry_out(step)
        except StopIteration:
            return
        finally:
            line.hang_up()


class _Line:
    """Carries out the steps of one conversation, with an event stream open in between."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None

    def carry_out(self, step: object) -> StepResult:
        try:
            match step:
                case Wait(seconds):
                    time.sleep(seconds)
                case ServerCall():
                    return self._call(step)
                case MoreEvents() if self._chunks is not None:
                    return next(self._chunks, NoReply("the stream broke off", sent=True))
        except FAILURES as error:
            return no_reply(error)
        return None

    def _call(self, call: ServerCall) -> StepResult:
        self.hang_up()
        request = self._http.build_request(**arguments_of(call))
        response = self._http.send(request, stream=call.follows)
        if not call.follows:
            return reply_of(response, response.content)
        self._response, self._chunks = response, response.iter_bytes()
        return reply_of(response, b"" if response.status_code == 200 else response.read())

    def hang_up(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
