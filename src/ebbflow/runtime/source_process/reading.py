"""A source in its process: opened, read from, and sent acks and nacks of its messages.

All its methods are called from one thread. Messages that it delivered and that are not settled are
in flight, and are sent again to the next task.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import SetupError
from ebbflow.domain.message import NackOptions
from ebbflow.domain.user_source import NackOffset, SourceMessage, redelivers
from ebbflow.engine.blame import USER_ERRORS, SystemOutage
from ebbflow.engine.redelivery import format_traceback
from ebbflow.engine.source_columns import check_columns, columns_of, rows_of
from ebbflow.numaflow.pynumaflow.adapters import adapt
from ebbflow.runtime.source_process.protocol import (
    Failed,
    Hello,
    Order,
    ReadRows,
    Settle,
    SettleDone,
    SourceReport,
)
from ebbflow.usercode.calling import Handler
from ebbflow.usercode.printing import Printed
from ebbflow.usercode.targets import resolve

WINDOW = 40_000
"""The most unsettled messages; no more are read then."""
_MOST_BYTES = 64 * 1024 * 1024
_SETTLE_SOON = 0.25
# Seconds that a read of available messages waits: not zero, which means forever to some clients.
_AVAILABLE = 0.001
_REPORT_EVERY = 2.0
_PRINTED = 1_000
T = TypeVar("T")


class SourceReading:
    """One source, for one task after another."""

    gathering = 0.005
    """A quick source is read for this many seconds before its messages are sent."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._in_flight = InFlightRows()
        self._inherited: set[bytes] = set()
        self._again: deque[pa.RecordBatch] = deque()
        self._lines: list[Printed] = []
        self._source: Any = None
        self._failure: BaseException | None = None
        self._calling = "open"
        self._returns_columns = self._was_dry = False
        self._reported_exhausted, self._reported_at = False, 0.0

    def note_printed(self, printed: Printed) -> None:
        """Keeps a line that the source has printed, for the next report."""
        self._lines = [*self._lines[1 - _PRINTED :], printed]

    def begin_task(self) -> None:
        """Sends messages that the last task has not settled to the next one again."""
        self._again.extendleft(reversed(self._in_flight.take_all()))
        self._reported_exhausted, self._reported_at = False, 0.0

    @property
    def has_room(self) -> bool:
        """Whether there may be another read before something is settled."""
        return len(self._in_flight) < WINDOW and self._in_flight.nbytes < _MOST_BYTES

    def attempt(
        self, what: Literal["greet", "settle", "read"], call: Callable[..., T], *arguments: Any
    ) -> T | Failed:
        """Returns what the call returns, or how a method of the source failed."""
        try:
            return call(*arguments)
        except SetupError as error:  # its text needs no addition
            return Failed(what, str(error), format_traceback(error))
        except USER_ERRORS as error:
            text = f"{self._calling}() raised {type(error).__name__}: {error}"
            self._reported_at = 0.0  # a report follows the next read that succeeds
            return Failed(what, text, format_traceback(error), self._outage(error, text))

    def _outage(self, error: BaseException, what: str) -> SystemOutage | None:
        """Returns the outage that the error shows, if it does; the source is then closed."""
        if not self._order.systems.means_down(error):
            return None
        self.close()
        self._source = None
        self._inherited |= self._in_flight.offsets
        for rows in self._again:
            self._inherited.update(rows.column("offset").to_pylist())
        outage = SystemOutage.of(error)
        return outage if outage.named else replace(outage, what=" ".join(what.split()))

    # --- opening --------------------------------------------------------------------------------

    def greet(self) -> Hello:
        """Opens the source, if it is not open."""
        self._open()
        partitions = list(self._call("partitions", ()))
        self._reported_exhausted = self._exhausted and not self._again
        return Hello(redelivers(self._source), self._reported_exhausted, partitions)

    def _open(self) -> None:
        """Makes and opens the source, if it is not open: at first, and after an outage."""
        if self._source is None:
            self._calling = "open"
            code = self._load_code()
            search = self._order.search
            if isinstance(code, str):
                code = resolve(code, Path(search) if search else None)
            self._handler = Handler(adapt(code, "source"))
            self._source = self._handler.instance

    def _load_code(self) -> Any:
        return pickle.loads(self._order.code)  # noqa: S301 - from our own parent process

    @property
    def _exhausted(self) -> bool:
        return bool(getattr(self._source, "exhausted", False))

    def close(self) -> None:
        """Closes the source; errors no longer matter."""
        if self._source is not None:
            with contextlib.suppress(*USER_ERRORS):
                self._handler.close()

    # --- reading --------------------------------------------------------------------------------

    def read(self) -> ReadRows | None:
        """Returns messages, first those that an earlier task has not settled; ``None`` if none."""
        rows = self._again.popleft() if self._again else self._read_source()
        rows = self._in_flight.without_known(rows)
        self._was_dry = not rows.num_rows
        if self._was_dry:
            return None
        self._in_flight.add(rows)
        return ReadRows.of(rows)

    def _read_source(self) -> pa.RecordBatch:
        if self._failure is not None:
            self._calling, error, self._failure = "read", self._failure, None
            raise error
        began, order = time.monotonic(), self._order
        # While messages are unsettled, the task may soon send acks.
        timeout = min(_SETTLE_SOON, order.timeout) if len(self._in_flight) else order.timeout
        result = self._read_once(0, timeout)
        if isinstance(result, pa.RecordBatch):
            return self._rows_of(check_columns(result))
        messages = _list_messages(result)
        full = len(messages) >= order.limit
        while full and time.monotonic() - began < self.gathering:
            full = self._gather(messages)
        return self._rows_of(columns_of(messages))

    def _read_once(self, waiting: int, timeout: float) -> Any:
        """Calls the source; ``waiting`` messages are to be sent besides those in flight."""
        most = self._order.columns_limit if self._returns_columns else self._order.limit
        room = WINDOW - len(self._in_flight) - waiting
        result = self._call("read", None, min(most, room), timedelta(seconds=timeout))
        self._returns_columns = isinstance(result, pa.RecordBatch)
        return result

    def _gather(self, messages: list[SourceMessage]) -> bool:
        """Adds what a quick source has available; returns whether there may be more.

        An answer with many messages costs hardly more than one with few, here and in the task.
        """
        if len(self._in_flight) + len(messages) >= WINDOW:
            return False
        try:
            result = self._read_once(len(messages), _AVAILABLE)
            if isinstance(result, pa.RecordBatch):
                self._again.append(self._rows_of(check_columns(result)))
                return False
            messages += (more := _list_messages(result))
        except USER_ERRORS as error:
            # Raised by the next read: the messages read so far exist only here and are sent first.
            self._failure = error
            return False
        return len(more) >= self._order.limit

    def _rows_of(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        if self._inherited:  # the source knows the messages that it redelivers
            self._inherited.difference_update(columns.column("offset").to_pylist())
        return rows_of(columns, self._order.vertex, self._order.partition, datetime.now(UTC))

    def report(self) -> SourceReport | None:
        """Returns the report after a read, if one is due."""
        exhausted = self._was_dry and self._exhausted
        due = time.monotonic() - self._reported_at > _REPORT_EVERY
        if not (due or self._lines or exhausted != self._reported_exhausted):
            return None
        pending = self._call("pending", None)
        self._reported_at, self._reported_exhausted = time.monotonic(), exhausted
        printed, self._lines = self._lines, []
        return SourceReport(exhausted, printed, None if pending is None else int(pending))

    # --- settling -------------------------------------------------------------------------------

    def settle(self, ends: Settle) -> SettleDone:
        """Acknowledges settled messages to the source, and nacks those that it must redeliver."""
        acks, nacks = ends.read_acks(), ends.read_nacks()
        offsets = (acks, nacks.column("offset"))
        if self._inherited:
            inherited = [self._is_inherited(column) for column in offsets]
            known = [pc.invert(mask) for mask in inherited]
            self._ack_and_nack(acks.filter(known[0]), nacks.filter(known[1]))
            self._settle_inherited(acks.filter(inherited[0]), nacks.filter(inherited[1]))
        else:
            self._ack_and_nack(acks, nacks)
        for settled in offsets:
            self._in_flight.settle(settled)
            self._inherited.difference_update(settled.to_pylist() if self._inherited else ())
        # The source redelivers a nacked message, so it may no longer be exhausted.
        self._reported_exhausted = self._reported_exhausted and self._exhausted
        return SettleDone(self._reported_exhausted)

    def _is_inherited(self, offsets: pa.BinaryArray) -> pa.BooleanArray:
        """Returns which of the messages were delivered by a source that is gone."""
        return pa.array(map(self._inherited.__contains__, offsets.to_pylist()), pa.bool_())

    def _ack_and_nack(self, acks: pa.BinaryArray, nacks: pa.RecordBatch) -> None:
        if len(acks):
            self._open()
            if hasattr(self._source, "ack_columns"):
                self._call("ack_columns", None, acks)
            else:
                self._call("ack", None, acks.to_pylist())
        if nacks.num_rows:
            self._call("nack", None, _list_nacks(nacks))

    def _settle_inherited(self, acks: pa.BinaryArray, nacks: pa.RecordBatch) -> None:
        """Sends a source that was made again the acks and nacks of an earlier one's messages.

        It need not know them, and may raise: then it redelivers them.
        """
        # In separate calls, also from those for messages that it knows: if one raises, the source
        # must still receive the others. It would wait for their outcomes forever.
        for some, others in ((acks, nacks.slice(0, 0)), (acks.slice(0, 0), nacks)):
            try:
                self._ack_and_nack(some, others)
            except USER_ERRORS as error:
                if self._order.systems.means_down(error):
                    raise

    def _call(self, name: str, absent: Any, *arguments: Any) -> Any:
        self._open()
        self._calling = name.removesuffix("_columns")
        method: Callable[..., Any] | None = getattr(self._source, name, None)
        return absent if method is None else self._handler.finish(method(*arguments))


def _list_messages(result: Iterable[SourceMessage] | None) -> list[SourceMessage]:
    messages = list(result or ())
    for kind in {type(message) for message in messages}:
        if not issubclass(kind, SourceMessage):
            raise TypeError(
                "read() must return SourceMessage objects or a pyarrow.RecordBatch, "
                f"not {kind.__name__}"
            )
    return messages


def _list_nacks(nacks: pa.RecordBatch) -> list[NackOffset]:
    columns = (column.to_pylist() for column in nacks.columns)
    return [
        NackOffset(offset, NackOptions(*options)) for offset, *options in zip(*columns, strict=True)
    ]


@dataclass(slots=True)
class _Batch:
    """A batch, how many of its messages are not settled, and their average bytes."""

    rows: pa.RecordBatch
    left: int
    size: float


class InFlightRows:
    """Messages by their offsets. Used by one thread."""

    def __init__(self) -> None:
        self._batch_of: dict[bytes, int] = {}
        self._batches: dict[int, _Batch] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._batch_of)

    @property
    def offsets(self) -> set[bytes]:
        """The offsets of all messages in flight."""
        return set(self._batch_of)

    @property
    def nbytes(self) -> float:
        """The approximate bytes of the messages in flight."""
        return sum(batch.left * batch.size for batch in self._batches.values())

    def without_known(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the messages that are not in flight yet, once each."""
        offsets = columns.column("offset").to_pylist()
        if self._batch_of.keys().isdisjoint(offsets) and len(set(offsets)) == len(offsets):
            return columns
        first = {offset: row for row, offset in reversed([*enumerate(offsets)])}
        fresh = sorted(row for offset, row in first.items() if offset not in self._batch_of)
        return columns.take(pa.array(fresh, pa.int64()))

    def add(self, rows: pa.RecordBatch) -> None:
        """Notes that these are in flight; none of them may be in flight already."""
        self._number += 1
        count = rows.num_rows
        self._batches[self._number] = _Batch(rows, count, rows.nbytes / max(1, count))
        self._batch_of |= dict.fromkeys(rows.column("offset").to_pylist(), self._number)

    def settle(self, offsets: pa.BinaryArray) -> None:
        """Removes these; offsets that are not in flight are ignored."""
        settled = Counter(map(self._batch_of.pop, offsets.to_pylist(), repeat(0)))
        for number, count in settled.items():
            if number:
                self._batches[number].left -= count
                if not self._batches[number].left:
                    del self._batches[number]

    def take_all(self) -> list[pa.RecordBatch]:
        """Removes and returns all messages in flight, in the order they were delivered."""
        taken = [self._unsettled(number) for number in self._batches]
        self._batch_of, self._batches = {}, {}
        return taken

    def _unsettled(self, number: int) -> pa.RecordBatch:
        batch = self._batches[number]
        if batch.left == batch.rows.num_rows:
            return batch.rows
        offsets = batch.rows.column("offset").to_pylist()
        kept = [self._batch_of.get(offset) == number for offset in offsets]
        return batch.rows.filter(pa.array(kept, pa.bool_()))
