"""The end of a run in words: what is left, where and why, and whether the counts add up."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from ebbflow.domain.durations import format_duration
from ebbflow.domain.outcome import Counts
from ebbflow.engine.outage import Waiting
from ebbflow.status.ending import clock_time, describe_end, list_leftovers
from ebbflow.status.model import Cause, EdgeStatus, Parked
from ebbflow.status.run_report import Summary
from tests.status.terminal.samples import NOON, error, pipeline, troubled, vertex


def end(status, ended: str = "drained", where: str = "") -> list[str]:
    return list(describe_end(status, ended, 118.74, where))


def test_a_run_that_did_not_drain_reports_what_is_left_where_and_why():
    until = f"{(NOON + timedelta(minutes=7)).astimezone():%H:%M:%S}"
    assert end(troubled(), "timeout", " --state elsewhere") == [
        "Not drained: 5 messages left. The next run continues with what is left.",
        f"  look   1 parked until {until}, in 7 min (waits for the moon)",
        "  slow   4 waiting; in one call for 1 min 3 s",
        "  opens  never opened: KeyError: 'password' (steps.py:6)",
        "timeout after 118.7 s",
        "1 dead letter; see why: ebbflow dlq list bugs --state elsewhere",
        "  look: AttributeError: 'Datum' object has no attribute 'val'",
    ]


def test_a_stopped_run_with_nothing_in_flight_says_so():
    calm = pipeline(vertex("in", 5), vertex("out", 5))
    assert end(calm, "stopped") == ["Nothing is left in flight.", "stopped after 118.7 s"]


def test_a_halted_vertex_is_reported_even_if_nothing_waits_for_it():
    halted = vertex("db", halted="12 of 20 messages became dead letters")
    lines = end(pipeline(vertex("in", 5), halted), "stopped")
    assert lines[:2] == [
        "Not all vertices work. The next run continues with what is left.",
        "  db  stopped taking messages until it is resumed: 12 of 20 messages became dead letters",
    ]


def drained(*counts: Counts, totals: tuple[Counts, ...] | None = None):
    names = ("in", "enrich", "out")
    return pipeline(
        *(
            vertex(name, counts=now, totals=ever)
            for name, now, ever in zip(names, counts, totals or counts, strict=True)
        )
    )


READ = Counts(read=50, written=50, done=50)


def test_a_vertex_whose_tags_match_no_edge_is_reported():
    names = ("in", "enrich", "out")
    edges = (EdgeStatus("in", "enrich"), EdgeStatus("enrich", "out", "any of big, huge"))
    dropped, none = Counts(read=50, dropped=50), Counts()
    some = replace(dropped, written=1, done=1, dropped=49)
    hint = (
        "enrich forwarded nothing. Tags that its edges accept: any of big, huge (out). "
        "Compare them with the tags that its code sets."
    )
    for counts, is_shown in ((dropped, True), (some, False), (none, False)):
        vertices = zip(names, (READ, counts, none), strict=True)
        status = pipeline(*(vertex(name, counts=now, totals=now) for name, now in vertices))
        assert (hint in end(replace(status, edges=edges))) is is_shown


def test_the_counts_of_a_drained_run_add_up_from_source_to_sink():
    enrich = Counts(read=52, written=48, done=48, redelivered=2, dead_lettered=1, dropped=1)
    out = Counts(read=48, done=47, fallback=1, written=1)
    first, *_ = end(drained(READ, enrich, out))
    assert first == "Adds up: 50 read by in; 48 done by out, 1 dropped, 1 dead letter."


def test_a_run_that_continues_with_earlier_messages_adds_up_with_the_earlier_runs():
    rest = Counts(read=20, written=20, done=20)
    first, *_ = end(drained(Counts(), rest, rest, totals=(READ, READ, Counts(read=50, done=50))))
    assert first == "Adds up, with earlier runs: 50 read by in; 50 done by out."


@pytest.mark.parametrize(
    "status",
    [
        drained(Counts(), Counts(), Counts()),
        drained(READ, READ, Counts(read=51, done=51)),
    ],
    ids=["nothing was read", "a dead letter was replayed"],
)
def test_sums_that_prove_nothing_are_not_shown(status):
    assert end(status) == ["drained after 118.7 s"]


def test_counts_that_do_not_add_up_are_reported():
    first, *_ = end(drained(READ, Counts(read=50, written=49, done=49), Counts(read=49, done=49)))
    assert first == "Counts do not match for enrich: messages read differ from messages finished."


def test_a_fork_adds_up_over_all_its_branches():
    both = drained(
        Counts(read=5, written=10, done=5), Counts(read=5, done=5), Counts(read=5, done=5)
    )
    forked = replace(both, edges=tuple(replace(e, frm="in") for e in both.edges))
    assert end(forked)[0] == "Adds up: 5 read by in; 5 done by enrich, 5 done by out."


def test_a_drain_waits_for_sources_too():
    source = vertex("in", 5, kind="source", source_pending=1_200)
    assert list_leftovers(pipeline(source)) == ()
    (left,) = list_leftovers(pipeline(source), draining=True)
    assert str(left) == "in: 1,200 at the source; the source is not exhausted"


def test_leftover_messages_are_explained_by_the_outage_that_their_vertex_waits_for():
    down = Waiting("orders-db", 12.0, 1.0)
    parked = Parked(30, None, (Cause("busy", 30),), exact=False)
    db = vertex("db", waiting=down, failure="orders-db", pending=3, parked=parked)
    (left,) = list_leftovers(pipeline(db))
    assert str(left) == (
        "db: 3 waiting; about 30 parked (busy); waiting for orders-db for 12 s; retrying in 1 s"
    )
    assert (left.messages, left.exact) == (33, False)


def test_a_failure_names_the_line_once():
    failing = vertex("m", failure="KeyError: 'a'", restarts=2, errors=(error("KeyError", "'a'"),))
    (left,) = list_leftovers(pipeline(failing))
    assert left.words == "restarting (restart 2): KeyError: 'a'"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (63, "1 min 3 s"), (660, "11 min"), (3_700, "1 h 1 min")],
)
def test_durations_have_at_most_two_units(seconds, words):
    assert format_duration(seconds) == words


def test_times_of_another_day_include_the_date():
    assert re.fullmatch(r"2026-11-1\d \d\d:\d\d:\d\d", clock_time(NOON + timedelta(days=2), NOON))


def test_a_summary_shows_how_the_run_ended():
    status = troubled()
    counts = {v.name: v.counts for v in status.vertices}
    summary = Summary("bugs", "timeout", 118.7, counts, counts, status=status)
    lines = repr(summary).splitlines()

    assert lines[:3] == [
        "Summary of bugs",
        "  in     read=6 done=6",
        "  look   read=11 written=4 done=4 redelivered=6 dead_lettered=1",
    ]
    assert lines[5:] == end(status, "timeout")
    assert [each.vertex for each in summary.left] == ["look", "slow", "opens"]
    assert summary.facts()["left"][0]["parked"] == 1
    assert "never opened: KeyError: &#x27;password&#x27;" in summary._repr_html_()
