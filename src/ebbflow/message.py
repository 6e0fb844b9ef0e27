"""The messages of user code: it receives a ``Datum`` and returns a ``Message`` or a ``Response``.

Nothing here imports Spark or NATS, so handlers can be written and unit-tested with these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from ebbflow.durations import Duration, milliseconds
from ebbflow.nacks import NackOptions

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
