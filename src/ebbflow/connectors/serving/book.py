"""The book of requests: which are open, how far they are, and how they end.

A request is accepted when its row is stored in the source's buffer. From then on the trail has the
outcomes of the request and of every message derived from it, and the book determines when it is
complete. The book can be rebuilt from stored data: after a crash it reads the rows that wait in the
buffer and the trail from its last checkpoint on, so no request is forgotten and none ends twice.

A source has one book at a time, because only one run at a time has the pipeline. So the book knows
every open request, and an id that is neither open nor written down is new.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any

import nats.errors

from ebbflow.connectors.listening.posts import (
    ID,
    ROW_BYTES,
    Envelope,
    PostStore,
    check_id,
    join_headers,
    rows_of_posts,
)
from ebbflow.connectors.serving.answer_stores import AnswerSource
from ebbflow.connectors.serving.requests import OpenRequest, ReceivedAnswers, RequestRegister
from ebbflow.connectors.serving.store import (
    Checkpoint,
    RequestRecords,
    ServedRequest,
    read_life,
    read_unsettled_requests,
    rewrite_rows,
)
from ebbflow.domain.errors import EbbflowError
from ebbflow.domain.message import make_request_id
from ebbflow.engine.answers import Answer
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.nats.pull import Follower
from ebbflow.streams.answer_bucket import follow_trail
from ebbflow.streams.feed import FeedContext
from ebbflow.streams.names import Names
from ebbflow.web.app import check_body_size
from ebbflow.web.exchange import Refusal, too_many, unavailable

MOST_OPEN = 100_000
"""The most requests that may be open; more are refused until some have ended."""

_CHECKPOINT_EVERY = 2.0
_CLOSE_WITHIN = 5.0
_UNCERTAIN = 503
STOPPING = "the run is stopping"


class RequestBook:
    """The requests of one serving source. Everything happens on the link's loop.

    ``ack_wait`` is how many seconds a caller waits for confirmation that its request is stored.
    """

    answers_within = 1.0
    """How many seconds to wait for stored answers that arrive after the trail's last row."""
    far_behind = 20_000
    """Requests this many trail frames back are rewritten, so that recovery takes only seconds."""

    def __init__(
        self, link: Link, context: FeedContext, answers: AnswerSource, ack_wait: float
    ) -> None:
        assert context.store is not None, "a source that serves has a store"
        self._link = link
        self._context = context
        self._names = Names(context.pipeline)
        self._answers = answers
        self._ack_wait = ack_wait
        # A user's own store does not notify anyone of new answers.
        self._is_followed = context.store.code is None
        self._records = RequestRecords(link.client, context.store.bucket, context.pipeline)
        self._register = RequestRegister(context.vertex, self._records)
        self._awaited: dict[str, OpenRequest] = {}
        self._failure: str | None = "requests of earlier runs are being read"
        self._trail: Follower | None = None
        self._checkpoints: asyncio.Task[None] | None = None
        self._written: Checkpoint | None = None

    @property
    def failure(self) -> str | None:
        """The reason why no request is accepted at the moment; ``None`` while they are."""
        return self._failure

    async def open(self) -> None:
        """Reads the open requests of earlier runs, and follows the outcomes of requests."""
        link, vertex = self._link, self._context.vertex
        self._store = PostStore(replace(self._context, link=link).buffers, None, self._ack_wait)
        await self._answers.follow(self._take_answers, self._fail)
        self._life = await read_life(link.client, self._names.trail)
        checkpoint = await self._records.read_checkpoint(vertex, self._life)
        # Before the trail is read to its end: a row that leaves the buffer is in the trail.
        waiting = await read_unsettled_requests(link, self._names, vertex, self._context.partitions)
        self._register.begin_recovery(checkpoint, waiting)
        trail = self._trail = await follow_trail(
            link.client, self._names, checkpoint.begin, self._register.take, self._fail
        )
        await trail.catch_up()
        await self._register.end_recovery(waiting)
        self._checkpoints = asyncio.get_running_loop().create_task(self._write_checkpoints(trail))
        # Arrow imports pandas when it makes its first column, which must not delay a caller.
        rows_of_posts([])
        self._failure = None

    def _fail(self, error: EbbflowError) -> None:
        self._failure = str(error)

    async def _write_checkpoints(self, trail: Follower) -> None:
        while True:
            # If one fails, the next one replaces it.
            with contextlib.suppress(EbbflowError, api.ApiError, nats.errors.Error):
                # The first without delay, so that other processes know which vertex has a book.
                await self._write_checkpoint()
                await asyncio.sleep(_CHECKPOINT_EVERY)
                await self._rewrite_old_rows(trail)

    async def _write_checkpoint(self) -> None:
        checkpoint = replace(self._register.checkpoint, life=self._life)
        if checkpoint != self._written:
            await self._records.write_checkpoint(self._context.vertex, checkpoint)
            self._written = checkpoint

    async def _rewrite_old_rows(self, trail: Follower) -> None:
        """Writes the rows of open requests that are far back in the trail to its end again."""
        assert self._context.store is not None
        now = datetime.now(UTC)
        # Long before the trail drops these rows for their age.
        before = now - timedelta(milliseconds=self._context.store.ttl / 2)
        if behind := self._register.list_behind(self.far_behind, before):
            rows = (row for old in behind for row in old.rows)
            seq = await rewrite_rows(self._link.client, self._names, rows)
            await trail.catch_up()
            self._register.note_rewritten(behind, seq, now)

    async def close(self) -> None:
        """Writes a last checkpoint and stops following; open requests stay open.

        Waiting callers get an error that the run is stopping, and can fetch results from the next
        run.
        """
        self._failure = STOPPING
        for request in [*self._register.open.values(), *self._awaited.values()]:
            request.leave()
        if self._checkpoints is not None:
            self._checkpoints.cancel()
        if self._trail is not None:
            await self._trail.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN):
                await self._records.flush()
                if self._checkpoints is not None:
                    await self._write_checkpoint()
        await self._answers.close()

    # --- accepting ------------------------------------------------------------------------------

    async def submit(self, envelope: Envelope, body: bytes) -> None:
        """Accepts a request: it is durable when this returns.

        ``Refusal`` with 409 for a known id; with 429, 503 or 413 if it is not accepted.
        """
        await self._accept(self._make_request(envelope, body), envelope, body)

    async def ask(self, envelope: Envelope, body: bytes, seconds: float) -> ServedRequest:
        """Accepts a request and returns it when it has ended: ``submit`` and ``wait`` in one.

        This is cheaper, because answers are collected as they arrive. ``TimeoutError`` if it was
        accepted but has not ended in time; ``Refusal`` if it was not accepted.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        request = self._make_request(envelope, body)
        with self._awaiting(request, self._is_followed):
            await self._accept(request, envelope, body)
            async with asyncio.timeout_at(deadline):
                return await self._wait_for_end(request)

    def _make_request(self, envelope: Envelope, body: bytes) -> OpenRequest:
        """Returns a request that is not open yet; ``Refusal`` if it cannot be accepted."""
        check_body_size(len(body), self._context.largest)
        if self._failure is not None:
            raise unavailable(self._failure)
        if self._register.knows(envelope.id):
            raise _known(envelope.id)
        if len(self._register.open) >= MOST_OPEN:
            raise too_many(f"{MOST_OPEN:,} requests are open")
        accepted = datetime.fromtimestamp(envelope.seen / 1_000_000, UTC)
        return OpenRequest(self._context.vertex, envelope.id, accepted)

    async def _accept(self, request: OpenRequest, envelope: Envelope, body: bytes) -> None:
        # Before anything is awaited: of two requests with the same id one is refused.
        self._register.add(request)
        try:
            if envelope.has_own_id and await self._records.read(request.id) is not None:
                raise _known(request.id)
            submission = Submission(envelope, body, partial(self._settle, request))
            self._store.add(submission)
        except BaseException:
            self._register.remove(request)
            raise
        # From here on it may be stored, even if the caller stops waiting.
        refusal = await submission.outcome
        if refusal is not None:
            raise _in_doubt(request.id) if refusal.status == _UNCERTAIN else refusal

    def _settle(self, request: OpenRequest, refusal: Refusal | None) -> None:
        """Forgets a request that is not stored, so that its id is free again."""
        if refusal is not None and refusal.status != _UNCERTAIN:
            self._register.remove(request)

    # --- looking up -----------------------------------------------------------------------------

    async def status(self, id: str) -> ServedRequest | None:
        """Returns a request without its answers; ``None`` if it is unknown."""
        request = self._register.open.get(id)
        if request is not None:
            return request.describe()
        return self._register.get_ended(id) or await self._records.read(id)

    async def find(self, id: str) -> ServedRequest | None:
        """Returns a request, with its answers if it is completed; ``None`` if it is unknown."""
        request = await self.status(id)
        return request if request is None else await self._with_answers(request)

    async def _with_answers(self, request: ServedRequest) -> ServedRequest:
        if request.status != "completed" or not request.answer_count:
            return request
        try:
            answers = await self._answers.get(request.id)
        except Exception as error:  # anything that a user's own store may raise
            why = f"{type(error).__name__}: {error}"
            raise unavailable(
                f"request {request.id} is completed, but its answers cannot be read at the moment; "
                f"fetch it later: {why}"
            ) from error
        return replace(request, answers=tuple(answers))

    # --- waiting --------------------------------------------------------------------------------

    async def wait(self, id: str, seconds: float) -> ServedRequest:
        """Returns a request with its answers when it has ended; ``TimeoutError`` after ``seconds``.

        ``KeyError`` for an unknown id.
        """
        request = self._register.open.get(id)
        if request is None:
            return await self._find_known(id)
        with self._awaiting(request):
            async with asyncio.timeout(seconds):
                return await self._wait_for_end(request)

    async def watch(self, id: str) -> AsyncIterator[Answer | ServedRequest]:
        """Yields stored answers, then answers as they arrive, and finally the ended request.

        ``KeyError``, at the first step, for an unknown id.
        """
        request = self._register.open.get(id)
        known: set[str] = set()
        if request is None:
            ended = await self._find_known(id)
        else:
            with self._awaiting(request) as coming:
                async for answer in self._list_until_end(request, coming, known):
                    yield answer
                ended = await self._wait_for_end(request)
        for answer in sorted(ended.answers, key=attrgetter("arrived")):
            if answer.name not in known:
                yield answer
        yield ended

    async def _find_known(self, id: str) -> ServedRequest:
        request = await self.find(id)
        if request is None:
            raise KeyError(id)
        return request

    @contextmanager
    def _awaiting(self, request: OpenRequest, is_whole: bool = False) -> Iterator[ReceivedAnswers]:
        """Collects the answers to a request while a caller waits for them."""
        if request.answers is None:
            request.answers = ReceivedAnswers(is_whole)
            self._awaited[request.token] = request
        answers = request.answers
        answers.waiting += 1
        try:
            yield answers
        finally:
            answers.waiting -= 1
            if not answers.waiting:
                request.answers = None
                self._awaited.pop(request.token, None)

    def _take_answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            request = self._awaited.get(answer.token)
            if request is not None:
                request.take(answer)

    async def _list_until_end(
        self, request: OpenRequest, coming: ReceivedAnswers, known: set[str]
    ) -> AsyncIterator[Answer]:
        coming.is_watched = True
        if self._is_followed and not coming.is_whole:
            for answer in await self._answers.get(request.id):
                coming.add(answer)
        while True:
            new = coming.without(known)
            for answer in new:
                known.add(answer.name)
                yield answer
            if new:
                continue  # more may have arrived meanwhile
            if request.end is not None:
                return
            await _wait_for_change(request)

    async def _wait_for_end(self, request: OpenRequest) -> ServedRequest:
        """Returns the ended request with its answers."""
        while request.end is None:
            await _wait_for_change(request)
        if request.answers is not None and request.answers.is_whole and not request.has_everything:
            # They are stored by now, but arrive through another subscription than the trail.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.answers_within):
                    while not request.has_everything:
                        await _wait_for_change(request)
        if request.has_everything and request.answers is not None:
            return replace(request.end, answers=request.answers.in_order())
        return await self._with_answers(request.end)


async def _wait_for_change(request: OpenRequest) -> None:
    if request.is_left:
        raise unavailable(f"{STOPPING}; fetch request {request.id} when it has started again")
    await request.wait_for_change()


def _known(request: str) -> Refusal:
    return Refusal(409, f"there is already a request with the id {request}")


def _in_doubt(request: str) -> Refusal:
    return unavailable(
        f"JetStream has not confirmed request {request}, which may still be accepted: "
        "ask for its status"
    )


# --- storing requests in the buffer -------------------------------------------------------------


class RequestEnvelope(Envelope):
    """The envelope of one request. ``id_header``, in lower case, is the header with its id."""

    __slots__ = ()

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], now: int, id_header: str) -> None:
        """Reads the lower-case headers in order; ``Refusal`` if one is invalid."""
        headers = join_headers(raw)
        own_id = headers.get(id_header)
        self.id = make_request_id() if own_id is None else check_request_id(own_id, id_header)
        self.has_own_id = own_id is not None
        self.is_batch = False
        self.announced = int(headers.get("content-length", "0"))
        # Answers are stored under this id, so a caller must not pass another request's id here.
        headers[ID] = self.id
        self._read(headers, now)


def check_request_id(text: str, name: str) -> str:
    """Returns an id that a caller gave; ``Refusal`` if it is invalid."""
    # The ids of all messages derived from a request begin with its id and a slash. If user code
    # replaces the headers, nothing else identifies the request.
    if "/" in text:
        raise Refusal(400, f"{name} must not have a slash in it")
    return check_id(text, name)


class Submission:
    """One request, as ``PostStore`` stores it: a single message.

    ``outcome`` gets the first outcome: stored, refused, or uncertain. ``settled`` is called once,
    with the final outcome. The book recognises copies, so it has no named id.
    """

    __slots__ = ("count", "envelope", "outcome", "rows", "settled", "size", "value")

    named_id = None

    def __init__(
        self, envelope: Envelope, body: bytes, settled: Callable[[Refusal | None], Any]
    ) -> None:
        self.envelope = envelope
        self.value = body
        self.rows = None
        self.count = 1
        self.size = len(body) + envelope.size + ROW_BYTES
        self.settled = settled
        self.outcome: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        _name_request(envelope)

    def settle(self, refusal: Refusal | None) -> None:
        """Called when it is stored, or with the reason why it is not."""
        self.settled(refusal)
        self.answer(refusal)

    def answer(self, refusal: Refusal | None) -> None:
        """Sets the outcome for the caller, which may no longer wait."""
        if not self.outcome.done():
            self.outcome.set_result(refusal)


def _name_request(envelope: Envelope) -> None:
    """Puts the id into a header of all derived messages: answers are stored under that id."""
    others = [pair for pair in envelope.headers if pair[0].lower() != ID]
    envelope.headers = [*others, (ID, envelope.id)]
