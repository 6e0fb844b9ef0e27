"""A function that is served: opened once, and called on one thread of its own.

It is called by the same code as in a pipeline, so it may be plain or ``async``, a class with
``open()`` and ``close()``, and take single messages, batches, record batches or data frames. The
thread of the server stays free meanwhile, so the runtime hears that the container is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from ebbflow.domain.code import Mode
from ebbflow.engine.blame import USER_ERRORS, Blame
from ebbflow.engine.redelivery import describe_error
from ebbflow.engine.system_errors import LISTED
from ebbflow.engine.verdict import Emitter
from ebbflow.numaflow.serve.messages import FunctionFailure, Replies, Request, RequestRows, rules_of
from ebbflow.numaflow.services import Service
from ebbflow.usercode import calling
from ebbflow.usercode.calling import Handler

P = ParamSpec("P")
T = TypeVar("T")

# Errors that only look alike are for the runtime to judge, which sees more messages.
_NEVER = 2**62


class ServedFunction:
    """User code behind a socket. All but ``run``, ``open`` and ``close`` runs on its thread."""

    def __init__(self, code: Any, service: Service, mode: Mode | None, name: str) -> None:
        self.container = service.container
        self._code = code
        self._is_sink = service.proto == "sink"
        self._mode = mode
        self._rules = rules_of(name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="function")

    # --- for the event loop ---------------------------------------------------------------------

    async def run(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Returns what a call on the function's thread returns; calls wait for each other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def open(self) -> None:
        """Makes and opens user code; raises what it raises."""
        await self.run(self._open)

    async def close(self) -> None:
        """Has user code give back what it holds; what it raises changes nothing any more."""
        with contextlib.suppress(*USER_ERRORS):
            await self.run(self.handler.close)
        self._thread.shutdown()

    # --- on the function's thread ---------------------------------------------------------------

    def _open(self) -> None:
        self.handler = Handler(self._code, Blame(LISTED, _NEVER))

    def call(self, name: str, *arguments: Any) -> Any:
        """Returns what a method of the user's object returns, as for a source or a store."""
        self.renew()
        return self.handler.finish(getattr(self.handler.instance, name)(*arguments))

    def reply_to(self, requests: Sequence[Request], emitter: Emitter | None = None) -> Replies:
        """Calls the function with the requests; returns all that it said about them."""
        reply = Replies(RequestRows(requests), self._rules, emitter)
        try:
            self.renew()
        except USER_ERRORS as error:
            for index in range(len(requests)):
                reply.postpone(index, 0, describe_error(error))
        else:
            self._decide(reply)
        return reply

    def converse(self, conversation: Coroutine[Any, Any, None]) -> None:
        """Runs a conversation of an ``async`` function to its end."""
        self.handler.wait_for(conversation)

    async def reply_to_one(self, request: Request) -> Replies:
        """Calls an ``async`` function with one request, next to others; part of a conversation."""
        reply = Replies(RequestRows([request]), self._rules)
        await calling.map_side_by_side(self.handler, reply, concurrency=1)
        return reply

    @property
    def works_side_by_side(self) -> bool:
        """Whether the function can work on one message while it waits for something of another."""
        return self._mode == "unary" and self.handler.is_async

    def renew(self) -> None:
        """Closes and opens user code after an outage, as a vertex does."""
        if self.handler.blame.outage is not None:
            self.handler.renew()
            self.handler.blame.acquit()

    def _decide(self, reply: Replies) -> None:
        assert self._mode is not None, "sources and stores are called by their methods"
        call = calling.sink_in_mode if self._is_sink else calling.map_in_mode
        call(self.handler, self._mode, len(reply.rows))(reply)

    def failure_in(self, reply: Replies) -> FunctionFailure | None:
        """Returns why some of the requests stay without an answer, if any do."""
        for error in reply.errors.values():
            return FunctionFailure.of(self.container, error)
        for what in reply.unavailable.values():
            outage = self.handler.blame.outage
            return FunctionFailure.of_outage(
                self.container, what, outage.retry_after if outage else None
            )
        return None

    def failure_of(self, error: BaseException) -> FunctionFailure:
        """Returns the failure of a method of the user's object that has raised."""
        unavailable = self.handler.blame.means_down(error)
        if unavailable:
            self.handler.blame.is_the_systems(error, [""], blamed=False)
        return FunctionFailure.of(self.container, error, unavailable)
