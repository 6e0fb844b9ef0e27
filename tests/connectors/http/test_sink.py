"""The HTTP sink: the answer of the server decides the outcome of each message."""

from __future__ import annotations

import json
import ssl
import threading
import time
from datetime import UTC, datetime
from functools import partial

import pytest
import trustme

from ebbflow import Datum, Pipeline
from ebbflow.connectors import Generator, Http, HttpBatch
from ebbflow.connectors.http.http_client import ClientTls
from ebbflow.connectors.http.sink import BatchSettings, HttpSink, HttpSinkSettings, split_lines
from ebbflow.domain.message import Response, Status
from ebbflow.domain.secrets import Secret
from ebbflow.engine import frames
from ebbflow.engine.position import LINEAGE
from ebbflow.usercode.calling import Handler
from ebbflow.usercode.columns import COLUMNS
from tests.connectors.http.receiver import Receiver, Reply
from tests.waiting import let_time_pass

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def opened():
    """Make a sink as a worker does; it is closed when the test ends."""
    handlers = []

    def make(url, **settings):
        handlers.append(Handler(partial(HttpSink, HttpSinkSettings(url, **settings))))
        return partial(answered, handlers[-1])

    yield make
    for handler in handlers:
        handler.close()


def answered(handler, data):
    """The response for each message; a message without one has been written."""
    answers = handler.finish(handler.call(rows_of(data))) or {}
    assert answers.keys() <= set(range(len(data)))
    return [answers.get(row, Response.ok()) for row in range(len(data))]


def rows_of(data):
    names = ("id", "value", "keys", "event_time")
    columns = {name: [getattr(datum, name) for datum in data] for name in names}
    columns["headers"] = [list(datum.headers.items()) for datum in data]
    return frames.batch_of(columns, len(data)).select(COLUMNS)


def some(count, **fields):
    return [Datum(b"%d" % n, id=f"m{n}", **fields) for n in range(count)]


def statuses(responses):
    return [response.status for response in responses]


# --- one message per request --------------------------------------------------------------------


def test_a_message_is_one_request_with_the_headers_an_http_source_reads(
    receiver, opened, monkeypatch
):
    monkeypatch.setenv(LINEAGE, "l1")
    sink = opened(receiver.url, headers=(("X-Team", "blue"),))
    datum = Datum(b"\x00value", id="in-1/map", keys=["a", "b,c", "ünï"], event_time=TIME)

    (response,) = sink([datum])

    assert response.status is Status.OK
    (request,) = receiver.requests
    assert (request.method, request.body) == ("POST", b"\x00value")
    assert request.headers["x-numaflow-id"] == "l1/in-1/map"
    assert request.headers["x-numaflow-keys"] == "a,b%2Cc,%C3%BCn%C3%AF"
    assert request.headers["x-numaflow-event-time"] == "1767323045678"
    assert request.headers["content-type"] == "application/octet-stream"
    assert request.headers["x-team"] == "blue"


def test_requests_run_concurrently_on_connections_that_are_reused(receiver, opened):
    together = threading.Barrier(20)

    def answer_together(request):
        together.wait(120)
        return receiver.take(request)

    receiver.answer = answer_together
    sink = opened(receiver.url, concurrency=20, timeout=60.0)
    for _ in range(2):
        assert set(statuses(sink(some(60)))) == {Status.OK}

    assert len({request.connection for request in receiver.requests}) <= 20


@pytest.mark.guarantee("http-each-message-has-its-answer")
def test_each_message_gets_the_outcome_of_its_own_answer(receiver, opened):
    replies = {
        b"0": Reply(201),
        b"1": Reply(429, b"busy", (("Retry-After", "3"),)),
        b"2": Reply(503, b"", (("Retry-After", "1"),)),
        b"3": Reply(503, b"no time given"),
        b"4": Reply(422, b"no such\nproduct"),
        b"5": Reply(302, b"", (("Location", "http://127.0.0.1:1/"),)),
    }
    receiver.answer = lambda request: replies[request.body]

    ok, busy, closed, broken, wrong, moved = opened(receiver.url)(some(6))

    assert ok.status is Status.OK
    assert (busy.nack_options.delay, busy.nack_options.reason) == (3_000, "HTTP 429: busy")
    assert (closed.nack_options.delay, closed.nack_options.reason) == (1_000, "HTTP 503")
    assert broken.error == "HTTP 503: no time given"
    assert wrong.error == "HTTP 422: no such product"
    assert moved.error == "HTTP 302"
    assert len(receiver.requests) == 6


# --- no answer ----------------------------------------------------------------------------------


def test_an_unreachable_server_counts_as_unavailable(opened):
    with Receiver() as gone:
        pass
    (response,) = opened(gone.url)(some(1))

    assert response.status is Status.UNAVAILABLE
    assert response.error.startswith(f"{gone.url}: no answer: Cannot connect to host 127.0.0.1")


def test_a_request_that_times_out_counts_as_unanswered(receiver, opened):
    given_up = threading.Event()
    receiver.answer = lambda request: given_up.wait(120) and Reply()
    (response,) = opened(receiver.url, timeout=0.1)(some(1))
    given_up.set()

    assert response.error == f"{receiver.url}: no answer within 0.1 s"


def test_waiting_for_a_free_connection_does_not_count_as_waiting_for_an_answer(receiver, opened):
    receiver.answer = lambda request: time.sleep(0.2) or Reply()
    responses = opened(receiver.url, timeout=1.0, concurrency=1)(some(8))

    assert set(statuses(responses)) == {Status.OK}


def test_a_connection_closed_between_calls_causes_no_failure(receiver, opened):
    sink = opened(receiver.url)
    receiver.hangs_up = True
    for _ in range(5):
        assert set(statuses(sink(some(20)))) == {Status.OK}
        let_time_pass(0.05)  # the server closes between the calls

    assert len(receiver.taken) == len(receiver.requests) == 100


def test_a_request_cut_off_on_a_new_connection_is_left_to_the_retry_strategy(receiver, opened):
    receiver.answer = lambda request: None
    (response,) = opened(receiver.url)(some(1))
    assert response.error == f"{receiver.url}: no answer: Server disconnected"
    assert len(receiver.requests) == 1, "the server may have seen the request"


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.guarantee("http-each-message-has-its-answer")
@pytest.mark.parametrize("form", ["ndjson", "json"])
def test_a_batch_carries_every_field_and_has_an_outcome_for_each_message(receiver, opened, form):
    receiver.refuse([b"1"])
    sink = opened(receiver.url, batch=BatchSettings(form))
    data = [
        Datum("wäre".encode(), id="a", keys=["k"], headers={"h": "v"}, event_time=TIME),
        Datum(b"\xff\x00", id="b", event_time=TIME),
        Datum(b"1", id="c"),
    ]

    assert statuses(sink(data)) == [Status.OK, Status.OK, Status.FAILURE]
    (request,) = receiver.requests
    assert (
        request.headers["content-type"]
        == {
            "ndjson": "application/x-ndjson",
            "json": "application/json",
        }[form]
    )
    at = {"eventTime": 1_767_323_045_678}
    assert [json.loads(message.body) for message in receiver.taken] == [
        {"id": "a", "value": "wäre", "keys": ["k"], "headers": {"h": "v"}} | at,
        {"id": "b", "valueBase64": "/wA=", "keys": [], "headers": {}} | at,
    ]


def test_a_batch_is_split_into_parts_within_its_limits(receiver, opened):
    def sizes(**limits):
        return [len(part) for part in split_lines([b"x" * 10] * 10, BatchSettings(**limits))]

    assert sizes(size=4, max_bytes=1_000) == [4, 4, 2]
    assert sizes(size=100, max_bytes=25) == [2, 2, 2, 2, 2]
    assert sizes(size=9, max_bytes=1) == [1] * 10
    assert [*split_lines([], BatchSettings())] == []
    sink = opened(receiver.url, batch=BatchSettings(size=4))
    assert set(statuses(sink(some(10)))) == {Status.OK}
    assert len(receiver.requests) == 3


@pytest.mark.guarantee("http-each-message-has-its-answer")
def test_each_part_of_a_call_has_its_own_outcomes(receiver, opened):
    receiver.refuse([b"3", b"9"])
    sink = opened(receiver.url, batch=BatchSettings(size=4))

    failed = [row for row, status in enumerate(statuses(sink(some(10)))) if status != Status.OK]

    assert failed == [3, 9]


def test_an_overlong_answer_is_not_read_to_its_end(receiver, opened):
    receiver.answer = lambda request: Reply(200, b" " * 5_000_000)
    sink = opened(receiver.url, batch=BatchSettings())

    assert [r.error for r in sink(some(1))] == [
        "HTTP 200, but the answer could not be read completely"
    ]
    assert set(statuses(opened(receiver.url)(some(1)))) == {Status.OK}


# --- logins and TLS -----------------------------------------------------------------------------


def test_a_login_is_sent_with_each_request_and_never_shown(receiver, opened):
    opened(receiver.url, token=Secret("open sesame"))(some(1))
    opened(receiver.url, login=(Secret("me"), Secret("pass")))(some(1))

    with_token, with_password = receiver.requests
    assert with_token.headers["authorization"] == "Bearer open sesame"
    assert with_password.headers["authorization"] == "Basic bWU6cGFzcw=="
    settings = HttpSinkSettings(
        "http://x", token=Secret("sesame"), login=(Secret("u"), Secret("p"))
    )
    assert "sesame" not in repr(settings)


def test_only_a_trusted_server_receives_requests(receiver, opened):
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
    url = receiver.url.replace("http://", "https://")
    ca = {
        name: issuer.cert_pem.bytes().decode()
        for name, issuer in {"right": authority, "wrong": stranger}.items()
    }

    (trusted,) = opened(url, tls=ClientTls(ca["right"]))(some(1))
    (refused,) = opened(url, tls=ClientTls(ca["wrong"]))(some(1))

    assert trusted.status is Status.OK
    assert "certificate verify failed" in refused.error
    assert len(receiver.requests) == 1


# --- in a pipeline ------------------------------------------------------------------------------


@pytest.mark.guarantee("http-each-message-has-its-answer")
@pytest.mark.slow
def test_a_message_waits_as_long_as_the_server_asks_for(run, receiver):
    times = []

    def busy_at_first(request):
        times.append(time.monotonic())
        return Reply(429, b"", (("Retry-After", "1"),)) if len(times) == 1 else Reply()

    receiver.answer = busy_at_first
    pipeline = Pipeline("test").source("in", Generator(messages=1))
    summary = run(pipeline.sink("out", Http(url=receiver.url)))

    first, second = times
    assert second - first >= 1
    assert (summary.vertices["out"].redelivered, summary.vertices["out"].done) == (1, 1)


@pytest.mark.slow
def test_a_refused_message_becomes_a_dead_letter_with_its_error(run, receiver, server_letters):
    receiver.answer = lambda request: Reply(422, b"no such product")
    pipeline = Pipeline("test").source("in", Generator(messages=3))
    run(pipeline.sink("out", Http(url=receiver.url, batch=HttpBatch())))

    assert [letter.error for letter in server_letters("test")] == ["HTTP 422: no such product"] * 3
    assert len(receiver.requests) < 3
