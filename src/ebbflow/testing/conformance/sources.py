"""Tests a source with two runs of a pipeline that reads from it, and checks what they recorded.

The first run has parallel producers, nacks, odd input and a blocked pipeline. It is stopped while
some messages wait and others are in flight. The second run continues from there; its worker is
killed, and so is the source's process. The stages run in order, each once, when a rule needs them.
``Observations`` hold every call of the transformer and every arrival at the pipeline's end. The
trial only records; the rules judge. A stage that times out leaves fewer observations.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import SkipTest

from ebbflow.builders import Pipeline
from ebbflow.domain.durations import Backoff, Duration
from ebbflow.runtime.source_process.reading import WINDOW
from ebbflow.spec.typed import Limits
from ebbflow.testing.background_run import until, until_none
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.rules import (
    Full,
    Refused,
    Rule,
    RuleBroken,
    Sample,
    SourceUnderTest,
    check_all,
    expect_none,
    rule,
)
from ebbflow.testing.conformance.samples import (
    CALLS,
    DELAY,
    LONG_DELAY,
    Observations,
    RecordingSink,
    ScriptedTransformer,
    TransformerCall,
    name_of,
)
from ebbflow.testing.conformance.trial import STARTED_WITHIN, TrialRuns, processes_of

PRODUCERS = 4
_AT_ONCE = 20
_FLOOD_AT_ONCE = 500
_STEADY = 0.8
# On a busy machine a flood takes longer than the time that a stage waits for missing messages.
_FLOODED_WITHIN = 60.0
_FULL_WAIT = 0.02
# Small, so that a source that stores what it receives is soon full when the pipeline is blocked.
_LIMITS = Limits(buffer_max_length=100)
_ON_ERROR = Backoff("200ms", steps=20, cap="1s")
# One read may exceed the window.
_MARGIN = 1_000


class SourceStage(IntEnum):
    """The stages of a trial, in order."""

    FLOW = 1
    ODD = 2
    BLOCKED = 3
    RESTARTED = 4
    CRASHED = 5
    ENDED = 6


class SourceTrial(TrialRuns[SourceUnderTest]):
    """Tests a source, running stages as rules need them. The context ends the trial.

    ``patience`` is how long a stage waits without a message arriving.
    """

    def __init__(
        self, under_test: SourceUnderTest, state: Path, patience: Duration = "30s"
    ) -> None:
        super().__init__(under_test, state, patience)
        self.seen = Observations(self.state / "calls", self.state / "arrivals")
        self.refused: dict[str, str] = {}
        self.held_back: int | None = None
        self.was_full = False
        self.unsettled: int | None = None
        self._blocked = self.state / "blocked"

    def stages(self) -> Sequence[Callable[[], None]]:
        """Returns the work of each stage."""
        return (
            self._let_flow,
            self._put_odd,
            self._block,
            self._restart,
            self._crash,
            self._end,
        )

    def reach(self, stage: IntEnum) -> None:
        """Runs the stages up to this one, then reads all observations."""
        super().reach(stage)
        self.seen.look()

    def release(self) -> None:
        """Unblocks the pipeline, so that it can stop."""
        self._blocked.unlink(missing_ok=True)

    def pipeline(self) -> Pipeline:
        """Returns the pipeline: the source, the suite's transformer, the suite's sink."""
        source = self.under_test.source()
        transformer = partial(
            ScriptedTransformer, self.seen.calls_journal, self._blocked, self.state / "killed"
        )
        pipeline = Pipeline(self.name).source(
            "in", source, transformer=transformer, limits=_LIMITS, on_error=_ON_ERROR
        )
        return pipeline.sink("out", partial(RecordingSink, self.seen.arrivals_journal))

    # --- the stages -----------------------------------------------------------------------------

    def _let_flow(self) -> None:
        """Puts messages in parallel, some of them before the pipeline starts."""
        early = len(samples.FLOW) // 4 if self.under_test.keeps_waiting else 0
        self._put(samples.FLOW[:early])
        self.start(self.pipeline())
        self._put_in_parallel(samples.FLOW[early:], _AT_ONCE)
        self._wait_for(samples.FLOW, STARTED_WITHIN)

    def _put_odd(self) -> None:
        """Puts odd values, keys and headers, one at a time."""
        if self.waives("odd_input_arrives_unchanged_or_is_refused"):
            return
        odd = samples.odd(self.under_test)
        for sample in odd:
            try:
                self._put([sample])
            except Refused as refusal:
                self.refused[name_of(sample)] = str(refusal)
        names = {name_of(sample) for sample in odd} - self.refused.keys()
        until(lambda: not self._unaccounted(names), self.patience, every=0.2)

    def _unaccounted(self, names: set[str]) -> set[str]:
        self.seen.look()
        missing = {name for name in names if not self.seen.arrivals(name)}
        return missing - self.letters().keys() if missing else missing

    def _block(self) -> None:
        """Blocks the pipeline and puts more messages than it may read in that state."""
        if self.waives("a_blocked_pipeline_stops_reading", "a_blocked_pipeline_loses_nothing"):
            return
        flood = samples.flood(self.under_test)
        self._blocked.touch()
        producers = threading.Thread(
            target=self._put_in_parallel, args=(flood, _FLOOD_AT_ONCE), name="producers"
        )
        producers.start()
        self._wait_until_steady(producers)
        self.held_back = self.under_test.waiting()
        self._blocked.unlink()
        producers.join()
        self._wait_for(flood)

    def _wait_until_steady(self, producers: threading.Thread) -> None:
        """Waits until reading has stopped, and everything is put or the system is full."""
        self.was_full = False
        until(lambda: self.was_full or not producers.is_alive(), _FLOODED_WITHIN)
        seen, since = self.under_test.waiting(), time.monotonic()
        deadline = since + _FLOODED_WITHIN
        while time.monotonic() < min(since + _STEADY, deadline):
            time.sleep(0.05)
            if (now := self.under_test.waiting()) != seen:
                seen, since = now, time.monotonic()

    def _restart(self) -> None:
        """Stops the pipeline while some messages wait and others are in flight, and continues."""
        self._put(samples.HELD)
        until(lambda: not self.seen.uncalled(samples.HELD), self.patience)
        self._have_some_in_flight(samples.SLOW)
        self.stop()
        if self.under_test.keeps_waiting:
            self._put(samples.MEANWHILE)
        self.start(self.pipeline())
        if not self.under_test.keeps_waiting:
            self._put(samples.MEANWHILE)
        self._wait_for([*samples.HELD, *samples.SLOW, *samples.MEANWHILE], STARTED_WITHIN)

    def _have_some_in_flight(self, group: Sequence[Sample]) -> None:
        """Puts messages, and waits until some are being processed while others are read ahead."""
        self._put(group[:_AT_ONCE])
        until(lambda: self.seen.uncalled(group) < len(group), self.patience)
        self._put(group[_AT_ONCE:])
        until(lambda: self.seen.uncalled(group) < len(group) - _AT_ONCE, self.patience)

    def _crash(self) -> None:
        """Puts a message that kills its worker, and then kills the source's process."""
        if self.waives("a_crash_loses_nothing", "max_deliveries_survives_a_crash"):
            return
        self._put_in_parallel(samples.CRASH, _AT_ONCE)
        self._wait_for(samples.CRASH, STARTED_WITHIN)
        self._have_some_in_flight(samples.SLOW_CRASH)
        for pid in processes_of(self.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_for(samples.SLOW_CRASH, STARTED_WITHIN)

    def _end(self) -> None:
        """Stops the pipeline for good once everything is settled."""
        until(lambda: not self.under_test.unsettled(), self.patience)
        self.unsettled = self.under_test.unsettled()
        self.stop()

    # --- putting and waiting --------------------------------------------------------------------

    def _put_in_parallel(self, group: Sequence[Sample], at_once: int) -> None:
        threads = [
            threading.Thread(target=self._produce, args=(group[number::PRODUCERS], at_once))
            for number in range(PRODUCERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _produce(self, group: Sequence[Sample], at_once: int) -> None:
        try:
            self._put(group, at_once)
        except Exception as error:
            self.note(f"put() raised {type(error).__name__}: {error}")

    def _put(self, group: Sequence[Sample], at_once: int = _AT_ONCE) -> None:
        """Puts all samples in batches. Retries while the system is full, up to a deadline."""
        start, deadline = 0, time.monotonic() + 2 * self.patience
        while start < len(group):
            some = group[start : start + at_once]
            try:
                self.under_test.put(some)
                start += len(some)
            except Full as full:
                self.was_full = True
                start += full.taken
                if time.monotonic() > deadline:
                    raise
                time.sleep(_FULL_WAIT)

    def _wait_for(self, group: Sequence[Sample], first: float = 0.0) -> None:
        """Waits until all messages have ended. Checks only new ones, because a flood is large."""
        self.seen.look()
        waiting = {name for name in _names(group) if not self.seen.has_ended(name)}

        def left() -> int:
            waiting.difference_update({*filter(self.seen.has_ended, self.seen.look())})
            return len(waiting)

        until_none(left, self.patience, first)


# --- rules --------------------------------------------------------------------------------------

SOURCE_RULES: list[Rule[SourceTrial]] = []


def _names(group: Iterable[Sample]) -> list[str]:
    return [name_of(sample) for sample in group]


def _expect_arrival(trial: SourceTrial, group: Sequence[Sample], once: bool) -> None:
    arrivals = {name: len(trial.seen.arrivals(name)) for name in _names(group)}
    missing = [name for name, count in arrivals.items() if not count]
    expect_none(missing, group, "messages have not arrived")
    if once:
        twice = [f"{name} ({count} times)" for name, count in arrivals.items() if count > 1]
        expect_none(twice, group, "messages have arrived more than once")


@rule(SourceStage.FLOW, SOURCE_RULES)
def every_message_arrives_once(trial: SourceTrial) -> None:
    """Messages from several concurrent producers all arrive, and without faults only once."""
    _expect_arrival(trial, samples.PLAIN, once=True)
    calls = {name: len(trial.seen.calls(name)) for name in _names(samples.PLAIN)}
    again = [f"{name} ({count} calls)" for name, count in calls.items() if count > 1]
    expect_none(again, samples.PLAIN, "messages were redelivered without a nack")


@rule(SourceStage.FLOW, SOURCE_RULES)
def every_nacked_message_is_redelivered(trial: SourceTrial) -> None:
    """Every tenth message is nacked once: it is redelivered once, as its second delivery."""
    _expect_deliveries(trial, samples.ONCE, 2)
    _expect_arrival(trial, samples.ONCE, once=True)


def _expect_deliveries(trial: SourceTrial, group: Sequence[Sample], wanted: int) -> None:
    """Expects the deliveries 1, 2 and so on up to ``wanted`` of each message."""
    wrong = []
    for name in _names(group):
        deliveries = [call.deliveries for call in trial.seen.calls(name)]
        if deliveries != list(range(1, wanted + 1)):
            wrong.append(f"{name} as {deliveries}")
    right = ", ".join(map(str, range(1, wanted + 1)))
    expect_none(wrong, group, f"messages did not have the deliveries {right}")


@rule(SourceStage.FLOW, SOURCE_RULES)
def delays_are_honoured(trial: SourceTrial) -> None:
    """A message nacked with a delay is redelivered after the delay, and soon after it."""
    _expect_deliveries(trial, samples.LATER, 3)
    gaps = [
        (name, later.at - earlier.at)
        for name in _names(samples.LATER)
        for earlier, later in pairwise(trial.seen.calls(name))
    ]
    early = [f"{name} after {gap:.3f} s" for name, gap in gaps if gap < DELAY]
    expect_none(early, gaps, f"redeliveries came before the delay of {DELAY} s was over")
    # The time from the transformer to the sink depends on the machine and not on the source, so the
    # slowest one observed is not counted as late.
    longest = DELAY + trial.under_test.lateness + trial.seen.slowest_passage(samples.PLAIN)
    late = [f"{name} after {gap:.3f} s" for name, gap in gaps if gap > longest]
    expect_none(
        late, gaps, f"redeliveries came later than {longest:.1f} s after a nack for {DELAY} s"
    )


@rule(SourceStage.FLOW, SOURCE_RULES)
def max_deliveries_is_exact(trial: SourceTrial) -> None:
    """A message is delivered at most ``max_deliveries`` + 1 times, then becomes a dead letter."""
    _expect_deliveries(trial, samples.LIMITED, CALLS)
    _expect_deliveries(trial, samples.NEVER, 1)
    _expect_letters(trial, [*samples.LIMITED, *samples.NEVER])


def _expect_letters(trial: SourceTrial, group: Sequence[Sample], once: bool = True) -> None:
    """Expects one dead letter for each message; after a crash there may be duplicates."""
    names = set(_names(group))
    until(lambda: names <= trial.letters().keys(), trial.patience, every=0.2)
    trial.seen.look()
    letters = trial.letters()
    wrong = [
        f"{name} ({len(letters.get(name, ()))} dead letters)"
        for name in _names(group)
        if not letters.get(name) or (once and len(letters[name]) > 1)
    ]
    expect_none(wrong, group, "messages that used up their deliveries are not one dead letter")
    arrived = [name for name in _names(group) if trial.seen.arrivals(name)]
    expect_none(arrived, group, "messages that used up their deliveries have arrived")


@rule(SourceStage.ODD, SOURCE_RULES)
def odd_input_arrives_unchanged_or_is_refused(trial: SourceTrial) -> None:
    """Odd values arrive byte for byte, or are refused with a reason; none is lost."""
    odd = [
        sample for sample in samples.odd(trial.under_test) if not (sample.keys or sample.headers)
    ]
    letters = trial.letters()
    lost = [
        name
        for name in _names(odd)
        if not trial.seen.arrivals(name) and name not in letters and name not in trial.refused
    ]
    expect_none(lost, odd, "odd values have neither arrived as they were nor been refused")


@rule(SourceStage.ODD, SOURCE_RULES)
def keys_and_headers_arrive_unchanged(trial: SourceTrial) -> None:
    """Keys and headers arrive unchanged, as far as the source keeps them."""
    odd = [sample for sample in samples.odd(trial.under_test) if sample.keys or sample.headers]
    if not odd:
        raise SkipTest("the source keeps neither keys nor headers")
    expect_none(_changed(trial, odd), odd, "messages have other keys or headers than were put")


def _changed(trial: SourceTrial, odd: Sequence[Sample]) -> list[str]:
    changed = []
    for sample in odd:
        name = name_of(sample)
        if name in trial.refused:
            continue
        arrivals = trial.seen.arrivals(name)
        if not arrivals:
            changed.append(f"{name} has not arrived")
        elif sample.keys and arrivals[0].keys != list(sample.keys):
            changed.append(f"keys {sample.keys} became {arrivals[0].keys}")
        elif dict(sample.headers).items() - arrivals[0].headers.items():
            changed.append(f"headers {dict(sample.headers)} became {arrivals[0].headers}")
    return changed


@rule(SourceStage.BLOCKED, SOURCE_RULES)
def a_blocked_pipeline_stops_reading(trial: SourceTrial) -> None:
    """When the pipeline is blocked, the source reads no further than its window."""
    if trial.was_full:
        return
    if trial.held_back is None:
        raise SkipTest("waiting() does not return how much is held back")
    read = trial.under_test.flood - trial.held_back
    if read > WINDOW + _MARGIN:
        raise RuleBroken(
            f"{read} of {trial.under_test.flood} messages were read from the outside system, "
            f"and none of them settled; the window is {WINDOW}"
        )


@rule(SourceStage.BLOCKED, SOURCE_RULES)
def a_blocked_pipeline_loses_nothing(trial: SourceTrial) -> None:
    """When it continues, all messages that were put meanwhile arrive, and none twice."""
    _expect_arrival(trial, samples.flood(trial.under_test), once=True)


@rule(SourceStage.RESTARTED, SOURCE_RULES)
def nacked_messages_survive_a_restart(trial: SourceTrial) -> None:
    """A message whose delay is not over when the pipeline stops is still redelivered, not early."""
    _expect_deliveries(trial, samples.HELD, 2)
    _expect_arrival(trial, samples.HELD, once=True)
    calls = [trial.seen.calls(name) for name in _names(samples.HELD)]
    early = [f"{c[0].name} after {_gap(c):.3f} s" for c in calls if _gap(c) < LONG_DELAY]
    expect_none(early, calls, f"redeliveries came before the delay of {LONG_DELAY} s was over")
    without_reason = [c[1].name for c in calls if c[1].reason != "held"]
    expect_none(without_reason, calls, "messages have lost the reason of their nack")


def _gap(calls: Sequence[TransformerCall]) -> float:
    return calls[1].at - calls[0].at


@rule(SourceStage.RESTARTED, SOURCE_RULES)
def a_stop_loses_nothing(trial: SourceTrial) -> None:
    """The source redelivers messages in flight when the pipeline stops, and none that are done."""
    _expect_arrival(trial, [*samples.SLOW, *samples.MEANWHILE], once=True)


@rule(SourceStage.CRASHED, SOURCE_RULES)
def a_crash_loses_nothing(trial: SourceTrial) -> None:
    """When a worker or the source's process is killed, all messages arrive, some maybe twice."""
    arriving = [sample for sample in samples.CRASH if sample not in samples.LIMITED_CRASH]
    _expect_arrival(trial, [*arriving, *samples.SLOW_CRASH], once=False)


@rule(SourceStage.CRASHED, SOURCE_RULES)
def max_deliveries_survives_a_crash(trial: SourceTrial) -> None:
    """A crash does not add deliveries to a message that was nacked before it."""
    names = _names(samples.LIMITED_CRASH)
    most = {name: max((c.deliveries for c in trial.seen.calls(name)), default=0) for name in names}
    wrong = [f"{name} as delivery {most[name]}" for name in names if most[name] != CALLS]
    expect_none(wrong, names, f"messages did not end with delivery {CALLS}")
    _expect_letters(trial, samples.LIMITED_CRASH, once=False)


@rule(SourceStage.ENDED, SOURCE_RULES)
def everything_is_settled_in_the_end(trial: SourceTrial) -> None:
    """When every message has ended, the outside system has nothing left to redeliver."""
    if trial.unsettled is None:
        raise SkipTest("unsettled() does not return what is left")
    if trial.unsettled:
        raise RuleBroken(f"{trial.unsettled} messages are still to be redelivered")


@rule(SourceStage.ENDED, SOURCE_RULES)
def nothing_is_left_behind(trial: SourceTrial) -> None:
    """After a stop no process, thread, listening socket or connection is left."""
    expect_none(trial.left, trial.left, "things are still there")


def check_source(under_test: SourceUnderTest, state: Path, patience: Duration = "30s") -> None:
    """Checks every rule for sources; raises one ``RuleBroken`` with all broken rules.

    ``state`` is an empty folder for the state of the pipelines.
    """
    with SourceTrial(under_test, state, patience) as trial:
        check_all(SOURCE_RULES, trial)
