"""The protocol between client and server: steps of a conversation, requests, and what replies mean.

A conversation is a generator that yields steps. ``Client`` and ``AsyncClient`` carry them out, each
in its own way, and send back the result of each step; what to do next is decided in the
conversation, once for both.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ebbflow.domain.errors import RequestFailed, RequestInDoubt, RequestRefused, UnknownRequest
from ebbflow.domain.message import make_request_id
from ebbflow.domain.records import from_plain

if TYPE_CHECKING:
    from ebbflow.accounts.completion import RequestFailure, RequestStep

T = TypeVar("T")
_KEYS = "x-numaflow-keys"
_BINARY = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_COUNT = "numaflow-array-len"
_LENGTHS = "numaflow-array-index-len"
_BUSY = 429
_NO_REPLY = (502, 503, 504)
_LEAST_PAUSE = 0.05


# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A step: send a request, and come back with a ``ServerReply`` or with ``NoReply``.

    ``wait`` is how many seconds its reply may take. With ``follows`` a reply of 200 is an event
    stream: its body is left to ``MoreEvents``.
    """

    method: str
    path: str
    wait: float
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True)
class MoreEvents:
    """A step: wait for more of the event stream; ``bytes``, or ``NoReply`` where it broke off."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """A step: hand a result of a stream to the caller."""

    result: bytes


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What the server said. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """The connection failed before a reply. ``sent`` is false if the server heard nothing."""

    problem: str
    sent: bool


Step = ServerCall | MoreEvents | Wait | Emit
StepResult = ServerReply | NoReply | bytes | None
Conversation = Generator[Step, StepResult, T]


def calling(call: ServerCall) -> Conversation[ServerReply | NoReply]:
    """Has a call carried out and returns what came of it.

    A server that stops, or a gateway that heard nothing from it, does not say whether the request
    was taken: that is no better than a lost connection.
    """
    came = yield call
    if not isinstance(came, ServerReply | NoReply):
        raise TypeError(f"a call cannot come to {came!r}")
    if isinstance(came, ServerReply) and says_nothing(came):
        return NoReply(f"the server replied with {came.status}: {message_of(came)}", sent=True)
    return came


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """One request of the caller, under the id that it keeps however often it is sent."""

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, value: Any, id: str | None, keys: Iterable[str], headers: Mapping[str, str]
    ) -> NamedRequest:
        """Returns the request for a value: bytes, text, or anything that JSON can say."""
        body, kind = _encode(value)
        sent = {"content-type": kind, **headers}
        named = _header_of(keys)
        return cls(id or make_request_id(), body, {**sent, _KEYS: named} if named else sent)


def _encode(value: Any) -> tuple[bytes, str]:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), _BINARY
    if isinstance(value, str):
        return value.encode(), _TEXT
    return json.dumps(value, ensure_ascii=False).encode(), _JSON


def _header_of(keys: Iterable[str]) -> str:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if odd := next((name for name in names if "," in name), None):
        raise ValueError(f"the key {odd!r} has a comma, which a header of keys cannot hold")
    return ",".join(names)


@dataclass(frozen=True, slots=True)
class ServerPaths:
    """The calls of a serving pipeline. ``id_header`` is the one its spec names."""

    id_header: str

    def post(self, request: NamedRequest, way: str, wait: float) -> ServerCall:
        """Returns the call that hands a request in, the ``sync`` or the ``async`` way."""
        query = {"timeout": f"{wait:.3f}"} if way == "sync" else {}
        return ServerCall(
            "POST", f"/v1/process/{way}", wait, query, self._headers_of(request), request.body
        )

    def follow(self, request: NamedRequest, wait: float) -> ServerCall:
        """Returns the call that hands a request in and follows its results."""
        path, headers = "/v1/process/sse", self._headers_of(request)
        return ServerCall("POST", path, wait, {}, headers, request.body, follows=True)

    def resume(self, id: str, last_event: str, wait: float) -> ServerCall:
        """Returns the call that follows the results of a request, behind the last one seen."""
        headers = {"last-event-id": last_event} if last_event else {}
        return ServerCall("GET", "/v1/process/sse", wait, {"id": id}, headers, follows=True)

    def look(self, id: str, what: str, wait: float) -> ServerCall:
        """Returns the call that looks for a request: ``fetch`` its results, or its ``status``."""
        return ServerCall("GET", f"/v1/process/{what}", wait, {"id": id})

    def _headers_of(self, request: NamedRequest) -> dict[str, str]:
        return {**request.headers, self.id_header: request.id}


# --- replies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request: its results, in the order in which the pipeline made them.

    There are none if the pipeline dropped it, or if no sink had anything to serve.
    """

    id: str
    results: tuple[bytes, ...]

    @property
    def value(self) -> bytes:
        """The one result; ``ValueError`` if there are none or several."""
        if len(self.results) != 1:
            raise ValueError(f"request {self.id} has {len(self.results)} results; see .results")
        return self.results[0]

    @property
    def text(self) -> str:
        """The one result as text."""
        return self.value.decode()

    def json(self) -> Any:
        """Returns the one result, read as JSON."""
        return json.loads(self.value)


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """How far a request is: ``status`` is ``in-progress``, ``completed`` or ``failed``.

    ``steps`` are its way through the pipeline, oldest first. ``failure`` says why it failed.
    """

    id: str
    status: str
    accepted: datetime
    ended: datetime | None
    failure: RequestFailure | None
    steps: tuple[RequestStep, ...]


def says_nothing(reply: ServerReply) -> bool:
    """Returns whether a reply leaves open what has become of the request."""
    return reply.status in _NO_REPLY


def is_busy(reply: ServerReply) -> bool:
    """Returns whether the server takes nothing at the moment, and may do so later."""
    return reply.status == _BUSY


def read_pause(reply: ServerReply) -> float:
    """Returns the seconds to wait that a busy server asks for."""
    try:
        return max(float(reply.headers.get("retry-after", "")), _LEAST_PAUSE)
    except ValueError:
        return 1.0


def is_in_progress(reply: ServerReply) -> bool:
    """Returns whether the request is known and has no answer yet."""
    if reply.status == 408:
        return True
    return reply.status == 200 and _COUNT not in reply.headers


def has_answer(reply: ServerReply) -> bool:
    """Returns whether the request is complete; then the reply has its results, maybe none."""
    return reply.status == 204 or (reply.status == 200 and not is_in_progress(reply))


def read_results(id: str, reply: ServerReply) -> Answered:
    """Returns the results of a request that is complete."""
    return Answered(id, tuple(_split(reply)))


def _split(reply: ServerReply) -> Iterator[bytes]:
    """Cuts the results apart: they stand one behind the other in the body."""
    ends = [0]
    for length in filter(None, reply.headers.get(_LENGTHS, "").split(",")):
        ends.append(ends[-1] + int(length))
    if ends[-1] != len(reply.body) or len(ends) - 1 != int(reply.headers.get(_COUNT, "0")):
        raise ValueError(f"{len(ends) - 1} results of {ends[-1]} bytes are not the body that came")
    for start, end in pairwise(ends):
        yield reply.body[start:end]


def read_request_status(id: str, reply: ServerReply) -> RequestStatus:
    """Returns the state of a request; raises a ``RequestError`` if there is none."""
    if reply.status != 200:
        raise_not_found(id, reply)
    # Brings Arrow with it, which who only asks does not need.
    from ebbflow.accounts.completion import RequestFailure, RequestStep

    facts = json.loads(reply.body)
    failure, ended = facts.get("failure"), facts.get("ended")
    return RequestStatus(
        id,
        facts["status"],
        datetime.fromisoformat(facts["accepted"]),
        datetime.fromisoformat(ended) if ended else None,
        from_plain(RequestFailure, failure) if failure else None,
        tuple(from_plain(RequestStep, step) for step in facts.get("steps", ())),
    )


def raise_error(id: str, reply: ServerReply) -> NoReturn:
    """Raises what a reply that is not an answer says about the request."""
    facts = _facts_of(reply)
    if "vertex" in facts:
        reason, error = facts.get("reason") or "", facts.get("error") or ""
        raise RequestFailed(id, facts["vertex"], reason, error)
    if reply.status >= 500:
        raise RequestInDoubt(id, f"the server replied with {reply.status}: {message_of(reply)}")
    raise RequestRefused(id, reply.status, message_of(reply))


def raise_not_found(id: str, reply: ServerReply) -> NoReturn:
    """Raises what the reply to a look for a request says: no one knows it, or an error."""
    if reply.status == 404:
        raise UnknownRequest(id)
    raise_error(id, reply)


def message_of(reply: ServerReply) -> str:
    """Returns what the server has to say about a problem."""
    facts = _facts_of(reply)
    return str(facts.get("message") or facts.get("reason") or reply.body[:200].decode("latin-1"))


def _facts_of(reply: ServerReply) -> dict[str, Any]:
    try:
        facts = json.loads(reply.body)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
