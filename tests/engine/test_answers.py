"""Answers: their keys, and their order among those to the same request."""

import random
import re
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.engine.answers import (
    Answer,
    answer_headers,
    answer_key,
    own_answers,
    path_order,
    read_answer,
    request_of,
)
from ebbflow.engine.frames import Rows
from ebbflow.engine.outputs import Outputs
from tests.engine.sample_rows import some

# --- keys ----------------------------------------------------------------------------------------

requests = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    "ab=/-_.", max_size=6
)
TOKEN = re.compile(r"[-/_=a-zA-Z0-9]+")


@given(requests)
def test_any_request_id_becomes_one_token_of_a_key(request_id):
    assert TOKEN.fullmatch(answer_key(request_id))


@given(st.lists(requests, unique=True, min_size=2, max_size=20))
def test_different_requests_have_different_keys(given_requests):
    assert len({answer_key(request_id) for request_id in given_requests}) == len(given_requests)


@given(requests)
def test_no_request_id_equals_the_key_of_another_request(request_id):
    """Not even one that looks like an encoded key."""
    key = answer_key(request_id)
    assert key == request_id or answer_key(key) != key


@pytest.mark.parametrize("request_id", ["r1", "4f1d-22", "a/b_c", "x" * 200])
def test_a_plain_request_id_is_its_own_key_so_that_users_can_find_it(request_id):
    assert answer_key(request_id) == request_id


@given(st.integers(150, 20_000), st.sampled_from(["x", ".", "ä"]))
def test_the_key_of_a_long_request_id_stays_short_enough_for_a_subject(length, letter):
    one, other = (answer_key(letter * length + end) for end in "ab")
    assert one != other
    assert max(len(one), len(other)) <= 201


@given(requests)
def test_the_request_id_can_be_read_from_its_key(request_id):
    assert request_of(answer_key(request_id)) == request_id


def test_only_a_hash_can_be_read_of_a_request_id_that_is_too_long_for_a_key():
    key = answer_key("." * 1_000)
    assert request_of(key) == key


# --- entries -------------------------------------------------------------------------------------


@given(requests, st.text(max_size=30))
def test_an_answer_is_read_as_it_was_written(request_id, message):
    key, headers = f"{answer_key(request_id)}.out.abc.2", answer_headers(message)
    answer = read_answer(key, headers, b"yes", 7)
    assert answer == Answer(answer_key(request_id), "out.abc.2", message, b"yes", 7)
    assert (answer.request, answer.vertex, answer.number) == (request_id, "out", 2)
    assert headers["Ebbflow-Id"].isascii()
    assert headers["Ebbflow-Id"].isprintable()


def test_an_entry_that_no_sink_has_written_is_not_an_answer():
    assert read_answer("r.out.abc.2", {"KV-Operation": "DEL"}, b"", 7) is None


def test_answers_of_a_user_defined_store_keep_the_order_of_the_store():
    answers = own_answers("r 1", [b"%d" % n for n in range(12)])
    assert sorted(answers, key=attrgetter("order")) == answers
    assert [a.payload for a in answers] == [b"%d" % n for n in range(12)]
    assert {(a.request, a.vertex) for a in answers} == {("r 1", "")}


# --- order ---------------------------------------------------------------------------------------


def answer(message, vertex="out", number=0):
    return Answer("r", f"{vertex}.abc.{number}", message, b"", 0)


IN_ORDER = [
    answer("in-2"),
    answer("in-10/split"),
    answer("in-10/split", "out", 1),
    answer("in-10/split", "out", 10),
    answer("in-10/split", "rest"),
    answer("in-10/split/twice"),
    answer("in-10/split/twice.1"),
    answer("in-10/split.2/twice"),
    answer("in-10/split.2/twice.9"),
    answer("in-10/split.2/twice.10"),
    answer("in-10/split.10/once"),
    answer("in-10/zip.1/twice"),
]


def test_answers_are_sorted_in_the_order_in_which_the_maps_yielded_them():
    mixed = IN_ORDER[:]
    random.Random(3).shuffle(mixed)
    assert sorted(mixed, key=attrgetter("order")) == IN_ORDER


@given(st.lists(st.integers(1, 15), min_size=1, max_size=3))
def test_answers_are_sorted_by_the_outputs_of_each_step(widths):
    """With the ids that the engine makes, not with ones made up here."""
    rows = some("in-3")
    for level, width in enumerate(widths):
        outputs = Outputs()
        for parent in range(len(rows)):
            for number in range(width):
                outputs.add_plain(parent, b"", index=number)
        rows = Rows(outputs.batch(rows, f"step{level}", None))
    yielded = rows.column("id")
    mixed = yielded[:]
    random.Random(len(yielded)).shuffle(mixed)
    assert sorted(mixed, key=path_order) == yielded


@given(st.lists(st.text("01a./-", max_size=12) | st.text(max_size=8)))
def test_all_ids_can_be_compared(messages):
    assert len(sorted(messages, key=path_order)) == len(messages)


def test_an_id_of_many_digits_can_be_compared():
    assert path_order("1" * 9_999 + "/map." + "2" * 9_999)
