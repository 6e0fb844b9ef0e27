"""Publishing many messages with a bounded number of them in flight.

The first attempt sends messages in the caller's order, many in one buffer, and the server confirms
most of them at once. The rest is retried message by message, with the same id and by the rules of
``publish``.

``publish_atomically`` stores several messages in one stream together, or not at all. The server
holds back the messages of a batch until the last one has arrived, and then stores all of them or
refuses all of them. A condition on one message is a condition on all of them. If a process is
killed before it has sent the whole batch, nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeGuard, TypeVar

from ebbflow.domain.errors import EbbflowError, PublishError
from ebbflow.domain.message import Ack
from ebbflow.nats.client import Answer, SecuredClient
from ebbflow.nats.publish import PublishRetry, Sending, Tally, WaitForRoom, check_size
from ebbflow.nats.wire import Publishes, read_headers

T = TypeVar("T")
WINDOW = 256
_STORED, _REFUSED = b'{"stream":', b'"error"'
_MOST_ALONE = 500
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
"""The header with the sequence that must be the subject's last one; 0 if there must be none."""
MOST = 1_000
"""The most messages that the server stores together."""

_BATCH, _PLACE, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_SILENCE = 5.0
# With these errors nothing was stored: the condition is not met, or the server has dropped the
# batch, has too many of them, has no leader or is out of resources for the moment.
_NOT_NOW = frozenset({10071, 10164, 10176, 10210, 10211, 10008, 10023, 10163, 10167})

Addressed = tuple[str, Mapping[str, str], bytes]
"""A subject, headers and a payload."""


async def publish_all(
    client: SecuredClient,
    rows: Publishes,
    retry: PublishRetry,
    *,
    room: WaitForRoom = WaitForRoom.NO,
    tally: Tally | None = None,
    find_copy: Callable[[int], Awaitable[Ack | None]] | None = None,
) -> dict[int, PublishError]:
    """Publishes all rows; returns those that are not confirmed, each with the reason.

    Rows are independent: one may fail. Only with ``WaitForRoom.FOREVER`` the first error is raised
    at once, because other rows may wait forever. ``find_copy`` is called for a row without an
    answer, before it is sent again.
    """
    began, tally = time.monotonic(), tally or Tally()
    answers: list[Answer] = [None] * len(rows)
    if was_sent := client.is_connected:
        silence = min(retry.attempt_timeout, retry.ack_wait)
        answers = await client.request_all(rows, silence)
    gate = asyncio.Semaphore(_MOST_ALONE)
    failures: dict[int, PublishError] = {}

    async def publish_alone(row: int) -> None:
        async with gate:
            subject, headers = rows.subjects[row].decode(), read_headers(rows.headers[row])
            payload = rows.payloads[row]
            sending = Sending(
                client,
                subject,
                payload,
                headers,
                retry,
                room=room,
                tally=tally,
                began=began,
                find_copy=partial(find_copy, row) if find_copy is not None else None,
            )
            try:
                await (sending.continue_after(answers[row]) if was_sent else sending.confirm())
            except PublishError as error:
                if room is WaitForRoom.FOREVER:
                    raise
                failures[row] = error

    left = [row for row, answer in enumerate(answers) if not _is_stored(answer)]
    tally.attempts += len(rows) - len(left)
    tally.confirmed += len(rows) - len(left)
    await _run_all(map(publish_alone, left))
    return failures


async def _run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines concurrently; the first error cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def publish_lanes(
    lanes: Iterable[Iterable[T]], publish: Callable[[T], Coroutine[Any, Any, None]], most: int
) -> None:
    """Publishes lanes concurrently, at most ``most`` messages at a time.

    A lane publishes its next message only when the previous one is confirmed: otherwise a message
    that had to be sent again would be stored after its successor. The first error ends all lanes.
    """
    gate = asyncio.Semaphore(most)

    async def publish_lane(lane: Iterable[T]) -> None:
        for message in lane:
            async with gate:
                await publish(message)

    separate = [*lanes]
    if len(separate) == 1:  # as for most small chunks: saves the cost of a task
        await publish_lane(separate[0])
    else:
        await _run_all(map(publish_lane, separate))


def _is_stored(answer: Answer) -> TypeGuard[bytes]:
    """Returns ``True`` for a confirmation in the usual form; any other answer is parsed later."""
    return isinstance(answer, bytes) and answer.startswith(_STORED) and _REFUSED not in answer


def _rows_of(sendings: Sequence[Sending]) -> Publishes:
    rows = [(sending.subject.encode(), sending.headers, sending.payload) for sending in sendings]
    return Publishes(*map(list, zip(*rows, strict=True)))


def check_window(window: object) -> None:
    """Raises ``ValueError`` if the window is not a number of messages."""
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window!r}")


class Bulk:
    """Messages that are published in order, and the result of each.

    Messages that are ready at the same time are sent in one buffer. Used once, on the client's
    loop.
    """

    def __init__(self, client: SecuredClient, window: int) -> None:
        self._client = client
        self._window = window
        self._sendings: list[Sending] = []
        self._acks: list[Ack | None] = []
        self._failures: dict[int, PublishError] = {}
        self._unsent: list[int] = []
        self._sent: dict[int, tuple[int, float]] = {}
        self._alone: dict[int, asyncio.Task[None]] = {}
        self._change = asyncio.Event()

    async def publish(
        self, prepare: Callable[[T], Sending], messages: AsyncIterable[T] | Iterable[T]
    ) -> list[Ack]:
        """Publishes the messages, a bounded number at a time; returns the acks in their order.

        If the iterable or ``prepare`` raises, that error is raised once all earlier messages are
        stored. The first ``PublishError`` is raised with ``acks``.
        """
        broken: Exception | None = None
        async with self._client.begin_volley() as self._volley:
            watching = asyncio.get_running_loop().create_task(self._watch())
            try:
                broken = await self._take(prepare, messages)
                await self._make_room(0)
            finally:
                watching.cancel()
        if self._failures:
            raise self._explain() from broken
        if broken is not None:
            broken.add_note(f"It was message {len(self._acks)}; those before it are stored.")
            raise broken
        return [ack for ack in self._acks if ack is not None]

    async def _take(
        self, prepare: Callable[[T], Sending], messages: AsyncIterable[T] | Iterable[T]
    ) -> Exception | None:
        """Sends messages until one has failed; returns what the iterable or ``prepare`` raised."""
        try:
            async for message in _iterate(messages):
                await self._make_room(self._window - 1)
                if self._failures:
                    break
                self._add(prepare(message))
        except Exception as error:
            return error
        return None

    def give_up(self, why: str) -> PublishError:
        """Ends all publishing in flight; returns the error with the result of each message."""
        for task in self._alone.values():
            task.cancel()
        for row in (*self._unsent, *self._sent, *self._alone):
            self._failures[row] = self._sendings[row].explain(PublishError, why)
        return self._explain()

    @property
    def _in_flight(self) -> int:
        return len(self._unsent) + len(self._sent) + len(self._alone)

    def _add(self, sending: Sending) -> None:
        if not self._unsent:
            # The callback runs once no more messages are ready, so these are sent together.
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(len(self._acks))
        self._sendings.append(sending)
        self._acks.append(None)

    def _send(self) -> None:
        rows, self._unsent = self._unsent, []
        if not rows:
            return
        if not self._client.is_connected:
            for row in rows:
                self._go_alone(row, self._sendings[row].confirm())
            return
        now, place = time.monotonic(), len(self._volley.answers)
        for number, row in enumerate(rows):
            self._sent[row] = place + number, now + self._sendings[row].first_timeout
        sendings = [self._sendings[row] for row in rows]
        self._volley.send(_rows_of(sendings))
        self._volley.wake()  # the new requests have an earlier deadline

    async def _make_room(self, most: int) -> None:
        """Waits until at most ``most`` messages are in flight."""
        while self._in_flight > most:
            self._send()
            self._change.clear()
            await self._change.wait()

    async def _watch(self) -> None:
        """Handles answers as they arrive, and requests that time out, until it is cancelled."""
        while True:
            self._judge()
            self._change.set()
            deadline = min((until for _, until in self._sent.values()), default=math.inf)
            wait = deadline - time.monotonic()
            await self._volley.wait(None if wait == math.inf else max(0.0, wait))

    def _judge(self) -> None:
        """Reads the answers; a message that was not stored at once is retried alone."""
        now = time.monotonic()
        for row, (place, until) in list(self._sent.items()):
            answer = self._volley.answers[place]
            if _is_stored(answer):
                self._acks[row] = self._sendings[row].read_ack(answer)
                del self._sent[row]
            elif answer is not None or now >= until:
                del self._sent[row]
                self._go_alone(row, self._sendings[row].continue_after(answer))

    def _go_alone(self, row: int, confirming: Coroutine[Any, Any, Ack]) -> None:
        async def confirm() -> None:
            try:
                self._acks[row] = await confirming
            except PublishError as error:
                self._failures[row] = error
            del self._alone[row]
            self._volley.wake()

        self._alone[row] = asyncio.get_running_loop().create_task(confirm())

    def _explain(self) -> PublishError:
        row = min(self._failures)
        error = self._failures[row]
        error.acks = tuple(self._acks)
        stored = sum(ack is not None for ack in self._acks)
        error.add_note(f"It was message {row}; {stored} of {len(self._acks)} sent are stored.")
        return error


async def _iterate(messages: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message


class Handover(AsyncIterator[T]):
    """Messages that one thread takes from an iterable and another thread's event loop publishes.

    An iterable may block, and the loop must not. At most ``size`` messages wait in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self._loop = loop
        self._size = size
        self._room = threading.Event()
        self._items: deque[T] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._unwanted = False
        self._error: Exception | None = None

    def fill(self, messages: Iterable[T]) -> None:
        """Takes all messages until ``stop``. The consumer raises what the iterable raises."""
        try:
            for message in messages:
                self._wait_for_room()
                if self._unwanted:
                    return
                self._items.append(message)
                self._wake()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._wake()

    def _wait_for_room(self) -> None:
        while len(self._items) >= self._size and not self._unwanted:
            # Cleared before the check: a message taken after the check sets the event again.
            self._room.clear()
            if len(self._items) >= self._size and not self._unwanted:
                self._room.wait()

    def stop(self, *_: object) -> None:
        """Ends the handover: no more messages are wanted."""
        self._unwanted = True
        self._room.set()

    def _wake(self) -> None:
        # Waking the loop costs a system call; while it finds messages it checks for more by itself.
        if not self._news.is_set() and not self._unwanted:
            self._loop.call_soon_threadsafe(self._news.set)

    async def __anext__(self) -> T:
        while not self._items:
            # Cleared before the check: a message added after the check sets the event again, and
            # no message is added after the end.
            self._news.clear()
            ended = self._ended
            if self._items:
                break
            if ended:
                raise self._error or StopAsyncIteration
            await self._news.wait()
        message = self._items.popleft()
        if len(self._items) <= self._size // 2 and not self._room.is_set():
            self._room.set()
        return message


async def publish_atomically(client: SecuredClient, messages: Sequence[Addressed]) -> int | None:
    """Stores all messages in one stream and returns the sequence of the last one.

    ``None`` if they were not stored or that is not known: the caller has to read the stream.
    ``MessageTooLarge`` before anything is sent, ``EbbflowError`` if another attempt cannot succeed.
    """
    batch = secrets.token_hex(16)
    rows = Publishes.of(
        (subject, {**headers, **_place_in(batch, place, len(messages))}, payload)
        for place, (subject, headers, payload) in enumerate(messages, 1)
    )
    for headers, payload in zip(rows.headers, rows.payloads, strict=True):
        check_size(client.max_payload, payload, headers)
    if not client.is_connected:
        return None
    answers = await client.request_all(rows, _SILENCE)
    for answer in answers[:-1]:
        _read(answer, messages)
    return _read(answers[-1], messages)


def _place_in(batch: str, place: int, last: int) -> dict[str, str]:
    headers = {_BATCH: batch, _PLACE: str(place)}
    return headers | {_COMMIT: "1"} if place == last else headers


def _read(answer: Answer, messages: Sequence[Addressed]) -> int | None:
    if not answer or isinstance(answer, int):  # the server acks all but the last with empty replies
        return None
    facts = json.loads(answer)
    error = facts.get("error")
    if error is None:
        return int(facts["seq"])
    if error.get("err_code") in _NOT_NOW:
        return None
    raise EbbflowError(
        f"NATS refused to store {len(messages)} messages on {messages[0][0]} together: "
        f"{error.get('description')} ({error.get('err_code')})."
    )
