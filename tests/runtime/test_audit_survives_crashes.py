"""Whatever crashes where: every recorded delivery has exactly one audit row, and no other has one.

The counts of a position change with the record that a chunk is done, so they are exact. Audit rows
that are chosen by the same record have to add up to them, one by one.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow.accounts.audit import AuditObserver
from ebbflow.domain.outcome import Counts
from ebbflow.streams import audit_rows
from ebbflow.streams.audit_rows import AuditFrame, PlacedRows, choose, read_audit, to_table
from tests.runtime.crash_model import DECISIONS, Chances, UserCode
from tests.runtime.crash_run import ModelTask, OrderedTask, StreamTask, inlet_of, run_to_the_end
from tests.runtime.memory_server import Server
from tests.runtime.test_settlement_survives_crashes import OneChunk
from tests.runtime.test_stream_maps_survive_crashes import Yielding, endings
from tests.runtime.test_trails_survive_crashes import crashes, inlets, scripts
from tests.thorough import examples

V = ("v", 0)


class AuditedTask(ModelTask):
    """A task of a pipeline with an audit table."""

    observers = (AuditObserver(),)


class AuditedOrderedTask(OrderedTask):
    """The same for an ordered vertex."""

    observers = (AuditObserver(),)


class AuditedStreamTask(StreamTask):
    """The same for a stream map."""

    observers = (AuditObserver(),)


Row = tuple[str, str, int]


@dataclass
class Table:
    """A writer of the table: it continues from its record, and may crash before writing it."""

    written: int = 0
    files: dict[int, list[Row]] = field(default_factory=dict)
    begun: tuple[int, int] | None = None

    def write(self, server: Server, crash: str | None = None) -> None:
        """Writes the chunks that are recorded as done, perhaps only up to a crash."""
        batch, end = self.begun or (len(self.files), server.position.chunks)
        self.begun = (batch, end)
        if crash == "begun":
            return
        self.files[batch] = rows_of(server, self.written, end)
        if crash == "written":
            return
        self.written, self.begun = end, None

    @property
    def rows(self) -> list[Row]:
        """Everything in the table."""
        return [row for rows in self.files.values() for row in rows]


def rows_of(server: Server, after: int = 0, end: int | None = None) -> list[Row]:
    """The audit rows of the chunks that count."""
    done = server.position.chunks if end is None else end
    chosen = choose([frame for frame, _ in server.audit], {V: after}, {V: done})
    payloads = {frame.seq: payload for frame, payload in server.audit}
    pieces = [PlacedRows(*V, read_audit(payloads[frame.seq])) for frame in chosen]
    table = to_table(pieces, "p", "batch").to_pylist()
    return [(row["id"], row["outcome"], row["deliveries"]) for row in table]


def counted(rows: list[Row]) -> Counts:
    """The rows as a position counts them, without ``written``."""
    ends = Counter(outcome for _, outcome, _ in rows)
    return Counts(
        read=len(rows),
        done=ends["done"] + ends["served"] + ends["on_success"],
        redelivered=ends["redelivered"],
        dead_lettered=ends["dead_lettered"],
        dropped=ends["dropped"],
        fallback=ends["fallback"],
        served=ends["served"],
        on_success=ends["on_success"],
    )


def recorded(server: Server) -> Counts:
    return replace(server.position.counts, written=0)


@pytest.mark.guarantee("every-delivery-has-one-audit-row")
@pytest.mark.parametrize("kind", [AuditedTask, AuditedOrderedTask])
@settings(max_examples=examples(30))
@given(
    sizes=inlets,
    script=scripts,
    given_crashes=crashes,
    chance=st.none() | st.randoms(),
    looks=st.lists(st.sampled_from([None, None, "begun", "written"]), max_size=6),
)
def test_the_audit_table_adds_up_to_the_counts_whatever_crashes_when(
    kind, sizes, script, given_crashes, chance, looks
):
    server, table = Server(inlet_of(*sizes), chance), Table()
    coming = iter(looks)

    def look(settlement: object) -> None:
        if (crash := next(coming, "none left")) != "none left":
            table.write(server, crash)
            assert len(set(table.files)) == len(table.files)

    lost = run_to_the_end(server, UserCode(script), given_crashes, on_settled=look, kind=kind)
    assert lost == set()
    table.write(server)
    table.write(server)
    assert sorted(table.rows) == sorted(rows_of(server))
    assert counted(table.rows) == recorded(server)


@settings(max_examples=examples(15))
@given(inlets, endings, crashes)
def test_the_audit_table_of_a_stream_map_adds_up_to_the_counts(sizes, script, given_crashes):
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, Yielding(server, script), given_crashes, kind=AuditedStreamTask)
    assert counted(rows_of(server)) == recorded(server)


@settings(max_examples=examples(20))
@given(inlets, st.sampled_from(["forward", "two", "serve", "drop", "dead", "fall back"]), crashes)
def test_each_message_ends_once_if_code_always_decides_the_same(sizes, decision, given_crashes):
    server = Server(inlet_of(*sizes))
    run_to_the_end(server, UserCode([decision] * 1_000), given_crashes, kind=AuditedTask)
    assert sorted(row[0] for row in rows_of(server)) == sorted(f"m{n}" for n in range(sum(sizes)))


def test_audit_rows_of_chunks_that_were_never_recorded_are_not_in_the_table():
    """All runs of two rows with one crash after which code decides again."""
    kinds = ("two", "nack", "serve", "dead")
    for first, second, crash_after in product(kinds, kinds, range(1, 9)):
        server = Server(inlet_of(1, 1))
        crash = Chances(OneChunk(), crash_after, zombie=9)
        run_to_the_end(server, UserCode([first, second]), [crash], kind=AuditedTask)
        assert counted(rows_of(server)) == recorded(server), (first, second, crash_after)


def test_without_the_claim_the_rows_of_a_lost_task_would_count_as_well(monkeypatch):
    def choose_all(found: list[AuditFrame], after: dict, done: dict) -> list[AuditFrame]:
        return [f for f in found if after.get(V, 0) < f.stamp.number <= done[V]]

    monkeypatch.setattr(audit_rows, "choose", choose_all)
    monkeypatch.setitem(rows_of.__globals__, "choose", choose_all)
    wrong = []
    for crash_after in range(9):
        server = Server(inlet_of(1, 1))
        crash = Chances(OneChunk(), crash_after)
        run_to_the_end(server, UserCode(["serve", "dead"]), [crash], kind=AuditedTask)
        wrong.append(counted(rows_of(server)) != recorded(server))
    assert any(wrong)


def test_the_audit_table_has_rows_for_every_kind_of_outcome():
    server = Server(inlet_of(*[4] * 6))
    # After a break its whole chunk is decided again, so the scripted decisions have no rows.
    script = [decision for decision in DECISIONS if decision != "break"] * 2
    run_to_the_end(server, UserCode(script), [Chances(Random(3), 9)], kind=AuditedTask)
    outcomes = {outcome for _, outcome, _ in rows_of(server)}
    assert outcomes == {"done", "dropped", "redelivered", "fallback", "served", "dead_lettered"}
