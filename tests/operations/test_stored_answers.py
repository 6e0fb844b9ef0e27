"""Reading answers from anywhere: to one request, to all, and as they are stored."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ebbflow import EbbflowError, Function, MonoVertex, SetupError
from ebbflow.cli.main import app
from ebbflow.connectors import Generator, Serve
from ebbflow.domain.outcome import Served
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.settlement import settle
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link_to_pipeline, start_embedded
from ebbflow.operations import Answer, answers
from ebbflow.streams import catalogue, provision
from ebbflow.streams.catalogue import bucket_config
from ebbflow.streams.names import Names
from ebbflow.streams.publish_settlement import publish_settlement
from tests.engine.sample_rows import NOW, some, verdict_on

STORE_SERVER = Path(__file__).parent.parent / "numaflow" / "servers" / "odd_store.py"


class Answering:
    """A pipeline that does not run; the test decides what its sink answers."""

    def __init__(self, link: Link, name: str, bucket: str) -> None:
        self._link, self._names, self._bucket = link, Names(name), bucket
        for config in (
            catalogue.dead_letter_config(self._names),
            catalogue.positions_config(self._names, answers=bucket),
            bucket_config(bucket, 60_000),
        ):
            link.run(provision.ensure(link.client, config))

    def serve(self, sink: str = "out", **payloads: Sequence[bytes]) -> None:
        """Settles a chunk in which each message of these ids has answered."""
        ids = [name.replace("__", "/").replace("_", ".") for name in payloads]
        verdict = verdict_on(some(*ids))
        for index, results in enumerate(payloads.values()):
            verdict.decisions.answer(index, results)
            verdict.decisions.finish(index, Served())
        place = Place(sink, 0, [], 1_000_000, self._bucket)
        settlement = settle(Chunk("k", verdict.rows), verdict, place, NOW)
        self._link.run(publish_settlement(self._link.client, self._names, settlement))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder whose server runs, as if a pipeline were running."""
    folder = tmp_path_factory.mktemp("answers") / "state"
    with start_embedded(folder):
        yield folder


@pytest.fixture(scope="module")
def live(state: Path) -> Iterator[Answering]:
    """A pipeline that answers while a test watches."""
    with open_link_to_pipeline(state, None) as link:
        yield Answering(link, "live", "living")


@pytest.fixture(scope="module")
def shop(state: Path, live: Answering) -> Iterator[Answering]:
    """A pipeline with some answers in a bucket that it names, and no others."""
    with open_link_to_pipeline(state, None) as link:
        shop = Answering(link, "shop", "chosen")
        shop.serve(r1__split_10=[b"ten"], r2=[b"\xff\x00"], r1__split=[b"zero", b"more"])
        shop.serve("also", r1__split_2=[b"two"])
        for name, own_store in (("mute", False), ("shelf", True)):
            link.run(provision.ensure(link.client, catalogue.dead_letter_config(Names(name))))
            config = catalogue.positions_config(Names(name), own_store=own_store)
            link.run(provision.ensure(link.client, config))
        yield shop


def payloads(found: Sequence[Answer]) -> list[bytes]:
    return [answer.payload for answer in found]


@pytest.mark.guarantee("outcomes-hold")
def test_answers_to_a_request_are_returned_in_the_order_of_its_results(
    state: Path, shop: Answering
) -> None:
    with answers("shop", state=state) as stored:
        found = stored.get("r1")
        assert payloads(found) == [b"zero", b"more", b"two", b"ten"]
        assert [(a.vertex, a.message, a.number) for a in found[1:3]] == [
            ("out", "r1/split", 1),
            ("also", "r1/split.2", 0),
        ]
        assert len({a.name for a in found}) == 4
        assert stored.get("unknown") == ()
        listed = [*stored.list()]
        assert payloads(listed) == [b"ten", b"\xff\x00", b"zero", b"more", b"two"]
        assert [a.arrived for a in listed] == sorted(a.arrived for a in listed)
        assert set(found) < set(listed)
        assert payloads([*stored.list(limit=2)]) == [b"ten", b"\xff\x00"]


def test_watching_a_request_starts_with_its_first_answer(state: Path, live: Answering) -> None:
    with answers("live", state=state) as stored:
        watching = stored.watch("w1")
        live.serve(w1__split_1=[b"late"], w2=[b"other"])
        assert next(watching).payload == b"late"
        live.serve(w1__split=[b"later"])
        assert next(watching).payload == b"later"
        watching.close()  # type: ignore[attr-defined]
        assert payloads([*stored.watch("w1", timeout="300ms")]) == [b"late", b"later"]


def test_watching_all_requests_starts_with_the_next_answer(state: Path, live: Answering) -> None:
    seen: list[Answer] = []
    begun, ended = threading.Event(), threading.Event()

    def watch() -> None:
        with answers("live", state=state) as stored:
            for answer in stored.watch():
                seen.append(answer)
                begun.set()
                if answer.payload == b"end":
                    break
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    for number in range(1_000):
        live.serve(**{f"n{number}": [b"first"]})
        if begun.wait(0.05):
            break
    live.serve(n5000=[b"end"])
    assert ended.wait(120)
    assert {a.payload for a in seen} == {b"first", b"end"}


def test_a_missing_pipeline_or_store_is_reported(state: Path, shop: Answering) -> None:
    for name, error in (
        ("shpo", r"No pipeline 'shpo' has run here\. Known here: live, mute, shelf, shop\."),
        ("mute", r"Pipeline 'mute' keeps no answers\. Give it servingStore"),
        ("shelf", r"Pipeline 'shelf' keeps its answers in your own store\. Name its YAML"),
    ):
        with pytest.raises(SetupError, match=error), answers(name, state=state):
            pass


# --- users' stores -------------------------------------------------------------------------------

OWN = """
import os

class Shelf:
    def open(self):
        self.known = {"r1": [b"a", b"b"]}

    def put(self, id, payloads):
        raise AssertionError

    async def get(self, id):
        return self.known.get(id, [])
"""
SPEC = """
apiVersion: numaflow.numaproj.io/v1alpha1
kind: MonoVertex
metadata: {name: own}
spec:
  source: {generator: {}}
  sink: {serve: {}}
  servingStore: STORE
"""


def spec_with(folder: Path, store: str) -> Path:
    file = folder / "own.yaml"
    file.write_text(SPEC.replace("STORE", store))
    return file


def test_a_users_store_returns_answers_by_request_only(tmp_path: Path) -> None:
    (tmp_path / "shelves.py").write_text(OWN)
    with answers(spec_with(tmp_path, '{python: "shelves:Shelf"}')) as stored:
        assert payloads(stored.get("r1")) == [b"a", b"b"]
        assert stored.get("r2") == ()
        with pytest.raises(EbbflowError, match="The store of 'own' is your own, and cannot list"):
            stored.list()
        with pytest.raises(EbbflowError, match="is your own, and cannot be watched"):
            stored.watch("r1")


def test_a_store_in_a_separate_process_is_queried(tmp_path: Path) -> None:
    store = Function([sys.executable, str(STORE_SERVER)], env={"STATE": str(tmp_path / "kept")})
    mono = MonoVertex("own", serving_store=store).source(Generator()).sink(Serve())
    with answers(mono) as stored:
        assert stored.get("r1") == ()


# --- the command ---------------------------------------------------------------------------------

Command = Callable[..., Result]


@pytest.fixture
def command(state: Path, shop: Answering) -> Command:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["answer", *arguments, "--state", str(state)])

    return invoke


def test_get_prints_answers_line_by_line(command: Command) -> None:
    result = command("get", "shop", "r1")
    assert (result.exit_code, result.stdout) == (0, "zero\nmore\ntwo\nten\n")


def facts(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_get_as_json_prints_one_object_per_line(command: Command) -> None:
    (binary,) = facts(command("get", "shop", "r2", "--json"))
    assert binary.pop("stored").endswith("+00:00")
    assert binary == {
        "request": "r2",
        "vertex": "out",
        "message": "r2",
        "number": 0,
        "payload": {"base64": "/wA="},
    }


def test_get_says_what_to_do_when_there_is_no_answer(command: Command) -> None:
    result = command("get", "shop", "r77")
    assert result.exit_code == 3
    assert result.stderr == (
        "ebbflow: There is no answer to request 'r77' in shop, or not yet. "
        "See which there are with: ebbflow answer list shop\n"
    )


def test_get_reads_a_users_store_named_in_a_spec_file(tmp_path: Path) -> None:
    (tmp_path / "shelves2.py").write_text(OWN)
    file = spec_with(tmp_path, '{python: "shelves2:Shelf"}')
    result = CliRunner().invoke(app, ["answer", "get", str(file), "r1"])
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")


def test_list_shows_stored_answers(command: Command) -> None:
    result = command("list", "shop", "--limit", "2")
    rows = [line.strip("│").split("│") for line in result.stdout.splitlines() if "│" in line]
    shown = [[cell.strip() for cell in row] for row in rows]
    assert [row[:4] + row[5:] for row in shown] == [
        ["r1", "out", "r1/split.10", "ten", "3"],
        ["r2", "out", "r2", "\\xff\\x00", "2"],
    ]
    assert result.stdout.endswith("\nthe first 2 answers; see more with --limit 20\n")
    listed = facts(command("list", "shop", "--limit", "2", "--json"))
    assert [fact["request"] for fact in listed] == ["r1", "r2"]


def test_watch_prints_answers_as_they_arrive(command: Command) -> None:
    result = command("watch", "shop", "r1", "--timeout", "300ms")
    assert result.stdout == "r1 out: ten\nr1 out: zero\nr1 out: more\nr1 also: two\n"
    assert command("watch", "shop", "--timeout", "soon").exit_code == 2
