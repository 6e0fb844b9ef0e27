"""A pipeline in which everything goes wrong at once, as shown to a user who did not build it.

One message is parked for ten minutes, a map does not return, a sink cannot be opened, a query of a
Spark source fails, and one message is dead-lettered. One run shows all of it: in its lines, to
status commands in another process, and at its end.
"""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.runtime import worker
from ebbflow.status.model import PipelineStatus
from ebbflow.status.terminal.table import draw_status
from tests.processes import family_of, is_running

pytestmark = pytest.mark.slow

# Before midnight, the time has a date.
PARKED = (
    r"1 parked until (?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d, in \d min(?: \d+ s)? "
    r"\(waits for the moon\)"
)

STEPS = """\
import json, logging, time
from ebbflow import Message, Nack

def look(datum):
    number = json.loads(datum.value)["value"]
    if number == 3:
        raise Nack(delay="10m", reason="waits for the moon")
    if number == 2:
        return datum.val
    print("looking at", number)
    logging.getLogger("shop").info("seen %d", number)
    return Message(datum.value, tags=["slow" if number % 2 else "open"])

def slow(datum):
    time.sleep(600)

class Opens:
    def open(self):
        self.password = {}["password"]

    def __call__(self, data):
        return []
"""

SPEC = """\
apiVersion: numaflow.numaproj.io/v1alpha1
kind: Pipeline
metadata: {name: bugs}
spec:
  vertices:
  - {name: in, source: {generator: {messages: 8}}}
  - name: orders
    source:
      spark: {format: json, schema: id STRING, options: {path: orders, mode: FAILFAST}}
  - {name: look, udf: {python: "steps:look"}, onError: {backoff: {interval: 50ms, steps: 1}}}
  - {name: slow, inline: false, udf: {python: "steps:slow"}}
  - {name: out, sink: {log: {}}}
  - {name: opens, sink: {udsink: {python: "steps:Opens"}}}
  edges:
  - {from: in, to: look}
  - {from: orders, to: out}
  - {from: look, to: slow, conditions: {tags: {values: [slow]}}}
  - {from: look, to: opens, conditions: {tags: {values: [open]}}}
  - {from: slow, to: out}
"""

ALL_OF_IT = ("--drain waits for", "1 parked", "in one call", "never opened", "orders: restarting")

# Do not wait as long as usual for the map that does not return.
RUN = """\
from ebbflow.cli.main import main
from ebbflow.spark import run
run._STOP_TIMEOUT = 3.0
main()
"""


@dataclass
class Sight:
    """What the run showed: its output streams, and the answers to status commands meanwhile."""

    code: int = -1
    out: str = ""
    err: list[str] = field(default_factory=list)
    status: PipelineStatus = field(default_factory=lambda: PipelineStatus(""))
    status_text: str = ""
    logs: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def log_lines(self) -> list[str]:
        """The lines about the run, without the time."""
        return [line[20:] for line in self.err]

    @property
    def end(self) -> list[str]:
        """The lines after the table of the result."""
        return self.err[max(i for i, line in enumerate(self.err) if not line.strip()) + 1 :]


def ask(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--state", str(folder / ".ebbflow")])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def sight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sight]:
    folder = tmp_path_factory.mktemp("bugs")
    (folder / "steps.py").write_text(STEPS)
    (folder / "bugs.yaml").write_text(SPEC)
    (folder / "orders").mkdir()
    (folder / "orders" / "one.json").write_text('{"id": "a"}\nbroken\n')
    arguments = ["run", "bugs.yaml", "--drain", "--timeout", "240s", "--summary", "end.json"]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    sight = Sight()
    reading = threading.Thread(target=lambda: setattr(sight, "out", process.stdout.read()))
    reading.start()
    try:
        for line in process.stderr:
            sight.err.append(line.rstrip("\n"))
            if all(part in line for part in ALL_OF_IT) and not sight.status_text:
                raw = json.loads(ask(folder, "status", "bugs", "--json"))
                sight.status = PipelineStatus.from_json(raw)
                sight.status_text = ask(folder, "status", "bugs")
                sight.logs = ask(folder, "logs", "bugs", "look")
                sight.family = family_of(process.pid)
                process.send_signal(signal.SIGINT)
        sight.code = process.wait(120)
        sight.summary = json.loads((folder / "end.json").read_text())
        reading.join(120)
        yield sight
    finally:
        process.kill()


def one(lines: list[str], pattern: str) -> str:
    """The first line that matches; the test fails with all of them if there is none."""
    return next((line for line in lines if re.search(pattern, line)), "\n".join(lines))


def test_a_worker_with_a_hanging_call_ends_soon_after_its_run(sight: Sight) -> None:
    assert len(sight.family) > 2
    _, alive = psutil.wait_procs(sight.family, timeout=worker.LEAVE_WITHIN + 20)
    assert [process for process in alive if is_running(process)] == []


def test_a_failing_source_is_explained_without_a_terminal(sight: Sight) -> None:
    line = one(sight.log_lines, "orders: restarting")
    assert line.startswith("ERROR   orders: restarting: JsonParseException: Unrecognized token")
    assert one(sight.end, "^  orders").startswith("  orders  restarting: JsonParseException")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_full_names_and_numbers_when_something_goes_wrong(
    sight: Sight, width: int
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=40)
    console.print(draw_status(sight.status, console))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
    rows = {line.split()[0]: line for line in lines[2:8]}

    def cells(vertex: str, *columns: str) -> list[str]:
        ends = [lines[0].index(column) + len(column) for column in columns]
        return [rows[vertex][:end].split()[-1] for end in ends]

    names = [name for name in lines[0].split() if name != "oldest"]  # shown once messages are late
    assert names[:6] == ["vertex", "state", "rate/s", "read", "waiting", "parked"]
    assert cells("look", "read", "waiting", "parked") == ["9", "0", "1"]
    assert cells("slow", "read", "waiting") == ["0", "3"]
    assert [rows[name].split()[1] for name in ("orders", "opens")] == ["restarting", "waiting"]


def test_the_place_of_a_message_is_shown_to_another_process(sight: Sight) -> None:
    shown = sight.status_text
    assert re.search(r"^bugs: running for \d+ ", shown)
    assert re.search(f"look: {PARKED}", " ".join(shown.split()))
    slow = sight.status["slow"]
    assert (slow.pending, slow.in_flight.messages, slow.counts.read) == (3, 3, 0)
    assert "opens: cannot be opened: KeyError: 'password'" in shown
    assert "Correct its code at steps.py:19" in " ".join(shown.split())
    error = r"Datum has no attribute 'val'; did you mean 'value'\? \(steps.py:9\)"
    named = rf"AttributeError: {error}, (\d+ times, last )?message in-2"
    assert re.search(named, " ".join(shown.split())), shown


def test_a_drain_reports_what_it_waits_for(sight: Sight) -> None:
    waits = one(sight.log_lines, "--drain waits for.*orders: restarting.*never opened")
    for part in (
        f"look: {PARKED}",
        r"slow: 3 waiting; in one call for \d+ s",
        r"opens: 3 waiting; never opened: KeyError: 'password' \(steps.py:19\)",
        r"orders: restarting: JsonParseException",
    ):
        assert re.search(part, waits)


def test_the_end_of_a_run_reports_what_is_left_where_and_why(sight: Sight) -> None:
    assert sight.code == 0
    first, *rest = sight.end
    assert first == "7 messages left. The next run continues with what is left."
    patterns = [
        r"  orders  restarting: JsonParseException: .*",
        f"  look    {PARKED}",
        r"  slow    3 waiting; in one call for \d+ s",
        r"  opens   3 waiting; never opened: KeyError: 'password' \(steps.py:19\)",
        r"stopped after \d+\.\d s",
        r"1 dead letter; see why: ebbflow dlq list bugs",
        r"  look: AttributeError: Datum has no attribute 'val'; did you mean 'value'\?",
    ]
    assert len(rest) == len(patterns)
    for line, pattern in zip(rest, patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert not [line for line in sight.err if "Adds up" in line]
    left = {each["vertex"]: each["waiting"] + each["parked"] for each in sight.summary["left"]}
    assert left == {"orders": 0, "look": 1, "slow": 3, "opens": 3}


def test_prints_and_logs_name_their_vertex(sight: Sight) -> None:
    printed = [f"(look) looking at {number}" for number in (0, 1, 4, 5, 6, 7)]
    assert sorted(sight.out.splitlines()) == printed
    assert "INFO    look: seen 0" in sight.log_lines
    assert re.search(r"^\d{4}-\S+ \S+ INFO     look: looking at 0$", sight.logs, re.M)
    assert re.search(r"INFO     look: seen 7$", sight.logs, re.M)
