"""Every way to end a run: the right exit code, no traceback, no processes left, nothing lost.

One pipeline in one folder is run five times. Each run ends differently, and the next continues
where it ended.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.chaos.kill_and_restart import kill_tree
from tests.e2e.conftest import Whole, finish
from tests.processes import family_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

SUMMARY = "s.json"


def left_of(family: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(family, timeout=120)[1]


@dataclass(frozen=True)
class Ended:
    """A run that has ended, what its sink wrote meanwhile, and the processes that are left."""

    code: int
    output: str
    left: list[psutil.Process]
    stored: Counter[int]
    marks: Counter[str]
    summary: dict[str, Any]

    @property
    def is_exact(self) -> bool:
        """Whether the run counted each stored message, and stored each one once."""
        done = self.summary["vertices"]["out"]["done"]
        return done == self.stored.total() == len(self.stored)


class Life:
    """The runs of one pipeline, one after another."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.rejected: tuple[int, str, int] = (0, "", 0)
        self.ended: dict[str, Ended] = {}

    def run(self, name: str, end: Callable[[Any], None], **options: Any) -> None:
        """Start a run, wait until messages flow, and end it."""
        stored, marks = self._begin()
        process = self.whole.start("--summary", SUMMARY, **options)
        self.whole.wait_until(lambda: len(self.whole.stored()) > stored.total() + 100, process)
        family = family_of(process.pid)
        end(process)
        code, output = finish(process)
        self._note(name, code, output, family, stored, marks)

    def run_in_a_terminal(self, name: str) -> None:
        """Start a run in its own terminal, wait until messages flow, and close the terminal."""
        stored, marks = self._begin()
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.whole.folder)
            command = [sys.executable, "-m", "ebbflow", "run", "pipeline.yaml"]
            os.execv(sys.executable, [*command, "--summary", SUMMARY])
        try:
            shown = b""
            while b"running" not in shown or len(self.whole.stored()) <= stored.total() + 100:
                shown += os.read(terminal, 65_536)
            family = family_of(pid)
            os.close(terminal)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except BaseException:
            kill_tree(pid)
            raise
        self._note(name, code, shown.decode(errors="replace"), family, stored, marks)

    def drain(self, name: str) -> None:
        """Let a run drain to its end."""
        stored, marks = self._begin()
        process = self.whole.start("--drain", "--timeout", "240s", "--summary", SUMMARY)
        self._note(name, *finish(process), [], stored, marks)

    def _begin(self) -> tuple[Counter[int], Counter[str]]:
        (self.whole.folder / SUMMARY).unlink(missing_ok=True)
        return Counter(self.whole.stored()), Counter(self.whole.marks())

    def _note(self, name, code, output, family, stored, marks):
        file = self.whole.folder / SUMMARY
        self.ended[name] = Ended(
            code,
            output,
            left_of(family),
            Counter(self.whole.stored()) - stored,
            Counter(self.whole.marks()) - marks,
            json.loads(file.read_text()) if file.exists() else {},
        )


def end_next_to_a_second_instance(life):
    """End a run as a terminal does on a key, after a second one in its folder was rejected."""

    def end(process):
        life.rejected = (*finish(life.whole.start("--drain")), process.pid)
        os.killpg(process.pid, signal.SIGQUIT)

    return end


def signal_every_process(process):
    """Signal every process, whatever its group or session, as some service managers do."""
    for member in (psutil.Process(process.pid), *family_of(process.pid)):
        with suppress(psutil.NoSuchProcess):  # some end by themselves meanwhile
            member.send_signal(signal.SIGTERM)


def kill_nats_and_then_the_driver(life):
    def end(process):
        os.kill(int((life.whole.folder / ".ebbflow/nats/pid").read_text()), signal.SIGKILL)
        before = len(life.whole.stored())
        life.whole.wait_until(lambda: len(life.whole.stored()) > before + 300, process)
        process.kill()

    return end


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    whole = Whole(tmp_path_factory.mktemp("life"))
    lived = Life(whole)
    try:
        whole.write({"rpu": 300})
        lived.run("a signal to the group", end_next_to_a_second_instance(lived), group=True)
        lived.run_in_a_terminal("a closed terminal")
        lived.run("a signal to every process", signal_every_process)
        lived.run("a killed driver", kill_nats_and_then_the_driver(lived))
        whole.write({"messages": max(whole.stored()) + 300, "rpu": 1_000})
        lived.drain("drained")
        yield lived
    finally:
        whole.close()


def stopped(life: Life, name: str) -> Ended:
    """The run, which must have ended like a stop and left nothing."""
    ended = life.ended[name]
    assert ended.code == 0, ended.output
    assert "Traceback" not in ended.output
    assert ended.summary["ended"] == "stopped"
    assert ended.left == []
    return ended


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_signal_settles_messages_in_flight_and_closes_user_code(life):
    """A signal to the driver alone is tested in ``test_secured_run.py``."""
    ended = stopped(life, "a signal to the group")

    assert ended.is_exact
    # Once, or more often if an epoch ended or a slow machine gave the sink another task.
    assert ended.marks["closed"] == ended.marks["opened"] >= 1


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_closed_terminal_ends_the_run_like_a_stop(life):
    stopped(life, "a closed terminal")


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_signal_to_every_process_ends_the_run_like_a_stop(life):
    stopped(life, "a signal to every process")


def test_the_folder_of_a_running_instance_is_rejected_with_one_sentence(life):
    code, output, owner = life.rejected

    assert code == 3
    folder = life.whole.folder / ".ebbflow"
    expected = f"The state folder {folder} belongs to a running instance (process {owner})."
    assert expected in output.replace("\n", " ")
    assert "Traceback" not in output


@pytest.mark.guarantee("nothing-is-lost")
def test_a_killed_nats_server_is_restarted_and_the_run_continues(life):
    assert life.ended["a killed driver"].stored.total() > 400


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_no_process_outlives_a_killed_driver(life):
    assert life.ended["a killed driver"].code == -signal.SIGKILL
    assert life.ended["a killed driver"].left == []


@pytest.mark.guarantee("a-stop-loses-no-work")
@pytest.mark.guarantee("nothing-is-lost")
def test_each_run_continues_where_the_last_one_ended_and_nothing_is_lost(life):
    ended = life.ended["drained"]

    assert ended.code == 0, ended.output
    assert ended.summary["ended"] == "drained"
    numbers = life.whole.stored()
    assert set(numbers) == set(range(max(numbers) + 1))
    assert ended.summary["totals"]["out"]["done"] == len(set(numbers))


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_ctrl_c_while_spark_starts_ends_the_run_without_a_traceback(whole):
    whole.write({"rpu": 100})
    process = whole.start("--summary", SUMMARY, group=True)
    while "starting Spark" not in process.stdout.readline():
        assert process.poll() is None
    whole.wait_until(lambda: "java" in [one.name() for one in family_of(process.pid)], process)
    family = family_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code, output = finish(process)

    assert code == 0, output
    assert "Traceback" not in output
    assert json.loads((whole.folder / SUMMARY).read_text())["ended"] == "stopped"
    assert left_of(family) == []
