"""Maps and transformers that are written for pynumaflow, in the shape of Ebbflow's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any

from ebbflow.numaflow.pynumaflow.answers import read_batch, read_message, read_messages, read_usual
from ebbflow.numaflow.pynumaflow.code import Datums, PynumaflowCode


class KeysAndDatum(PynumaflowCode):
    """A map or transformer that is called with the keys and the datum of each message."""

    def __call__(self, datum: Any) -> Any:
        """Calls the handler; its answer may have to be waited for."""
        facts = datum._facts
        answer = self._handler(facts.keys(datum._index) if facts.has_keys else [], datum)
        if (usual := read_usual(answer, facts)) is not None:
            return usual
        if hasattr(answer, "_messages") or not inspect.isawaitable(answer):
            return read_messages(answer, facts)
        return self._wait(answer, datum)

    async def _wait(self, answer: Awaitable[Any], datum: Any) -> Any:
        return read_messages(await answer, datum._facts)


class AsyncKeysAndDatum(PynumaflowCode):
    """An ``async`` map or transformer: many messages are worked on side by side."""

    async def __call__(self, datum: Any) -> Any:
        """Calls the handler."""
        return read_messages(
            await self._handler(datum._facts.keys(datum._index), datum), datum._facts
        )


class StreamOfMessages(PynumaflowCode):
    """A stream map: an ``async`` generator of messages."""

    async def __call__(self, datum: Any) -> AsyncIterator[Any]:
        """Yields each message as the handler yields it."""
        async with aclosing(self._handler(datum._facts.keys(datum._index), datum)) as messages:
            async for message in messages:
                yield read_message(message, datum._facts)


class BatchOfDatums(PynumaflowCode):
    """A batch map: many datums in, a response for each id out."""

    async def __call__(self, datums: list[Any]) -> Any:
        """Calls the handler with all datums."""
        return read_batch(await self._handler(Datums(datums)), datums[0]._facts)
