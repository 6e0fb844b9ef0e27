"""A worker that has to leave in the middle of a call penalises no message for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ebbflow import Message
from ebbflow.domain.durations import Backoff
from ebbflow.engine.checks import Rules
from ebbflow.engine.system_errors import LISTED
from ebbflow.engine.verdict import Verdict
from ebbflow.runtime import worker
from ebbflow.runtime.worker import WORKER, Worker
from ebbflow.usercode.call_watch import WorkerLeaves
from ebbflow.usercode.calling import call_map, run_batch_map
from ebbflow.usercode.poison import end_worker_on_base_exception
from tests.engine.sample_rows import some

WHOSE = ("p", "v", "run")


@pytest.fixture
def opened(monkeypatch):
    """Opens code as a worker does."""
    monkeypatch.setattr(worker, "end_for_sure", lambda: None)  # it would end the tests
    yield lambda code: WORKER.vertex(WHOSE).handler("map", code, None, LISTED)
    WORKER.close_vertex(WHOSE)


@pytest.mark.parametrize(
    ("role", "container"),
    [
        ("map", "udf"),
        ("transformer", "transformer"),
        ("sink", "udsink"),
        ("fallback", "fb-udsink"),
        ("on_success", "ons-udsink"),
    ],
)
def test_code_sees_its_role_as_the_container_type_of_numaflow(opened, role, container):
    seen = []

    class Code:
        def __init__(self):
            seen.append(os.environ.get("NUMAFLOW_UD_CONTAINER_TYPE"))

        def __call__(self, data):
            return []

    handler = WORKER.vertex(WHOSE).handler(role, Code, None, LISTED, (("LEVEL", "high"),))
    assert seen == [container]
    assert handler.variables == (("NUMAFLOW_UD_CONTAINER_TYPE", container), ("LEVEL", "high"))
    assert "NUMAFLOW_UD_CONTAINER_TYPE" not in os.environ


def leaves(*_):
    os.kill(os.getpid(), signal.SIGHUP)
    signal.sigtimedwait({signal.SIGUSR1}, 5)


def leaves_one(datum):
    leaves()
    return Message(datum.value)


@pytest.mark.parametrize(("call", "code"), [(call_map, leaves_one), (run_batch_map, leaves)])
def test_a_call_that_is_interrupted_by_the_end_of_the_run_fails_no_message(opened, call, code):
    verdict = Verdict(some("a", "b"), Rules("v", Backoff("1ms", steps=1), 10**6))
    with pytest.raises(WorkerLeaves):
        call(opened(code), verdict, 10)
    assert not verdict.decisions.failed


def test_an_idle_worker_leaves_at_once(opened):
    opened(leaves_one)
    with pytest.raises(SystemExit, match="0"):
        leaves()


STUBBORN = """
import time
from ebbflow.runtime import worker
from ebbflow.usercode.call_watch import RUNNING
from ebbflow.engine.system_errors import LISTED

def stubborn(datum):
    while True:
        try:
            print("called", flush=True)
            time.sleep(600)
        except BaseException:
            print("asked to leave", flush=True)

worker.LEAVE_WITHIN = 0.5
code = worker.WORKER.vertex(("p", "v", "run")).handler("map", stubborn, None, LISTED)
with RUNNING:
    code.call(None)
"""


def test_a_worker_whose_code_swallows_the_request_to_leave_is_killed():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "called\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "asked to leave\n"
        assert process.wait(120) == 1


def test_a_worker_that_leaves_exits_without_an_error():
    with pytest.raises(SystemExit, match="0"), end_worker_on_base_exception():
        raise WorkerLeaves


def test_the_state_that_a_vertex_keeps_across_epochs_ends_with_its_run():
    served = Worker()

    def pace(run, partition=0):
        return served.vertex(("p", "v", run)).pace(partition, 500)

    first, other = pace("one"), pace("two")
    assert pace("one") is first
    assert pace("one", 1) is not first
    served.close_other_runs("two")
    assert pace("one") is not first
    assert pace("two") is other
    served.close_run("one")
    served.close_run("two")
    assert not served._vertices


@pytest.mark.parametrize(
    ("end", "named"), [(Worker.close_run, "one"), (Worker.close_other_runs, "two")]
)
def test_a_worker_forgets_which_vertices_shared_a_task_when_their_run_ends(end, named):
    served = Worker()
    for run in ("one", "two"):
        served.keep_in_task([("p", "v", run), ("p", "w", run)], 0)
    end(served, named)
    assert [vertex for vertex, _ in served._shared] == [("p", "v", "two")]
    served.close()
    assert not served._shared
