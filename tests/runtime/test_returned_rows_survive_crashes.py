"""Rows returned to their source: whatever crashes where, none is lost and each is counted."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.crash_model import DECISIONS, Chances
from tests.runtime.source_model import (
    LIMIT,
    KeepingTask,
    Limited,
    Outside,
    PulledTask,
    SourceServer,
    run_source,
)
from tests.thorough import examples

kinds = pytest.mark.parametrize("kind", [PulledTask, KeepingTask])
crashes = st.lists(
    st.builds(Chances, random=st.randoms(use_true_random=False), crash_after=st.integers(0, 25)),
    max_size=6,
)
counts = st.integers(1, 8)
scripts = st.lists(st.sampled_from(DECISIONS), max_size=30)
limited = st.lists(st.sampled_from([f"m{number}" for number in range(8)]), max_size=3, unique=True)


def server_with(count: int) -> SourceServer:
    return SourceServer([], outside=Outside.of(count))


@pytest.mark.guarantee("sources-are-acknowledged-last")
@kinds
@settings(max_examples=examples(60))
@given(count=counts, script=scripts, bad=limited, given_crashes=crashes)
def test_every_message_ends_and_is_acknowledged(kind, count, script, bad, given_crashes):
    server = server_with(count)
    assert run_source(server, Limited(script, bad), given_crashes, kind) == set()
    assert (server.outside.ready, server.outside.in_flight) == ({}, set())


@pytest.mark.guarantee("sources-are-acknowledged-last")
@kinds
@settings(max_examples=examples(40))
@given(count=counts, script=scripts, bad=limited, given_crashes=crashes)
def test_an_acknowledged_message_has_ended_or_is_stored(kind, count, script, bad, given_crashes):
    server = server_with(count)

    def kept(ids: list[str]) -> None:
        assert set(ids) <= server.ended() | server.coming_back()

    server.on_ack = kept
    run_source(server, Limited(script, bad), given_crashes, kind)


@pytest.mark.guarantee("sources-are-acknowledged-last")
@kinds
@settings(max_examples=examples(60))
@given(count=counts, script=scripts, bad=limited, given_crashes=crashes)
def test_max_deliveries_is_exact_whatever_crashes(kind, count, script, bad, given_crashes):
    server = server_with(count)
    code = Limited(script, bad)
    run_source(server, code, given_crashes, kind)
    for one in {one for one, _ in code.calls if one in bad}:
        deliveries = [number for name, number in code.calls if name == one]
        assert max(deliveries) == LIMIT + 1
        assert {*deliveries} == set(range(1, LIMIT + 2)), "none is skipped"
        assert one in server.letters


@kinds
@settings(max_examples=examples(40))
@given(count=counts, bad=limited)
def test_without_a_crash_each_delivery_happens_once(kind, count, bad):
    server = server_with(count)
    code = Limited((), bad)
    run_source(server, code, [], kind)
    for name, group in groupby(sorted(code.calls), key=lambda call: call[0]):
        wanted = range(1, LIMIT + 2) if name in bad else [1]
        assert [number for _, number in group] == list(wanted)
    assert server.ledger == {}, "histories of ended messages are deleted"


@settings(max_examples=examples(60))
@given(count=counts, bad=limited, given_crashes=crashes)
def test_only_repeatedly_nacked_messages_are_in_the_ledger(count, bad, given_crashes):
    """After a crash, the entry of a message whose outcome was not reported may stay; no other."""
    server = server_with(count)
    run_source(server, Limited((), bad), given_crashes)
    assert set(server.ledger) <= set(bad)
