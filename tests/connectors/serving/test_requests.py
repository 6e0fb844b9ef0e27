"""Whatever is told in which order, wherever a crash comes: each request ends once, as it must."""

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
    """What the trail may tell of a request, by how it ends."""
    sent = ("in", row(request, "done", f"out:{request}/1", f"out:{request}/2"))
    again = ("out", row(f"{request}/1", "redelivered"))
    first, second = (("out", row(f"{request}/{n}", "served", answers=1)) for n in (1, 2))
    dead = ("out", row(f"{request}/1", "dead_lettered", reason="no"))
    return {
        "completed": [sent, again, second, first],
        # A vertex may be faster than the one before it is at telling.
        "completed early": [first, sent, second],
        "dropped": [("in", row(request, "redelivered")), ("in", row(request, "dropped"))],
        "failed": [sent, dead, second],
    }


@dataclass
class World:
    """A trail, what is stored next to it, and the register of the present run."""

    told: list[TrailFrame] = field(default_factory=list)
    records: Written = field(default_factory=Written)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    untold: dict[str, list[tuple[str, TrailRow]]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.register = self._make_register()

    def _make_register(self) -> RequestRegister:
        return RequestRegister("in", self.records)  # type: ignore[arg-type]

    def accept(self, request: str, way: list[tuple[str, TrailRow]]) -> None:
        self.register.add(OpenRequest("in", request, at(0)))
        self.untold[request] = way
        self.waiting.add(request)

    def tell(self, vertex: str, *rows: TrailRow) -> None:
        frame = TrailFrame(len(self.told) + 1, vertex, list(rows))
        self.told.append(frame)
        self.register.take([frame])

    def tell_next(self, request: str) -> None:
        vertex, one = self.untold[request].pop(0)
        self.tell(vertex, one)

    def rewrite(self, frames: int, is_late: bool) -> None:
        """What is far back is told again; a row may come in between."""
        if behind := self.register.list_behind(frames, at(-1)):
            if is_late and (left := [request for request, way in self.untold.items() if way]):
                self.tell_next(left[0])
            seq = len(self.told) + 1
            for vertex, one in [told for retelling in behind for told in retelling.rows]:
                self.tell(vertex, one)
            self.register.note_rewritten(behind, seq, at(0))

    def settle(self) -> None:
        """The source's tasks are done with all that the trail tells of."""
        self.waiting -= {one.id for frame in self.told for one in frame.rows}

    def crash(self) -> None:
        self.records.begun.clear()
        self.register = self._make_register()
        waiting = dict.fromkeys(self.waiting, at(0))
        self.register.begin_recovery(self.checkpoint, waiting)
        self.register.take(self.told[self.checkpoint.begin :])
        asyncio.run(self.register.end_recovery(waiting))


@given(st.data())
def test_each_request_ends_once_wherever_crashes_come(data):
    world, ends = World(), {}
    words = "accept tell tell tell repeat other again confirm checkpoint settle crash restart"
    actions = st.sampled_from(words.split())
    for action in data.draw(st.lists(actions, max_size=40)):
        match action:
            case "accept":
                request = f"r{len(ends)}"
                ends[request], way = data.draw(st.sampled_from([*ways(request).items()]))
                world.accept(request, way)
            case "tell" if any(world.untold.values()):
                left = [request for request, way in world.untold.items() if way]
                world.tell_next(data.draw(st.sampled_from(left)))
            case "repeat" if world.told:
                frame = data.draw(st.sampled_from(world.told))
                world.tell(frame.vertex, *frame.rows)
            case "again":
                world.rewrite(data.draw(st.sampled_from([0, 5])), data.draw(st.booleans()))
            case "other":
                world.tell("out", row("x", request="of another source"))
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
    for request, way in world.untold.items():
        assert world.register.knows(request) or request in world.records.stored
        while way:
            world.tell_next(request)
    world.records.confirm()
    assert {id: end.status for id, end in world.records.stored.items()} == {
        request: "failed" if end == "failed" else "completed" for request, end in ends.items()
    }
    assert not world.register.open
    assert world.register.checkpoint == Checkpoint(len(world.told), len(world.told))


def opened(*told: int) -> World:
    """A request of which that many rows were told."""
    world = World()
    world.accept("r", ways("r")["completed"])
    for _ in told:
        world.tell_next("r")
    world.settle()
    return world


def test_a_request_that_stays_open_does_not_hold_the_checkpoint_back():
    world = opened(1, 2)
    for n in range(20):
        world.tell("in", row(f"x{n}"))
    assert world.register.checkpoint.begin == 0
    world.rewrite(20, is_late=False)
    world.checkpoint = world.register.checkpoint
    assert world.checkpoint.begin == 22
    world.crash()
    assert world.register.open["r"].completion.steps[0].outcome == "done"
    world.tell_next("r")
    world.tell_next("r")
    assert [request.status for request, _ in world.records.begun] == ["completed"]


def test_a_row_that_comes_while_others_are_told_again_is_not_passed_over():
    world = opened(1, 2)
    world.rewrite(0, is_late=True)
    world.checkpoint = world.register.checkpoint
    world.crash()
    world.tell_next("r")
    assert not world.register.open


def test_a_request_with_more_rows_than_are_kept_stays_where_it_is():
    world = World()
    world.accept("r", [])
    for n in range(MOST_STEPS + 1):
        world.tell("in", row("r", "redelivered", deliveries=n))
    assert world.register.list_behind(0, at(0)) == []
