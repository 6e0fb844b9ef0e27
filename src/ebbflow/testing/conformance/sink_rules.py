"""The rules for sinks, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import SkipTest

from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.rules import Rule, RuleBroken, expect_none, rule
from ebbflow.testing.conformance.samples import name_of
from ebbflow.testing.conformance.sink_trial import SinkStage, SinkTrial
from ebbflow.testing.conformance.under_test import Sample

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
    """Odd values land bit by bit as they were, or are dead letters; none is lost."""
    odd = [
        sample for sample in samples.odd(trial.under_test) if not (sample.keys or sample.headers)
    ]
    landed = trial.landed()
    if landed is None:
        raise SkipTest("nobody can know what has landed")
    letters = trial.letters()
    lost = [name for name in map(name_of, odd) if name not in landed and name not in letters]
    expect_none(lost, odd, "odd values have neither landed as they were nor become dead letters")


@rule(SinkStage.ODD, SINK_RULES)
def keys_and_headers_land_unchanged(trial: SinkTrial) -> None:
    """Keys and headers land as they were, as far as the sink keeps them."""
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
def a_refused_message_holds_up_nobody(trial: SinkTrial) -> None:
    """When the target refuses some messages, the sink says so for these, and writes the others."""
    if not trial.under_test.can_refuse:
        raise SkipTest("the target cannot be made to refuse messages")
    expect_none(trial.held_up, samples.ACCEPTED, "messages have not landed beside refused ones")
    if trial.landed_though_refused:
        raise RuleBroken(f"refuse() did not work for {trial.landed_though_refused}")


@rule(SinkStage.REFUSED, SINK_RULES)
def a_refused_message_is_not_taken_for_written(trial: SinkTrial) -> None:
    """A message that the target refused lands later, or is a dead letter that says why."""
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
    """Messages that come while the target is down land when it is up again."""
    if not trial.under_test.can_go_down:
        raise SkipTest("the target cannot be made to go down")
    _expect_landed(trial, samples.DOWN, once=not trial.under_test.writes_twice)


@rule(SinkStage.RESTARTED, SINK_RULES)
def a_stop_in_the_middle_loses_nothing(trial: SinkTrial) -> None:
    """Messages that are on their way when the pipeline stops land when it runs again."""
    _expect_landed(trial, samples.STOPPED, once=not trial.under_test.writes_twice)


@rule(SinkStage.ENDED, SINK_RULES)
def nothing_is_left_behind(trial: SinkTrial) -> None:
    """After a stop there is no process, thread, listening socket or connection left."""
    expect_none(trial.left, trial.left, "things are still there")
