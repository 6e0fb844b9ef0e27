"""Every row of the table of outcomes, on a real pipeline and on a real MonoVertex."""

from __future__ import annotations

import json

import pytest

from ebbflow import Message, MonoVertex, Pipeline, Response
from tests.outcome_table import COUNT, MAP_CASES, SINK_CASES

pytestmark = pytest.mark.slow


class World:
    """Both forms of a pipeline with the case's user code, and what it left behind."""

    def __init__(self, case, run, journal, letters):
        self.case = case
        self.run = run
        self.journal = journal
        self.letters = letters

    def _sink(self, role, decide):
        journal = self.journal

        def sink(data):
            responses = []
            for datum in data:
                special = json.loads(datum.value)["value"] == 3
                response = decide(datum) if special and decide else Response.ok(datum.id)
                journal.write([role, json.loads(datum.value)["value"], str(response)])
                responses += [] if response is None else [response]
            return responses

        return sink

    def _map(self):
        decide = self.case.map

        def step(datum):
            special = json.loads(datum.value)["value"] == 3
            return decide(datum) if special else Message(datum.value)

        return step

    def _sink_options(self):
        options = dict(self.case.options)
        options.pop("serve", None)
        for role in ("fallback", "on_success"):
            if role in options:
                decide = options[role] if callable(options[role]) else None
                options[role] = self._sink(role, decide)
        return options

    def execute(self, form):
        """The counts of the vertex that decides."""
        errors = {"interval": "10ms", "steps": 2}
        store = {"nats": {"bucket": "answers"}} if self.case.options.get("serve") else None
        sink = self._sink("sink", self.case.sink)
        generator = {"messages": COUNT}
        if form == "mono":
            mono = MonoVertex("test", on_error=errors, serving_store=store)
            mono = mono.source(generator=generator)
            if self.case.map:
                mono = mono.map(self._map(), **self.case.map_options)
            return self.run(mono.sink(sink, **self._sink_options())).vertices["test"]
        pipeline = Pipeline("test", serving_store=store).source("in", generator=generator)
        if self.case.map:
            pipeline = pipeline.map("m", self._map(), on_error=errors, **self.case.map_options)
        pipeline = pipeline.sink("out", sink, on_error=errors, **self._sink_options())
        return self.run(pipeline).vertices["m" if self.case.map else "out"]

    def written(self, role):
        """How often the message 3 was accepted by a sink."""
        accepted = ("Status.OK", "Status.ON_SUCCESS") if role != "sink" else ("Status.OK",)
        return sum(
            name == role and value == 3 and any(status in response for status in accepted)
            for name, value, response in self.journal.read()
        )

    def calls(self):
        return sum(role == "sink" and value == 3 for role, value, _ in self.journal.read())


@pytest.fixture
def world(request, run, journal, server_letters):
    return lambda case: World(case, run, journal, server_letters)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("form", ["pipeline", "mono"])
@pytest.mark.parametrize("case", SINK_CASES, ids=str)
def test_what_a_sink_says_decides(case, form, world):
    here = world(case)
    counts = here.execute(form).as_dict()

    expected = dict.fromkeys(counts, 0) | {"read": COUNT, "done": COUNT, "written": COUNT}
    expected = {name: value + case.ends.get(name, 0) for name, value in expected.items()}
    assert counts == expected
    assert here.written("sink") == case.stored
    assert here.written("fallback") == case.fallback
    assert here.written("on_success") == case.succeeded
    assert here.calls() == case.calls
    check_letter(case, here)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("form", ["pipeline", "mono"])
@pytest.mark.parametrize("case", MAP_CASES, ids=str)
def test_what_a_map_says_decides(case, form, world):
    here = world(case)
    counts = here.execute(form).as_dict()

    expected = dict.fromkeys(counts, 0) | {"read": COUNT, "done": COUNT}
    expected = {name: value + case.ends.get(name, 0) for name, value in expected.items()}
    assert counts | {"written": 0} == expected
    assert here.written("sink") == case.stored
    check_letter(case, here)


def check_letter(case, here):
    letters = here.letters("test")
    if case.letter is None:
        assert letters == []
        return
    (letter,) = letters
    assert json.loads(letter.value)["value"] == 3
    assert letter.reason == case.letter[0]
    assert case.letter[1] in letter.error
