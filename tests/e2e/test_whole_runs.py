"""What users of the command rely on: clean stops, restarts that go on, a server that comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.chaos.kill_and_restart import kill_tree

pytestmark = pytest.mark.slow


def finish(process):
    output, _ = process.communicate(timeout=90)
    return process.returncode, output


@pytest.mark.guarantee("a-stop-loses-no-work")
def test_sigterm_settles_what_is_in_hand_and_the_next_run_goes_on_where_it_ended(whole):
    whole.write({"messages": 3_000, "rpu": 300})
    process = whole.start("--summary", "first.json")
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)

    assert code == 0, output
    first = json.loads((whole.folder / "first.json").read_text())
    stored = whole.stored()
    assert first["vertices"]["out"]["done"] == len(stored) == len(set(stored))
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert whole.marks() == ["closed", "opened"]

    whole.write({"messages": 1_000, "rpu": 1_000})
    code, output = finish(whole.start("--drain", "--timeout", "60s", "--summary", "second.json"))
    assert code == 0, output
    assert whole.stored() == list(range(1_000))
    totals = json.loads((whole.folder / "second.json").read_text())["totals"]
    assert totals["out"]["done"] == 1_000


@pytest.mark.guarantee("nothing-is-lost")
def test_a_killed_nats_server_is_restarted_and_the_run_goes_on(whole):
    whole.write({"messages": 2_000, "rpu": 400})
    process = whole.start("--drain", "--timeout", "80s")
    whole.wait_until(lambda: len(whole.stored()) > 100, process)
    pid = int((whole.folder / ".ebbflow/nats/pid").read_text())
    os.kill(pid, signal.SIGKILL)
    code, output = finish(process)

    assert code == 0, output
    assert set(whole.stored()) == set(range(2_000))


def test_a_folder_of_a_running_instance_is_refused_with_one_sentence(whole):
    whole.write({"rpu": 100})
    process = whole.start()
    whole.wait_until(lambda: len(whole.stored()) > 1, process)
    code, output = finish(whole.start("--drain"))
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 0

    assert code == 3
    folder = whole.folder / ".ebbflow"
    assert f"The state folder {folder} belongs to a running instance (process {process.pid})." in (
        output.replace("\n", " ")
    )
    assert "Traceback" not in output


def test_a_taken_port_is_refused_with_one_sentence(whole, taken_port):
    whole.write({"messages": 1})
    code, output = finish(whole.start("--nats-port", str(taken_port)))

    assert code == 3
    assert f"Port {taken_port} on 127.0.0.1 is not free" in output
    assert "--nats-port" in output


def test_a_missing_java_is_told_with_the_way_to_install_it(whole, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(whole.folder / "nowhere"))
    whole.write({"messages": 1})
    code, output = finish(whole.start("--drain"))

    assert code == 3
    assert "Spark needs Java 17 or newer, and there is none in JAVA_HOME" in output
    assert "apt-get install" in output
    assert not list(Path(whole.folder / ".ebbflow/nats").glob("pid"))


@pytest.fixture
def taken_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.guarantee("max-deliveries-is-exact")
def test_the_delivery_count_is_exact_across_a_kill_of_everything(whole):
    (whole.folder / "steps.py").write_text(
        (whole.folder / "steps.py").read_text()
        + """
def work(datum):
    with open(HERE / "deliveries", "a") as file:
        print(datum.deliveries, file=file)
    if datum.deliveries < 3:
        from ebbflow import nack
        nack(delay="4s", reason="later")
    return Message(datum.value)
"""
    )
    whole.write({"messages": 10})
    deliveries = whole.folder / "deliveries"

    def calls():
        return deliveries.read_text().split() if deliveries.exists() else []

    for expected in (10, 20):
        process = whole.start("--drain", "--timeout", "60s")
        whole.wait_until(lambda count=expected: len(calls()) >= count, process)
        time.sleep(0.5)  # the nacks are settled within milliseconds; being early would only repeat
        kill_tree(process.pid)
        process.communicate()
    code, output = finish(whole.start("--drain", "--timeout", "60s"))

    assert code == 0, output
    assert Counter(calls()) == {"1": 10, "2": 10, "3": 10}
    assert whole.stored() == list(range(10))


ORDERED = """
def work(datum):
    from ebbflow import nack
    number = json.loads(datum.value)["data"]["value"]
    if number % 50 == 49 and datum.deliveries < 2:
        nack(delay="300ms", reason="hold")
    return Message(datum.value)
"""


def test_an_ordered_pipeline_keeps_its_order_across_a_kill_of_everything(whole):
    (whole.folder / "steps.py").write_text((whole.folder / "steps.py").read_text() + ORDERED)
    whole.write({"messages": 600, "rpu": 150})
    spec = whole.folder / "pipeline.yaml"
    spec.write_text(spec.read_text().replace("spec:\n", "spec:\n  ordered:\n    enabled: true\n"))
    process = whole.start("--drain", "--timeout", "60s")
    whole.wait_until(lambda: len(whole.stored()) > 150, process)
    kill_tree(process.pid)
    process.communicate()
    code, output = finish(whole.start("--drain", "--timeout", "60s"))

    assert code == 0, output
    assert set(whole.stored()) == set(range(600))
    for worker in whole.folder.glob("stored-*"):
        numbers = [int(word) for word in worker.read_text().split() if word.isdigit()]
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)
