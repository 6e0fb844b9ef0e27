"""Runs a source in the process of the test: reads it, and settles its messages.

It uses the production code for sources (``runtime.source_process``) without the process around it,
so that a source and its test share objects. A source that returns nothing is read again after a
second of virtual time, until it has returned nothing for half a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from typing_extensions import override

from ebbflow.domain.errors import SourceError
from ebbflow.engine.inlet import NEVER, Inlet, SourceAcks
from ebbflow.engine.outage import Patience, Waiting
from ebbflow.engine.position import Mark
from ebbflow.engine.source_columns import NO_OFFSETS, frame_of
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.runtime.source_process.protocol import Failed, Order, Settle
from ebbflow.runtime.source_process.reading import SourceReading
from ebbflow.testing.world import PartitionStreams, VirtualClock, with_history

_LOOK_AGAIN = 1_000
_LOOKS = 30


class _InProcessReading(SourceReading):
    """Reads a source whose code is passed as an object instead of pickled."""

    def __init__(self, plan: SourcePlan, vertex: str, partition: int) -> None:
        self._code = plan.code
        super().__init__(
            Order(
                vertex, partition, b"", plan.search, [], "", plan.systems, 0,
                plan.limit, plan.columns_limit, 0.001,
            )
        )  # fmt: skip

    @override
    def _load_code(self) -> Any:
        return self._code


class PulledSource(Inlet):
    """The inlet of one partition of a source. It also acks and nacks the messages."""

    def __init__(
        self, plan: SourcePlan, streams: PartitionStreams, patience: Patience, clock: VirtualClock
    ) -> None:
        self.mark = Mark()
        self._vertex = streams.vertex
        self._streams, self._patience, self._clock = streams, patience, clock
        self._reading = _InProcessReading(plan, streams.vertex, streams.partition)
        self._greeted = self._over = False
        self._offsets: list[pa.BinaryArray] = []
        self._rest: list[pa.RecordBatch] = []
        self._looks = 0
        self._again_at = 0

    def begin_task(self) -> None:
        """Makes the next task read again the messages that the previous one did not settle."""
        self._offsets, self._rest = [], []
        self._again_at = self._looks = 0
        self._over = False
        self._reading.begin_task()

    @property
    @override
    def exhausted(self) -> bool:
        return self._over and not self._rest

    @property
    @override
    def waiting(self) -> Waiting | None:
        return self._patience.waiting

    @override
    def ready_in(self) -> float:
        if self.exhausted:
            return NEVER
        if (wait := self._patience.ready_in()) > 0:
            return wait
        if self._looks > _LOOKS:
            return NEVER
        return max(0, self._again_at - self._clock.now_ms) / 1000

    @override
    def take(self, limit: int) -> list[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        while limit > 0 and (rows := self._next_rows(limit)) is not None:
            taken.append(with_history(frame_of(rows), self._streams.histories))
            self._offsets.append(rows.column("offset"))
            limit -= rows.num_rows
        self.mark = Mark(self.mark.seq + sum(batch.num_rows for batch in taken))
        return taken

    def _next_rows(self, limit: int) -> pa.RecordBatch | None:
        if not self._rest and (rows := self._read()) is not None:
            self._rest.append(rows)
        if not self._rest:
            return None
        rows = self._rest.pop()
        if rows.num_rows > limit:
            self._rest.append(rows.slice(limit))
        return rows.slice(0, limit)

    def _read(self) -> pa.RecordBatch | None:
        if self._patience.ready_in() > 0 or not self._greet():
            return None
        messages = self._ask("read", self._reading.read)
        if messages is not None:
            self._looks, self._over = 0, False
            return messages.read_rows()
        state = self._ask("read", self._reading.report)
        if state is not None:
            self._over = state.exhausted
        self._looks += 1
        self._again_at = max(self._again_at, self._clock.now_ms + _LOOK_AGAIN)
        return None

    def _greet(self) -> bool:
        """Opens the source on first use; returns whether it is open."""
        if not self._greeted and (hello := self._ask("greet", self._reading.greet)) is not None:
            self.redelivers_itself, self._greeted = hello.redelivers, True
        return self._greeted

    def _ask(self, what: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = self._reading.attempt(what, call, *arguments)
        if not isinstance(answer, Failed):
            self._patience.end()
            return answer
        if answer.outage is None:
            raise SourceError(self._vertex, answer.what, answer.trace)
        self._patience.meet(answer.outage)
        return None

    @override
    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        self.mark = max(self.mark, end)
        return []

    @override
    def take_offsets(self) -> pa.BinaryArray:
        taken, self._offsets = self._offsets, []
        return pa.concat_arrays(taken) if taken else NO_OFFSETS

    @override
    def acknowledge(self, ends: SourceAcks) -> None:
        self._ask("settle", self._reading.settle, Settle.of(ends))
        if ends.nacks.num_rows:
            self._over, self._looks = False, 0
            delays = [delay or 0 for delay in ends.nacks.column("delay").to_pylist()]
            self._again_at = self._clock.now_ms + min(delays)

    def end(self) -> None:
        """Closes the source."""
        self._reading.close()
