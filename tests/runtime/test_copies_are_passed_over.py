"""Copies in a buffer, which its reader skips: the position moves behind them, never ahead."""

from collections.abc import Callable
from random import Random

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbflow.engine.position import Mark, Span
from tests.runtime.crash_model import Chances, Reader, UserCode
from tests.runtime.crash_run import ModelTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.thorough import examples


class CopyReader(Reader):
    """Skips the frames at some places, as ``FrameReader`` does with those it has read."""

    def __init__(
        self,
        stream: list[pa.RecordBatch],
        copies: set[int],
        start: Mark,
        random: Random,
        recorded: Callable[[], Mark],
    ) -> None:
        super().__init__(stream, start, random, recorded)
        self._copies = copies

    def _pass_copies(self) -> None:
        while self.mark.seq in self._copies and not self.mark.row:
            self.passed = self.mark if self.passed is None else self.passed
            self.mark = Mark(self.mark.seq + 1)

    def _left(self, end: Mark) -> int:
        self._pass_copies()  # first, as the reader does: the rest is of the frame behind them
        return super()._left(end)

    def _cut(self, limit: int, most: int) -> list[pa.RecordBatch]:
        self._pass_copies()
        taken = super()._cut(limit, 1)
        if taken:
            self.passed = None
        return taken

    def forget(self, done: Mark) -> None:
        super().forget(done)
        if done == self.mark:
            self.passed = None


class CopiesServer(Server):
    """A server whose buffer holds copies of other frames at some places."""

    copies: set[int]


class CopiesTask(ModelTask):
    server: CopiesServer

    def open_inlet(self, done: Span) -> CopyReader:
        server = self.server
        return CopyReader(
            server.inlet,
            server.copies,
            done.inlet,
            self.chances.random,
            lambda: server.position.done.inlet,
        )


crashes = st.lists(
    st.builds(Chances, random=st.randoms(use_true_random=False), crash_after=st.integers(0, 25)),
    max_size=4,
)


@settings(max_examples=examples(100))
@example([(2, True), (2, False)], [Chances(Random(3), crash_after=3)])
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=6), crashes)
def test_every_message_is_forwarded_once_and_the_position_ends_behind_the_copies(
    sizes, given_crashes
):
    server = CopiesServer(inlet_of(*(size for size, _ in sizes)))
    server.copies = {place for place, (_, is_copy) in enumerate(sizes) if is_copy}
    real = [frame for place, frame in enumerate(server.inlet) if place not in server.copies]
    run_to_the_end(server, UserCode(()), given_crashes, kind=CopiesTask)
    ids = [row_id for frame in real for row_id in frame.column("id").to_pylist()]
    assert sorted(server.outputs) == sorted(f"{row_id}/v" for row_id in ids)
    assert server.position.done.inlet == Mark(len(sizes))
