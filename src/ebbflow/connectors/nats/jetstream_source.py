"""A user's own stream as a source, through a durable pull consumer.

Only the consumer records which messages are done. Messages are acked, and nacked with exactly the
requested delay, by JetStream itself, so NATS tools show the true state. Each ack and nack is
repeated until the server has confirmed it. While a message is in flight, the source extends its ack
wait in time; at the end it nacks messages still in flight, so they are redelivered at once. The
processes of several partitions share one consumer.

Messages are received, passed on and acknowledged in bulk. The source prefetches: while the vertex
works, the next messages arrive and acks are confirmed in the background.
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
    PullState,
    PullStatus,
)
from ebbflow.nats.wire import Publishes

P = ParamSpec("P")
T = TypeVar("T")

# An election takes up to ten seconds. A stopping run waits for longer than this.
_CONFIRM = 20.0
_GRACE = 1.0
_PAUSE = 0.1
_LOOK = 2.0
# A request ends after this time without a message, and is made again.
_EXPIRES = 5.0
# Reads of ``_MANY`` messages or more prefetch ``_AHEAD``: a vertex counts its own read-ahead in
# messages only.
_MANY, _AHEAD = 100, 4_000
_MOST_IN_FLIGHT = 40_000
# Calls of ``ack`` and ``nack`` that may await confirmation before the next call blocks.
_UNCONFIRMED = 16
_BOUNDS = {"batch": "max_batch", "expires": "max_expires", "max_bytes": "max_bytes"}
"""Fields of a pull request, each with the consumer's setting that limits it."""


@dataclass(frozen=True, slots=True)
class JetStreamSettings:
    """The server, the consumer, and the most bytes in flight and in one reply."""

    server: Addresses
    durable: Durable
    most_bytes: int = 128 * 1024 * 1024
    answer_bytes: int = 16 * 1024 * 1024


class JetStreamSource(Source):
    """Reads a stream. Offsets are the stream's sequences, the same in all partitions."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self._settings = settings
        self._server = settings.server
        self._durable = settings.durable
        self._is_open = False
        self._failure: EbbflowError | None = None
        self._forget()

    def _forget(self) -> None:
        """Forgets messages of a lost consumer; the next consumer redelivers them."""
        self._in_flight = InFlightMessages()
        self._arrived: deque[Deliveries] = deque()
        self._unconfirmed: deque[concurrent.futures.Future[None]] = deque()
        self._unread = self._wanted = 0

    # --- the methods of a source ------------------------------------------------------------------

    def open(self) -> None:
        """Connects, and creates or checks the consumer."""
        self._link = outside_link(self._server, "jetstream source")
        self._is_open, self._is_gone, self._connected = True, False, True
        try:
            self._do(self._begin())
        except BaseException:
            self._shut()
            raise

    def read(self, limit: int, timeout: timedelta) -> pa.RecordBatch:
        """Returns messages, waiting for the first; raises an error if none can arrive."""
        self._raise_failure()
        self._renew()
        self._log_connection()
        # A reader of few messages at a time may want redeliveries before new messages.
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
        """Acks messages; repeated until the server has confirmed it."""
        self._submit(offsets, [b"+ACK"] * len(offsets), at_once=False)

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Nacks messages: the server redelivers each after its delay."""
        payloads = [_format_nak(nack.options.delay) for nack in nacks]
        self._submit([nack.offset for nack in nacks], payloads, at_once=True)

    def pending(self) -> int | None:
        """Returns how many messages are unread."""
        try:
            return int(self._run(self._read_info)["num_pending"]) + self._unread
        except JetStreamUnavailable:
            return None

    @property
    def exhausted(self) -> bool:
        """``True`` if all messages of the stream are acknowledged, by all partitions."""
        if self._in_flight:
            return False
        try:
            info = self._run(self._read_info)
        except JetStreamUnavailable:
            return False
        return not info["num_pending"] and not info["num_ack_pending"]

    def close(self) -> None:
        """Nacks messages in flight: they are redelivered at once, not after the ack wait."""
        with contextlib.suppress(nats.errors.Error, EbbflowError, TimeoutError):
            self._wait_for_confirmations(0)
            self._run(self._end)
        self._shut()

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **more: P.kwargs) -> T:
        """Runs ``work`` on the link's loop; first reconnects if connection or consumer are gone."""
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
        # Before a lost consumer is recreated: the vertex has to report the loss.
        if self._failure is not None and not self._arrived:
            failure, self._failure = self._failure, None
            raise not_allowed(failure) if isinstance(failure, AccessError) else failure

    def _log_connection(self) -> None:
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

    def _submit(
        self, offsets: Sequence[bytes], payloads: Sequence[bytes], *, at_once: bool
    ) -> None:
        self._renew()
        self._wait_for_confirmations(_UNCONFIRMED)
        self._unconfirmed.append(self._link.submit(self._confirm(offsets, payloads, at_once)))

    def _wait_for_confirmations(self, most: int) -> None:
        """Waits until at most ``most`` calls are unconfirmed; raises errors of finished calls."""
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
        # Other processes get deliveries in between, so the numbers have gaps.
        self._pull = PullConsumer(client, stream, name, self._receive, is_exclusive=False)
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
        # First stop receiving: a message that arrived after the nacks below would have to wait for
        # its ack wait.
        await self._pull.close()
        await client.flush(5)
        if client.is_connected:
            client.send(_encode_all(self._in_flight.all_replies(), b"-NAK"))
            await client.flush(5)

    # --- receiving --------------------------------------------------------------------------------

    async def _wait_for_arrival(self, timeout: float) -> None:
        """Returns when a message has arrived, none can arrive, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._arrived and self._failure is None:
                    self._arrival.clear()
                    await self._arrival.wait()

    async def _ask_ahead(self) -> None:
        """Keeps one request open while there is room for its messages."""
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
        """Returns how many messages may be requested."""
        if self._in_flight.size >= self._settings.most_bytes:
            return 0
        return min(self._wanted - self._unread, _MOST_IN_FLIGHT - len(self._in_flight))

    async def _ask(self) -> None:
        """Sends one request; it ends when the stream has no more, or no message came in time."""
        bounds = self._bounds
        request = PullRequest(
            batch=min(self._room_for(), bounds["batch"]),
            expires=min(round(_EXPIRES * NANOS), bounds["expires"]),
            max_bytes=min(self._answer_bytes, bounds["max_bytes"]),
            no_wait=True,
        )
        before = self._pull.received
        status = await self._pull.fetch(request, within=_EXPIRES + _GRACE)
        # The status itself is counted, too. If messages came before it, the next request shows
        # what the status means.
        await self._judge(status, came_with_messages=self._pull.received > before + 1)

    async def _judge(self, status: PullStatus, came_with_messages: bool) -> None:
        """Waits out a temporary status; raises for one that means that no message can arrive."""
        match status.state:
            case PullState.FULL | PullState.DRY | PullState.EXPIRED | PullState.SILENCE:
                return
            case PullState.GONE | PullState.TOO_LARGE if came_with_messages:
                return
            case PullState.GONE | PullState.ABSENT:
                if await self._durable.is_gone(self._link.client):
                    raise self._explain_loss("it was deleted")
                await asyncio.sleep(_PAUSE)
            case _:
                raise SetupError(f"NATS refused to deliver messages: {status.text}.")

    def _receive(self, deliveries: Deliveries) -> None:
        new = self._in_flight.take(deliveries)
        self._unread += len(new)
        self._arrived.append(new)
        self._arrival.set()

    # --- acks and nacks ---------------------------------------------------------------------------

    async def _confirm(
        self, offsets: Sequence[bytes], payloads: Sequence[bytes], at_once: bool
    ) -> None:
        """Sends an ack or nack for each message in flight, and removes it from those in flight.

        A nacked message is removed ``at_once``: its redelivery may arrive before the nack is
        confirmed, and would be taken for the delivery in flight.
        """
        rows = [row for row, offset in enumerate(offsets) if offset in self._in_flight]
        found = [offsets[row] for row in rows]
        replies = self._in_flight.find_replies(found)
        if at_once:
            self._remove(found)
        await confirm(self._link.client, replies, [payloads[row] for row in rows], _CONFIRM)
        if not at_once:
            self._remove(found)

    def _remove(self, offsets: Sequence[bytes]) -> None:
        self._in_flight.remove(offsets)
        self._room.set()

    async def _keep(self, ack_wait: float) -> None:
        """Extends the ack wait of messages in flight, early enough for a second attempt."""
        client = self._link.client
        while True:
            await asyncio.sleep(ack_wait / 4)
            for replies in self._in_flight.find_silent(ack_wait / 4) if client.is_connected else ():
                client.send(_encode_all(replies, b"+WPI"))


def _to_rows(deliveries: Deliveries) -> pa.RecordBatch:
    columns = to_source_columns(deliveries.parcel)
    columns["offset"] = pa.array(write_sequences(deliveries), pa.binary())
    columns["event_time"] = deliveries.times()
    # The same in all processes: the stream has no partitions.
    columns["partition"] = pa.repeat(pa.scalar(0, pa.int32()), len(deliveries))
    return pa.RecordBatch.from_pydict(columns)


def _encode_all(replies: Sequence[bytes], payload: bytes) -> bytes:
    return Publishes.plain(replies, [payload] * len(replies)).encode_unanswered()


def _format_nak(delay: int | None) -> bytes:
    return b"-NAK " + json.dumps({"delay": delay * 1_000_000}).encode() if delay else b"-NAK"


# --- messages in flight ---------------------------------------------------------------------------


@dataclass(slots=True)
class _DeliveredBatch:
    """Messages that arrived together. ``since`` is when their ack wait was last extended."""

    offsets: list[bytes]
    size: int
    in_flight: int
    since: float


class InFlightMessages:
    """The messages that are unread or unsettled. Used on the link's loop.

    ``size`` is in bytes; a batch counts until all its messages are settled.
    """

    def __init__(self) -> None:
        self.size = 0
        self._messages: dict[bytes, tuple[bytes, _DeliveredBatch]] = {}
        self._batches: deque[_DeliveredBatch] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, offset: bytes) -> bool:
        return offset in self._messages

    def take(self, deliveries: Deliveries) -> Deliveries:
        """Adds messages; returns those that were not in flight already."""
        offsets = write_sequences(deliveries)
        if not self._messages.keys().isdisjoint(offsets):
            deliveries = self._drop_known(deliveries, offsets)
            offsets = write_sequences(deliveries)
        size, replies = sum(deliveries.parcel.sizes()), deliveries.parcel.replies
        batch = _DeliveredBatch(offsets, size, len(offsets), time.monotonic())
        self._messages.update(zip(offsets, zip(replies, repeat(batch), strict=False), strict=True))
        self._batches.append(batch)
        self.size += size
        return deliveries

    def _drop_known(self, deliveries: Deliveries, offsets: Sequence[bytes]) -> Deliveries:
        """Returns the new messages; the others' ack wait ran out, and only their replies change."""
        rows: list[int] = []
        for row, offset in enumerate(offsets):
            if known := self._messages.get(offset):
                # From now on the server accepts acks and nacks only of the new delivery.
                self._messages[offset] = deliveries.parcel.replies[row], known[1]
            else:
                rows.append(row)
        return deliveries.pick(rows)

    def find_replies(self, offsets: Sequence[bytes]) -> list[bytes]:
        """Returns the reply subjects of messages in flight."""
        return [self._messages[offset][0] for offset in offsets]

    def all_replies(self) -> list[bytes]:
        """Returns the reply subjects of all messages in flight."""
        return [reply for reply, _ in self._messages.values()]

    def remove(self, offsets: Sequence[bytes]) -> None:
        """Removes messages; ignores those removed already, by an earlier ack or nack."""
        removed = [self._messages.pop(offset) for offset in offsets if offset in self._messages]
        for _, batch in removed:
            batch.in_flight -= 1
            if not batch.in_flight:
                self.size -= batch.size
        while self._batches and not self._batches[0].in_flight:
            self._batches.popleft()

    def find_silent(self, seconds: float) -> Iterator[list[bytes]]:
        """Yields the reply subjects of each batch not extended for that long, and restarts it."""
        now = time.monotonic()
        for batch in list(self._batches):
            if batch.in_flight and now - batch.since > seconds:
                batch.since = now
                known = self._messages
                found = [known[offset] for offset in batch.offsets if offset in known]
                yield [reply for reply, owner in found if owner is batch]


def write_sequences(deliveries: Deliveries) -> list[bytes]:
    """Returns the offsets of messages: the stream's sequences, as text."""
    return [b"%d" % seq for seq in deliveries.seqs]
