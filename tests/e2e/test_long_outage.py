"""A pipeline that is killed and restarted after the server has forgotten all message ids."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from ebbflow.deadletters import DeadLetters
from ebbflow.nats import api
from ebbflow.nats.locate import open_link, start_embedded
from tests.chaos.kill_and_restart import kill_tree
from tests.waiting import let_time_pass

pytestmark = pytest.mark.slow

MESSAGES = 2_000

# The first message of the second half waits: the earlier ones are published but not yet recorded.
WORK = """
import time

def work(datum):
    from ebbflow import nack
    number = json.loads(datum.value)["value"]
    while number >= 1_000 and (HERE / "hold").exists():
        (HERE / "holding").touch()
        time.sleep(0.05)
    if number % 5 == 1 and datum.deliveries == 1:
        nack(reason="again")
    if number % 5 == 2 and datum.deliveries == 1:
        nack(delay="200ms", reason="later")
    if number % 5 == 3:
        nack(max_deliveries=0, reason="no")
    return Message(datum.value)
"""


def forget_all_ids(folder):
    """Simulates an outage longer than the two minutes in which the server finds duplicates."""
    with start_embedded(folder) as server, open_link(server) as link:
        for name in link.run(api.list_streams(link.client, "")):
            config = link.run(api.call(link.client, f"STREAM.INFO.{name}"))["config"]
            config["duplicate_window"] = 100_000_000
            link.run(api.call(link.client, f"STREAM.UPDATE.{name}", config))
        let_time_pass(0.5)


def letters(folder):
    with start_embedded(folder) as server, open_link(server) as link:
        return Counter(one.letter.id for one in DeadLetters(link, "whole").list())


def settled_down(whole):
    """Whether the sink has received everything that can reach it."""
    before = len(whole.stored())
    let_time_pass(1)
    return before > 0 and len(whole.stored()) == before


@pytest.mark.guarantee("at-least-once")
@pytest.mark.long
@pytest.mark.parametrize("inline", [False, True], ids=["through buffers", "inline"])
def test_a_replay_after_the_server_has_forgotten_message_ids_duplicates_nothing(whole, inline):
    steps = whole.folder / "steps.py"
    steps.write_text(steps.read_text() + WORK)
    whole.write({"messages": MESSAGES, "rpu": MESSAGES}, inline=inline)
    (whole.folder / "hold").touch()
    process = whole.start()
    whole.wait_until((whole.folder / "holding").exists, process)
    whole.wait_until(lambda: settled_down(whole), process)
    kill_tree(process.pid)
    process.communicate()
    first = len(whole.stored())
    assert 0 < first < MESSAGES
    forget_all_ids(whole.folder / ".ebbflow")
    (whole.folder / "hold").unlink()
    process = whole.start("--drain", "--timeout", "240s", "--summary", "counts.json")
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 0, output
    totals = json.loads((whole.folder / "counts.json").read_text())["totals"]
    assert totals["in"]["written"] == MESSAGES
    dead = letters(whole.folder / ".ebbflow")
    assert set(dead.values()) == {1}
    assert len(dead) == totals["work"]["dead_lettered"] == MESSAGES // 5
    assert totals["work"]["redelivered"] == 2 * MESSAGES // 5
    assert totals["work"]["read"] == MESSAGES + totals["work"]["redelivered"]
    assert totals["work"]["written"] == totals["out"]["read"] == MESSAGES - len(dead)
    assert set(whole.stored()) == {n for n in range(MESSAGES) if n % 5 != 3}
