"""Settling a batch: one task on a worker publishes all outcomes and waits for confirmation.

The driver has decided about every message: a query returned rows for it, Spark wrote it, or it
failed. Here the rules for chunks turn that into publications: redeliveries, dead letters and
outputs, in this order, with ids that a replay repeats. After that the driver records the batch as
done. Fallback sinks are user code, so they are called here as well.

A row of a query with the ``id`` of an input is an output of that input, as with a columnar map: it
inherits missing columns, and an input without a row is dropped. A query without ``id``, such as one
that counts, makes **aggregates**: rows from the batch as a whole. Their ids are made from the batch
and their content, so that a replay with the same result is recognised as a copy, and a different
result is kept next to it. Rows arrive in no particular order, so they are sorted by their content.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.accounts.events import Events, dump_raised
from ebbflow.domain import records
from ebbflow.domain.errors import ContractViolation, MessageTooLarge, SparkError
from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.account import ChunkObserver
from ebbflow.engine.causes import Raised, RaisedErrors
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.isolation import Trouble
from ebbflow.engine.outage import Breaker
from ebbflow.engine.outputs import INHERITED, NO_PARENT, ColumnOutputs
from ebbflow.engine.position import Mark
from ebbflow.engine.publications import Chunk, ChunkNumber, Publication
from ebbflow.engine.rescue import settle_or_refuse
from ebbflow.engine.retry import conclude
from ebbflow.engine.settlement import Settlement, unawaited
from ebbflow.engine.verdict import Verdict
from ebbflow.nats.link import Link, worker_link
from ebbflow.nats.publish import Tally
from ebbflow.runtime.nats_task import open_journal
from ebbflow.runtime.operators import Operators, vertex_variables
from ebbflow.runtime.plan import SinksPlan, VertexPlan
from ebbflow.runtime.settling import publish_all_of
from ebbflow.runtime.vertex_parts import late_observers, place_of
from ebbflow.runtime.worker import WORKER
from ebbflow.spark.batch.window import FrameRange, read_range_of_frames
from ebbflow.streams.names import Names
from ebbflow.streams.publish_settlement import FROM_THE_START
from ebbflow.usercode.columns import QUERY_TYPES, record_columns
from ebbflow.usercode.sinks import run_fallback

HEADERS = pa.map_(pa.string(), pa.string())
_CONTENT = ("value", "keys", "tags", "event_time", "headers")
SCHEMA = "settled string"


@dataclass(frozen=True, slots=True)
class Decided:
    """A batch whose messages are decided about. ``key`` is its unique name.

    ``number`` is its place among the batches. ``blamed`` are the failed messages, by their number.
    ``has_result`` if the query returned any rows; ``traced`` if these name the messages that they
    are made from. ``repeated`` is how far redeliveries were read when the batch was begun before,
    ``done`` how far they are read for certain. ``breaker`` has counted the dead letters of earlier
    batches.
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
    """The result of settling: counts, nack reasons, the tally of publishing, and errors.

    ``sent`` counts the rows for each of the next vertices, ``breaker`` is the state of the breaker,
    ``awaited`` has the tokens of the redeliveries.
    """

    counts: Counts
    reasons: Mapping[str, int]
    tally: Tally
    errors: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    breaker: dict[str, Any] = field(default_factory=dict)
    awaited: list[str] = field(default_factory=list)

    @property
    def raised(self) -> RaisedErrors:
        """The errors of the messages."""
        raised = RaisedErrors()
        for error in self.errors:
            raised.add(Raised(**error))
        return raised


def settle_on_worker(
    batches: Iterator[pa.RecordBatch], plan: VertexPlan, partition: int, decided: Decided
) -> Iterator[pa.RecordBatch]:
    """Settles the batch. Spark calls this once, with the rows of the result or a dummy row."""
    results = list(batches)
    result = pa.Table.from_batches(results) if decided.has_result else None
    settled = _Settling(plan, partition, decided).run(result)
    yield pa.RecordBatch.from_pydict({"settled": [records.to_json(settled).decode()]})


class _Settling:
    def __init__(self, plan: VertexPlan, partition: int, decided: Decided) -> None:
        self._plan = plan
        self._partition = partition
        self._decided = decided
        self._names = Names(plan.pipeline)
        self._link = worker_link(plan.run.server)
        self._tally = Tally()
        self._journal = open_journal(plan, partition, self._link, self._tally)

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
        breaker = decided.breaker or Breaker(plan.policy.breaker)
        breaker.check(verdict)
        place = place_of(plan, self._partition)
        chunk = Chunk(decided.key, rows, decided.number)
        observers, now = late_observers(plan), datetime.now(UTC)
        settlement = settle_or_refuse(
            chunk, verdict, place, now, decided.watermark, observers=observers
        )
        assert settlement.account is not None
        errors = [dump_raised(raised) for raised in verdict.decisions.raised or ()]
        unstored = self._publish(settlement, observers)
        gone = unawaited(unstored)
        return Settled(
            settlement.counts_without(unstored),
            settlement.reasons,
            self._tally,
            errors,
            settlement.account.parts[0].count_by_edge(),
            breaker.state,
            [token for token in settlement.awaited if token not in gone],
        )

    def _rules(self) -> Rules:
        plan = self._plan
        falls_back = isinstance(plan.role, SinksPlan) and plan.role.fallback is not None
        return Rules(plan.vertex, plan.policy.on_error, plan.largest, has_fallback=falls_back)

    def _sink(self, verdict: Verdict, role: SinksPlan) -> None:
        """Fails unwritten rows as after a FAILURE, or as raised if there is no retry strategy."""
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
        os.environ |= vertex_variables(plan, self._partition)
        events = Events(self._link, self._names, plan.vertex, self._partition, Tally())
        try:
            with events.printing():
                run_fallback(verdict, Operators(plan, events.log).sinks(role), time.sleep)
        finally:
            # Another worker may settle the next batch, so no user code stays open in this one.
            WORKER.close_vertex(plan.vertex_of_run)

    def _publish(
        self, settlement: Settlement, observers: Sequence[ChunkObserver]
    ) -> Collection[Publication]:
        """Stores what an earlier attempt has not stored, in the order that holds for any chunk."""
        done, repeated = self._decided.done, self._decided.repeated
        return self._link.run(publish_all_of(settlement, self._journal, done, repeated, observers))


def _rows(link: Link, readings: tuple[FrameRange, ...]) -> pa.RecordBatch:
    return frames.concat(
        [f.rows for reading in readings for f in read_range_of_frames(link, reading)]
    )


# --- the rows of a query -----------------------------------------------------------------------


def record_query_rows(verdict: Verdict, result: pa.Table | None, batch: str, traced: bool) -> None:
    """Records the rows that a query made from the inputs; ``batch`` is the batch's unique name.

    ``traced`` if the query names inputs by ``id``. Rows of the same input may arrive in any order,
    and so may all rows if inputs are not named.
    """
    if result is not None and "event_time" in result.schema.names:
        # Times have the zone of Spark's session, but equal rows must look equal in any zone.
        at = result.schema.get_field_index("event_time")
        result = result.set_column(at, "event_time", result.column(at).cast(frames.TIME))
    if traced:
        _record_traced(verdict, result)
    elif result is not None:
        verdict.decisions.forward_outputs(_make_aggregates(verdict, result, batch))


def _record_traced(verdict: Verdict, result: pa.Table | None) -> None:
    ids = verdict.rows.column("id")
    if result is None:
        for index in range(len(ids)):
            verdict.decisions.drop(index)
        return
    vertex = verdict.rules.vertex
    indexes = {message_id: index for index, message_id in enumerate(ids)}
    parents = [_find_input(vertex, indexes, row_id) for row_id in result.column("id").to_pylist()]
    empty = _find_empty(result, parents)
    keys = _describe_rows(result) if len(set(parents)) < len(parents) else parents
    order = sorted(
        (row for row, parent in enumerate(parents) if parent not in empty),
        key=lambda row: (parents[row], keys[row]),
    )
    chosen = result.take(pa.array(order, pa.int64()))
    values = pc.fill_null(chosen.column("value"), b"")  # only nacked rows still have a null
    chosen = chosen.set_column(chosen.schema.get_field_index("value"), "value", values)
    record_columns(verdict, 0, len(ids), chosen, QUERY_TYPES | {"headers": HEADERS})
    verdict.record_errors(empty, null_value(vertex))


def _find_input(vertex: str, indexes: dict[str, int], row_id: str | None) -> int:
    if row_id is None or row_id not in indexes:
        what = "NULL" if row_id is None else f"the unknown id {row_id!r:.80}"
        raise ContractViolation(
            vertex,
            f"returned {what} as id",
            fix="Return the id of an input for each row, or leave the column out.",
        )
    return indexes[row_id]


def _find_empty(result: pa.Table, parents: Sequence[int]) -> set[int]:
    """Returns the inputs that have a row without a value, unless that row is nacked."""
    missing = pc.is_null(result.column("value"))
    if "nack" in result.schema.names:
        missing = pc.and_not(missing, pc.fill_null(result.column("nack"), False))
    return {parents[row] for row in pc.indices_nonzero(missing).to_pylist()}


def null_value(vertex: str) -> ContractViolation:
    """Returns the error for a row without a value."""
    return ContractViolation(vertex, "returned NULL as value", fix="Return a text or binary.")


def _describe_rows(result: pa.Table) -> list[str]:
    """Returns a text for each row; equal rows have equal texts."""
    columns = [result.column(name).to_pylist() for name in _CONTENT if name in result.schema.names]
    return [repr(row) for row in zip(*columns, strict=True)]


class Aggregates(ColumnOutputs):
    """Outputs without a single input. Missing columns are empty, a missing event time is ``at``."""

    def __init__(self, ids: Sequence[str], at: datetime | None) -> None:
        super().__init__()
        self.ids = ids
        self.at = at

    def batch(
        self, rows: Rows, name: str, now: datetime | None, inherited: Sequence[str] = INHERITED
    ) -> pa.RecordBatch:
        """Returns the outputs as rows, first seen ``now``."""
        (piece,) = self.pieces
        columns: dict[str, Any] = {"id": self.ids, **piece}
        columns["first_seen"] = pa.repeat(pa.scalar(now, frames.TIME), len(self))
        latest = pa.repeat(pa.scalar(self.at, frames.TIME), len(self))
        own = piece.get("event_time")
        columns["event_time"] = latest if own is None else pc.coalesce(own, latest)
        return frames.batch_of(columns, len(self))


def _make_aggregates(verdict: Verdict, result: pa.Table, batch: str) -> Aggregates:
    vertex = verdict.rules.vertex
    if result.column("value").null_count:
        raise null_value(vertex)
    texts = _describe_rows(result)
    order = sorted(range(result.num_rows), key=texts.__getitem__)
    ordered = result.take(pa.array(order, pa.int64()))
    types = QUERY_TYPES | {"headers": HEADERS}
    piece = {
        name: ordered.column(name).combine_chunks().cast(types[name])
        for name in ("value", "keys", "event_time", "headers")
        if name in ordered.schema.names
    }
    _refuse_large(verdict, piece["value"])
    tags: list[Sequence[str]] = [()] * len(texts)
    if "tags" in ordered.schema.names:
        tags = [row_tags or () for row_tags in ordered.column("tags").to_pylist()]
    outputs = Aggregates(
        ids=_make_ids(vertex, batch, [texts[row] for row in order]),
        at=frames.to_time(pc.max(verdict.rows.batch.column("event_time"))),
    )
    outputs.add([NO_PARENT] * len(texts), [0] * len(texts), tags, piece)
    return outputs


def _make_ids(vertex: str, batch: str, texts: Sequence[str]) -> list[str]:
    """Returns an id for each row; a replay with the same rows returns the same ids."""
    seen: Counter[str] = Counter()
    ids = []
    for text in texts:
        # Equal rows are numbered, because a row with the same id would be dropped as a copy.
        content = f"{batch}\n{seen[text]}\n{text}".encode("utf-8", "surrogatepass")
        ids.append(f"{vertex}-{hashlib.blake2b(content, digest_size=12).hexdigest()}")
        seen[text] += 1
    return ids


def _refuse_large(verdict: Verdict, values: pa.Array) -> None:
    most = pc.max(pc.binary_length(values)).as_py() or 0
    if most > verdict.rules.largest:
        raise MessageTooLarge(most, verdict.rules.largest)
