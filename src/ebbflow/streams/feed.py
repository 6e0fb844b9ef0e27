"""Sources that push: a feed stores each message in its vertex's own buffer before it answers.

A ``Feed`` lives on the driver for as long as the pipeline runs, across epochs. A message is durable
before the feed confirms it to its sender, and from then on is read like any other buffer: replayed
after a crash, redelivered after a nack. The buffer's limit causes back-pressure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ebbflow.domain.code import Code, Variables
from ebbflow.domain.errors import PermanentPublishError
from ebbflow.domain.message import Ack
from ebbflow.engine import frames
from ebbflow.engine.publications import ROWS
from ebbflow.nats.link import Link
from ebbflow.nats.publish import BUFFER, WaitForRoom, publish
from ebbflow.streams.names import Names

_NO_ROLLUP = 10111

Session = Any
"""The run's SparkSession. Only the feed of a Spark source uses it, so other feeds need no Spark."""


class Feed(Protocol):
    """Takes messages in from outside. Used on the driver, by the run's own thread.

    A feed that is ``on_spark`` has to be made again when Spark's JVM has died; others continue.
    """

    on_spark: bool

    @property
    def exhausted(self) -> bool:
        """True when no more messages will ever come, so that a drain need not wait for it."""

    @property
    def failure(self) -> str | None:
        """The reason why it takes in no messages at the moment; ``None`` while it does."""

    def start(self) -> None:
        """Begins; ``SetupError`` when it cannot, as with a port that is taken."""

    def stop(self) -> None:
        """Takes in no more messages; returns when all it has taken are stored or returned."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Where the answers of a pipeline are: in a NATS bucket, or in the user's own store.

    ``code`` makes that store, ``search`` is the folder with the code and ``env`` are the variables
    of its container; without code answers are in the ``bucket``. The bucket exists in either case,
    for a serving source's records of requests, and keeps each entry for ``ttl`` milliseconds.
    """

    bucket: str
    ttl: int
    code: Code | None = None
    search: str | None = None
    env: Variables = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """A feed that the driver is to open: its class, and the settings that it is made with.

    ``store`` is where the answers of its pipeline are, if there are any. ``check`` raises
    ``SetupError`` if it is clear before the run begins that the feed could not start.

    The settings hold secrets and the class may need a web server, so neither leaves the driver: a
    plan that is pickled for a worker arrives there without them.
    """

    feed: Callable[[Any, FeedContext], Feed] | None
    settings: Any
    store: StorePlan | None = None
    check: Callable[[], None] = lambda: None

    def __reduce__(self) -> tuple[type[FeedPlan], tuple[None, None]]:
        return FeedPlan, (None, None)

    def make(self, context: FeedContext) -> Feed:
        """Returns the feed, not started yet. For the driver only."""
        assert self.feed is not None, "a feed is opened on the driver"
        return self.feed(self.settings, context)


@dataclass(frozen=True, slots=True)
class FeedContext:
    """The vertex that a feed feeds, and the driver's resources for it.

    ``log`` shows a line to the user of the run. ``largest`` is the size of the largest value that
    a message may have. ``memory`` is a folder for state that has to survive a restart; it need not
    exist. ``drain`` if the run ends when everything is processed. ``spark`` is the session of the
    run, for feeds that need Spark; no other code here uses it. ``store`` is where the pipeline's
    answers are. ``is_ready`` returns whether all vertices are running, at once and on any thread.
    """

    pipeline: str
    vertex: str
    partitions: int
    largest: int
    link: Link
    spark: Session
    log: Callable[[str], None]
    memory: Path
    drain: bool
    store: StorePlan | None = None
    is_ready: Callable[[], bool] = lambda: True

    @property
    def buffers(self) -> Buffers:
        """The buffers to store messages in."""
        return Buffers(self.link, Names(self.pipeline), self.vertex, self.partitions)


class Buffers:
    """The buffers of a source vertex, one for each of its partitions."""

    def __init__(self, link: Link, names: Names, vertex: str, partitions: int) -> None:
        self._link = link
        self._subjects = [names.buffer_subject(vertex, number) for number in range(partitions)]

    @property
    def largest_frame(self) -> int:
        """The size in bytes of the largest frame that the server accepts."""
        return self._link.client.max_payload

    async def put(
        self,
        rows: pa.RecordBatch,
        msg_id: str,
        *,
        within: float = float("inf"),
        room: WaitForRoom = WaitForRoom.NO,
        on_full: Callable[[], None] = lambda: None,
    ) -> Ack:
        """Stores rows as one frame, on the link's loop; a repeated id is stored only once.

        ``PublishTimeout`` when there was no answer ``within`` that many seconds. When there is no
        room, ``BufferFull`` at once, unless ``room`` says how long to wait for it; ``on_full`` is
        called each time that a wait without a deadline finds the buffer full.
        """
        return await publish(
            self._link.client,
            self._subject(msg_id),
            frames.encode(rows),
            {ROWS: str(rows.num_rows)},
            msg_id=msg_id,
            retry=replace(BUFFER, ack_wait=within),
            room=room,
            on_full=on_full,
        )

    async def has_stored(self, msg_id: str) -> bool:
        """Returns whether a frame with the id was stored lately, even if it is purged by now.

        A server checks for copies first. It refuses anything else, because the rollup is invalid,
        permitted or not: the check stores nothing. An expected last id or sequence would not work.
        Sequences are compared before copies are checked, and a stream with replicas loses its
        leader over an id that it does not expect (tried with version 2.15).
        """
        question = {"Nats-Rollup": "nothing"}
        subject = self._subject(msg_id)
        try:
            await publish(self._link.client, subject, b"", question, msg_id=msg_id, retry=BUFFER)
        except PermanentPublishError as error:
            if error.code != _NO_ROLLUP:
                raise
            return False
        return True

    def _subject(self, msg_id: str) -> str:
        # Each stream recognises only its own copies, so the same id must go to the same stream.
        return self._subjects[zlib.crc32(msg_id.encode()) % len(self._subjects)]
