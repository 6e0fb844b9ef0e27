"""A task's inlet and its source's process, over a real socket: nothing is lost between them.

The process is a thread here, so that the test can see what the source received. Tasks follow each
other; some end in good order, some are gone at once, and the system behind the source may be down.
"""

import os
import pickle
import socket
import threading
import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import NackOffset, NackOptions, Source, SourceMessage
from ebbflow.domain.durations import Backoff
from ebbflow.domain.errors import SourceError
from ebbflow.domain.outcome import Redeliver
from ebbflow.engine import frames
from ebbflow.engine.frames import Rows
from ebbflow.engine.inlet import source_acks
from ebbflow.engine.outage import Patience
from ebbflow.engine.position import Mark
from ebbflow.engine.system_errors import LISTED
from ebbflow.runtime.source_process import companion, reading
from ebbflow.runtime.source_process.companion import SourcePlan
from ebbflow.runtime.source_process.inlet import PulledInlet
from ebbflow.runtime.source_process.program import SourceProcess
from ebbflow.runtime.source_process.protocol import Order
from ebbflow.runtime.source_process.reading import SourceReading
from ebbflow.streams.ledger import History
from tests.thorough import examples
from tests.waiting import let_time_pass, until

RUNS = count()
SOON = Backoff("1ms")


class Outside:
    """The system behind the source: messages that wait, are in flight, or are done."""

    def __init__(self, messages: int) -> None:
        self.waiting = [b"%d" % number for number in range(messages)]
        self.in_flight: dict[bytes, int] = {}
        self.acked: list[bytes] = []
        self.nacked: list[tuple[bytes, NackOptions]] = []
        self.opened = 0
        self.limits: list[int] = []
        self.outages: list[str] = []
        """The methods that raise the next time they are called."""

    def meet_outage(self, method: str) -> None:
        if method in self.outages:
            self.outages.remove(method)
            raise ConnectionError(f"{method}: the system is down")

    def give(self, limit: int) -> list[bytes]:
        self.limits.append(limit)
        offsets, self.waiting = self.waiting[:limit], self.waiting[limit:]
        self.in_flight |= dict.fromkeys(offsets, self.opened)
        return offsets


OUTSIDE: Outside


class Reader(Source):
    """Returns lists of messages; an instance knows only those that it has returned itself."""

    def open(self) -> None:
        self._outside = OUTSIDE
        self._outside.meet_outage("open")
        self._outside.opened += 1
        # A new connection: unsettled messages of the previous one are delivered again.
        self._outside.waiting = [*self._outside.in_flight, *self._outside.waiting]
        self._outside.in_flight.clear()

    def read(self, limit, timeout):
        self._outside.meet_outage("read")
        offsets = self._outside.give(limit)
        return [SourceMessage(b"v" + offset, offset) for offset in offsets]

    def ack(self, offsets):
        assert all(type(offset) is bytes for offset in offsets)
        self._outside.meet_outage("ack")
        self._end(offsets)

    def _end(self, offsets):
        unknown = [offset for offset in offsets if offset not in self._outside.in_flight]
        for offset in offsets:
            if self._outside.in_flight.pop(offset, None) is not None:
                self._outside.acked.append(offset)
        if unknown:
            raise ValueError(f"not in flight: {unknown}")

    @property
    def exhausted(self) -> bool:
        return not (self._outside.waiting or self._outside.in_flight)


class TakingBack(Reader):
    """Redelivers nacked messages."""

    def nack(self, nacks: list[NackOffset]) -> None:
        self._outside.meet_outage("nack")
        for nack in nacks:
            self._outside.nacked.append((nack.offset, nack.options))
            if self._outside.in_flight.pop(nack.offset, None) is not None:
                self._outside.waiting.append(nack.offset)


class InColumns(TakingBack):
    """Returns columns, and is acknowledged in columns."""

    def read(self, limit, timeout):
        self._outside.meet_outage("read")
        offsets = pa.array(self._outside.give(limit), pa.binary())
        values = pa.array([b"v" + offset for offset in offsets.to_pylist()], pa.binary())
        return pa.RecordBatch.from_arrays([values, offsets], names=["value", "offset"])

    def ack_columns(self, offsets):
        assert isinstance(offsets, pa.BinaryArray)
        self._outside.meet_outage("ack")
        self._end(offsets.to_pylist())


class NoColumns:
    """Not even a subclass of ``Source``: the two methods that it needs, and when to stop."""

    open, read, ack, _end, exhausted = (
        Reader.open,
        Reader.read,
        Reader.ack,
        Reader._end,
        Reader.exhausted,
    )


SOURCES = [Reader, TakingBack, InColumns, NoColumns]
sources = pytest.mark.parametrize("source", SOURCES)


class EmptyLedger:
    """A ledger, in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, History] = {}

    def catch_up(self) -> None:
        pass

    def histories(self, ids: pa.StringArray) -> dict[int, History]:
        known = enumerate(ids.to_pylist())
        return {row: self.entries[i] for row, i in known if i in self.entries}


class Events:
    """Records what is shown to users."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counted: list[int | None] = []

    def log(self, text: str) -> None:
        self.lines.append(text)

    def pending(self, messages: int | None) -> None:
        self.counted.append(messages)


class Task:
    """One task after another may read from the same process."""

    def __init__(self, run: str, ledger: EmptyLedger) -> None:
        self.wake, self.events = threading.Event(), Events()
        plan = SourcePlan(Reader, 5, 0.01, run)
        patience = Patience(SOON, clock=time.monotonic)
        self.inlet = PulledInlet(plan, "in", 0, Mark(0), ledger, self.wake, self.events, patience)

    def take(self, limit: int) -> tuple[Rows, pa.BinaryArray] | None:
        """Waits for a chunk; ``None`` when the source is exhausted."""
        deadline = time.monotonic() + 120
        while not (batches := self.inlet.take(limit)):
            if self.inlet.exhausted:
                return None
            assert time.monotonic() < deadline, "no more messages arrive"
            self.wake.wait(0.05)
            self.wake.clear()
        return Rows(frames.concat(batches)), self.inlet.take_offsets()

    def settle(self, rows: Rows, offsets: pa.BinaryArray, nacked: set[str]) -> None:
        again = {
            index: Redeliver(0, "again", 0, NackOptions(reason="again"))
            for index, row_id in enumerate(rows.column("id"))
            if row_id in nacked and self.inlet.redelivers_itself
        }
        self.inlet.acknowledge(source_acks(offsets, rows, again))

    def die(self) -> None:
        """Disappears without notice, like a killed worker."""
        self.inlet._source.hang_up()


@contextmanager
def served(source: type, messages: int) -> Iterator[tuple[Outside, str]]:
    """A process for the source, in a thread; ends with the context."""
    global OUTSIDE
    outside = OUTSIDE = Outside(messages)
    run = f"test-{os.getpid()}-{next(RUNS)}"
    path = companion._socket_path(f"{run}/in/0")
    code = pickle.dumps(source)
    order = Order("in", 0, code, None, [], str(path), LISTED, 0, 5, 7, 0.01)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = threading.Thread(target=SourceProcess(order).serve, args=[listener], daemon=True)
        process.start()
        try:
            yield outside, run
        finally:
            path.unlink()
    # A task that closes for good ends it.
    process.join(120)
    assert not process.is_alive()


def end(run: str) -> None:
    Task(run, EmptyLedger()).inlet.close(for_good=True)


@pytest.mark.guarantee("sources-are-acknowledged-last")
@sources
def test_every_message_is_delivered_once_and_acknowledged_once(source):
    with served(source, 100) as (outside, run):
        task, ids = Task(run, EmptyLedger()), []
        while taken := task.take(30):
            ids += taken[0].column("id")
            task.settle(*taken, set())
        task.inlet.close(for_good=True)
    assert sorted(ids) == sorted(f"in-0-{number}" for number in range(100))
    assert sorted(outside.acked, key=int) == [b"%d" % number for number in range(100)]


crashes = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["dies", "closes"])), min_size=0, max_size=4
)
outages = st.lists(st.sampled_from(["open", "read", "ack", "nack"]), max_size=4)
nacks = st.sets(st.integers(0, 29), max_size=4)


@pytest.mark.guarantee("sources-are-acknowledged-last")
@sources
@settings(max_examples=examples(15), deadline=None)
@given(ends=crashes, failing=outages, bad=nacks, size=st.integers(1, 12))
def test_every_message_is_settled_whatever_ends_and_whatever_is_down(
    source, ends, failing, bad, size
):
    with served(source, 30) as (outside, run):
        outside.outages += failing
        settled: set[bytes] = set()
        nacked = {f"in-0-{number}" for number in bad}
        for chunks, how in [*ends, (10_000, "closes")]:
            task = Task(run, EmptyLedger())
            while chunks > 0 and (taken := task.take(size)):
                chunks -= 1
                settled |= set(taken[1].to_pylist())
                assert set(outside.acked) <= settled, "acknowledged before it was settled"
                task.settle(*taken, nacked)
                nacked -= set(taken[0].column("id"))
            if how == "dies":
                task.die()
            task.inlet.close()
        end(run)
    assert {int(offset) for offset in outside.acked} == set(range(30))
    assert (outside.waiting, outside.in_flight) == ([], {})


@pytest.mark.guarantee("sources-are-acknowledged-last")
@sources
def test_messages_in_flight_of_a_dead_task_are_delivered_to_the_next_task(source):
    with served(source, 20) as (outside, run):
        first = Task(run, EmptyLedger())
        _, offsets = first.take(4)
        settled = first.take(1)
        first.settle(*settled, set())
        until(lambda: outside.acked == settled[1].to_pylist())
        first.die()
        second, again = Task(run, EmptyLedger()), []
        while taken := second.take(100):
            again += taken[1].to_pylist()
            second.settle(*taken, set())
        second.inlet.close(for_good=True)
    assert again[: len(offsets)] == offsets.to_pylist()  # in the order of delivery
    assert sorted(map(int, again)) == sorted({*range(20)} - {int(outside.acked[0])})
    assert outside.opened == 1


@sources
def test_no_more_messages_are_read_than_may_be_unsettled(source, monkeypatch):
    monkeypatch.setattr(reading, "WINDOW", 12)
    with served(source, 40) as (outside, run):
        task = Task(run, EmptyLedger())
        until(lambda: len(outside.in_flight) == 12)
        let_time_pass(0.05)
        assert len(outside.in_flight) == 12
        while taken := task.take(100):
            task.settle(*taken, set())
        task.inlet.close(for_good=True)
    assert len(outside.acked) == 40


def test_columns_are_read_in_larger_batches():
    with served(InColumns, 30) as (outside, run):
        task = Task(run, EmptyLedger())
        while taken := task.take(100):
            task.settle(*taken, set())
        task.inlet.close(for_good=True)
    assert outside.limits[0] == 5
    assert set(outside.limits[1:]) == {7}


def test_several_reads_of_a_fast_source_are_delivered_together(monkeypatch):
    monkeypatch.setattr(SourceReading, "gathering", 10.0)
    with served(Reader, 23) as (outside, run):
        task = Task(run, EmptyLedger())
        rows, offsets = task.take(100)
        assert outside.limits[:5] == [5] * 5
        assert len(rows) == 23
        task.settle(rows, offsets, set())
        assert task.take(1) is None
        task.inlet.close(for_good=True)


class Failing(Reader):
    """Returns messages once, and fails at the next read."""

    def read(self, limit, timeout):
        if self._outside.limits and self._outside.waiting:
            raise ValueError("no more of this")
        return super().read(limit, timeout)


def test_messages_are_delivered_before_the_failure_of_the_next_read_is_reported(monkeypatch):
    monkeypatch.setattr(SourceReading, "gathering", 10.0)
    with served(Failing, 9) as (_, run):
        task = Task(run, EmptyLedger())
        until(lambda: task.inlet._queue)
        batch, _ = task.inlet._queue[0]
        assert batch.column("value").to_pylist() == [b"v%d" % number for number in range(5)]
        until(lambda: task.inlet._failure)
        with pytest.raises(SourceError, match=r"read\(\) raised ValueError: no more of this"):
            task.take(100)
        task.inlet.close(for_good=True)


@pytest.mark.parametrize("source", [TakingBack, InColumns])
def test_a_source_is_nacked_with_exactly_the_options_of_the_nack(source):
    asked = [NackOptions(), NackOptions(5, 0, "later"), NackOptions(0), NackOptions(reason="ä")]
    with served(source, 4) as (outside, run):
        task = Task(run, EmptyLedger())
        while taken := task.take(100):
            rows, offsets = taken
            first = len(outside.nacked) == 0 and len(rows) == 4
            again = {n: Redeliver(0, None, 0, asked[n]) for n in range(4)} if first else {}
            task.inlet.acknowledge(source_acks(offsets, rows, again))
            until(lambda: len(outside.nacked) == 4)
        task.inlet.close(for_good=True)
    assert outside.nacked == [(b"%d" % n, options) for n, options in enumerate(asked)]
    assert sorted(outside.acked) == [b"0", b"1", b"2", b"3"]


def test_a_message_has_its_history_and_the_deliveries_that_its_source_counts():
    class Counting(Reader):
        def read(self, limit, timeout):
            offsets = self._outside.give(limit)
            deliveries = {b"1": 7, b"2": 8}
            return [SourceMessage(b"", o, deliveries=deliveries.get(o)) for o in offsets]

    ledger = EmptyLedger()
    ledger.entries = {f"in-0-{n}": History(3, 1, 2, None, "busy") for n in (0, 1)}
    globals()["Counting"] = Counting  # to be found by its name, as a user's class is
    Counting.__qualname__ = "Counting"
    with served(Counting, 4) as (_, run):
        task = Task(run, ledger)
        rows = []
        while taken := task.take(100):
            rows += taken[0].batch.to_pylist()
            task.settle(*taken, set())
        task.inlet.close(for_good=True)
    facts = [(row["deliveries"], row["failures"], row["nack_reason"]) for row in rows]
    assert facts == [(3, 1, "busy"), (7, 1, "busy"), (8, 0, None), (1, 0, None)]


@pytest.mark.parametrize("returned", ["texts", 5, [b"bytes"]], ids=repr)
def test_a_read_that_returns_neither_messages_nor_columns_fails_the_source(returned, monkeypatch):
    monkeypatch.setattr(Reader, "read", lambda self, limit, timeout: returned)
    with served(Reader, 1) as (_, run):
        task = Task(run, EmptyLedger())
        with pytest.raises(SourceError, match=r"read\(\) raised TypeError"):
            task.take(1)
        task.inlet.close(for_good=True)


class Strict(TakingBack):
    """Raises at the first message that it does not know, before it sees the others."""

    refusal: type[BaseException] = KeyError

    def _end(self, offsets):
        for offset in offsets:
            if offset not in self._outside.in_flight:
                raise self.refusal(offset)
            self._outside.in_flight.pop(offset)
            self._outside.acked.append(offset)


class Leaving(Strict):
    """Calls ``sys.exit`` instead."""

    refusal = SystemExit


class Cancelled(Strict):
    """Waits for its own task, which it has cancelled."""

    refusal = CancelledError


@pytest.mark.guarantee("sources-are-acknowledged-last")
@pytest.mark.parametrize("source", [Strict, Leaving, Cancelled])
def test_a_reopened_source_receives_all_outcomes_it_knows_whatever_it_raises_for_others(
    source,
):
    with served(source, 8) as (outside, run):
        first = Task(run, EmptyLedger())
        until(lambda: len(outside.in_flight) == 8)
        taken = first.take(100)
        outside.outages.append("ack")
        first.settle(*taken, {"in-0-3", "in-0-6"})  # the source is recreated, and notified again
        while taken := first.take(3):
            first.settle(*taken, set())
        first.inlet.close(for_good=True)
    assert (outside.waiting, outside.in_flight) == ([], {})
    assert sorted(set(outside.acked)) == [b"%d" % number for number in range(8)]


def test_an_outage_is_shown_and_the_source_continues_after_it():
    with served(Reader, 3) as (outside, run):
        outside.outages += ["read"] * 10_000
        task = Task(run, EmptyLedger())
        until(lambda: outside.opened >= 3 and task.inlet.waiting is not None)
        outside.outages.clear()
        while taken := task.take(100):
            task.settle(*taken, set())
        until(lambda: task.inlet.waiting is None)
        task.inlet.close(for_good=True)
    assert len(outside.acked) == 3


@pytest.mark.parametrize("is_link", [True, False])
def test_a_path_that_is_not_a_folder_of_this_user_is_rejected(tmp_path, monkeypatch, is_link):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"ebbflow-sources-{os.getuid()}"
    if is_link:
        (tmp_path / "ours").mkdir()
        folder.symlink_to(tmp_path / "ours")
    else:
        folder.write_text("a file")
    with pytest.raises(SourceError, match=f"{folder} is not a folder of this user"):
        companion._socket_path("run/in/0")
