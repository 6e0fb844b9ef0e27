"""The short form of ``make chaos``."""

from __future__ import annotations

import time

import pytest

from tests.chaos.kill_and_restart import Chaos

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "kills"), [("pipeline", 2), pytest.param("mono", 1, marks=pytest.mark.long)]
)
def test_nothing_is_lost_when_the_whole_process_tree_is_killed_repeatedly(tmp_path, form, kills):
    seed = int(time.time())
    print(f"seed {seed}")
    tally = Chaos(tmp_path, messages=3_000, rate=600, seed=seed, form=form).run(kills)

    print(tally)
    assert (tally.lost, tally.wrong) == ([], [])
    assert tally.dead == 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["storm", "chain"])
def test_every_total_is_exact_after_kills_and_freezes_of_single_processes(tmp_path, form):
    seed = int(time.time())
    print(f"seed {seed}")
    chaos = Chaos(tmp_path, messages=12_000, rate=800, seed=seed, form=form, hit="any")
    tally = chaos.run(8)

    print(chaos.hits, tally)
    assert (tally.lost, tally.wrong) == ([], [])
    assert tally.dead == 24
