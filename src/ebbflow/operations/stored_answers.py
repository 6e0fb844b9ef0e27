"""The answers of a pipeline: get those to a request, list them, watch them as they are stored.

Reads the answers that sinks have served, from anywhere that reaches the pipeline's NATS server,
whether the pipeline runs or not. The user's own store is created and opened here as in workers; it
can only return the answers to one request.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ebbflow.builders import Builder
from ebbflow.connectors.serving.answer_stores import OwnStore
from ebbflow.domain.durations import Duration, to_seconds
from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.domain.spelling import named_options
from ebbflow.engine.answers import Answer
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.streams.answer_bucket import AnswerBucket, bucket_in, read_run_metadata
from ebbflow.streams.catalogue import OWN_STORE
from ebbflow.streams.names import Names

if TYPE_CHECKING:
    from ebbflow.spec.model import Spec

_LOOK = 0.2


class StoredAnswers(ABC):
    """The answers of one pipeline; get them with ``ebbflow.operations.answers``.

    Works next to a running pipeline as well as without one. Blocks; used by one thread.
    """

    @abstractmethod
    def get(self, request: str) -> tuple[Answer, ...]:
        """Returns all answers to a request so far, in the order of results; none if unknown.

        That is the order in which maps yielded the messages, whenever each was answered. Raises
        the errors of your own store.
        """

    @abstractmethod
    def list(self, limit: int | None = None) -> Iterator[Answer]:
        """Yields the answers that are stored now, oldest first; reads them page by page.

        ``EbbflowError`` for your own store, which cannot list.
        """

    @abstractmethod
    def watch(
        self, request: str | None = None, *, timeout: Duration | None = None
    ) -> Iterator[Answer]:
        """Yields answers as they are stored, until ``timeout`` if there is one, else without end.

        For a request, the stored answers come first. Otherwise it yields the answers to any request
        that are stored from the call of ``next`` on. An answer that is written again, as after a
        crash, is repeated. ``EbbflowError`` for your own store, which cannot be watched.
        """


@named_options
@contextmanager
def answers(
    pipeline: str | Path | Builder, *, state: str | Path = ".ebbflow", nats: str | None = None
) -> Iterator[StoredAnswers]:
    """Opens the answers of a pipeline where it runs: its state folder, or your own server.

    Pass the name of a pipeline whose answers are in NATS. Or pass the ``Path`` of its YAML file,
    the ``Pipeline`` or the ``MonoVertex``, which also work with your own store. An embedded server
    that is not running is started for as long as the context lasts. ``SetupError`` if the pipeline
    has not run there, or keeps no answers.
    """
    if isinstance(pipeline, str):
        with _open_bucket(pipeline, state, nats) as stored:
            yield stored
        return
    from ebbflow.spec.lint import load

    spec = pipeline.spec if isinstance(pipeline, Builder) else load(pipeline)
    search = None if isinstance(pipeline, Builder) else pipeline.parent
    with open_answers(spec, search, state=state, nats=nats) as stored:
        yield stored


@contextmanager
def open_answers(
    spec: Spec, search: Path | None, *, state: str | Path, nats: str | None
) -> Iterator[StoredAnswers]:
    """Opens the answers of a pipeline as its spec says; ``search`` is the folder of its code."""
    store = spec.serving_store
    if store is None or store.nats is not None:
        with _open_bucket(spec.name, state, nats) as stored:
            yield stored
        return
    own = OwnStore(store.code, None if search is None else str(search), store.variables)
    try:
        yield _InOwnStore(own, spec.name)
    finally:
        own.close()


@contextmanager
def _open_bucket(pipeline: str, state: str | Path, nats: str | None) -> Iterator[StoredAnswers]:
    inbox = Names(pipeline).inbox
    with open_link_to_pipeline(Path(state), nats, inbox=inbox) as link:
        metadata = link.run(read_run_metadata(link, pipeline))
        if OWN_STORE in metadata:
            raise SetupError(
                f"Pipeline {pipeline!r} keeps its answers in your own store.",
                "Name its YAML file; in Python give answers() its Path, or the pipeline itself.",
            )
        yield _InBucket(link, bucket_in(metadata, pipeline))


class _InBucket(StoredAnswers):
    """Answers in NATS."""

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = AnswerBucket(link.client, bucket)

    @override
    def get(self, request: str) -> tuple[Answer, ...]:
        return tuple(self._link.run(self._bucket.get(request)))

    @override
    def list(self, limit: int | None = None) -> Iterator[Answer]:
        return islice(self._read_all(), limit)

    def _read_all(self) -> Iterator[Answer]:
        batches = self._bucket.read_all()

        async def take_batch() -> Sequence[Answer] | None:
            return await anext(batches, None)

        try:
            while (batch := self._link.run(take_batch())) is not None:
                yield from batch
        finally:
            self._end(batches.aclose())

    @override
    def watch(
        self, request: str | None = None, *, timeout: Duration | None = None
    ) -> Iterator[Answer]:
        seconds = None if timeout is None else to_seconds(timeout)
        arrived: SimpleQueue[Sequence[Answer] | EbbflowError] = SimpleQueue()
        follower = self._link.run(self._bucket.follow(arrived.put, arrived.put, request))
        try:
            for batch in self._take(arrived, seconds):
                yield from batch
        finally:
            self._end(follower.close())

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        # An abandoned iterator may outlive the connection, whose end closes it as well.
        with suppress(RuntimeError):
            self._link.run(closing)

    def _take(
        self, arrived: SimpleQueue[Sequence[Answer] | EbbflowError], seconds: float | None
    ) -> Iterator[Sequence[Answer]]:
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is None or time.monotonic() < deadline:
            self._link.check()
            try:
                # In short waits: on some systems, Ctrl-C does not interrupt an endless wait.
                batch = arrived.get(timeout=_LOOK)
            except Empty:
                continue
            if isinstance(batch, EbbflowError):
                raise batch
            yield batch


class _InOwnStore(StoredAnswers):
    """Answers in the user's own store."""

    def __init__(self, store: OwnStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline

    @override
    def get(self, request: str) -> tuple[Answer, ...]:
        return tuple(self._store.get(request))

    @override
    def list(self, limit: int | None = None) -> Iterator[Answer]:
        raise self._refuse("list its answers")

    @override
    def watch(
        self, request: str | None = None, *, timeout: Duration | None = None
    ) -> Iterator[Answer]:
        raise self._refuse("be watched")

    def _refuse(self, what: str) -> EbbflowError:
        return EbbflowError(
            f"The store of {self._pipeline!r} is your own, and cannot {what}. "
            "Get answers by the id of their request."
        )
