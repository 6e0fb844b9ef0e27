"""Waiting for a condition."""

import subprocess
import sys

import pytest

from tests.waiting import until


def test_until_returns_the_value_of_the_condition():
    looks = iter([None, 0, [], "found", "later"])
    assert until(lambda: next(looks)) == "found"


def test_a_condition_that_never_holds_fails_the_test():
    with pytest.raises(AssertionError, match="did not happen in time"):
        until(lambda: False, seconds=0.02)


def test_the_end_of_the_watched_process_ends_the_wait_with_its_output():
    process = subprocess.Popen([sys.executable, "-c", "print('no')"], stdout=subprocess.PIPE)
    with process, pytest.raises(AssertionError, match="the process has ended: no"):
        until(lambda: False, process=process, output=lambda: process.stdout.read().decode())
