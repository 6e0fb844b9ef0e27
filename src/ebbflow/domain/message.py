"""The messages of user code: it receives a ``Datum`` and returns a ``Message`` or a ``Response``.

An ``Ack`` is the server's word that a message is stored. Nothing here imports Spark or NATS, so
handlers can be written and unit-tested with these alone.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NoReturn

from ebbflow.domain.durations import Duration, milliseconds


@dataclass(frozen=True, slots=True, init=False)
class NackOptions:
    """How a nacked message is to come back. All fields are optional and unset is not zero.

    ``delay`` is kept in milliseconds (any ``Duration`` is accepted): the message is not
    redelivered before it is over. ``max_deliveries`` is the number of *re*deliveries allowed, so
    ``2`` means at most three calls; after that the message goes to the fallback sink, if the
    vertex has one, else to the dead letters. ``reason`` is for people: logged, kept on the
    message and on its dead letter, never used for routing.
    """

    delay: int | None
    max_deliveries: int | None
    reason: str | None

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        if max_deliveries is not None and (
            isinstance(max_deliveries, bool)
            or not isinstance(max_deliveries, int)
            or not 0 <= max_deliveries < 2**32
        ):
            raise ValueError(
                f"max_deliveries must be a whole number from 0, not {max_deliveries!r}"
            )
        if reason is not None and not isinstance(reason, str):
            raise ValueError(f"reason must be text, not {reason!r}")
        object.__setattr__(self, "delay", None if delay is None else milliseconds(delay))
        object.__setattr__(self, "max_deliveries", max_deliveries)
        # A reason may come from anywhere; what cannot be written must not stop a redelivery.
        text = None if reason is None else reason.encode("utf-8", "replace").decode()
        object.__setattr__(self, "reason", text)


class Nack(Exception):
    """Raised by user code, at any depth, to have the message it is working on redelivered.

    In a sink it nacks every message of the call; return ``Response.nack`` to nack only some.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
        reason: str | None = None,
    ) -> None:
        self.options = NackOptions(delay, max_deliveries, reason)
        super().__init__(self.options.delay, max_deliveries, reason)

    @classmethod
    def of(cls, options: NackOptions | None) -> Nack:
        """The exception that asks for what the options say."""
        wish = options or NackOptions()
        return cls(wish.delay, wish.max_deliveries, wish.reason)

    def __str__(self) -> str:
        return self.options.reason or "nack"


def nack(
    delay: Duration | None = None,
    max_deliveries: int | None = None,
    reason: str | None = None,
) -> NoReturn:
    """Give the message at hand back for redelivery: ``raise Nack(...)`` as a call."""
    raise Nack(delay, max_deliveries, reason)


Metadata = Mapping[str, Mapping[str, bytes]]
"""Group → key → value, as Numaflow has it."""


class Datum:
    """One message as a Spark worker gives it to user code. Read-only.

    ``deliveries`` is 1 on the first call and one more on each redelivery. ``nack_reason`` is the
    reason of the last nack. ``watermark`` is the event time up to which the vertex has seen
    everything, or ``None`` while that is not known. In a unit test, make one yourself.
    """

    __slots__ = ("_fields",)
    _fields: dict[str, Any]

    def __init__(
        self,
        value: bytes,
        *,
        id: str = "",
        keys: Sequence[str] = (),
        event_time: datetime | None = None,
        watermark: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        metadata: Metadata | None = None,
        deliveries: int = 1,
        nack_reason: str | None = None,
        retries: int = 0,
    ) -> None:
        self._fields = {
            "value": value,
            "id": id,
            "keys": list(keys),
            "event_time": event_time,
            "watermark": watermark,
            "headers": dict(headers or {}),
            "metadata": {group: dict(entries) for group, entries in (metadata or {}).items()},
            "deliveries": deliveries,
            "nack_reason": nack_reason,
            "retries": retries,
        }

    def _get(self, name: str) -> Any:
        return self._fields[name]

    @property
    def id(self) -> str:
        """The id: unique in the pipeline, and the same on every delivery of this message."""
        return str(self._get("id"))

    @property
    def value(self) -> bytes:
        """The payload."""
        return self._get("value")  # type: ignore[no-any-return]

    @property
    def keys(self) -> list[str]:
        """The keys, possibly none."""
        return self._get("keys")  # type: ignore[no-any-return]

    @property
    def event_time(self) -> datetime:
        """The time when the event happened, in UTC."""
        return self._get("event_time")  # type: ignore[no-any-return]

    @property
    def watermark(self) -> datetime | None:
        """The event time up to which the vertex has seen everything, if that is known."""
        return self._get("watermark")  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the source gave; every vertex passes them on unchanged."""
        return self._get("headers")  # type: ignore[no-any-return]

    @property
    def metadata(self) -> dict[str, dict[str, bytes]]:
        """The metadata by group and key."""
        return self._get("metadata")  # type: ignore[no-any-return]

    @property
    def system_metadata(self) -> dict[str, dict[str, bytes]]:
        """The platform's metadata: ``["sink"]["retry_count"]`` is ``b"0"`` on the first try."""
        return {"sink": {"retry_count": b"%d" % self._get("retries")}}

    @property
    def deliveries(self) -> int:
        """The number of times that this vertex has got this message, this time included."""
        return self._get("deliveries")  # type: ignore[no-any-return]

    @property
    def nack_reason(self) -> str | None:
        """The reason of the last nack, if it had one."""
        return self._get("nack_reason")  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Datum(id={self.id!r}, value={self.value[:40]!r}, deliveries={self.deliveries})"


class Signal(Enum):
    """The meaning of a message that is no data to forward."""

    DROP = "drop"
    NACK = "nack"
    FAIL = "fail"

    @property
    def tag(self) -> str:
        """The tag by which Numaflow knows such a message."""
        return f"U+005C__{self.name}__"


@dataclass(slots=True)
class Message:
    """One output of a map or transformer.

    A message without ``keys``, ``event_time`` or ``metadata`` has those of its input. ``tags``
    choose the edges that it follows. ``Message(value)`` forwards a value; the class methods say
    that the input is dropped, redelivered or has failed.
    """

    value: bytes
    keys: Sequence[str] | None = None
    tags: Sequence[str] = ()
    event_time: datetime | None = None
    signal: Signal | None = None
    nack_options: NackOptions | None = None
    error: str | None = None
    metadata: Metadata | None = None

    @property
    def is_plain(self) -> bool:
        """True if it holds nothing but a value to forward, and keys perhaps."""
        return (
            self.signal is None
            and not self.tags
            and self.event_time is None
            and self.metadata is None
        )

    @classmethod
    def to_drop(cls, event_time: datetime | None = None) -> Message:
        """Forwards nothing: the input is done and counted as dropped."""
        return cls(b"", event_time=event_time, signal=Signal.DROP)

    @classmethod
    def to_nack(
        cls, options: NackOptions | None = None, event_time: datetime | None = None
    ) -> Message:
        """Redelivers the whole input; none of its other outputs is forwarded."""
        return cls(b"", event_time=event_time, signal=Signal.NACK, nack_options=options)

    @classmethod
    def to_fail(cls, error: str = "failed", event_time: datetime | None = None) -> Message:
        """Reports that the input has failed; the vertex's ``retryStrategy`` tries it again.

        Without a strategy, or after its last retry, the input goes to the dead letters. None of
        its other outputs is forwarded.
        """
        return cls(b"", event_time=event_time, signal=Signal.FAIL, error=error)


class Status(Enum):
    """The ways in which a sink can answer for one message."""

    OK = "ok"
    FAILURE = "failure"
    FALLBACK = "fallback"
    SERVE = "serve"
    ON_SUCCESS = "on_success"
    NACK = "nack"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class RowResponse:
    """A columnar sink's answer for one row; make it with one of the class methods.

    A columnar sink returns ``None`` when it has written all rows, or else a mapping from the
    numbers of the other rows to their answers. One object may answer for many rows.
    """

    status: Status
    error: str | None = None
    payload: bytes | None = None
    message: Message | None = None
    nack_options: NackOptions | None = None
    retry_after: int | None = None

    @classmethod
    def ok(cls) -> RowResponse:
        """The sink has written the row: it is done, as if it were not in the mapping."""
        return cls(Status.OK)

    @classmethod
    def failure(cls, error: str) -> RowResponse:
        """The sink could not write it: its ``retryStrategy`` decides; without one, dead letter."""
        if not isinstance(error, str) or not error.strip():
            raise ValueError("a failure needs an error message that says what went wrong")
        return cls(Status.FAILURE, error=error)

    @classmethod
    def fallback(cls) -> RowResponse:
        """Sends the message to the fallback sink, without retries."""
        return cls(Status.FALLBACK)

    @classmethod
    def serve(cls, payload: bytes) -> RowResponse:
        """Stores the payload as the answer to the request that this message came from."""
        return cls(Status.SERVE, payload=payload)

    @classmethod
    def on_success(cls, message: Message | None = None) -> RowResponse:
        """The sink has written it; the on-success sink gets ``message``, or else the original."""
        return cls(Status.ON_SUCCESS, message=message)

    @classmethod
    def nack(cls, options: NackOptions | None = None) -> RowResponse:
        """Redelivers this message; the other rows keep their own answers."""
        return cls(Status.NACK, nack_options=options)

    @classmethod
    def unavailable(cls, what: str, retry_after: Duration | None = None) -> RowResponse:
        """The system ``what`` is away: no message is blamed, and this one comes again.

        If the sink answers so for every row of a call, it is not called again before
        ``retry_after``.
        """
        wait = None if retry_after is None else milliseconds(retry_after)
        return cls(Status.UNAVAILABLE, error=what, retry_after=wait)


@dataclass(slots=True)
class Response:
    """A sink's answer for one message; make it with one of the class methods.

    A sink returns one for each ``Datum`` of its call. A message without an answer, or with two, is
    a broken contract and is redelivered like after an exception; the others keep their answers.
    """

    id: str
    status: Status
    error: str | None = None
    payload: bytes | None = None
    message: Message | None = None
    nack_options: NackOptions | None = None
    retry_after: int | None = None

    @classmethod
    def ok(cls, id: str) -> Response:
        """The sink has written the message: it is done."""
        return cls(id, Status.OK)

    @classmethod
    def failure(cls, id: str, error: str) -> Response:
        """The sink could not write it: its ``retryStrategy`` decides; without one, dead letter."""
        if not isinstance(error, str) or not error.strip():
            raise ValueError("a failure needs an error message that says what went wrong")
        return cls(id, Status.FAILURE, error=error)

    @classmethod
    def fallback(cls, id: str) -> Response:
        """Sends the message to the fallback sink, without retries."""
        return cls(id, Status.FALLBACK)

    @classmethod
    def serve(cls, id: str, payload: bytes) -> Response:
        """Stores the payload as the answer to the request that this message came from."""
        return cls(id, Status.SERVE, payload=payload)

    @classmethod
    def on_success(cls, id: str, message: Message | None = None) -> Response:
        """The sink has written it; the on-success sink gets ``message``, or else the original."""
        return cls(id, Status.ON_SUCCESS, message=message)

    @classmethod
    def nack(cls, id: str, options: NackOptions | None = None) -> Response:
        """Redelivers this message; the others of the batch keep their own answers."""
        return cls(id, Status.NACK, nack_options=options)

    @classmethod
    def unavailable(cls, id: str, what: str, retry_after: Duration | None = None) -> Response:
        """The system ``what`` is away: no message is blamed, and this one comes again.

        Does for one message of a batch what ``raise Unavailable(...)`` does for all. If the sink
        answers so for every message of a call, it is not called again before ``retry_after``.
        """
        wait = None if retry_after is None else milliseconds(retry_after)
        return cls(id, Status.UNAVAILABLE, error=what, retry_after=wait)


@dataclass(frozen=True, slots=True)
class Ack:
    """The server's word that a message is stored.

    ``duplicate`` says that the stream had its id before, be it from an earlier attempt of the same
    call; ``seq`` is the place of the copy that is stored. ``attempts`` is how often it was sent.
    """

    stream: str
    seq: int
    duplicate: bool
    attempts: int


_RANDOM = ~(15 << 76 | 3 << 62)
_VERSION_7 = 7 << 76 | 2 << 62


def make_request_id() -> str:
    """Returns a new id, by this machine's clock."""
    return format_request_id(time.time_ns() // 1_000_000, os.urandom(10))


def format_request_id(milliseconds: int, random: bytes) -> str:
    """Returns the id of a moment since 1970; ten random bytes tell it from others."""
    value = milliseconds << 80 | int.from_bytes(random, "big")
    digits = f"{value & _RANDOM | _VERSION_7:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Returns bytes for JSON: as text, or ``{"base64": …}`` if they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
