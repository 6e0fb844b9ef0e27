"""However a run is made to end, or cannot begin: the right code, no trace, nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import sys

import psutil
import pytest

from tests.chaos.kill_and_restart import kill_tree
from tests.e2e.test_whole_runs import finish

pytestmark = pytest.mark.slow


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def left_of(family):
    return psutil.wait_procs(family, timeout=20)[1]


def ended(whole, file="s.json"):
    return json.loads((whole.folder / file).read_text())["ended"]


def signal_everybody(process, number):
    """As a service manager does: whatever group or session somebody is in."""
    everybody = [psutil.Process(process.pid), *family_of(process)]
    for one in everybody:
        one.send_signal(number)
    return everybody


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_signal_to_every_process_ends_the_run_like_a_stop_and_nothing_is_lost(whole):
    whole.write({"messages": 1_200, "rpu": 400})
    process = whole.start("--summary", "s.json")
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    family = signal_everybody(process, signal.SIGTERM)[1:]
    code, output = finish(process)

    assert code == 0, output
    assert "Traceback" not in output
    assert ended(whole) == "stopped"
    assert left_of(family) == []

    code, output = finish(whole.start("--drain", "--timeout", "80s", "--summary", "s.json"))
    assert code == 0, output
    assert set(whole.stored()) == set(range(1_200))
    totals = json.loads((whole.folder / "s.json").read_text())["totals"]
    assert totals["out"]["done"] == 1_200


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_signal_to_the_process_group_settles_what_is_in_hand(whole):
    whole.write({"rpu": 300})
    process = whole.start("--summary", "s.json", group=True)
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    family = family_of(process)
    os.killpg(process.pid, signal.SIGQUIT)
    code, output = finish(process)

    assert code == 0, output
    assert "Traceback" not in output
    assert left_of(family) == []
    stored = whole.stored()
    done = json.loads((whole.folder / "s.json").read_text())["vertices"]["out"]["done"]
    assert done == len(stored) == len(set(stored))
    assert whole.marks() == ["closed", "opened"]


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_ctrl_c_while_spark_starts_ends_the_run_without_a_trace(whole):
    whole.write({"rpu": 100})
    process = whole.start("--summary", "s.json", group=True)
    while "starting Spark" not in process.stdout.readline():
        assert process.poll() is None
    whole.wait_until(lambda: "java" in [one.name() for one in family_of(process)], process)
    family = family_of(process)
    os.killpg(process.pid, signal.SIGINT)
    code, output = finish(process)

    assert code == 0, output
    assert "Traceback" not in output
    assert ended(whole) == "stopped"
    assert left_of(family) == []


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_a_closed_terminal_ends_the_run_in_good_order(whole):
    whole.write({"rpu": 300})
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(whole.folder)
        command = [sys.executable, "-m", "ebbflow", "run", "pipeline.yaml", "--summary", "s.json"]
        os.execv(sys.executable, command)
    try:
        shown = b""
        while b"running" not in shown or len(whole.stored()) < 100:
            shown += os.read(terminal, 65_536)
        family = psutil.Process(pid).children(recursive=True)
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        kill_tree(pid)
        raise

    assert code == 0
    assert ended(whole) == "stopped"
    assert left_of(family) == []


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_nothing_outlives_a_driver_that_is_killed(whole):
    whole.write({"rpu": 100})
    process = whole.start()
    whole.wait_until(lambda: len(whole.stored()) > 10, process)
    family = family_of(process)
    names = {one.name() for one in family}
    process.kill()
    process.communicate()

    assert {"java", "nats-server"} <= names
    assert left_of(family) == []


# --- runs that cannot begin ---------------------------------------------------------------------

VERSION = """[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit\n"""
NO_START = {
    "a master that is none": (
        ["--master", "garbage"],
        None,
        "Spark did not start: Master must either be yarn or start with spark, k8s, or local. "
        "Correct --master, --conf or Java;",
    ),
    "slots that are no number": (
        ["--master", "local[x]"],
        None,
        "Spark did not start: Could not parse Master URL: 'local[x]'.",
    ),
    "a memory that is none": (
        ["--conf", "spark.driver.memory=nonsense"],
        None,
        "Spark did not start: Invalid maximum heap size: -Xmxnonsense.",
    ),
    "a Java that talks nonsense": (
        ["--drain"],
        "echo banana >&2; exit 1",
        "does not say which version of Java it is.",
    ),
    "a Java that knows its version and fails": (
        ["--drain"],
        VERSION + "echo 'Segmentation fault'; exit 139",
        "Spark did not start: Segmentation fault.",
    ),
    "a Java that ends at once": (["--drain"], VERSION + "exit 0", "Spark did not start: "),
}


@pytest.mark.guarantee("a-stop-loses-no-work")
@pytest.mark.parametrize(("options", "java", "told"), NO_START.values(), ids=list(NO_START))
def test_a_spark_that_cannot_start_is_told_in_one_sentence(whole, options, java, told):
    whole.write({"messages": 1})
    environment = {} if java is None else {"JAVA_HOME": str(fake_java(whole.folder, java))}
    code, output = finish(whole.start(*options, **environment))

    assert code == 3
    assert told in output
    assert "Traceback" not in output
    assert not list((whole.folder / ".ebbflow/nats").glob("pid"))


def fake_java(folder, script):
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return home
