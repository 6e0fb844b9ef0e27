"""The connectors that need no system of their own, as far as the rules make sense for them."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

from ebbflow import Datum, Pipeline
from ebbflow.connectors import Blackhole, Generator, Log
from ebbflow.testing import (
    SINK_RULES,
    SOURCE_RULES,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from ebbflow.testing.conformance import samples
from ebbflow.testing.conformance.samples import RecordingSink, ScriptedTransformer
from tests.conformance.conftest import PATIENCE

pytestmark = pytest.mark.slow

MADE_UP = [*samples.FLOW, *samples.HELD, *samples.SLOW, *samples.MEANWHILE]


def sample_of(value: bytes) -> Sample:
    return MADE_UP[json.loads(value)["value"]]


class Numbered(ScriptedTransformer):
    """Maps the generator's numbers to the messages of the suite."""

    def __call__(self, datum: Datum):
        history = {"deliveries": datum.deliveries, "nack_reason": datum.nack_reason}
        return super().__call__(Datum(sample_of(datum.value).value, id=datum.id, **history))


class GeneratorUnderTest(SourceUnderTest):
    """Nothing can be put into it; it makes all messages when it starts."""

    flood = 0
    waived = dict.fromkeys(
        (
            "odd_input_arrives_unchanged_or_is_refused",
            "keys_and_headers_arrive_unchanged",
            "a_crash_loses_nothing",
            "max_deliveries_survives_a_crash",
        ),
        "it makes its values up, and all of them at once",
    )

    def source(self):
        return Generator(messages=len(MADE_UP))

    def put(self, samples):
        pass


class GeneratorTrial(SourceTrial):
    def pipeline(self):
        numbered = partial(Numbered, self.seen.calls_journal, self._blocked, self.state / "killed")
        pipeline = Pipeline(self.name).source("in", self.under_test.source(), transformer=numbered)
        return pipeline.sink("out", partial(RecordingSink, self.seen.arrivals_journal))

    def name_of_letter(self, letter):
        return samples.name_of(sample_of(letter.value))


@pytest.fixture(scope="module")
def generator_trial(tmp_path_factory):
    with GeneratorTrial(
        GeneratorUnderTest(), tmp_path_factory.mktemp("generator"), PATIENCE
    ) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_generator_keeps_every_rule(rule, generator_trial):
    rule(generator_trial)


class LogUnderTest(SinkUnderTest):
    """What lands is what the run prints."""

    waived = dict.fromkeys(
        ("odd_input_lands_unchanged_or_is_refused", "keys_and_headers_land_unchanged"),
        "a line shows bytes that are not text escaped",
    )

    def __init__(self) -> None:
        self._lines: list[str] = []

    def sink(self):
        return Log()

    def on_line(self, line):
        self._lines.append(line)

    def landed(self):
        found = (re.search(r"payload=(.*) event_time=", line) for line in list(self._lines))
        return [Sample(match[1].encode()) for match in found if match]


class BlackholeUnderTest(SinkUnderTest):
    """What lands cannot be seen; the counts must be right."""

    def sink(self):
        return Blackhole()

    def landed(self):
        return None


@pytest.fixture(scope="module", params=[LogUnderTest, BlackholeUnderTest], ids=["log", "blackhole"])
def sink_trial(request, tmp_path_factory):
    with SinkTrial(request.param(), tmp_path_factory.mktemp("state"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_sinks_without_a_system_keep_every_rule(rule, sink_trial):
    rule(sink_trial)
