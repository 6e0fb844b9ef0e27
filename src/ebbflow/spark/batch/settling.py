"""Settling a batch: one task on a worker publishes what was decided, all of it confirmed.

The driver has decided about every message: a query gave rows for it, Spark wrote it, or it failed.
Here the same rules make the same publications of that as of any chunk: redeliveries, dead letters
and outputs, in this order, with ids that a replay has again. The driver records the batch as done
after that. Fallback sinks are called here as well, for they are user code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ebbflow.domain.errors import SparkError
from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.frames import Rows
from ebbflow.engine.isolation import Trouble
from ebbflow.engine.outage import Breaker
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import Chunk, ChunkNumber
from ebbflow.engine.rescue import settle_or_refuse
from ebbflow.engine.retry import conclude
from ebbflow.engine.settlement import Settlement
from ebbflow.engine.verdict import Rules, Verdict
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.events import Events
from ebbflow.runtime.handlers import close_handlers
from ebbflow.runtime.measures import dump_raised
from ebbflow.runtime.nats_task import place_of
from ebbflow.runtime.operators import Operators, set_environment
from ebbflow.runtime.plan import SinksPlan, VertexPlan
from ebbflow.spark.batch.query_rows import record_query_rows
from ebbflow.spark.batch.reading import FrameRange, read_frames
from ebbflow.streams.names import Names
from ebbflow.streams.publish_settlement import FROM_THE_START, publish_settlement, without_stored
from ebbflow.usercode.sinks import run_fallback

SCHEMA = "settled string"


@dataclass(frozen=True, slots=True)
class Decided:
    """A batch whose messages are decided about. ``key`` is a name that only this batch has.

    ``number`` is its place among the batches. ``blamed`` are those that failed, by their number.
    The result of a query comes beside this, if it has any rows; ``traced`` if they name the
    messages they come from. ``repeated`` is how far redeliveries are read, if the batch was begun
    before, and ``done`` in any case. ``breaker`` has counted the dead letters of earlier batches.
    """

    key: str
    number: ChunkNumber
    readings: tuple[FrameRange, ...]
    watermark: datetime | None
    blamed: Mapping[int, Trouble] = field(default_factory=dict)
    traced: bool = False
    has_result: bool = False
    repeated: Mark | None = None
    done: Mark = FROM_THE_START
    breaker: Breaker | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of settling: counts, nack reasons, the counts of publishing, and what was raised.

    ``sent`` are the rows that went to each of the next vertices, ``breaker`` what it has counted.
    """

    counts: Counts
    reasons: dict[str, int]
    tally: Tally
    errors: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    breaker: dict[str, Any] = field(default_factory=dict)

    @property
    def raised(self) -> RaisedErrors:
        """The errors of the messages."""
        raised = RaisedErrors()
        for error in self.errors:
            raised.add(Raised(**error))
        return raised

    @classmethod
    def from_json(cls, text: str) -> Settled:
        """From what the worker told."""
        facts = json.loads(text)
        counts, tally = Counts(**facts["counts"]), Tally(**facts["tally"])
        return cls(**facts | {"counts": counts, "tally": tally})

    def to_json(self) -> str:
        """Returns the text that goes to the driver."""
        return json.dumps(asdict(self))


def settle_on_worker(
    batches: Iterator[pa.RecordBatch], plan: VertexPlan, partition: int, decided: Decided
) -> Iterator[pa.RecordBatch]:
    """Called by Spark once, with the rows of the result or with anything if there are none."""
    results = list(batches)
    result = pa.Table.from_batches(results) if decided.has_result else None
    settled = _Settling(plan, partition, decided).run(result)
    yield pa.RecordBatch.from_pydict({"settled": [settled.to_json()]})


class _Settling:
    def __init__(self, plan: VertexPlan, partition: int, decided: Decided) -> None:
        self._plan = plan
        self._partition = partition
        self._decided = decided
        self._names = Names(plan.pipeline)
        self._link = worker_link(plan.server)
        self._tally = Tally()

    def run(self, result: pa.Table | None) -> Settled:
        plan, decided = self._plan, self._decided
        rows = Rows(_rows(self._link, decided.readings), decided.watermark)
        verdict = Verdict(rows, self._rules())
        if isinstance(plan.role, SinksPlan):
            self._sink(verdict, plan.role)
        else:
            record_query_rows(verdict, result, decided.key, decided.traced)
            for index, why in decided.blamed.items():
                verdict.record_error(index, SparkError(why.kind, why.text))
        breaker = decided.breaker or Breaker(plan.breaker)
        breaker.check(verdict)
        place = place_of(plan, self._partition)
        chunk = Chunk(decided.key, rows, decided.number)
        settlement = settle_or_refuse(chunk, verdict, place, datetime.now(UTC), decided.watermark)
        errors = [dump_raised(raised) for raised in verdict.decisions.raised]
        counts = self._publish(settlement)
        return Settled(
            counts,
            settlement.reasons,
            self._tally,
            errors,
            settlement.count_by_edge(),
            breaker.state,
        )

    def _rules(self) -> Rules:
        plan = self._plan
        falls_back = isinstance(plan.role, SinksPlan) and plan.role.fallback is not None
        return Rules(plan.vertex, plan.on_error, plan.largest, has_fallback=falls_back)

    def _sink(self, verdict: Verdict, role: SinksPlan) -> None:
        """Fails what was not written as after a FAILURE, or, without a strategy, as if raised."""
        for index, why in self._decided.blamed.items():
            error = SparkError(why.kind, why.text)
            if role.strategy is not None:
                verdict.fail(index, str(error))
            else:
                verdict.record_error(index, error)
        conclude(verdict, role.strategy, "sink")
        if verdict.decisions.fallback:
            self._fall_back(verdict, role)

    def _fall_back(self, verdict: Verdict, role: SinksPlan) -> None:
        plan = self._plan
        set_environment(plan, self._partition)
        events = Events(self._link, self._names, plan.vertex, self._partition, Tally())
        try:
            with events.printing():
                run_fallback(verdict, Operators(plan, events.log).sinks(role), time.sleep)
        finally:
            # Whichever worker settles the next batch, nothing is left open in this one.
            close_handlers(plan.whose)

    def _publish(self, settlement: Settlement) -> Counts:
        client, names, repeated = self._link.client, self._names, self._decided.repeated
        settlement = self._link.run(without_stored(client, names, settlement, repeated))
        retry, tally, done = self._plan.publish, self._tally, self._decided.done
        discarded = self._link.run(
            publish_settlement(client, names, settlement, retry, tally, done)
        )
        if (amended := settlement.without_lost(discarded)) is not None:
            self._link.run(publish_settlement(client, names, amended, retry, tally, done))
        return settlement.counts_without(discarded)


def _rows(link: Link, readings: tuple[FrameRange, ...]) -> pa.RecordBatch:
    return frames.concat([f.rows for reading in readings for f in read_frames(link, reading)])
