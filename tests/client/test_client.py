"""Both clients against a real server: answers, every kind of error, and lost connections."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trustme

from ebbflow.client import (
    Answered,
    AnswerPending,
    AsyncClient,
    Client,
    RequestFailed,
    RequestFailure,
    RequestInDoubt,
    RequestRefused,
    RequestStep,
    UnknownRequest,
)
from ebbflow.domain.errors import SetupError
from tests.client.serving import BUSY, CUT_AFTER, CUT_BEFORE, STOPPING, ServingServer, serving

Connect = Callable[..., Any]


class Awaited:
    """An ``AsyncClient`` whose calls are awaited at once, so that one test serves both kinds."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *a, **o: self._runner.run(getattr(self._client, name)(*a, **o))

    def stream(self, *arguments: Any, **options: Any) -> list[bytes]:
        async def collect() -> list[bytes]:
            return [result async for result in self._client.stream(*arguments, **options)]

        return self._runner.run(collect())

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture
def server() -> Iterator[ServingServer]:
    with serving() as running:
        yield running


@pytest.fixture(params=[Client, Awaited], ids=["blocking", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes a client of either kind."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(server: ServingServer, connect: Connect) -> Any:
    return connect(server.url, timeout="60s")


@pytest.mark.parametrize(
    ("value", "sent", "kind"),
    [
        (b"\x00bytes", b"\x00bytes", "application/octet-stream"),
        ("größe", "größe".encode(), "text/plain; charset=utf-8"),
        ({"order": 7}, b'{"order": 7}', "application/json"),
        (0, b"0", "application/json"),
    ],
    ids=["bytes", "text", "json", "zero"],
)
def test_a_value_is_sent_with_its_content_type(
    server: ServingServer, client: Any, value: Any, sent: bytes, kind: str
) -> None:
    answered = client.ask(value, keys=["shop", "7"], headers={"x-trace": "abc"})
    assert answered.results == (sent,)
    headers = server.headers_received[0]
    assert (headers["content-type"], headers["x-numaflow-keys"]) == (kind, "shop,7")
    assert headers["x-trace"] == "abc"
    assert headers["x-numaflow-id"] == answered.id
    assert UUID(answered.id).version == 7


def test_results_are_separated_and_keep_their_order(client: Any) -> None:
    assert client.ask("words b  a", id="r-1") == Answered("r-1", (b"b", b"", b"a"))
    assert client.ask("drop").results == ()


def test_a_single_result_can_be_read_as_text_and_as_json() -> None:
    answered = Answered("r-1", (b'{"price": 3}',))
    assert (answered.text, answered.json()) == ('{"price": 3}', {"price": 3})
    with pytest.raises(ValueError, match=r"request r-2 has 2 results; see \.results"):
        _ = Answered("r-2", (b"", b"")).value


def test_a_failed_request_says_where_and_why(client: Any) -> None:
    with pytest.raises(RequestFailed) as failed:
        client.ask("fail", id="r-1")
    assert str(failed.value) == "request r-1 failed in price: failed: no such order"
    assert (failed.value.id, failed.value.vertex) == ("r-1", "price")
    with pytest.raises(RequestFailed):
        client.fetch("r-1")


def test_a_client_waits_for_a_slow_request_beyond_the_timeout_of_the_server(
    server: ServingServer, client: Any
) -> None:
    server.open.clear()
    with pytest.raises(AnswerPending) as pending:
        client.ask("late", id="r-1", timeout="1s")
    assert str(pending.value) == "request r-1 has no answer yet; fetch it later by this id"
    assert client.fetch("r-1") is None
    server.open.set()
    assert client.fetch("r-1") == client.wait("r-1") == Answered("r-1", (b"late",))
    assert server.taken == {"r-1": 1}


@pytest.mark.guarantee("a-client-asks-once")
def test_a_request_is_found_by_its_id_after_its_connection_was_lost(
    server: ServingServer, client: Any
) -> None:
    server.faults = [CUT_AFTER]
    assert client.ask("once").results == (b"once",)
    assert list(server.taken.values()) == [1]
    assert server.calls == ["POST sync", "GET status", "GET fetch"]


@pytest.mark.guarantee("a-client-asks-once")
def test_a_request_to_a_stopping_server_may_have_been_accepted(
    server: ServingServer, client: Any
) -> None:
    server.faults = [STOPPING]
    assert client.ask("once").results == (b"once",)
    assert list(server.taken.values()) == [1]
    server.faults = [STOPPING, *["gone"] * 100]
    with pytest.raises(RequestInDoubt, match="replied with 503: the run is stopping; fetch it by"):
        client.ask("twice", timeout="1s")


@pytest.mark.guarantee("a-client-asks-once")
def test_a_request_that_never_arrived_is_sent_again_with_the_same_id(
    server: ServingServer, client: Any
) -> None:
    server.faults = [CUT_BEFORE, "and the status query as well"]
    assert client.ask("once").results == (b"once",)
    assert list(server.taken.values()) == [1]
    assert server.calls == ["POST sync", "GET status", "GET status", "POST sync"]


@pytest.mark.guarantee("a-client-asks-once")
def test_a_clients_own_copy_is_not_a_duplicate(server: ServingServer, client: Any) -> None:
    """The status query came before the server had accepted the request, the second post after."""
    server.faults = [CUT_BEFORE]
    look = server.RequestHandlerClass.do_GET

    def take_late(handler: Any) -> None:
        server.RequestHandlerClass.do_GET = look
        handler._record()
        handler._say(404, {"message": "no such request", "code": 404})
        server.bodies["r-1"] = b"once"

    server.RequestHandlerClass.do_GET = take_late
    try:
        assert client.ask("once", id="r-1").results == (b"once",)
    finally:
        server.RequestHandlerClass.do_GET = look
    assert server.calls[:3] == ["POST sync", "GET status", "POST sync"]


@pytest.mark.guarantee("a-client-asks-once")
def test_a_submitted_request_is_accepted_once_too(server: ServingServer, client: Any) -> None:
    server.faults = [CUT_AFTER]
    id = client.submit("once")
    assert server.taken == {id: 1}
    server.faults = [CUT_BEFORE]
    assert client.submit("again", id="r-2") == "r-2"
    assert server.taken["r-2"] == 1


@pytest.mark.guarantee("a-client-asks-once")
def test_a_connection_that_stays_lost_leaves_the_request_in_doubt(
    server: ServingServer, client: Any
) -> None:
    server.faults = [CUT_AFTER, *["gone"] * 100]
    with pytest.raises(RequestInDoubt) as in_doubt:
        client.ask("once", id="r-1", timeout="1s")
    assert str(in_doubt.value).startswith("it is not known whether request r-1 was taken: ")
    assert str(in_doubt.value).endswith("; fetch it by this id, or ask again with the same id")
    server.faults = []
    assert client.wait("r-1").results == (b"once",)
    assert server.taken == {"r-1": 1}


def test_a_missing_server_is_reported_at_once(connect: Connect) -> None:
    with serving() as server:
        url = server.url
    began = time.monotonic()
    with pytest.raises(RequestRefused, match="was refused: there is no connection: ") as refused:
        connect(url).ask("x")
    assert refused.value.status == 0
    with pytest.raises(RequestInDoubt):
        connect(url).fetch("r-1")
    assert time.monotonic() - began < 30, "it waited for its timeout"


def test_a_request_to_a_busy_server_is_repeated_until_the_timeout(
    server: ServingServer, client: Any
) -> None:
    server.faults = [BUSY, BUSY]
    assert client.ask("x").results == (b"x",)
    server.faults = [BUSY] * 1_000
    with pytest.raises(RequestRefused, match="was refused with 429: too many"):
        client.ask("x", timeout="1s")
    assert list(server.taken.values()) == [1]


def test_an_id_that_is_already_in_use_is_a_duplicate(server: ServingServer, client: Any) -> None:
    client.ask("x", id="r-1")
    with pytest.raises(RequestRefused, match="request r-1 was refused with 409: the id is in use"):
        client.ask("y", id="r-1")


def test_unknown_ids_are_distinguished_from_pending_ones(client: Any) -> None:
    for look in (client.fetch, client.wait, client.status, lambda id: list(client.stream(id=id))):
        with pytest.raises(UnknownRequest, match="the server knows no request r-0"):
            look("r-0")


def test_the_status_shows_the_path_of_the_request(client: Any) -> None:
    client.submit("fail", id="r-1")
    status = client.status("r-1")
    at = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)
    assert (status.status, status.accepted, status.ended) == ("failed", at, at)
    assert status.failure == RequestFailure(vertex="price", reason="failed", error="no such order")
    step = RequestStep(
        vertex="price",
        message="r-1",
        deliveries=2,
        outcome="dead_lettered",
        at=at,
        reason="failed",
        error="no such order",
    )
    assert status.steps == (step,)


def test_a_fetch_is_repeated_after_a_lost_connection(server: ServingServer, client: Any) -> None:
    client.submit("x", id="r-1")
    server.faults = ["gone"]
    assert client.fetch("r-1").results == (b"x",)


# --- streams ----------------------------------------------------------------------------------


def test_results_are_streamed(client: Any) -> None:
    assert list(client.stream("words b a c")) == [b"b", b"a", b"c"]
    assert list(client.stream("two\nlines")) == [b"two\nlines"]
    assert list(client.stream(b"\xff\x00")) == [b"\xff\x00"]
    assert list(client.stream("drop")) == []


def test_a_submitted_request_is_streamed_by_its_id(client: Any) -> None:
    client.submit("words b a", id="r-1")
    assert list(client.stream(id="r-1")) == [b"b", b"a"]
    with pytest.raises(ValueError, match="give a value to ask with, or the id of a request"):
        list(client.stream())


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_stream_continues_after_the_last_result_received(
    server: ServingServer, client: Any, after: int
) -> None:
    server.cut_stream_after = after
    assert list(client.stream("words b a c")) == [b"b", b"a", b"c"]
    assert server.calls == ["POST sse", "GET sse"]
    assert server.headers_received[1]["last-event-id"] == str(after)
    assert list(server.taken.values()) == [1]


@pytest.mark.guarantee("a-client-asks-once")
def test_a_stream_that_never_began_submits_its_request_once(
    server: ServingServer, client: Any
) -> None:
    server.faults = [CUT_BEFORE]
    assert list(client.stream("words b a")) == [b"b", b"a"]
    server.faults = [CUT_AFTER]
    assert list(client.stream("words c")) == [b"c"]
    assert list(server.taken.values()) == [1, 1]


def test_a_stream_ends_with_the_error_of_its_request(server: ServingServer, client: Any) -> None:
    with pytest.raises(RequestFailed, match="failed in price: failed: no such order"):
        list(client.stream("fail"))
    client.submit("x", id="r-1")
    with pytest.raises(RequestRefused, match="409"):
        list(client.stream("x", id="r-1"))


def test_each_result_is_returned_as_it_arrives(server: ServingServer) -> None:
    server.open.clear()
    with Client(server.url) as client:
        results = client.stream("words b a")
        assert next(results) == b"b"
        server.open.set()
        assert list(results) == [b"a"]


def test_a_stream_that_is_silent_for_too_long_is_pending(
    server: ServingServer, client: Any
) -> None:
    server.open.clear()
    with pytest.raises(AnswerPending):
        list(client.stream("words b a", timeout="1s"))


async def first_result(url: str) -> bytes:
    async with AsyncClient(url) as client:
        return await anext(client.stream("words b a"))


def test_an_async_stream_may_be_closed_before_its_end(server: ServingServer) -> None:
    server.open.clear()
    assert asyncio.run(first_result(server.url)) == b"b"


# --- logins, TLS and the extra ----------------------------------------------------------------


def test_the_token_is_sent_with_every_call(server: ServingServer, connect: Connect) -> None:
    server.token = "s3cret"
    assert connect(server.url, "s3cret").ask("x").results == (b"x",)
    with pytest.raises(RequestRefused, match="was refused with 401: the token is wrong"):
        connect(server.url).ask("x")


def test_a_certificate_is_checked(connect: Connect, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "none.pem").write_text("nothing")
    with serving(context) as server:
        assert connect(server.url, ca=tmp_path / "ca.pem").ask("x").results == (b"x",)
        assert connect(server.url, verify=False).ask("x").results == (b"x",)
        with pytest.raises(RequestRefused, match="CERTIFICATE_VERIFY_FAILED"):
            connect(server.url).ask("x")
    with pytest.raises(SetupError, match=r"none\.pem: is not a certificate in PEM form"):
        connect(server.url, ca=tmp_path / "none.pem")


def test_an_invalid_url_is_rejected(connect: Connect) -> None:
    with pytest.raises(ValueError, match="'localhost:8080' is not a server URL; write for exam"):
        connect("localhost:8080")


def test_a_key_with_a_comma_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match="the key 'a,b' has a comma"):
        client.ask("x", keys=["a,b"])


def test_without_the_extra_the_error_names_it_and_nothing_heavy_is_loaded() -> None:
    program = """
import sys
import ebbflow
assert "ebbflow.client" not in sys.modules
sys.modules["httpx"] = None
try:
    from ebbflow.client import Client
except ebbflow.SetupError as error:
    print(error)
del sys.modules["httpx"]
from ebbflow.client import Client
assert not {"pyspark", "nats", "pyarrow"} & set(sys.modules), "loaded"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == (
        "The client needs a package that is not installed. Run: pip install 'ebbflow[client]'\n"
    )
