"""The short form of killing a function's process."""

from __future__ import annotations

import time

import pytest

from tests.chaos.function_kill import FunctionKills

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.mark.long
@pytest.mark.parametrize("language", ["go"])
def test_nothing_is_lost_when_the_process_of_a_function_is_killed_repeatedly(
    function_in, tmp_path, language
):
    seed = int(time.time())
    print(f"seed {seed}")
    kills = FunctionKills(tmp_path, function_in(language), messages=3_000, rate=600, seed=seed)

    tally = kills.run(4)

    print(tally)
    assert tally.kills > 0
    assert tally.lost == []
    assert tally.dead == 0
