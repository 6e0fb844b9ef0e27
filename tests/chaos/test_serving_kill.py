"""The short form of ``python -m tests.chaos.serving_kill``."""

from __future__ import annotations

import time

import pytest

from tests.chaos.serving_kill import ServingChaos

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_accepted_request_ends_as_expected_despite_kills_of_everything(tmp_path):
    seed = int(time.time())
    print(f"seed {seed}")
    tally = ServingChaos(tmp_path, 300, kills=1, clients=12, seed=seed, while_starting=0.0).run()

    print(tally)
    assert tally.kills == 1
    assert len(tally.asked.accepted) == 200
    assert tally.asked.answered + len(tally.asked.to_fetch) == 100
    assert tally.lost == []
    assert tally.asked.wrong == []
