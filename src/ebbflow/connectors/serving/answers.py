"""The store as a serving source reads it: answers as they are stored, and all of a request.

A bucket in NATS can be followed. A store of the user's own cannot: it is asked, in a thread of its
own, when a request has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ebbflow.connectors.serve.store import OwnStore
from ebbflow.domain.code import Code
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.answers import Answer
from ebbflow.nats.follow import Follower
from ebbflow.streams.answers import AnswerBucket
from ebbflow.usercode.variables import Variables

TakeAnswers = Callable[[Sequence[Answer]], None]
"""Gets the answers that have come together, each with the ``token`` of its request."""


class AnswerSource(Protocol):
    """A store for reading, on the link's loop. One that cannot be followed never calls ``take``."""

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """Calls ``take`` with answers that are stored from now on, until it is closed.

        An answer may come twice, after a crash. ``fail`` gets the error after which none come.
        """

    async def get(self, request: str) -> list[Answer]:
        """Returns the answers to a request so far, in the order of its results."""

    async def close(self) -> None:
        """Follows no more, and closes the store."""


class BucketAnswers:
    """Answers in a bucket in NATS. ``AnswerSource``."""

    def __init__(self, bucket: AnswerBucket) -> None:
        self._bucket = bucket
        self._follower: Follower | None = None

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """As in ``AnswerSource``."""
        self._follower = await self._bucket.follow(take, fail)

    async def get(self, request: str) -> list[Answer]:
        """As in ``AnswerSource``."""
        return await self._bucket.get(request)

    async def close(self) -> None:
        """As in ``AnswerSource``."""
        if self._follower is not None:
            await self._follower.close()


class OwnStoreAnswers:
    """Answers in a store of the user's own, opened when it is first asked. ``AnswerSource``.

    One thread makes it, asks it and closes it. What the user's code raises is raised by ``get``,
    and the next call opens the store anew.
    """

    def __init__(self, code: Code, search: str | None, env: Variables = ()) -> None:
        self._code = code
        self._search = search
        self._env = env
        self._store: OwnStore | None = None
        self._thread = ThreadPoolExecutor(1, "serving-store")

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """Does nothing: nobody tells when a store of the user's is given an answer."""

    async def get(self, request: str) -> list[Answer]:
        """As in ``AnswerSource``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, request)

    async def close(self) -> None:
        """As in ``AnswerSource``."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _ask(self, request: str) -> list[Answer]:
        if self._store is None:
            self._store = OwnStore(self._code, self._search, self._env)
        try:
            return self._store.get(request)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
