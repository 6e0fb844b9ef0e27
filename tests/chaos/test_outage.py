"""A database that a pipeline needs is down for some seconds; the long form is ``outage``."""

import pytest

from tests.chaos.outage import Trial

pytestmark = pytest.mark.slow


@pytest.mark.guarantee("outages-blame-no-message")
@pytest.mark.parametrize("role", ["sink", pytest.param("source", marks=pytest.mark.long)])
def test_a_system_that_restarts_costs_no_message_and_no_dead_letter(role):
    tally = Trial(role, seconds=3, rate=200).run()

    assert (tally.arrived, tally.dead) == (tally.messages, 0), tally.output
    assert tally.restarts == 0
    assert "waiting for a system that is down" in tally.output
    assert "running again" in tally.output
    print(tally)
