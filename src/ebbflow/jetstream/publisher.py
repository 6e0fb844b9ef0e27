"""Publishing to JetStream until it is confirmed.

ADR-22 retries when nobody answers a subject ("no responders"). That alone does not survive a
killed leader, where the request in flight meets silence, so each attempt also has a timeout of its
own inside the total deadline. Every attempt carries the same message id: a copy that did arrive is
answered with ``duplicate`` and counts once. A full stream is not a failure but back-pressure.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from ebbflow.errors import (
    BufferFull,
    NoStreamResponse,
    PermanentPublishError,
    PublishError,
    PublishTimeout,
)

MSG_ID = "Nats-Msg-Id"
_FULL = 10077
# Leaderless, out of resources, or asked to slow down: over by itself after a while.
_TEMPORARY = frozenset({10008, 10023, 10163, 10167})


@dataclass(frozen=True, slots=True)
class Retry:
    """How long and how often to try. ``attempts`` of -1 goes on until the deadline.

    ``until_room`` waits for a full stream as well, within the same deadline.
    """

    wait: float = 0.25
    attempts: int = 2
    ack_wait: float = 5.0
    attempt_timeout: float = 1.0
    until_room: bool = False


BUFFER = Retry(wait=0.05, attempts=-1, ack_wait=float("inf"), until_room=True)
"""For vertices: never gives up; a stopping task cancels the wait."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The server's word that a message is stored."""

    stream: str
    seq: int
    duplicate: bool
    attempts: int


class _Attempts:
    """What has been tried for one message so far."""

    def __init__(self, subject: str, retry: Retry, clock: Callable[[], float]) -> None:
        self.subject = subject
        self.retry = retry
        self.count = 0
        self._clock = clock
        self._start = clock()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    @property
    def remaining(self) -> float:
        return self.retry.ack_wait - self.elapsed

    @property
    def timeout(self) -> float:
        return max(0.001, min(self.retry.attempt_timeout, self.remaining))

    def error(self, kind: type[PublishError], detail: str = "") -> PublishError:
        return kind(self.subject, self.count, self.elapsed, detail)

    async def pause(self, last: PublishError, counted: bool) -> None:
        """Wait before the next attempt, or raise when there is none."""
        if counted and 0 <= self.retry.attempts < self.count:
            raise last
        if self.remaining <= self.retry.wait:
            await asyncio.sleep(max(0.0, self.remaining))
            raise self.error(PublishTimeout, last.problem) from last
        await asyncio.sleep(self.retry.wait)


async def publish(
    client: Client,
    subject: str,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    msg_id: str | None = None,
    retry: Retry | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Ack:
    """Publish one message and return when the server has confirmed it.

    Raises one of the ``PublishError`` family when it is not confirmed. A call that is cancelled
    stops waiting at once; the message may or may not have arrived.
    """
    tries = _Attempts(subject, retry or Retry(), clock)
    sent = dict(headers or {})
    if msg_id is not None:
        sent[MSG_ID] = msg_id
    while True:
        tries.count += 1
        try:
            answer = await client.request(subject, payload, tries.timeout, headers=sent or None)
        except nats.errors.NoRespondersError:
            await tries.pause(tries.error(NoStreamResponse), counted=True)
        except (TimeoutError, nats.errors.TimeoutError, nats.errors.OutboundBufferLimitError):
            if tries.remaining <= 0:
                raise tries.error(PublishTimeout, "the server did not answer") from None
        except nats.errors.MaxPayloadError as error:
            raise tries.error(PermanentPublishError, str(error)) from error
        else:
            ack = await _accepted(tries, json.loads(answer.data))
            if ack is not None:
                return ack


async def _accepted(tries: _Attempts, answer: dict[str, Any]) -> Ack | None:
    error = answer.get("error")
    if error is None:
        duplicate = bool(answer.get("duplicate"))
        return Ack(answer["stream"], answer["seq"], duplicate, tries.count)
    code, text = error.get("err_code", 0), error.get("description", "")
    if code == _FULL:
        full = tries.error(BufferFull, text)
        if not tries.retry.until_room:
            raise full
        await tries.pause(full, counted=False)
    elif code in _TEMPORARY:
        await tries.pause(tries.error(NoStreamResponse, text), counted=True)
    else:
        raise PermanentPublishError(tries.subject, tries.count, tries.elapsed, text, code)
    return None
