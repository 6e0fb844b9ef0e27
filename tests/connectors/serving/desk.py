"""A book on a real server, whose vertices are played by the test."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from ebbflow.connectors.listening.posts import Envelope
from ebbflow.connectors.serving.answer_stores import AnswerSource, BucketAnswers
from ebbflow.connectors.serving.book import RequestBook
from ebbflow.connectors.serving.store import ServedRequest
from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.answers import answer_headers, answer_key
from ebbflow.engine.position import Mark, Span
from ebbflow.nats.link import Link
from ebbflow.nats.publish import publish
from ebbflow.nats.stored import read_subject
from ebbflow.streams import catalogue, provision
from ebbflow.streams.answer_bucket import AnswerBucket
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.feed import FeedContext, StorePlan
from ebbflow.streams.names import Names
from ebbflow.streams.positions import PositionStore
from ebbflow.streams.publish_settlement import address
from ebbflow.streams.trail_rows import SentTo, TrailRow, publish_trail
from ebbflow.web.exchange import Refusal

TTL = 60_000
_numbers = count()


def at(number: int) -> datetime:
    """A time; a higher number is a later one."""
    return datetime.fromtimestamp(1_800_000_000 + number, UTC)


def row(id: str, outcome: str = "done", *sent: str, request: str | None = None, **facts: Any):
    """A row of the trail; ``sent`` are pairs such as ``out:r/1``."""
    outputs = tuple(SentTo(*text.split(":")) for text in sent)
    request = request or id.partition("/")[0]
    return TrailRow(request, id, facts.pop("at", at(0)), outcome=outcome, sent=outputs, **facts)


class Desk:
    """The streams of a pipeline ``in`` to ``out``, and its book, which may be opened again."""

    def __init__(self, link: Link, folder: Path, names: Names) -> None:
        self.link = link
        self.names = names
        self.bucket = f"{names.pipeline}-answers"
        self.answers: AnswerSource = BucketAnswers(AnswerBucket(link.client, self.bucket))
        store = StorePlan(self.bucket, TTL)
        self.context = FeedContext(
            names.pipeline, "in", 1, 1024, link, None, print, folder, False, store=store
        )
        for config in (
            catalogue.positions_config(names, answers=self.bucket),
            catalogue.dead_letter_config(names),
            catalogue.buffer_config(names, "in", 0, 100),
            catalogue.trail_config(names, TTL),
            bucket_config(self.bucket, TTL),
        ):
            self.run(provision.ensure(link.client, config))

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 20) -> Any:
        """Run it on the link's loop."""
        return self.link.run(work, timeout)

    # --- the book -------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[RequestBook]:
        """The book, closed at the end."""
        book = self.open()
        try:
            yield book
        finally:
            self.run(book.close())

    def open(self) -> RequestBook:
        """A book that is not closed, like that of a killed run."""
        answers = self.answers
        if isinstance(answers, BucketAnswers):
            answers = BucketAnswers(AnswerBucket(self.link.client, self.bucket))
        book = self.run(self._make(answers))
        self.run(book.open())
        return book

    async def _make(self, answers: AnswerSource) -> RequestBook:
        return RequestBook(self.link, self.context, answers, ack_wait=5.0)

    def submit(self, book: RequestBook, id: str | None, body: bytes = b"?") -> str:
        """Submit a request; without an id the server makes one. Returns the id."""
        envelope = make_envelope(id)
        self.run(book.submit(envelope, body))
        return envelope.id

    def refusal(self, book: RequestBook, id: str | None, body: bytes = b"?") -> Refusal:
        """The refusal of a request."""
        try:
            self.submit(book, id, body)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"{id} was accepted")

    def wait(self, book: RequestBook, id: str, seconds: float = 10) -> ServedRequest:
        """The request when it has ended."""
        return self.run(book.wait(id, seconds))

    # --- the vertices ---------------------------------------------------------------------------

    def report(self, vertex: str, *rows: TrailRow) -> None:
        """Have a vertex write rows to the trail."""
        for publication in publish_trail(rows, f"k{next(_numbers)}", vertex):
            subject, headers = address(self.names, publication)
            self._publish(subject, publication.payload, headers, publication.msg_id)

    def answer(self, id: str, *payloads: bytes, message: str | None = None) -> None:
        """Have the sink store answers of a message, by default the request's only one."""
        message = message or f"{id}/out"
        own = frames.fingerprint([message])
        for number, payload in enumerate(payloads):
            key = f"{answer_key(id)}.out.{own}.{number}"
            self._publish(f"$KV.{self.bucket}.{key}", payload, answer_headers(message))

    def serve(self, id: str, *payloads: bytes) -> None:
        """Have a request pass through both vertices."""
        self.report("in", row(id, "done", f"out:{id}"))
        self.answer(id, *payloads, message=id)
        self.report("out", row(id, "served", answers=len(payloads)))

    def settle(self, mark: Mark) -> None:
        """Have the source's task settle its buffer up to a mark."""

        async def write() -> None:
            store = PositionStore(self.link.client, self.names, "in", 0)
            position = await store.claim()
            await store.write(position.settled(Span(mark), Counts()))

        self.run(write())

    def waiting(self) -> list[list[dict[str, Any]]]:
        """The frames in the source's buffer, with id, value and headers of each row."""
        stream, subject = self.names.buffer("in", 0), self.names.buffer_subject("in", 0)
        messages = self.run(read_subject(self.link.client, stream, subject))
        batches = [frames.Rows(frames.decode(message.payload)) for message in messages]
        return [
            [{n: b.column(n)[i] for n in ("id", "value", "headers")} for i in range(len(b))]
            for b in batches
        ]

    def _publish(
        self, subject: str, payload: bytes, headers: dict[str, str], msg_id: str | None = None
    ) -> None:
        self.run(publish(self.link.client, subject, payload, headers, msg_id=msg_id))


def make_envelope(id: str | None) -> Envelope:
    """What a caller sends besides the body."""
    named = [(b"x-numaflow-id", id.encode())] if id else []
    return Envelope(
        [*named, (b"content-length", b"1"), (b"x-own", b"1")], now=1_800_000_000_000_000
    )


def payloads(request: ServedRequest | None) -> Sequence[bytes]:
    """The payloads with which a request was answered."""
    assert request is not None
    return [answer.payload for answer in request.answers]
