"""A stream of the user's own as a source, through a durable pull consumer.

The consumer is the one record of what is done: messages are acknowledged, and nacked with exactly
the delay asked for, by JetStream's own means, so that NATS' tools show what is. Each such word is
repeated until the server has confirmed it. As long as a message is in flight the server is told so,
well before it would give it to another process; what is still in flight at the end is given back.
Several partitions are several processes on the same consumer.

Messages arrive, are handed on and are acknowledged in bulk. The source asks ahead: while the vertex
works, the next messages are in flight, and words of acknowledgement go their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any, ParamSpec, TypeVar

import nats.errors
import pyarrow as pa

from ebbflow.connectors.nats.durable import Durable, confirm
from ebbflow.connectors.nats.messages import not_allowed, outside_link, to_source_columns
from ebbflow.domain.errors import AccessError, EbbflowError, JetStreamUnavailable, SetupError
from ebbflow.domain.user_source import NackOffset, Source
from ebbflow.nats import api
from ebbflow.nats.login import Addresses
from ebbflow.nats.pull import (
    NANOS,
    NO_DELIVERIES,
    Deliveries,
    PullConsumer,
    PullRequest,
    PullStatus,
    Word,
)
from ebbflow.nats.wire import Publishes

P = ParamSpec("P")
T = TypeVar("T")

# An election takes up to ten seconds. A run that is told to stop waits for longer than this.
_CONFIRM = 20.0
_GRACE = 1.0
_PAUSE = 0.1
_LOOK = 2.0
# A request ends after so long without a message, and is made again.
_EXPIRES = 5.0
# Asked for at once, and in flight at once: the read-ahead of a vertex is counted in messages only.
_MANY, _AHEAD = 100, 4_000
_MOST_IN_FLIGHT = 40_000
# Calls of ``ack`` and ``nack`` that may wait for the server before the next one waits for them.
_UNCONFIRMED = 16
_BOUNDS = {"batch": "max_batch", "expires": "max_expires", "max_bytes": "max_bytes"}
"""What a request asks for, and what a consumer calls the most that it may ask for."""


@dataclass(frozen=True, slots=True)
class JetStreamSettings:
    """Where the stream is, its consumer, and the most bytes in flight and of one answer."""

    server: Addresses
    durable: Durable
    most_bytes: int = 128 * 1024 * 1024
    answer_bytes: int = 16 * 1024 * 1024


class JetStreamSource(Source):
    """Reads a stream. Offsets are the stream's sequences, in all partitions alike."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self._settings = settings
        self._server = settings.server
        self._durable = settings.durable
        self._is_open = False
        self._failure: EbbflowError | None = None
        self._forget()

    def _forget(self) -> None:
        """Forgets what a lost consumer gave: the next one gives it again."""
        self._in_flight = InFlightMessages()
        self._arrived: deque[Deliveries] = deque()
        self._unconfirmed: deque[concurrent.futures.Future[None]] = deque()
        self._unread = self._wanted = 0

    # --- what a source is asked for ---------------------------------------------------------------

    def open(self) -> None:
        """Connects, and sees to the consumer."""
        self._link = outside_link(self._server, "jetstream source")
        self._is_open, self._is_gone, self._connected = True, False, True
        try:
            self._do(self._begin())
        except BaseException:
            self._shut()
            raise

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns what has arrived, waiting for the first; raises why nothing can."""
        self._raise_failure()
        self._renew()
        self._tell_connection()
        # A reader that takes a few at a time may want to see what comes back before what is new.
        self._wanted = max(_AHEAD, 2 * limit) if limit >= _MANY else limit
        self._link.call_soon(self._room.set)
        if not self._arrived:
            self._do(self._wait_for_arrival(timeout.total_seconds()))
            self._raise_failure()
        batches: list[Deliveries] = []
        while self._arrived and limit > 0:
            batch, rest = self._arrived.popleft().split(limit)
            if rest:
                self._arrived.appendleft(rest)
            batches.append(batch)
            limit -= len(batch)
        self._unread -= sum(map(len, batches))
        return _to_rows(Deliveries.join(batches) if batches else NO_DELIVERIES)

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges messages; the word is repeated until the server has confirmed it."""
        self._answer(offsets, [b"+ACK"] * len(offsets), at_once=False)

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Nacks messages: the server gives each again when its delay is over."""
        words = [_format_nak(nack.options.delay) for nack in nacks]
        self._answer([nack.offset for nack in nacks], words, at_once=True)

    def pending(self) -> int | None:
        """Returns how many messages are not read yet."""
        try:
            return int(self._run(self._read_info)["num_pending"]) + self._unread
        except JetStreamUnavailable:
            return None

    @property
    def exhausted(self) -> bool:
        """``True`` if all that is in the stream is acknowledged, by all partitions."""
        if self._in_flight:
            return False
        try:
            info = self._run(self._read_info)
        except JetStreamUnavailable:
            return False
        return not info["num_pending"] and not info["num_ack_pending"]

    def close(self) -> None:
        """Gives back what is in flight: it is redelivered at once, not after the ack wait."""
        with contextlib.suppress(nats.errors.Error, EbbflowError, TimeoutError):
            self._wait_for_confirmations(0)
            self._run(self._end)
        self._shut()

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **more: P.kwargs) -> T:
        """Does something on the link's loop; begins again if connection or consumer are gone."""
        self._renew()
        return self._do(work(*args, **more))

    def _renew(self) -> None:
        if self._is_open and self._is_gone:
            self._forget()
        if self._is_open and (self._is_gone or self._link.client.ended is not None):
            self._shut()
        if not self._is_open:
            self.open()

    def _raise_failure(self) -> None:
        # Before a lost consumer is made again: the vertex has to learn of it.
        if self._failure is not None and not self._arrived:
            failure, self._failure = self._failure, None
            raise not_allowed(failure) if isinstance(failure, AccessError) else failure

    def _tell_connection(self) -> None:
        now = self._link.client.is_connected
        if now != self._connected:
            print(f"the connection to NATS at {self._server} is {'back' if now else 'lost'}")
            self._connected = now

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._link.run(coroutine)
        except AccessError as error:
            raise not_allowed(error) from None

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self._link.close()

    def _answer(self, offsets: Sequence[bytes], words: Sequence[bytes], *, at_once: bool) -> None:
        self._renew()
        self._wait_for_confirmations(_UNCONFIRMED)
        self._unconfirmed.append(self._link.submit(self._confirm(offsets, words, at_once)))

    def _wait_for_confirmations(self, most: int) -> None:
        """Waits for the oldest of them; raises what went wrong with any that is over."""
        while self._unconfirmed and (len(self._unconfirmed) > most or self._unconfirmed[0].done()):
            try:
                self._unconfirmed.popleft().result(_CONFIRM + _GRACE)
            except AccessError as error:
                raise not_allowed(error) from None

    # --- on the link's loop -----------------------------------------------------------------------

    async def _begin(self) -> None:
        client = self._link.client
        config = await self._durable.ensure(client)
        if (most := config.get("max_ack_pending", -1)) > 0:
            print(
                f"consumer {self._durable.name} has max_ack_pending {most}: messages that wait for "
                "a delay count, and at this limit they block all others; set it to -1"
            )
        self._answer_bytes = max(self._settings.answer_bytes, 2 * client.max_payload)
        self._bounds = {ours: config.get(theirs) or sys.maxsize for ours, theirs in _BOUNDS.items()}
        stream, name = self._durable.stream, self._durable.name
        # Other processes are given deliveries in between, so their numbers are not in step.
        self._pull = PullConsumer(client, stream, name, self._receive, in_step=False)
        await self._pull.open()
        self._arrival, self._room = asyncio.Event(), asyncio.Event()
        start = asyncio.get_running_loop().create_task
        self._tasks = [start(self._ask_ahead()), start(self._keep(config["ack_wait"] / NANOS))]

    async def _read_info(self) -> dict[str, Any]:
        try:
            return await self._durable.read_info(self._link.client, _LOOK)
        except api.ApiError as error:
            raise self._explain_loss(str(error)) from None

    def _explain_loss(self, why: str) -> SetupError:
        self._is_gone = True
        name, stream = self._durable.name, self._durable.stream
        return SetupError(f"Consumer {name} of stream {stream} is gone: {why}.")

    async def _end(self) -> None:
        client = self._link.client
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # First hear no more: what came after the words below would have to wait for its ack wait.
        await self._pull.close()
        await client.flush(5)
        if client.is_connected:
            client.send(_say_to_all(self._in_flight.all_replies(), b"-NAK"))
            await client.flush(5)

    # --- what arrives -----------------------------------------------------------------------------

    async def _wait_for_arrival(self, timeout: float) -> None:
        """Returns when something has arrived, nothing can, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._arrived and self._failure is None:
                    self._arrival.clear()
                    await self._arrival.wait()

    async def _ask_ahead(self) -> None:
        """Keeps a request on its way for as long as there is room for what it brings."""
        while True:
            while self._room_for() <= 0:
                self._room.clear()
                await self._room.wait()
            try:
                await (self._ask() if self._link.client.is_connected else asyncio.sleep(_PAUSE))
                self._failure = None
            except EbbflowError as error:
                self._failure = error
                self._arrival.set()
                await asyncio.sleep(_PAUSE)

    def _room_for(self) -> int:
        """Returns how many messages may be asked for."""
        if self._in_flight.size >= self._settings.most_bytes:
            return 0
        return min(self._wanted - self._unread, _MOST_IN_FLIGHT - len(self._in_flight))

    async def _ask(self) -> None:
        """Sends one request; it ends when there is no more there, or nothing came in time."""
        bounds = self._bounds
        request = PullRequest(
            batch=min(self._room_for(), bounds["batch"]),
            expires=min(round(_EXPIRES * NANOS), bounds["expires"]),
            max_bytes=min(self._answer_bytes, bounds["max_bytes"]),
            no_wait=True,
        )
        before = self._pull.heard
        status = await self._pull.fetch(request, within=_EXPIRES + _GRACE)
        # The word itself is heard, too. If there was more, the next request shows what it means.
        await self._judge(status, came_with_messages=self._pull.heard > before + 1)

    async def _judge(self, status: PullStatus, came_with_messages: bool) -> None:
        """Waits for what is over by itself after a while; the rest is why nothing can come."""
        match status.word:
            case Word.FULL | Word.DRY | Word.EXPIRED | Word.SILENCE:
                return
            case Word.GONE | Word.TOO_LARGE if came_with_messages:
                return
            case Word.GONE | Word.ABSENT:
                if await self._durable.is_gone(self._link.client):
                    raise self._explain_loss("it was deleted")
                await asyncio.sleep(_PAUSE)
            case _:
                raise SetupError(f"NATS refused to give messages: {status.text}.")

    def _receive(self, deliveries: Deliveries) -> None:
        new = self._in_flight.take(deliveries)
        self._unread += len(new)
        self._arrived.append(new)
        self._arrival.set()

    # --- what is done -----------------------------------------------------------------------------

    async def _confirm(
        self, offsets: Sequence[bytes], words: Sequence[bytes], at_once: bool
    ) -> None:
        """Says a word about each message that is in flight, which then is so no longer.

        A nacked one goes ``at_once``: it may be here again before the server has confirmed its
        nack, and would be taken for the delivery that is in flight.
        """
        rows = [row for row, offset in enumerate(offsets) if offset in self._in_flight]
        held = [offsets[row] for row in rows]
        replies = self._in_flight.find_replies(held)
        if at_once:
            self._let_go(held)
        await confirm(self._link.client, replies, [words[row] for row in rows], _CONFIRM)
        if not at_once:
            self._let_go(held)

    def _let_go(self, offsets: Sequence[bytes]) -> None:
        self._in_flight.let_go(offsets)
        self._room.set()

    async def _keep(self, ack_wait: float) -> None:
        """Tells the server again and again what is in flight, in time for a second attempt."""
        client = self._link.client
        while True:
            await asyncio.sleep(ack_wait / 4)
            for replies in self._in_flight.find_silent(ack_wait / 4) if client.is_connected else ():
                client.send(_say_to_all(replies, b"+WPI"))


def _to_rows(deliveries: Deliveries) -> pa.RecordBatch:
    columns = to_source_columns(deliveries.parcel)
    columns["offset"] = pa.array(write_sequences(deliveries), pa.binary())
    columns["event_time"] = deliveries.times()
    # Whichever process has it, it is the same message.
    columns["partition"] = pa.repeat(pa.scalar(0, pa.int32()), len(deliveries))
    return pa.RecordBatch.from_pydict(columns)


def _say_to_all(replies: Sequence[bytes], word: bytes) -> bytes:
    return Publishes.plain(replies, [word] * len(replies)).encode_unanswered()


def _format_nak(delay: int | None) -> bytes:
    return b"-NAK " + json.dumps({"delay": delay * 1_000_000}).encode() if delay else b"-NAK"


# --- messages in flight ---------------------------------------------------------------------------


@dataclass(slots=True)
class _HeldBatch:
    """Messages that arrived together: their bytes, how many are in flight, the last sign."""

    offsets: list[bytes]
    size: int
    in_flight: int
    since: float


class InFlightMessages:
    """The messages that the vertex has and that are not settled. Used on the link's loop.

    ``size`` is in bytes; a batch counts until all of it is gone.
    """

    def __init__(self) -> None:
        self.size = 0
        self._held: dict[bytes, tuple[bytes, _HeldBatch]] = {}
        self._batches: deque[_HeldBatch] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, offset: bytes) -> bool:
        return offset in self._held

    def take(self, deliveries: Deliveries) -> Deliveries:
        """Returns the messages that were not in flight already; they are now."""
        offsets = write_sequences(deliveries)
        if not self._held.keys().isdisjoint(offsets):
            deliveries = self._without_held(deliveries, offsets)
            offsets = write_sequences(deliveries)
        size, replies = sum(deliveries.parcel.sizes()), deliveries.parcel.replies
        batch = _HeldBatch(offsets, size, len(offsets), time.monotonic())
        self._held.update(zip(offsets, zip(replies, repeat(batch), strict=False), strict=True))
        self._batches.append(batch)
        self.size += size
        return deliveries

    def _without_held(self, deliveries: Deliveries, offsets: Sequence[bytes]) -> Deliveries:
        """Returns those that are not in flight; the others were not kept in time, and continue."""
        rows: list[int] = []
        for row, offset in enumerate(offsets):
            if held := self._held.get(offset):
                # From now on the server takes words about the new delivery only.
                self._held[offset] = deliveries.parcel.replies[row], held[1]
            else:
                rows.append(row)
        return deliveries.pick(rows)

    def find_replies(self, offsets: Sequence[bytes]) -> list[bytes]:
        """Returns where the answers to messages in flight go."""
        return [self._held[offset][0] for offset in offsets]

    def all_replies(self) -> list[bytes]:
        """Returns where the answers to all messages go."""
        return [reply for reply, _ in self._held.values()]

    def let_go(self, offsets: Sequence[bytes]) -> None:
        """Forgets messages; some may be gone already, because they were answered twice."""
        held = [self._held.pop(offset) for offset in offsets if offset in self._held]
        for _, batch in held:
            batch.in_flight -= 1
            if not batch.in_flight:
                self.size -= batch.size
        while self._batches and not self._batches[0].in_flight:
            self._batches.popleft()

    def find_silent(self, seconds: float) -> Iterator[list[bytes]]:
        """Yields the replies of each batch of which there was no sign for so long; this is one."""
        now = time.monotonic()
        for batch in list(self._batches):
            if batch.in_flight and now - batch.since > seconds:
                batch.since = now
                held = [self._held[offset] for offset in batch.offsets if offset in self._held]
                yield [reply for reply, owner in held if owner is batch]


def write_sequences(deliveries: Deliveries) -> list[bytes]:
    """Returns the offsets of messages: the stream's sequences, as text."""
    return [b"%d" % seq for seq in deliveries.seqs]
