"""The short form of ``python -m tests.chaos.kafka_kill``."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.guarantee("kafka-skips-no-record")
@pytest.mark.long
def test_no_record_is_lost_and_no_lag_remains_when_the_pipeline_is_killed(kafka, tmp_path):
    from tests.chaos.kafka_kill import KafkaChaos

    seed = int(time.time())
    print(f"seed {seed}")
    tally = KafkaChaos(tmp_path, kafka, records=20_000, seed=seed).run(kills=1)

    print(tally)
    assert (tally.kills, tally.lost) == (1, 0)
    assert set(tally.lag.values()) == {0}
    assert tally.nacked > 500
