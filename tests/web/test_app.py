"""The web package: which route takes a request, limits of requests, and replies to probes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ebbflow.web.app import (
    Admission,
    Body,
    HttpReply,
    RequestTasks,
    Route,
    Router,
    format_event,
    reply_always,
    reply_health,
)
from ebbflow.web.exchange import Exchange, HttpRequest, Refusal, refusal_of

GET, POST = (b"GET",), (b"POST",)


class Client:
    """A connection that keeps what is written on it."""

    def __init__(self) -> None:
        self.exchange = Exchange(self)
        self.written = b""

    def flush(self) -> None:
        self.written += self.exchange.ready
        self.exchange.ready = b""

    def has_room_for(self, exchange: Exchange) -> bool:
        return True

    def abort(self) -> None: ...

    @property
    def status(self) -> int:
        return int(self.written.split()[1])


def answering(text: str) -> Callable[..., Any]:
    return reply_always(HttpReply(text.encode()))


def router(*routes: Route, heads: bool = False) -> Router:
    made = Router(lambda path: Refusal(404, f"no {path.decode()}"), heads)
    made.add(routes)
    return made


def ask(router: Router, target: bytes, method: bytes = b"GET") -> tuple[str, dict[str, str]]:
    """Returns the body of the answer, or the reason of a refusal, and the named parts."""
    client, request = Client(), HttpRequest(method, target, [])
    try:
        router.open(request, client.exchange).finish()
    except Refusal as refusal:
        return f"{refusal.status} {refusal.reason}{refusal.headers.get('allow', '')}", {}
    return client.written.partition(b"\r\n\r\n")[2].decode(), {**request.names}


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [b"/a/b", b"/a/b?c=d", b"/%61/b", b"/a%2Fb"])
def test_an_exact_path_is_found_however_it_is_encoded(target):
    assert ask(router(Route(GET, "/a/b", answering("here"))), target) == ("here", {})


@pytest.mark.parametrize(
    ("target", "answer", "names"),
    [
        (b"/p/one", "one", {"name": "one"}),
        (b"/p/a%2Fb", "one", {"name": "a/b"}),
        (b"/p/one/files/a/b%20c", "rest", {"name": "one", "path": "a/b c"}),
        (b"/p/one/files/", "rest", {"name": "one", "path": ""}),
        (b"/p/one/two", "404 no /p/one/two", {}),
        (b"/p", "404 no /p", {}),
        (b"/p/%ff", "400 the path is not UTF-8", {}),
    ],
)
def test_templates_name_parts_of_a_path(target, answer, names):
    routes = router(
        Route(GET, "/p/{name}", answering("one")),
        Route(GET, "/p/{name}/files/{path...}", answering("rest")),
    )
    assert ask(routes, target) == (answer, names)


def test_the_first_matching_template_that_accepts_the_method_wins():
    routes = router(
        Route(POST, "/p/replay", answering("exact")),
        Route(POST, "/{any}/{other}", answering("posted")),
        Route(GET, "/p/{number}", answering("number")),
    )
    assert ask(routes, b"/p/replay", b"POST") == ("exact", {})
    assert ask(routes, b"/p/replay") == ("number", {"number": "replay"})
    assert ask(routes, b"/p/x", b"POST") == ("posted", {"any": "p", "other": "x"})
    assert ask(routes, b"/p/x", b"PUT") == ("405 Method Not AllowedPOST, GET", {})


def test_head_is_answered_like_get_only_by_a_router_that_allows_it():
    route = Route(GET, "/a", answering("here"))
    assert ask(router(route), b"/a", b"HEAD")[0] == "405 Method Not AllowedGET"
    assert ask(router(route, heads=True), b"/a", b"HEAD")[0] == "here"


def test_routes_can_be_added_and_removed():
    routes = router(Route(GET, "/a", answering("got")))
    routes.add([Route(POST, "/a", answering("posted"))])
    assert ("/a" in routes, ask(routes, b"/a"), ask(routes, b"/a", b"POST")) == (
        True,
        ("got", {}),
        ("posted", {}),
    )
    routes.remove(["/a"])
    assert ("/a" in routes, ask(routes, b"/a")) == (False, ("404 no /a", {}))


def test_a_route_describes_a_refused_method_in_its_own_format():
    route = Route(GET, "/a", answering("here"), lambda refusal: b"in other words")
    client = Client()
    with pytest.raises(Refusal) as raised:
        router(route).open(HttpRequest(b"PUT", b"/a", []), client.exchange)
    client.exchange.refuse(raised.value)
    assert client.written.endswith(b"\r\n\r\nin other words")


# --- requests -----------------------------------------------------------------------------------


def test_a_repeated_query_parameter_is_refused():
    assert HttpRequest(b"GET", b"/?a=1&b=", []).query == {"a": "1", "b": ""}
    with pytest.raises(Refusal, match="duplicate query parameter"):
        _ = HttpRequest(b"GET", b"/?a=1&a=1", []).query


def test_the_first_of_several_headers_with_the_same_name_is_used():
    request = HttpRequest(b"GET", b"/", [(b"a", b"1"), (b"a", b"2")])
    assert (request.header(b"a"), request.header(b"b")) == (b"1", b"")


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b'{"a": "\\ud800"}', b"\xff"])
def test_a_body_that_is_not_json_is_refused(body):
    request = HttpRequest(b"POST", b"/", [])
    request.body = body
    with pytest.raises(Refusal, match="the body is not JSON"):
        request.json()


# --- limits -------------------------------------------------------------------------------------


def test_requests_are_limited_in_number_in_total_bytes_and_in_bytes_each():
    admission = Admission(2, 10)
    first = admission.reserve(4, largest=8)
    body = Body(first)
    body.feed(b"12345678")
    for size, status in ((9, 413), (3, 429)):
        with pytest.raises(Refusal) as raised:
            admission.reserve(size, largest=8)
        assert raised.value.status == status
    with pytest.raises(Refusal, match="a body may have 8 bytes"):
        body.feed(b"9")
    admission.reserve(2, largest=8)
    with pytest.raises(Refusal, match="too many requests"):
        admission.reserve()
    body.abandon()
    admission.reserve(8, largest=8)


def run(work: Callable[[RequestTasks, Admission, Client], Coroutine[Any, Any, None]]) -> Client:
    async def main() -> Client:
        client = Client()
        await work(
            RequestTasks(lambda error: refusal_of(Exception(error))), Admission(1, 9), client
        )
        return client

    return asyncio.run(main())


def test_a_failing_request_gets_a_reply_and_releases_its_reservation():
    async def fail(body: bytes) -> None:
        raise ValueError(body)

    async def work(tasks: RequestTasks, admission: Admission, client: Client) -> None:
        taken = tasks.take_body(admission.reserve(0, largest=9), client.exchange, fail)
        taken.feed(b"abc")
        taken.finish()
        await asyncio.wait_for(admission.wait_until_empty(), 5)

    assert run(work).status == 500


def test_a_request_is_cancelled_when_its_client_disconnects():
    async def wait() -> None:
        await asyncio.Event().wait()

    async def work(tasks: RequestTasks, admission: Admission, client: Client) -> None:
        tasks.take(admission, client.exchange, wait).finish()
        client.exchange.disconnect()
        await asyncio.wait_for(admission.wait_until_empty(), 5)

    run(work)


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_well", "private", "may_know", "expected"),
    [
        (True, {}, True, (200, {"status": "s"})),
        (False, {"why": "w"}, True, (503, {"status": "s", "why": "w"})),
        (False, {"why": "w"}, False, (503, {"status": "s"})),
        (False, {"status": "w"}, True, (503, {"status": "w"})),
    ],
)
def test_a_health_reply_shows_details_to_permitted_clients_only(
    is_well, private, may_know, expected
):
    reply = reply_health(is_well, {"status": "s"}, private, lambda: may_know)
    assert (reply.status, json.loads(reply.body)) == expected


def test_an_event_has_a_line_for_each_line_of_its_data():
    assert format_event(b"a\nb") == b"data: a\ndata: b\n\n"
    assert format_event(b"{}", b"done", 7) == b"id: 7\nevent: done\ndata: {}\n\n"
