"""Publishing to JetStream from any program: ``Publisher``, and ``AsyncPublisher`` for asyncio.

    with Publisher("nats://localhost:4222") as publisher:
        ack = publisher.publish("orders.new", b"...")

A call returns an ``Ack`` once its message is stored. Every attempt has the same message id, so a
message that is sent again is stored once. A call ends by its deadline, or at once when it is
cancelled or its publisher is closed. This module also exports the errors.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from ebbflow.domain.errors import (
    BufferFull,
    NoStreamResponse,
    PermanentPublishError,
    PublishError,
    PublishTimeout,
)
from ebbflow.domain.message import Ack
from ebbflow.nats.bulk import WINDOW, Bulk, Handover, check_window
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import LoopThread, connect
from ebbflow.nats.login import INBOX, Addresses, Login
from ebbflow.nats.publish import OptionNames, Outgoing, PublishOptions, Sending, check_subject

__all__ = [
    "Ack",
    "AsyncPublisher",
    "BufferFull",
    "Login",
    "NoStreamResponse",
    "Outgoing",
    "PermanentPublishError",
    "PublishError",
    "PublishOptions",
    "PublishTimeout",
    "Publisher",
]

T = TypeVar("T")

Sendable = Outgoing | tuple[str, bytes]
"""A message, or only its subject and its data."""


class AsyncPublisher:
    """Publishes on the event loop it was entered on. The options are the defaults of its calls.

    ``url`` is one NATS URL, several separated by commas, or a list of them. ``login`` holds the
    credentials, if they are not in the URL. ``inbox_prefix`` is the prefix of the subjects on which
    replies arrive, for a login that may not subscribe to other subjects.
    """

    def __init__(
        self,
        url: str | Iterable[str],
        *,
        login: Login | None = None,
        inbox_prefix: str = INBOX,
        **options: Unpack[OptionNames],
    ) -> None:
        check_subject(inbox_prefix, "inbox_prefix")
        self.addresses = replace(Addresses.of(url, login), inbox=inbox_prefix)
        self.options = PublishOptions(**options)
        self._client: SecuredClient | None = None
        self._waiting: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._client = await connect(self.addresses, "ebbflow publisher")
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        for task in self._waiting:
            task.cancel()
        if client is not None:
            await client.close()

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        msg_id: str | None = None,
        **options: Unpack[OptionNames],
    ) -> Ack:
        """Publishes one message and returns when it is stored; raises a ``PublishError`` otherwise.

        ``options`` are those of ``PublishOptions``. A message that can never be sent raises
        ``MessageTooLarge`` or ``ValueError``.
        """
        message = Outgoing(subject, data, headers, msg_id)
        sending = self._prepare(message, self.options.with_changes(options))
        return await self._wait_for(sending.confirm(), partial(sending.explain, PublishError))

    async def publish_many(
        self,
        messages: AsyncIterable[Sendable] | Iterable[Sendable],
        *,
        window: int = WINDOW,
        **options: Unpack[OptionNames],
    ) -> list[Ack]:
        """Publishes messages with at most ``window`` in flight; returns their acks in order.

        They are stored in the same order, except for messages that are sent again. After the first
        ``PublishError`` no more are sent. It is raised once the outcome of every sent message is
        known; its ``acks`` tell which are stored. ``options`` apply to each message.
        """
        check_window(window)
        chosen = self.options.with_changes(options)
        bulk = Bulk(self._require_client(), window)
        publishing = bulk.publish(lambda m: self._prepare(Outgoing.of(m), chosen), messages)
        return await self._wait_for(publishing, bulk.give_up)

    def _prepare(self, message: Outgoing, options: PublishOptions) -> Sending:
        client, headers = self._require_client(), message.headers or {}
        bounds, room = options.to_retry(), options.room
        return Sending(client, message.subject, message.data, headers, bounds, room=room)

    def _require_client(self) -> SecuredClient:
        if self._client is None:
            raise RuntimeError(f"the publisher is not open; use it inside: {self._entering}")
        return self._client

    async def _wait_for(
        self, publishing: Coroutine[Any, Any, T], give_up: Callable[[str], PublishError]
    ) -> T:
        """Returns the result of a call; raises ``give_up``'s error if the publisher is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await publishing
        except asyncio.CancelledError:
            # Closing cancels waiting calls. A task that was also cancelled from elsewhere must
            # still see that cancellation.
            error = give_up("the publisher was closed")
            if self._client is not None or task.uncancel() > 0:
                raise
            raise error from None
        finally:
            self._waiting.discard(task)

    _entering = "async with AsyncPublisher(...) as publisher"


class Publisher:
    """Publishes from ordinary blocking code, from any number of threads.

    Its connection runs on its own thread and does not survive a fork: open a publisher in each
    process. The arguments are those of ``AsyncPublisher``.
    """

    def __init__(
        self,
        url: str | Iterable[str],
        *,
        login: Login | None = None,
        inbox_prefix: str = INBOX,
        **options: Unpack[OptionNames],
    ) -> None:
        self._inner = AsyncPublisher(url, login=login, inbox_prefix=inbox_prefix, **options)
        self._inner._entering = "with Publisher(...) as publisher"
        self._thread: LoopThread | None = None

    @property
    def options(self) -> PublishOptions:
        """The defaults of its calls."""
        return self._inner.options

    def __enter__(self) -> Self:
        self._thread = LoopThread("ebbflow publisher")
        try:
            self._thread.run(self._inner.__aenter__())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._require_thread()
        self._thread = None
        try:
            thread.run(self._inner.__aexit__())
        finally:
            thread.stop()

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        msg_id: str | None = None,
        **options: Unpack[OptionNames],
    ) -> Ack:
        """Publishes one message and returns when it is stored; raises a ``PublishError`` otherwise.

        ``options`` are those of ``PublishOptions``. A message that can never be sent raises
        ``MessageTooLarge`` or ``ValueError``.
        """
        thread = self._require_thread()
        call = self._inner.publish(subject, data, headers=headers, msg_id=msg_id, **options)
        return thread.run(call)

    def publish_many(
        self,
        messages: Iterable[Sendable],
        *,
        window: int = WINDOW,
        **options: Unpack[OptionNames],
    ) -> list[Ack]:
        """Works like ``AsyncPublisher.publish_many``; iterates ``messages`` on this thread."""
        check_window(window)
        thread = self._require_thread()
        handover: Handover[Sendable] = Handover(thread.loop, window)
        future = thread.submit(self._inner.publish_many(handover, window=window, **options))
        future.add_done_callback(handover.stop)
        try:
            handover.fill(messages)
        except BaseException:
            future.cancel()
            raise
        return thread.wait(future)

    def _require_thread(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError(f"the publisher is not open; use it inside: {self._inner._entering}")
        if self._thread.process != os.getpid():
            raise RuntimeError("the publisher was opened in another process; open one in this one")
        return self._thread
