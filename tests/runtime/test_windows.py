"""Windows of batch vertices: which rows belong to one, expressed in a plan that stays small."""

from __future__ import annotations

import pytest

from ebbflow.engine.position import Span
from ebbflow.spark.batch.window import FRESH, Window, _Frame, place_number

FRAMES, ROWS = 900, 2


class Filtered:
    """A DataFrame that remembers what it was filtered by."""

    def __init__(self, *conditions: str) -> None:
        self.conditions = conditions

    def where(self, condition: str) -> Filtered:
        return Filtered(*self.conditions, condition)


@pytest.fixture
def window() -> Window:
    """A window of frames, of which every third one was read before."""
    window = Window(None, None, 0, Span())  # type: ignore[arg-type]
    window._base = Filtered()  # type: ignore[assignment]
    frames = [_Frame(FRESH, seq, 0, ROWS, ("in.0", None), None) for seq in range(1, FRAMES + 1)]
    window.copies = frozenset((FRESH, seq) for seq in range(3, FRAMES + 1, 3))
    window._frames = [f for f in frames if (f.kind, f.seq) not in window.copies]
    window._ends = [ROWS * (number + 1) for number in range(len(window._frames))]
    return window


def test_one_condition_excludes_all_copies_however_many_there_are(window: Window):
    (condition,) = window.rows(0, len(window)).conditions  # type: ignore[attr-defined]
    listed = condition.partition("NOT IN (")[2].rstrip(")").split(", ")
    # The last copy lies behind the last row.
    assert [int(frame) for frame in listed] == [
        place_number(FRESH, seq, 0) >> 20 for _, seq in sorted(window.copies)[:-1]
    ]
    (condition,) = window.rows(0, 2 * ROWS).conditions  # type: ignore[attr-defined]
    assert "NOT IN" not in condition, "no copy lies between its rows"


def test_the_index_of_a_row_is_found_by_its_place(window: Window):
    for index in (0, 1, 4, 500, len(window) - 1):
        assert window.index(window._place(index)) == index
