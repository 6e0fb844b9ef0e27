"""A MonoVertex: source, transformer, map and sinks as one step, without buffers in between.

The unit is the message that was read from the source, the root. Whatever happens to any message
that came from it, on any level, decides about the root: a nack redelivers it as a whole and none of
its other messages goes further; a dead letter holds the root, so that a replay does all of it
again. ``bypass`` rules send messages by their tags from the transformer or the map straight to one
of the sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ebbflow.core import frames
from ebbflow.core.frames import Rows
from ebbflow.core.outputs import DELIVERY, INHERITED, event_times
from ebbflow.core.retry import Call, Pause, RetryStrategy, call_with_retries
from ebbflow.core.routing import Edge
from ebbflow.core.sinks import PLAIN, Sinks, fall_back, run_sinks, succeed
from ebbflow.core.verdict import Verdict
from ebbflow.outcome import (
    DONE,
    DeadLetter,
    Done,
    Dropped,
    FellBack,
    Outcome,
    Redeliver,
    Retry,
    Served,
    Succeeded,
)

# The end of a root is the strongest end of its messages; of several nacks the first that asks for
# something counts, as among the outputs of one call.
_STRENGTH: dict[type[Outcome], int] = {
    Dropped: 0,
    Done: 1,
    Served: 2,
    Succeeded: 2,
    FellBack: 3,
    DeadLetter: 4,
    Retry: 5,
    Redeliver: 5,
}
_STOPS = (Redeliver, Retry, DeadLetter)
_TAKEN = (Done, Served, Succeeded, FellBack)
NOT_FOR_THE_SINK = Dropped("bypass: not for the sink")


@dataclass(frozen=True, slots=True)
class Step:
    """A transformer or a map."""

    name: str
    call: Call
    strategy: RetryStrategy | None = None


@dataclass(frozen=True, slots=True)
class Bypass:
    """Which tags lead straight to which sink; tried in this order, the first that accepts wins."""

    sink: Edge | None = None
    fallback: Edge | None = None
    on_success: Edge | None = None


@dataclass(frozen=True, slots=True)
class Mono:
    """The whole of a MonoVertex."""

    steps: Sequence[Step]
    sinks: Sinks
    bypass: Bypass = Bypass()


@dataclass(slots=True)
class _Level:
    """Messages on their way, each with the index of its root."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, roots: Sequence[int]) -> None:
        self.batches.append(batch)
        self.roots += roots

    @property
    def batch(self) -> pa.RecordBatch:
        return frames.concat(self.batches)


class _Run:
    """One chunk on its way through a MonoVertex."""

    def __init__(self, verdict: Verdict, mono: Mono, pause: Pause) -> None:
        self._verdict = verdict
        self._mono = mono
        self._pause = pause
        self._ends: dict[int, Outcome] = {}
        self._fallback, self._on_success, self._bypassed = _Level(), _Level(), _Level()
        verdict.allowed = mono.sinks.allowed
        verdict.has_fallback = mono.sinks.fallback is not None
        verdict.written = 0

    def run(self) -> None:
        level = _Level([self._verdict.rows.batch], list(range(len(self._verdict.rows))))
        if not self._mono.steps:
            self._verdict.event_times += event_times(None, self._verdict.rows)
        for step in self._mono.steps:
            level = self._advance(level, step)
        if self._mono.bypass.sink is not None and self._mono.steps:
            self._record(level.roots, [NOT_FOR_THE_SINK] * len(level.roots))
            level = _Level()
        for one in (level, self._bypassed):
            self._sink(one.batch, one.roots)
        self._direct(self._fallback, fall_back, "fallback")
        self._direct(self._on_success, succeed, "on_success")
        self._conclude()

    def _part(self, batch: pa.RecordBatch) -> Verdict:
        return self._verdict.part(Rows(batch, self._verdict.rows.watermark))

    def _going_on(
        self, batch: pa.RecordBatch, roots: list[int]
    ) -> tuple[pa.RecordBatch, list[int]]:
        """Without the messages of roots that stop here anyway."""
        stops = {root for root, end in self._ends.items() if isinstance(end, _STOPS)}
        if stops.isdisjoint(roots):
            return batch, roots
        kept = [n for n, root in enumerate(roots) if root not in stops]
        return frames.taken(batch, kept), [roots[n] for n in kept]

    def _advance(self, level: _Level, step: Step) -> _Level:
        batch, roots = self._going_on(level.batch, level.roots)
        part = self._part(batch)
        call_with_retries(part, step.call, step.strategy, self._pause, step.name)
        self._verdict.event_times += part.event_times
        if step is self._mono.steps[0]:
            self._verdict.event_times += event_times(part.outputs, part.rows)
        self._record_outcomes(part, roots)
        for index in part.fallback:
            self._fallback.add(batch.slice(index, 1), [roots[index]])
        return self._routed(part, roots, step)

    def _record_outcomes(self, part: Verdict, roots: list[int]) -> None:
        for index, outcome in part.outcomes.items():
            self._record([roots[index]], [outcome])

    def _routed(self, part: Verdict, roots: list[int], step: Step) -> _Level:
        outputs = part.outputs
        assert outputs is not None
        inherited = (*INHERITED, *DELIVERY)
        batch = outputs.batch(part.rows, step.name, None, inherited)
        if self._mono.bypass == Bypass():
            return _Level([batch], [roots[parent] for parent in outputs.parents])
        places: dict[int, list[int]] = {id(target): [] for target in self._targets()}
        for row, tags in enumerate(outputs.tags):
            places[id(self._target(tags))].append(row)
        following = _Level()
        for target in self._targets():
            rows = places[id(target)]
            own = [roots[outputs.parents[row]] for row in rows]
            (following if target is None else target).add(frames.taken(batch, rows), own)
        return following

    def _targets(self) -> tuple[_Level | None, ...]:
        return (None, self._bypassed, self._fallback, self._on_success)

    def _target(self, tags: Sequence[str]) -> _Level | None:
        bypass = self._mono.bypass
        rules = (
            (bypass.sink, self._bypassed),
            (bypass.fallback, self._fallback),
            (bypass.on_success, self._on_success),
        )
        return next((level for rule, level in rules if rule and rule.accepts(tags)), None)

    def _sink(self, batch: pa.RecordBatch, roots: list[int]) -> None:
        batch, roots = self._going_on(batch, roots)
        if roots:
            part = self._part(batch)
            run_sinks(part, self._mono.sinks, self._pause)
            for index, payloads in part.answers.items():
                self._verdict.answers.setdefault(roots[index], []).extend(payloads)
            self._written(roots, part, beside=1)

    def _written(self, roots: list[int], part: Verdict, beside: int) -> None:
        """Record the ends, and how many messages sinks took; ``beside`` the primary or directly."""
        others = part.outcomes.values()
        taken = len(roots) - sum(not isinstance(end, _TAKEN) for end in others)
        also = beside * sum(isinstance(end, Succeeded) for end in others)
        self._verdict.written = (self._verdict.written or 0) + taken + also
        self._record(roots, [part.outcomes.get(n, DONE) for n in range(len(roots))])

    def _direct(
        self, level: _Level, give: Callable[[Verdict, Sinks, Pause], None], what: str
    ) -> None:
        """Give messages straight to the fallback or the on-success sink."""
        batch, roots = self._going_on(level.batch, level.roots)
        if roots:
            part = self._part(batch)
            part.allowed = PLAIN
            reason = DeadLetter("sent to the fallback sink")
            meant = dict.fromkeys(range(len(roots)), reason if what == "fallback" else None)
            setattr(part, what, meant)
            give(part, self._mono.sinks, self._pause)
            self._written(roots, part, beside=0)

    def _record(self, roots: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        for root, outcome in zip(roots, outcomes, strict=True):
            so_far = self._ends.get(root)
            if so_far is None or _strength(outcome) > _strength(so_far):
                self._ends[root] = outcome

    def _conclude(self) -> None:
        """The ends become the roots' outcomes; a root that comes back will answer again."""
        others = {root: end for root, end in self._ends.items() if end is not DONE}
        for root, end in others.items():
            if isinstance(end, _STOPS):
                self._verdict.answers.pop(root, None)
        self._verdict.outcomes.update(others)


def _strength(outcome: Outcome) -> tuple[int, bool]:
    asks = isinstance(outcome, Redeliver) and bool(outcome.delay or outcome.reason)
    return _STRENGTH[type(outcome)], asks


def run_mono(verdict: Verdict, mono: Mono, pause: Pause) -> None:
    """Take every root of the chunk through the steps and the sinks, and decide about it."""
    _Run(verdict, mono, pause).run()
