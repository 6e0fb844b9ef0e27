"""The short form of ``python -m tests.chaos.postgres_kill``."""

from __future__ import annotations

import time

import pytest

from tests.chaos.postgres_kill import PostgresChaos

pytestmark = pytest.mark.slow


@pytest.mark.guarantee("postgres-writes-once")
@pytest.mark.long
def test_every_row_is_stored_once_when_processes_are_killed_and_postgres_crashes(
    postgres, tmp_path
):
    seed = int(time.time())
    print(f"seed {seed}")
    tally = PostgresChaos(tmp_path, postgres, messages=50_000, every=5, seed=seed).run(crashes=1)

    print(tally)
    assert tally.kills.total() > 0
    assert tally.crashes == 1
    assert tally.wrong == []
