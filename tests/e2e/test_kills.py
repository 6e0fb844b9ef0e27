"""All processes are killed and restarted: delivery counts and order are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.chaos.kill_and_restart import kill_tree
from tests.e2e.conftest import Whole, finish
from tests.waiting import let_time_pass

pytestmark = [pytest.mark.slow, pytest.mark.long]

MESSAGES, NACKED = 900, 10
STEPS = """
from ebbflow import nack

def number_of(datum):
    return json.loads(datum.value)["value"]

def count(datum):
    if number_of(datum) >= 10:
        return []
    with open(HERE / "deliveries", "a") as file:
        print(datum.deliveries, file=file)
    if datum.deliveries < 3:
        nack(delay="4s", reason="later")
    return Message(datum.value)

def work(datum):
    if number_of(datum) % 50 == 49 and datum.deliveries < 2:
        nack(delay="300ms", reason="hold")
    return Message(datum.value)

class Counted(Store):
    name = "counted"
"""
SPEC = {
    "vertices": [
        {"name": "in", "source": {"generator": {"messages": MESSAGES, "rpu": 150}}},
        {"name": "count", "udf": {"python": "steps:count"}},
        {"name": "counted", "sink": {"udsink": {"python": "steps:Counted"}}},
        {"name": "work", "udf": {"python": "steps:work"}, "ordered": {"enabled": True}},
        {
            "name": "out",
            "sink": {"udsink": {"python": "steps:Store"}},
            "ordered": {"enabled": True},
        },
    ],
    "edges": [
        {"from": "in", "to": "count"},
        {"from": "count", "to": "counted"},
        {"from": "in", "to": "work"},
        {"from": "work", "to": "out"},
    ],
}
HEADER = {"apiVersion": "numaflow.numaproj.io/v1alpha1", "kind": "Pipeline"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A pipeline with an ordered branch and another one, killed twice and then drained."""
    whole = Whole(tmp_path_factory.mktemp("killed"))
    steps = whole.folder / "steps.py"
    steps.write_text(steps.read_text() + STEPS)
    spec = HEADER | {"metadata": {"name": "whole"}, "spec": SPEC}
    (whole.folder / "pipeline.yaml").write_text(json.dumps(spec))
    try:
        for calls, stored in ((NACKED, 150), (2 * NACKED, 400)):
            process = whole.start("--drain", "--timeout", "240s")
            whole.wait_until(
                lambda calls=calls, stored=stored: (
                    len(deliveries(whole)) >= calls and len(whole.stored()) > stored
                ),
                process,
            )
            let_time_pass(
                0.5
            )  # nacks are settled within milliseconds; killing earlier would only repeat them
            kill_tree(process.pid)
            process.communicate()
        code, output = finish(whole.start("--drain", "--timeout", "240s"))
        assert code == 0, output
        yield whole
    finally:
        whole.close()


def deliveries(whole: Whole) -> list[str]:
    file = whole.folder / "deliveries"
    return file.read_text().split() if file.exists() else []


@pytest.mark.guarantee("max-deliveries-is-exact")
def test_the_delivery_count_stays_exact_across_kills_of_all_processes(killed):
    assert Counter(deliveries(killed)) == {"1": NACKED, "2": NACKED, "3": NACKED}
    assert killed.stored("counted") == list(range(NACKED))


def test_an_ordered_pipeline_keeps_its_order_across_kills_of_all_processes(killed):
    assert set(killed.stored()) == set(range(MESSAGES))
    for worker in killed.folder.glob("stored-*"):
        numbers = [int(word) for word in worker.read_text().split() if word.isdigit()]
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)
