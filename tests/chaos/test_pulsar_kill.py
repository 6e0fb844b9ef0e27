"""The short form of ``python -m tests.chaos.pulsar_kill``."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.guarantee("pulsar-loses-no-message")
def test_no_message_is_lost_when_processes_of_the_pipeline_are_killed(pulsar_broker, tmp_path):
    from tests.chaos.pulsar_kill import PulsarChaos

    seed = int(time.time())
    print(f"seed {seed}")
    tally = PulsarChaos(tmp_path, pulsar_broker, records=20_000, seed=seed).run(kills=1)

    print(tally)
    assert (tally.kills, tally.lost, tally.lag) == (1, 0, {0: 0})
    assert tally.nacked > 500
