"""Waiting for a condition."""

import pytest

from tests.waiting import until


def test_what_the_condition_finds_is_returned():
    looks = iter([None, 0, [], "found", "later"])
    assert until(lambda: next(looks)) == "found"


def test_a_condition_that_never_holds_fails_the_test():
    with pytest.raises(AssertionError, match="did not happen in time"):
        until(lambda: False, seconds=0.02)
