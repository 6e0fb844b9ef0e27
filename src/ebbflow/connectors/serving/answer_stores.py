"""How a serving source reads the answer store: new answers, and all answers to a request.

A bucket in NATS can be followed. A user's own store cannot: it is queried, in its own thread, when
a request has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from ebbflow.domain.code import Code, Variables
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.answers import Answer, own_answers
from ebbflow.nats.pull import Follower
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.streams.answer_bucket import AnswerBucket
from ebbflow.usercode.calling import Handler, in_environment
from ebbflow.usercode.targets import resolve

TakeAnswers = Callable[[Sequence[Answer]], None]
"""Called with answers that have arrived together, each with the ``token`` of its request."""


class AnswerSource(Protocol):
    """A store for reading, on the link's loop. One that cannot be followed never calls ``take``."""

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """Calls ``take`` with answers that are stored from now on, until it is closed.

        An answer may come twice, after a crash. ``fail`` gets the error that ends following.
        """

    async def get(self, request: str) -> list[Answer]:
        """Returns the answers to a request so far, in the order of its results."""

    async def close(self) -> None:
        """Stops following and closes the store."""


class BucketAnswers:
    """Answers in a bucket in NATS. ``AnswerSource``."""

    def __init__(self, bucket: AnswerBucket) -> None:
        self._bucket = bucket
        self._follower: Follower | None = None

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """Follows the bucket."""
        self._follower = await self._bucket.follow(take, fail)

    async def get(self, request: str) -> list[Answer]:
        """Returns the answers in the bucket."""
        return await self._bucket.get(request)

    async def close(self) -> None:
        """Stops following the bucket."""
        if self._follower is not None:
            await self._follower.close()


class OwnStoreAnswers:
    """Answers in a user's own store, opened at the first query. ``AnswerSource``.

    One thread creates, queries and closes it. ``get`` raises whatever the user's code raises, and
    the next call opens the store again.
    """

    def __init__(self, code: Code, search: str | None, env: Variables = ()) -> None:
        self._code = code
        self._search = search
        self._env = env
        self._store: OwnStore | None = None
        self._thread = ThreadPoolExecutor(1, "serving-store")

    async def follow(self, take: TakeAnswers, fail: Callable[[EbbflowError], None]) -> None:
        """Does nothing: a user's own store does not notify of new answers."""

    async def get(self, request: str) -> list[Answer]:
        """Queries the store, in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, request)

    async def close(self) -> None:
        """Closes the store, and ends its thread."""
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


class OwnStore:
    """A user's own store, open for reading. Used by one thread at a time.

    ``search`` is the folder with its code, ``variables`` are those of its container. Opening and
    querying it raise whatever the user's code raises.
    """

    def __init__(self, code: Code, search: str | None, variables: Variables = ()) -> None:
        with in_environment(variables):  # modules may look at it when they are imported
            folder = Path(search) if search else None
            target = resolve(code, folder) if isinstance(code, str) else code
        self._handler = Handler(adapt(target, "store"), variables=variables)

    def get(self, request: str) -> list[Answer]:
        """Returns all answers to a request so far, in the order of the store."""
        handler = self._handler
        with in_environment(handler.variables):
            payloads: list[bytes] = handler.finish(handler.instance.get(request))
        return own_answers(request, payloads)

    def close(self) -> None:
        """Closes the store."""
        self._handler.close()
