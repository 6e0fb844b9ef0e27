"""Errors of user code in groups: which are similar, where they were raised, and their cost."""

from __future__ import annotations

import pickle

import pytest

from ebbflow.domain.errors import SparkError, StreamBroken
from ebbflow.engine import causes
from ebbflow.engine.causes import MOST_GROUPS, Raised, RaisedErrors, find_line_in, normalise


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_TRACES", {})


def fail(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


LINE = fail.__code__.co_firstlineno + 2


def test_similar_errors_are_one_group_with_the_last_text_and_message() -> None:
    errors = RaisedErrors()
    for number in range(3):
        errors.note(fail(f"no price for '{number}', row {number}"), f"in-{number}")
    (group,) = errors
    assert (group.kind, group.text, group.count) == ("ValueError", "no price for '2', row 2", 3)
    assert (group.where, group.message_id) == (f"test_raised.py:{LINE}", "in-2")
    assert (group.traceback or "").endswith("ValueError: no price for '0', row 0\n")


def test_other_kinds_and_other_texts_form_their_own_groups() -> None:
    errors = RaisedErrors()
    for error in (fail("a"), fail("b"), KeyError("a"), fail("a")):
        errors.note(error, None)
    assert [(group.kind, group.count) for group in errors] == [
        ("ValueError", 2), ("ValueError", 1), ("KeyError", 1),
    ]  # fmt: skip


def test_one_error_for_many_messages_is_counted_for_each_of_them() -> None:
    errors, error = RaisedErrors(), fail("all of them")
    for number in range(1_000):
        errors.note(error, f"in-{number}")
    (group,) = errors
    assert (group.count, group.message_id, errors.count) == (1_000, "in-999", 1_000)


def test_the_traceback_of_a_repeated_error_is_formatted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[BaseException] = []
    monkeypatch.setattr(causes, "format_traceback", lambda error: made.append(error) or "trace")
    for _ in range(5):
        RaisedErrors().note(fail("the same"), None)
    assert len(made) == 1


def test_the_number_of_groups_is_limited_but_all_errors_are_counted() -> None:
    errors = RaisedErrors()
    for number in range(MOST_GROUPS + 5):
        errors.add(Raised("E", chr(97 + number), None))
    assert (len(list(errors)), errors.count) == (MOST_GROUPS, MOST_GROUPS + 5)


def test_parts_of_a_chunk_add_up_and_can_be_pickled() -> None:
    part = RaisedErrors()
    part.note(fail("in a child process"), "in-1")
    whole = RaisedErrors()
    whole.merge(pickle.loads(pickle.dumps(part)))
    whole.merge(part)
    assert [group.count for group in whole] == [2]


def test_the_reported_line_is_in_user_code_and_not_in_a_library() -> None:
    trace = """Traceback (most recent call last):
  File "/app/steps.py", line 6, in enrich
    return json.loads(value)
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting value
"""
    assert find_line_in(trace) == "steps.py:6"
    assert find_line_in("Traceback of nothing") is None


def test_errors_without_a_python_traceback_have_no_line() -> None:
    group = Raised.of(SparkError("DIVIDE_BY_ZERO", "Division by zero."))
    assert (group.kind, group.text, group.where) == ("DIVIDE_BY_ZERO", "Division by zero.", None)


def test_an_error_of_a_function_in_its_own_process_has_the_functions_kind_and_text() -> None:
    trace = 'Traceback\n  File "/app/udf.py", line 9, in handler\n'
    error = StreamBroken("UDF_EXECUTION_ERROR(udf): ValueError: bad total", trace=trace)
    group = Raised.of(error)
    assert (group.kind, group.text, group.where) == ("ValueError", "bad total", "udf.py:9")


def test_kind_and_text_are_read_from_an_error_line() -> None:
    named, plain = Raised.of_line("KeyError: 'x'"), Raised.of_line("a worker died: why")
    assert (named.kind, named.text, named.where) == ("KeyError", "'x'", None)
    assert (plain.kind, plain.text) == ("Error", "a worker died: why")


def test_errors_that_differ_in_numbers_and_quoted_parts_are_similar() -> None:
    assert normalise("no customer 'x17' in row 12") == normalise("no customer 'y' in row 3")
