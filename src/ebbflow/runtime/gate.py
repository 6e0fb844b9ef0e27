"""Whether a task may give messages to user code: it is open, its systems are there, no flood.

User code is opened here, and opened anew after an outage. While a system is away the gate is closed
for longer and longer, and between two waits it is open for a single message, a probe. The first
that passes opens it for good.
"""

from __future__ import annotations

from ebbflow.core.blame import Outage
from ebbflow.core.calling import USER_ERRORS
from ebbflow.core.outage import Waiting
from ebbflow.core.verdict import Verdict
from ebbflow.runtime.handlers import breaker_of, patience_of
from ebbflow.runtime.operators import UserCode
from ebbflow.runtime.plan import VertexPlan

_LOOK_AGAIN = 1.0


class Gate:
    """The way to the user code of one vertex on one worker; what it has seen outlasts epochs."""

    def __init__(self, plan: VertexPlan, code: UserCode, halted: str | None) -> None:
        self._code = code
        self._patience = patience_of(plan.whose, "code", plan.on_unavailable)
        self._breaker = breaker_of(plan.whose, plan.breaker)
        self._breaker.tripped = halted
        self.opened = False

    @property
    def probing(self) -> bool:
        """Whether a system is away, so that messages are tried one by one."""
        return self._patience.away

    @property
    def waiting(self) -> Waiting | None:
        """What is waited for, if anything is."""
        return self._patience.waiting

    @property
    def halted(self) -> str | None:
        """Why there are too many dead letters, if there are."""
        return self._breaker.tripped

    def ready_in(self) -> float:
        """Seconds until it is worth trying; nothing when messages may be taken now."""
        return _LOOK_AGAIN if self.halted is not None else self._patience.ready_in()

    def open(self) -> bool:
        """Have user code ready; ``False`` when nothing may be given to it now."""
        if self.ready_in() > 0:
            return False
        if self.opened and not self.probing:
            return True
        try:
            self._code.open()
        except USER_ERRORS as error:
            self._patience.meet(Outage.of(error))
            return False
        self.opened = True
        return True

    def decide(self, verdict: Verdict) -> None:
        """Have user code decide about a chunk, and see what that tells."""
        verdict.usual = not self.probing
        self._code(verdict)
        if (outage := self._code.outage) is not None:
            verdict.usual = False
            self._patience.meet(outage)
        else:
            self._patience.end()
        self._breaker.check(verdict)

    def resume(self) -> None:
        """People have looked at the dead letters and want the vertex to go on."""
        self._breaker.reset()
