"""Ordered vertices: whatever crashes where, nothing overtakes a row that is held."""

from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack
from tests.runtime.crash_model import Chances, UserCode
from tests.runtime.crash_run import OrderedTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.thorough import examples

crashes = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        crash_after=st.integers(0, 25),
        zombie=st.sampled_from([0, 0, 1]),
    ),
    max_size=5,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=4)
held = st.dictionaries(st.integers(0, 15).map(lambda n: f"m{n}"), st.integers(2, 4), max_size=5)
kinds = st.sampled_from(["nack", "nack later", "away"])


class Nacking(UserCode):
    """Nacks messages until they were delivered that many times, and then forwards them."""

    def __init__(self, until: dict[str, int], kind: str = "nack") -> None:
        super().__init__(())
        self._until = until
        self._kind = kind
        self.calls: list[tuple[str, int]] = []

    def __call__(self, datum: Datum) -> object:
        self.calls.append((datum.id, datum.deliveries))
        if (
            self._kind == "away"
            and datum.id in self._until
            and self.calls.count(self.calls[-1]) < 3
        ):
            raise ConnectionError("the database is down")
        if self._kind != "away" and datum.deliveries < self._until.get(datum.id, 1):
            raise Nack(delay="5s" if self._kind == "nack later" else None)
        return Message(b"1")


@settings(max_examples=examples(60))
@given(inlets, held, kinds, crashes)
def test_outputs_are_in_the_order_of_the_inputs_and_each_is_stored_once(
    sizes, until, kind, given_crashes
):
    server = Server(inlet_of(*sizes))
    code = Nacking(until, kind)
    assert run_to_the_end(server, code, given_crashes, kind=OrderedTask) == set()
    assert server.outputs == [f"m{n}/v" for n in range(sum(sizes))]


@settings(max_examples=examples(40))
@given(inlets, held, crashes)
def test_the_delivery_count_of_a_held_row_continues_across_crashes(sizes, until, given_crashes):
    """Its deliveries are part of the position: no number is skipped, and none is too high."""
    server, code = Server(inlet_of(*sizes)), Nacking(until)
    run_to_the_end(server, code, given_crashes, kind=OrderedTask)
    for message_id, calls in groupby(sorted(code.calls), key=lambda call: call[0]):
        assert {number for _, number in calls} == set(range(1, until.get(message_id, 1) + 1))
    counts = server.position.counts
    assert counts.read == counts.ended
    assert counts.done == sum(sizes)


@settings(max_examples=examples(40))
@given(inlets, held)
def test_without_a_crash_a_held_row_is_delivered_once_for_each_delivery_number(sizes, until):
    server, code = Server(inlet_of(*sizes)), Nacking(until)
    run_to_the_end(server, code, kind=OrderedTask)
    wanted = [
        (f"m{n}", number)
        for n in range(sum(sizes))
        for number in range(1, until.get(f"m{n}", 1) + 1)
    ]
    assert code.calls == wanted
