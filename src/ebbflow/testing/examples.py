"""Examples in YAML next to a spec: messages and how they should end, for ``ebbflow test``.

    # pipeline.test.yaml, next to pipeline.yaml
    - name: an unknown customer ends as a dead letter after three redeliveries
      messages:
        - {value: 3}
      expect:
        enrich: {redelivered: 3}
        store: {done: 0}
      deadLetters:
        - {vertex: enrich, reason: customer not known yet}

Each example is one simulation, so it needs neither Spark nor NATS and takes milliseconds. Only what
an example mentions is checked, except that an unexpected dead letter or a message that has not
ended always fails it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import Field

from ebbflow.connectors.schema import fields
from ebbflow.connectors.schema.fields import Section, shown
from ebbflow.domain.errors import Problem, SetupError, SpecError
from ebbflow.domain.spelling import did_you_mean
from ebbflow.domain.user_source import SourceMessage
from ebbflow.engine.dead_letter import Letter
from ebbflow.spec.document import Document, read
from ebbflow.spec.lint import EXAMPLES, load
from ebbflow.spec.model import Spec
from ebbflow.spec.validate import Finding, validate
from ebbflow.testing.incidents import Crash, Incident, Outage, Pause
from ebbflow.testing.simulated import SimulatedVertex
from ebbflow.testing.simulation import Simulation, simulate

_ENVELOPE = {"message", "keys", "headers"}


class ExpectedVertex(Section):
    """The expected counts of a vertex, and the values that it forwards or writes."""

    read: fields.Count | None = None
    written: fields.Count | None = None
    done: fields.Count | None = None
    redelivered: fields.Count | None = None
    dead_lettered: fields.Count | None = None
    dropped: fields.Count | None = None
    fallback: fields.Count | None = None
    served: fields.Count | None = None
    on_success: fields.Count | None = None
    pending: fields.Count | None = None
    values: tuple[Any, ...] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The expected counts, by attribute name."""
        counts = {name: getattr(self, name) for name in type(self).model_fields if name != "values"}
        return {name: count for name, count in counts.items() if count is not None}


class ExpectedLetter(Section):
    """An expected dead letter. A missing field matches anything, ``error`` part of the text."""

    vertex: fields.Text | None = None
    reason: fields.Text | None = None
    error: fields.Text | None = None
    value: Any = None

    def fits(self, letter: Letter) -> bool:
        """Returns whether a dead letter matches."""
        return (
            self.vertex in (None, letter.vertex)
            and self.reason in (None, letter.reason)
            and (self.error is None or self.error in (letter.error or ""))
            and (self.value is None or _same(self.value, letter.value))
        )


class ExampleIncident(Section):
    """An incident: exactly one of ``outage``, ``pause`` and ``crash`` names the vertex."""

    outage: fields.Text | None = None
    pause: fields.Text | None = None
    crash: fields.Text | None = None
    at: fields.Millis = 0
    lasts: fields.Wait = 60_000

    def incident(self) -> Incident:
        """Returns the incident to pass to ``simulate``."""
        at, lasts = timedelta(milliseconds=self.at), timedelta(milliseconds=self.lasts)
        if self.crash is not None:
            return Crash(self.crash, at)
        if self.pause is not None:
            return Pause(self.pause, lasts, at)
        return Outage(str(self.outage), lasts, at)


class Example(Section):
    """One example: messages, incidents, and the expected outcome."""

    name: fields.Text
    messages: tuple[Any, ...] | dict[str, tuple[Any, ...]] | None = None
    incidents: tuple[ExampleIncident, ...] = ()
    within: fields.Wait = 24 * 3_600_000
    expect: dict[str, ExpectedVertex] = Field(default_factory=dict)
    dead_letters: tuple[ExpectedLetter, ...] = ()
    answers: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExamplesFile:
    """The examples of one file, with their spec and its path."""

    path: Path
    spec_path: Path
    spec: Spec
    examples: Sequence[tuple[int, Example]]
    """Each example with its first line number."""


@dataclass(frozen=True, slots=True)
class CheckedExample:
    """An example after its simulation, with one line for each difference."""

    file: ExamplesFile
    line: int
    name: str
    differences: Sequence[str]
    simulation: Simulation

    @property
    def passed(self) -> bool:
        """Whether there are no differences."""
        return not self.differences


# --- reading --------------------------------------------------------------------------------------


def find_examples(target: Path) -> list[Path]:
    """Returns the files with examples: in a folder and below, of a spec, or the file itself."""
    if target.is_dir():
        files = (path for path in target.rglob(f"*{EXAMPLES}") if find_spec(path) is not None)
        return sorted(path for path in files if not _is_hidden(path.relative_to(target)))
    if target.name.endswith(EXAMPLES):
        return [target]
    return [target.with_name(f"{target.stem}{EXAMPLES}")]


def find_spec(examples: Path) -> Path | None:
    """Returns the spec next to a file of examples, if there is one."""
    stem = examples.name.removesuffix(EXAMPLES)
    files = (examples.with_name(f"{stem}{suffix}") for suffix in (".yaml", ".yml"))
    return next((file for file in files if file.is_file()), None)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_examples(file: Path) -> ExamplesFile:
    """Returns the examples of a file; ``SpecError`` has all problems of the file and its spec."""
    if not file.is_file():
        raise SetupError(
            f"There are no examples: {file} does not exist.",
            "Write some; see docs/guides/testing.md.",
        )
    if (spec_path := find_spec(file)) is None:
        name = f"{file.name.removesuffix(EXAMPLES)}.yaml"
        raise SetupError(f"{file} is about {name}, which is not next to it.", "Rename one of them.")
    spec = load(spec_path)
    documents, problems = read(file)
    examples: list[tuple[int, Example]] = []
    for document in documents:
        problems += document.problems
        for line, example, findings in _each(document, [step.name for step in spec.steps]):
            problems += map(document.problem, findings)
            examples += [(line, example)] if example is not None else []
    if problems:
        raise SpecError(sorted(problems, key=_place))
    return ExamplesFile(file, spec_path, spec, examples)


def _place(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column


def _each(
    document: Document, vertices: Sequence[str]
) -> Iterator[tuple[int, Example | None, list[Finding]]]:
    if not isinstance(document.data, list):
        message = f"examples are a list, each with a name, not {shown(document.data)}"
        yield 1, None, [Finding("EB103", message, ())]
        return
    for index, data in enumerate(document.data):
        line = document.values[(index,)].line
        if not isinstance(data, dict):
            message = f"an example is a mapping with a name, not {shown(data)}"
            yield line, None, [Finding("EB103", message, (index,))]
            continue
        example, wrong = validate(Example, data)
        findings = [Finding(f.code, f.message, (index, *f.path), f.at_key) for f in wrong]
        if example is not None and not wrong:
            findings += _check(example, index, vertices)
        yield line, example, findings


def _check(example: Example, index: int, vertices: Sequence[str]) -> Iterator[Finding]:
    for name in example.expect:
        if name not in vertices:
            message = _no_vertex(name, vertices)
            yield Finding("EB301", message, (index, "expect", name), at_key=True)
    for number, incident in enumerate(example.incidents):
        named = [each for each in (incident.outage, incident.pause, incident.crash) if each]
        if len(named) != 1:
            message = "an incident has exactly one of outage, pause and crash"
            yield Finding("EB207", message, (index, "incidents", number))
        elif named[0] not in vertices:
            message = _no_vertex(named[0], vertices)
            yield Finding("EB301", message, (index, "incidents", number))


def _no_vertex(name: str, vertices: Sequence[str]) -> str:
    return f"there is no vertex {name!r}; {did_you_mean(name, vertices, 'there are')}"


# --- checking -------------------------------------------------------------------------------------


def check_example(file: ExamplesFile, line: int, example: Example) -> CheckedExample:
    """Simulates an example and compares the result with what it expects."""
    simulation = simulate(
        file.spec,
        _messages(example.messages),
        incidents=[each.incident() for each in example.incidents],
        until=f"{example.within}ms",
        search=file.spec_path.resolve().parent,
    )
    return CheckedExample(
        file, line, example.name, [*_differences(example, simulation)], simulation
    )


def _messages(messages: Any) -> Any:
    if isinstance(messages, Mapping):
        return {source: _messages(listed) for source, listed in messages.items()}
    return None if messages is None else [_message(*each) for each in enumerate(messages)]


def _message(number: int, data: Any) -> SourceMessage:
    """Returns a message of an example. With keys or headers, its value is under ``message``."""
    offset = b"%d" % number
    if isinstance(data, Mapping) and "message" in data and data.keys() <= _ENVELOPE:
        keys, headers = data.get("keys") or (), data.get("headers") or {}
        texts = {str(name): str(value) for name, value in headers.items()}
        return SourceMessage(_bytes(data["message"]), offset, keys=[*map(str, keys)], headers=texts)
    return SourceMessage(_bytes(data), offset)


def _bytes(data: Any) -> bytes:
    return data.encode() if isinstance(data, str) else json.dumps(data).encode()


def _same(expected: Any, value: bytes) -> bool:
    """Returns whether a value is the expected text or equal JSON."""
    if isinstance(expected, str):
        return value == expected.encode()
    try:
        return bool(json.loads(value) == expected)
    except ValueError:
        return False


def _differences(example: Example, simulation: Simulation) -> Iterator[str]:
    for name, expected in example.expect.items():
        yield from _vertex_differences(name, expected, simulation[name])
    yield from _letter_differences(example.dead_letters, simulation.dead_letters)
    if example.answers is not None:
        answers = [payload for payloads in simulation.answers.values() for payload in payloads]
        yield from _value_differences("answers", "answered", example.answers, answers)
    for name, vertex in simulation.vertices.items():
        expects_rest = name in example.expect and example.expect[name].pending is not None
        if vertex.pending and not expects_rest:
            why = f": {vertex.waiting}" if vertex.waiting else ""
            yield f"{name}: {vertex.pending} not ended{why}"


def _vertex_differences(
    name: str, expected: ExpectedVertex, vertex: SimulatedVertex
) -> Iterator[str]:
    for counter, count in expected.counts.items():
        if (actual := getattr(vertex, counter)) != count:
            yield f"{name}: {counter.replace('_', ' ')} is {actual}, expected {count}"
    if expected.values is not None:
        yield from _value_differences(name, "written", expected.values, vertex.values)


def _value_differences(
    name: str, verb: str, expected: Sequence[Any], values: Sequence[bytes]
) -> Iterator[str]:
    """Compares values in any order."""
    left = list(values)
    for value in expected:
        found = next((each for each in left if _same(value, each)), None)
        if found is None:
            yield f"{name}: not {verb}: {_bytes(value).decode()}"
        else:
            left.remove(found)
    yield from (
        f"{name}: {verb} and not expected: {each.decode(errors='replace')}" for each in left
    )


def _letter_differences(
    expected: Sequence[ExpectedLetter], letters: Sequence[Letter]
) -> Iterator[str]:
    left = list(letters)
    for wanted in expected:
        found = next((letter for letter in left if wanted.fits(letter)), None)
        if found is None:
            facts = wanted.model_dump(by_alias=True, exclude_none=True)
            yield f"no dead letter with {json.dumps(facts) if facts else 'any facts'}"
        else:
            left.remove(found)
    for letter in left:
        error = f": {letter.error}" if letter.error and letter.error != letter.reason else ""
        yield f"{letter.vertex}: dead letter {letter.id} is not expected: {letter.reason}{error}"
