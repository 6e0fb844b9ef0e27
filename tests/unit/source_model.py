"""A model of a source that takes nacked messages back, beside the model of a vertex task.

What is decided is decided by the real core: ``settle(returning=...)`` and ``handed_back``. The
outside system, the source's process and the ledger on the server are modelled here. Anything may
crash between any two steps: the task, or the task and the source's process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from ebbflow import Datum, Nack, NackOptions
from ebbflow.core import frames
from ebbflow.core.frames import Rows
from ebbflow.core.position import Mark
from ebbflow.runtime.source_process.inlet import handed_back
from tests.unit.crash_model import Chances, Crash, Reader, Rules, Server, Settled, Task, UserCode

LIMIT = 2
_FACTS = ("deliveries", "failures", "retries", "first_seen", "nack_reason")


@dataclass
class Outside:
    """A queue that gives what is due and not acknowledged, and again what a dead process had."""

    ready: dict[bytes, int]
    """Offset → when it is due."""
    given: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, count: int) -> "Outside":
        return cls({b"%d" % number: 0 for number in range(count)})

    def read(self, limit: int, now: int) -> list[bytes]:
        found = [offset for offset, due in self.ready.items() if due <= now][:limit]
        for offset in found:
            del self.ready[offset]
        self.given |= set(found)
        return found

    def ack(self, offsets: Sequence[bytes]) -> None:
        self.given -= set(offsets)
        self.acked |= set(offsets)

    def nack(self, nacks: Sequence[tuple[bytes, NackOptions]], now: int) -> None:
        for offset, options in nacks:
            if offset in self.given:
                self.given.remove(offset)
                self.ready[offset] = now + (options.delay or 0)

    def lose_process(self) -> None:
        """What was given and not settled is given again, by the same process or the next."""
        self.ready |= dict.fromkeys(sorted(self.given), 0)
        self.given.clear()


@dataclass
class SourceServer(Server):
    """The server with a ledger, and the outside system."""

    outside: Outside = field(default_factory=lambda: Outside.of(0))
    ledger: dict[str, dict] = field(default_factory=dict)
    on_ack: Callable[[list[str]], None] = lambda ids: None


def message_id(offset: bytes) -> str:
    return f"m{offset.decode()}"


class SourceReader(Reader):
    """Rows of the outside system, with the histories that the ledger has of them."""

    def __init__(self, server: SourceServer, start: Mark) -> None:
        super().__init__([], start)
        self._server = server
        self.offsets: list[bytes] = []

    def take(self, limit: int) -> list[pa.RecordBatch]:
        offsets = self._server.outside.read(limit, self._server.now)
        self.offsets = offsets
        self.mark = Mark(self.mark.seq + len(offsets))
        return [self._batch([message_id(one) for one in offsets])] if offsets else []

    def _batch(self, ids: list[str]) -> pa.RecordBatch:
        bare = frames.batch_of({"id": ids, "value": [b""] * len(ids)}, len(ids))
        columns = {name: bare.column(name).to_pylist() for name in _FACTS}
        for index, one in enumerate(ids):
            for name, value in self._server.ledger.get(one, {}).items():
                columns[name][index] = value
        return frames.with_columns(bare, **columns)

    def take_until(self, end: Mark) -> list[pa.RecordBatch]:
        """Nothing: what was in hand is given again."""
        self.mark, self.offsets = max(self.mark, end), []
        return []


class PulledTask(Task):
    """The task of a source vertex: it tells the source what a chunk has come to, once it is done.

    ``redelivers`` is whether the source takes nacked messages back.
    """

    redelivers = True

    def _opened(self, start: Mark) -> SourceReader:
        self._backs: dict[int, tuple[list[bytes], Settled]] = {}
        self._rounds = 0
        return SourceReader(self._server, start)

    def _more(self) -> bool:
        self._rounds += 1
        assert self._rounds < 2_000, "it goes on for ever"
        outside, server = self._server.outside, self._server
        if outside.ready or self._redeliveries.mark != Mark(len(server.due)):
            self._server.pass_time(0 if self._chances.random.random() < 0.5 else 3_000)
            return True
        self._record()
        self._server.pass_time(60_000)
        return bool(outside.ready) or self._redeliveries.mark != Mark(len(server.due))

    def _returning(self, rows: Rows) -> Sequence[int]:
        first = len(rows) - len(self._inlet.offsets)
        return range(first, len(rows)) if self.redelivers else ()

    def _remember(self, settled: Settled) -> None:
        self._backs[id(settled)] = self._inlet.offsets, settled
        self._inlet.offsets = []
        if settled.settlement.histories is not None:
            self._chances.step()
            for row in settled.settlement.histories.to_pylist():
                self._server.ledger[row["id"]] = {name: row[name] for name in _FACTS}

    def _told(self, done: Settled) -> None:
        offsets, settled = self._backs.pop(id(done))
        back = handed_back(offsets, settled.rows, settled.settlement.returned)
        self._server.on_ack(back.ids)
        outside, ledger, now = self._server.outside, self._server.ledger, self._server.now
        steps = [
            lambda: outside.ack(back.acks),
            lambda: outside.nack(back.nacks, now),
            *(partial(ledger.pop, one, None) for one in back.ids),
        ]
        # The source's process is told by another thread than the ledger.
        for step in self._chances.random.sample(steps, len(steps)):
            self._chances.step()
            step()


class KeepingTask(PulledTask):
    """The task of a source that cannot give a message again: Ebbflow keeps what is nacked."""

    redelivers = False


class Limited(UserCode):
    """Some messages are nacked whenever they come, at most ``LIMIT`` times; others as scripted."""

    def __init__(self, script: Sequence[str], limited: Sequence[str]) -> None:
        super().__init__(script)
        self._limited = limited
        self.calls: list[tuple[str, int]] = []

    def __call__(self, datum: Datum) -> object:
        self.calls.append((datum.id, datum.deliveries))
        if datum.id in self._limited:
            raise Nack(delay=2_000, max_deliveries=LIMIT)
        return super().__call__(datum)


def run_source(
    server: SourceServer,
    code: UserCode,
    crashes: Sequence[Chances],
    kind: type[PulledTask] = PulledTask,
) -> set[str]:
    """One task after another, the last without a crash. The ids of the messages that were lost."""
    ids = {message_id(offset) for offset in server.outside.ready}
    for chances in [*crashes, Chances()]:
        server.outside.lose_process()
        try:
            kind(server, code, Rules(), chances).run()
        except Crash:
            server.pass_time(chances.random.choice([0, 0, 10_000]))
    return ids - server.ended()
