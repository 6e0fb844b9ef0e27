"""The outcomes: a closed set of ways in which an input message ends at a vertex.

``Outcome`` is matched exhaustively wherever it is acted upon, so a new outcome cannot be forgotten
anywhere. ``Counts`` has a counter for each outcome; for every vertex and at all times
``read == done + redelivered + fallback + dead_lettered + dropped``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ebbflow.domain.message import NackOptions


@dataclass(frozen=True, slots=True)
class Done:
    """Processed: outputs forwarded, or written by the sink."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Ended by a rule, without output."""

    rule: str


@dataclass(slots=True, unsafe_hash=True)  # freezing each would take longer than all the rest
class Redeliver:
    """Redelivered to this vertex after ``delay`` milliseconds; ``options`` if it was nacked."""

    delay: int
    reason: str | None
    failures: int
    options: NackOptions | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Redelivered after ``delay`` milliseconds to retry the same delivery."""

    delay: int
    error: str
    retries: int
    failures: int


@dataclass(frozen=True, slots=True)
class FellBack:
    """Written by the fallback sink."""


@dataclass(frozen=True, slots=True)
class Served:
    """Done, and answered."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Done, and also written by the on-success sink."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Out of the pipeline, kept with everything needed to understand and replay it.

    ``size`` is the original length of its value if the value was cut. ``unread`` says that the
    value is data that a source could not turn into a message, so no vertex can process it.
    ``nacked`` says that user code nacked it too often; the reason is then user code's.
    """

    reason: str
    error: str | None = None
    traceback: str | None = None
    size: int | None = None
    unread: bool = False
    nacked: bool = field(default=False, compare=False)

    @property
    def kind(self) -> str:
        """One of a few kinds of failure: ``nack``, or the name of an error."""
        return "nack" if self.nacked else self.reason


Outcome = Done | Dropped | Redeliver | Retry | FellBack | Served | Succeeded | DeadLetter

DONE = Done()


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of messages that a vertex has read, ended and written.

    ``written`` counts output messages, once for each edge or sink they went to; all others count
    inputs. ``served`` and ``on_success`` count messages that are also counted as ``done``.
    """

    read: int = 0
    written: int = 0
    done: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    fallback: int = 0
    served: int = 0
    on_success: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n in COUNTERS))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) - getattr(other, n) for n in COUNTERS))

    @property
    def ended(self) -> int:
        """Inputs that have ended; equal to ``read`` when nothing is in flight."""
        return self.done + self.redelivered + self.dead_lettered + self.dropped + self.fallback

    def as_dict(self) -> dict[str, int]:
        """Returns the counters by name, in the order of the summary."""
        return {name: getattr(self, name) for name in COUNTERS}


COUNTERS = tuple(counter.name for counter in fields(Counts))
