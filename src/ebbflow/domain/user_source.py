"""User-defined sources: a ``Source`` returns messages, which Ebbflow acknowledges or nacks.

A source runs in its own process next to its vertex's task, one for each partition of the
vertex, for as long as the pipeline runs. One thread of that process calls all its methods, one at a
time; each may be ``async``. Nothing here imports Spark or NATS.

Ebbflow acknowledges a message only after its vertex has settled it: forwarded, redelivered or
dead-lettered. If the process ends before a message is acknowledged or nacked, the next process has
to return that message again. A source that does so loses nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from ebbflow.domain.message import Metadata, NackOptions

if TYPE_CHECKING:  # users of the classes here need no Arrow
    import pyarrow as pa

LONGEST_OFFSET = 4_096


@dataclass(frozen=True, slots=True, init=False)
class SourceMessage:
    """One message of a source.

    ``offset`` is the source's own name for it, unique in its process. Acknowledgements and nacks
    refer to it, and a redelivered message has the same offset. ``partition`` is its partition of
    the external system, if that is not the vertex's own. ``deliveries`` is how often the source
    has delivered it, 1 at first, if the source counts that itself; otherwise Ebbflow counts.
    ``metadata`` is carried along by group and key, and maps may change it.
    """

    value: bytes
    offset: bytes
    event_time: datetime | None
    keys: Sequence[str]
    headers: Mapping[str, str]
    partition: int | None
    deliveries: int | None
    metadata: Metadata

    def __init__(
        self,
        value: bytes,
        offset: bytes,
        event_time: datetime | None = None,
        keys: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        deliveries: int | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        # A source makes hundreds of thousands of these a second: nothing is checked twice, and the
        # slots are set directly, which takes a third of the time of the usual way.
        if type(value) is not bytes or type(offset) is not bytes:
            _check("value", value, bytes)
            _check("offset", offset, bytes)
        if not 0 < len(offset) <= LONGEST_OFFSET:
            raise ValueError(f"offset must have 1 to {LONGEST_OFFSET} bytes, not {len(offset)}")
        if event_time is not None:
            _check_time(event_time)
        if keys and (isinstance(keys, str) or not all(isinstance(key, str) for key in keys)):
            raise TypeError(f"keys must be a sequence of texts, not {keys!r}")
        _set_value(self, value)
        _set_offset(self, offset)
        _set_event_time(self, event_time)
        _set_keys(self, keys)
        _set_headers(self, {} if headers is None else headers)
        _set_partition(self, partition)
        _set_deliveries(self, deliveries)
        _set_metadata(self, {} if metadata is None else metadata)


(
    _set_value,
    _set_offset,
    _set_event_time,
    _set_keys,
    _set_headers,
    _set_partition,
    _set_deliveries,
    _set_metadata,
) = (getattr(SourceMessage, field.name).__set__ for field in fields(SourceMessage))


def _check(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")


def _check_time(event_time: datetime) -> None:
    _check("event_time", event_time, datetime)
    if event_time.utcoffset() is None:
        raise ValueError("event_time must have a time zone")


@dataclass(frozen=True, slots=True)
class NackOffset:
    """A message to redeliver, with exactly the options of the nack.

    After an exception in user code, the options have the wait of the vertex's back-off.
    """

    offset: bytes
    options: NackOptions


Messages: TypeAlias = "Iterable[SourceMessage] | pa.RecordBatch"
"""What a source returns: messages one by one, or as columns."""


class Source(ABC):
    """A source of messages. Subclass it, and pass the subclass as the code of a source.

    Its process calls ``open()``, if there is one, before the first ``read``, and ``close()`` when
    the pipeline stops. An exception in any method fails the vertex; Ebbflow starts it again after
    a while with a new process, and the run shows why.
    """

    @abstractmethod
    def read(self, limit: int, timeout: timedelta) -> Messages | Awaitable[Messages]:
        """Returns up to ``limit`` messages; waits at most about ``timeout`` for the first.

        Ebbflow calls it repeatedly, and ``ack`` and ``nack`` in between. Instead of
        ``SourceMessage`` objects it may return a ``pyarrow.RecordBatch`` with a row for each
        message: binary columns ``offset`` and ``value``, and any of the optional columns that the
        guide about sources names.
        """

    @abstractmethod
    def ack(self, offsets: Sequence[bytes]) -> Awaitable[None] | None:
        """Receives settled messages: do not redeliver them. The same offset may arrive twice."""

    def ack_columns(self, offsets: pa.BinaryArray) -> Awaitable[None] | None:
        """Receives settled messages as one Arrow column, Ebbflow's own form.

        Calls ``ack``. A source that works on columns overrides it, to avoid a Python object for
        each message.
        """
        return self.ack(offsets.to_pylist())

    def nack(self, nacks: Sequence[NackOffset]) -> Awaitable[None] | None:
        """Receives messages to redeliver, each not before its delay is over.

        A source may ignore ``max_deliveries`` and ``reason``: Ebbflow counts, moves messages that
        were nacked too often to the fallback or the dead letters, and acknowledges them.

        A source that cannot redeliver messages leaves this method out. Ebbflow then keeps nacked
        messages, redelivers them itself and acknowledges them to the source.
        """
        raise NotImplementedError

    def pending(self) -> Awaitable[int | None] | int | None:
        """Returns how many messages wait to be read, or ``None`` where that is not known."""
        return None

    def partitions(self) -> Awaitable[Sequence[int]] | Sequence[int]:
        """Returns the partitions of the external system that this process reads, for display."""
        return ()

    @property
    def exhausted(self) -> bool:
        """Whether no further message will ever arrive; ``ebbflow run --drain`` then ends.

        ``False`` while a nacked message is still to be redelivered.
        """
        return False


def redelivers(source: object) -> bool:
    """Returns whether the source redelivers nacked messages; it may know only once it is open."""
    nack = getattr(source, "nack", None)
    return nack is not None and getattr(nack, "__func__", nack) is not Source.nack
