"""Short epochs and few slots: every turn makes progress."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Whole

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


def drained(whole: Whole, *options: str) -> list[int]:
    process = whole.start("--drain", "--timeout", "150s", *options)
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    return whole.stored()


def test_vertices_that_take_turns_make_progress_although_one_is_slow_to_open(whole):
    """A turn is two seconds, and opening takes three."""
    steps = whole.folder / "steps.py"
    steps.write_text(steps.read_text() + SLOW_TO_OPEN)
    whole.write({"messages": 200})

    assert drained(whole, "--master", "local[1]") == list(range(200))


def test_epochs_of_a_millisecond_make_progress(whole):
    whole.write({"messages": 2_000})

    assert drained(whole, "--epoch", "1ms") == list(range(2_000))
