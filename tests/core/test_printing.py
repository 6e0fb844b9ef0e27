"""Printing takes any text, hands on whole lines, and cuts what is too much."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.core.printing import LONGEST, Collected, cut, redirected


def printed(act):
    lines = []
    with redirected(lines.append):
        act()
    return lines


def test_text_comes_in_whole_lines():
    def act():
        print("one", "two")
        print("three", end="")
        print(" four")
        sys.stderr.write("five")

    assert printed(act) == ["one two", "three four", "five"]


def test_the_whole_lines_of_a_text_come_at_once():
    assert printed(lambda: print("a\nb\nc")) == ["a\nb", "c"]


def test_a_long_text_is_cut_and_says_so():
    (line,) = printed(lambda: print("x" * (LONGEST + 5_000)))

    assert line == "x" * LONGEST + "… (5,000 more characters cut off)"


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_a_line_that_does_not_end_takes_no_more_memory():
    def act():
        for _ in range(100):
            sys.stdout.write("y" * LONGEST)
        print()

    assert printed(act) == ["y" * LONGEST + f"… ({99 * LONGEST:,} more characters cut off)"]


def test_bytes_can_be_written_and_what_is_no_text_is_escaped():
    def act():
        sys.stdout.buffer.write(b"caf\xc3\xa9 \xff\n")

    assert printed(act) == ["café \\xff"]


def test_a_program_can_be_given_standard_output():
    def act():
        subprocess.run(["true"], stdout=sys.stdout, stderr=sys.stderr, check=True)

    assert printed(act) == []


def test_log_handlers_can_print():
    logger = logging.getLogger("test_printing")

    def act():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        logger.warning("careful")
        logger.removeHandler(handler)

    assert printed(act) == ["careful"]


@given(st.lists(st.text(st.characters(), max_size=20)))
def test_nothing_is_changed_that_is_not_too_long(texts):
    assert "\n".join(printed(lambda: [print(text) for text in texts])) == "\n".join(texts)


def test_collected_text_is_kept_up_to_a_bound_and_says_what_is_missing():
    collected = Collected(10)
    for text in ("12345", "678", "too\nlong", "90"):
        collected.add(text)

    assert collected.take() == "12345\n678\n90\n… (2 more lines cut off)"
    assert collected.take() == ""


def test_what_is_short_is_not_cut():
    assert cut("text") == "text"


def test_the_last_line_before_an_exception_is_handed_on():
    def fail():
        print("about to fail", end="")
        raise ZeroDivisionError

    lines = []
    with pytest.raises(ZeroDivisionError), redirected(lines.append):
        fail()
    assert lines == ["about to fail"]
