"""A function that is served: opened once, and called on its own thread.

It is called by the same code as in a pipeline, so it may be plain or ``async``, a class with
``open()`` and ``close()``, and take single messages, batches, record batches or data frames. The
server's thread stays free meanwhile, so it can answer the runtime's checks of the container.
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

# Similar errors do not count as an outage here: the runtime decides that, since it sees more
# messages.
_NEVER = 2**62


class ServedFunction:
    """User code behind a socket. All except ``run``, ``open`` and ``close`` runs on its thread."""

    def __init__(self, code: Any, service: Service, mode: Mode | None, name: str) -> None:
        self.container = service.container
        self._code = code
        self._is_sink = service.proto == "sink"
        self._mode = mode
        self._rules = rules_of(name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="function")

    # --- for the event loop ---------------------------------------------------------------------

    async def run(self, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Runs a call on the function's thread and returns its result; one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def open(self) -> None:
        """Makes and opens user code; forwards its exceptions."""
        await self.run(self._open)

    async def close(self) -> None:
        """Closes user code, ignoring its errors, and ends its thread."""
        with contextlib.suppress(*USER_ERRORS):
            await self.run(self.handler.close)
        self._thread.shutdown()

    # --- on the function's thread ---------------------------------------------------------------

    def _open(self) -> None:
        self.handler = Handler(self._code, Blame(LISTED, _NEVER))

    def call(self, name: str, *arguments: Any) -> Any:
        """Returns the result of a method of the user's object, for a source or a store."""
        self.renew()
        return self.handler.finish(getattr(self.handler.instance, name)(*arguments))

    def reply_to(self, requests: Sequence[Request], emitter: Emitter | None = None) -> Replies:
        """Calls the function with the requests; returns its replies."""
        reply = Replies(RequestRows(requests), self._rules, emitter)
        try:
            self.renew()
        except USER_ERRORS as error:
            for index in range(len(requests)):
                reply.postpone(index, 0, describe_error(error))
        else:
            self._decide(reply)
        return reply

    def run_coroutine(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that calls an ``async`` function to its end."""
        self.handler.wait_for(coroutine)

    async def reply_to_one(self, request: Request) -> Replies:
        """Calls an ``async`` function with one request, next to others; for ``run_coroutine``."""
        reply = Replies(RequestRows([request]), self._rules)
        await calling.map_concurrently(self.handler, reply, concurrency=1)
        return reply

    @property
    def is_concurrent(self) -> bool:
        """Whether the function can work on one message while another message waits."""
        return self._mode == "unary" and self.handler.is_async

    def renew(self) -> None:
        """Closes and opens user code after an outage, as a vertex does."""
        if self.handler.blame.outage is not None:
            self.handler.renew()
            self.handler.blame.clear()

    def _decide(self, reply: Replies) -> None:
        assert self._mode is not None, "sources and stores are called by their methods"
        call = calling.sink_in_mode if self._is_sink else calling.map_in_mode
        call(self.handler, self._mode, len(reply.rows))(reply)

    def failure_in(self, reply: Replies) -> FunctionFailure | None:
        """Returns why some of the requests have no answer, if so."""
        for error in reply.errors.values():
            return FunctionFailure.of(self.container, error)
        for what in reply.unavailable.values():
            outage = self.handler.blame.outage
            return FunctionFailure.of_outage(
                self.container, what, outage.retry_after if outage else None
            )
        return None

    def failure_of(self, error: BaseException) -> FunctionFailure:
        """Returns the failure for an exception of a method of the user's object."""
        unavailable = self.handler.blame.means_down(error)
        if unavailable:
            self.handler.blame.is_outage(error, [""], blamed=False)
        return FunctionFailure.of(self.container, error, unavailable)
