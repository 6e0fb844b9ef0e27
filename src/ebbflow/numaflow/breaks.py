"""What becomes of messages when the function breaks off in the middle of them.

Messages that are answered keep their answers. The function is opened anew at once, and the others
are given to it one at a time, so that the one during which it breaks again is known: it is to
blame, and fails as if user code had raised. A function that is over its time is ended and opened
anew in the same way. If it cannot be opened, nobody is blamed. Nothing here goes on for ever: every
message is given twice at most, and a function that breaks again and again is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ebbflow.domain.errors import CallTimeout, SetupError, StreamBroken, Unavailable
from ebbflow.engine.blame import CALLS_IN_A_ROW, ENOUGH
from ebbflow.numaflow.session import Session
from ebbflow.numaflow.status import UNAVAILABLE

Failures = dict[int, BaseException | None]
"""Rows without an answer, each with the reason; ``None`` for one that was not tried."""

_SAID_BY_USER_CODE = "UDF_EXECUTION_ERROR"


class Asking(Protocol):
    """A call of the function with the rows of a batch."""

    def ask(self, rows: Sequence[int]) -> None:
        """Gives the function these rows and keeps its answers until it has given the last one.

        Raises ``StreamBroken`` or ``CallTimeout`` when it does not come to that.
        """

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """Returns those of the rows that have no answer yet."""


def ask_all(session: Session, asking: Asking, rows: Sequence[int]) -> Failures:
    """Has the function answer for all rows; returns those for which it has none."""
    session.reopen_if_ended()
    try:
        asking.ask(rows)
    except (StreamBroken, CallTimeout) as error:
        left = asking.unanswered(rows)
        try:
            _go_on(session, error)
        except Unavailable as away:
            return dict.fromkeys(left, away)
        return _ask_alone(session, asking, left)
    return {}


def _ask_alone(session: Session, asking: Asking, rows: Sequence[int]) -> Failures:
    """Gives the function one row after the other, as long as that leads to anything."""
    failures: Failures = {}
    in_a_row = 0
    for place, row in enumerate(rows):
        try:
            asking.ask([row])
            in_a_row = 0
        except (StreamBroken, CallTimeout) as error:
            failures[row] = reason = _reason(session, error)
            in_a_row += 1
            rest = rows[place + 1 :]
            try:
                _go_on(session, error)
            except Unavailable as away:
                return failures | dict.fromkeys(rest, away)
            if in_a_row >= (CALLS_IN_A_ROW if isinstance(reason, Unavailable) else ENOUGH):
                return failures | dict.fromkeys(rest, None)
    return failures


def _reason(session: Session, error: StreamBroken | CallTimeout) -> BaseException:
    """Returns what the row failed with; a system that user code says is away is no break."""
    if isinstance(error, CallTimeout):
        return error
    if _means_away(error):
        return Unavailable(error.said.removeprefix("Unavailable: "), error.wait)
    return session.explain(error)


def _go_on(session: Session, error: StreamBroken | CallTimeout) -> None:
    """Makes the function ready for the next row; ``Unavailable`` if that cannot be done."""
    try:
        if isinstance(error, StreamBroken) and _means_away(error):
            session.renew_streams()
        else:
            session.reopen()
    except SetupError as refused:
        away = Unavailable(str(refused))
        away.tried = False
        raise away from refused


def _means_away(error: StreamBroken) -> bool:
    """Returns whether user code behind the function has raised ``Unavailable``."""
    return error.code == UNAVAILABLE and _SAID_BY_USER_CODE in error.what
