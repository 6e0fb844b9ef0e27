"""A source tried out: two runs of a pipeline that reads from it, and all that was seen in them.

The first run has parallel producers, nacks, odd input and a blocked pipeline, and is stopped while
messages wait and others are in hand. The second goes on from there; its worker is killed, and the
process of the source. Stages are gone through in order, each once, when a rule asks for them.
``Observations`` are every call of the transformer and every arrival at the pipeline's end. Nothing
here judges; a stage that waited in vain leaves less to be seen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path

from ebbflow.builders import Pipeline
from ebbflow.testing.background_run import until, until_none
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.samples import calls_wanted, name_of
from ebbflow.testing.conformance.trial import STARTED_WITHIN, TrialRuns, processes_of
from ebbflow.testing.conformance.under_test import Full, Refused, Sample, SourceUnderTest
from ebbflow.testing.conformance.user_code import (
    Arrival,
    Call,
    Journal,
    RecordingSink,
    ScriptedTransformer,
)


class Observations:
    """Calls and arrivals so far, by the names of their messages."""

    def __init__(self, calls: Path, arrivals: Path) -> None:
        self.calls_journal = Journal(calls)
        self.arrivals_journal = Journal(arrivals)
        self._calls: defaultdict[str, list[Call]] = defaultdict(list)
        self._arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)

    def _look(self) -> None:
        for entry in self.calls_journal.new():
            call = Call(*entry)
            self._calls[call.name].append(call)
        for entry in self.arrivals_journal.new():
            arrival = Arrival(*entry)
            self._arrivals[arrival.name].append(arrival)

    def calls(self, name: str) -> list[Call]:
        """Returns the calls with one message, in the order of their times."""
        self._look()
        return sorted(self._calls.get(name, ()), key=lambda call: call.at)

    def arrivals(self, name: str) -> list[Arrival]:
        """Returns the arrivals of one message at the end of the pipeline."""
        self._look()
        return self._arrivals.get(name, [])

    def slowest_passage(self, group: Iterable[Sample]) -> float:
        """Returns the most seconds that one of these took from its last call to its arrival."""
        names = [name_of(sample) for sample in group]
        passages = (
            self.arrivals(name)[0].at - self.calls(name)[-1].at
            for name in names
            if self.arrivals(name) and self.calls(name)
        )
        return max(passages, default=0.0)

    def uncalled(self, group: Iterable[Sample]) -> int:
        """Returns how many the transformer has not got yet."""
        self._look()
        return sum(name_of(sample) not in self._calls for sample in group)

    def left(self, group: Iterable[Sample]) -> int:
        """Returns how many have not ended: they have neither arrived nor had their last call."""
        self._look()
        return sum(not self._is_over(name_of(sample)) for sample in group)

    def _is_over(self, name: str) -> bool:
        if (wanted := calls_wanted(name)) is None:
            return name in self._arrivals
        return any(call.deliveries >= wanted for call in self._calls.get(name, ()))


PRODUCERS = 4
_AT_ONCE = 20
_FLOOD_AT_ONCE = 500
_STEADY = 0.8
# A flood takes a busy machine longer than a stage waits for messages that may never come.
_FLOODED_WITHIN = 60.0
_FULL_WAIT = 0.02
# Small, so that a source that stores what it takes in is soon full when the pipeline is blocked.
_LIMITS = {"buffer_max_length": 100}
_ON_ERROR = {"interval": "200ms", "steps": 20, "cap": "1s"}


class SourceStage(IntEnum):
    """The stages of a trial, in their order."""

    FLOW = 1
    ODD = 2
    BLOCKED = 3
    RESTARTED = 4
    CRASHED = 5
    ENDED = 6


class SourceTrial(TrialRuns[SourceUnderTest]):
    """A source, tried out as far as its rules have asked for. Ends with its context.

    ``patience`` is how many seconds a stage waits for messages while none comes.
    """

    def __init__(self, under_test: SourceUnderTest, state: Path, patience: float = 30.0) -> None:
        super().__init__(under_test, state, patience)
        self.seen = Observations(self.state / "calls", self.state / "arrivals")
        self.refused: dict[str, str] = {}
        self.held_back: int | None = None
        self.was_full = False
        self.unsettled: int | None = None
        self._gate = self.state / "gate"

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

    def release(self) -> None:
        """Opens the gate, so that a pipeline that is still blocked can stop."""
        self._gate.unlink(missing_ok=True)

    def pipeline(self) -> Pipeline:
        """Returns the pipeline: the source, the suite's transformer, the suite's sink."""
        source = self.under_test.source()
        code = None if isinstance(source, Mapping) else source
        kinds = dict(source) if isinstance(source, Mapping) else {}
        deciding = partial(
            ScriptedTransformer, self.seen.calls_journal, self._gate, self.state / "killed"
        )
        pipeline = Pipeline(self.name).source(
            "in", code, transformer=deciding, limits=_LIMITS, on_error=_ON_ERROR, **kinds
        )
        return pipeline.sink("out", partial(RecordingSink, self.seen.arrivals_journal))

    # --- the stages -----------------------------------------------------------------------------

    def _let_flow(self) -> None:
        """Puts messages in parallel, some of them before the pipeline is there."""
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
        missing = {name for name in names if not self.seen.arrivals(name)}
        return missing - self.letters().keys() if missing else missing

    def _block(self) -> None:
        """Blocks the pipeline and puts more messages than it should read meanwhile."""
        if self.waives("a_blocked_pipeline_stops_reading", "a_blocked_pipeline_loses_nothing"):
            return
        flood = samples.flood(self.under_test)
        self._gate.touch()
        producers = threading.Thread(
            target=self._put_in_parallel, args=(flood, _FLOOD_AT_ONCE), name="producers"
        )
        producers.start()
        self._wait_until_steady(producers)
        self.held_back = self.under_test.waiting()
        self._gate.unlink()
        producers.join()
        self._wait_for(flood)

    def _wait_until_steady(self, producers: threading.Thread) -> None:
        """Waits until nothing is read any more, and all is put or there is no room for it."""
        self.was_full = False
        until(lambda: self.was_full or not producers.is_alive(), _FLOODED_WITHIN)
        seen, since = self.under_test.waiting(), time.monotonic()
        deadline = since + _FLOODED_WITHIN
        while time.monotonic() < min(since + _STEADY, deadline):
            time.sleep(0.05)
            if (now := self.under_test.waiting()) != seen:
                seen, since = now, time.monotonic()

    def _restart(self) -> None:
        """Stops the pipeline while some messages wait and others are in hand, and goes on."""
        self._put(samples.HELD)
        until(lambda: not self.seen.uncalled(samples.HELD), self.patience)
        self._have_some_in_hand(samples.SLOW)
        self.stop()
        if self.under_test.keeps_waiting:
            self._put(samples.MEANWHILE)
        self.start(self.pipeline())
        if not self.under_test.keeps_waiting:
            self._put(samples.MEANWHILE)
        self._wait_for([*samples.HELD, *samples.SLOW, *samples.MEANWHILE], STARTED_WITHIN)

    def _have_some_in_hand(self, group: Sequence[Sample]) -> None:
        """Puts messages, and waits until some are being worked on; the others are read ahead."""
        self._put(group[:_AT_ONCE])
        until(lambda: self.seen.uncalled(group) < len(group), self.patience)
        self._put(group[_AT_ONCE:])
        until(lambda: self.seen.uncalled(group) < len(group) - _AT_ONCE, self.patience)

    def _crash(self) -> None:
        """Has a message kill its worker, and then kills the process of the source."""
        if self.waives("a_crash_loses_nothing", "max_deliveries_survives_a_crash"):
            return
        self._put_in_parallel(samples.CRASH, _AT_ONCE)
        self._wait_for(samples.CRASH, STARTED_WITHIN)
        self._have_some_in_hand(samples.SLOW_CRASH)
        for pid in processes_of(self.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_for(samples.SLOW_CRASH, STARTED_WITHIN)

    def _end(self) -> None:
        """Stops the pipeline for good, when everything has been settled."""
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
        """Puts all, some at a time; tries again what does not get in, but not for ever."""
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
        until_none(lambda: self.seen.left(group), self.patience, first)
