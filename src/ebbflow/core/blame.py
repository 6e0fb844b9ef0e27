"""Decides whose fault a failure is: the message's, or that of a system that user code needs.

A failure of a message is counted on it. A failure of a system is counted on nobody: the message
comes back as it was, and the vertex waits. An exception on the list of ``system_errors`` is a
system's, and so is any other when ``ENOUGH`` different messages have failed with it one after
another and none has passed. **Others decide**: a message that fails again although other messages
have passed since is to blame, whatever it raised, unless others fail at that time as well; and one
that was to blame before remains so as long as no other message fails as well.

Lives on a worker, one for each handler, for as long as the handler does. Forgetting all of it, as
when a worker dies, costs a message a further try and never more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ebbflow.core.redelivery import describe
from ebbflow.core.system_errors import LISTED, SystemErrors, retry_after
from ebbflow.errors import MessageTooLarge, Unavailable

ENOUGH = 10
"""So many different messages have to fail alike for an error that tells nothing by itself."""

POSTPONED = 500
"""Milliseconds after which a message comes back whose system was away."""

CALLS_IN_A_ROW = 3
"""So many calls have to fail before the rest of a chunk is not tried."""

_MOST_SUSPECTS = 50_000


@dataclass(frozen=True, slots=True)
class Outage:
    """A system is away, or user code fails on everything. ``retry_after`` is in milliseconds.

    ``what`` is the system's name if it is ``named``, or else the error. ``certain`` when an error
    said so; otherwise messages have only failed alike.
    """

    what: str
    certain: bool = True
    named: bool = False
    retry_after: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Outage:
        """Returns the outage that an error shows."""
        named = isinstance(error, Unavailable)
        what = error.what if isinstance(error, Unavailable) else describe(error)
        return cls(what, True, named, retry_after(error))


class Blame:
    """The record of one handler's calls. ``outage`` is set while its system is away.

    ``streak`` are the messages that have failed alike one after another, without a pass.
    """

    def __init__(self, systems: SystemErrors = LISTED) -> None:
        self.outage: Outage | None = None
        self._systems = systems
        self._passes = 0
        self._suspects: dict[str, int] = {}
        self._failing: set[str] = set()
        self._calls = 0
        self.streak: set[str] = set()
        self._alike: type[BaseException] | None = None
        self._enough = ENOUGH
        self._mistaken_at = -1

    @property
    def stops(self) -> bool:
        """Whether it is clear enough that further calls would fail, too."""
        return self.outage is not None and (
            not self.outage.certain or self._calls >= CALLS_IN_A_ROW
        )

    def passed(self) -> None:
        """Notes that some message has passed."""
        self._passes += 1
        self.acquit()

    def acquit(self) -> None:
        """Notes that the system is there: messages passed beside those that failed."""
        self.outage = None
        self._calls = 0
        self._failing.clear()
        self.streak.clear()
        self._alike = None

    def is_the_systems(
        self, error: BaseException, ids: Sequence[str], blamed: bool, beside: bool = False
    ) -> bool:
        """Returns whether a system is to blame for a call that failed on these messages.

        ``blamed`` if one of them has failed on its own account before, ``beside`` if others passed
        at the same time.
        """
        if isinstance(error, MessageTooLarge):
            return False
        away = self.means_away(error)
        # While others fail as well they decide nothing: this may be another outage.
        if not self._failing.difference(ids) and self._others_decided(ids):
            if not away:
                self._believe_less()
            return False
        if away:
            blames_system = self._is_away(ids, blamed)
        else:
            blames_system = self._fails_alike(error, ids, blamed, beside)
        if blames_system:
            self._suspect(ids)
            self._calls += 1
            self.outage = Outage.of(error) if away else Outage(describe(error), certain=False)
        return blames_system

    def means_away(self, error: BaseException) -> bool:
        """Returns whether the error itself says that a system is away."""
        return self._systems.means_away(error)

    def _others_decided(self, ids: Sequence[str]) -> bool:
        """Returns whether one of the messages failed before and others have passed since."""
        if not any(self._suspects.get(row_id, self._passes) < self._passes for row_id in ids):
            return False
        for row_id in ids:
            self._suspects.pop(row_id, None)
        return True

    def _believe_less(self) -> None:
        """Asks for twice as many the next time: what failed alike were bad messages."""
        if self._mistaken_at != self._passes:
            self._mistaken_at = self._passes
            self._enough *= 2

    def _is_away(self, ids: Sequence[str], blamed: bool) -> bool:
        others_fail = bool(self._failing.difference(ids))
        return others_fail or not blamed

    def _fails_alike(
        self, error: BaseException, ids: Sequence[str], blamed: bool, beside: bool
    ) -> bool:
        """Returns whether enough failed alike; a call with several says nothing about each."""
        if self.outage is not None and type(error) is self._alike:
            return True
        if beside or blamed or len(ids) > 1:
            return False
        if type(error) is not self._alike:
            self._alike = type(error)
            self.streak.clear()
        self.streak.update(ids)
        if len(self.streak) < self._enough:
            return False
        self._suspect(self.streak)
        return True

    def _suspect(self, ids: Collection[str]) -> None:
        self._failing.update(ids)
        self._suspects |= dict.fromkeys(ids, self._passes)
        while len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
