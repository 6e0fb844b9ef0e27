"""Documents in Numaflow's format run unchanged, with a bindings file for images that need one.

Our own documents are of the shapes of Numaflow's examples. With the variable ``NUMAFLOW_EXAMPLES``,
which names a checkout of Numaflow's repository, its own documents run as well.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.numaflow.document_runs import Expectation, Post, Question, run_document

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

DOCUMENTS = Path(__file__).with_name("documents")
CHECKOUT = os.environ.get("NUMAFLOW_EXAMPLES")

GOOD = '{"id": 80, "msg": "hello", "desc": "A good example"}'
GREETINGS = (
    GOOD,
    '{"id": 180, "msg": "hello", "desc": "A good example"}',
    '{"id": 80, "msg": "goodbye", "desc": "A good example"}',
    '{"id": 80, "msg": "hello", "desc": "A bad example"}',
)
YEARS = {"old": "1600000000000", "mid": "1650000000000", "new": "1690000000000"}


def posts(*bodies: str) -> tuple[Post, ...]:
    return tuple(map(Post, bodies))


EXPECTED = {
    "counting": Expectation(at_least={"paper": 5}),
    "spreading": Expectation(at_least={"paper": 100}),
    "sorting": Expectation(
        posts("1", "2", "three", "4"),
        {"only-even": ("2", "4"), "only-odd": ("1",), "all": ("1", "2", "4"),
         "meeting": ("1", "2", "4")},
    ),
    "rounds": Expectation(posts("a", "b"), {"paper": ("a", "b")}, read={"again": 6}),
    "sieve": Expectation(posts(*GREETINGS), {"greetings-kept": (GOOD,)}),
    "second-choice": Expectation(posts("a", "b"), {"second-choice-kept": ("a", "b")}),
    "receipts": Expectation(posts("a"), {"receipts-kept": ("on-success-message",)}),
    "scissors": Expectation(
        posts("hello,hello", "hello"),
        dict.fromkeys(("go-paper", "python-paper", "java-paper"), ("hello",) * 3),
    ),
    "years": Expectation(
        tuple(Post(body, {"x-numaflow-event-time": time}) for body, time in YEARS.items()),
        {"of-2022": ("mid",), "later": ("new",), "both": ("mid", "new")},
    ),
    "all-in-one": Expectation(at_least={"all-in-one": 1000}),
    "crossroads": Expectation(
        posts("primary", "fallback", "onSuccess", "nothing"),
        {"first": ("primary",), "second": ("fallback",), "third": ("onSuccess",)},
        read={"crossroads": 4},
    ),
    "echo": Expectation(questions=(Question("hello,you", ("hello,you",)),)),
    "memory": Expectation(questions=(Question("hello,you", ("hello,you",)),)),
    "pieces": Expectation(questions=(Question("hello,you", ("hello", "you")),)),
}  # fmt: skip
"""What each of our documents comes to."""

PLAIN = {"paper": "out"}
FLATMAPS = {f"{sdk}-paper": f"{sdk}-udsink" for sdk in ("go", "python", "java")}
SORTED = {"of-2022": "sink-within-2022", "later": "sink-after-2022", "both": "sink-all"}
BYPASSES = {
    "first": "bypass-sink-output",
    "second": "bypass-fallback-output",
    "third": "bypass-on-success-output",
    "crossroads": "map-bypass",
}
ORIGINALS = {
    "examples/1-simple-pipeline.yaml": ("counting", PLAIN),
    "examples/1-simple-pipeline-keys.yaml": ("counting", PLAIN),
    "examples/1-simple-pipeline-compress.yaml": ("counting", PLAIN),
    "examples/1-simple-pipeline-wm-disabled.yaml": ("counting", PLAIN),
    "examples/5-auto-scaling.yaml": ("counting", PLAIN),
    "examples/4-udsink-pipeline.yaml": ("counting", {"paper": "shelf"}),
    "examples/9-multi-partition-pipeline.yaml": ("spreading", PLAIN),
    "examples/2-http-pipeline.yaml": ("second-choice", {"second-choice-kept": "out"}),
    "examples/2-even-odd-pipeline.yaml": (
        "sorting", {"only-even": "even-sink", "only-odd": "odd-sink", "all": "number-sink"},
    ),
    "examples/11-join-on-sink.yaml": ("sorting", {"meeting": "out"}),
    "examples/10-cycle-to-self.yaml": ("rounds", {"paper": "out", "again": "retry"}),
    "examples/10-cycle-to-prev.yaml": ("rounds", {"paper": "out", "again": "retry"}),
    "examples/21-simple-mono-vertex.yaml": ("all-in-one", {"all-in-one": "simple-mono-vertex"}),
    "examples/23-mono-vertex-bypass.yaml": ("all-in-one", {"all-in-one": "mono-vertex-bypass"}),
    "test/e2e/testdata/udf-filtering.yaml": ("sieve", {"greetings-kept": "udf-filtering-out"}),
    "test/e2e/testdata/simple-fallback.yaml": (
        "second-choice", {"second-choice-kept": "simple-fallback-output"},
    ),
    "test/e2e/testdata/simple-on-success.yaml": (
        "receipts", {"receipts-kept": "simple-on-success-output"},
    ),
    "test/map-e2e/testdata/flatmap.yaml": ("scissors", FLATMAPS),
    "test/map-e2e/testdata/flatmap-stream.yaml": ("scissors", FLATMAPS),
    "test/map-e2e/testdata/flatmap-batch.yaml": ("scissors", FLATMAPS),
    **{
        f"test/transformer-e2e/testdata/event-time-filter-{sdk}.yaml": ("years", SORTED)
        for sdk in ("go", "python", "java", "rust")
    },
    "test/monovertex-e2e/testdata/map-bypass.yaml": ("crossroads", BYPASSES),
    "test/monovertex-e2e/testdata/source-transformer-bypass.yaml": (
        "crossroads", {**BYPASSES, "crossroads": "st-bypass"},
    ),
    "test/monovertex-e2e/testdata/mono-vertex-with-all-containers.yaml": (
        "all-in-one", {"all-in-one": "fallback-sink-key"},
    ),
    "test/monovertex-e2e/testdata/streaming-mono-vertex.yaml": (
        "second-choice", {"second-choice-kept": "streaming-mvtx-output"},
    ),
    "examples/30-serving-pipeline.yaml": ("echo", {}),
    "examples/31-serving-custom-store.yaml": ("memory", {}),
    "examples/32-serving-sse-pipeline.yaml": ("pieces", {}),
    "test/serving-e2e/testdata/serving-pipeline-cat.yaml": ("echo", {}),
    "test/e2e/testdata/metadata-pipeline.yaml": ("spreading", {"paper": "sink"}),
    "test/monovertex-e2e/testdata/metadata-monovertex.yaml": (
        "spreading", {"paper": "mono-vertex"},
    ),
}  # fmt: skip
"""Documents of Numaflow's repository: which of ours has their shape, and their names for ours."""


LONG = ("memory", "pieces", "all-in-one")
DOCUMENTS_TRIED = [
    pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in EXPECTED
]


@pytest.mark.parametrize("name", DOCUMENTS_TRIED)
def test_a_document_runs_unchanged(name: str, tmp_path: Path) -> None:
    run_document(DOCUMENTS / f"{name}.yaml", tmp_path, EXPECTED[name])


@pytest.mark.skipif(CHECKOUT is None, reason="NUMAFLOW_EXAMPLES names no checkout of Numaflow")
@pytest.mark.parametrize("original", ORIGINALS)
def test_a_document_of_numaflow_runs_unchanged(original: str, tmp_path: Path) -> None:
    name, names = ORIGINALS[original]
    run_document(Path(CHECKOUT or "") / original, tmp_path, EXPECTED[name].renamed(names))
