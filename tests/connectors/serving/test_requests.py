"""Whatever the order of trail rows and crashes, each request ends once, with the right outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ebbflow.accounts.completion import MOST_STEPS
from ebbflow.connectors.serving.requests import OpenRequest, RequestRegister
from ebbflow.connectors.serving.store import Checkpoint, ServedRequest
from ebbflow.streams.answer_bucket import TrailFrame
from ebbflow.streams.trail_rows import TrailRow
from tests.connectors.serving.desk import at, row


class Written:
    """Records that are stored when the test says so."""

    def __init__(self) -> None:
        self.stored: dict[str, ServedRequest] = {}
        self.begun: list[tuple[ServedRequest, Callable[[], None]]] = []

    def write(self, request: ServedRequest, on_stored: Callable[[], None]) -> None:
        self.begun.append((request, on_stored))

    async def read(self, request: str) -> ServedRequest | None:
        return self.stored.get(request)

    def confirm(self) -> None:
        begun, self.begun = self.begun, []
        for request, on_stored in begun:
            assert request.id not in self.stored, "a request has ended twice"
            self.stored[request.id] = request
            on_stored()


def ways(request: str) -> dict[str, list[tuple[str, TrailRow]]]:
    """The trail rows that a request may have, by its outcome."""
    sent = ("in", row(request, "done", f"out:{request}/1", f"out:{request}/2"))
    again = ("out", row(f"{request}/1", "redelivered"))
    first, second = (("out", row(f"{request}/{n}", "served", answers=1)) for n in (1, 2))
    dead = ("out", row(f"{request}/1", "dead_lettered", reason="no"))
    return {
        "completed": [sent, again, second, first],
        # A vertex may write its row before the previous vertex has written its own.
        "completed early": [first, sent, second],
        "dropped": [("in", row(request, "redelivered")), ("in", row(request, "dropped"))],
        "failed": [sent, dead, second],
    }


@dataclass
class World:
    """A trail, what is stored next to it, and the register of the present run."""

    trail: list[TrailFrame] = field(default_factory=list)
    records: Written = field(default_factory=Written)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    pending: dict[str, list[tuple[str, TrailRow]]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.register = self._make_register()

    def _make_register(self) -> RequestRegister:
        return RequestRegister("in", self.records)  # type: ignore[arg-type]

    def accept(self, request: str, way: list[tuple[str, TrailRow]]) -> None:
        self.register.add(OpenRequest("in", request, at(0)))
        self.pending[request] = way
        self.waiting.add(request)

    def report(self, vertex: str, *rows: TrailRow) -> None:
        frame = TrailFrame(len(self.trail) + 1, vertex, list(rows))
        self.trail.append(frame)
        self.register.take([frame])

    def report_next(self, request: str) -> None:
        vertex, one = self.pending[request].pop(0)
        self.report(vertex, one)

    def rewrite(self, frames: int, is_late: bool) -> None:
        """Repeat what is far back; another row may arrive in between."""
        if behind := self.register.list_behind(frames, at(-1)):
            if is_late and (left := [request for request, way in self.pending.items() if way]):
                self.report_next(left[0])
            seq = len(self.trail) + 1
            for vertex, one in [pair for repeated in behind for pair in repeated.rows]:
                self.report(vertex, one)
            self.register.note_rewritten(behind, seq, at(0))

    def settle(self) -> None:
        """The source's tasks settle everything that is in the trail."""
        self.waiting -= {one.id for frame in self.trail for one in frame.rows}

    def crash(self) -> None:
        self.records.begun.clear()
        self.register = self._make_register()
        waiting = dict.fromkeys(self.waiting, at(0))
        self.register.begin_recovery(self.checkpoint, waiting)
        self.register.take(self.trail[self.checkpoint.begin :])
        asyncio.run(self.register.end_recovery(waiting))


@given(st.data())
def test_each_request_ends_once_wherever_a_crash_happens(data):
    world, ends = World(), {}
    words = "accept report report report repeat other again confirm checkpoint settle crash restart"
    actions = st.sampled_from(words.split())
    for action in data.draw(st.lists(actions, max_size=40)):
        match action:
            case "accept":
                request = f"r{len(ends)}"
                ends[request], way = data.draw(st.sampled_from([*ways(request).items()]))
                world.accept(request, way)
            case "report" if any(world.pending.values()):
                left = [request for request, way in world.pending.items() if way]
                world.report_next(data.draw(st.sampled_from(left)))
            case "repeat" if world.trail:
                frame = data.draw(st.sampled_from(world.trail))
                world.report(frame.vertex, *frame.rows)
            case "again":
                world.rewrite(data.draw(st.sampled_from([0, 5])), data.draw(st.booleans()))
            case "other":
                world.report("out", row("x", request="of another source"))
            case "confirm":
                world.records.confirm()
            case "checkpoint":
                world.checkpoint = world.register.checkpoint
            case "settle":
                world.settle()
            case "crash":
                world.crash()
            case "restart":
                world.checkpoint = world.register.checkpoint
                world.crash()
    for request, way in world.pending.items():
        assert world.register.knows(request) or request in world.records.stored
        while way:
            world.report_next(request)
    world.records.confirm()
    assert {id: end.status for id, end in world.records.stored.items()} == {
        request: "failed" if end == "failed" else "completed" for request, end in ends.items()
    }
    assert not world.register.open
    assert world.register.checkpoint == Checkpoint(len(world.trail), len(world.trail))


def opened(*rows: int) -> World:
    """A request with that many rows in the trail."""
    world = World()
    world.accept("r", ways("r")["completed"])
    for _ in rows:
        world.report_next("r")
    world.settle()
    return world


def test_a_request_that_stays_open_does_not_block_the_checkpoint():
    world = opened(1, 2)
    for n in range(20):
        world.report("in", row(f"x{n}"))
    assert world.register.checkpoint.begin == 0
    world.rewrite(20, is_late=False)
    world.checkpoint = world.register.checkpoint
    assert world.checkpoint.begin == 22
    world.crash()
    assert world.register.open["r"].completion.steps[0].outcome == "done"
    world.report_next("r")
    world.report_next("r")
    assert [request.status for request, _ in world.records.begun] == ["completed"]


def test_a_row_that_arrives_while_others_are_repeated_is_not_skipped():
    world = opened(1, 2)
    world.rewrite(0, is_late=True)
    world.checkpoint = world.register.checkpoint
    world.crash()
    world.report_next("r")
    assert not world.register.open


def test_a_request_with_more_rows_than_are_kept_is_not_repeated():
    world = World()
    world.accept("r", [])
    for n in range(MOST_STEPS + 1):
        world.report("in", row("r", "redelivered", deliveries=n))
    assert world.register.list_behind(0, at(0)) == []
