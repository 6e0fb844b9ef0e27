"""Offsets of a query in a stream, and the ranges of its batches: nothing but sequences.

An offset is what Spark keeps in the checkpoint. Between two of them lies the same range however
often it is read, also for the first batch, whose start Spark does not keep: every offset says where
its query began. It also says when the stream was made, so that one which was deleted and made again
is never taken for the one that the checkpoint is about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ebbflow.datasource.leader import Facts
from ebbflow.errors import DataLoss, DataSourceError

_ANEW = "Start the query with a new checkpointLocation."


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything up to and including ``sequence`` is read. The query began behind ``began``."""

    stream: str
    created: str
    began: int
    sequence: int

    @classmethod
    def from_checkpoint(cls, stored: dict[str, Any]) -> Offset:
        """Reads what a checkpoint holds; ``DataSourceError`` if that is something else."""
        try:
            return cls(**stored)
        except TypeError:
            raise DataSourceError(
                f"The checkpoint is not one of a stream in JetStream: {stored}.", _ANEW
            ) from None

    def to_checkpoint(self) -> dict[str, Any]:
        """Returns what a checkpoint is to hold."""
        return asdict(self)

    def at(self, sequence: int) -> Offset:
        """Returns the offset of the same query at another sequence."""
        return replace(self, sequence=sequence)

    def check(self, now: Facts) -> None:
        """Refuses a stream that is not the one this is about."""
        if self.stream != now.stream:
            raise DataSourceError(
                f"The checkpoint is about the stream {self.stream}, not {now.stream}.", _ANEW
            )
        _check_same(self.created, now)
        if self.sequence > now.last:
            raise DataSourceError(
                f"{now.stream} ends at {now.last}, and {self.sequence} was read before: the stream "
                "has lost its end.",
                _ANEW,
            )


def _check_same(created: str, now: Facts) -> None:
    if created != now.created:
        raise DataSourceError(
            f"{now.stream} was deleted and made again: the stream that was read is of {created}, "
            f"this one of {now.created}.",
            _ANEW,
        )


def find_start(start: Offset, end: Offset) -> int:
    """Returns the sequence behind which a batch begins.

    For a batch that is replayed from the beginning of a query Spark asks for a start anew. The end
    still knows the one that was meant.
    """
    return start.sequence if start.began == end.began else end.began


@dataclass(frozen=True, slots=True)
class Range:
    """The messages behind ``after`` up to and including ``until``, for one task to read."""

    stream: str
    created: str
    subject: str | None
    after: int
    until: int
    fail_on_loss: bool

    def check(self, now: Facts) -> None:
        """Refuses a stream that is not the one this is about."""
        _check_same(self.created, now)

    def split(self, parts: int) -> list[Range]:
        """Returns ranges of about the same length that make up this one; none for an empty one."""
        length = self.until - self.after
        parts = min(parts, length)
        ends = [self.after + length * part // parts for part in range(1, parts + 1)]
        return [
            replace(self, after=after, until=until)
            for after, until in zip([self.after, *ends], ends, strict=False)
        ]

    def available(self, now: Facts) -> Range:
        """Returns what can still be read of it; ``DataLoss`` if all is wanted and some is gone."""
        if now.first <= self.after + 1 or self.until <= self.after:
            return self
        self.check_loss(now, self.after)
        return replace(self, after=min(self.until, now.first - 1))

    def check_loss(self, now: Facts, seen: int) -> None:
        """Refuses to go on if messages behind ``seen`` may have left the stream unread."""
        if self.fail_on_loss and now.first > seen + 1:
            raise DataLoss(
                f"{self.stream}: messages from {seen + 1} to {min(now.first - 1, self.until)} are "
                "no longer in the stream and were not read: limits of the stream or somebody "
                "removed them.",
                "Set failOnDataLoss to false to go on with what is there.",
            )
