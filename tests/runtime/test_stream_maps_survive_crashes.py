"""Stream maps forward outputs before their chunk is settled: none is lost or uncounted.

Forwarded outputs stay forwarded when the input is nacked afterwards, or its task crashes.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack
from ebbflow.domain.errors import Fenced
from tests.runtime.crash_model import Chances, Rules, UserCode
from tests.runtime.crash_run import StreamTask, inlet_of, run_to_the_end
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
stops = st.lists(
    st.builds(
        Chances,
        random=st.randoms(use_true_random=False),
        stop_after=st.integers(0, 12),
    ),
    max_size=4,
)
inlets = st.lists(st.integers(1, 4), min_size=1, max_size=4)
endings = st.lists(st.sampled_from(["end", "end", "nack", "fail", "dead"]), max_size=12)


class Yielding(UserCode):
    """Yields three messages, slowly, and ends as scripted; finally always with success."""

    def __init__(self, server: Server, script: list[str]) -> None:
        super().__init__(script)
        self._server = server

    def __call__(self, datum: Datum) -> Iterator[Message]:
        ending = self._script.pop(0) if self._script else "end"
        for number in range(3):
            self._server.pass_time(60)
            if number == 2 and ending != "end":
                self._end(ending)
            yield Message(b"%d" % number)

    def _end(self, ending: str) -> None:
        if ending == "nack":
            raise Nack
        raise ValueError("no") if ending == "fail" else Nack(max_deliveries=0)


def all_of(count: int) -> dict[str, int]:
    numbers = ("", ".1", ".2")
    return {f"m{n}/v{number}": 1 for n in range(count) for number in numbers}


@settings(max_examples=examples(60))
@given(inlets, endings, crashes)
def test_every_input_ends_whatever_crashes(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    code = Yielding(server, script)
    assert run_to_the_end(server, code, given_crashes, kind=StreamTask) == set()
    counts = server.position.counts
    assert not server.position.replays
    assert counts.read == counts.ended == sum(sizes) + counts.redelivered


@settings(max_examples=examples(40))
@given(inlets, st.integers(0, 1_000).map(Random))
def test_without_a_crash_every_yielded_message_is_forwarded_once_and_counted(sizes, random):
    server = Server(inlet_of(*sizes))
    StreamTask(server, Yielding(server, []), Rules(), Chances(random)).run()
    assert Counter(server.outputs) == all_of(sum(sizes))
    assert server.position.counts.written == len(server.outputs)


@settings(max_examples=examples(40))
@given(inlets, stops, st.integers(0, 20_000))
def test_a_stop_in_the_middle_of_a_map_loses_nothing(sizes, given_stops, full_for):
    """Buffers are full at first: a stopping task abandons a chunk that it cannot forward."""
    server = Server(inlet_of(*sizes))
    server.full_until = server.now + full_for
    assert run_to_the_end(server, Yielding(server, []), given_stops, kind=StreamTask) == set()
    assert set(server.outputs) == set(all_of(sum(sizes)))


def test_outputs_are_forwarded_while_the_map_still_yields():
    server, on_the_way = Server(inlet_of(1)), []

    class Looking(Yielding):
        def __call__(self, datum):
            for message in super().__call__(datum):
                on_the_way.append(len(server.outputs))
                yield message

    StreamTask(server, Looking(server, []), Rules(), Chances(Random(1))).run()
    assert on_the_way == [0, 0, 2], "the first two are there when it yields the third"


def test_a_task_that_is_replaced_while_its_map_yields_ends_and_forwards_nothing_more():
    """Even though it learns this within a call of user code, whose errors concern the message."""
    server = Server(inlet_of(2))

    class Replaced(Yielding):
        def __call__(self, datum):
            StreamTask(server, UserCode(()), Rules(), Chances())
            return super().__call__(datum)

    with pytest.raises(Fenced):
        StreamTask(server, Replaced(server, []), Rules(), Chances(Random(1))).run()
    assert (server.outputs, server.letters, server.coming_back()) == ([], [], set())
