"""Whole pipelines and MonoVertices of functions on Numaflow's SDKs: source, maps and sinks.

Each payload says which of the functions is to do what with it. The result is the same in both forms
and in every language, except for what an SDK cannot express: pynumaflow has no options for nacks,
and no nacks from sinks.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from ebbflow import Backoff, Function, Limits, MonoVertex, Pipeline
from ebbflow.deadletters import DeadLetters
from ebbflow.engine.dead_letter import Letter
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.testing.background_run import BackgroundRun, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

QUICK = Backoff("10ms", steps=1)
PATIENCE = 90.0
PAYLOADS = [
    "plain",
    "@transformer drop",
    "@transformer time 1700000123000;@sink describe",
    "@transformer once nack delay=50 reason=early",
    "@map flat a,b",
    "@map keys x,y;@sink describe",
    "@map meta g k v;@sink describe",
    "@map drop",
    "@map none",
    "@map once nack delay=20 reason=busy",
    "@map fail no",
    "@map panic oh dear",
    "@sink fail bad",
    "@sink fallback",
    "@sink success yes",
]
HANGS = "@map hang"
NACKED_BY_SINK = "@sink nack delay=20 max=1 reason=late"
ASIDE = [
    "@map tags aside;@batch-map flat c,d",
    "@map tags aside;@batch-map once nack",
    "@map tags aside;@stream-map flat e,f",
]
"""For a batch map and a stream map on a branch of their own: messages lose their metadata there."""


@dataclass
class Recorded:
    """The results of a run: what the functions have recorded, and the dead letters."""

    lines: list[str]
    letters: dict[str, Letter]

    def taken(self, kind: str) -> Counter[str]:
        """The payloads that a kind of sink received, with their counts."""
        return Counter(
            line.removeprefix(f"{kind} ") for line in self.lines if line.startswith(f"{kind} ")
        )

    def saw(self, key: str) -> dict:
        """What the sink received about the message with a key."""
        sights = (json.loads(line[4:]) for line in self.lines if line.startswith("saw "))
        return next(sight for sight in sights if key in sight["keys"])

    def settled(self, index: int) -> list[str]:
        """The acks and nacks that the source received for a line of its file, in order."""
        return [
            line for line in self.lines if line.split()[:2] in ([w, str(index)] for w in SETTLE)
        ]


SETTLE = ("ack", "nack")
STACKS = {"python": "in trouble", "go": "main.trouble", "rust": ""}
"""What is in a function's own stack; Rust's SDK sends none."""


class Functions:
    """The functions of one run, with the files that they read and write."""

    def __init__(self, command: tuple[str, ...], folder: Path, payloads: list[str]) -> None:
        self._command = command
        self._folder = folder
        self.record = folder / "record"
        self.record.touch()
        (folder / "payloads").write_text("".join(f"{payload}\n" for payload in payloads))
        self._env = {
            "FUNCTION_PAYLOADS": str(folder / "payloads"),
            "FUNCTION_RECORD": str(self.record),
        }

    def serve(self, kind: str) -> Function:
        """A function of this kind."""
        return Function([*self._command, kind], env=self._env)

    def sinks(self) -> dict:
        """The sinks next to the primary one."""
        return {
            "fallback": self.serve("fallback-sink"),
            "on_success": self.serve("on-success-sink"),
        }

    def run(self, flow: Pipeline | MonoVertex, **ends: int) -> Recorded:
        """Run until that many messages have ended at each of these vertices."""
        run = BackgroundRun(flow, self._folder / "state", on_line=print)

        def ended(vertex: str) -> int:
            counts = run.status[vertex].counts
            return counts.ended - counts.redelivered

        in_time = until(lambda: all(ended(name) >= n for name, n in ends.items()), PATIENCE)
        ended_now = {name: ended(name) for name in ends}
        run.stop()
        print(self.record.read_text(), *run.failures, sep="\n")
        assert in_time, f"{ended_now} of {ends} messages have ended"
        return Recorded(self.record.read_text().splitlines(), self._letters())

    def _letters(self) -> dict[str, Letter]:
        with start_embedded(self._folder / "state") as server, open_link(server) as link:
            letters = [stored.letter for stored in DeadLetters(link, "sdks").list()]
        return {letter.value.decode(): letter for letter in letters}


def check(recorded: Recorded, language: str) -> None:
    """What is the same in a pipeline and in a MonoVertex."""
    knows_nacks = language != "python"
    nacked = {NACKED_BY_SINK: 2} if knows_nacks else {}
    passed = [text for text in PAYLOADS if text.startswith("@sink") or "once" in text]
    assert recorded.taken("sink").items() >= Counter([*passed, "plain", "a", "b"]).items()
    assert recorded.taken("sink").items() >= nacked.items()
    assert recorded.taken("fallback-sink") == Counter(["@sink fallback", *nacked])
    assert recorded.taken("on-success-sink") == Counter(["yes"])

    timed, keyed, marked = recorded.saw("key-2"), recorded.saw("x"), recorded.saw("key-6")
    assert (timed["event_time"], timed["headers"]) == (1_700_000_123_000, {"index": "2"})
    assert keyed["keys"] == ["x", "y"]
    assert marked["event_time"] == 1_700_000_006_000
    assert marked["user"] == {"source": {"index": "6"}, "g": {"k": "v"}}
    assert keyed["user"] == {"source": {"index": "5"}}

    options = " delay=50 reason=early" if knows_nacks else ""
    assert recorded.settled(3)[-1] == "ack 3"
    assert set(recorded.settled(3)[:-1]) == {f"nack 3{options}"}
    dead = {"@map fail no", "@map panic oh dear", "@sink fail bad"}
    assert set(recorded.letters) - {HANGS} == dead
    assert recorded.letters["@sink fail bad"].error == "bad"
    broken = recorded.letters["@map panic oh dear"]
    assert "oh dear" in (broken.error or "")
    assert STACKS[language] in (broken.traceback or "")
    assert broken.deliveries == 2


@pytest.mark.long
@pytest.mark.parametrize("language", ["python", "go"])
def test_a_pipeline_of_functions_on_an_sdk_settles_every_message(function_in, tmp_path, language):
    more = [] if language == "python" else [NACKED_BY_SINK, HANGS]
    payloads = [*PAYLOADS, *ASIDE, *more]
    # Only where a call hangs: on a busy machine one that breaks may take as long to say so.
    limits = Limits(call_timeout="5s") if HANGS in payloads else Limits()
    functions = Functions(function_in(language), tmp_path, payloads)
    pipeline = (
        Pipeline("sdks")
        .source("in", functions.serve("source"), transformer=functions.serve("transformer"))
        .map("map", functions.serve("map"), on_error=QUICK, limits=limits)
        .sink("out", functions.serve("sink"), **functions.sinks(), tags="aside", operator="not")
        .map("batch", functions.serve("batch-map"), after="map", tags="aside")
        .map("stream", functions.serve("stream-map"))
        .sink("side", functions.serve("sink"))
    )

    at_map = len(payloads) - 1
    not_at_out = 4 + len(ASIDE) + (HANGS in payloads)
    recorded = functions.run(pipeline, map=at_map, out=at_map + 1 - not_at_out, side=5)

    check(recorded, language)
    assert recorded.taken("sink").items() >= Counter(["c", "d", ASIDE[1], "e", "f"]).items()
    if HANGS in payloads:
        assert "within callTimeout, 5 s" in (recorded.letters[HANGS].error or "")
    assert {line for line in recorded.lines if line.startswith("ack ")} == {
        f"ack {index}" for index in range(len(payloads))
    }


@pytest.mark.parametrize("language", ["python", "go", "rust"])
def test_a_monovertex_of_functions_on_an_sdk_settles_every_message(function_in, tmp_path, language):
    payloads = [*PAYLOADS, *([] if language == "python" else [NACKED_BY_SINK])]
    functions = Functions(function_in(language), tmp_path, payloads)
    mono = (
        MonoVertex("sdks", on_error=QUICK)
        .source(functions.serve("source"), transformer=functions.serve("transformer"))
        .map(functions.serve("map"))
        .sink(functions.serve("sink"), **functions.sinks())
    )

    recorded = functions.run(mono, sdks=len(payloads))

    check(recorded, language)
    options = " delay=20 reason=busy" if language != "python" else ""
    assert set(recorded.settled(9)) == {f"nack 9{options}", "ack 9"}
