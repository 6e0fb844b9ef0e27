"""A stream of the user's own as a source, through a durable pull consumer.

The consumer is the one record of what is done: messages are acknowledged, and nacked with exactly
the delay asked for, by JetStream's own means, so that NATS' tools show what is. Each such word is
repeated until the server has confirmed it. As long as a message is in hand the server is told so,
well before it would give it to somebody else; what is still in hand at the end is given back.
Several partitions are several processes on the same consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import nats.errors

from ebbflow.connectors.jetstream.durable import Acks, Durable
from ebbflow.connectors.nats.connection import not_allowed, outside_link
from ebbflow.connectors.nats.messages import read_headers
from ebbflow.errors import AccessError, JetStreamUnavailable, SetupError
from ebbflow.nats import api
from ebbflow.nats.address import Addresses
from ebbflow.nats.pull import NANOS, Deliveries, PullConsumer, PullRequest, PullStatus, Word
from ebbflow.source import NackOffset, Source, SourceMessage

P = ParamSpec("P")
T = TypeVar("T")

# An election takes up to ten seconds. A run that is told to stop waits for longer than this.
_CONFIRM = 20.0
_GRACE = 1.0
_PAUSE = 0.1
_LOOK = 2.0
# In hand at once, and in one answer: the read-ahead of a vertex is counted in messages only.
_MOST_BYTES = 128 * 1024 * 1024
_ANSWER_BYTES = 16 * 1024 * 1024
_BOUNDS = {"batch": "max_batch", "expires": "max_expires", "max_bytes": "max_bytes"}
"""What a request asks for, and what a consumer calls the most that it may ask for."""


@dataclass(frozen=True, slots=True)
class JetStreamSettings:
    """Where the stream is, and its consumer."""

    server: Addresses
    durable: Durable


@dataclass(slots=True)
class _InHand:
    """A message that was delivered and not answered: where its answer goes, and its last sign."""

    reply: str
    size: int
    since: float


class JetStreamSource(Source):
    """Reads a stream. Offsets are the stream's sequences, in all partitions alike."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self._server = settings.server
        self._durable = settings.durable
        self._hand: dict[bytes, _InHand] = {}
        self._bytes = 0
        self._arrived: deque[SourceMessage] = deque()
        self._connected = True
        self._is_open = False

    # --- what a source is asked for ---------------------------------------------------------------

    def open(self) -> None:
        """Connects, and sees to the consumer."""
        self._link = outside_link(self._server, "jetstream source")
        self._is_open, self._is_gone = True, False
        try:
            self._do(self._begin())
        except BaseException:
            self._shut()
            raise

    def read(self, limit: int, timeout: float) -> list[SourceMessage]:
        """Returns what has arrived, or else what the consumer has, waiting for the first."""
        return self._run(self._read, limit, timeout)

    def ack(self, offsets: Sequence[bytes]) -> None:
        """Acknowledges messages; the server has confirmed it when this returns."""
        self._run(self._ack, offsets)

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        """Nacks messages: the server gives each again when its delay is over."""
        self._run(self._nack, nacks)

    def pending(self) -> int | None:
        """Returns how many messages the consumer has not delivered yet."""
        try:
            return int(self._run(self._read_info)["num_pending"])
        except JetStreamUnavailable:
            return None

    @property
    def exhausted(self) -> bool:
        """``True`` if all that is in the stream is acknowledged, by all partitions."""
        if self._hand:
            return False
        try:
            info = self._run(self._read_info)
        except JetStreamUnavailable:
            return False
        return not info["num_pending"] and not info["num_ack_pending"]

    def close(self) -> None:
        """Gives back what is in hand, so that it comes again at once and not after the ack wait."""
        with contextlib.suppress(nats.errors.Error, SetupError):
            self._run(self._end)
        self._shut()

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **more: P.kwargs) -> T:
        """Does something on the link's loop; begins anew if connection or consumer are gone."""
        if self._is_open and self._is_gone:
            self._forget()
        if self._is_open and (self._is_gone or self._link.client.ended is not None):
            self._shut()
        if not self._is_open:
            self.open()
        return self._do(work(*args, **more))

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._link.run(coroutine)
        except AccessError as error:
            raise not_allowed(error) from None

    def _forget(self) -> None:
        """Forgets what the lost consumer gave: the next one gives it again."""
        self._hand.clear()
        self._arrived.clear()
        self._bytes = 0

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self._link.close()

    # --- on the link's loop -----------------------------------------------------------------------

    async def _begin(self) -> None:
        client = self._link.client
        config = await self._durable.ensure(client)
        if (most := config.get("max_ack_pending", -1)) > 0:
            print(
                f"consumer {self._durable.name} has max_ack_pending {most}: messages that wait for "
                "a delay count, and hold up the others when there are so many; -1 is better"
            )
        self._answer_bytes = max(_ANSWER_BYTES, 2 * client.max_payload)
        self._bounds = {ours: config.get(theirs) or sys.maxsize for ours, theirs in _BOUNDS.items()}
        self._acks = await Acks.open(client)
        stream, name = self._durable.stream, self._durable.name
        # Other processes are given deliveries in between, so their numbers are not in step.
        self._pull = PullConsumer(client, stream, name, self._receive, in_step=False)
        await self._pull.open()
        keep = self._keep(config["ack_wait"] / NANOS)
        self._keeping = asyncio.get_running_loop().create_task(keep)

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
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        for one in self._hand.values() if client.is_connected else ():
            await client.publish(one.reply, b"-NAK")
        await client.flush(5)

    async def _read(self, limit: int, timeout: float) -> list[SourceMessage]:
        if not self._arrived:
            if not self._is_connected() or self._bytes >= _MOST_BYTES:
                await asyncio.sleep(min(timeout, _PAUSE))
            else:
                await self._ask(limit, timeout)
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def _is_connected(self) -> bool:
        now = self._link.client.is_connected
        if now != self._connected:
            print(f"the connection to NATS at {self._server} is {'back' if now else 'lost'}")
            self._connected = now
        return now

    async def _ask(self, limit: int, timeout: float) -> None:
        """Sends one request; it ends when there is no more at hand, or nothing came in time."""
        bounds = self._bounds
        request = PullRequest(
            batch=min(limit, bounds["batch"]),
            expires=min(max(1, round(timeout * NANOS)), bounds["expires"]),
            max_bytes=min(self._answer_bytes, bounds["max_bytes"]),
            no_wait=True,
        )
        await self._judge(await self._pull.fetch(request, within=timeout + _GRACE))

    async def _judge(self, status: PullStatus) -> None:
        """Waits for what is over by itself after a while; the rest ends the source."""
        match status.word:
            case Word.FULL | Word.DRY | Word.EXPIRED | Word.SILENCE:
                return
            case Word.GONE | Word.TOO_LARGE if self._arrived:
                return
            case Word.GONE | Word.ABSENT:
                if await self._durable.is_gone(self._link.client):
                    raise self._explain_loss("it was deleted")
                await asyncio.sleep(_PAUSE)
            case _:
                raise SetupError(f"NATS refused to give messages: {status.text}.")

    def _receive(self, deliveries: Deliveries) -> None:
        now = time.monotonic()
        for row, seq in enumerate(deliveries.seqs):
            offset, reply = b"%d" % seq, deliveries.replies[row]
            if held := self._hand.get(offset):
                held.reply, held.since = reply, now  # given again: it was not kept in time
            else:
                self._take_in_hand(offset, reply, deliveries, row, now)

    def _take_in_hand(
        self, offset: bytes, reply: str, deliveries: Deliveries, row: int, now: float
    ) -> None:
        payload = deliveries.payloads[row]
        self._hand[offset] = _InHand(reply, len(payload), now)
        self._bytes += len(payload)
        keys, headers = read_headers(deliveries.subjects[row], deliveries.headers[row])
        self._arrived.append(
            SourceMessage(
                payload,
                offset,
                deliveries.stored_at(row),
                keys,
                headers,
                partition=0,  # whichever process has it, it is the same message
            )
        )

    async def _ack(self, offsets: Sequence[bytes]) -> None:
        there = [offset for offset in offsets if offset in self._hand]
        await self._acks.confirm([(self._hand[o].reply, b"+ACK") for o in there], _CONFIRM)
        for offset in there:
            self._let_go(offset)

    async def _nack(self, nacks: Sequence[NackOffset]) -> None:
        # Out of hand before the server hears of it: a message may be here again before the server
        # has confirmed its nack, and would be taken for the delivery that is in hand.
        gone = [(self._let_go(nack.offset), nack.options.delay) for nack in nacks]
        await self._acks.confirm(
            [(reply, _format_nak(delay)) for reply, delay in gone if reply], _CONFIRM
        )

    def _let_go(self, offset: bytes) -> str | None:
        held = self._hand.pop(offset, None)
        if held is None:
            return None
        self._bytes -= held.size
        return held.reply

    async def _keep(self, ack_wait: float) -> None:
        """Tells the server again and again what is still in hand, in time for a second attempt."""
        client = self._link.client
        while True:
            await asyncio.sleep(ack_wait / 4)
            now = time.monotonic()
            with contextlib.suppress(nats.errors.Error):
                for held in list(self._hand.values()) if client.is_connected else ():
                    if now - held.since > ack_wait / 4:
                        held.since = now
                        await client.publish(held.reply, b"+WPI")


def _format_nak(delay: int | None) -> bytes:
    return b"-NAK " + json.dumps({"delay": delay * 1_000_000}).encode() if delay else b"-NAK"
