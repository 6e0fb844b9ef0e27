"""What HTTP answers mean for messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.connectors.http import sink as answers
from ebbflow.connectors.http.http_client import LONGEST_WAIT, HttpAnswer, parse_retry_after
from ebbflow.connectors.http.sink import decide_response
from ebbflow.domain.message import Response, Status
from ebbflow.engine.verdict import Failure
from ebbflow.usercode.contract import record_rows
from tests.engine.sample_rows import some, verdict_on

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def decide_each(ids: Sequence[str], answer: HttpAnswer) -> list[Response]:
    """The response for each message; a message without one has been written."""
    responses = answers.decide_each(ids, answer)
    assert responses.keys() <= set(range(len(ids)))
    return [responses.get(row, Response.ok()) for row in range(len(ids))]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        ("0", 0.0),
        ("-3", 0.0),
        ("1.5", 1.5),
        ("99999999", LONGEST_WAIT),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("soon", None),
        ("nan", None),
        ("", None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(text, seconds):
    assert parse_retry_after(text, NOW) == seconds


@given(st.text())
def test_any_retry_after_text_gives_a_bounded_wait_or_none(text):
    seconds = parse_retry_after(text, NOW)
    assert seconds is None or 0 <= seconds <= LONGEST_WAIT


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (HttpAnswer(200), Status.OK, None),
        (HttpAnswer(204), Status.OK, None),
        (HttpAnswer(429, 2.0, b"slow\n down"), Status.NACK, "HTTP 429: slow down"),
        (HttpAnswer(503, 0.5), Status.NACK, "HTTP 503"),
        (HttpAnswer(429, None), Status.FAILURE, "HTTP 429"),
        (HttpAnswer(500, 2.0, b"oops"), Status.FAILURE, "HTTP 500: oops"),
        (HttpAnswer(400, None, b"x" * 300), Status.FAILURE, "HTTP 400: " + "x" * 200),
        (HttpAnswer(404, None, b"\xff\xfe"), Status.FAILURE, "HTTP 404: \ufffd\ufffd"),
        (HttpAnswer(307), Status.FAILURE, "HTTP 307"),
        (HttpAnswer(503), Status.UNAVAILABLE, "HTTP 503"),
        (HttpAnswer(502, 3.0, b"no route"), Status.UNAVAILABLE, "HTTP 502: no route"),
    ],
)
def test_the_http_status_decides_the_outcome(answer, status, text):
    response = decide_response(answer) or Response.ok()

    assert response.status is status
    if status is Status.NACK:
        assert response.nack_options.reason == text
        assert response.nack_options.delay == answer.wait * 1000
    else:
        assert response.error == text


def test_in_a_batch_each_message_has_its_own_status():
    entries = [
        {"id": "c", "status": 503, "retry_after": 1.5, "error": "busy"},
        {"id": "a", "status": 201},
        {"id": "b", "status": 422, "error": "no such product"},
        {"id": "d", "status": 503},
        {"id": "unknown", "status": 200},
    ]
    answer = HttpAnswer(200, None, json.dumps(entries).encode())

    a, b, c, d, e = decide_each(["a", "b", "c", "d", "e"], answer)

    assert a.status is Status.OK
    assert b.error == "HTTP 422: no such product"
    assert (c.nack_options.delay, c.nack_options.reason) == (1_500, "HTTP 503: busy")
    assert (d.status, d.error) == (Status.UNAVAILABLE, "HTTP 503")
    assert e.error == "the answer has no status for this message"


@pytest.mark.parametrize("body", [b"", b"thanks", b'{"ok": true}', b"3"])
def test_a_batch_without_its_own_statuses_uses_the_status_of_the_answer(body):
    assert {r.status for r in decide_each(["a", "b"], HttpAnswer(202, None, body))} == {Status.OK}
    assert [r.error for r in decide_each(["a"], HttpAnswer(500, None, b"oops"))] == [
        "HTTP 500: oops"
    ]
    assert [r.nack_options.delay for r in decide_each(["a"], HttpAnswer(503, 3.0))] == [3_000]


def test_a_retry_strategy_can_count_an_outage_as_a_failure():
    verdict = verdict_on(some("a"))
    answers = {0: decide_response(HttpAnswer(504))}
    assert record_rows(verdict, 0, 1, answers, fail_unavailable=True) == []
    assert verdict.decisions.failed == {0: Failure("HTTP 504", 0)}


@pytest.mark.guarantee("http-each-message-has-its-answer")
def test_an_incomplete_answer_does_not_count_as_success():
    (response,) = decide_each(["a"], HttpAnswer(200, None, b'[{"id": "a"', whole=False))
    assert response.error == "HTTP 200, but the answer could not be read completely"


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from("abc")
FIELD = st.sampled_from(["id", "status", "retry_after", "error"])
ENTRY = SCALAR | st.dictionaries(FIELD, SCALAR | st.just([]) | st.just({}))


@given(st.lists(ENTRY), st.lists(st.sampled_from("abc"), unique=True))
def test_each_message_has_one_response_whatever_the_answer(entries, ids):
    responses = decide_each(ids, HttpAnswer(200, None, json.dumps(entries).encode()))

    assert len(responses) == len(ids)
    possible = (Status.OK, Status.FAILURE, Status.NACK, Status.UNAVAILABLE)
    assert all(response.status in possible for response in responses)
