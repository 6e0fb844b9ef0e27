"""The rules for sources, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from unittest import SkipTest

from ebbflow.runtime.source_process.reading import WINDOW
from ebbflow.testing.background_run import until
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.rules import Rule, RuleBroken, expect_none, rule
from ebbflow.testing.conformance.samples import CALLS, name_of
from ebbflow.testing.conformance.source_trial import SourceStage, SourceTrial
from ebbflow.testing.conformance.under_test import Sample
from ebbflow.testing.conformance.user_code import DELAY, HELD, Call

SOURCE_RULES: list[Rule[SourceTrial]] = []
# What is read at once may go beyond the window.
_MARGIN = 1_000


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
    """Everything that several producers put at once arrives, and without faults only once."""
    _expect_arrival(trial, samples.PLAIN, once=True)
    calls = {name: len(trial.seen.calls(name)) for name in _names(samples.PLAIN)}
    again = [f"{name} ({count} calls)" for name, count in calls.items() if count > 1]
    expect_none(again, samples.PLAIN, "messages were given again though nobody asked for it")


@rule(SourceStage.FLOW, SOURCE_RULES)
def every_nacked_message_comes_back(trial: SourceTrial) -> None:
    """Every tenth message is nacked once: it is given again once, as its second delivery."""
    _expect_deliveries(trial, samples.ONCE, 2)
    _expect_arrival(trial, samples.ONCE, once=True)


def _expect_deliveries(trial: SourceTrial, group: Sequence[Sample], wanted: int) -> None:
    """Each was given as its delivery 1, 2 and so on up to the one wanted."""
    wrong = []
    for name in _names(group):
        deliveries = [call.deliveries for call in trial.seen.calls(name)]
        if deliveries != list(range(1, wanted + 1)):
            wrong.append(f"{name} as {deliveries}")
    right = ", ".join(map(str, range(1, wanted + 1)))
    expect_none(wrong, group, f"messages were not given as delivery {right}")


@rule(SourceStage.FLOW, SOURCE_RULES)
def delays_are_honoured(trial: SourceTrial) -> None:
    """A message nacked with a delay comes not before it is over, and soon afterwards."""
    _expect_deliveries(trial, samples.LATER, 3)
    gaps = [
        (name, later.at - earlier.at)
        for name in _names(samples.LATER)
        for earlier, later in pairwise(trial.seen.calls(name))
    ]
    early = [f"{name} after {gap:.3f} s" for name, gap in gaps if gap < DELAY]
    expect_none(early, gaps, f"redeliveries came before the delay of {DELAY} s was over")
    # How soon depends on the machine: the source has no part in the way from here to the sink, and
    # what others took for it is not counted as late.
    longest = DELAY + trial.under_test.lateness + trial.seen.slowest_passage(samples.PLAIN)
    late = [f"{name} after {gap:.3f} s" for name, gap in gaps if gap > longest]
    expect_none(
        late, gaps, f"redeliveries came later than {longest:.1f} s after a nack for {DELAY} s"
    )


@rule(SourceStage.FLOW, SOURCE_RULES)
def max_deliveries_is_exact(trial: SourceTrial) -> None:
    """A message is given at most ``max_deliveries`` + 1 times and is then a dead letter."""
    _expect_deliveries(trial, samples.LIMITED, CALLS)
    _expect_deliveries(trial, samples.NEVER, 1)
    _expect_letters(trial, [*samples.LIMITED, *samples.NEVER])


def _expect_letters(trial: SourceTrial, group: Sequence[Sample], once: bool = True) -> None:
    """A letter for each; after a crash there may be more, as of everything that is written."""
    until(lambda: all(name in trial.letters() for name in _names(group)), trial.patience, every=0.2)
    letters = trial.letters()
    wrong = [
        f"{name} ({len(letters.get(name, ()))} letters)"
        for name in _names(group)
        if not letters.get(name) or (once and len(letters[name]) > 1)
    ]
    expect_none(wrong, group, "messages that used up their deliveries are not one dead letter")
    arrived = [name for name in _names(group) if trial.seen.arrivals(name)]
    expect_none(arrived, group, "messages that used up their deliveries have arrived")


@rule(SourceStage.ODD, SOURCE_RULES)
def odd_input_arrives_unchanged_or_is_refused(trial: SourceTrial) -> None:
    """Odd values arrive bit by bit as they were, or are refused with a reason; none is lost."""
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
    """Keys and headers arrive as they were put, as far as the source keeps them."""
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
    """When the pipeline does not go on, the source reads no further than its window."""
    if trial.was_full:
        return
    if trial.held_back is None:
        raise SkipTest("waiting() does not say how much is held back")
    read = trial.under_test.flood - trial.held_back
    if read > WINDOW + _MARGIN:
        raise RuleBroken(
            f"{read} of {trial.under_test.flood} messages were read from the outside system, "
            f"and none of them settled; the window is {WINDOW}"
        )


@rule(SourceStage.BLOCKED, SOURCE_RULES)
def a_blocked_pipeline_loses_nothing(trial: SourceTrial) -> None:
    """When it goes on, all that was put meanwhile arrives, and nothing twice."""
    _expect_arrival(trial, samples.flood(trial.under_test), once=True)


@rule(SourceStage.RESTARTED, SOURCE_RULES)
def nacked_messages_survive_a_restart(trial: SourceTrial) -> None:
    """A message that waits for its delay when the pipeline stops comes later, and not early."""
    _expect_deliveries(trial, samples.HELD, 2)
    _expect_arrival(trial, samples.HELD, once=True)
    calls = [trial.seen.calls(name) for name in _names(samples.HELD)]
    early = [f"{c[0].name} after {_gap(c):.3f} s" for c in calls if _gap(c) < HELD]
    expect_none(early, calls, f"redeliveries came before the delay of {HELD} s was over")
    forgotten = [c[1].name for c in calls if c[1].reason != "held"]
    expect_none(forgotten, calls, "messages have forgotten why they were nacked")


def _gap(calls: Sequence[Call]) -> float:
    return calls[1].at - calls[0].at


@rule(SourceStage.RESTARTED, SOURCE_RULES)
def a_stop_loses_nothing(trial: SourceTrial) -> None:
    """The source gives again what is in hand when the pipeline stops, and not what is done."""
    _expect_arrival(trial, [*samples.SLOW, *samples.MEANWHILE], once=True)


@rule(SourceStage.CRASHED, SOURCE_RULES)
def a_crash_loses_nothing(trial: SourceTrial) -> None:
    """When a worker or the source's process is killed, all arrives; some may come twice."""
    arriving = [sample for sample in samples.CRASH if sample not in samples.LIMITED_CRASH]
    _expect_arrival(trial, [*arriving, *samples.SLOW_CRASH], once=False)


@rule(SourceStage.CRASHED, SOURCE_RULES)
def max_deliveries_survives_a_crash(trial: SourceTrial) -> None:
    """A message that was nacked before a crash is not given more often because of it."""
    names = _names(samples.LIMITED_CRASH)
    most = {name: max((c.deliveries for c in trial.seen.calls(name)), default=0) for name in names}
    wrong = [f"{name} as delivery {most[name]}" for name in names if most[name] != CALLS]
    expect_none(wrong, names, f"messages were last given otherwise than as delivery {CALLS}")
    _expect_letters(trial, samples.LIMITED_CRASH, once=False)


@rule(SourceStage.ENDED, SOURCE_RULES)
def everything_is_settled_in_the_end(trial: SourceTrial) -> None:
    """When every message has ended, the outside system has nothing left to give again."""
    if trial.unsettled is None:
        raise SkipTest("unsettled() does not say what is left")
    if trial.unsettled:
        raise RuleBroken(f"{trial.unsettled} messages are still to be given again")


@rule(SourceStage.ENDED, SOURCE_RULES)
def nothing_is_left_behind(trial: SourceTrial) -> None:
    """After a stop there is no process, thread, listening socket or connection left."""
    expect_none(trial.left, trial.left, "things are still there")
