"""The pipelines that a page shows: which there are, their states, and work on what they keep.

Work that waits for NATS is done by a few threads, on the page's own connection. Reading states has
threads of its own: a long search does not stop the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.status.model import PipelineStatus
from ebbflow.status.reading import read_status
from ebbflow.streams.names import Names
from ebbflow.ui.followers import StatusFollower
from ebbflow.ui.links import PageLink
from ebbflow.ui.reply import describe_error
from ebbflow.ui.site import explain_failure
from ebbflow.web.refusal import Refusal

T = TypeVar("T")

_THREADS = 8
_READERS = 4
_NAMES_KEPT = 2.0


class Pipelines:
    """Those that NATS knows, or ``only`` some of them. Used on the page's loop."""

    def __init__(self, link: PageLink, only: Collection[str] = ()) -> None:
        self._link = link
        self._only = sorted(only)
        self._threads = ThreadPoolExecutor(_THREADS, "page")
        self._readers = ThreadPoolExecutor(_READERS, "page-status")
        self._followers: dict[str, StatusFollower] = {}
        self._listed: list[str] = []
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()

    @property
    def is_chosen(self) -> bool:
        """True if somebody has named the pipelines."""
        return bool(self._only)

    async def list(self, within: float = _NAMES_KEPT) -> list[str]:
        """Returns the names of all pipelines, as of ``within`` so many seconds ago."""
        if self._only:
            return self._only
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if now >= self._listed_at + within:
                self._listed = await self._submit(self._readers, list_pipelines)
                self._listed_at = now
        return self._listed

    async def status(self, name: str) -> PipelineStatus:
        """Returns the state of a pipeline; ``Refusal`` if there is none of this name."""
        return await (await self.follow(name)).get()

    async def follow(self, name: str) -> StatusFollower:
        """Returns who follows a pipeline; ``Refusal`` if there is none of this name."""
        await self.check(name)
        if name not in self._followers:
            read = partial(self._submit, self._readers, partial(read_status, names=Names(name)))
            self._followers[name] = StatusFollower(read, _describe)
        return self._followers[name]

    async def check(self, name: str) -> None:
        """Raises ``Refusal`` if there is no pipeline of this name."""
        # One that is not known may have been started just now.
        if name not in await self.list() and name not in await self.list(within=0):
            known = ", ".join((self._only or self._listed)[:20])
            step = f"Known here: {known}." if known else "Start one with: ebbflow run"
            raise Refusal(404, f"there is no pipeline {name!r}", next_step=step)

    async def work(self, function: Callable[[Link], T]) -> T:
        """Has a function that blocks called with the connection, beside the loop."""
        return await self._submit(self._threads, function)

    def close(self) -> None:
        """Ends the threads; on the loop, when no request is left."""
        for follower in self._followers.values():
            follower.stop()
        for threads in (self._threads, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _submit(self, threads: ThreadPoolExecutor, function: Callable[[Link], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, lambda: function(self._link.get()))


def list_pipelines(link: Link) -> list[str]:
    """Returns the names of all pipelines that have streams on a server; blocks."""
    first, last = Names("|").dead_letters.split("|")
    streams = link.run(api.list_streams(link.client, first))
    return sorted(
        name.removeprefix(first).removesuffix(last) for name in streams if name.endswith(last)
    )


def _describe(error: Exception) -> bytes:
    return describe_error(explain_failure(error))
