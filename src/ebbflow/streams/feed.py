"""Sources that push: a feed stores each message in its vertex's own buffer before it answers.

A ``Feed`` lives on the driver for as long as the pipeline runs, across epochs. What it has taken in
is durable before it says so to anybody, and from then on is read like any other buffer: replayed
after a crash, redelivered after a nack. The buffer's limit is its back-pressure.
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
"""The run's SparkSession. Only the feed of a Spark source uses it, so no other needs Spark."""


class Feed(Protocol):
    """Takes messages in from outside. Used on the driver, by the run's own thread.

    One that is ``on_spark`` has to be made again when Spark's JVM has died; others continue.
    """

    on_spark: bool

    @property
    def exhausted(self) -> bool:
        """True when nothing more will ever come; a drain then need not wait for it."""

    @property
    def failure(self) -> str | None:
        """The reason why it takes in nothing at the moment; ``None`` while all is well."""

    def start(self) -> None:
        """Begins; ``SetupError`` when it cannot, as with a port that is taken."""

    def stop(self) -> None:
        """Takes in nothing more; returns when everything taken in is stored or given back."""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Where the answers of a pipeline are: in a bucket in NATS, or in a store of the user's own.

    ``code`` makes that store, ``search`` is the folder that has it and ``env`` are the variables of
    its container; without code answers are in the ``bucket``. The bucket is there in either case,
    for what a serving source knows about requests, and keeps each entry for ``ttl`` milliseconds.
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
    """The vertex that a feed feeds, and what there is for it on the driver.

    ``tell`` shows a line to whoever watches the run. ``largest`` is the largest value that a
    message may have. ``memory`` is a folder for what has to be known after a restart; it need not
    exist. ``drain`` if the run ends when everything is processed. ``spark`` is the session of the
    run, for feeds that need Spark; nothing else here knows it. ``store`` is where the pipeline's
    answers are. ``is_ready`` tells, to any thread and at once, whether all vertices are at work.
    """

    pipeline: str
    vertex: str
    partitions: int
    largest: int
    link: Link
    spark: Session
    tell: Callable[[str], None]
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
        """The most bytes that the server takes as one frame."""
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
        """Stores rows as one frame, on the link's loop; the same id again is stored once.

        ``PublishTimeout`` when there was no answer ``within`` that many seconds. When there is no
        room, ``BufferFull`` at once, unless ``room`` says how long to wait for it; ``on_full`` is
        called each time that a wait without end finds none.
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
        """Returns whether a frame with the id was stored lately, be it purged by now.

        A server looks for copies first. Anything else it refuses, because there is no such rollup,
        permitted or not: nothing is stored by asking. An expected last id or sequence would not do.
        Sequences are compared before copies are looked for, and a stream with replicas that meets
        an id it does not expect is left without a leader (tried with version 2.15).
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
        # Copies are recognised by their stream, so the same id must go to the same one.
        return self._subjects[zlib.crc32(msg_id.encode()) % len(self._subjects)]
