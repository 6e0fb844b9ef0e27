"""Requests that take a while: a task each, which ends when its client has gone.

Whatever becomes of the work, there is an answer. Used on the loop of the web server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal
from ebbflow.web.room import RequestRoom

Work = Callable[[], Coroutine[Any, Any, None]]
"""Does what a request asks for, and answers it."""

Explain = Callable[[BaseException], Refusal]
"""Returns what a client is told about work that failed, or was cancelled as the server ends."""


class RequestTasks:
    """The requests that are worked on."""

    def __init__(self, explain: Explain) -> None:
        self._explain = explain
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work, exchange: Exchange, room: RequestRoom) -> None:
        """Begins the work of one request; its room is given back at the end."""
        task = asyncio.get_running_loop().create_task(self._answer(work, exchange))
        self._tasks.add(task)
        # Not at the end of the work: a task that is cancelled at once never begins it.
        task.add_done_callback(partial(self._finish, room))
        exchange.on_lost = task.cancel

    async def end(self, grace: float) -> None:
        """Waits for the answers that are due within so many seconds; others are refused."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)

    async def _answer(self, work: Work, exchange: Exchange) -> None:
        try:
            await work()
        except (Exception, asyncio.CancelledError) as error:
            # If the client has gone, nobody reads this.
            exchange.fail(self._explain(error))

    def _finish(self, room: RequestRoom, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        room.release()
