"""Few slots: every turn makes progress."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SLOW_TO_OPEN = """
import time
from ebbflow import Message

class Slow:
    def open(self):
        time.sleep(3)

    def __call__(self, datum):
        return Message(datum.value)

work = Slow
"""


@pytest.mark.guarantee("a-run-goes-on")
@pytest.mark.long
def test_vertices_that_take_turns_make_progress_although_one_is_slow_to_open(whole):
    """A turn is two seconds, and opening takes three."""
    steps = whole.folder / "steps.py"
    steps.write_text(steps.read_text() + SLOW_TO_OPEN)
    whole.write({"messages": 200}, inline=False)

    process = whole.start("--drain", "--timeout", "240s", "--master", "local[1]")
    output = process.communicate(timeout=300)[0]

    assert process.returncode == 0, output
    assert "3 tasks have only 1 slots, so vertices take turns of 2 s" in output
    assert whole.stored() == list(range(200))
