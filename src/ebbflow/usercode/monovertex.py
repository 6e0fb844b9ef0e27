"""A MonoVertex: source, transformer, map and sinks as one step, without buffers in between.

The unit is the message that was read from the source, the root. The outcome of any message that was
made from it, at any step, decides about the root: a nack redelivers it as a whole, and none of its
other messages is forwarded; a dead letter contains the root, so that a replay repeats all of it.
Messages that a sink has accepted before that are passed to it again with the next delivery.
``bypass`` rules send messages by their tags from the transformer or the map straight to a sink.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import itemgetter

import pyarrow as pa

from ebbflow.domain.outcome import (
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
from ebbflow.engine import frames
from ebbflow.engine.answers import path_order
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import DELIVERY, INHERITED, event_times
from ebbflow.engine.retry import Pause, RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.engine.verdict import Decisions, Operator, Verdict
from ebbflow.usercode.calling import call_with_retries
from ebbflow.usercode.contract import SENT_TO_FALLBACK
from ebbflow.usercode.sinks import Sinks, run_fallback, run_on_success, run_sinks

# The outcome of a root is the strongest outcome of its messages; of several nacks the first with a
# delay or reason counts, as among the outputs of one call.
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
HELD_BACK = Dropped("another message of the same input is redelivered or dead-lettered")


@dataclass(frozen=True, slots=True)
class MonoStep:
    """A transformer or a map."""

    name: str
    call: Operator
    strategy: RetryStrategy | None = None


class Branch(Enum):
    """Where a message goes after a step: to the next step, or straight to a sink."""

    ON = "on"
    SINK = "sink"
    FALLBACK = "fallback"
    ON_SUCCESS = "on_success"


@dataclass(frozen=True, slots=True)
class Bypass:
    """The tags that send messages straight to a sink; the first rule that accepts wins."""

    sink: Edge | None = None
    fallback: Edge | None = None
    on_success: Edge | None = None

    def choose_branch(self, tags: Sequence[str]) -> Branch:
        """Returns where a message with these tags goes."""
        rules = (
            (self.sink, Branch.SINK),
            (self.fallback, Branch.FALLBACK),
            (self.on_success, Branch.ON_SUCCESS),
        )
        return next((branch for rule, branch in rules if rule and rule.accepts(tags)), Branch.ON)


@dataclass(frozen=True, slots=True)
class Mono:
    """The steps and sinks of a MonoVertex."""

    steps: Sequence[MonoStep]
    sinks: Sinks
    bypass: Bypass = Bypass()


class _Level:
    """The messages that enter a step or a sink, each with the index of its root."""

    def __init__(self, batch: pa.RecordBatch | None = None, roots: Sequence[int] = ()) -> None:
        self._batches = [] if batch is None else [batch]
        # Usually a range, which costs nothing: each root has one message here.
        self.roots = roots

    def add(self, batch: pa.RecordBatch, roots: Sequence[int]) -> None:
        self._batches.append(batch)
        self.roots = [*self.roots, *roots]

    @property
    def batch(self) -> pa.RecordBatch:
        return frames.concat(self._batches)


class _Siblings:
    """Keeps messages from the sinks if their root is already redelivered or dead-lettered."""

    def __init__(self, part: Verdict, roots: Sequence[int], sinks: Sinks) -> None:
        self._roots = dict(zip(part.rows.column("id"), roots, strict=True))
        self._sinks = sinks
        self._stopped: set[int] = set()

    @classmethod
    def of(cls, part: Verdict, roots: Sequence[int], sinks: Sinks) -> _Siblings | None:
        """Returns the siblings among the messages; ``None`` if each root has one message."""
        if isinstance(roots, range) or len(set(roots)) == len(roots):
            return None
        ids = part.rows.column("id")  # a root that was delivered twice has messages with equal ids
        return cls(part, roots, sinks) if len(set(ids)) == len(ids) else None

    @property
    def sinks(self) -> Sinks:
        """The sinks, with a primary that skips messages that are held back."""
        return replace(self._sinks, primary=self.call)

    def call(self, verdict: Verdict) -> None:
        """Calls the sink batch by batch, without the messages that are held back."""
        size = self._sinks.batch_size
        for start in range(0, len(verdict.rows), size):
            wanted = self._hold_back(verdict, range(start, min(start + size, len(verdict.rows))))
            if wanted:
                part = verdict.part_at(wanted)
                self._sinks.primary(part)
                verdict.decisions.merge(wanted, part.decisions)
                self._note_stopped(part)

    def withdraw(self, verdict: Verdict) -> None:
        """Withdraws the requests of user code for messages that are held back."""
        self._note_stopped(verdict)
        for index, message in enumerate(verdict.rows.column("id")):
            if self._roots[message] in self._stopped:
                verdict.decisions.withdraw_request(index, HELD_BACK)

    def _hold_back(self, verdict: Verdict, rows: range) -> list[int]:
        ids = verdict.rows.column("id")
        held = {row for row in rows if self._roots[ids[row]] in self._stopped}
        for row in held:
            verdict.decisions.drop(row, HELD_BACK)
        return [row for row in rows if row not in held]

    def _note_stopped(self, verdict: Verdict) -> None:
        ids, outcomes = verdict.rows.column("id"), verdict.outcomes
        stops = [index for index, end in outcomes.items() if isinstance(end, _STOPS)]
        if self._sinks.strategy is None:
            stops += verdict.decisions.failed
        self._stopped |= {self._roots[ids[index]] for index in stops}


class _Run:
    """The processing of one chunk by a MonoVertex."""

    def __init__(self, verdict: Verdict, mono: Mono, pause: Pause) -> None:
        # From here on the rules of the sinks apply to every part: a nack in a step that has used up
        # its deliveries goes to the fallback sink, too.
        self._verdict = verdict.under(mono.sinks.bind(verdict.rules))
        self._mono = mono
        self._pause = pause
        self._ends: dict[int, Outcome] = {}
        self._taken: list[Sequence[int]] = []
        """The roots of messages that are done."""
        self._answers: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)
        self._levels = {branch: _Level() for branch in Branch if branch is not Branch.ON}

    def run(self) -> None:
        decisions = self._verdict.decisions
        decisions.count_written(0)
        level = _Level(self._verdict.rows.batch, range(len(self._verdict.rows)))
        if not self._mono.steps:
            decisions.note_event_times(event_times(None, self._verdict.rows))
        for step in self._mono.steps:
            level = self._advance(level, step)
        if self._mono.bypass.sink is not None and self._mono.steps:
            self._record(dict.fromkeys(level.roots, NOT_FOR_THE_SINK))
            level = _Level()
        for messages in (level, self._levels[Branch.SINK]):
            self._run_sinks(messages)
        self._run_fallback(self._levels[Branch.FALLBACK])
        self._run_on_success(self._levels[Branch.ON_SUCCESS])
        self._conclude()

    def _part(self, batch: pa.RecordBatch) -> Verdict:
        return self._verdict.part(Rows(batch, self._verdict.rows.watermark))

    def _without_stopped(self, level: _Level) -> tuple[pa.RecordBatch, Sequence[int]]:
        """Returns the level without the messages of roots that are redelivered or dead-lettered.

        A redelivered root produces all its messages again, so forwarding them now would duplicate
        them.
        """
        batch, roots = level.batch, level.roots
        stops = {root for root, end in self._ends.items() if isinstance(end, _STOPS)}
        if stops.isdisjoint(roots):
            return batch, roots
        kept = [n for n, root in enumerate(roots) if root not in stops]
        return frames.take_rows(batch, kept), [roots[n] for n in kept]

    def _advance(self, level: _Level, step: MonoStep) -> _Level:
        """Runs a step on the messages; returns the messages for the next step."""
        batch, roots = self._without_stopped(level)
        part = self._part(batch)
        call_with_retries(part, step.call, step.strategy, self._pause, step.name)
        decisions = self._verdict.decisions
        decisions.note_event_times(part.decisions.event_times)
        if step is self._mono.steps[0]:
            decisions.note_event_times(event_times(part.outputs, part.rows))
        for index, outcome in part.outcomes.items():
            self._record({roots[index]: outcome})
        for index in part.decisions.fallback:
            self._levels[Branch.FALLBACK].add(batch.slice(index, 1), [roots[index]])
        return self._route(part, roots, step)

    def _route(self, part: Verdict, roots: Sequence[int], step: MonoStep) -> _Level:
        outputs = part.outputs
        assert outputs is not None
        batch = outputs.batch(part.rows, step.name, None, (*INHERITED, *DELIVERY))
        if self._mono.bypass == Bypass():
            one_each = outputs.parents == list(range(len(roots)))
            return _Level(batch, roots if one_each else [roots[p] for p in outputs.parents])
        rows: dict[Branch, list[int]] = {branch: [] for branch in Branch}
        for row, tags in enumerate(outputs.tags):
            rows[self._mono.bypass.choose_branch(tags)].append(row)
        following = _Level()
        for branch, level in ((Branch.ON, following), *self._levels.items()):
            own = [roots[outputs.parents[row]] for row in rows[branch]]
            level.add(frames.take_rows(batch, rows[branch]), own)
        return following

    def _run_sinks(self, level: _Level) -> None:
        batch, roots = self._without_stopped(level)
        if roots:
            part = self._part(batch)
            if siblings := _Siblings.of(part, roots, self._mono.sinks):
                run_sinks(part, siblings.sinks, self._pause, siblings.withdraw)
            else:
                run_sinks(part, self._mono.sinks, self._pause)
            for index, payloads in part.answers.items():
                message = part.rows.column("id")[index]
                self._answers[roots[index]] += [(message, payload) for payload in payloads]
            self._record_written(roots, part)
            # The on-success sink took these messages in addition to the primary.
            also = sum(isinstance(end, Succeeded) for end in part.outcomes.values())
            self._verdict.decisions.count_written(also)

    def _run_fallback(self, level: _Level) -> None:
        self._run_directly(
            level, lambda part, index: part.fall_back(index, SENT_TO_FALLBACK), run_fallback
        )

    def _run_on_success(self, level: _Level) -> None:
        self._run_directly(
            level, lambda part, index: part.request_on_success(index, None), run_on_success
        )

    def _run_directly(
        self,
        level: _Level,
        ask: Callable[[Decisions, int], None],
        run: Callable[[Verdict, Sinks, Pause], None],
    ) -> None:
        """Runs a secondary sink on the messages, after ``ask`` has requested it for each."""
        batch, roots = self._without_stopped(level)
        if roots:
            part = self._part(batch)
            for index in range(len(roots)):
                ask(part.decisions, index)
            run(part, self._mono.sinks, self._pause)
            self._record_written(roots, part)

    def _record_written(self, roots: Sequence[int], part: Verdict) -> None:
        """Records the outcomes of messages, and counts those that their sink took."""
        outcomes = part.outcomes
        not_taken = sum(not isinstance(end, _TAKEN) for end in outcomes.values())
        self._verdict.decisions.count_written(len(roots) - not_taken)
        for index, outcome in sorted(outcomes.items(), key=itemgetter(0)):
            self._record({roots[index]: outcome})
        if outcomes:
            roots = [root for index, root in enumerate(roots) if index not in outcomes]
        self._taken.append(roots)

    def _record(self, ends: Mapping[int, Outcome]) -> None:
        """Records outcomes other than done; the strongest one of a root counts."""
        for root, outcome in ends.items():
            before = self._ends.get(root)
            if before is None or _strength(outcome) > _strength(before):
                self._ends[root] = outcome

    def _forget_weak(self) -> None:
        """Removes outcomes weaker than done from roots of which a message is done."""
        weak = [root for root, end in self._ends.items() if _strength(end) < _strength(DONE)]
        if weak:
            done = set[int]().union(*self._taken)
            for root in done.intersection(weak):
                del self._ends[root]

    def _conclude(self) -> None:
        """Sets the outcomes of the roots, and keeps the answers of roots that have ended.

        A root that is redelivered, or whose dead letter is replayed, answers again.
        """
        self._forget_weak()
        for root, end in self._ends.items():
            self._verdict.decisions.finish(root, end)
        for root, answers in self._answers.items():
            if not isinstance(self._ends.get(root), _STOPS):
                if len(answers) > 1:  # retried messages come last; answers keep the original order
                    answers.sort(key=lambda answer: path_order(answer[0]))
                self._verdict.decisions.answer(root, [payload for _, payload in answers])


def _strength(outcome: Outcome) -> tuple[int, bool]:
    asks = isinstance(outcome, Redeliver) and bool(outcome.delay or outcome.reason)
    return _STRENGTH[type(outcome)], asks


def run_mono(verdict: Verdict, mono: Mono, pause: Pause) -> None:
    """Runs the steps and the sinks on every root of the chunk, and decides about it."""
    _Run(verdict, mono, pause).run()
