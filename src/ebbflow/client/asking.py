"""The conversations of a client: ask, submit, fetch and status.

A request is never handed in twice. After a connection that was lost with the request on it, nobody
knows whether the server took it; so the client looks for it by its id, and hands it in again only
when the server does not know it. A second request with the same id would be refused in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebbflow.client.replies import (
    Answered,
    RequestStatus,
    calling,
    has_answer,
    is_busy,
    is_in_progress,
    raise_error,
    raise_not_found,
    read_answer,
    read_pause,
    read_status,
)
from ebbflow.client.requests import NamedRequest, ServerPaths
from ebbflow.client.steps import Conversation, NoReply, Pause, ServerReply
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import AnswerPending, RequestInDoubt, RequestRefused

_LOOKING = Backoff(interval=50, factor=1.6, cap=1_000)
_DUPLICATE = 409
_UNKNOWN = 404


@dataclass(slots=True)
class TimeLimit:
    """How long a conversation may still take, by ``clock``, and how long its next wait is."""

    clock: Callable[[], float]
    end: float
    waits: int = 0

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float]) -> TimeLimit:
        """Returns the limit of some seconds from now."""
        return cls(clock, clock() + seconds)

    @property
    def left(self) -> float:
        """The seconds that are left, at least a moment."""
        return max(self.end - self.clock(), 0.001)

    def has(self, seconds: float) -> bool:
        """Returns whether so much is left."""
        return self.clock() + seconds < self.end

    def grow(self) -> float:
        """Returns the next wait, each longer than the one before."""
        self.waits += 1
        return _LOOKING.seconds(self.waits)


def ask(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[Answered]:
    """Hands a request in and waits for its answer."""
    came = yield from _hand_in(at, request, "sync", limit)
    if came is None or is_in_progress(came):
        return (yield from await_answer(at, request.id, limit))
    if not has_answer(came):
        raise_error(request.id, came)
    return read_answer(request.id, came)


def submit(at: ServerPaths, request: NamedRequest, limit: TimeLimit) -> Conversation[str]:
    """Hands a request in; returns its id when the server has stored it."""
    came = yield from _hand_in(at, request, "async", limit)
    if came is not None and came.status != 200:
        raise_error(request.id, came)
    return request.id


def _hand_in(
    at: ServerPaths, request: NamedRequest, way: str, limit: TimeLimit
) -> Conversation[ServerReply | None]:
    """Returns the server's reply; ``None`` if an earlier call of this one was taken in."""
    in_doubt = ""
    while True:
        came = yield from calling(at.post(request, way, limit.left))
        if isinstance(came, NoReply):
            in_doubt = check_sent(request.id, came, in_doubt)
        elif is_busy(came):
            yield from wait_for_room(request.id, came, limit, in_doubt)
            continue
        elif not (in_doubt and came.status == _DUPLICATE):
            return came
        if (yield from _is_known(at, request.id, limit, in_doubt)):
            return None


def check_sent(id: str, lost: NoReply, in_doubt: str) -> str:
    """Returns why a request is in doubt; ``RequestRefused`` if no server ever heard of it."""
    if not (lost.sent or in_doubt):
        raise RequestRefused(id, 0, f"there is no connection: {lost.problem}")
    return lost.problem


def wait_for_room(
    id: str, reply: ServerReply, limit: TimeLimit, in_doubt: str
) -> Conversation[None]:
    """Waits as long as a busy server asks for, or raises if that is too long."""
    pause = read_pause(reply)
    if not limit.has(pause):
        if in_doubt:
            raise RequestInDoubt(id, in_doubt)
        raise_error(id, reply)
    yield Pause(pause)


def _is_known(at: ServerPaths, id: str, limit: TimeLimit, in_doubt: str) -> Conversation[bool]:
    """Returns whether the server has a request that may or may not have reached it."""
    while True:
        pause = limit.grow()
        if not limit.has(pause):
            raise RequestInDoubt(id, in_doubt)
        yield Pause(pause)
        came = yield from calling(at.look(id, "status", limit.left))
        if isinstance(came, ServerReply) and not is_busy(came):
            if came.status not in (200, _UNKNOWN):
                raise_error(id, came)
            return came.status == 200


def await_answer(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered]:
    """Looks for the answer to a request that was taken in, until it is there."""
    while True:
        came = yield from calling(at.look(id, "fetch", limit.left))
        if isinstance(came, ServerReply) and has_answer(came):
            return read_answer(id, came)
        if isinstance(came, ServerReply) and not (is_busy(came) or is_in_progress(came)):
            raise_not_found(id, came)
        pause = limit.grow()
        if not limit.has(pause):
            raise AnswerPending(id)
        yield Pause(pause)


def fetch(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[Answered | None]:
    """Looks once for the answer to a request; ``None`` while there is none yet."""
    came = yield from _look(at, id, "fetch", limit)
    if is_in_progress(came):
        return None
    if not has_answer(came):
        raise_not_found(id, came)
    return read_answer(id, came)


def status(at: ServerPaths, id: str, limit: TimeLimit) -> Conversation[RequestStatus]:
    """Looks once how far a request is."""
    return read_status(id, (yield from _look(at, id, "status", limit)))


def _look(at: ServerPaths, id: str, what: str, limit: TimeLimit) -> Conversation[ServerReply]:
    """Looks for a request; a look changes nothing, so it is repeated after a lost connection."""
    while True:
        came = yield from calling(at.look(id, what, limit.left))
        if isinstance(came, ServerReply) and not is_busy(came):
            return came
        pause = limit.grow() if isinstance(came, NoReply) else read_pause(came)
        if not limit.has(pause) or (isinstance(came, NoReply) and not came.sent):
            _give_up(id, came)
        yield Pause(pause)


def _give_up(id: str, came: ServerReply | NoReply) -> None:
    if isinstance(came, ServerReply):
        raise_error(id, came)
    raise RequestInDoubt(id, came.problem)
