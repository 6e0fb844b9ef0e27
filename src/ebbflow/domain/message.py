"""The messages of user code: it receives a ``Datum`` and returns a ``Message`` or a ``Response``.

An ``Ack`` is the server's confirmation that a message is stored. Nothing here imports Spark or
NATS, so handlers can be written and unit-tested with this module alone.
"""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from numbers import Real
from typing import TYPE_CHECKING, Any, Never, NoReturn

from ebbflow.domain.durations import Duration, is_duration, milliseconds
from ebbflow.domain.spelling import Gone, named_options, no_attribute, no_option


@dataclass(frozen=True, slots=True, init=False)
class NackOptions:
    """How a nacked message is to be redelivered. All fields are optional and unset is not zero.

    ``delay`` is in milliseconds, as in Numaflow's SDKs, or any ``Duration``: the message is not
    redelivered before it has passed. ``max_deliveries`` is the number of *re*deliveries allowed, so
    ``2`` means at most three calls; after that the message goes to the fallback sink, if the
    vertex has one, else to the dead letters. ``reason`` is for people: logged, kept on the
    message and on its dead letter, never used for routing.
    """

    delay: int | None
    max_deliveries: int | None
    reason: str | None

    @named_options
    def __init__(
        self,
        delay: Duration | float | None = None,
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
        object.__setattr__(self, "delay", None if delay is None else _kept_delay(delay))
        object.__setattr__(self, "max_deliveries", max_deliveries)
        # A reason may be any text; characters that cannot be encoded must not stop a redelivery.
        if reason is not None and (type(reason) is not str or not reason.isascii()):
            reason = reason.encode("utf-8", "replace").decode()
        object.__setattr__(self, "reason", reason)

    @classmethod
    def of(
        cls, reason: str | NackOptions | None, delay: Duration | None, max_deliveries: int | None
    ) -> NackOptions:
        """Returns the options of a nack: its keywords, or ``NackOptions`` passed as the reason.

        A duration as the reason is refused: it used to be the delay, and without a delay the
        message would be redelivered at once, again and again.
        """
        if isinstance(reason, timedelta) or (isinstance(reason, str) and is_duration(reason)):
            raise TypeError(f"the first argument of a nack is its reason; write delay={reason!r}")
        if not isinstance(reason, NackOptions):
            return cls(None if delay is None else milliseconds(delay), max_deliveries, reason)
        if delay is not None or max_deliveries is not None:
            raise TypeError("set delay and max_deliveries in NackOptions, not next to it")
        return reason


def _kept_delay(delay: Duration | float) -> int:
    if isinstance(delay, bool | timedelta | str) or not isinstance(delay, Real):
        return milliseconds(delay)  # type: ignore[arg-type]
    if not 0 <= delay < 2**53:
        raise ValueError(f"{delay!r} is not a delay in milliseconds from 0 up")
    return math.ceil(delay)


def _options(
    reason: str | NackOptions | None, delay: Duration | None, max_deliveries: int | None
) -> NackOptions | None:
    """Returns the options of a nack; ``None`` if unset, so that another nack may set them."""
    if reason is None and delay is None and max_deliveries is None:
        return None
    return NackOptions.of(reason, delay, max_deliveries)


class Nack(Exception):
    """Raised by user code, at any depth, to have the message it is working on redelivered.

    ``raise Nack("customer not known yet", delay="5s", max_deliveries=3)``. The message is
    redelivered once the delay has passed, at most ``max_deliveries`` times. In a sink it nacks
    every message of the call; return ``Response.nack`` to nack only some.
    """

    @named_options
    def __init__(
        self,
        reason: str | NackOptions | None = None,
        *,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
    ) -> None:
        self.options = NackOptions.of(reason, delay, max_deliveries)
        super().__init__(self.options)

    def __str__(self) -> str:
        return self.options.reason or "nack"

    of = Gone("Nack(options)")


@named_options
def nack(
    reason: str | NackOptions | None = None,
    *,
    delay: Duration | None = None,
    max_deliveries: int | None = None,
) -> NoReturn:
    """Redelivers the current message: the same as ``raise Nack(...)``. Never returns."""
    raise Nack(reason, delay=delay, max_deliveries=max_deliveries)


Metadata = Mapping[str, Mapping[str, bytes]]
"""Group → key → value, as in Numaflow."""


_FACTS = (
    "value", "id", "keys", "event_time", "watermark", "headers", "metadata", "deliveries",
    "nack_reason", "retries",
)  # fmt: skip


class Datum:
    """One message as user code receives it. Read-only.

    ``deliveries`` is 1 on the first call and one more on each redelivery. ``nack_reason`` is the
    reason of the last nack. ``watermark`` is the event time up to which the vertex has seen
    everything, or ``None`` while that is not known. In a unit test, create one yourself; its
    ``event_time`` defaults to the time of creation. Two are equal if all their arguments are.
    """

    __slots__ = ("_fields",)
    _fields: dict[str, Any]

    @named_options
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
            "made": datetime.now(UTC),
            "value": value,
            "id": id,
            "keys": tuple(keys),
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

    if not TYPE_CHECKING:  # checkers know the names

        def __getattr__(self, name: str) -> Any:
            """Raises for an unknown name; the error names ``Datum``, not a class of the engine."""
            raise no_attribute(Datum, name)

    @property
    def id(self) -> str:
        """The id: unique in the pipeline, and the same on every delivery of this message."""
        return str(self._get("id"))

    @property
    def value(self) -> bytes:
        """The payload."""
        return self._get("value")  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        """The payload as text. ``UnicodeDecodeError`` if it is not UTF-8."""
        return self.value.decode()

    def json(self) -> Any:
        """Returns the payload parsed as JSON. ``ValueError`` if it is not JSON."""
        return json.loads(self.value)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, possibly none."""
        return tuple(self._get("keys"))

    @property
    def event_time(self) -> datetime:
        """The time when the event happened, in UTC."""
        return self._get("event_time") or self._get("made")  # type: ignore[no-any-return]

    @property
    def watermark(self) -> datetime | None:
        """The event time up to which the vertex has seen everything, if that is known."""
        return self._get("watermark")  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, str]:
        """The headers from the source; every vertex passes them on unchanged."""
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
        """How often this vertex has received this message, including this delivery."""
        return self._get("deliveries")  # type: ignore[no-any-return]

    @property
    def nack_reason(self) -> str | None:
        """The reason of the last nack, if it had one."""
        return self._get("nack_reason")  # type: ignore[no-any-return]

    @property
    def retries(self) -> int:
        """How often the ``retryStrategy`` has retried this delivery: 0 on the first call."""
        return self._get("retries")  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datum):
            return NotImplemented
        return all(self._compared(name) == other._compared(name) for name in _FACTS)

    def __hash__(self) -> int:
        return hash((self.id, self.value))

    def _compared(self, name: str) -> Any:
        return self.keys if name == "keys" else self._get(name)

    def __repr__(self) -> str:
        return f"Datum(id={self.id!r}, value={self.value[:40]!r}, deliveries={self.deliveries})"


class Signal(Enum):
    """The meaning of a message that has no data to forward."""

    DROP = "drop"
    NACK = "nack"
    FAIL = "fail"

    @property
    def tag(self) -> str:
        """Numaflow's tag for such a message."""
        return f"U+005C__{self.name}__"


@dataclass(slots=True)
class Message:
    """One output of a map or transformer.

    A message without ``keys``, ``event_time`` or ``metadata`` has those of its input. ``tags``
    choose the edges that it follows. ``Message(value)`` and ``Message.json(value)`` forward a
    value; the other class methods drop or redeliver the input, or report it as failed.
    """

    value: bytes
    keys: Sequence[str] | None = None
    tags: Sequence[str] = ()
    event_time: datetime | None = None
    signal: Signal | None = None
    nack_options: NackOptions | None = None
    error: str | None = None
    metadata: Metadata | None = None

    # Written out, because a decorator would take longer than all the assignments.
    def __init__(
        self,
        value: bytes,
        keys: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        event_time: datetime | None = None,
        signal: Signal | None = None,
        nack_options: NackOptions | None = None,
        error: str | None = None,
        metadata: Metadata | None = None,
        **wrong: Never,
    ) -> None:
        if wrong:
            raise no_option("Message()", next(iter(wrong)), [field.name for field in fields(self)])
        self.value = value
        self.keys = keys
        self.tags = tags
        self.event_time = event_time
        self.signal = signal
        self.nack_options = nack_options
        self.error = error
        self.metadata = metadata

    @property
    def is_plain(self) -> bool:
        """True if it has only a value to forward, and possibly keys."""
        return (
            self.signal is None
            and not self.tags
            and self.event_time is None
            and self.metadata is None
        )

    @classmethod
    @named_options
    def json(
        cls,
        value: Any,
        keys: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        event_time: datetime | None = None,
        metadata: Metadata | None = None,
    ) -> Message:
        """Forwards a value as JSON: any value that ``json.dumps`` accepts, or a pydantic model.

        Raises ``TypeError`` or ``ValueError`` for a value that JSON cannot represent.
        """
        return cls(write_json(value), keys, tags, event_time, metadata=metadata)

    @classmethod
    def to_drop(cls, event_time: datetime | None = None) -> Message:
        """Forwards nothing: the input is done and counted as dropped."""
        return cls(b"", event_time=event_time, signal=Signal.DROP)

    @classmethod
    @named_options
    def to_nack(
        cls,
        reason: str | NackOptions | None = None,
        event_time: datetime | None = None,
        *,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
    ) -> Message:
        """Redelivers the whole input, as ``Nack`` does; none of its other outputs is forwarded."""
        options = _options(reason, delay, max_deliveries)
        return cls(b"", event_time=event_time, signal=Signal.NACK, nack_options=options)

    @classmethod
    @named_options
    def to_fail(cls, error: str = "failed", event_time: datetime | None = None) -> Message:
        """Reports that the input has failed; the vertex's ``retryStrategy`` tries it again.

        Without a strategy, or after its last retry, the input goes to the dead letters. None of
        its other outputs is forwarded.
        """
        return cls(b"", event_time=event_time, signal=Signal.FAIL, error=error)


class Status(Enum):
    """The kinds of response that a sink can return for a message."""

    OK = "ok"
    FAILURE = "failure"
    FALLBACK = "fallback"
    SERVE = "serve"
    ON_SUCCESS = "on_success"
    NACK = "nack"
    UNAVAILABLE = "unavailable"


_OK = Status.OK  # looking it up each time would take as long as making the response


@dataclass(slots=True)
class Response:
    """A sink's response to one message; make it with one of the class methods.

    A sink of lists returns one for each ``Datum`` of its call, with its id. A message with no
    response or several is a contract violation and is redelivered as after an exception; the other
    messages keep their responses. A sink that is annotated ``-> None`` returns nothing: when it
    returns, all messages count as written.

    A columnar sink returns ``None`` when it has written all rows, or else a mapping from the
    numbers of the other rows to their responses. These have no id; pass the other fields by name:
    ``{3: Response.failure(error="no amount")}``. One object may be the response for many rows.
    """

    id: str
    status: Status
    error: str | None = None
    payload: bytes | None = None
    message: Message | None = None
    nack_options: NackOptions | None = None
    retry_after: int | None = None

    @classmethod
    def ok(cls, id: str = "") -> Response:
        """The sink has written the message: it is done."""
        return cls(id, _OK)

    @classmethod
    @named_options
    def failure(cls, id: str = "", error: str = "") -> Response:
        """The sink could not write it: ``retryStrategy`` applies; without one, dead letter."""
        if not isinstance(error, str) or not error.strip():
            raise ValueError(
                "a failure needs an error message that says what went wrong; write "
                "Response.failure(datum.id, error), or Response.failure(error=...) for a row"
            )
        return cls(id, Status.FAILURE, error=error)

    @classmethod
    def fallback(cls, id: str = "") -> Response:
        """Sends the message to the fallback sink, without retries."""
        return cls(id, Status.FALLBACK)

    @classmethod
    @named_options
    def serve(cls, id: str = "", payload: bytes | None = None) -> Response:
        """Stores the payload as the answer to the request that this message came from."""
        if payload is None:
            raise ValueError(
                "serving needs a payload; write Response.serve(datum.id, payload), or "
                "Response.serve(payload=...) for a row"
            )
        return cls(id, Status.SERVE, payload=payload)

    @classmethod
    @named_options
    def on_success(cls, id: str = "", message: Message | None = None) -> Response:
        """The sink has written it; the on-success sink gets ``message``, or else the original."""
        return cls(id, Status.ON_SUCCESS, message=message)

    @classmethod
    @named_options
    def nack(
        cls,
        id: str = "",
        reason: str | NackOptions | None = None,
        *,
        delay: Duration | None = None,
        max_deliveries: int | None = None,
    ) -> Response:
        """Redelivers this message, as ``Nack`` does; the others keep their own responses."""
        options = _options(reason, delay, max_deliveries)
        return cls(id, Status.NACK, nack_options=options)

    @classmethod
    @named_options
    def unavailable(
        cls, id: str = "", what: str = "", retry_after: Duration | None = None
    ) -> Response:
        """The system ``what`` is unavailable: the message is redelivered and not counted as failed.

        Does for one message of a batch what ``raise Unavailable(...)`` does for all. If every
        message of a call gets this response, the sink is not called again before ``retry_after``.
        """
        if not what:
            raise ValueError(
                "name the system that is unavailable; write Response.unavailable(datum.id, what), "
                "or Response.unavailable(what=...) for a row"
            )
        wait = None if retry_after is None else milliseconds(retry_after)
        return cls(id, Status.UNAVAILABLE, error=what, retry_after=wait)


@dataclass(frozen=True, slots=True)
class Ack:
    """The server's confirmation that a message is stored.

    ``duplicate`` says that the stream already had its id, perhaps from an earlier attempt of the
    same call; ``seq`` is the sequence of the stored copy. ``attempts`` is how often it was sent.
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
    """Returns the id for a time since 1970; ten random bytes make it unique."""
    value = milliseconds << 80 | int.from_bytes(random, "big")
    digits = f"{value & _RANDOM | _VERSION_7:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def write_json(value: Any) -> bytes:
    """Returns a value as JSON; a pydantic model serialises itself."""
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json()).encode()
    return json.dumps(value, allow_nan=False).encode()


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Returns bytes for JSON: as text, or ``{"base64": …}`` if they are not text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
