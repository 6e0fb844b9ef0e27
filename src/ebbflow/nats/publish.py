"""Publishing to JetStream until it is confirmed: the one retry loop that everything uses.

ADR-22 retries when a subject has no subscriber ("no responders"). That alone does not survive a
killed leader, where the request in flight gets no reply, so each attempt also has its own timeout
inside the total deadline. Every attempt carries the same message id: the server answers a second
copy with ``duplicate`` and stores it once. A full stream is not a failure but back-pressure.

The server remembers an id only for the duplicate window, and after a restart only if the message is
still stored. For messages that the server moves or deletes by itself, callers pass ``find_copy``:
it is called after an attempt without a reply, until it succeeds, before the message is sent again.

Nothing is sent without a connection, so that copies do not pile up in the client. Waiting for the
connection counts against the deadline but not as an attempt. No wait exceeds the deadline.

Callers of the public publishers pass an ``Outgoing``, the message, and ``PublishOptions``, how hard
to try. Both raise when they are created with values that JetStream cannot take or that make no
sense.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar
from uuid import uuid4

import nats.errors

from ebbflow.domain.durations import Duration, to_seconds
from ebbflow.domain.errors import (
    AccessError,
    BufferFull,
    JetStreamUnavailable,
    MessageTooLarge,
    NoStreamResponse,
    PermanentPublishError,
    PublishError,
    PublishTimeout,
)
from ebbflow.domain.message import Ack
from ebbflow.domain.spelling import named_fields
from ebbflow.nats.api import ApiError
from ebbflow.nats.client import NO_RESPONDERS, Answer, SecuredClient
from ebbflow.nats.wire import write_headers

E = TypeVar("E", bound=PublishError)
FindCopy = Callable[[], Awaitable[Ack | None]]
"""Returns where a copy of the message is stored; ``None`` if there is none."""

MSG_ID = "Nats-Msg-Id"
DEFAULT_ACK_WAIT = 5.0
# A token may contain * or > but not consist of it: that would be a pattern, not a subject.
_NAME = r"(?![*>](?:\.|\Z))[^\s.\x00-\x1f\x7f]+"
_SUBJECT = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_FULL = 10077
# The server is storing an earlier copy until a majority of the cluster's servers has it.
_IN_PROCESS = 10158
# No leader, out of resources, or overloaded: these pass by themselves.
_TEMPORARY = frozenset({10008, 10023, 10163, 10167})
# The form in which servers nearly always write a confirmation. Any other is parsed as JSON.
_STORED = re.compile(rb'\{"stream":"([^"\\]+)",\s*"seq":(\d+)(,\s*"duplicate":\s*true)?\}')
_CONNECTION_POLL = 0.05
_UNANSWERED = "got no answer"
_CLOSED = (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError)
# A full client buffer counts as no answer, too: the message was not sent.
_SILENCE = (TimeoutError, nats.errors.TimeoutError, nats.errors.OutboundBufferLimitError)
# After these errors it is not known whether the message is stored.
_UNKNOWN = (JetStreamUnavailable, ApiError, nats.errors.Error, TimeoutError)


@dataclass(frozen=True, slots=True)
class PublishRetry:
    """How long and how often to try. ``attempts`` of -1 means until the deadline.

    Whether to wait for a full stream is up to ``WaitForRoom``.
    """

    wait: float = 0.25
    attempts: int = 2
    ack_wait: float = 5.0
    attempt_timeout: float = 1.0


class WaitForRoom(Enum):
    """How long to wait for a full stream. A refusal by a full stream is not a counted attempt."""

    NO = "not at all: it is a BufferFull"
    DEADLINE = "until the deadline, in which the time without room counts"
    FOREVER = "for as long as it takes: the bounds begin again whenever there may be room"


BUFFER = PublishRetry(wait=0.05, attempts=-1, ack_wait=float("inf"))
"""For vertices, unless the spec says otherwise: never gives up; a stop cancels the wait."""


@dataclass(slots=True)
class Tally:
    """Counts of publish attempts and their results, updated live for progress reports.

    ``attempts`` is how often a message was sent, ``no_responders`` how often the subject had no
    subscriber, ``unanswered`` how often no answer came, ``full`` how often the stream was at its
    limit. ``refused`` is how often the server could not take it for the moment, ``confirmed`` how
    often it did. ``refusal`` is the server's text about the last one that it refused.
    """

    attempts: int = 0
    no_responders: int = 0
    unanswered: int = 0
    full: int = 0
    refused: int = 0
    confirmed: int = 0
    refusal: str = ""

    @property
    def failures(self) -> int:
        """Failed attempts; those at a full stream do not count as failures."""
        return self.no_responders + self.unanswered + self.refused

    def __add__(self, other: Tally) -> Tally:
        total = Tally(refusal=other.refusal or self.refusal)
        for name in (counter.name for counter in fields(self) if counter.name != "refusal"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def add(self, other: Tally) -> None:
        """Adds the counts of another tally to this one."""
        for name, value in asdict(self + other).items():
            setattr(self, name, value)


class Sending:
    """One message in flight: what is sent, what has been tried so far and when to give up."""

    def __init__(
        self,
        client: SecuredClient,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        retry: PublishRetry,
        *,
        room: WaitForRoom = WaitForRoom.NO,
        tally: Tally | None = None,
        began: float | None = None,
        on_full: Callable[[], None] = lambda: None,
        find_copy: FindCopy | None = None,
    ) -> None:
        self.headers = write_headers(headers)
        check_size(client.max_payload, payload, self.headers)
        self._client = client
        self.subject = subject
        self.payload = payload
        self._retry = retry
        self._room = room
        self._tally = tally or Tally()
        self._on_full = on_full
        self._find_copy = find_copy
        self._in_doubt = False
        self._begin(time.monotonic() if began is None else began)

    def _begin(self, start: float) -> None:
        self._start = start
        self._sent = 0
        self._uncounted = 0
        self._seen: dict[str, int] = {}

    async def confirm(self) -> Ack:
        """Sends it as often as needed and allowed, and returns the confirmation."""
        while True:
            ack = await self._find_stored() or await self._attempt()
            if ack is not None:
                return ack

    async def _attempt(self) -> Ack | None:
        await self._wait_for_connection()
        self._count()
        answer = await self._send()
        return self._read_stored(answer) or await self._interpret(answer)

    async def _find_stored(self) -> Ack | None:
        """Returns where an unanswered attempt has stored it; waits until that is known."""
        # Sending it without knowing may store it twice; assuming that it is stored may lose it.
        while self._in_doubt and self._find_copy is not None:
            await self._wait_for_connection()
            try:
                async with asyncio.timeout(self._remaining):
                    return self._note_copy(await self._find_copy())
            except _CLOSED as error:
                raise self.explain(PublishError, "the connection is closed") from error
            except _UNKNOWN as error:
                self._note_unknown(error)
                await asyncio.sleep(max(0.0, min(self._retry.wait, self._remaining)))
        return None

    def _note_copy(self, copy: Ack | None) -> Ack | None:
        if copy is None:
            return None
        self._tally.confirmed += 1
        return replace(copy, attempts=self._sent)

    def _note_unknown(self, error: Exception) -> None:
        self._note("failed to look for a copy")
        if isinstance(error, ApiError):
            self._tally.refused += 1
            self._tally.refusal = error.text
        else:
            self._tally.unanswered += 1

    async def continue_after(self, answer: Answer) -> Ack:
        """Continues after a first attempt, which was sent in a batch and got this answer."""
        self._count()
        return self._read_stored(answer) or await self._interpret(answer) or await self.confirm()

    @property
    def first_timeout(self) -> float:
        """The seconds that a first attempt waits for its answer."""
        return min(self._retry.attempt_timeout, self._remaining)

    def read_ack(self, answer: bytes) -> Ack:
        """Returns the confirmation of a first attempt, which was sent in a batch."""
        self._count()
        return self._read_stored(answer) or self._note_stored(_parse(answer))

    def _read_stored(self, answer: Answer) -> Ack | None:
        """Returns a confirmation in the usual form; ``None`` for any other answer."""
        plain = _STORED.fullmatch(answer) if isinstance(answer, bytes) else None
        if plain is None:
            return None
        self._tally.confirmed += 1
        return Ack(plain[1].decode(), int(plain[2]), plain[3] is not None, self._sent)

    def _note_stored(self, facts: dict[str, Any]) -> Ack:
        self._tally.confirmed += 1
        return Ack(facts["stream"], facts["seq"], bool(facts.get("duplicate")), self._sent)

    def _count(self) -> None:
        self._sent += 1
        self._tally.attempts += 1

    async def _send(self) -> Answer:
        try:
            answer = await self._client.ask(self.subject, self.headers, self.payload, self._timeout)
            return answer.data
        except nats.errors.NoRespondersError:
            return NO_RESPONDERS
        except _SILENCE:
            return None
        except AccessError as error:
            raise self._explain_denial(error) from None
        except _CLOSED as error:
            raise self.explain(PublishError, "the connection is closed") from error

    async def _interpret(self, answer: Answer) -> Ack | None:
        """Returns the confirmation; ``None`` when the message has to be sent again."""
        if answer is None:
            self._note(_UNANSWERED)
            self._tally.unanswered += 1
            self._in_doubt = True
            return None
        if answer == NO_RESPONDERS:
            self._note("found no stream")
            self._tally.no_responders += 1
            await self._pause(NoStreamResponse)
            return None
        return await self._judge(_parse(answer) if isinstance(answer, bytes) else {})

    def _note(self, what: str) -> None:
        self._seen[what] = self._seen.get(what, 0) + 1

    def explain(self, kind: type[E], text: str = "") -> E:
        """Returns the error that ends the attempts; it says if an attempt may have succeeded."""
        silent = self._seen.get(_UNANSWERED)
        doubt = f"{silent} {_UNANSWERED}, so it may be stored all the same" if silent else ""
        return self._make_error(kind, "; ".join(filter(None, (text, doubt))))

    def _explain_denial(self, error: AccessError) -> PermanentPublishError:
        if error.subject == self.subject:
            return self.explain(PermanentPublishError, "the login may not publish to it")
        # It was sent nevertheless, and may have been stored.
        self._note(_UNANSWERED)
        where = f"the login may not subscribe to {error.subject}, where the answer would come"
        return self.explain(PermanentPublishError, where)

    def _make_error(self, kind: type[E], detail: str) -> E:
        return kind(self.subject, self._sent, self._elapsed, detail)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def _remaining(self) -> float:
        return self._retry.ack_wait - self._elapsed

    @property
    def _is_last(self) -> bool:
        """``True`` if the current attempt is the last one."""
        return 0 <= self._retry.attempts < self._sent - self._uncounted

    @property
    def _timeout(self) -> float:
        """The time to wait for an answer; the last attempt gets all the time that is left."""
        return (
            self._remaining if self._is_last else min(self._retry.attempt_timeout, self._remaining)
        )

    def _explain_timeout(self) -> PublishError:
        seen = ", ".join(f"{times} {what}" for what, times in self._seen.items())
        return self._make_error(PublishTimeout, seen or "there was no connection")

    async def _wait_for_connection(self) -> None:
        """Returns when it can be sent, usually at once."""
        while True:
            if self._remaining <= 0:
                raise self._explain_timeout()
            if self._client.is_connected or self._client.is_closed:
                return  # a closed client raises when it is asked to send
            await asyncio.sleep(min(_CONNECTION_POLL, self._remaining))

    async def _pause(self, kind: type[PublishError], text: str = "") -> None:
        """Waits before the next attempt; raises when no attempt is left."""
        if self._is_last:
            raise self.explain(kind, text)
        if self._remaining <= self._retry.wait:
            await asyncio.sleep(max(0.0, self._remaining))
            raise self._explain_timeout()
        await asyncio.sleep(self._retry.wait)

    async def _judge(self, answer: dict[str, Any]) -> Ack | None:
        """Returns the confirmation; ``None`` when the message has to be sent again."""
        if error := answer.get("error"):
            await self._wait_or_raise(error.get("err_code", 0), error.get("description", ""))
            return None
        if "stream" not in answer or "seq" not in answer:
            raise self.explain(PermanentPublishError, "what answered is not a stream")
        return self._note_stored(answer)

    async def _wait_or_raise(self, code: int, text: str) -> None:
        """Returns when another attempt may succeed; raises when it cannot."""
        if code == _FULL:
            await self._wait_for_room(text)
        elif code == _IN_PROCESS:
            self._note("found a copy in process")
            self._uncounted += 1
            await self._pause(PublishTimeout, text)
        elif code in _TEMPORARY:
            self._note(f"refused: {text}")
            self._tally.refused += 1
            self._tally.refusal = text
            await self._pause(NoStreamResponse, text)
        else:
            error = self.explain(PermanentPublishError, text)
            raise PermanentPublishError(
                error.subject, error.attempts, error.seconds, error.detail, code
            )

    async def _wait_for_room(self, text: str) -> None:
        self._note("found it full")
        self._tally.full += 1
        match self._room:
            case WaitForRoom.NO:
                raise self.explain(BufferFull, text)
            case WaitForRoom.DEADLINE:
                self._uncounted += 1
                await self._pause(BufferFull, text)
            case WaitForRoom.FOREVER:
                self._on_full()
                # It is sent again with the same id, so it is stored once.
                await asyncio.sleep(self._retry.wait)
                self._begin(time.monotonic())


async def publish(
    client: SecuredClient,
    subject: str,
    payload: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    msg_id: str | None = None,
    retry: PublishRetry | None = None,
    room: WaitForRoom = WaitForRoom.NO,
    tally: Tally | None = None,
    on_full: Callable[[], None] = lambda: None,
    find_copy: FindCopy | None = None,
) -> Ack:
    """Publishes one message and returns when the server has confirmed it.

    Raises one of the ``PublishError`` family when it is not confirmed, ``MessageTooLarge`` when it
    cannot be sent at all. A call that is cancelled stops waiting at once; the message may or may
    not have arrived. ``on_full`` is called each time that a wait without a deadline finds the
    stream full. ``find_copy`` is called after an attempt without an answer, before the next one.
    """
    sent = dict(headers or {})
    if msg_id is not None:
        sent[MSG_ID] = msg_id
    bounds = retry or PublishRetry()
    sending = Sending(
        client,
        subject,
        payload,
        sent,
        bounds,
        room=room,
        tally=tally,
        on_full=on_full,
        find_copy=find_copy,
    )
    return await sending.confirm()


def check_size(largest: int, payload: bytes, headers: bytes) -> None:
    """Raises ``MessageTooLarge`` for a message over the limit, with its size.

    The server would close the connection for all its users. ``headers`` are encoded for the wire.
    """
    size = len(payload) + len(headers)
    if size > largest:
        raise MessageTooLarge(size, largest)


def _parse(data: bytes) -> dict[str, Any]:
    """Returns the server's answer; an empty dictionary for other data: any client may answer."""
    try:
        answer = json.loads(data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message. Its id is generated unless ``headers`` or ``msg_id`` has one.

    However often it is published, it is stored once within the duplicate window of its stream (two
    minutes, unless the stream says otherwise). The headers are copied.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None
    msg_id: str | None = None

    def __post_init__(self) -> None:
        check_subject(self.subject)
        if not isinstance(self.data, bytes):
            raise ValueError(f"data must be bytes, not {type(self.data).__name__}")
        headers = _check_headers(self.headers)
        header = headers.get(MSG_ID)
        if header is not None and self.msg_id not in (None, header):
            raise ValueError(f"msg_id is {self.msg_id!r}, but the header {MSG_ID} is {header!r}")
        msg_id = _check_id(self.msg_id if header is None else header)
        object.__setattr__(self, "msg_id", msg_id)
        object.__setattr__(self, "headers", MappingProxyType({**headers, MSG_ID: msg_id}))

    @classmethod
    def of(cls, message: Outgoing | tuple[str, bytes]) -> Outgoing:
        """Returns the message, made from a pair of subject and data if need be."""
        if isinstance(message, cls):
            return message
        if not isinstance(message, tuple) or len(message) != 2:
            kind = type(message).__name__
            raise ValueError(f"a message is an Outgoing or a pair (subject, data), not {kind}")
        return cls(*message)


def check_subject(subject: object, name: str = "subject") -> None:
    """Refuses a subject that cannot be published to; the error calls it ``name``."""
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject) or _CONTROL.search(subject):
        raise ValueError(
            f"{name} must be names joined by dots, without spaces, * or >, not {subject!r}"
        )


def _check_headers(headers: object) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if not isinstance(value, str) or _CONTROL.search(value):
            raise ValueError(f"header {name} must be text on one line, not {value!r}")
    return dict(headers)


def _check_id(msg_id: object) -> str:
    if msg_id is None:
        return uuid4().hex
    if not isinstance(msg_id, str) or not msg_id.strip() or _CONTROL.search(msg_id):
        raise ValueError(f"msg_id must be text on one line, not {msg_id!r}")
    return msg_id


class OptionNames(TypedDict, total=False):
    """The options as keyword arguments of a call."""

    retry_wait: float
    retry_attempts: int
    ack_wait: float | None
    deadline: datetime | None
    attempt_timeout: Duration
    wait_for_room: bool


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """When to send a message again and when to give up.

    ``retry_wait`` and ``ack_wait`` are in seconds, as NATS clients have them.

    ``retry_attempts`` is how often a message is sent again: 2 means three times in all, 0 once,
    -1 until the deadline. ``retry_wait`` is the wait after "no responders". ``ack_wait`` bounds the
    whole call (5 s); ``deadline`` does the same as a point in time. ``attempt_timeout`` is how long
    one attempt waits for an answer before the message is sent again; the last attempt waits for as
    long as there is time. ``wait_for_room`` waits for a full stream instead of ``BufferFull``.
    """

    retry_wait: float = 0.25
    retry_attempts: int = 2
    ack_wait: float | None = None
    deadline: datetime | None = None
    attempt_timeout: Duration = "1s"
    wait_for_room: bool = False

    def __post_init__(self) -> None:
        _check_seconds("retry_wait", self.retry_wait)
        if not to_seconds(self.attempt_timeout):
            raise ValueError("attempt_timeout must be longer than 0")
        if self.ack_wait is not None:
            _check_seconds("ack_wait", self.ack_wait, most=math.inf)
        _check_attempts(self.retry_attempts)
        _check_deadline(self.deadline)
        if self.ack_wait is not None and self.deadline is not None:
            raise ValueError("ack_wait and deadline both bound the call; give one of them")
        if not isinstance(self.wait_for_room, bool):
            raise ValueError(f"wait_for_room must be True or False, not {self.wait_for_room!r}")

    def with_changes(self, options: OptionNames) -> PublishOptions:
        """Returns these options with some replaced; a new time limit replaces the old one."""
        if not options:
            return self
        bounded = "ack_wait" in options or "deadline" in options
        unbound: OptionNames = {"ack_wait": None, "deadline": None} if bounded else {}
        changes: OptionNames = {**unbound, **options}
        return replace(self, **changes)

    def to_retry(self) -> PublishRetry:
        """Returns the bounds for a call that begins now."""
        if self.deadline is not None:
            ack_wait = (self.deadline - datetime.now(UTC)).total_seconds()
        else:
            ack_wait = DEFAULT_ACK_WAIT if self.ack_wait is None else self.ack_wait
        return PublishRetry(
            wait=self.retry_wait,
            attempts=self.retry_attempts,
            ack_wait=ack_wait,
            attempt_timeout=to_seconds(self.attempt_timeout),
        )

    @property
    def room(self) -> WaitForRoom:
        """How long to wait for a full stream."""
        return WaitForRoom.DEADLINE if self.wait_for_room else WaitForRoom.NO


def _check_seconds(name: str, value: object, most: float = sys.float_info.max) -> None:
    # Written so that nan, for which every comparison is false, is refused.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")


def _check_attempts(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < -1:
        raise ValueError(
            "retry_attempts must be a whole number from 0, or -1 to continue until the deadline, "
            f"not {value!r}"
        )


def _check_deadline(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ValueError(f"deadline must be a datetime with a time zone, not {value!r}")
