"""User-defined sources: ``Source``, what it gives and what it is told.

A source lives in a process of its own beside its vertex's task, one for each partition of the
vertex, for as long as the pipeline runs. All its methods are called there, one at a time and by
one thread; each may be ``async``. Nothing here imports Spark or NATS.

What was read is acknowledged only after its vertex has settled it: forwarded, redelivered, dead,
whatever came of it. What is neither acknowledged nor nacked when the process ends has to be given
again by the next one; that is all a source has to do for nothing to be lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ebbflow.nacks import NackOptions

LONGEST_OFFSET = 4_096


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message of a source.

    ``offset`` is what the source knows it by, unique in its process: it comes back with the
    acknowledgement or the nack, and the same message has the same one whenever it is given.
    ``partition`` is where in the outside system it is from, if that is not the vertex's own
    partition. ``deliveries`` is how often the message has been given, 1 at first, if the source
    counts that itself; otherwise Ebbflow does.
    """

    value: bytes
    offset: bytes
    event_time: datetime | None = None
    keys: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: int | None = None
    deliveries: int | None = None

    def __post_init__(self) -> None:
        _check("value", self.value, bytes)
        _check("offset", self.offset, bytes)
        if not 0 < len(self.offset) <= LONGEST_OFFSET:
            raise ValueError(
                f"offset must have 1 to {LONGEST_OFFSET} bytes, not {len(self.offset)}"
            )
        if self.event_time is not None:
            _check("event_time", self.event_time, datetime)
            if self.event_time.utcoffset() is None:
                raise ValueError("event_time must have a time zone")
        if isinstance(self.keys, str) or not all(isinstance(key, str) for key in self.keys):
            raise TypeError(f"keys must be a sequence of texts, not {self.keys!r}")


def _check(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class NackOffset:
    """A message that the pipeline wants again, and how: exactly what was asked for with the nack.

    For an exception that nobody meant to raise, the options have the wait of the vertex's back-off.
    """

    offset: bytes
    options: NackOptions


class Source(ABC):
    """Where messages come from. Subclass it; name the subclass as the source's code.

    May have ``open()``, called before the first ``read``, and ``close()``, called when the pipeline
    stops. An exception in any method fails the vertex, which is started again after a while with a
    new process; the run shows why.
    """

    @abstractmethod
    def read(
        self, limit: int, timeout: float
    ) -> Iterable[SourceMessage] | Awaitable[Iterable[SourceMessage]]:
        """Up to ``limit`` messages; waits at most about ``timeout`` seconds for the first.

        Called again and again; acknowledgements are told in between.
        """

    @abstractmethod
    def ack(self, offsets: Sequence[bytes]) -> Awaitable[None] | None:
        """These are settled and must not be given again. May name some more than once."""

    def nack(self, nacks: Sequence[NackOffset]) -> Awaitable[None] | None:
        """These are to be given again, each not before its delay is over.

        ``max_deliveries`` and ``reason`` need no attention: Ebbflow counts, and takes messages that
        were nacked too often to the fallback or the dead letters, which acknowledges them.

        A source that cannot give a message again leaves this out. What is nacked is then kept by
        Ebbflow, comes again from there, and is acknowledged to the source.
        """
        raise NotImplementedError

    def pending(self) -> Awaitable[int | None] | int | None:
        """How many messages wait to be read, or ``None`` where that is not known."""
        return None

    def partitions(self) -> Awaitable[Sequence[int]] | Sequence[int]:
        """The partitions of the outside system that this process reads; for people to see."""
        return ()

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will come, for good: ``ebbflow run --drain`` then ends.

        ``False`` while something that was nacked is still to be given.
        """
        return False
