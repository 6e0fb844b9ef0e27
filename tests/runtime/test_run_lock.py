"""A pipeline has one run at a time, wherever it is started."""

from __future__ import annotations

import os

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link
from ebbflow.runtime.run_setup import hold_run_lock
from ebbflow.streams.names import Names


def test_a_second_run_is_rejected_and_the_error_says_where_the_first_runs(link, names):
    with (
        open_link(link.server) as other,
        hold_run_lock(link, names),
        pytest.raises(SetupError, match=rf"is running already: process {os.getpid()} on "),
        hold_run_lock(other, names),
    ):
        pass


def test_another_pipeline_can_run_at_the_same_time(link, names):
    with hold_run_lock(link, names), hold_run_lock(link, Names(f"{names.pipeline}-b")):
        pass


def test_a_run_that_has_ended_or_lost_its_connection_does_not_block_the_next(link, names):
    with hold_run_lock(link, names):
        pass
    other = Link(link.server)
    hold_run_lock(other, names).__enter__()
    other.close()
    with hold_run_lock(link, names):
        pass


def test_a_failed_run_does_not_block_the_next(link, names):
    with pytest.raises(ZeroDivisionError), hold_run_lock(link, names):
        raise ZeroDivisionError
    with hold_run_lock(link, names):
        pass
