"""Plans which sequences to read next: the offsets of a query, the ranges of its batches.

Spark keeps offsets in the checkpoint. Two offsets always define the same range, also for the first
batch, whose start Spark does not keep, because every offset says where its query began. It also
says when the stream was created, so that a stream that was deleted and created again is not
mistaken for the one of the checkpoint.

A micro-batch has a limit of messages. Sequences are easy to count, messages are not: some are
deleted, some have another subject. So the driver searches for the end of the batch with a few
queries to the leader. The end is never beyond the limit.

Replicas may lag behind; only the leader of a stream knows all of its messages. So the end of a
range, and the fact that nothing is left in it, always come from ``Leader``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from ebbflow.datasource.options import LATEST, ReadOptions
from ebbflow.domain.errors import AccessError, DataLoss, DataSourceError, JetStreamUnavailable
from ebbflow.nats import api
from ebbflow.nats.api import ApiError
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.link import Link
from ebbflow.nats.locate import NATS_URL
from ebbflow.nats.login import Addresses
from ebbflow.nats.pull import LightConsumer
from ebbflow.nats.stored import read_one

T = TypeVar("T")
PATIENCE = api.PATIENCE
"""Seconds without an answer, or without progress, after which a call gives up."""

PERMISSIONS = "Give it those in docs/guides/spark-data-source.md."
_ATTEMPTS = 20
_RESTART = "Start the query with a new checkpointLocation."
_MOST_COUNTS = 4
_GOOD_ENOUGH = 0.8
Count = Callable[[int], Awaitable[int]]
"""Counts the messages from the start of the batch up to and including a sequence."""


# --- asking the leader ----------------------------------------------------------------------------


def open_data_link(server: Addresses) -> Link:
    """Opens a connection, on the driver or on a worker."""
    return Link(server, f"Start it, or correct the option url or {NATS_URL}.")


@dataclass(frozen=True, slots=True)
class Facts:
    """A stream at one moment: when it was created, its first and its last message.

    ``first`` is the sequence after ``last`` while the stream is empty.
    """

    stream: str
    created: str
    first: int
    last: int


class Leader:
    """Queries one stream, and the messages on one subject in it."""

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
        # A stream that never had a message reports 0.
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
        """Counts the matching messages after a sequence. A replica may answer this."""
        consumer, created = await self.consume_after(sequence)
        await consumer.forget(self._client)
        return int(created["num_pending"])

    async def consume_after(self, sequence: int) -> tuple[LightConsumer, dict[str, Any]]:
        """Creates a light consumer; returns it with the server's reply."""
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
        """Returns the server's answer; turns a refusal into an error for users of Spark."""
        try:
            return await answer
        except AccessError as error:
            raise DataSourceError(error.what, PERMISSIONS) from None
        except ApiError as error:
            if error.code == api.NOT_FOUND:
                step = "Make it, or correct the option stream."
                raise DataSourceError(f"There is no stream {self.stream}.", step) from None
            raise DataSourceError(f"NATS refused to read {self.stream}: {error}.") from None


# --- offsets and ranges ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything up to and including ``sequence`` is read. The query began after ``began``."""

    stream: str
    created: str
    began: int
    sequence: int

    @classmethod
    def from_checkpoint(cls, stored: dict[str, Any]) -> Offset:
        """Reads an offset from a checkpoint; ``DataSourceError`` if it is not an offset."""
        try:
            return cls(**stored)
        except TypeError:
            raise DataSourceError(
                f"The checkpoint is not one of a stream in JetStream: {stored}.", _RESTART
            ) from None

    def to_checkpoint(self) -> dict[str, Any]:
        """Returns the offset for a checkpoint."""
        return asdict(self)

    def at(self, sequence: int) -> Offset:
        """Returns the offset of the same query at another sequence."""
        return replace(self, sequence=sequence)

    def check(self, now: Facts) -> None:
        """Refuses a stream that is not the one of this offset."""
        if self.stream != now.stream:
            raise DataSourceError(
                f"The checkpoint is about the stream {self.stream}, not {now.stream}.", _RESTART
            )
        _check_same(self.created, now)
        if self.sequence > now.last:
            raise DataSourceError(
                f"{now.stream} ends at {now.last}, and {self.sequence} was read before: the stream "
                "has lost its end.",
                _RESTART,
            )


def _check_same(created: str, now: Facts) -> None:
    if created != now.created:
        raise DataSourceError(
            f"{now.stream} was deleted and made again: the stream that was read is of {created}, "
            f"this one of {now.created}.",
            _RESTART,
        )


def find_start(start: Offset, end: Offset) -> int:
    """Returns the sequence after which a batch begins.

    To replay the first batch of a query, Spark asks for a new start. The end offset still has the
    original one.
    """
    return start.sequence if start.began == end.began else end.began


@dataclass(frozen=True, slots=True)
class Range:
    """The messages after ``after`` up to and including ``until``, for one task to read."""

    stream: str
    created: str
    subject: str | None
    after: int
    until: int
    fail_on_loss: bool

    @classmethod
    def of(cls, options: ReadOptions, now: Facts, after: int, until: int) -> Range:
        """Returns the part of a range that can be read from the stream as it is now."""
        whole = cls(now.stream, now.created, options.subject, after, until, options.fail_on_loss)
        return whole.available(now)

    def check(self, now: Facts) -> None:
        """Refuses a stream that is not the one of this offset."""
        _check_same(self.created, now)

    def split(self, parts: int) -> list[Range]:
        """Splits the range into parts of about the same length; none if it is empty."""
        length = self.until - self.after
        parts = min(parts, length)
        ends = [self.after + length * part // parts for part in range(1, parts + 1)]
        return [
            replace(self, after=after, until=until)
            for after, until in zip([self.after, *ends], ends, strict=False)
        ]

    def available(self, now: Facts) -> Range:
        """Returns the part that can still be read; ``DataLoss`` if a loss is not allowed."""
        if now.first <= self.after + 1 or self.until <= self.after:
            return self
        self.check_loss(now, self.after)
        return replace(self, after=min(self.until, now.first - 1))

    def check_loss(self, now: Facts, seen: int) -> None:
        """Raises ``DataLoss`` if messages after ``seen`` may have left the stream unread."""
        if self.fail_on_loss and now.first > seen + 1:
            raise DataLoss(
                f"{self.stream}: messages from {seen + 1} to {min(now.first - 1, self.until)} are "
                "no longer in the stream and were not read: the limits of the stream removed "
                "them, or a user did.",
                "Set failOnDataLoss to false to continue with the messages that are left.",
            )


# --- where a read begins and ends -----------------------------------------------------------------


async def find_beginning(leader: Leader, options: ReadOptions, now: Facts) -> int:
    """Returns the sequence after which a read begins."""
    start = options.start
    if isinstance(start, datetime):
        first = await leader.find_first_since(start)
        return now.last if first is None else first - 1
    if isinstance(start, str):
        return now.last if start == LATEST else now.first - 1
    if start > now.last + 1:
        raise DataSourceError(
            f"Option startingSequence is {start}, and {now.stream} ends at {now.last}.",
            "Write earliest, latest or a number up to that.",
        )
    return start - 1


def find_ending(options: ReadOptions, now: Facts) -> int:
    """Returns the last sequence of a batch."""
    if options.end is None:
        return now.last
    if options.end > now.last:
        raise DataSourceError(
            f"Option endingSequence is {options.end}, and {now.stream} ends at {now.last}.",
            "Write latest or a number up to that.",
        )
    return options.end


async def find_end_of_batch(leader: Leader, after: int, last: int, most: int) -> int:
    """Returns the last sequence of a micro-batch of at most ``most`` messages."""
    if last - after <= most:
        return last
    first = await leader.find_next_after(after)
    if first is None or first > last:
        return last

    async def count(until: int) -> int:
        # In this order, a message that arrives in between makes the count too high, never too low.
        behind = await leader.count_after(until)
        return await leader.count_after(after) - behind

    return await search_end(first - 1, last, most, count)


async def search_end(before: int, last: int, most: int, count: Count) -> int:
    """Returns a sequence up to which there are at most ``most`` messages, and rarely far fewer.

    ``before`` is the sequence right before the first message, ``last`` the last message's.
    """
    near, far = min(before + most, last), last + 1  # as many messages as sequences, at most
    guess = last
    for _ in range(_MOST_COUNTS):
        guess = max(near + 1, min(guess, far - 1))
        if guess >= far:
            break
        messages = await count(guess)
        if messages > most:
            far = guess
        else:
            near = guess
            if messages >= most * _GOOD_ENOUGH:
                break
        # Assumes an even distribution; there is at least one message after ``before``.
        guess = before + (guess - before) * most // max(messages, 1)
    return near
