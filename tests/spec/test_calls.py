"""Lint of calls: whether user code can be created and called with the arguments of its place."""

import functools
from pathlib import Path

import pytest

from ebbflow import Pipeline, Source
from ebbflow.connectors import Generator, Log
from ebbflow.domain.errors import SpecError
from ebbflow.spec.lint import lint
from ebbflow.spec.rules.functions import find_faults
from tests.numaflow.pynumaflow import functions

FOR_PYNUMAFLOW = "or def handler(keys, datum) for pynumaflow"


def faults(code, place="map", mode="unary"):
    """Returns the problems of the code."""
    return [fault.what for fault in find_faults(code, place, mode)]


class Adds:
    """A map with a setting that has a default."""

    def __init__(self, what=b"!"):
        self.what = what

    def __call__(self, datum):
        """Adds it."""

    @staticmethod
    def alone(datum):
        """Needs no object."""

    @classmethod
    def of_class(cls, datum):
        """Needs the class."""


class Counts(Source):
    """A source of Ebbflow."""

    def read(self, limit, timeout):
        """Returns no messages."""
        return []

    def ack(self, offsets):
        """Does nothing."""


def injecting(function):
    """A decorator that adds an argument of its own."""

    @functools.wraps(function)
    def wrapper(datum):
        return function(datum, "more")

    return wrapper


@injecting
def injected(datum, more):
    """Callers pass only the first argument."""


@functools.lru_cache
def cached(datum):
    """Is not a plain Python function."""


@pytest.mark.parametrize(
    ("code", "place", "mode"),
    [
        (lambda datum: None, "map", "unary"),
        (lambda datum, more=1: None, "map", "unary"),
        (lambda *data: None, "map", "unary"),
        (lambda *args, **options: None, "sink", "batch"),
        (functools.partial(lambda prefix, datum: None, b"x"), "map", "unary"),
        (functools.partial(Adds, b"?"), "map", "unary"),
        (Adds, "map", "stream"),
        (Adds(), "transformer", "unary"),
        (Adds.alone, "map", "unary"),
        (Adds.of_class, "map", "unary"),
        (Adds().__call__, "map", "unary"),
        (injected, "map", "unary"),
        (cached, "map", "unary"),
        (print, "sink", "columnar"),
        (len, "map", "pandas"),
        (Counts, "source", "unary"),
        (lambda messages: None, "query", "unary"),
    ],
    ids=[f"code {n}" for n in range(17)],
)
def test_code_that_can_be_called_is_accepted(code, place, mode):
    assert faults(code, place, mode) == []


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *((name, "map") for name in ("shout", "obey", "Counting", "server", "async_server")),
        *((name, "map") for name in ("batch", "Batching", "split", "Splitting")),
        *((name, "transformer") for name in ("date_it", "Dating")),
        *((name, "sink") for name in ("answer", "answer_later", "Answering", "sink_server")),
        *((name, "source") for name in ("Numbers", "source_server")),
    ],
)
def test_code_for_pynumaflow_is_accepted(name, place):
    assert faults(getattr(functions, name), place, "batch" if place == "sink" else "unary") == []


def takes_three(a, b, c):
    """Takes more arguments than any place passes."""


class Needs:
    """Cannot be created without a setting."""

    def __init__(self, url):
        """Ignores it."""

    def __call__(self, datum):
        """Is fine."""


class Silent:
    """Cannot be called."""


class Greedy:
    """Its methods take more or fewer arguments than they are called with."""

    def __call__(self, datum, context):
        """Needs a context, which is never passed."""

    def put(self, id):
        """Does not accept payloads."""

    def get(self, id):
        """Is fine."""

    def read(self):
        """Does not accept a limit or a timeout."""

    def ack(self, offsets):
        """Is fine."""

    def pending(self, since):
        """Needs an argument, which is never passed."""


@pytest.mark.parametrize(
    ("code", "place", "mode", "fault"),
    [
        (
            takes_three,
            "map",
            "unary",
            "it cannot be called with (datum): missing a required argument: 'b'; write "
            "def takes_three(datum), or def takes_three(keys, datum) for pynumaflow",
        ),
        (
            lambda: None,
            "transformer",
            "unary",
            "it cannot be called with (datum): too many positional arguments; write "
            f"def handler(datum), {FOR_PYNUMAFLOW}",
        ),
        (
            lambda keys, datum: None,
            "map",
            "batch",
            "it is written for pynumaflow.mapper, which is not called in batches; leave mode out",
        ),
        (
            lambda *, datum: None,
            "sink",
            "batch",
            "it cannot be called with (data): too many positional arguments; write "
            "def handler(data)",
        ),
        (
            takes_three,
            "sink",
            "columnar",
            "it cannot be called with (rows): missing a required argument: 'b'; write "
            "def takes_three(rows)",
        ),
        (
            takes_three,
            "query",
            "unary",
            "it cannot be called with (messages): missing a required argument: 'b'; write "
            "def takes_three(messages)",
        ),
        (
            Needs,
            "map",
            "unary",
            "it cannot be made without arguments: missing a required argument: 'url'; give its "
            "parameters defaults, or name an object of it",
        ),
        (
            Silent,
            "map",
            "unary",
            "an object of it cannot be called; write def __call__(self, datum)",
        ),
        (
            list,
            "sink",
            "batch",
            "an object of it cannot be called; write def __call__(self, data)",
        ),
        (
            Greedy(),
            "sink",
            "batch",
            "its method '__call__' cannot be called with (data): missing a required argument: "
            "'context'; write def __call__(self, data)",
        ),
        (
            Greedy,
            "store",
            "unary",
            "its method 'put' cannot be called with (id, payloads): too many positional "
            "arguments; write def put(self, id, payloads)",
        ),
        (
            functions.answer,
            "map",
            "unary",
            "it is written for pynumaflow.sinker: use it as a sink, not as a map",
        ),
        (
            functions.Dating,
            "map",
            "unary",
            "it is written for pynumaflow.sourcetransformer: use it as a transformer, not as a map",
        ),
        (
            functions.Answering,
            "sink",
            "columnar",
            "it is written for pynumaflow.sinker, which is not called as mode: columnar; "
            "leave mode out",
        ),
    ],
    ids=[f"fault {n}" for n in range(14)],
)
def test_code_that_cannot_be_called_is_reported_with_the_signature_to_write(
    code, place, mode, fault
):
    assert faults(code, place, mode) == [fault]


def test_each_method_of_a_source_is_checked():
    assert faults(Greedy, "source") == [
        "its method 'read' cannot be called with (limit, timeout): too many positional "
        "arguments; write def read(self, limit, timeout)",
        "its method 'pending' cannot be called with no arguments: missing a required argument: "
        "'since'; write def pending(self)",
    ]


def test_handlers_of_pynumaflows_classes_are_checked():
    class Wrong(functions.Mapper):
        """Does not accept keys."""

        def handler(self, datum):
            """Is called with keys as well."""

    class Unfinished(functions.Sourcer):
        """Lacks most methods."""

        async def read_handler(self, datum, output):
            """Returns no messages."""

    assert faults(Wrong) == [
        "its method 'handler' cannot be called with (keys, datum): too many positional "
        "arguments; write def handler(self, keys, datum)"
    ]
    assert faults(Unfinished, "source") == [
        f"it has no method '{name}_handler'"
        for name in ("ack", "active_partitions", "nack", "pending")
    ]


def test_a_reducer_is_rejected():
    from pynumaflow.reducer import Reducer

    class Sum(Reducer):
        """Sums."""

        async def handler(self, keys, datums, md):
            """Sums."""

    assert faults(Sum) == [
        "it is written for pynumaflow.reducer, and Ebbflow has no place for that"
    ]


SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: calls}
spec:
  vertices:
  - {name: in, source: {generator: {}, transformer: {python: 'calls:fine'}}}
  - {name: map, udf: {python: 'calls:fine', mode: batch}}
  - name: out
    sink:
      udsink: {python: 'calls:wrong'}
  edges:
  - {from: in, to: map}
  - {from: map, to: out}
"""


def test_a_problem_names_its_place_in_the_file(tmp_path: Path):
    (tmp_path / "calls.py").write_text("def fine(data): ...\n\ndef wrong(data, how): ...\n")
    (tmp_path / "pipeline.yaml").write_text(SPEC)
    (problem,) = lint(tmp_path / "pipeline.yaml")
    assert (problem.line, problem.column, problem.code) == (10, 24, "EB403")
    assert problem.message == (
        "cannot use 'calls:wrong': it cannot be called with (data): missing a required "
        "argument: 'how'; write def wrong(data)"
    )


def test_code_passed_in_python_is_rejected_in_the_same_words():
    pipeline = Pipeline("calls").source("in", Generator()).map("map", takes_three)
    with pytest.raises(SpecError) as refused:
        pipeline.sink("out", Log()).spec  # noqa: B018 - building the spec is what fails
    assert str(refused.value) == (
        "pipeline calls, vertex map: EB403 cannot use 'tests.spec.test_calls:takes_three': it "
        "cannot be called with (datum): missing a required argument: 'b'; write "
        "def takes_three(datum), or def takes_three(keys, datum) for pynumaflow"
    )
