"""A run under inspection: it is paused and tapped, receives messages, and shows its spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow import Datum, Message, Pipeline, nack
from ebbflow.cli.main import app
from ebbflow.connectors import Blackhole, Generator
from ebbflow.nats.locate import open_link_to_pipeline
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_positions
from ebbflow.testing.background_run import BackgroundRun, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

PATIENCE = 60.0


def work(datum: Datum) -> Message:
    if datum.value == b"later" and datum.deliveries == 1:
        nack(delay="100ms", reason="not yet")
    return Message(datum.value.upper(), keys=["k"])


def make_pipeline() -> Pipeline:
    return (
        Pipeline("test")
        .source("in", Generator(rpu=50, duration="1s"))
        .map("work", work, partitions=2)
        .sink("out", Blackhole())
    )


class Watched:
    """Runs of one pipeline, and commands that inspect it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.live = BackgroundRun(make_pipeline(), state, epoch="2s")

    def command(self, *args: str) -> str:
        result = CliRunner().invoke(app, [*args, "--state", str(self.state)])
        assert result.exit_code == 0, result.output
        return result.output

    def rows(self, *args: str) -> list[dict]:
        lines = self.command("tap", "test", *args, "--json", "--timeout", "240s").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]  # not: "1 more"

    def read(self, vertex: str) -> int:
        return self.live.status[vertex].counts.read

    def start_again(self) -> None:
        self.live.stop()
        self.live = BackgroundRun(make_pipeline(), self.state, epoch="2s")

    def paused(self) -> dict[str, bool]:
        names = Names("test")
        with open_link_to_pipeline(self.state, None, inbox=names.inbox) as link:
            positions = link.run(read_positions(link.client, names))
        return {f"{v}.{p}": position.paused for (v, p), position in positions.items()}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    made = Watched(tmp_path_factory.mktemp("watched") / "state")
    assert until(lambda: made.read("out") > 0, PATIENCE)
    yield made
    made.live.stop()


def test_a_tap_shows_the_input_outcome_and_outputs_of_a_message(watched: Watched) -> None:
    row, *_ = watched.rows("work", "--limit", "3")
    assert (row["vertex"], row["outcome"], row["outputs"][0]["to"]) == ("work", "done", ["out"])
    assert row["outputs"][0]["value"] == row["value"].upper()
    (source,) = watched.rows("in", "--limit", "1")
    assert source["outputs"][0]["to"] == ["work"]
    (sink,) = watched.rows("out", "--limit", "1", "--key", "k")
    assert sink["id"].endswith("/work")


def test_a_message_that_is_sent_is_processed_like_any_other(watched: Watched) -> None:
    watched.command("pause", "test", "out")
    watched.command("send", "test", "work", "later", "--id", "mine")
    watched.command("send", "test", "in", "hello", "--id", "given")

    def waiting(message: str) -> list[dict]:
        return watched.rows("out", "--waiting", "--id", message)

    assert until(lambda: bool(waiting("mine") and waiting("given")), PATIENCE, 0.5)
    assert [row["value"] for row in waiting("mine")] == ["LATER"]
    assert [row["id"] for row in waiting("given")] == ["given/work"]
    watched.command("resume", "test", "out")
    assert until(lambda: not waiting("mine"), PATIENCE, 0.5)


@pytest.mark.guarantee("pauses-hold")
def test_a_pause_holds_across_epochs_and_runs_until_it_is_resumed(watched: Watched) -> None:
    assert "Paused: work." in watched.command("pause", "test", "work")
    assert {name for name, paused in watched.paused().items() if paused} == {"work.0", "work.1"}
    # The reported state of a run may lag behind by a moment.
    assert until(lambda: watched.live.status["work"].condition == "paused", PATIENCE)
    before, made = watched.read("work"), watched.read("in")
    # Several epochs of two seconds: the source continues, the vertex takes nothing.
    assert until(lambda: watched.read("in") > made + 150, PATIENCE)
    assert watched.read("work") == before

    watched.start_again()
    assert until(lambda: watched.read("in") > 50, PATIENCE)
    assert watched.read("work") == 0
    assert watched.paused()["work.0"]

    assert watched.command("resume", "test") == "Resumed: work.\n"
    assert until(lambda: watched.read("work") > 200, PATIENCE)
    assert not any(watched.paused().values())


def test_a_run_stores_its_spec(watched: Watched) -> None:
    document = json.loads(watched.command("echo", "test", "--json"))
    assert [v["name"] for v in document["spec"]["vertices"]] == ["in", "work", "out"]
    assert "work x2" in watched.command("graph", "test")
