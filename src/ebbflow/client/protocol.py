"""The protocol between client and server: conversation steps, requests, and reading replies.

A conversation is a generator that yields steps. ``Client`` and ``AsyncClient`` carry them out,
blocking or not, and send back the result of each step. The conversation decides what to do next, so
both clients share that code.
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
    """A step: send a request; the result is a ``ServerReply`` or ``NoReply``.

    ``wait`` is how many seconds its reply may take. With ``follows`` a reply of 200 is an event
    stream, whose body ``MoreEvents`` reads.
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
    """A step: wait for more of the event stream; ``bytes``, or ``NoReply`` if it broke off."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """A step: yield a result of a stream to the caller."""

    result: bytes


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The server's reply. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """The connection failed before a reply. ``sent`` is false if nothing reached the server."""

    problem: str
    sent: bool


Step = ServerCall | MoreEvents | Wait | Emit
StepResult = ServerReply | NoReply | bytes | None
Conversation = Generator[Step, StepResult, T]


def calling(call: ServerCall) -> Conversation[ServerReply | NoReply]:
    """Makes a call and returns its result.

    An error of a server that is stopping, or of a gateway that got no reply, leaves open whether
    the request was accepted. It is returned as ``NoReply``, like a lost connection.
    """
    reply = yield call
    if not isinstance(reply, ServerReply | NoReply):
        raise TypeError(f"the result of a call cannot be {reply!r}")
    if isinstance(reply, ServerReply) and says_nothing(reply):
        return NoReply(f"the server replied with {reply.status}: {message_of(reply)}", sent=True)
    return reply


# --- requests -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """One request of the caller, with the id that it keeps when it is sent again."""

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, value: Any, id: str | None, keys: Iterable[str], headers: Mapping[str, str]
    ) -> NamedRequest:
        """Returns the request for a value: bytes, text, or any JSON value."""
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
    """Makes the calls to a serving pipeline. ``id_header`` is set in the pipeline's spec."""

    id_header: str

    def post(self, request: NamedRequest, mode: str, wait: float) -> ServerCall:
        """Returns the call that submits a request in the mode ``sync`` or ``async``."""
        query = {"timeout": f"{wait:.3f}"} if mode == "sync" else {}
        return ServerCall(
            "POST", f"/v1/process/{mode}", wait, query, self._headers_of(request), request.body
        )

    def follow(self, request: NamedRequest, wait: float) -> ServerCall:
        """Returns the call that submits a request and follows its results."""
        path, headers = "/v1/process/sse", self._headers_of(request)
        return ServerCall("POST", path, wait, {}, headers, request.body, follows=True)

    def resume(self, id: str, last_event: str, wait: float) -> ServerCall:
        """Returns the call that follows the results of a request after the last one seen."""
        headers = {"last-event-id": last_event} if last_event else {}
        return ServerCall("GET", "/v1/process/sse", wait, {"id": id}, headers, follows=True)

    def look(self, id: str, what: str, wait: float) -> ServerCall:
        """Returns the call that asks for the results (``fetch``) or the ``status`` of a request."""
        return ServerCall("GET", f"/v1/process/{what}", wait, {"id": id})

    def _headers_of(self, request: NamedRequest) -> dict[str, str]:
        return {**request.headers, self.id_header: request.id}


# --- replies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request: its results, in the order in which the pipeline made them.

    There are none if the pipeline dropped the request, or if no sink served a result.
    """

    id: str
    results: tuple[bytes, ...]

    @property
    def value(self) -> bytes:
        """The only result; ``ValueError`` if there are none or several."""
        if len(self.results) != 1:
            raise ValueError(f"request {self.id} has {len(self.results)} results; see .results")
        return self.results[0]

    @property
    def text(self) -> str:
        """The only result as text."""
        return self.value.decode()

    def json(self) -> Any:
        """Returns the only result, parsed as JSON."""
        return json.loads(self.value)


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """The progress of a request: ``status`` is ``in-progress``, ``completed`` or ``failed``.

    ``steps`` are its path through the pipeline, oldest first. ``failure`` says why it failed.
    """

    id: str
    status: str
    accepted: datetime
    ended: datetime | None
    failure: RequestFailure | None
    steps: tuple[RequestStep, ...]


def says_nothing(reply: ServerReply) -> bool:
    """Returns whether a reply leaves open whether the request was accepted."""
    return reply.status in _NO_REPLY


def is_busy(reply: ServerReply) -> bool:
    """Returns whether the server accepts no requests at the moment, but may do so later."""
    return reply.status == _BUSY


def read_pause(reply: ServerReply) -> float:
    """Returns how many seconds a busy server asks to wait."""
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
    """Returns whether the request is complete and the reply has its results, if any."""
    return reply.status == 204 or (reply.status == 200 and not is_in_progress(reply))


def read_results(id: str, reply: ServerReply) -> Answered:
    """Returns the results of a complete request."""
    return Answered(id, tuple(_split(reply)))


def _split(reply: ServerReply) -> Iterator[bytes]:
    """Splits the body into results, which follow one another without separators."""
    ends = [0]
    for length in filter(None, reply.headers.get(_LENGTHS, "").split(",")):
        ends.append(ends[-1] + int(length))
    if ends[-1] != len(reply.body) or len(ends) - 1 != int(reply.headers.get(_COUNT, "0")):
        raise ValueError(f"{len(ends) - 1} results of {ends[-1]} bytes do not match the body")
    for start, end in pairwise(ends):
        yield reply.body[start:end]


def read_request_status(id: str, reply: ServerReply) -> RequestStatus:
    """Returns the status of a request; raises a ``RequestError`` if the reply has none."""
    if reply.status != 200:
        raise_not_found(id, reply)
    # Imported here because it imports Arrow, which other calls do not need.
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
    """Raises the error that a reply without an answer describes."""
    facts = _facts_of(reply)
    if "vertex" in facts:
        reason, error = facts.get("reason") or "", facts.get("error") or ""
        raise RequestFailed(id, facts["vertex"], reason, error)
    if reply.status >= 500:
        raise RequestInDoubt(id, f"the server replied with {reply.status}: {message_of(reply)}")
    raise RequestRefused(id, reply.status, message_of(reply))


def raise_not_found(id: str, reply: ServerReply) -> NoReturn:
    """Raises ``UnknownRequest`` for a 404, or else the error that the reply describes."""
    if reply.status == 404:
        raise UnknownRequest(id)
    raise_error(id, reply)


def message_of(reply: ServerReply) -> str:
    """Returns the server's description of a problem."""
    facts = _facts_of(reply)
    return str(facts.get("message") or facts.get("reason") or reply.body[:200].decode("latin-1"))


def _facts_of(reply: ServerReply) -> dict[str, Any]:
    try:
        facts = json.loads(reply.body)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
