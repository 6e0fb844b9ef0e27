"""Following one subject of a stream in order, from a sequence on, as fast as it can be taken.

If the consumer, its server or the connection goes away, or a message is missing in between, the
follower makes a new consumer right behind the last message that it has handed on. So messages come
exactly once and in order. ``follow`` is for whoever wants them decoded, and has nothing to hold up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import nats.errors

from ebbflow.domain.errors import EbbflowError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import (
    NANOS,
    Deliveries,
    LightConsumer,
    PullConsumer,
    PullRequest,
    PullStatus,
    Take,
    Word,
)

T = TypeVar("T")

MOST_MESSAGES = 1024
"""The most messages that a follower asks for ahead."""

# How much is asked for ahead: more messages if they are small, as a slow trickle has left them, so
# that there are enough rows for a full call of user code.
_WINDOW, _WINDOW_BYTES = 64, 16 * 1024 * 1024
_HEARTBEAT = 0.5
_EXPIRES = 20.0
# So many heartbeats in a row have to be missing before a consumer is given up.
_MISSED = 3
_IDLE_CONSUMER = 15
_PAUSE = 0.1
_LOOK_EVERY = 1.0


async def follow(
    client: SecuredClient,
    stream: str,
    subject: str,
    after: int,
    *,
    decode: Callable[[Deliveries], Sequence[T]],
    take: Callable[[Sequence[T]], None],
    fail: Callable[[EbbflowError], None],
    waiting: Callable[[], int] = lambda: 0,
) -> Follower:
    """Hands on what is after a sequence, and then what comes, until what is returned is closed.

    ``take`` gets what ``decode`` makes of the messages that have arrived together, on the client's
    loop; ``fail`` gets the error after which nothing more comes. ``ApiError`` when the server
    refuses.
    """
    follower = Follower(
        client,
        stream,
        subject,
        after,
        take=lambda deliveries: take(decode(deliveries)),
        fail=fail,
        waiting=waiting,
    )
    await follower.open()
    return follower


class Follower:
    """Hands on what is behind ``seen``. Everything happens on the client's loop.

    ``take`` gets the messages in batches, ``fail`` the error after which nothing more comes.
    ``waiting`` says how many messages the taker has not worked on yet: the follower asks for no
    more than fit in its window beside them.
    """

    def __init__(
        self,
        client: SecuredClient,
        stream: str,
        subject: str,
        seen: int,
        *,
        take: Take,
        fail: Callable[[EbbflowError], None],
        waiting: Callable[[], int],
    ) -> None:
        self.consumer = LightConsumer(stream)
        self._client = client
        self._stream = stream
        self._subject = subject
        self.seen = seen
        self._take = take
        self._fail = fail
        self._waiting = waiting
        self._pull: PullConsumer | None = None
        self._asked = 0
        self._size = _WINDOW_BYTES / _WINDOW
        self._is_renewing = False
        self._moved = asyncio.Event()
        self._unwatch: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begins; ``ApiError`` when the server refuses the first consumer."""
        await self._renew_until_done(unless=(api.ApiError,))
        self._start(self._watch_silence())

    async def close(self) -> None:
        """Ends; the consumer is deleted, or forgotten by the server after a while."""
        for task in self._tasks:
            task.cancel()
        self._unwatch()
        await self._drop_consumer()

    async def catch_up(self) -> None:
        """Returns when everything that was there at the call has been handed on.

        For a follower of all subjects of its stream: it does not see what others are told.
        """
        last = await self._read_last()
        while self.seen < last:
            self._moved.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._moved.wait()
            except TimeoutError:
                last = min(last, await self._read_last())  # what was there may have become too old

    async def _read_last(self) -> int:
        state = await api.read_info(self._client, self._stream)
        return int(state["last_seq"]) if state["messages"] else 0

    def ask(self) -> None:
        """Keeps the server supplied with requests, within the window."""
        window = int(min(MOST_MESSAGES, max(_WINDOW, _WINDOW_BYTES / self._size)))
        room = window - self._waiting() - self._asked
        if room < window // 2 or self._is_renewing or self._pull is None:
            return
        # Counted before it is sent: another call must not ask for the same room again.
        self._asked += room
        self._start(self._request(self._pull, room))

    async def _request(self, pull: PullConsumer, room: int) -> None:
        expires, heartbeat = int(_EXPIRES * NANOS), int(_HEARTBEAT * NANOS)
        # A request that does not get away meets with silence, which is watched for.
        with contextlib.suppress(nats.errors.Error):
            await pull.request(PullRequest(batch=room, expires=expires, idle_heartbeat=heartbeat))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what arrives -----------------------------------------------------------------------------

    def _hand_on(self, deliveries: Deliveries) -> None:
        self._asked = max(0, self._asked - len(deliveries))
        new = deliveries.after(self.seen)
        if new:
            # Only what was handed on counts as seen: a new consumer begins right behind it.
            self._take(new)
            self.seen = new.seqs[-1]
            self._moved.set()
            for size in new.parcel.sizes():
                self._size += (size - self._size) / 16
        self.ask()

    def _hear(self, status: PullStatus) -> None:
        if status.word is Word.HEARTBEAT:
            if self._pull is not None and status.delivered >= self._pull.next_delivery:
                self._restart()  # what it has delivered did not all arrive
        elif status.word is Word.EXPIRED and status.left:
            self._asked = max(0, self._asked - status.left)
            self.ask()
        else:
            self._restart()

    async def _watch_silence(self) -> None:
        """A consumer that neither delivers nor beats is gone, whatever the reason."""
        heard = missed = 0
        client = self._client
        connections = client.stats["reconnects"]
        while True:
            await asyncio.sleep(_HEARTBEAT)
            # By looks and not by the clock: a process that was halted finds its arrivals first.
            now = self._pull.heard if self._pull is not None else 0
            missed, heard = missed + 1 if self._asked and now == heard else 0, now
            if client.stats["reconnects"] != connections:
                # The consumer may be well, but what was asked for before may have been dropped.
                connections, self._asked = client.stats["reconnects"], 0
                self.ask()
            elif missed >= _MISSED and client.is_connected:
                missed = 0
                self._restart()

    # --- another consumer -------------------------------------------------------------------------

    def _restart(self) -> None:
        if not self._is_renewing:
            # Not from within the subscription's own callback, which ends with the subscription.
            self._is_renewing = True
            self._start(self._renew_or_fail())

    async def _renew_or_fail(self) -> None:
        try:
            await asyncio.sleep(_PAUSE)  # what ended the last consumer may end the next one at once
            await self._renew_until_done()
        except EbbflowError as error:
            self._fail(error)

    async def _renew_until_done(self, unless: tuple[type[Exception], ...] = ()) -> None:
        self._is_renewing = True
        while True:
            try:
                await self._renew()
                break
            except unless:
                raise
            except (JetStreamUnavailable, api.ApiError, nats.errors.Error, OSError):
                await asyncio.sleep(_PAUSE)
        self._is_renewing = False
        self.ask()

    async def _renew(self) -> None:
        """Makes a new consumer that continues behind the last message handed on."""
        await self._drop_consumer()
        client = self._client
        self.consumer, self._asked = LightConsumer(self._stream), 0
        name = self.consumer.name
        pull = PullConsumer(client, self._stream, name, self._hand_on, self._hear)
        self._unwatch()
        self._unwatch = client.when_denied(pull.subject, self._fail)
        # Listening comes first, so that nothing is delivered that nobody hears.
        await pull.open()
        self._pull = pull
        await self.consumer.make(client, self._subject, self.seen, _IDLE_CONSUMER)

    async def _drop_consumer(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None:
            await pull.close()
            await self.consumer.forget(self._client)
