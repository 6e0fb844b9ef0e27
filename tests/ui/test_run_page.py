"""The web UI of a real run: what it shows comes from the run, and it ends with the run."""

import re
import socket
import threading
from urllib.parse import urlsplit

import pytest

from ebbflow import Backoff, Message, Pipeline
from ebbflow.connectors import Blackhole, Generator
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.spark.run import Run
from ebbflow.status.run_report import Watcher
from ebbflow.testing.background_run import until
from ebbflow.ui.web_ui import attach_web_ui
from tests.ui.ui_client import UiClient

pytestmark = [pytest.mark.slow, pytest.mark.long]


def check(datum):
    number = int(datum.id.split("-")[1])
    if number % 10 == 0:
        print(f"bad {datum.id}")
        raise ValueError(f"no customer for {datum.id}")
    return Message(datum.value)


class Stages(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def find_port(self) -> int | None:
        match = re.search(r"web UI at (\S+)", "\n".join(self.lines))
        return urlsplit(match[1]).port if match else None


class RunWithUi:
    """A run in a thread, and its web UI."""

    def __init__(self, state) -> None:
        pipeline = (
            Pipeline("shown")
            .source("in", Generator(rpu=40, duration="1s"))
            .map("check", check, on_error=Backoff("100ms", steps=1))
            .sink("out", Blackhole())
        )
        self.stages = Stages()
        options = RunOptions(state=state, timeout=900)
        attachments = attach_web_ui("127.0.0.1:0", False)
        self.run = Run(pipeline.spec, options, self.stages, attachments)
        self.thread = threading.Thread(target=self.run.execute, daemon=True)
        self.thread.start()
        assert until(lambda: self.stages.find_port() is not None, 120)
        self.ui = UiClient(self.stages.find_port(), "")
        assert until(lambda: self.vertex("out").get("counts", {}).get("done", 0) > 50, 120)

    def get(self, path: str):
        return self.ui.get(f"/api/pipelines/shown/{path}").json

    def vertex(self, name: str) -> dict:
        vertices = self.get("status").get("vertices", [])
        return next((vertex for vertex in vertices if vertex["name"] == name), {})

    def stop(self) -> None:
        self.run.stop()
        self.thread.join(120)


@pytest.fixture(scope="module")
def shown(spark, tmp_path_factory):
    shown = RunWithUi(tmp_path_factory.mktemp("page") / "state")
    yield shown
    shown.stop()


def test_the_web_ui_shows_the_status_of_the_run(shown: RunWithUi):
    status = shown.get("status")
    assert (status["phase"], status["links"]["ui"]) == (
        "running",
        f"http://127.0.0.1:{shown.ui.port}/",
    )
    before = shown.vertex("out")["counts"]["done"]
    assert until(lambda: shown.vertex("out")["counts"]["done"] > before, 120)
    assert shown.ui.get("/ready").status == 200
    assert b'pipeline="shown"' in shown.ui.get("/metrics").raw


def places_in(path):
    return [(place["where"], place["number"]) for place in path["now"]]


def test_an_error_shows_its_traceback_and_its_dead_letter_the_path_of_the_message(shown: RunWithUi):
    assert until(lambda: shown.vertex("check")["dead_letters"] > 0, 120)
    (error,) = [e for e in shown.vertex("check")["errors"] if e["kind"] == "ValueError"]
    assert "no customer for" in error["traceback"]
    assert re.fullmatch(r"test_run_page\.py:\d+", error["where"])
    letter = shown.get("dead-letters?vertex=check&limit=1")["letters"][0]
    # The dead letter is stored before its chunk is done.
    now = [("dead letter", letter["number"])]
    assert until(lambda: places_in(shown.get(f"trace/{letter['id']}")) == now, 120)
    assert until(lambda: bool(shown.get("logs?vertex=check")["logs"]), 120)
    assert shown.get("logs?vertex=check")["logs"][0]["message"].startswith("bad in-")


def test_spec_graph_and_history_are_served(shown: RunWithUi):
    spec = shown.ui.get("/api/pipelines/shown/spec")
    assert spec.headers["content-type"] == "text/yaml; charset=utf-8"
    assert b"name: check" in spec.raw
    graph = shown.get("graph")
    assert [vertex["name"] for vertex in graph["shape"]["vertices"]] == ["in", "check", "out"]
    assert until(lambda: len(shown.get("history")["samples"]) > 1, 120)
    assert {"in", "check", "out"} == set(shown.get("history")["samples"][-1]["vertices"])


def test_a_paused_vertex_continues_after_a_resume(shown: RunWithUi):
    path = "/api/pipelines/shown"
    assert shown.ui.post(f"{path}/pause", {"vertex": "check"}).json["runs"] is True
    assert until(lambda: shown.vertex("check")["condition"] == "paused", 120)
    held = shown.vertex("check")["counts"]["read"]
    assert until(lambda: shown.vertex("check")["pending"] > 20, 120)
    assert shown.vertex("check")["counts"]["read"] == held
    assert shown.ui.post(f"{path}/resume").status == 200
    assert until(lambda: shown.vertex("check")["counts"]["read"] > held, 120)
    unknown = shown.ui.post(f"{path}/pause", {"vertex": "chick"})
    assert (unknown.status, "did you mean 'check'?" in unknown.json["error"]) == (404, True)


def test_the_web_ui_reports_how_the_run_ended_and_ends_with_it(shown: RunWithUi):
    phases = []
    with shown.ui.stream("/api/pipelines/shown/events") as events:
        shown.run.stop()
        for _, status in events:
            phases.append((status["phase"], status["ended"]))
            if status["phase"] == "ended":
                break
    assert phases[-1] == ("ended", "stopped")
    shown.thread.join(120)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", shown.ui.port), timeout=120)
