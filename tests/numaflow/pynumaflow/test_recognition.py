"""Which code is recognised as pynumaflow's, and as which of its surfaces."""

import subprocess
import sys
from functools import partial

import pytest
from pynumaflow.reducer import Reducer

from ebbflow import Datum, Message, Response
from ebbflow.connectors.user_code import UserSinkSpec
from ebbflow.numaflow.pynumaflow.adapters import ResponsesSink, adapt, mode_of
from ebbflow.numaflow.pynumaflow.recognition import Surface, recognise, unwrap_server
from tests.numaflow.pynumaflow import functions


def surface_of(code, place="map"):
    """The surface that the code is recognised as."""
    recognised = recognise(code, place)
    return recognised.surface if recognised else None


@pytest.mark.parametrize(
    ("place", "name", "surface"),
    [
        ("map", "shout", Surface.MAP),
        ("map", "shout_later", Surface.MAP),
        ("map", "obey", Surface.MAP),
        ("map", "Counting", Surface.MAP),
        ("map", "server", Surface.MAP),
        ("map", "async_server", Surface.MAP),
        ("map", "batch", Surface.BATCH_MAP),
        ("map", "Batching", Surface.BATCH_MAP),
        ("map", "split", Surface.STREAM_MAP),
        ("map", "Splitting", Surface.STREAM_MAP),
        ("transformer", "date_it", Surface.TRANSFORMER),
        ("transformer", "Dating", Surface.TRANSFORMER),
        ("sink", "answer", Surface.SINK),
        ("sink", "answer_later", Surface.SINK),
        ("sink", "count_retries", Surface.SINK),
        ("sink", "Answering", Surface.SINK),
        ("sink", "sink_server", Surface.SINK),
        ("source", "Numbers", Surface.SOURCE),
        ("source", "source_server", Surface.SOURCE),
    ],
)
def test_every_surface_is_recognised(place, name, surface):
    assert surface_of(getattr(functions, name), place) is surface


def one(datum):
    """A map for Ebbflow."""
    return Message(datum.value)


def several(data: list[Datum]) -> list[Response]:
    """A sink for Ebbflow."""
    return [Response.ok(datum.id) for datum in data]


class Own:
    """A map for Ebbflow."""

    def __call__(self, datum):
        """Passes it on."""
        return one(datum)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("map", one),
        ("map", Own),
        ("map", Own()),
        ("map", partial(lambda prefix, datum: Message(prefix + datum.value), b"x")),
        ("map", lambda *datums: None),
        ("map", lambda datum, limit=3: None),
        ("map", bytes),
        ("map", print),
        ("sink", several),
        ("sink", len),
        ("source", Own),
        ("store", Own),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_code_is_left_unchanged(place, code):
    assert recognise(code, place) is None
    assert adapt(code, place) is code
    assert mode_of(code, "columnar") == "columnar"


@pytest.mark.parametrize(
    "code",
    [
        lambda keys, datum: [Message(datum.value)],
        partial(lambda prefix, keys, datum: None, b"x"),
    ],
    ids=["function", "partial"],
)
def test_two_parameters_are_keys_and_datum(code):
    assert surface_of(code) is Surface.MAP
    assert surface_of(code, "transformer") is Surface.TRANSFORMER


def test_annotations_may_be_strings():
    scope = {"Responses": functions.Responses, "Response": Response, "write": list}
    exec("def handler(datums) -> 'Responses | None': return write(datums)", scope)
    assert surface_of(scope["handler"], "sink") is Surface.SINK


def test_functions_of_a_module_that_uses_only_pynumaflow_are_recognised():
    scope = {"SinkServer": functions.SinkServer, "write": list}
    exec("def handler(datums): return write(datums)", scope)
    assert surface_of(scope["handler"], "sink") is Surface.SINK
    exec("from ebbflow import Response\ndef handler(data): return write(data)", scope)
    assert surface_of(scope["handler"], "sink") is None


def test_a_handler_is_extracted_from_its_server():
    assert unwrap_server(functions.server) is functions.shout
    assert unwrap_server(functions.sink_server).__class__ is functions.Answering
    assert unwrap_server(functions.shout) is functions.shout
    assert unwrap_server(functions.Counting) is functions.Counting
    assert unwrap_server("module:attribute") == "module:attribute"


def test_a_reducer_is_recognised_but_has_no_surface():
    class Summing(Reducer):
        """Sums."""

        async def handler(self, keys, datums, md):
            """Sums."""

    recognised = recognise(Summing, "map")
    assert recognised is not None
    assert (recognised.package, recognised.surface) == ("reducer", None)


def test_an_object_is_recognised_while_its_module_is_still_known():
    scope = {"SinkServer": functions.SinkServer, "write": list}
    exec("def handler(datums): return write(datums)", scope)
    sent = UserSinkSpec(python=scope["handler"]).code
    assert sent.func is ResponsesSink
    assert adapt(sent, "sink") is sent
    assert UserSinkSpec(python=functions.sink_server).code.func is ResponsesSink
    assert UserSinkSpec(python=several).code is several
    assert UserSinkSpec(python="words:show").code == "words:show"


def test_lint_imports_no_arrow_and_ebbflow_never_imports_pynumaflow():
    script = (
        "import sys, ebbflow.spec.lint\n"
        "print('pyarrow' in sys.modules)\n"
        "import ebbflow.runtime.operators\n"
        "from ebbflow.testing.handlers import run_map\n"
        "from ebbflow import Message\n"
        "def code(keys, datum): return [Message(datum.value + repr(keys).encode())]\n"
        "print(run_map(code, b'a')[0].messages[0].value)\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'pynumaflow'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "b'a[]'", "[]"], done.stderr
