"""A function on pynumaflow that passes messages on unchanged: as a server, and in process.

python -m benchmarks.workers.pynumaflow_cat sync|async|batch
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable
from typing import Any

from pynumaflow.batchmapper import BatchMapAsyncServer, BatchResponse, BatchResponses
from pynumaflow.batchmapper import Datum as BatchDatum
from pynumaflow.batchmapper import Message as BatchMessage
from pynumaflow.mapper import Datum, MapAsyncServer, MapServer, Message, Messages


def cat(keys: list[str], datum: Datum) -> Messages:
    """Message by message."""
    return Messages(Message(datum.value, keys))


async def cat_async(keys: list[str], datum: Datum) -> Messages:
    """The same as a coroutine."""
    return Messages(Message(datum.value, keys))


async def cat_batch(data: AsyncIterable[BatchDatum]) -> BatchResponses:
    """A batch of messages at a time."""
    responses = BatchResponses()
    async for datum in data:
        message = BatchMessage(datum.value, datum.keys)
        responses.append(BatchResponse.with_msgs(datum.id, [message]))
    return responses


SERVERS: dict[str, tuple[Callable[..., Any], Any]] = {
    "sync": (MapServer, cat),
    "async": (MapAsyncServer, cat_async),
    "batch": (BatchMapAsyncServer, cat_batch),
}


if __name__ == "__main__":
    server, handler = SERVERS[sys.argv[1]]
    server(handler).start()
