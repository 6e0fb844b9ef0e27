"""Requests over one connection: each has a number, and its answer is matched by it.

A single request waits for its own answer. A volley is many requests: they leave as a few large
buffers, with a bounded number of them unanswered, and their answers are picked up parcel by parcel.
Whoever sends a volley decides about what has not been answered.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import nats.errors

from ebbflow.domain.errors import AccessError
from ebbflow.nats.wire import Parcel, Publishes, TakeParcel, encode

WINDOW = 4096
"""The most requests of a volley that are on their way at once."""

_WINDOW_BYTES = 4 * 1024 * 1024
NO_RESPONDERS = 503
"""The status of a request that nobody listens for."""

Answer = bytes | int | None
"""The payload of an answer, or the status that the server has answered with, or none at all."""


class Reply(NamedTuple):
    """The answer to a single request."""

    data: bytes
    headers: dict[str, str] | None = None


class Connection(Protocol):
    """The client that the requests are made with."""

    @property
    def is_connected(self) -> bool:
        """``False`` while the connection is being made again."""

    def new_inbox(self) -> str:
        """Returns a subject that nobody else has."""

    async def listen(self, subject: str, take: TakeParcel) -> Any:
        """Subscribes in bulk."""

    def check_sending(self, size: int) -> None:
        """Raises what nats-py raises when nothing of that size can be sent."""

    def send(self, buffer: bytes | memoryview) -> None:
        """Sends messages that are ready for the wire."""


class _Waiting(NamedTuple):
    """A single request that has not been answered; ``until`` is in the loop's time."""

    answer: asyncio.Future[Reply]
    subject: str
    until: float


class Volley:
    """Many requests, and the answers that have come so far, in the order of sending."""

    def __init__(self, client: Connection, inbox: bytes) -> None:
        self.answers: list[Answer] = []
        self.answered = 0
        self._client = client
        self._inbox = inbox
        self._news = asyncio.Event()

    def send(self, rows: Publishes) -> None:
        """Sends requests behind those that were sent before."""
        buffer, _ = self.encode(rows)
        self.send_encoded(buffer, len(rows))

    def encode(self, rows: Publishes) -> tuple[memoryview, list[int]]:
        """Returns requests for the wire, and where each begins and the last one ends."""
        return rows.encode(self._inbox, len(self.answers))

    def send_encoded(self, buffer: memoryview, size: int) -> None:
        """Sends so many requests that were encoded, in their order."""
        self.answers += [None] * size
        self._client.send(buffer)

    def take(self, request: int, parcel: Parcel, row: int) -> None:
        """Takes the answer in a row of a parcel; only the first to a request counts."""
        if self.answers[request] is None:
            status = (parcel.headers(row) or {}).get("Status")
            self.answers[request] = parcel.payload(row) if status is None else int(status)
            self.answered += 1

    def tell(self) -> None:
        """Wakes who waits for answers."""
        self._news.set()

    async def wait(self, silence: float | None) -> bool:
        """Returns when answers have come; ``False`` if none has for so many seconds."""
        self._news.clear()
        try:
            async with asyncio.timeout(silence):
                return await self._news.wait()
        except TimeoutError:
            return False


class Requests:
    """The requests of one client. Everything happens on its loop."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._inbox = b""
        self._count = 0
        self._opening = asyncio.Lock()
        self._waiting: dict[bytes, _Waiting] = {}
        self._next_look = math.inf
        self._volleys: dict[bytes, Volley] = {}

    async def open(self) -> None:
        """Listens for answers, before the first request."""
        if self._inbox:
            return
        async with self._opening:
            if not self._inbox:
                inbox = f"{self._client.new_inbox()}."
                await self._client.listen(f"{inbox}*", self._receive)
                self._inbox = inbox.encode()

    def _next_number(self) -> bytes:
        self._count += 1
        return b"%d" % self._count

    async def ask(self, subject: str, headers: bytes, payload: bytes, timeout: float) -> Reply:
        """Sends one request, with headers as ``write_headers`` makes them; returns its answer.

        ``NoRespondersError`` when nobody listens, ``TimeoutError`` of nats-py when no answer comes
        in time, ``AccessError`` when the login may not ask.
        """
        if not self._inbox:
            await self.open()
        self._client.check_sending(len(payload))
        loop = asyncio.get_running_loop()
        number, until = self._next_number(), loop.time() + timeout
        answer: asyncio.Future[Reply] = loop.create_future()
        self._waiting[number] = _Waiting(answer, subject, until)
        if until < self._next_look:
            self._look_at(loop, until)
        try:
            self._client.send(
                encode(subject.encode(), b" " + self._inbox + number, headers, payload)
            )
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        # One timer for all: most requests are answered long before, and none of them sets its own.
        self._next_look = when
        loop.call_at(when, self._expire, loop, when)

    def _expire(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        """Ends the requests whose time is over."""
        for waiting in self._waiting.values():
            if waiting.until <= when and not waiting.answer.done():
                waiting.answer.set_exception(nats.errors.TimeoutError())
        if when == self._next_look:  # else an earlier look has been set since, and goes on
            later = [waiting.until for waiting in self._waiting.values() if waiting.until > when]
            self._next_look = math.inf
            if later and (soonest := min(later)) < math.inf:
                self._look_at(loop, soonest)

    @contextmanager
    def begin_volley(self) -> Iterator[Volley]:
        """Opens a volley; answers that come after its end are nobody's. ``open`` comes first."""
        number = self._next_number()
        volley = self._volleys[number] = Volley(self._client, self._inbox + number + b"-")
        try:
            yield volley
        finally:
            del self._volleys[number]

    async def ask_all(self, rows: Publishes, silence: float) -> list[Answer]:
        """Sends requests and returns the answers in their order.

        Rows stay without one once no answer has come to any of them for ``silence`` seconds, and
        those that could not be sent because the connection was lost.
        """
        await self.open()
        with self.begin_volley() as volley:
            buffer, starts = volley.encode(rows)
            while volley.answered < len(rows):
                sent = len(volley.answers)
                end = _end_of_window(starts, sent, volley.answered)
                if end > sent and self._client.is_connected:
                    volley.send_encoded(buffer[starts[sent] : starts[end]], end - sent)
                if not await volley.wait(silence):
                    break
            return volley.answers + [None] * (len(rows) - len(volley.answers))

    def _receive(self, parcel: Parcel) -> None:
        skip, volleys = len(self._inbox), self._volleys
        woken: set[bytes] = set()
        for row, subject in enumerate(parcel.subjects):
            number, of_volley, place = subject[skip:].partition(b"-")
            if not of_volley:
                self._settle(number, parcel, row)
            elif number in volleys:
                volleys[number].take(int(place), parcel, row)
                woken.add(number)
        for number in woken:
            volleys[number].tell()

    def _settle(self, number: bytes, parcel: Parcel, row: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or (answer := waiting.answer).done():
            return
        headers = parcel.headers(row)
        if headers and headers.get("Status") == str(NO_RESPONDERS):
            answer.set_exception(nats.errors.NoRespondersError())
        else:
            answer.set_result(Reply(parcel.payload(row), headers))

    def deny(self, subject: str | None, error: AccessError) -> None:
        """Ends the requests to a subject that the login may not use, or all of them."""
        for waiting in self._waiting.values():
            if subject in (None, waiting.subject) and not waiting.answer.done():
                waiting.answer.set_exception(error)


def _end_of_window(starts: Sequence[int], sent: int, answered: int) -> int:
    """Returns up to which row may be sent now, so that the window is not exceeded."""
    end = min(len(starts) - 1, answered + WINDOW)
    most = starts[answered] + _WINDOW_BYTES
    if starts[end] > most:
        # One that is larger than the window goes alone.
        end = max(bisect_right(starts, most, sent, end) - 1, sent + (sent == answered))
    # A few large buffers are cheaper than many small ones.
    is_sliver = end < len(starts) - 1 and end - sent < (sent - answered) // 4
    return sent if is_sliver else end
