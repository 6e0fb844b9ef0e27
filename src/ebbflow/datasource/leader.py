"""The leader of a stream, asked what exists in it.

Replicas may lag behind; the leader alone knows which messages there are. So whatever ends a range,
or says that nothing is left in it, comes from here.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ebbflow.domain.errors import AccessError, DataSourceError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.api import ApiError
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import LightConsumer
from ebbflow.nats.stored import read_one

T = TypeVar("T")

PATIENCE = api.PATIENCE
"""Seconds without an answer, or without progress, after which a call gives up."""

PERMISSIONS = "Give it those in docs/guides/spark-data-source.md."
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """A stream at one moment: when it was made, its first and its last message.

    ``first`` is the sequence behind ``last`` while the stream is empty.
    """

    stream: str
    created: str
    first: int
    last: int


class Leader:
    """Asks about one stream, and the messages on one subject in it."""

    def __init__(self, client: SecuredClient, stream: str, subject: str | None = None) -> None:
        self.stream = stream
        self.subject = subject
        self._client = client

    async def read_facts(self) -> Facts:
        """Returns the stream as it is now."""
        info = await self._translate_errors(
            api.call(self._client, f"STREAM.INFO.{self.stream}", patience=PATIENCE)
        )
        if info["config"]["retention"] == "workqueue":
            raise DataSourceError(
                f"{self.stream} is a work queue: its messages are for its own consumer only.",
                "Read a stream that keeps messages by limits; it may have this one as a source.",
            )
        state = info["state"]
        # A stream that never held a message says 0.
        return Facts(self.stream, info["created"], state["first_seq"] or 1, state["last_seq"])

    async def find_next_after(self, sequence: int) -> int | None:
        """Returns the sequence of the next message that matches, if there is one."""
        return await self._find_sequence(seq=sequence + 1, next_by_subj=self.subject or ">")

    async def find_first_since(self, moment: datetime) -> int | None:
        """Returns the sequence of the first message stored then or later, on any subject."""
        return await self._find_sequence(start_time=moment.isoformat(), next_by_subj=">")

    async def _find_sequence(self, **which: Any) -> int | None:
        message = await self._translate_errors(read_one(self._client, self.stream, **which))
        return message.seq if message else None

    async def count_after(self, sequence: int) -> int:
        """Counts the messages that match behind a sequence. A replica may answer this."""
        consumer, created = await self.consume_after(sequence)
        await consumer.forget(self._client)
        return int(created["num_pending"])

    async def consume_after(self, sequence: int) -> tuple[LightConsumer, dict[str, Any]]:
        """Makes a light consumer, and returns it with its facts."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._consume(sequence)
            except JetStreamUnavailable:
                continue
        return await self._consume(sequence)

    async def _consume(self, sequence: int) -> tuple[LightConsumer, dict[str, Any]]:
        consumer = LightConsumer(self.stream)
        making = consumer.make(self._client, self.subject or "", sequence, idle=PATIENCE)
        return consumer, await self._translate_errors(making)

    async def _translate_errors(self, answer: Awaitable[T]) -> T:
        """Returns what the server answers; puts what it refuses in words for Spark's users."""
        try:
            return await answer
        except AccessError as error:
            raise DataSourceError(error.what, PERMISSIONS) from None
        except ApiError as error:
            if error.code == api.NOT_FOUND:
                step = "Make it, or correct the option stream."
                raise DataSourceError(f"There is no stream {self.stream}.", step) from None
            raise DataSourceError(f"NATS refused to read {self.stream}: {error}.") from None
