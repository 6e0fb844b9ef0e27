"""The stores of a pipeline that serves requests: their answers, and the trail of every message.

Answers are stored under the id of their request. The built-in store is a NATS key-value bucket;
sinks write to it as part of settling, one entry for each message that answered, so that a replay
after a crash writes the same entry again. The user's own store is a class with ``put`` and ``get``.

The trail has the outcome of every message, frame by frame, in order. ``read_trail_after`` reads the
frames that there are and ends; ``follow_trail`` continues with new ones. Both begin after a
sequence of the stream. The outputs and answers that a row mentions are stored before the row is
(``streams.trail_rows``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Protocol

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.engine.answers import Answer, key_pattern, read_answer
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.pull import EPOCH, Deliveries, Follower, follow
from ebbflow.nats.stored import read_after, read_last
from ebbflow.streams.catalogue import ANSWERS_BUCKET
from ebbflow.streams.names import Names, bucket_stream
from ebbflow.streams.provision import explain_missing
from ebbflow.streams.trail_rows import TrailRow, read_trail


class ServingStore(Protocol):
    """Your own store. Made once per worker; may have open and close."""

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        """Adds answers to a request. At least once: the same may be added again after a crash.

        If it raises, the message that answered is redelivered, with back-off.
        """

    def get(self, id: str) -> list[bytes]:
        """Returns all answers to a request so far; none for one that is not known."""


class AnswerBucket:
    """The answers in a bucket, for reading. Used on the client's loop."""

    def __init__(self, client: SecuredClient, bucket: str) -> None:
        self._client = client
        self.stream = bucket_stream(bucket)
        self._prefix = f"$KV.{bucket}."

    async def get(self, request: str) -> list[Answer]:
        """Returns all answers to a request so far, in their order; none if there is no bucket."""
        answers = (
            read_answer(
                self._key_of(entry.subject),
                entry.headers,
                entry.payload,
                entry.seq,
                datetime.fromisoformat(entry.stored),
            )
            for entry in await read_last(self._client, self.stream, self._subject(request))
        )
        return sorted(filter(None, answers), key=attrgetter("order"))

    async def read_all(self) -> AsyncGenerator[list[Answer], None]:
        """Yields the answers that are stored now, oldest first, many at a time."""
        async for batch in read_after(self._client, self.stream, self._subject(), 0):
            yield self._read(batch)

    async def follow(
        self,
        take: Callable[[Sequence[Answer]], None],
        fail: Callable[[EbbflowError], None],
        request: str | None = None,
    ) -> Follower:
        """Delivers answers as they are stored, until the returned follower is closed.

        With ``request`` these are all answers to that request, otherwise new answers to any. An
        answer that is written again, as after a crash, is delivered again. ``take`` gets answers
        that have arrived together; ``fail`` gets the error after which no more are delivered.
        """
        now = await api.read_info(self._client, self.stream) if request is None else {}
        return await follow(
            self._client,
            self.stream,
            self._subject(request),
            int(now.get("last_seq", 0)),
            decode=self._read,
            take=take,
            fail=fail,
        )

    def _read(self, deliveries: Deliveries) -> list[Answer]:
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

    def _subject(self, request: str | None = None) -> str:
        """Returns the subject of all answers, or of the answers to one request."""
        return self._prefix + key_pattern(request)

    def _key_of(self, subject: str) -> str:
        return subject.removeprefix(self._prefix)


async def find_bucket(link: Link, pipeline: str) -> str:
    """Returns the bucket that the last run of the pipeline recorded with its positions."""
    return bucket_in(await read_run_metadata(link, pipeline), pipeline)


def bucket_in(metadata: dict[str, str], pipeline: str) -> str:
    """Returns the bucket that the metadata name; ``SetupError`` if there are no answers."""
    bucket = metadata.get(ANSWERS_BUCKET)
    if bucket is None:
        raise SetupError(
            f"Pipeline {pipeline!r} keeps no answers.", "Give it servingStore: {nats: {}}."
        )
    return bucket


async def read_run_metadata(link: Link, pipeline: str) -> dict[str, str]:
    """Returns the metadata that the last run of the pipeline stored with its positions."""
    async with explain_missing(link.client, pipeline):
        facts = await api.call(link.client, f"STREAM.INFO.{Names(pipeline).positions_stream}")
    return facts["config"].get("metadata") or {}


@dataclass(frozen=True, slots=True)
class TrailFrame:
    """The trail rows of one chunk of a vertex, and their sequence in the stream."""

    seq: int
    vertex: str
    rows: list[TrailRow]


def _to_frames(deliveries: Deliveries) -> list[TrailFrame]:
    parcel = deliveries.parcel
    return [
        TrailFrame(
            seq,
            parcel.subjects[row].rpartition(b".")[2].decode(),  # names of vertices have no dots
            read_trail(parcel.payload(row)),
        )
        for row, seq in enumerate(deliveries.seqs)
    ]


async def read_trail_after(
    client: SecuredClient, names: Names, after: int = 0, vertex: str = "*"
) -> AsyncIterator[list[TrailFrame]]:
    """Yields the frames after a sequence that are stored now, oldest first, many at a time.

    ``JetStreamUnavailable`` when the server stops answering before the end.
    """
    async for batch in read_after(client, names.trail, names.trail_subject(vertex), after):
        yield _to_frames(batch)


async def follow_trail(
    client: SecuredClient,
    names: Names,
    after: int,
    take: Callable[[Sequence[TrailFrame]], None],
    fail: Callable[[EbbflowError], None],
) -> Follower:
    """Delivers every frame after a sequence, each once and in order; see ``follow``."""
    subject = names.trail_subject()
    return await follow(
        client, names.trail, subject, after, decode=_to_frames, take=take, fail=fail
    )
