"""Whatever a function does with its messages, each of them has one outcome, and soon."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.domain.errors import CallTimeout, SetupError, StreamBroken, Unavailable
from ebbflow.engine.blame import CALLS_IN_A_ROW, ENOUGH
from ebbflow.numaflow.function_session import ask_all

BREAK = StreamBroken("INTERNAL: UDF_EXECUTION_ERROR(udf): boom", 13, "stack")
AWAY = StreamBroken("UNAVAILABLE: UDF_EXECUTION_ERROR(udf): the database", 14)
LATE = CallTimeout(1.0)


class Function:
    """A function that breaks on some rows: once, as when it is killed, or whenever it gets them.

    ``opens`` says whether each attempt to reopen it succeeds; later ones always do.
    """

    def __init__(self, faults: dict[int, tuple[Exception, bool]], opens: list[bool]) -> None:
        self.faults, self.opens = dict(faults), list(opens)
        self.answered: set[int] = set()
        self.asked: Counter[int] = Counter()
        self.alone: list[int] = []
        self.renewed = 0

    # --- as a session ---------------------------------------------------------------------------

    def reopen(self) -> None:
        if self.opens and not self.opens.pop(0):
            raise SetupError("too old") if len(self.opens) % 2 else Unavailable("the function")

    def reopen_if_ended(self) -> None:
        pass

    def renew_streams(self) -> None:
        self.renewed += 1

    def explain(self, error: StreamBroken) -> StreamBroken:
        return error

    # --- as its caller ---------------------------------------------------------------------------

    def ask(self, rows: Sequence[int]) -> None:
        self.alone += rows if len(rows) == 1 else []
        self.asked.update(rows)
        for row in rows:
            if row in self.faults:
                error, always = self.faults[row]
                if not always:
                    del self.faults[row]
                raise error
            self.answered.add(row)

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if row not in self.answered]


faults = st.dictionaries(
    st.integers(0, 39),
    st.tuples(st.sampled_from([BREAK, AWAY, LATE]), st.booleans()),
    max_size=40,
)


@given(st.integers(1, 40), faults, st.lists(st.booleans(), max_size=6))
def test_every_row_is_answered_or_has_a_reason_and_is_sent_at_most_twice(count, faults, opens):
    function = Function(faults, opens)
    failures = ask_all(function, function, range(count))
    assert function.answered | failures.keys() == set(range(count))
    assert not function.answered & failures.keys()
    assert max(function.asked.values()) <= 2
    for row, error in failures.items():
        if isinstance(error, StreamBroken | CallTimeout):  # penalised: it broke alone
            assert row in function.alone
            assert faults[row][0] is error


@given(st.sets(st.integers(0, 39), max_size=ENOUGH - 1))
def test_a_function_killed_now_and_then_penalises_no_message(killed):
    function = Function(dict.fromkeys(killed, (BREAK, False)), [])
    first, *others = sorted(killed) or [None]
    failures = ask_all(function, function, range(40))
    # The first kill ends the call; each of the others hits a row that was sent alone.
    assert failures.keys() <= set(others)
    assert first not in failures


def test_rows_that_break_the_function_again_fail_and_the_others_are_answered():
    function = Function({3: (BREAK, True), 17: (LATE, True), 5: (AWAY, True)}, [])
    failures = ask_all(function, function, range(20))
    assert failures.keys() == {3, 5, 17}
    assert failures[3] is BREAK
    assert failures[17] is LATE
    assert isinstance(failures[5], Unavailable)
    assert function.renewed == 1  # user code that says so continues in the same process


def test_a_function_that_cannot_be_opened_penalises_no_message():
    function = Function({2: (BREAK, True)}, [False])
    failures = ask_all(function, function, range(5))
    assert failures.keys() == {2, 3, 4}
    assert {type(error) for error in failures.values()} == {Unavailable}


def test_after_enough_breaks_in_succession_the_other_rows_are_not_tried():
    function = Function(dict.fromkeys(range(40), (BREAK, True)), [])
    failures = ask_all(function, function, range(40))
    assert list(failures.values()) == [BREAK] * ENOUGH + [None] * (40 - ENOUGH)
    function = Function(dict.fromkeys(range(40), (AWAY, True)), [])
    failures = ask_all(function, function, range(40))
    kinds = [type(error) for error in failures.values()]
    assert kinds == [Unavailable] * CALLS_IN_A_ROW + [type(None)] * (40 - CALLS_IN_A_ROW)


def test_a_row_that_succeeds_between_breaks_keeps_the_trials_going():
    function = Function(dict.fromkeys(range(0, 40, 2), (BREAK, True)), [])
    failures = ask_all(function, function, range(40))
    assert sorted(failures) == list(range(0, 40, 2))
    assert all(later - earlier == 1 for earlier, later in pairwise(function.alone))
