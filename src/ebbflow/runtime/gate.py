"""The gate to user code: closed until it is open, while its systems are away, in a flood, and
while people have paused the vertex.

User code is opened here, and opened anew after an outage. While a system is away the gate is closed
for longer and longer, and between two waits it is open for a single message, a probe. The first
that passes opens it for good.
"""

from __future__ import annotations

from typing import Protocol

from ebbflow.engine.blame import Outage
from ebbflow.engine.causes import RaisedErrors
from ebbflow.engine.outage import Breaker, Patience, Waiting
from ebbflow.engine.verdict import Verdict
from ebbflow.usercode.calling import USER_ERRORS

_LOOK_AGAIN = 1.0


class VertexCode(Protocol):
    """The user code of a vertex, as the gate opens and calls it."""

    def open(self) -> None:
        """Has it ready, anew after an outage; raises what user code raises when it opens."""

    def __call__(self, verdict: Verdict) -> None:
        """Has it decide about a chunk."""

    @property
    def outage(self) -> Outage | None:
        """The system that is away, as far as the last call has shown."""


class Gate:
    """The way to the user code of one vertex on one worker.

    ``patience`` and ``breaker`` outlast epochs, and with them what the gate has seen.
    """

    def __init__(self, code: VertexCode, patience: Patience, breaker: Breaker) -> None:
        self._code = code
        self._patience = patience
        self._breaker = breaker
        self.opened = False
        self._raised = RaisedErrors()
        self.paused = False
        """Whether people have paused the vertex."""

    def restore(self, halted: str | None, paused: bool = False) -> None:
        """Takes over from the position what keeps the vertex from going on."""
        self._breaker.tripped = halted
        self.paused = paused

    @property
    def probing(self) -> bool:
        """Whether a system is away, so that messages are tried one by one."""
        return self._patience.away

    @property
    def waiting(self) -> Waiting | None:
        """The system that is waited for, if one is away."""
        return self._patience.waiting

    @property
    def halted(self) -> str | None:
        """Why there are too many dead letters, if there are."""
        return self._breaker.tripped

    def ready_in(self) -> float:
        """Returns the seconds until it is worth trying; 0 when messages may be taken now."""
        closed = self.paused or self.halted is not None
        return _LOOK_AGAIN if closed else self._patience.ready_in()

    def open(self) -> bool:
        """Has user code ready; ``False`` when nothing may be given to it now."""
        if self.ready_in() > 0:
            return False
        if self.opened and not self.probing:
            return True
        try:
            self._code.open()
        except USER_ERRORS as error:
            self._patience.meet(Outage.of(error))
            self._raised.note(error, None)
            return False
        self.opened = True
        return True

    def take_raised(self) -> RaisedErrors:
        """Returns the errors that user code has raised when it was opened, and forgets them."""
        raised, self._raised = self._raised, RaisedErrors()
        return raised

    def decide(self, verdict: Verdict) -> None:
        """Has user code decide about a chunk, and learns from it what is away."""
        if self.probing:
            verdict.disregard_time()
        self._code(verdict)
        if (outage := self._code.outage) is not None:
            verdict.disregard_time()
            self._patience.meet(outage)
        else:
            self._patience.end()
        self._breaker.check(verdict)

    def resume(self) -> None:
        """Lets the vertex go on: people have looked at the dead letters."""
        self._breaker.reset()
