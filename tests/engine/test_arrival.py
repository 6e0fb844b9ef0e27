"""Rows that are dead on arrival do not reach user code, and do not affect the other rows."""

from ebbflow.domain.durations import Backoff
from ebbflow.domain.message import Message
from ebbflow.domain.outcome import DeadLetter, Dropped
from ebbflow.engine import frames
from ebbflow.engine.checks import Rules
from ebbflow.engine.dead_letter import mark_dead, set_aside_dead
from ebbflow.engine.frames import Rows
from ebbflow.engine.verdict import Verdict

WHY = DeadLetter("unreadable row", "it is not JSON", size=12, unread=True)


def verdict_on(*values: bytes) -> Verdict:
    """A verdict on rows of which those with the value ``b"dead"`` are dead on arrival."""
    columns = {
        "id": [str(number) for number in range(len(values))],
        "value": list(values),
        "metadata": [mark_dead(WHY) if value == b"dead" else None for value in values],
    }
    rows = Rows(frames.batch_of(columns, len(values)))
    return Verdict(rows, Rules("v", Backoff("1ms", 1), 100))


def to_upper_case(verdict: Verdict) -> None:
    for index, datum in enumerate(verdict.rows.data()):
        verdict.record(index, Message(datum.value.upper()) if datum.value != b"none" else None)


def test_dead_rows_become_dead_letters_and_user_code_decides_the_others() -> None:
    verdict = verdict_on(b"dead", b"a", b"dead", b"none", b"b")
    set_aside_dead(to_upper_case)(verdict)
    assert verdict.outcomes == {0: WHY, 2: WHY, 3: Dropped("empty result")}
    assert (verdict.outputs.parents, verdict.outputs.values) == ([1, 4], [b"A", b"B"])


def test_forwarding_unchanged_rows_leaves_out_dead_rows() -> None:
    verdict = verdict_on(b"a", b"dead")
    set_aside_dead(Verdict.forward_inputs)(verdict)
    assert (verdict.outcomes, verdict.outputs) == ({1: WHY}, None)


def test_user_code_is_not_called_if_all_rows_are_dead() -> None:
    verdict = verdict_on(b"dead", b"dead")
    set_aside_dead(lambda _: 1 / 0)(verdict)
    assert verdict.outcomes == {0: WHY, 1: WHY}
