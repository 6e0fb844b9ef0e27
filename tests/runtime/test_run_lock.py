"""A pipeline has one run at a time, whoever starts it and wherever."""

from __future__ import annotations

import os

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.link import Link
from ebbflow.nats.locate import open_link
from ebbflow.runtime.run_setup import hold_run_lock
from ebbflow.streams.names import Names


def test_a_second_run_is_refused_and_told_where_the_first_is(link, names):
    with (
        open_link(link.server) as other,
        hold_run_lock(link, names),
        pytest.raises(SetupError, match=rf"is running already: process {os.getpid()} on "),
        hold_run_lock(other, names),
    ):
        pass


def test_another_pipeline_is_in_nobodys_way(link, names):
    with hold_run_lock(link, names), hold_run_lock(link, Names(f"{names.pipeline}-b")):
        pass


def test_a_run_that_has_ended_or_was_cut_off_is_not_in_the_way(link, names):
    with hold_run_lock(link, names):
        pass
    other = Link(link.server)
    hold_run_lock(other, names).__enter__()
    other.close()
    with hold_run_lock(link, names):
        pass


def test_a_run_that_failed_answers_nobody_any_more(link, names):
    with pytest.raises(ZeroDivisionError), hold_run_lock(link, names):
        raise ZeroDivisionError
    with hold_run_lock(link, names):
        pass
