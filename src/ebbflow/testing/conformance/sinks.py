"""Tests a sink with two runs of a pipeline that writes to it, and checks what has landed.

The first run starts without faults. Then the target refuses some messages, and then it is down for
a while. The run is stopped while messages are in flight, and the second run continues from there.
The stages run in order, each once, when a rule needs them. The trial only records; the rules judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Self
from unittest import SkipTest

from ebbflow.builders import Pipeline
from ebbflow.connectors import Connector
from ebbflow.domain.code import SinkMode
from ebbflow.domain.durations import Backoff, Duration
from ebbflow.domain.outcome import Counts
from ebbflow.testing.background_run import until, until_none
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.rules import (
    Rule,
    RuleBroken,
    Sample,
    SinkUnderTest,
    check_all,
    expect_none,
    rule,
)
from ebbflow.testing.conformance.samples import name_of, pass_slowly, text_of
from ebbflow.testing.conformance.trial import STARTED_WITHIN, TrialRuns
from ebbflow.testing.memory import MemorySource

_DOWN_FOR = 4.0
# Retries last for about ten seconds, which is longer than the target is down.
_RETRY = Backoff("200ms", factor=1, steps=50)


class SinkStage(IntEnum):
    """The stages of a trial, in order."""

    FLOW = 1
    ODD = 2
    REFUSED = 3
    DOWN = 4
    RESTARTED = 5
    ENDED = 6


class SinkTrial(TrialRuns[SinkUnderTest]):
    """Tests a sink, running stages as rules need them. The context ends the trial.

    ``patience`` is how long a stage waits without a message landing.
    """

    def __init__(self, under_test: SinkUnderTest, state: Path, patience: Duration = "30s") -> None:
        super().__init__(under_test, state, patience)
        self.landed_though_refused: list[str] = []
        self.held_up: list[str] = []
        self._sent = 0
        self._counted = Counts()

    def __enter__(self) -> Self:
        self._source = self.enter(MemorySource())
        return super().__enter__()

    def stages(self) -> Sequence[Callable[[], None]]:
        """Returns the work of each stage."""
        return (
            self._let_flow,
            self._send_odd,
            self._refuse_some,
            self._take_down,
            self._restart,
            self._end,
        )

    def on_line(self, line: str) -> None:
        """Passes on a line that the run printed."""
        self.under_test.on_line(line)

    def release(self) -> None:
        """Makes the target accept everything, so that the pipeline can stop."""
        self.under_test.refuse(())
        self.under_test.come_up()

    def pipeline(self) -> Pipeline:
        """Returns the pipeline from the suite's source to the sink."""
        sink = self.under_test.sink()
        mode: SinkMode = "batch" if isinstance(sink, Connector) else self.under_test.mode
        return (
            Pipeline(self.name)
            .source("in", self._source.code, transformer=pass_slowly)
            .sink("out", sink, mode=mode, retry=_RETRY, on_failure="drop", on_error=_RETRY)
        )

    # --- what has landed ------------------------------------------------------------------------

    def landed(self) -> dict[str, list[Sample]] | None:
        """Returns the landed messages by name; ``None`` if they are unknown."""
        if (samples := self.under_test.landed()) is None:
            return None
        by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            by_name.setdefault(text_of(sample.value), []).append(sample)
        return by_name

    def times_landed(self, group: Iterable[Sample]) -> dict[str, int]:
        """Returns how often each message of a group has landed.

        If the target cannot be read, this is derived from the counts of the pipeline.
        """
        landed = self.landed()
        if landed is None:
            missing = self._sent - self.counts.done
            return {name_of(sample): int(number >= missing) for number, sample in enumerate(group)}
        counts = Counter({name: len(copies) for name, copies in landed.items()})
        return {name_of(sample): counts[name_of(sample)] for sample in group}

    @property
    def counts(self) -> Counts:
        """The counts of the sink's vertex over all runs."""
        view = self.view("out")
        return self._counted + view.counts if view else self._counted

    # --- the stages -----------------------------------------------------------------------------

    def _let_flow(self) -> None:
        """Sends some messages before the pipeline starts, and the others while it runs."""
        self._send(samples.LANDING[:100])
        self.start(self.pipeline())
        self._send(samples.LANDING[100:])
        self._wait_for(samples.LANDING, STARTED_WITHIN)

    def _send_odd(self) -> None:
        """Sends odd values, keys and headers."""
        if self.waives("odd_input_lands_unchanged_or_is_refused"):
            return
        odd = samples.odd(self.under_test)
        self._send(odd)
        names = {name_of(sample) for sample in odd}
        until(lambda: not self._unaccounted(names), self.patience, every=0.2)

    def _unaccounted(self, names: set[str]) -> set[str]:
        landed = self.landed()
        missing = names - (names if landed is None else landed.keys())
        return missing - self.letters().keys() if missing else missing

    def _refuse_some(self) -> None:
        """Makes the target refuse some messages, and accept them later."""
        if not self.under_test.can_refuse:
            return
        self.under_test.refuse([sample.value for sample in samples.REFUSED])
        self._send([*samples.REFUSED, *samples.ACCEPTED])
        self._wait_for(samples.ACCEPTED)
        self.held_up = self._not_landed(samples.ACCEPTED)
        refused = {name_of(sample) for sample in samples.REFUSED}
        self.landed_though_refused = sorted(refused - {*self._not_landed(samples.REFUSED)})
        self.under_test.refuse(())
        until(lambda: not self._unaccounted(refused), self.patience, every=0.2)

    def _take_down(self) -> None:
        """Takes the target down for a while."""
        if not self.under_test.can_go_down:
            return
        self.under_test.go_down()
        taken, before = self._taken, self.counts
        self._send(samples.DOWN)
        until(lambda: self._taken >= taken + len(samples.DOWN), self.patience)
        until(lambda: self.counts != before, _DOWN_FOR)
        self.under_test.come_up()
        self._wait_for(samples.DOWN)

    def _restart(self) -> None:
        """Stops the pipeline while messages are in flight, and starts it again."""
        self._send(samples.STOPPED)
        until(lambda: any(self.times_landed(samples.STOPPED).values()), self.patience, every=0.01)
        self.stop()
        self.start(self.pipeline())
        self._wait_for(samples.STOPPED, STARTED_WITHIN)

    def _end(self) -> None:
        """Stops the pipeline for good."""
        self.stop()

    def stop(self) -> None:
        """Stops the pipeline, and keeps its counts."""
        super().stop()
        if self.summary is not None:
            self._counted = self.summary.totals["out"]

    @property
    def _taken(self) -> int:
        """The number of messages that the source has forwarded to the sink in this run."""
        view = self.view("in")
        return view.counts.done if view else 0

    # --- sending and waiting --------------------------------------------------------------------

    def _send(self, group: Sequence[Sample]) -> None:
        self._sent += len(group)
        self._source.put(*group)

    def _not_landed(self, group: Iterable[Sample]) -> list[str]:
        return [name for name, times in self.times_landed(group).items() if not times]

    def _wait_for(self, group: Sequence[Sample], first: float = 0.0) -> None:
        until_none(lambda: len(self._not_landed(group)), self.patience, first)


# --- rules --------------------------------------------------------------------------------------

SINK_RULES: list[Rule[SinkTrial]] = []


def _expect_landed(trial: SinkTrial, group: Sequence[Sample], once: bool) -> None:
    times = trial.times_landed(group)
    expect_none([name for name, n in times.items() if not n], group, "messages have not landed")
    if once:
        twice = [f"{name} ({n} times)" for name, n in times.items() if n > 1]
        expect_none(twice, group, "messages have landed more than once")


@rule(SinkStage.FLOW, SINK_RULES)
def every_message_lands_once(trial: SinkTrial) -> None:
    """Without faults every message lands in the target, and only once."""
    _expect_landed(trial, samples.LANDING, once=True)


@rule(SinkStage.ODD, SINK_RULES)
def odd_input_lands_unchanged_or_is_refused(trial: SinkTrial) -> None:
    """Odd values land byte for byte, or become dead letters; none is lost."""
    odd = [
        sample for sample in samples.odd(trial.under_test) if not (sample.keys or sample.headers)
    ]
    landed = trial.landed()
    if landed is None:
        raise SkipTest("landed() does not return what has landed")
    letters = trial.letters()
    lost = [name for name in map(name_of, odd) if name not in landed and name not in letters]
    expect_none(lost, odd, "odd values have neither landed as they were nor become dead letters")


@rule(SinkStage.ODD, SINK_RULES)
def keys_and_headers_land_unchanged(trial: SinkTrial) -> None:
    """Keys and headers land unchanged, as far as the sink keeps them."""
    odd = [sample for sample in samples.odd(trial.under_test) if sample.keys or sample.headers]
    landed = trial.landed()
    if not odd or landed is None:
        raise SkipTest("the sink keeps neither keys nor headers")
    letters = trial.letters()
    changed = [
        f"{sample.keys or dict(sample.headers)} became {landed.get(name_of(sample), 'nothing')}"
        for sample in odd
        if name_of(sample) not in letters and not _landed_whole(sample, landed)
    ]
    expect_none(changed, odd, "messages have landed with other keys or headers")


def _landed_whole(sample: Sample, landed: dict[str, list[Sample]]) -> bool:
    return any(
        (not sample.keys or tuple(copy.keys) == sample.keys)
        and sample.headers.items() <= dict(copy.headers).items()
        for copy in landed.get(name_of(sample), ())
    )


@rule(SinkStage.REFUSED, SINK_RULES)
def a_refused_message_blocks_no_other(trial: SinkTrial) -> None:
    """When the target refuses some messages, the sink reports these and writes the others."""
    if not trial.under_test.can_refuse:
        raise SkipTest("the target cannot be made to refuse messages")
    expect_none(trial.held_up, samples.ACCEPTED, "messages have not landed next to refused ones")
    if trial.landed_though_refused:
        raise RuleBroken(f"refuse() did not work for {trial.landed_though_refused}")


@rule(SinkStage.REFUSED, SINK_RULES)
def a_refused_message_is_not_lost(trial: SinkTrial) -> None:
    """A message that the target refused lands later, or becomes a dead letter with the error."""
    if not trial.under_test.can_refuse:
        raise SkipTest("the target cannot be made to refuse messages")
    letters = trial.letters()
    lost = [
        name
        for name, times in trial.times_landed(samples.REFUSED).items()
        if not times and not any(letter.error for letter in letters.get(name, ()))
    ]
    expect_none(lost, samples.REFUSED, "refused messages are neither written nor dead letters")


@rule(SinkStage.DOWN, SINK_RULES)
def a_target_that_was_down_gets_everything(trial: SinkTrial) -> None:
    """Messages that arrive while the target is down land when it is up again."""
    if not trial.under_test.can_go_down:
        raise SkipTest("the target cannot be made to go down")
    _expect_landed(trial, samples.DOWN, once=not trial.under_test.writes_twice)


@rule(SinkStage.RESTARTED, SINK_RULES)
def a_stop_in_the_middle_loses_nothing(trial: SinkTrial) -> None:
    """Messages that are in flight when the pipeline stops land when it runs again."""
    _expect_landed(trial, samples.STOPPED, once=not trial.under_test.writes_twice)


@rule(SinkStage.ENDED, SINK_RULES)
def nothing_is_left_behind(trial: SinkTrial) -> None:
    """After a stop no process, thread, listening socket or connection is left."""
    expect_none(trial.left, trial.left, "things are still there")


def check_sink(under_test: SinkUnderTest, state: Path, patience: Duration = "30s") -> None:
    """Checks every rule for sinks, as ``check_source`` does for sources."""
    with SinkTrial(under_test, state, patience) as trial:
        check_all(SINK_RULES, trial)
