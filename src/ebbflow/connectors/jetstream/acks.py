"""Acknowledgements that have arrived: each is sent again until the server has confirmed it.

While a consumer has no leader, an acknowledgement that nobody waits for is lost without a sign.
So each is sent as a request, many at a time. A copy does no harm: an acknowledged message stays
acknowledged, and one that is nacked twice comes again at most once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Self

from nats.aio.msg import Msg

from ebbflow.errors import JetStreamUnavailable
from ebbflow.nats.client import SecuredClient

WINDOW = 500
# Long, for an answer may be late: a nack that is sent twice may have its message given twice.
_SILENCE = 2.0
_NOBODY = 0.1


@dataclass(slots=True)
class _Acknowledgement:
    """An answer to a delivery, and when it is to be sent again."""

    subject: str
    word: bytes
    due: float = 0.0


class Acks:
    """Sends acknowledgements, one call at a time, on the client's loop."""

    def __init__(self, client: SecuredClient) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._open: dict[str, _Acknowledgement] = {}
        self._confirmed = asyncio.Event()

    @classmethod
    async def open(cls, client: SecuredClient) -> Self:
        """Listens for confirmations, and returns the acknowledgements ready to send."""
        acks = cls(client)
        await client.subscribe(
            f"{acks._inbox}.*", cb=acks._receive, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        return acks

    async def confirm(self, answers: Sequence[tuple[str, bytes]], within: float) -> None:
        """Returns when the server has confirmed all; each is a reply subject and what to say.

        ``JetStreamUnavailable`` when that takes too long.
        """
        deadline = time.monotonic() + within
        for start in range(0, len(answers), WINDOW):
            part = [_Acknowledgement(*answer) for answer in answers[start : start + WINDOW]]
            self._open = {f"{self._inbox}.{next(self._numbers)}": answer for answer in part}
            self._confirmed.clear()
            async with self._client.unless_denied(part[0].subject):
                while self._open and time.monotonic() < deadline:
                    await self._send_due()
            if self._open:
                left = len(self._open) + len(answers) - start - len(part)
                problem = f"{left} are not confirmed, so their messages will come again"
                raise JetStreamUnavailable("acknowledgements", within, problem)

    async def _send_due(self) -> None:
        """Sends what is to be sent now, and waits a moment for the confirmation of all."""
        now = time.monotonic()
        # While there is no connection, copies would pile up in the client.
        due = [item for item in self._open.items() if item[1].due <= now]
        for inbox, answer in due if self._client.is_connected else ():
            answer.due = now + _SILENCE
            await self._client.publish(answer.subject, answer.word, reply=inbox)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._confirmed.wait(), _NOBODY)

    async def _receive(self, message: Msg) -> None:
        if "Status" not in (message.headers or {}):
            self._open.pop(message.subject, None)
        elif answer := self._open.get(message.subject):
            answer.due = time.monotonic() + _NOBODY  # nobody leads at the moment
        if not self._open:
            self._confirmed.set()
