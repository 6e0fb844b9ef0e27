import ast
import importlib
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

import ebbflow
from ebbflow.domain import errors
from ebbflow.domain.errors import EbbflowError, Problem

PUBLISH = ("ebb.p.v", 3, 1.5, "quiet")
SAMPLES: dict[str, tuple] = {
    "EbbflowError": ("something",),
    "SetupError": ("no Java.", "Install it."),
    "AccessError": ("nats://host:4222", "publish", "ebb.p.v"),
    "JetStreamUnavailable": ("STREAM.INFO.s", 30.0, "no answer"),
    "Unavailable": ("the database", "2s"),
    "EngineLost": ("killed by signal 9", 3, "See jvm.log"),
    "SpecError": ([Problem("p.yaml", 3, 5, "EB101", "no such field")],),
    "SourceError": ("in", "read() raised OSError: gone", "Traceback: ..."),
    "TargetError": ("mod:attr", "no such module"),
    "CallTimeout": (2.5,),
    "StreamBroken": ("UDF_EXECUTION_ERROR(udf): boom", 13, "goroutine 7"),
    "ContractViolation": ("out", "no response for 6", [str(i) for i in range(7)], "Answer."),
    "SparkError": ("PSQLException", "ERROR: value too long"),
    "SimulationError": ("enrich", "never ends", "Give its nacks a delay."),
    "MessageTooLarge": (2_000_000, 1_000_000),
    "Fenced": ("v", 3),
    "DataSourceError": ("Option partitions is '0'.", "Write a whole number from 1."),
    "DataLoss": ("ORDERS: message 7 is gone.", "Continue without."),
    "RequestError": ("r-1",),
    "RequestRefused": ("r-1", 429, "too many requests"),
    "RequestFailed": ("r-1", "price", "deliveries exhausted", "no such order"),
    "AnswerPending": ("r-1",),
    "RequestInDoubt": ("r-1", "the connection was cut"),
    "UnknownRequest": ("r-1",),
    "PublishError": PUBLISH,
    "NoStreamResponse": PUBLISH,
    "PublishTimeout": PUBLISH,
    "BufferFull": PUBLISH,
    "PermanentPublishError": (*PUBLISH, 10077),
}
"""Constructor arguments for every error."""


def tree(root: type = EbbflowError) -> list[type]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def drawn() -> list[tuple[str, str | None]]:
    """Class and parent, as drawn in the module's docstring."""
    ancestors: list[str] = []
    found = []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^    ([ │├└─]*)([A-Z]\w+)", line):
            depth = len(match[1]) // 4
            ancestors[depth:] = [match[2]]
            found.append((match[2], ancestors[depth - 1] if depth else None))
    return found


@pytest.mark.parametrize("error", [c for c in tree() if c.__module__ == errors.__name__])
def test_every_error_survives_pickling_with_its_facts_and_text(error):
    original = error(*SAMPLES[error.__name__])
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert vars(copy) == vars(original)
    assert copy.args == original.args
    assert str(copy) == str(original) != ""


def test_the_tree_drawn_in_the_docstring_shows_exactly_the_existing_classes():
    defined = {(c.__name__, c.__base__.__name__) for c in tree() if c is not EbbflowError}
    defined = {(name, base) for name, base in defined if name in vars(errors)}
    assert set(drawn()) == defined | {("EbbflowError", None)}
    assert len(drawn()) == len(SAMPLES)


def test_no_error_is_defined_outside_the_tree_module():
    for module in pkgutil.walk_packages(ebbflow.__path__, "ebbflow."):
        if not module.name.startswith(("ebbflow.spark", "ebbflow.cli", "ebbflow.__main__")):
            importlib.import_module(module.name)
    # Errors that tests of other folders define do not count.
    ours = [c for c in tree() if c.__module__.startswith("ebbflow")]
    assert [c for c in ours if c.__module__ != errors.__name__] == []


NOT_IN_THE_TREE = {
    "domain/message.py": {"Nack"},  # an answer of user code, not an error
    "nats/api.py": {"ApiError"},  # an error that the server returned, handled by the caller
    "usercode/call_watch.py": {"WorkerLeaves"},  # ends a worker in the middle of a call
    "runtime/feeds.py": {"EngineDied"},  # has the run start another JVM
    "runtime/settling.py": {"Unsettled"},  # ends a stopping task's loop, never leaves its module
    "connectors/http/http_client.py": {"NoAnswer"},  # becomes the sink's answer about its messages
    "connectors/kafka/sink.py": {"Unanswered"},  # likewise
    "connectors/postgres/rows.py": {"NotARow"},  # likewise
    # Each has the sink read again: its marks, or the description of its table.
    "connectors/postgres/sink.py": {"Altered", "Overtaken"},
    "ui/jobs.py": {"JobStopped"},  # ends a job that a user has stopped, never leaves its module
    "web/exchange.py": {"Refusal"},  # becomes the answer to an HTTP request
    "testing/world.py": {"Crashed"},  # ends a simulated task, never leaves the simulation
    "testing/conformance/rules.py": {
        "Refused",
        "Full",
    },  # raised by a test
}
"""Exceptions that have a reason not to be in the tree: no caller is meant to catch them."""


def test_every_exception_outside_the_tree_is_listed_with_a_reason():
    """From the source, so that Spark need not be imported; any class named as a base counts."""
    root = Path(ebbflow.__file__).parent
    names = {"Exception", "BaseException", *(c.__name__ for c in tree())}
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            bases = {ast.unparse(b).rpartition(".")[2] for b in getattr(node, "bases", ())}
            if isinstance(node, ast.ClassDef) and bases & names:
                found.setdefault(str(path.relative_to(root)), set()).add(node.name)
    assert found.pop("domain/errors.py") == SAMPLES.keys()
    assert found == NOT_IN_THE_TREE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.SetupError("no Java.", "Install it."), "no Java. Install it."),
        (errors.SetupError("no Java."), "no Java."),
        (errors.TargetError("a:b", "no module a"), "cannot use 'a:b': no module a"),
        (errors.ContractViolation("out", "no answer"), "out: no answer."),
        (
            errors.ContractViolation("out", "no answer", list("abcdefg"), "Answer."),
            "out: no answer (ids: a, b, c, d, e and 2 more). Answer.",
        ),
        (
            errors.CallTimeout(30.0),
            "the call did not return within callTimeout, 30 s; "
            "make it end sooner, or set limits.callTimeout higher",
        ),
        (errors.RequestRefused("r", 429, "full"), "request r was refused with 429: full"),
        (errors.RequestRefused("r", 0, "no route"), "request r was refused: no route"),
        (errors.RequestFailed("r", "v", "failed", "boom"), "request r failed in v: failed: boom"),
        (errors.RequestFailed("r", "v", "failed", ""), "request r failed in v: failed"),
        (errors.Fenced("v", 3), "another task now owns partition 3 of v"),
        (
            errors.PublishTimeout("s", 1, 0.5),
            "s: no confirmation before the deadline after 1 attempt in 0.50 s",
        ),
        (
            errors.NoStreamResponse("s", 3, 0.5, "503"),
            "s: no response from stream after 3 attempts in 0.50 s: 503",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_text_of_an_error_names_the_facts_and_the_next_step(error, text):
    assert str(error) == text


def test_one_except_clause_catches_every_publish_error():
    assert {c.__name__ for c in tree(errors.PublishError)} == {
        "PublishError",
        "NoStreamResponse",
        "PublishTimeout",
        "BufferFull",
        "PermanentPublishError",
    }
