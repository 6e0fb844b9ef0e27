"""What exists in a stream, asked of its leader.

Replicas may lag behind; the leader alone knows which messages there are. So whatever ends a range,
or says that nothing is left in it, comes from here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ebbflow.errors import AccessError, DataSourceError, Unavailable
from ebbflow.jetstream import streams
from ebbflow.jetstream.secured import SecuredClient
from ebbflow.jetstream.streams import ApiError

PATIENCE = streams.PATIENCE
"""Seconds without an answer, or without progress, after which a call gives up."""

PERMISSIONS = "Give it those in docs/guides/spark-data-source.md."
_NO_MESSAGE = 10037
# A consumer may be put on a server that was lost just now; another attempt chooses again.
_CREATE, _ATTEMPTS = 1.5, 20
_NANOS = 1_000_000_000


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

    async def facts(self) -> Facts:
        """The stream as it is now."""
        found = await self._ask(f"STREAM.INFO.{self.stream}")
        if found["config"]["retention"] == "workqueue":
            raise DataSourceError(
                f"{self.stream} is a work queue: its messages are for its own consumer only.",
                "Read a stream that keeps messages by limits; it may have this one as a source.",
            )
        state = found["state"]
        # A stream that never held a message says 0.
        return Facts(self.stream, found["created"], state["first_seq"] or 1, state["last_seq"])

    async def next_after(self, sequence: int) -> int | None:
        """The sequence of the next message that matches, if there is one."""
        return await self._message({"seq": sequence + 1, "next_by_subj": self.subject or ">"})

    async def first_since(self, moment: datetime) -> int | None:
        """The sequence of the first message that was stored then or later, on any subject."""
        return await self._message({"start_time": moment.isoformat(), "next_by_subj": ">"})

    async def _message(self, request: dict[str, Any]) -> int | None:
        found = await self._ask(f"STREAM.MSG.GET.{self.stream}", request)
        return int(found["message"]["seq"]) if found else None

    async def count_after(self, sequence: int) -> int:
        """How many messages match behind a sequence. This one a replica may answer."""
        consumer, created = await self.consume_after(sequence)
        await self.forget(consumer)
        return int(created["num_pending"])

    async def consume_after(self, sequence: int) -> tuple[str, dict[str, Any]]:
        """Make a light consumer without any state worth saving: its name, and its facts."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await self._consume(sequence)
            except Unavailable:
                continue
        return await self._consume(sequence)

    async def _consume(self, sequence: int) -> tuple[str, dict[str, Any]]:
        name = f"s{secrets.token_hex(8)}"
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence + 1,
            "ack_policy": "none",
            "filter_subject": self.subject or "",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(PATIENCE) * _NANOS,
        }
        request = {"stream_name": self.stream, "config": config, "action": "create"}
        return name, await self._ask(f"CONSUMER.CREATE.{self.stream}.{name}", request, _CREATE)

    async def forget(self, consumer: str) -> None:
        """Let the server delete a consumer, without waiting: it would go by itself."""
        await self._client.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{consumer}", b"")

    async def _ask(
        self, call: str, request: dict[str, Any] | None = None, patience: float | None = None
    ) -> dict[str, Any]:
        """The answer; an empty one when there is no such message."""
        try:
            return await streams.api(self._client, call, request, patience or PATIENCE)
        except AccessError as error:
            raise DataSourceError(error.what, PERMISSIONS) from None
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return {}
            if error.code == streams.NOT_FOUND:
                step = "Make it, or correct the option stream."
                raise DataSourceError(f"There is no stream {self.stream}.", step) from None
            raise DataSourceError(f"NATS refused {call}: {error}.") from None
