"""A model of a source that receives the outcome of each message, added to the crash model.

The loop is the shipped one, with its journal and its clock in memory. The outside system, the
source's process and the ledger on the server are modelled here. Anything may crash between any two
steps: the task, or the task and the source's process.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ebbflow import Datum, Nack
from ebbflow.engine import frames
from ebbflow.engine.inlet import Inlet, SourceAcks
from ebbflow.engine.position import Mark, Span
from tests.runtime.crash_model import Chances, Crash, Rules, UserCode
from tests.runtime.crash_run import ModelTask
from tests.runtime.memory_server import Server

LIMIT = 2
_FACTS = ("deliveries", "failures", "retries", "first_seen", "nack_reason")


@dataclass
class Outside:
    """A queue that delivers due messages, and delivers those of a dead process again."""

    ready: dict[bytes, int]
    """Offset → when it is due."""
    in_flight: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, count: int) -> "Outside":
        return cls({b"%d" % number: 0 for number in range(count)})

    def read(self, limit: int, now: int) -> list[bytes]:
        offsets = [offset for offset, due in self.ready.items() if due <= now][:limit]
        for offset in offsets:
            del self.ready[offset]
        self.in_flight |= set(offsets)
        return offsets

    def ack(self, offsets: Sequence[bytes]) -> None:
        self.in_flight -= set(offsets)
        self.acked |= set(offsets)

    def nack(self, nacks: pa.RecordBatch, now: int) -> None:
        for nack in nacks.to_pylist():
            if nack["offset"] in self.in_flight:
                self.in_flight.remove(nack["offset"])
                self.ready[nack["offset"]] = now + (nack["delay"] or 0)

    def lose_process(self) -> None:
        """Messages in flight are delivered again, by the same process or the next."""
        self.ready |= dict.fromkeys(sorted(self.in_flight), 0)
        self.in_flight.clear()


@dataclass
class SourceServer(Server):
    """The server, and the outside system."""

    outside: Outside = field(default_factory=lambda: Outside.of(0))
    on_ack: Callable[[list[str]], None] = lambda ids: None


def message_id(offset: bytes) -> str:
    return f"m{offset.decode()}"


class SourceInlet(Inlet):
    """Rows of the outside system, with their histories in the ledger.

    The source's process is notified by a separate thread, so later than the task reports it.
    """

    def __init__(
        self, server: SourceServer, start: Mark, redelivers_itself: bool, chances: Chances
    ) -> None:
        self.mark = start
        self.redelivers_itself = redelivers_itself
        self._server = server
        self._chances = chances
        self._offsets: list[bytes] = []
        self._settled: deque[SourceAcks] = deque()

    @property
    def rows_left(self) -> bool:
        return bool(self._server.outside.ready or self._server.outside.in_flight or self._settled)

    def take(self, limit: int) -> list[pa.RecordBatch]:
        self.notify()
        offsets = self._server.outside.read(limit, self._server.now)
        self._offsets += offsets
        self.mark = Mark(self.mark.seq + len(offsets))
        return [self._batch([message_id(offset) for offset in offsets])] if offsets else []

    def _batch(self, ids: list[str]) -> pa.RecordBatch:
        bare = frames.batch_of({"id": ids, "value": [b""] * len(ids)}, len(ids))
        columns = {name: bare.column(name).to_pylist() for name in _FACTS}
        for index, row_id in enumerate(ids):
            for name, value in self._server.ledger.get(row_id, {}).items():
                columns[name][index] = value
        return frames.with_columns(bare, **columns)

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Nothing: messages in flight are delivered again."""
        self.mark = max(self.mark, end)
        return []

    def take_offsets(self) -> pa.BinaryArray:
        offsets, self._offsets = self._offsets, []
        return pa.array(offsets, pa.binary())

    def acknowledge(self, ends: SourceAcks) -> None:
        self._server.on_ack(ends.ids.to_pylist())
        self._settled.append(ends)

    def notify(self) -> None:
        """The thread next to the task, if it is scheduled: acks and nacks, in any order."""
        if self._settled and self._chances.random.random() < 0.5:
            self._notify(self._settled.popleft())

    def _notify(self, ends: SourceAcks) -> None:
        outside, now = self._server.outside, self._server.now
        outside.ack(ends.acks.to_pylist())
        outside.nack(ends.nacks, now)

    def close(self, for_good: bool = False) -> None:
        while self._settled and not self._chances.crashed:
            self._notify(self._settled.popleft())


class PulledTask(ModelTask):
    """The task of a source vertex: it reports a chunk's outcomes to the source once it is done.

    ``redelivers_itself`` is whether the source takes nacked messages back.
    """

    redelivers_itself = True
    server: SourceServer

    def open_inlet(self, done: Span) -> SourceInlet:
        inlet = SourceInlet(self.server, done.inlet, self.redelivers_itself, self.chances)
        self.journal.other_threads = inlet.notify
        return inlet


class KeepingTask(PulledTask):
    """The task of a source that cannot redeliver a message: Ebbflow stores nacked messages."""

    redelivers_itself = False


class Limited(UserCode):
    """Nacks some messages on every delivery, at most ``LIMIT`` times; decides others by script."""

    def __init__(self, script: Sequence[str], limited: Sequence[str]) -> None:
        super().__init__(script)
        self._limited = limited
        self.calls: list[tuple[str, int]] = []

    def __call__(self, datum: Datum) -> object:
        self.calls.append((datum.id, datum.deliveries))
        if datum.id in self._limited:
            raise Nack(delay="2s", max_deliveries=LIMIT)
        return super().__call__(datum)


def run_source(
    server: SourceServer,
    code: UserCode,
    crashes: Sequence[Chances],
    kind: type[PulledTask] = PulledTask,
) -> set[str]:
    """One task after another, the last without a crash. Returns the ids of the lost messages."""
    ids = {message_id(offset) for offset in server.outside.ready}
    for chances in [*crashes, Chances()]:
        server.outside.lose_process()
        try:
            kind(server, code, Rules(), chances).run()
        except Crash:
            server.pass_time(chances.random.choice([0, 0, 10_000]))
    return ids - server.ended()
