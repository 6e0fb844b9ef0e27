"""Printing accepts any text, passes on whole lines, and cuts off what is too long."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.usercode.printing import LOG_LEVEL, LONGEST, Collected, Printed, cut, redirected


def printed(act):
    return [line.text for line in entries(act)]


def entries(act):
    lines = []
    with in_a_worker(), redirected(lines.append):
        act()
    return lines


@contextmanager
def in_a_worker():
    """The root logger as in a worker: without a handler, at its usual level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_text_is_passed_on_in_whole_lines():
    def act():
        print("one", "two")
        print("three", end="")
        print(" four")
        sys.stderr.write("five")

    assert printed(act) == ["one two", "three four", "five"]


def test_the_whole_lines_of_a_text_are_passed_on_together():
    assert printed(lambda: print("a\nb\nc")) == ["a\nb", "c"]


def test_a_long_text_is_cut_off_with_a_note():
    (line,) = printed(lambda: print("x" * (LONGEST + 5_000)))

    assert line == "x" * LONGEST + "… (5,000 more characters cut off)"


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_an_endless_line_takes_no_more_memory_than_the_limit():
    def act():
        for _ in range(100):
            sys.stdout.write("y" * LONGEST)
        print()

    assert printed(act) == ["y" * LONGEST + f"… ({99 * LONGEST:,} more characters cut off)"]


def test_bytes_can_be_written_and_invalid_text_is_escaped():
    def act():
        sys.stdout.buffer.write(b"caf\xc3\xa9 \xff\n")

    assert printed(act) == ["café \\xff"]


def test_standard_output_can_be_passed_to_another_program():
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


def test_a_log_record_keeps_its_level_logger_and_traceback():
    def act():
        shop = logging.getLogger("shop")
        shop.debug("too low")
        shop.info("%d orders", 3)
        try:
            raise KeyError("password")
        except KeyError:
            logging.exception("no login")

    info, error = entries(act)
    assert info == Printed("3 orders", "log", "info", "shop")
    assert (error.level, error.logger) == ("error", "root")
    assert error.text.splitlines()[0::4] == ["no login", "KeyError: 'password'"]


def test_the_environment_variable_sets_the_lowest_log_level(monkeypatch):
    monkeypatch.setenv(LOG_LEVEL, "error")

    assert printed(lambda: [logging.warning("w"), logging.error("e")]) == ["e"]


def test_code_that_sets_up_logging_itself_is_left_alone():
    def act():
        logging.basicConfig(format="mine %(message)s", force=True)
        logging.warning("careful")

    assert entries(act) == [Printed("mine careful", "error")]


def test_a_log_record_that_cannot_be_formatted_or_sent_does_no_harm():
    def refuse(printed):
        raise OSError("nobody there")

    assert "Logging error" in printed(lambda: logging.warning("%d", "x"))[0]
    logging.raiseExceptions = False
    try:
        with in_a_worker(), redirected(refuse):
            logging.warning("lost")
    finally:
        logging.raiseExceptions = True


def test_a_log_record_written_while_one_is_sent_does_not_loop():
    lines = []

    def log_again(printed):
        lines.append(printed.text)
        logging.warning("sending")

    with in_a_worker(), redirected(log_again):
        logging.warning("one")
    assert lines == ["one"]


@given(st.lists(st.text(st.characters(), max_size=20)))
def test_text_that_is_not_too_long_is_unchanged(texts):
    assert "\n".join(printed(lambda: [print(text) for text in texts])) == "\n".join(texts)


def test_collected_text_is_kept_up_to_a_limit_and_notes_what_is_missing():
    collected = Collected(10)
    for text in ("12345", "678", "too\nlong"):
        collected.add(Printed(text))
    collected.add(Printed("90", "log", "error"))

    assert collected.take() == [
        Printed("12345\n678"),
        Printed("90", "log", "error"),
        Printed("… (2 more lines cut off)"),
    ]
    assert collected.take() == []


def test_a_short_text_is_not_cut_off():
    assert cut("text") == "text"


def test_the_last_line_before_an_exception_is_passed_on():
    def fail():
        print("about to fail", end="")
        raise ZeroDivisionError

    lines = []
    with pytest.raises(ZeroDivisionError), redirected(lines.append):
        fail()
    assert lines == [Printed("about to fail")]
