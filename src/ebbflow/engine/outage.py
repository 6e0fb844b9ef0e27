"""What stops a vertex: a system that is unavailable (``Patience``), or a flood of dead letters.

A vertex waits for an unavailable system, longer each time and visibly, until a call succeeds. Its
``Breaker`` stops it when too large a share of its messages become dead letters: that is a bug in
the code or its settings, and messages must not be lost to it. Both close the ``OutageGate``, which
also opens user code, and opens it again after an outage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, Outcome, Redeliver, Retry
from ebbflow.engine.blame import POSTPONED, USER_ERRORS, SystemOutage, ends_outage
from ebbflow.engine.causes import RaisedErrors

if TYPE_CHECKING:
    from ebbflow.engine.verdict import Operator, Verdict

DEFAULT_ON_UNAVAILABLE = Backoff("100ms", factor=2.0, cap="1s")
"""Resumes soon after the system is back: the longest wait is a second."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait for a system: for what, for how many seconds so far, and until the next try.

    ``certain`` and ``named`` are those of the ``SystemOutage``.
    """

    what: str
    seconds: float
    next_in: float
    certain: bool = True
    named: bool = True


class Patience:
    """Decides whether to wait and for how long, in one place that may encounter outages."""

    def __init__(
        self,
        backoff: Backoff = DEFAULT_ON_UNAVAILABLE,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._backoff = backoff
        self._clock = clock
        self._outage: SystemOutage | None = None
        self._tries = 0
        self._since = self._next = 0.0

    @property
    def down(self) -> bool:
        """Whether the last try showed an outage."""
        return self._outage is not None

    def meet(self, outage: SystemOutage) -> None:
        """Notes that a try has encountered an outage; the next is due after a longer wait."""
        now = self._clock()
        if self._outage is None:
            self._since, self._tries = now, 0
        self._outage = outage
        self._tries += 1
        wait = max(self._backoff.wait(self._tries), outage.retry_after or 0)
        self._next = now + wait / 1000

    def end(self) -> None:
        """Notes that a try has succeeded."""
        self._outage = None

    def ready_in(self) -> float:
        """Returns the seconds until there may be another try; 0 if there is no outage."""
        return 0.0 if self._outage is None else max(0.0, self._next - self._clock())

    @property
    def waiting(self) -> Waiting | None:
        """The wait as it is shown to people; ``None`` if there is no outage."""
        if self._outage is None:
            return None
        seconds = self._clock() - self._since
        outage = self._outage
        return Waiting(outage.what, seconds, self.ready_in(), outage.certain, outage.named)


@dataclass(frozen=True, slots=True)
class BreakerLimit:
    """The share of the last ``window`` messages that may be dead letters.

    Fewer dead letters than the share of a whole window never trip it; a share of 1 disables it.
    """

    share: float = 0.5
    window: int = 1_000

    @property
    def letters(self) -> int:
        """The most dead letters among the messages of a window."""
        return int(self.share * self.window)


DEFAULT_LIMIT = BreakerLimit()


def _is_unanswered(outcome: Outcome) -> bool:
    return isinstance(outcome, Redeliver | Retry) and not ends_outage(outcome)


class Breaker:
    """Counts the outcomes of a vertex's messages on one worker. ``tripped`` says why it stopped."""

    def __init__(self, limit: BreakerLimit) -> None:
        self.tripped: str | None = None
        self._limit = limit
        self._counted = 0
        self._letters: deque[int] = deque()

    def check(self, verdict: Verdict) -> None:
        """Counts outcomes; dead letters over the limit trip it and are redelivered unchanged."""
        outcomes = verdict.outcomes
        counted = verdict.rows.nacked_before()
        if not outcomes:
            self.note_answered(len(verdict.rows) - len(counted))
            return
        uncounted = sorted(counted | {i for i, o in outcomes.items() if _is_unanswered(o)})
        for index in sorted(i for i, o in outcomes.items() if isinstance(o, DeadLetter)):
            letter = outcomes[index]
            assert isinstance(letter, DeadLetter)
            before = index - bisect_left(uncounted, index)
            if not self._admits(letter, self._counted + before):
                verdict.postpone(index, POSTPONED, letter.error or letter.reason)
        self.note_answered(len(verdict.rows) - len(uncounted))

    def note_answered(self, count: int) -> None:
        """Counts messages that got a response and did not become dead letters."""
        self._counted += count

    @property
    def state(self) -> dict[str, Any]:
        """Its counts, as JSON data."""
        return {"tripped": self.tripped, "counted": self._counted, "letters": list(self._letters)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over the counts of another breaker of the same vertex."""
        self.tripped, self._counted = state["tripped"], state["counted"]
        self._letters = deque(state["letters"])

    def _admits(self, letter: DeadLetter, place: int) -> bool:
        """Returns whether the message counted at that place may become a dead letter."""
        while self._letters and self._letters[0] <= place - self._limit.window:
            self._letters.popleft()
        if self.tripped is None and len(self._letters) >= self._limit.letters < self._limit.window:
            self.tripped = self._explain(letter)
        if self.tripped is None:
            self._letters.append(place)
        return self.tripped is None

    def _explain(self, letter: DeadLetter) -> str:
        return (
            f"{len(self._letters):,} of the last {self._limit.window:,} messages became dead "
            f"letters, the last one because of: {letter.error or letter.reason}"
        )

    def reset(self) -> None:
        """Starts over: people have resumed the vertex."""
        self.tripped = None
        self._letters.clear()


_LOOK_AGAIN = 1.0


class MeetsOutages(Protocol):
    """Calls user code, and learns from its errors whether a system is unavailable."""

    @property
    def outage(self) -> SystemOutage | None:
        """The outage that the last call showed, if any."""


@dataclass(frozen=True, slots=True)
class OpenCode:
    """User code that is open: its operator, and the callers that learn of outages."""

    operator: Operator
    callers: Sequence[MeetsOutages]

    @property
    def outage(self) -> SystemOutage | None:
        """The outage that the last call showed, if any."""
        for caller in self.callers:
            if (outage := caller.outage) is not None:
                return outage
        return None


class VertexCode(Protocol):
    """The user code of a vertex, as the gate opens it."""

    def open(self) -> OpenCode:
        """Opens it, also again after an outage; raises what user code raises when it opens."""


class OutageGate:
    """Guards the user code of one vertex on one worker.

    It is closed until user code is open, while a system is unavailable, in a flood of dead letters,
    and while people have paused the vertex. Between two waits for a system it is open for a single
    message, a probe; the first probe that passes opens it fully. ``patience`` and ``breaker``
    outlive epochs, and so does the state of the gate.
    """

    def __init__(self, code: VertexCode, patience: Patience, breaker: Breaker) -> None:
        self._code = code
        self._patience = patience
        self._breaker = breaker
        self._open: OpenCode | None = None
        self._raised = RaisedErrors()
        self.paused = False
        """Whether people have paused the vertex."""

    def restore(self, halted: str | None, paused: bool = False) -> None:
        """Takes over from the position why the vertex must not continue, if it must not."""
        self._breaker.tripped = halted
        self.paused = paused

    @property
    def opened(self) -> bool:
        """Whether user code has been opened."""
        return self._open is not None

    @property
    def probing(self) -> bool:
        """Whether a system is down, so that messages are tried one by one."""
        return self._patience.down

    @property
    def waiting(self) -> Waiting | None:
        """The wait for a system, if one is down."""
        return self._patience.waiting

    @property
    def outage(self) -> SystemOutage | None:
        """The outage that the last call encountered, if any."""
        return self._open.outage if self._open is not None else None

    @property
    def halted(self) -> str | None:
        """Why there are too many dead letters, if there are."""
        return self._breaker.tripped

    def ready_in(self) -> float:
        """Returns the seconds until the next try; 0 when messages may be taken now."""
        closed = self.paused or self.halted is not None
        return _LOOK_AGAIN if closed else self._patience.ready_in()

    def open(self) -> bool:
        """Opens user code if needed; ``False`` if it may not get messages now."""
        if self.ready_in() > 0:
            return False
        if self.opened and not self.probing:
            return True
        try:
            self._open = self._code.open()
        except USER_ERRORS as error:
            self._patience.meet(SystemOutage.of(error))
            self._raised.note(error, None)
            return False
        return True

    def take_raised(self) -> RaisedErrors:
        """Removes and returns the errors that user code has raised when it was opened."""
        raised, self._raised = self._raised, RaisedErrors()
        return raised

    def decide(self, verdict: Verdict) -> None:
        """Lets user code decide a chunk, and learns from it whether a system is down."""
        if self.probing:
            verdict.disregard_time()
        assert self._open is not None
        self._open.operator(verdict)
        if (outage := self._open.outage) is not None:
            verdict.disregard_time()
            self._patience.meet(outage)
        else:
            self._patience.end()
        self._breaker.check(verdict)

    def resume(self) -> None:
        """Lets the vertex continue: people have looked at the dead letters."""
        self._breaker.reset()
