"""The serving store: answers under the id of the request that they belong to.

The built-in store is a NATS key-value bucket; sinks write to it as part of settling, one entry for
each message that answered, so that a replay after a crash writes the same entry again. A store of
the user's own is a class with ``put`` and ``get``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, Protocol

from ebbflow.core.answers import EVERY_KEY, Answer, answer_key, read_answer
from ebbflow.errors import EbbflowError
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.follow import Follower
from ebbflow.nats.pull import EPOCH, Deliveries
from ebbflow.nats.stored import read_last


class ServingStore(Protocol):
    """A store of the user's own. Made once per worker; may have open and close."""

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request. At least once: the same may come again after a crash.

        What it raises redelivers the message that answered, with back-off.
        """

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for one that is not known."""


def bucket_config(bucket: str, ttl_ms: int, replicas: int = 1) -> dict[str, Any]:
    """Describes the stream behind the bucket, as any NATS tool knows buckets."""
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_age": ttl_ms * 1_000_000,
        # No message id may be remembered for longer than the message itself is kept.
        "duplicate_window": min(120_000, ttl_ms) * 1_000_000,
        "discard": "new",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


class AnswerBucket:
    """The answers in a bucket, for reading. Used on the client's loop."""

    def __init__(self, client: SecuredClient, bucket: str) -> None:
        self._client = client
        self.stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def get(self, request: str) -> list[Answer]:
        """Returns all answers to a request so far, in their order; none if there is no bucket."""
        subject = f"{self._prefix}{answer_key(request)}.*.*.*"
        entries = await read_last(self._client, self.stream, subject)
        answers = (
            read_answer(self._key_of(entry.subject), entry.headers, entry.payload, entry.seq)
            for entry in entries
        )
        return sorted(filter(None, answers), key=attrgetter("order"))

    async def follow(
        self,
        take: Callable[[Sequence[Answer]], None],
        fail: Callable[[EbbflowError], None],
        after: int | None = None,
    ) -> Follower:
        """Hands on answers as they are stored, until what is returned is closed.

        They come in the order of storing, behind the sequence ``after``, or else from now on. An
        answer that is written again, as after a crash, comes again. ``take`` gets those that have
        arrived together; ``fail`` the error after which none come.
        """
        if after is None:
            after = (await api.read_info(self._client, self.stream))["last_seq"]

        def hand_on(deliveries: Deliveries) -> None:
            take(self.read(deliveries))

        subject = self._prefix + EVERY_KEY
        follower = Follower(
            self._client, self.stream, subject, after, take=hand_on, fail=fail, waiting=lambda: 0
        )
        await follower.open()
        return follower

    def read(self, deliveries: Deliveries) -> list[Answer]:
        """Returns the answers that a consumer has delivered."""
        parcel = deliveries.parcel
        answers = (
            read_answer(
                self._key_of(subject.decode()),
                parcel.headers(row) or {},
                parcel.payload(row),
                deliveries.seqs[row],
                EPOCH + timedelta(microseconds=deliveries.nanos[row] // 1000),
            )
            for row, subject in enumerate(parcel.subjects)
        )
        return list(filter(None, answers))

    def _key_of(self, subject: str) -> str:
        return subject.removeprefix(self._prefix)
