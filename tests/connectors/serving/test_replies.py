"""The endpoints of a serving source, on a book in memory: every answer that callers can get."""

from __future__ import annotations

import gc
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebbflow.connectors.listening.feed import Listener
from ebbflow.connectors.serving.source import ServingFeed
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.web.connection import HttpConnection
from ebbflow.web.server import Endpoint
from tests.connectors.http.posting import in_background
from tests.connectors.serving.asking import asking
from tests.waiting import until

UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def server(link, tmp_path_factory):
    with asking(link, tmp_path_factory.mktemp("server"), request_timeout=30.0) as server:
        yield server


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """All vertices that share a port count as added as soon as the first one is."""
    monkeypatch.setattr(Listener, "settling", 0.0)


# --- sync ---------------------------------------------------------------------------------------


def test_sync_returns_the_concatenated_results_and_their_lengths(server):
    answer = server.post("sync", b"a\nbcd\n\nef", X_Numaflow_Id="three")

    assert (answer.status, answer.body) == (200, b"abcdef")
    assert answer.headers["Numaflow-Array-Len"] == "4"
    assert answer.headers["Numaflow-Array-Index-Len"] == "1,3,0,2"
    assert answer.headers["X-Numaflow-Id"] == "three"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_server_makes_an_id_for_a_request_without_one(server):
    answer = server.post("sync", b"x")

    request = answer.headers["X-Numaflow-Id"]
    assert UUID_7.fullmatch(request)
    envelope = server.book.kept[request].envelope
    assert (envelope.id, envelope.has_own_id) == (request, False)
    assert dict(envelope.headers)["x-numaflow-id"] == request


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (b'{"a": 1}\n', "text/plain; charset=utf-8"),  # two results: the second is empty
        (b'{"a": 1}', "application/json"),
        (b"[1, 2]", "application/json"),
        (b"{1]", "text/plain; charset=utf-8"),
        (b"42", "text/plain; charset=utf-8"),
        ("grün".encode(), "text/plain; charset=utf-8"),
        (b"\xff\x00", "application/octet-stream"),
        (b"text\n\xff", "application/octet-stream"),
        (b"", "text/plain; charset=utf-8"),
    ],
)
def test_the_content_type_of_an_answer_depends_on_its_results(server, result, kind):
    assert server.post("sync", result).headers["Content-Type"] == kind


def test_a_request_completed_without_results_is_answered_with_204(server):
    answer = server.post("sync", b"drop")

    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["Numaflow-Array-Len"] == "0"
    assert answer.headers["Content-Length"] is None
    assert answer.headers["X-Numaflow-Id"]


def test_a_failed_request_is_answered_with_500_the_vertex_and_the_reason(server):
    answer = server.post("sync", b"fail", X_Numaflow_Id="failed")

    assert answer.status == 500
    body = answer.json
    assert body.pop("timestamp")
    assert body == {
        "message": "the request has failed at map: poison",
        "code": 500,
        "id": "failed",
        "vertex": "map",
        "reason": "poison",
        "error": "ValueError: no",
    }
    assert answer.headers["X-Numaflow-Id"] == "failed"


@pytest.mark.guarantee("a-request-that-was-taken-is-answered")
def test_a_caller_that_times_out_receives_the_id_to_fetch(server):
    answer = server.post("sync?timeout=0.05", b"wait", X_Numaflow_Id="late")

    assert (answer.status, answer.json["id"], answer.json["code"]) == (408, "late", 408)
    assert answer.json["message"] == (
        "no answer within 0.05 s; the request continues, fetch it by its id"
    )
    assert server.get("fetch?id=late").json == {"status": "in-progress"}
    server.on_loop(server.book.add, "late", b"at last")
    server.on_loop(server.book.end, "late")
    assert server.get("fetch?id=late").body == b"at last"


def test_no_caller_waits_longer_than_the_request_timeout(link, tmp_path):
    with asking(link, tmp_path, request_timeout=0.05) as server:
        assert server.post("sync?timeout=60", b"wait").status == 408


def test_a_repeated_id_is_answered_with_409(server):
    assert server.post("sync", b"x", X_Numaflow_Id="twice").status == 200
    answer = server.post("sync", b"x", X_Numaflow_Id="twice")

    assert (answer.status, answer.json["id"]) == (409, "twice")
    assert answer.json["message"] == "a request of the id twice was taken before"


def test_a_full_buffer_is_answered_with_429_and_retry_after(server):
    answer = server.post("sync", b"full")

    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")


def test_callers_over_the_in_flight_limit_get_429(link, tmp_path):
    with asking(link, tmp_path, in_flight=1) as server:
        thread, answers = in_background(server.post, "sync", b"wait")
        until(lambda: server.book.open_calls)
        refused = server.post("sync", b"x")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        (request,) = server.book.kept
        assert server.get(f"fetch?id={request}").status == 200
        server.on_loop(server.book.end, request)
        thread.join()
        assert answers[0].status == 204
        assert server.post("sync", b"x").status == 200


def test_a_bug_is_answered_with_500_and_reveals_no_details(server):
    answer = server.post("sync", b"bug")

    assert (answer.status, answer.json["message"]) == (500, "the server failed: RuntimeError")


def test_a_chunked_body_and_an_empty_body_are_accepted(server):
    pieces = server.ask("POST", "/v1/process/sync", iter([b"a", b"b"]))
    assert pieces.body == b"ab"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            b"POST /v1/process/sync HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 OK")


# --- async, fetch, status -----------------------------------------------------------------------


def test_async_answers_as_soon_as_the_request_is_stored(server):
    answer = server.post("async", b"wait", X_Numaflow_Id="later")

    assert answer.status == 200
    body = answer.json
    assert body.pop("timestamp")
    assert body == {"message": "Successfully published message", "code": 200, "id": "later"}
    pending = server.get("fetch?id=later")
    assert (pending.status, pending.json) == (200, {"status": "in-progress"})
    assert pending.headers["Numaflow-Array-Len"] is None
    server.on_loop(server.book.add, "later", b"1")
    server.on_loop(server.book.end, "later")
    answer = server.get("fetch?id=later")
    assert (answer.status, answer.body, answer.headers["Numaflow-Array-Len"]) == (200, b"1", "1")
    assert answer.headers["X-Numaflow-Id"] == "later"


def test_fetch_distinguishes_pending_unknown_failed_and_empty_requests(server):
    server.post("async", b"fail", X_Numaflow_Id="f")
    server.post("async", b"drop", X_Numaflow_Id="d")

    assert server.get("fetch?id=f").status == 500
    assert server.get("fetch?id=d").status == 204
    unknown = server.get("fetch?id=nobody")
    assert (unknown.status, unknown.json["id"]) == (404, "nobody")
    assert unknown.json["message"] == "no request with this id; it may have expired"
    assert server.get("status?id=nobody").status == 404
    assert server.get("sse?id=nobody").status == 404


def test_status_shows_the_steps_of_a_request(server):
    server.post("async", b"fail", X_Numaflow_Id="way")

    assert server.get("status?id=way").json == {
        "id": "way",
        "status": "failed",
        "accepted": "2026-01-01T12:00:00+00:00",
        "ended": "2026-01-01T12:00:00+00:00",
        "failure": {"vertex": "map", "reason": "poison", "error": "ValueError: no"},
        "answer_count": 0,
        "steps": [
            {
                "vertex": "map",
                "message": "way",
                "deliveries": 1,
                "outcome": "done",
                "at": "2026-01-01T12:00:00+00:00",
            }
        ],
        "steps_left_out": 0,
    }


def test_an_id_may_have_any_visible_character_but_a_slash(server):
    answer = server.post("async", b"x", X_Numaflow_Id="a:b.c?&%")

    assert answer.json["id"] == "a:b.c?&%"
    assert server.get("fetch?id=a%3Ab.c%3F%26%25").body == b"x"
    refused = server.post("async", b"x", X_Numaflow_Id="a/b")
    assert (refused.status, refused.json["message"]) == (
        400,
        "x-numaflow-id must not have a slash in it",
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("fetch", "name the request with ?id="),
        ("fetch?id=", "id must be 1 to 256 visible ASCII characters"),
        ("fetch?id=a%20b", "id must be 1 to 256 visible ASCII characters"),
        ("fetch?id=a&id=b", "duplicate query parameter"),
        ("status?ID=a", "name the request with ?id="),
        ("sse", "name the request with ?id="),
        ("sse?id=a&timeout=-1", "timeout must be a number of seconds, more than 0"),
    ],
)
def test_an_invalid_query_is_answered_with_400(server, path, message):
    answer = server.get(path)

    assert (answer.status, answer.json["message"]) == (400, message)


@pytest.mark.parametrize("timeout", ["soon", "0", "-1", "inf", "nan", ""])
def test_an_invalid_timeout_is_answered_with_400(server, timeout):
    assert server.post(f"sync?timeout={timeout}", b"x").status == 400


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X_Numaflow_Id": "a b"}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        ({"X_Numaflow_Id": "a" * 257}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        (
            {"X_Numaflow_Event_Time": "noon"},
            "x-numaflow-event-time must be milliseconds since 1970, a whole number",
        ),
    ],
)
def test_invalid_headers_are_answered_with_400(server, headers, message):
    answer = server.post("async", b"x", **headers)

    assert (answer.status, answer.json["message"], answer.json["code"]) == (400, message, 400)


def test_a_body_that_is_too_large_is_answered_with_413(server):
    assert server.post("sync", b"x" * 100_001).status == 413
    assert server.ask("POST", "/v1/process/sync", iter([b"x" * 60_000] * 2)).status == 413


def test_other_methods_get_405_and_other_paths_404(server):
    answer = server.get("sync")
    assert (answer.status, answer.headers["Allow"], answer.json["code"]) == (405, "POST", 405)
    assert server.post("fetch?id=a", b"").headers["Allow"] == "GET"
    assert server.get("other").status == 404
    assert server.ask("OPTIONS", "/v1/process/sync").status == 405


# --- events -------------------------------------------------------------------------------------


def read_events(response):
    """The events of a stream as (event, id, data), until it ends."""
    for block in response.read().decode().split("\n\n")[:-1]:
        fields = [line.partition(": ")[::2] for line in block.split("\n")]
        data = "\n".join(text for name, text in fields if name == "data")
        named = dict(fields)
        yield named.get("event", "message"), named.get("id"), data


def stream(server, method, path, body=None, **headers):
    connection = server.connect()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, f"/v1/process/{path}", body, named)
    return connection.getresponse()


def test_a_stream_has_an_event_for_each_answer_and_then_done(server):
    response = stream(server, "POST", "sse", b"a\nb", X_Numaflow_Id="events")

    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["X-Numaflow-Id"] == "events"
    *answers, (kind, _, data) = read_events(response)
    assert answers == [("message", "0", "a"), ("message", "1", "b")]
    assert (kind, json.loads(data)) == (
        "done",
        {"id": "events", "status": "completed", "answers": 2},
    )


def test_a_stream_sends_answers_while_the_request_is_open(server):
    response = stream(server, "POST", "sse", b"wait", X_Numaflow_Id="open")

    server.on_loop(server.book.add, "open", b"first\nsecond line")
    assert response.readline() == b"id: 0\n"
    assert [response.readline() for _ in range(3)] == [
        b"data: first\n",
        b"data: second line\n",
        b"\n",
    ]
    server.on_loop(server.book.add, "open", b"\xff")
    assert [response.readline() for _ in range(4)] == [
        b"id: 1\n",
        b"event: base64\n",
        b"data: /w==\n",
        b"\n",
    ]
    server.on_loop(server.book.add, "open", b"a\rb")
    assert b"event: base64\n" in [response.readline() for _ in range(4)]
    server.on_loop(server.book.end, "open")
    assert [kind for kind, _, _ in read_events(response)] == ["done"]


def test_a_client_that_reconnects_gets_the_remaining_answers(server):
    server.post("async", b"a\nb\nc", X_Numaflow_Id="resume")

    response = stream(server, "GET", "sse?id=resume", Last_Event_ID="0")
    kinds = [(kind, data) for kind, _, data in read_events(response)]
    assert kinds[:2] == [("message", "b"), ("message", "c")]
    assert kinds[2][0] == "done"
    assert json.loads(kinds[2][1])["answers"] == 3
    assert stream(server, "GET", "sse?id=resume", Last_Event_ID="x").status == 400


def test_the_stream_of_a_failed_request_ends_with_the_failure(server):
    response = stream(server, "POST", "sse", b"fail")

    ((kind, _, data),) = read_events(response)
    assert (kind, json.loads(data)["reason"]) == ("error", "poison")


def test_a_stream_may_have_a_timeout(server):
    response = stream(server, "POST", "sse?timeout=0.05", b"wait", X_Numaflow_Id="short")

    ((kind, _, data),) = read_events(response)
    assert (kind, json.loads(data)["code"], json.loads(data)["id"]) == ("error", 408, "short")


def test_a_get_with_a_body_is_a_request_as_in_numaflow(server):
    *answers, _ = read_events(stream(server, "GET", "sse", b"a", X_Numaflow_Id="by-get"))

    assert answers == [("message", "0", "a")]
    assert server.book.kept["by-get"].body == b"a"


def test_a_refused_stream_is_a_plain_answer(server):
    assert stream(server, "POST", "sse", b"full").status == 429


def test_http_1_0_clients_get_a_stream_without_chunks(server):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/process/sse HTTP/1.0\r\nContent-Length: 1\r\n\r\na")
        answer = client.makefile("rb").read()
    assert b"chunked" not in answer
    assert b"\r\n\r\nid: 0\ndata: a\n\nevent: done\n" in answer


def test_answers_to_pipelined_requests_follow_a_stream_in_order(server):
    def request(path, body, request_id):
        head = f"POST /v1/process/{path} HTTP/1.1\r\nHost: localhost\r\n"
        named = f"{head}X-Numaflow-Id: {request_id}\r\n"
        return f"{named}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request("sse", "wait", "p1") + request("sse", "a", "p2"))
        client.sendall(request("sync", "b", "p3"))
        until(lambda: "p3" in server.book.kept)
        server.on_loop(server.book.end, "p1")
        text = b""
        while not text.endswith(b"\r\n\r\nb"):
            text += client.recv(10_000)
    places = [text.index(f"X-Numaflow-Id: p{number}\r\n".encode()) for number in (1, 2, 3)]
    assert places == sorted(places)
    assert text.count(b"event: done") == 2


# --- clients that disconnect or do not read -----------------------------------------------------


@pytest.mark.parametrize("path", ["sync", "sse"])
def test_the_server_stops_waiting_when_a_client_disconnects(server, path):
    connection = server.connect()
    connection.request("POST", f"/v1/process/{path}", b"wait", {"X-Numaflow-Id": f"gone-{path}"})
    until(lambda: server.book.open_calls == 1)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()

    until(lambda: server.book.open_calls == 0)
    assert server.get(f"fetch?id=gone-{path}").json == {"status": "in-progress"}


def test_a_slow_reader_delays_only_its_own_stream_and_one_that_stops_is_disconnected(
    link, tmp_path, monkeypatch
):
    monkeypatch.setattr(HttpConnection, "patience", 0.3)
    with asking(link, tmp_path, read_timeout=0.5) as server:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(
            b"POST /v1/process/sse HTTP/1.1\r\nHost: localhost\r\nX-Numaflow-Id: slow\r\n"
            b"Content-Length: 4\r\n\r\nwait"
        )
        until(lambda: server.book.open_calls)
        held = 0
        for _ in range(200):
            server.on_loop(server.book.add, "slow", b"x" * 100_000)
            for connection in list(server.feed.listeners[0].server.connections):
                held = max(held, connection._transport.get_write_buffer_size())
        assert server.post("sync", b"y").body == b"y"
        assert 0 < held < 1_000_000
        until(lambda: not server.book.open_calls)
        client.close()


def test_closing_a_connection_does_not_wait_for_a_client_that_never_reads(
    link, tmp_path, monkeypatch
):
    monkeypatch.setattr(HttpConnection, "patience", 0.3)
    with asking(link, tmp_path, largest=20_000_000, read_timeout=5.0) as server:
        connections = server.feed.listeners[0].server.connections
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        head = b"POST /v1/process/sync HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        client.sendall(head + b"Content-Length: 10000000\r\n\r\n" + b"x" * 10_000_000)
        until(lambda: any(connection._transport.is_closing() for connection in connections))
        until(lambda: not connections)
        client.close()


# --- who may ask --------------------------------------------------------------------------------


PATHS = [
    ("POST", "/v1/process/sync"),
    ("POST", "/v1/process/async"),
    ("GET", "/v1/process/fetch?id=a"),
    ("GET", "/v1/process/status?id=a"),
    ("GET", "/v1/process/sse?id=a"),
    ("POST", "/v1/process/sse"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
]


@pytest.fixture(scope="module")
def guarded(link, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with asking(link, folder, token=Secret("open sesame")) as server:
        yield server


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_endpoint_except_health_needs_the_token(guarded, method, path):
    for login in ("", "Bearer", "Bearer wrong", "Basic open sesame"):
        answer = guarded.ask(method, path, b"x", Authorization=login)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.json["message"] == "the bearer token is missing or wrong"
    assert guarded.ask(method, path, b"x", Authorization="Bearer open sesame").status in (200, 404)


@pytest.mark.parametrize(
    ("path", "status"), [("/health", 200), ("/ready", 200), ("/livez", 204), ("/readyz", 204)]
)
def test_health_endpoints_need_no_token(guarded, path, status):
    answer = guarded.ask("GET", path)

    assert (answer.status, answer.body) == (status, b'{"status":"ok"}' if status == 200 else b"")


def test_the_token_is_not_a_header_of_the_message(guarded):
    answer = guarded.post("sync", b"x", Authorization="Bearer open sesame")

    envelope = guarded.book.kept[answer.headers["X-Numaflow-Id"]].envelope
    assert "authorization" not in dict(envelope.headers)


def test_a_source_without_a_token_cannot_listen_beyond_this_machine(link, tmp_path):
    everywhere = (Endpoint("0.0.0.0", 0),)
    with pytest.raises(SetupError) as raised, asking(link, tmp_path, endpoints=everywhere):
        pass
    assert str(raised.value) == (
        "The serving source in would take messages from anybody who can reach 0.0.0.0. Give it a "
        "token with auth: {token: {env: NAME}}, or leave out its host to listen on this machine "
        "only."
    )


def test_a_source_is_not_ready_until_the_run_handles_requests(link, tmp_path):
    ready = False
    with asking(link, tmp_path, is_ready=lambda: ready) as server:
        answer = server.ask("GET", "/ready")
        assert (answer.status, answer.json) == (503, {"reason": "the run is starting"})
        assert server.ask("GET", "/readyz").status == 503
        assert server.ask("GET", "/health").status == 200
        assert server.post("sync", b"x").status == 200
        ready = True
        assert server.ask("GET", "/ready").status == 200


@pytest.mark.parametrize("frozen", [True, False])
def test_objects_that_the_program_froze_before_stay_frozen(link, tmp_path, frozen):
    gc.unfreeze()
    if frozen:
        gc.freeze()
    try:
        with asking(link, tmp_path):
            assert gc.get_freeze_count() > 0
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.unfreeze()


def test_only_clients_with_the_token_see_the_reason_for_not_ready(link, tmp_path):
    with asking(link, tmp_path, is_ready=lambda: False, token=Secret("open sesame")) as server:
        assert server.ask("GET", "/ready").json == {"reason": "unavailable"}
        answer = server.ask("GET", "/ready", **TOKEN)
        assert (answer.status, answer.json) == (503, {"reason": "the run is starting"})


def test_the_id_header_is_configurable_and_replaces_the_default_one(link, tmp_path):
    with asking(link, tmp_path, id_header="X-Request-Id") as server:
        answer = server.post("sync", b"x", X_Request_Id="mine", X_Numaflow_Id="another's")
        assert answer.headers["X-Request-Id"] == "mine"
        assert answer.headers["X-Numaflow-Id"] is None
        headers = dict(server.book.kept["mine"].envelope.headers)
        assert headers["x-numaflow-id"] == "mine"


TOKEN = {"Authorization": "Bearer open sesame"}

# --- pages --------------------------------------------------------------------------------------


@pytest.mark.guarantee("foreign-pages-send-nothing")
def test_pages_of_other_origins_cannot_send_requests_without_a_token(server, guarded):
    refused = server.post("sync", b"x", Origin="https://page.example")
    assert refused.status == 403
    assert refused.json["message"] == (
        "pages of other sites may not send requests here; name their origin in cors, or give the "
        "source a token"
    )
    assert server.post("sync", b"x", Origin=server.url).status == 200
    rebound = server.post("sync", b"x", Host="evil.example", Origin="http://evil.example")
    assert rebound.status == 403
    assert rebound.json["message"].startswith("this server answers to names of this machine only;")
    assert server.ask("GET", "/v1/process/fetch?id=x", Host="evil.example").status == 403
    assert guarded.post("sync", b"x", Host="proxy.example", **TOKEN).status == 200
    answer = guarded.post("sync", b"x", Origin="https://page.example", **TOKEN)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, None)


def test_pages_of_origins_named_in_cors_may_send_requests(link, tmp_path):
    with asking(
        link, tmp_path, cors=("https://page.example",), token=Secret("open sesame")
    ) as server:
        origin = {"Origin": "https://page.example"}
        asked = server.ask("OPTIONS", "/v1/process/sync", **origin)
        assert asked.status == 204
        assert asked.headers["Access-Control-Allow-Origin"] == "https://page.example"
        assert asked.headers["Access-Control-Allow-Methods"] == "POST, OPTIONS"
        assert "X-Numaflow-Id" in asked.headers["Access-Control-Allow-Headers"]
        answer = server.post("sync", b"x", Authorization="Bearer open sesame", **origin)
        assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
        assert "Numaflow-Array-Len" in answer.headers["Access-Control-Expose-Headers"]
        assert server.post("sync", b"x", **origin).status == 401
        other = server.ask("OPTIONS", "/v1/process/sync", Origin="https://other.example")
        assert other.headers["Access-Control-Allow-Origin"] is None
    with asking(link, tmp_path, cors=("https://page.example",)) as server:
        assert server.post("sync", b"x", Sec_Fetch_Site="cross-site", **origin).status == 200
        assert server.ask("OPTIONS", "/v1/process/sync", **origin).status == 204
        other = server.ask("OPTIONS", "/v1/process/sync", Origin="https://other.example")
        assert other.status == 403


def test_the_docs_page_needs_no_other_file(server):
    page = server.ask("GET", "/docs")

    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    text = page.body.decode()
    assert "/v1/process/fetch" in text
    assert not re.search(r"src=|<link|https?://", text)


# --- concurrency and stops ----------------------------------------------------------------------


@pytest.mark.guarantee("an-id-is-taken-once")
def test_each_answer_matches_its_request_with_many_concurrent_clients(server):
    def ask(number):
        connection = server.connect()
        for step in range(10):
            text = f"{number}-{step}".encode()
            connection.request("POST", "/v1/process/sync", text)
            assert connection.getresponse().read() == text
        connection.close()

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(ask, range(64)))


def test_callers_still_waiting_at_a_stop_are_answered_with_503(link, tmp_path, monkeypatch):
    monkeypatch.setattr(ServingFeed, "grace", 0.1)
    with asking(link, tmp_path) as server:
        thread, answers = in_background(
            lambda: server.post("sync", b"wait", X_Numaflow_Id="waiting")
        )
        until(lambda: server.book.open_calls)
    thread.join()
    assert (answers[0].status, answers[0].json["id"]) == (503, "waiting")
    assert answers[0].json["message"] == "the run is stopping; fetch the results when it continues"
