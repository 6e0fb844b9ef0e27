"""Publishing many messages with a bounded number of them on their way.

Messages are sent first in the order in which they are given, many in one buffer, and most are
confirmed at once. What is not goes on by itself, message by message, with the same id and by the
rules of ``publish``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ebbflow.acks import Ack
from ebbflow.errors import PublishError
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import PublishRetry, Sending
from ebbflow.nats.requests import Answer
from ebbflow.nats.wire import Publishes, read_headers

T = TypeVar("T")
WINDOW = 256
_STORED, _REFUSED = b'{"stream":', b'"error"'
_BY_THEMSELVES = 500


async def publish_all(
    client: SecuredClient, rows: Publishes, retry: PublishRetry
) -> dict[int, PublishError]:
    """Publishes all rows; returns those that are not confirmed, each with the reason.

    Each row is on its own: others go on when one fails.
    """
    began = time.monotonic()
    answers: list[Answer] = [None] * len(rows)
    if was_sent := client.is_connected:
        silence = min(retry.attempt_timeout, retry.ack_wait)
        answers = await client.request_all(rows, silence)
    gate = asyncio.Semaphore(_BY_THEMSELVES)
    failures: dict[int, PublishError] = {}

    async def go_on(row: int) -> None:
        async with gate:
            subject, headers = rows.subjects[row].decode(), read_headers(rows.headers[row])
            sending = Sending(client, subject, rows.payloads[row], headers, retry, began=began)
            try:
                await (sending.go_on(answers[row]) if was_sent else sending.confirm())
            except PublishError as error:
                failures[row] = error

    left = [row for row, answer in enumerate(answers) if not _is_stored(answer)]
    await asyncio.gather(*map(go_on, left))
    return failures


def _is_stored(answer: Answer) -> bool:
    """Returns ``True`` for a confirmation as servers write it; any other answer is read in full."""
    return isinstance(answer, bytes) and answer.startswith(_STORED) and _REFUSED not in answer


def check_window(window: object) -> None:
    """Refuses what is no number of messages."""
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window!r}")


class _Bulk:
    """The messages that were sent so far, and what has become of them."""

    def __init__(self, window: int) -> None:
        self.gate = asyncio.Semaphore(window)
        self.acks: list[Ack | None] = []
        self.failures: dict[int, PublishError] = {}

    async def confirm(self, index: int, sending: Coroutine[Any, Any, Ack]) -> None:
        try:
            self.acks[index] = await sending
        except PublishError as error:
            self.failures[index] = error
        finally:
            self.gate.release()

    def explain(self) -> PublishError:
        index = min(self.failures)
        error = self.failures[index]
        error.acks = tuple(self.acks)
        stored = sum(ack is not None for ack in self.acks)
        error.add_note(f"It was message {index}; {stored} of {len(self.acks)} sent are stored.")
        return error


async def publish_in_window(
    start: Callable[[T], Coroutine[Any, Any, Ack]],
    messages: AsyncIterable[T] | Iterable[T],
    window: int,
) -> list[Ack]:
    """Publishes the messages, at most ``window`` at a time; the acks are in their order.

    ``start`` begins to send one. An error of the messages themselves, as they are taken or begun,
    is raised once all before it are stored; the first ``PublishError`` is raised with ``acks``.
    """
    bulk = _Bulk(window)
    unsent: Exception | None = None
    async with asyncio.TaskGroup() as group:
        try:
            async for message in _iterate(messages):
                await bulk.gate.acquire()
                if bulk.failures:
                    break
                sending = start(message)
                bulk.acks.append(None)
                group.create_task(bulk.confirm(len(bulk.acks) - 1, sending))
        except Exception as error:
            unsent = error
    if bulk.failures:
        raise bulk.explain() from unsent
    if unsent is not None:
        unsent.add_note(f"It was message {len(bulk.acks)}; those before it are stored.")
        raise unsent
    return [ack for ack in bulk.acks if ack is not None]


async def _iterate(messages: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message


class Handover(AsyncIterator[T]):
    """Messages that one thread takes from an iterable and an event loop on another one publishes.

    An iterable may block, and the loop must not. At most ``size`` messages wait in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self._loop = loop
        self._room = threading.Semaphore(size)
        self._items: deque[T] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._unwanted = False
        self._error: Exception | None = None

    def fill(self, messages: Iterable[T]) -> None:
        """Takes all messages, as long as they are wanted. An error is raised on the other side."""
        try:
            for message in messages:
                self._room.acquire()
                if self._unwanted:
                    return
                self._items.append(message)
                self._wake()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._wake()

    def stop(self, *_: object) -> None:
        """Ends the handover: no more messages are wanted."""
        self._unwanted = True
        self._room.release()

    def _wake(self) -> None:
        # Waking the loop costs a system call; it looks for more by itself as long as it finds any.
        if not self._news.is_set() and not self._unwanted:
            self._loop.call_soon_threadsafe(self._news.set)

    async def __anext__(self) -> T:
        while not self._items:
            # In this order: what is added after the look tells of itself again, and nothing is
            # added after the end.
            self._news.clear()
            ended = self._ended
            if self._items:
                break
            if ended:
                raise self._error or StopAsyncIteration
            await self._news.wait()
        self._room.release()
        return self._items.popleft()
