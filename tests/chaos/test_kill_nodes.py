"""The short form of killing one node after another; the long one is part of ``make chaos``."""

from __future__ import annotations

import time

import pytest

from tests.chaos.kill_nodes import Chaos

pytestmark = pytest.mark.slow


@pytest.mark.guarantee("a-cluster-may-lose-a-node")
@pytest.mark.long
def test_a_pipeline_on_a_cluster_loses_nothing_when_one_node_after_another_is_killed(tmp_path):
    seed = int(time.time())
    print(f"seed {seed}")
    chaos = Chaos(tmp_path, messages=2_000, rate=250, seed=seed)
    tally = chaos.run(every=2)

    print(f"{tally}, longest gap {chaos.longest_gap:.1f} s")
    assert tally.lost == []
    assert tally.dead == 2
    assert tally.kills >= 1
