"""The book of requests: which are open, how they end, and what becomes known of them meanwhile.

A request is accepted when its row is stored in the source's buffer. From then on the trail tells
its outcome and that of all that comes of it, and the book says when it is complete. Everything
that it knows follows from what is stored: after a crash it reads the rows that wait in the buffer
and the trail from its last checkpoint on, so that no request is forgotten and none ends twice.

One book at a time keeps the requests of a source, because one run at a time has the pipeline. So
it knows every request that is open, and an id that is neither open nor written down is new.
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
from ebbflow.connectors.serving.requests import AnswersSoFar, OpenRequest, RequestRegister
from ebbflow.connectors.serving.store import (
    Checkpoint,
    RequestRecords,
    ServedRequest,
    read_life,
    read_unsettled_requests,
    tell_again,
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
"""The most requests that may be open; others are refused until some have ended."""

_CHECKPOINT_EVERY = 2.0
_CLOSE_WITHIN = 5.0
_UNCERTAIN = 503
STOPPING = "the run is stopping"


class RequestBook:
    """The requests of one serving source. Everything happens on the link's loop.

    ``ack_wait`` is how many seconds a caller waits to be told that its request is stored.
    """

    answers_within = 1.0
    """Answers that are stored when the trail says so are followed for this many seconds."""
    far_behind = 20_000
    """This many frames are read within seconds after a crash."""

    def __init__(
        self, link: Link, context: FeedContext, answers: AnswerSource, ack_wait: float
    ) -> None:
        assert context.store is not None, "a source that serves has a store"
        self._link = link
        self._context = context
        self._names = Names(context.pipeline)
        self._answers = answers
        self._ack_wait = ack_wait
        # A store of the user's own tells no one when it is given an answer.
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
        """The reason why it accepts nothing at the moment; ``None`` while it does."""
        return self._failure

    async def open(self) -> None:
        """Reads what is open from earlier runs, and follows the outcomes of requests."""
        link, vertex = self._link, self._context.vertex
        self._store = PostStore(replace(self._context, link=link).buffers, None, self._ack_wait)
        await self._answers.follow(self._take_answers, self._fail)
        self._life = await read_life(link.client, self._names.trail)
        checkpoint = await self._records.read_checkpoint(vertex, self._life)
        # Before the trail's end is looked for: a row that leaves the buffer is in the trail.
        waiting = await read_unsettled_requests(link, self._names, vertex, self._context.partitions)
        self._register.begin_recovery(checkpoint, waiting)
        trail = self._trail = await follow_trail(
            link.client, self._names, checkpoint.begin, self._register.take, self._fail
        )
        await trail.catch_up()
        await self._register.end_recovery(waiting)
        self._checkpoints = asyncio.get_running_loop().create_task(self._write_checkpoints(trail))
        # The first column that Arrow makes has it import pandas: not while someone waits.
        rows_of_posts([])
        self._failure = None

    def _fail(self, error: EbbflowError) -> None:
        self._failure = str(error)

    async def _write_checkpoints(self, trail: Follower) -> None:
        while True:
            # The next one makes up for one that fails.
            with contextlib.suppress(EbbflowError, api.ApiError, nats.errors.Error):
                # One at once, so that others know which vertex keeps a book.
                await self._write_checkpoint()
                await asyncio.sleep(_CHECKPOINT_EVERY)
                await self._tell_again(trail)

    async def _write_checkpoint(self) -> None:
        checkpoint = replace(self._register.checkpoint, life=self._life)
        if checkpoint != self._written:
            await self._records.write_checkpoint(self._context.vertex, checkpoint)
            self._written = checkpoint

    async def _tell_again(self, trail: Follower) -> None:
        """Moves open requests that are far back in the trail to its end."""
        assert self._context.store is not None
        now = datetime.now(UTC)
        # Long before the trail forgets what is too old.
        before = now - timedelta(milliseconds=self._context.store.ttl / 2)
        if behind := self._register.list_behind(self.far_behind, before):
            told = (row for retelling in behind for row in retelling.rows)
            seq = await tell_again(self._link.client, self._names, told)
            await trail.catch_up()
            self._register.note_told_again(behind, seq, now)

    async def close(self) -> None:
        """Writes down how far it is and follows no more; open requests stay open.

        Whoever waits for one hears that the run stops, and may fetch it from the next.
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

        ``Refusal`` with 409 for an id that is known, 429, 503 or 413 when it is not accepted.
        """
        await self._accept(self._make_request(envelope, body), envelope, body)

    async def ask(self, envelope: Envelope, body: bytes, seconds: float) -> ServedRequest:
        """Accepts a request and returns it when it has ended: ``submit`` and ``wait`` in one.

        It is the cheaper way, because answers are kept as they come. ``TimeoutError`` when it was
        accepted and has not ended in time; ``Refusal`` when it was not accepted.
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
        # From here on it may be stored, whoever stops waiting.
        refusal = await submission.told
        if refusal is not None:
            raise _in_doubt(request.id) if refusal.status == _UNCERTAIN else refusal

    def _settle(self, request: OpenRequest, refusal: Refusal | None) -> None:
        """Forgets a request that is not stored, so that its id is free again."""
        if refusal is not None and refusal.status != _UNCERTAIN:
            self._register.remove(request)

    # --- looking --------------------------------------------------------------------------------

    async def status(self, id: str) -> ServedRequest | None:
        """Returns a request without its answers; none if no one knows it."""
        request = self._register.open.get(id)
        if request is not None:
            return request.describe()
        return self._register.get_ended(id) or await self._records.read(id)

    async def find(self, id: str) -> ServedRequest | None:
        """Returns a request, with its answers if it is completed; none if no one knows it."""
        request = await self.status(id)
        return request if request is None else await self._with_answers(request)

    async def _with_answers(self, request: ServedRequest) -> ServedRequest:
        if request.status != "completed" or not request.answer_count:
            return request
        try:
            answers = await self._answers.get(request.id)
        except Exception as error:  # whatever a store of the user's raises
            why = f"{type(error).__name__}: {error}"
            raise unavailable(
                f"request {request.id} is completed, but its answers cannot be read at the moment; "
                f"fetch it later: {why}"
            ) from error
        return replace(request, answers=tuple(answers))

    # --- waiting --------------------------------------------------------------------------------

    async def wait(self, id: str, seconds: float) -> ServedRequest:
        """Returns a request with its answers when it has ended; ``TimeoutError`` after a while.

        ``KeyError`` for an id that no one knows.
        """
        request = self._register.open.get(id)
        if request is None:
            return await self._find_known(id)
        with self._awaiting(request):
            async with asyncio.timeout(seconds):
                return await self._wait_for_end(request)

    async def watch(self, id: str) -> AsyncIterator[Answer | ServedRequest]:
        """Yields answers as they come, those that are there first, and last the ended request.

        ``KeyError``, at the first step, for an id that no one knows.
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
    def _awaiting(self, request: OpenRequest, is_whole: bool = False) -> Iterator[AnswersSoFar]:
        """Keeps the answers to a request for as long as someone waits for them."""
        if request.answers is None:
            request.answers = AnswersSoFar(is_whole)
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
        self, request: OpenRequest, coming: AnswersSoFar, known: set[str]
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
                continue  # others may have come meanwhile
            if request.end is not None:
                return
            await _wait_for_change(request)

    async def _wait_for_end(self, request: OpenRequest) -> ServedRequest:
        """Returns the ended request with its answers."""
        while request.end is None:
            await _wait_for_change(request)
        if request.answers is not None and request.answers.is_whole and not request.has_everything:
            # They are stored when the trail says so, but come by another way.
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
    return Refusal(409, f"there is a request with the id {request} already")


def _in_doubt(request: str) -> Refusal:
    return unavailable(
        f"JetStream has not confirmed request {request}, which may be accepted all the same: "
        "ask for its status"
    )


# --- requests in flight into the buffer --------------------------------------------------------


class RequestEnvelope(Envelope):
    """The envelope of one request. ``id_header``, in lower case, is where callers name an id."""

    __slots__ = ()

    def __init__(self, raw: Iterable[tuple[bytes, bytes]], now: int, id_header: str) -> None:
        """Reads the headers, in lower case and in their order; ``Refusal`` if they are wrong."""
        headers = join_headers(raw)
        own_id = headers.get(id_header)
        self.id = make_request_id() if own_id is None else check_request_id(own_id, id_header)
        self.has_own_id = own_id is not None
        self.is_batch = False
        self.announced = int(headers.get("content-length", "0"))
        # Answers are stored under this one: no one may name the id of another request here.
        headers[ID] = self.id
        self._read(headers, now)


def check_request_id(text: str, name: str) -> str:
    """Returns an id that a caller named; ``Refusal`` if it cannot be one."""
    # The ids of all messages that come of a request begin with its own and a slash: user code that
    # replaces the headers leaves nothing else to know the request by.
    if "/" in text:
        raise Refusal(400, f"{name} must not have a slash in it")
    return check_id(text, name)


class Submission:
    """One request, as ``PostStore`` stores it: a single message.

    ``told`` has the first that is known: stored, refused, or nothing certain. ``settled`` is called
    once, when it is known for good. Copies are known by the book, so it has no named id.
    """

    __slots__ = ("count", "envelope", "rows", "settled", "size", "told", "value")

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
        self.told: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        _name_request(envelope)

    def settle(self, refusal: Refusal | None) -> None:
        """Hears that it is stored, or why not."""
        self.settled(refusal)
        self.answer(refusal)

    def answer(self, refusal: Refusal | None) -> None:
        """Tells whoever waits, who may have gone."""
        if not self.told.done():
            self.told.set_result(refusal)


def _name_request(envelope: Envelope) -> None:
    """Has every message that comes of the request name it: answers are stored under that id."""
    others = [pair for pair in envelope.headers if pair[0].lower() != ID]
    envelope.headers = [*others, (ID, envelope.id)]
