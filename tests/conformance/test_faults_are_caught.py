"""Connectors that break a rule are caught by that rule, and the text says what is wrong."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from ebbflow.testing import (
    SINK_RULES,
    SOURCE_RULES,
    MemorySink,
    MemorySource,
    RuleBroken,
    SinkTrial,
    SourceTrial,
)
from ebbflow.testing.conformance.trial import processes_of
from ebbflow.testing.memory import MemoryReader
from tests.conformance.faults import Careless, FaultySink, FaultySource, Forgetful, Tidy

pytestmark = [pytest.mark.slow, pytest.mark.long]

PATIENCE = "3s"
SOURCE = {rule.__name__: rule for rule in SOURCE_RULES}
SINK = {rule.__name__: rule for rule in SINK_RULES}


@pytest.fixture(scope="module")
def trial_of(tmp_path_factory):
    """A trial of a faulty source; the one before it has ended."""
    with ExitStack() as stack:
        trials = {}

        def made(reader):
            if reader not in trials:
                stack.pop_all().close()
                memory = stack.enter_context(MemorySource())
                state = tmp_path_factory.mktemp("state")
                trial = SourceTrial(FaultySource(memory, reader), state, PATIENCE)
                stack.callback(end_processes_of, trial.name)
                trials[reader] = stack.enter_context(trial)
            return trials[reader]

        yield made


def end_processes_of(pipeline):
    for pid in processes_of(pipeline):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize(
    ("reader", "rule", "problem"),
    [
        (
            Careless,
            "every_message_arrives_once",
            r"1 of 270 messages have not arrived: plain",
        ),
        (
            Careless,
            "every_nacked_message_is_redelivered",
            r"not have the deliveries 1, 2: once flow",
        ),
        (Careless, "delays_are_honoured", r"\d+ of 10 redeliveries came before the delay of 0.4 s"),
        (
            Careless,
            "max_deliveries_is_exact",
            r"4 of 4 messages did not have the deliveries",
        ),
        (Tidy, "odd_input_arrives_unchanged_or_is_refused", r"1 of 12 odd values have neither"),
        (Tidy, "keys_and_headers_arrive_unchanged", r"headers {'Name': 'value'} became {}"),
        (Tidy, "a_blocked_pipeline_stops_reading", r"42000 of 42000 messages were read"),
        (Forgetful, "nacked_messages_survive_a_restart", r"held restart 0 as \[1\]"),
        (Forgetful, "a_stop_loses_nothing", r"of 220 messages have not arrived: "),
        (Forgetful, "everything_is_settled_in_the_end", r"20 messages are still to be redelivered"),
        (Forgetful, "nothing_is_left_behind", r"process \d+: sleep 600"),
    ],
)
def test_a_faulty_source_is_caught(reader, rule, problem, trial_of):
    trial = trial_of(reader)

    with pytest.raises(RuleBroken, match=problem) as caught:
        SOURCE[rule](trial)

    assert f"FaultySource breaks {rule}: {SOURCE[rule].__doc__.split('``')[0]}" in str(caught.value)


@pytest.fixture(scope="module")
def sink_trial(tmp_path_factory):
    with MemorySink() as memory:
        state = tmp_path_factory.mktemp("state")
        with SinkTrial(FaultySink(memory), state, PATIENCE) as trial:
            yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("every_message_lands_once", "1 of 300 messages have not landed: plain landing 7"),
        ("odd_input_lands_unchanged_or_is_refused", "1 of 11 odd values have neither landed"),
        ("keys_and_headers_land_unchanged", "5 of 5 messages have landed with other keys"),
        ("a_refused_message_is_not_lost", "5 of 5 refused messages are neither"),
        ("a_target_that_was_down_gets_everything", "50 of 50 messages have not landed"),
    ],
)
def test_a_faulty_sink_is_caught(rule, problem, sink_trial):
    with pytest.raises(RuleBroken, match=problem) as caught:
        SINK[rule](sink_trial)

    assert f"FaultySink breaks {rule}: " in str(caught.value)


def test_a_trial_that_ends_early_leaves_nothing_behind(tmp_path):
    with MemorySource() as memory:
        with SourceTrial(FaultySource(memory, MemoryReader), tmp_path, PATIENCE) as trial:
            SOURCE["every_message_arrives_once"](trial)
        assert trial.left == []
    assert processes_of(trial.name) == []
