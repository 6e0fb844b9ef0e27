"""Every row of the table of outcomes, on real pipelines and on a real MonoVertex.

A pipeline has many deciding vertices, so one run covers many rows; a MonoVertex has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ebbflow import Backoff, Message, MonoVertex, Pipeline, Response
from ebbflow.builders import NatsStore
from ebbflow.connectors import Generator
from ebbflow.deadletters import DeadLetters
from ebbflow.domain.outcome import Counts
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.spark.run import run_pipeline
from tests.outcome_table import COUNT, MAP_CASES, SINK_CASES, Case
from tests.spark.runs import Failures, Journal

pytestmark = pytest.mark.slow

ERRORS = Backoff("10ms", steps=2)
# Each has one task or two; the session of the tests has forty slots.
MOST_ROWS = 10


@dataclass(frozen=True)
class Ended:
    """The outcome of a row: its vertex's counts, its dead letters, and what its sinks received."""

    counts: Counts
    letters: list[Letter]
    entries: list[tuple[str, int, str]]

    def written(self, role: str) -> int:
        """How often a sink accepted the message 3."""
        accepted = ("Status.OK", "Status.ON_SUCCESS") if role != "sink" else ("Status.OK",)
        return sum(
            name == role and value == 3 and any(status in response for status in accepted)
            for name, value, response in self.entries
        )

    @property
    def calls(self) -> int:
        return sum(role == "sink" and value == 3 for role, value, _ in self.entries)


class Row:
    """The user code of a case; its sinks write what they receive to the journal."""

    def __init__(self, case: Case, number: int, journal: Journal) -> None:
        self.case = case
        self._number = number
        self._journal = journal

    def _sink(self, role, decide):
        journal, number = self._journal, self._number

        def sink(data):
            responses = []
            for datum in data:
                value = json.loads(datum.value)["value"]
                response = decide(datum) if value == 3 and decide else Response.ok(datum.id)
                journal.write([number, role, value, str(response)])
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

    def add_to(self, pipeline: Pipeline) -> Pipeline:
        """Adds the vertices of this row to the pipeline, as a branch after the source."""
        case, before = self.case, "in"
        if case.map:
            before = self.vertex
            options = {"on_error": ERRORS, "after": "in", **case.map_options}
            pipeline = pipeline.map(before, self._map(), **options)
        sink = self._sink("sink", case.sink)
        options = {"on_error": ERRORS, "after": before, **self._sink_options()}
        return pipeline.sink(f"out-{self._number}", sink, **options)

    def as_monovertex(self) -> MonoVertex:
        mono = MonoVertex("test", on_error=ERRORS, serving_store=store_of(self.case))
        mono = mono.source(Generator(messages=COUNT))
        if self.case.map:
            mono = mono.map(self._map(), **self.case.map_options)
        return mono.sink(self._sink("sink", self.case.sink), **self._sink_options())

    @property
    def vertex(self) -> str:
        """The vertex that decides."""
        return f"{'map' if self.case.map else 'out'}-{self._number}"

    def ended(self, counts: Counts, letters: list[Letter]) -> Ended:
        entries = [
            tuple(entry) for number, *entry in self._journal.read() if number == self._number
        ]
        return Ended(counts, letters, entries)


def store_of(case: Case) -> NatsStore | None:
    return NatsStore(bucket="answers") if case.options.get("serve") else None


def execute(built: Any, folder: Path) -> tuple[dict[str, Counts], list[Letter]]:
    """Run it to its end; return the counts of its vertices and all its dead letters."""
    state = folder / "state"
    summary = run_pipeline(built.spec, drain=True, timeout="240s", state=state, watcher=Failures())
    with start_embedded(state) as server, open_link(server) as link:
        letters = [stored.letter for stored in DeadLetters(link, "test").list()]
    return summary.vertices, letters


def together() -> Iterator[list[Case]]:
    """Groups of cases that fit into one pipeline: few, and all with a store or all without."""
    for cases in (SINK_CASES, MAP_CASES):
        for stored in (False, True):
            alike = [case for case in cases if (store_of(case) is not None) is stored]
            yield from (alike[n : n + MOST_ROWS] for n in range(0, len(alike), MOST_ROWS))


@pytest.fixture(scope="module")
def of_pipelines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """The outcome of each row, by its name."""
    ended = {}
    for cases in together():
        folder = tmp_path_factory.mktemp("rows")
        journal = Journal(folder / "journal")
        rows = [Row(case, number, journal) for number, case in enumerate(cases)]
        pipeline = Pipeline("test", serving_store=store_of(cases[0]))
        pipeline = pipeline.source("in", Generator(messages=COUNT))
        for row in rows:
            pipeline = row.add_to(pipeline)
        vertices, letters = execute(pipeline, folder)
        for row in rows:
            own = [letter for letter in letters if letter.vertex == row.vertex]
            ended[row.case.name] = row.ended(vertices[row.vertex], own)
    return ended


@pytest.fixture(params=["pipeline", "mono"])
def ended_of(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Any:
    def of_monovertex(case: Case) -> Ended:
        row = Row(case, 0, Journal(tmp_path / "journal"))
        vertices, letters = execute(row.as_monovertex(), tmp_path)
        return row.ended(vertices["test"], letters)

    if request.param == "mono":
        return of_monovertex
    rows = request.getfixturevalue("of_pipelines")
    return lambda case: rows[case.name]


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("case", SINK_CASES, ids=str)
def test_the_response_of_a_sink_decides_the_outcome(case, ended_of):
    ended = ended_of(case)
    counts = ended.counts.as_dict()

    expected = dict.fromkeys(counts, 0) | {"read": COUNT, "done": COUNT, "written": COUNT}
    expected = {name: value + case.ends.get(name, 0) for name, value in expected.items()}
    assert counts == expected
    assert ended.written("sink") == case.stored
    assert ended.written("fallback") == case.fallback
    assert ended.written("on_success") == case.succeeded
    assert ended.calls == case.calls
    check_letter(case, ended)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("case", MAP_CASES, ids=str)
def test_the_result_of_a_map_decides_the_outcome(case, ended_of):
    ended = ended_of(case)
    counts = ended.counts.as_dict()

    expected = dict.fromkeys(counts, 0) | {"read": COUNT, "done": COUNT}
    expected = {name: value + case.ends.get(name, 0) for name, value in expected.items()}
    assert counts | {"written": 0} == expected
    assert ended.written("sink") == case.stored
    check_letter(case, ended)


def check_letter(case, ended):
    if case.letter is None:
        assert ended.letters == []
        return
    (letter,) = ended.letters
    assert json.loads(letter.value)["value"] == 3
    assert letter.reason == case.letter[0]
    assert case.letter[1] in letter.error
