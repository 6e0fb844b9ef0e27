"""``ebbflow pause`` and ``resume`` while nothing runs; what is paused, in NATS; completion."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.runtime.control import STOP, PauseWatch, obey, pauses_command
from ebbflow.streams.positions import Pauses, change_pauses, read_pauses

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def command(state, standing):
    def invoke(word, *args):
        return CliRunner().invoke(app, [word, standing.name, *args, "--state", str(state)])

    return invoke


def test_a_pause_is_kept_for_the_next_run(command, link, standing):
    result = command("pause", "out")
    assert result.output == (
        "Paused: out. Nothing runs at the moment; the next run begins paused.\n"
        f"Continue with: ebbflow resume {standing.name} out\n"
    )
    pauses = link.run(read_pauses(link.client, standing.names))
    assert [name for name in ("in", "out") if pauses.since(name)] == ["out"]

    facts = json.loads(command("pause", "--json").output)
    assert (facts["vertices"], facts["runs"]) == (["in", "sorted", "table", "out"], False)
    assert command("resume").output == (
        "Resumed: in, sorted, table, out. Nothing runs at the moment; the next run continues.\n"
    )
    assert command("resume", "in").output == f"Vertex in of {standing.name} is not stopped.\n"
    assert link.run(read_pauses(link.client, standing.names)) == Pauses()


def test_mistakes_are_explained(command, state):
    result = command("pause", "sortd")
    assert (result.exit_code, "did you mean 'sorted'?" in result.output) == (3, True)
    unknown = CliRunner().invoke(app, ["pause", "nobody", "--state", str(state)])
    assert "No pipeline 'nobody' has run here." in unknown.output


def test_pauses_made_at_the_same_time_all_take_effect(link, standing):
    def pause(vertex):
        change = change_pauses(link.client, standing.names, lambda p: p.pausing(vertex, NOON))
        return link.run(change)

    vertices = [f"v{n}" for n in range(12)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(pause, vertices))
    assert set(link.run(read_pauses(link.client, standing.names)).vertices) == set(vertices)


def test_a_task_follows_the_newest_record_however_it_arrives(link, standing):
    pauses_seen = []
    watch = PauseWatch(standing.names, "out", pauses_seen.append)
    commands = {"pauses": watch.receive}
    watch.read(link)
    old = link.run(change_pauses(link.client, standing.names, lambda p: p.pausing("out", NOON)))
    obey(pauses_command(old), commands)
    link.run(change_pauses(link.client, standing.names, lambda p: p.resuming("out")))
    watch.read(link)
    obey(pauses_command(old), commands)  # late
    obey(STOP, commands)
    obey(b"of another version", commands)
    assert pauses_seen == [False, True, False]


def complete(state, *words, last=""):
    """Returns what a shell would offer after the words."""
    line = " ".join(["ebbflow", *words, last])
    environment = {
        "_EBBFLOW_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) + 1),
        "PATH": "",
    }
    found = subprocess.run(
        [Path(sys.executable).with_name("ebbflow")],
        env=environment,
        cwd=state.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return found.stdout.split()


def test_a_shell_completes_pipelines_and_vertices_without_starting_anything(
    state, standing, tmp_path
):
    assert standing.name in complete(state, "pause", "--state", str(state))
    known = complete(state, "pause", "--state", str(state), standing.name)
    assert known == ["in", "out", "sorted", "table"]
    assert complete(state, "tap", "--state", str(state), standing.name, last="so") == ["sorted"]
    assert complete(state, "pause", "--state", str(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()
    assert Path(state / "nats" / "jetstream").is_dir()
