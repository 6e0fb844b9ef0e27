"""The short form of ``python -m tests.chaos.http_kill``."""

from __future__ import annotations

import time

import pytest

from tests.chaos.http_kill import HttpChaos

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.guarantee("http-200-means-stored")
@pytest.mark.timeout(600)
def test_every_post_answered_with_200_reaches_the_sink_despite_kills_of_everything(tmp_path):
    seed = int(time.time())
    print(f"seed {seed}")
    tally = HttpChaos(tmp_path, 3_000, kills=1, clients=4, seed=seed, while_starting=0.0).run()

    print(tally)
    assert tally.kills == 1
    assert len(tally.posted.accepted) == 3_000
    assert tally.lost == []
    assert tally.stored_twice == 0
