"""The HTTP source: 200 means stored, an id is stored once, and every refusal has a clear reason."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509

from ebbflow.connectors.http.source import HttpFeed, HttpSourceSettings
from ebbflow.connectors.listening.feed import Listener
from ebbflow.domain.errors import SetupError
from ebbflow.domain.secrets import Secret
from ebbflow.nats.locate import open_link, start_embedded
from ebbflow.web.server import Certificate, Endpoint, make_certificate
from tests.connectors.http.posting import LOOPBACK, NDJSON, asked, in_background, posting
from tests.ports import free_port
from tests.waiting import until


@pytest.fixture(scope="module")
def shared(link, tmp_path_factory):
    """A pipeline whose listener stays, because one of its vertices does."""
    folder = tmp_path_factory.mktemp("shared")
    with posting(link, folder, pipeline="shared", vertex="stays"):
        yield "shared"


@pytest.fixture
def source(link, tmp_path, shared):
    vertex = f"v-{secrets.token_hex(4)}"
    with posting(link, tmp_path, pipeline=shared, vertex=vertex) as source:
        yield source


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """All vertices that share a port count as added as soon as the first one is."""
    monkeypatch.setattr(Listener, "settling", 0.0)


# --- what is stored -----------------------------------------------------------------------------


@pytest.mark.guarantee("http-200-means-stored")
def test_a_post_answered_with_200_is_in_the_buffer_as_it_was_sent(source):
    value = bytes(range(256))
    answer = source.post(
        value,
        x_numaflow_id="order-7",
        x_numaflow_event_time="1700000000123",
        x_numaflow_keys="shop, 7",
        x_trace="abc",
    )

    assert (answer.status, answer.body) == (200, {"id": "order-7"})
    (row,) = source.rows()
    assert (row["id"], row["value"], row["keys"]) == ("order-7", value, ["shop", "7"])
    assert row["event_time"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert row["headers"]["x-trace"] == "abc"
    assert row["headers"]["x-numaflow-id"] == "order-7"
    assert row["deliveries"] == 1


def test_a_post_without_headers_gets_a_new_id_and_the_current_time(source):
    before = datetime.now(UTC)
    ids = [source.post(b"same").body["id"] for _ in range(2)]

    first, second = source.rows()
    assert [first["id"], second["id"]] == ids
    assert len(set(ids)) == 2
    assert first["keys"] == []
    assert before <= first["event_time"] <= first["first_seen"] <= datetime.now(UTC)


def test_hop_by_hop_and_login_headers_are_not_stored_with_the_message(source):
    source.post(
        b"x",
        authorization="Bearer secret",
        connection="close, X-Hop",
        x_hop="1",
        te="trailers",
        keep_alive="timeout=5",
        proxy_authorization="Basic secret",
        x_numaflow_event_time="0",
        content_type="text/plain",
        cookie="a=b",
    )

    (row,) = source.rows()
    assert row["headers"].keys() == {"host", "accept-encoding", "content-type", "cookie"}


def test_a_repeated_header_becomes_a_list_and_values_may_be_utf_8(source):
    connection = source.connect()
    connection.putrequest("POST", source.path)
    for name, value in (("X-Tag", "a"), ("X-Tag", "b"), ("X-Name", "Zoë 💧".encode())):
        connection.putheader(name, value)
    connection.putheader("x-numaflow-keys", "ünï,💧".encode())
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    assert connection.getresponse().status == 200

    (row,) = source.rows()
    assert (row["headers"]["x-tag"], row["headers"]["x-name"]) == ("a, b", "Zoë 💧")
    assert row["keys"] == ["ünï", "💧"]
    assert row["value"] == b""


def test_a_body_may_be_sent_in_chunks(source):
    answer = source.ask(
        "POST", source.path, iter([b"a" * 40_000, b"b" * 50_000]), encode_chunked=True
    )

    assert answer.status == 200
    assert source.values() == [b"a" * 40_000 + b"b" * 50_000]


def test_an_answer_does_not_wait_for_the_client_to_acknowledge_its_head(source):
    connection = source.connect()
    times = []
    for _ in range(40):
        began = time.monotonic()
        assert asked(connection, "POST", source.path, b"x").status == 200
        times.append(time.monotonic() - began)

    # A delayed acknowledgement takes 0.04 s; only the first ones are never delayed.
    assert sorted(times)[3] < 0.035


# --- batches ------------------------------------------------------------------------------------


def test_each_line_of_a_batch_is_a_message(source):
    answer = source.post(
        b'{"n": 1}\n\n{"n": 2}\r\n{"n": 3}',
        content_type=f"{NDJSON}; charset=utf-8",
        x_numaflow_id="b",
        x_numaflow_keys="k",
    )

    assert (answer.status, answer.body) == (200, {"id": "b", "messages": 3})
    rows = source.rows()
    assert [row["id"] for row in rows] == ["b-0", "b-1", "b-2"]
    assert [json.loads(row["value"])["n"] for row in rows] == [1, 2, 3]
    assert all(row["keys"] == ["k"] for row in rows)


@pytest.mark.guarantee("http-200-means-stored")
def test_a_batch_is_stored_as_a_whole_or_not_at_all(link, tmp_path):
    with posting(link, tmp_path, max_frames=1) as source:
        batch = b"\n".join(b"%d" % n for n in range(500))
        answers = [source.post(batch, content_type=NDJSON) for _ in range(3)]

        assert [answer.status for answer in answers] == [200, 429, 429]
        assert len(source.rows()) == 500


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"\n\r\n", {}, 400, "the batch has no lines"),
        (b"x\n" * 10_001, {}, 413, "a batch may have 10,000 lines, not 10,001"),
        (
            b"x",
            {"content_encoding": "gzip"},
            415,
            "a batch in the content encoding 'gzip' cannot be split; send it plain",
        ),
    ],
)
def test_an_invalid_batch_is_refused(source, body, headers, status, reason):
    answer = source.post(body, content_type=NDJSON, **headers)

    assert (answer.status, answer.reason) == (status, reason)
    assert source.rows() == []


def test_headers_copied_to_each_line_of_a_batch_are_bounded(source):
    answer = source.post(b"x\n" * 9_000, content_type=NDJSON, x_long="v" * 1_000)

    assert answer.status == 413
    assert re.fullmatch(r"1,\d\d\d bytes of headers are too many for 9,000 messages", answer.reason)
    assert source.rows() == []


# --- ids ----------------------------------------------------------------------------------------


def test_the_same_id_is_stored_once(source):
    answers = [source.post(b"x", x_numaflow_id="a") for _ in range(3)]
    batches = [source.post(b"y\nz", x_numaflow_id="b", content_type=NDJSON) for _ in range(3)]

    assert {answer.status for answer in answers + batches} == {200}
    assert [row["id"] for row in source.rows()] == ["a", "b-0", "b-1"]


@pytest.mark.guarantee("http-200-means-stored")
def test_an_id_posted_by_many_clients_at_once_is_stored_once(source):
    with ThreadPoolExecutor(16) as pool:
        ids = [f"m{n % 20}" for n in range(200)]
        answers = list(pool.map(lambda name: source.post(b"x", x_numaflow_id=name), ids))

    assert {answer.status for answer in answers} == {200}
    assert Counter(row["id"] for row in source.rows()) == dict.fromkeys(ids, 1)


@pytest.mark.guarantee("http-200-means-stored")
def test_ids_are_known_after_a_full_restart_even_if_the_buffer_is_empty(tmp_path):
    for run in range(2):
        with (
            start_embedded(tmp_path / "nats") as server,
            open_link(server) as link,
            posting(link, tmp_path, pipeline="again") as source,
        ):
            for n in range(500):
                assert source.post(b"x", x_numaflow_id=f"m{n}").status == 200
            assert len(source.rows()) == (500 if run == 0 else 0)
            source.purge()


def test_an_id_is_forgotten_after_the_deduplication_window(source, monkeypatch):
    source.post(b"x", x_numaflow_id="a")
    clock = time.time
    monkeypatch.setattr("ebbflow.connectors.http.known_ids.time.time", lambda: clock() + 121)

    # The buffer, which keeps its own time, still knows it: it is asked, and stores nothing.
    assert source.post(b"x", x_numaflow_id="a").status == 200
    assert "a" in source.feed._store._known_ids
    assert len(source.rows()) == 1


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"x_numaflow_id": ""}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        ({"x_numaflow_id": "a b"}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        ({"x_numaflow_id": "ä"}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        ({"x_numaflow_id": "x" * 257}, "x-numaflow-id must be 1 to 256 visible ASCII characters"),
        (
            {"x_numaflow_event_time": "yesterday"},
            "x-numaflow-event-time must be milliseconds since 1970, a whole number",
        ),
        (
            {"x_numaflow_event_time": "-1"},
            "x-numaflow-event-time must be milliseconds since 1970, a whole number",
        ),
        (
            {"x_numaflow_event_time": "999999999999999"},
            "x-numaflow-event-time must be milliseconds since 1970, a whole number",
        ),
    ],
)
def test_an_invalid_header_is_a_bad_request(source, headers, reason):
    answer = source.post(b"x", **headers)

    assert (answer.status, answer.reason) == (400, reason)
    assert source.rows() == []


def test_a_duplicate_id_header_is_a_bad_request(source):
    connection = source.connect()
    connection.putrequest("POST", source.path)
    connection.putheader("x-numaflow-id", "a")
    connection.putheader("x-numaflow-id", "b")
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    response = connection.getresponse()

    assert (response.status, json.load(response)) == (
        400,
        {"reason": "duplicate header x-numaflow-id"},
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("POST", "/vertices/out", 404, "there is no http source of that name here"),
        ("POST", "/vertices/stays/", 404, "Not Found"),
        ("POST", "/", 404, "Not Found"),
        ("GET", "/vertices/stays", 405, "Method Not Allowed"),
        ("PUT", "/vertices/stays", 405, "Method Not Allowed"),
        ("POST", "/health", 405, "Method Not Allowed"),
    ],
)
def test_an_unknown_path_or_method_is_rejected_with_json(source, method, path, status, reason):
    answer = source.ask(method, path, b"x")

    assert (answer.status, answer.reason) == (status, reason)
    assert answer.headers["content-type"] == "application/json"


def test_a_body_without_a_length_is_refused(source):
    connection = source.connect()
    connection.putrequest("POST", source.path)
    connection.endheaders()
    response = connection.getresponse()

    assert (response.status, json.load(response)) == (411, {"reason": "content-length is missing"})


def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_stored(source):
    too_large = source.post(b"x" * 100_001)
    in_pieces = source.ask("POST", source.path, iter([b"x" * 60_000] * 2), encode_chunked=True)

    assert too_large.reason == "a body may have 100,000 bytes, not 100,001 or more"
    assert (too_large.status, in_pieces.status) == (413, 413)
    assert source.post(b"x" * 100_000).status == 200
    assert [len(value) for value in source.values()] == [100_000]


def test_a_message_too_large_for_a_frame_is_refused(link, tmp_path):
    with posting(link, tmp_path, largest=2**30) as source:
        answer = source.post(os.urandom(9_000_000))

    assert answer.status == 413
    assert "is over the limit of" in answer.reason


def test_a_full_buffer_is_answered_with_429_and_retry_after(link, tmp_path):
    with posting(link, tmp_path, max_frames=3) as source:
        answers = [source.post(b"x") for _ in range(5)]

        assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].reason == "the buffer is full"
        assert answers[-1].headers["retry-after"] == "1"
        source.purge()
        assert source.post(b"x").status == 200


def test_requests_over_the_in_flight_limit_are_refused(link, tmp_path):
    with posting(link, tmp_path, in_flight=2) as source, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(contextlib.closing(begun(source, b"half")))
        until(lambda: source.post(b"x").status == 429)
        answer = source.post(b"x")

        assert (answer.reason, answer.headers["retry-after"]) == (
            "too many requests are in flight",
            "1",
        )
        stack.close()
        until(lambda: source.post(b"x").status == 200)


def begun(source, part, length=1_000):
    """A connection on which only a part of a body has been sent."""
    connection = socket.create_connection(("127.0.0.1", source.port), timeout=120)
    head = f"POST /vertices/in HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + part)
    return connection


@pytest.mark.parametrize("sent", [b"", b"POST /vertices/in HT", b"POST / HTTP/1.1\r\nA: b\r\n"])
def test_a_client_too_slow_to_send_its_request_is_disconnected(link, tmp_path, sent):
    with posting(link, tmp_path, read_timeout=0.3) as source:
        connection = socket.create_connection(("127.0.0.1", source.port), timeout=120)
        connection.sendall(sent)
        answer = everything(connection)

    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert answer.endswith(b'{"reason":"no request arrived within 0.3 s"}')


def test_a_client_too_slow_to_send_its_body_is_disconnected(link, tmp_path):
    with posting(link, tmp_path, read_timeout=0.3) as source:
        answer = everything(begun(source, b"half"))

    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert answer.endswith(b'{"reason":"the body did not arrive within 0.3 s"}')


def everything(connection):
    """Everything that arrives until the server closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65_536), b""))


# --- who may post -------------------------------------------------------------------------------


def test_only_a_client_with_the_token_may_post(link, tmp_path):
    with posting(link, tmp_path, token=Secret("open sesame")) as source:
        wrong = [
            "",
            "Bearer",
            "Bearer x",
            "Basic open sesame",
            "Bearer open sesame!",
            "open sesame",
        ]
        answers = [source.post(b"x", authorization=login) for login in wrong]

        assert {answer.status for answer in answers} == {401}
        assert answers[0].reason == "the bearer token is missing or wrong"
        assert answers[0].headers["www-authenticate"] == "Bearer"
        assert source.post(b"x", authorization="Bearer open sesame").status == 200
        assert source.ask("GET", "/health").status == 200
        assert len(source.rows()) == 1
        assert "sesame" not in json.dumps(source.rows()[0]["headers"])


@pytest.mark.guarantee("guessing-is-slow")
def test_a_client_that_guesses_tokens_has_to_wait(link, tmp_path):
    with posting(link, tmp_path, token=Secret("open sesame")) as source:
        answers = [source.post(b"x", authorization=f"Bearer guess {n}") for n in range(12)]

        assert [answer.status for answer in answers] == [401] * 10 + [429] * 2
        assert answers[-1].reason == "too many wrong tokens came from this address"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 60
        assert source.ask("GET", "/health").status == 200


@pytest.mark.guarantee("foreign-pages-send-nothing")
def test_a_web_page_of_another_site_cannot_post_and_programs_can(link, tmp_path):
    with posting(link, tmp_path) as source:
        foreign = [
            source.post(b"x", origin="https://evil.example", content_type="text/plain"),
            source.post(b"x", sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
            source.post(b"x", host="evil.example", origin="http://evil.example"),
        ]
        good = [source.post(b"x", host=f"{name}:1") for name in ("localhost", "127.0.0.1", "[::1]")]

        assert [answer.status for answer in foreign] == [403, 403, 403]
        assert foreign[0].reason == (
            "pages of other sites may not send requests here; send it from a program, or give the "
            "source a token"
        )
        assert [answer.status for answer in good] == [200, 200, 200]
        assert len(source.rows()) == 3
        done = curl("-s", "-d", "x", f"http://localhost:{source.port}/vertices/in")
        assert done.returncode == 0, done.stderr
        assert len(source.rows()) == 4
    with posting(link, tmp_path, token=Secret("t")) as source:
        login = {"authorization": "Bearer t", "host": "proxy.example"}
        assert source.post(b"x", origin="https://proxy.example", **login).status == 200


@pytest.mark.guarantee("http-200-means-stored")
def test_a_source_without_a_token_cannot_listen_beyond_this_machine(link, tmp_path):
    with (
        pytest.raises(SetupError) as raised,
        posting(link, tmp_path, endpoints=(Endpoint("0.0.0.0", 0),)),
    ):
        pass
    assert str(raised.value) == (
        "The http source in would take messages from anybody who can reach 0.0.0.0. Give it a "
        "token with auth: {token: {env: NAME}}, or leave out its host to listen on this machine "
        "only."
    )


def test_a_source_with_a_token_may_listen_anywhere(link, tmp_path):
    with posting(link, tmp_path, endpoints=(Endpoint("0.0.0.0", 0),), token=Secret("t")) as source:
        assert source.post(b"x").status == 401
        assert source.post(b"x", authorization="Bearer t").status == 200
        assert source.lines[0] == (
            "in listens on 0.0.0.0 without TLS: its token and its messages can be read in transit"
        )


def test_settings_never_show_secrets():
    endpoint = Endpoint("127.0.0.1", 0, Certificate("chain", Secret("the key")))
    settings = HttpSourceSettings((endpoint,), Secret("the token"))

    assert "the key" not in repr(settings)
    assert "the token" not in repr(settings)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def certificate(authority, name="127.0.0.1"):
    issued = authority.issue_cert(name)
    chain = "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)
    return Certificate(chain, Secret(issued.private_key_pem.bytes().decode()))


def test_a_source_with_a_certificate_accepts_tls_only(link, tmp_path, authority):
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    endpoint = Endpoint("127.0.0.1", 0, certificate(authority))
    with posting(link, tmp_path, endpoints=(endpoint,)) as source:
        assert source.url.startswith("https://127.0.0.1:")
        answer = source.ask("POST", source.path, b"x", context=trusting)
        assert answer.status == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            source.post(b"in the clear")
        assert source.values() == [b"x"]


def test_an_invalid_certificate_is_reported_at_the_start(link, tmp_path):
    endpoint = Endpoint("127.0.0.1", 0, Certificate("no", Secret("no")))
    with pytest.raises(SetupError) as raised, posting(link, tmp_path, endpoints=(endpoint,)):
        pass
    assert str(raised.value) == (
        "The tls of the http source in: are not a certificate and its key, in PEM form. "
        "Correct cert and key."
    )


SELF_SIGNED = Endpoint("127.0.0.1", 0, self_signed=True)


def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--max-time", "20", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_numaflows_own_curl_command_works_with_the_self_signed_certificate(link, tmp_path):
    with posting(link, tmp_path, endpoints=(SELF_SIGNED,)) as source:
        url = f"https://localhost:{source.port}/vertices/in"
        posted = curl("-kq", "-X", "POST", "-d", "hello world", url)
        refused = curl("-X", "POST", "-d", "hello world", url)

        assert json.loads(posted.stdout).keys() == {"id"}
        assert "self-signed certificate" in refused.stderr
        assert source.values() == [b"hello world"]
        assert source.lines[-1] == (
            f"in takes messages at https://127.0.0.1:{source.port}/vertices/in "
            "(self-signed: curl -k)"
        )


def test_the_self_signed_certificate_covers_this_machine_and_the_host():
    made = make_certificate("in.example.org")
    shown = x509.load_pem_x509_certificate(made.chain.encode())
    extension = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    names = {str(name.value) for name in extension.value}
    assert {"localhost", "127.0.0.1", "in.example.org", socket.gethostname()} <= names
    assert made.key.reveal() not in repr(made)
    assert make_certificate("a").key != make_certificate("a").key


# --- ports --------------------------------------------------------------------------------------


def test_a_vertex_that_takes_http_and_https_knows_the_ids_of_both(link, tmp_path):
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with posting(link, tmp_path, endpoints=(LOOPBACK, SELF_SIGNED)) as source:
        secured = source.ask("POST", source.path, b"1", {"x-numaflow-id": "a"}, context=trusting)
        source.port = int(source.urls["http"].rpartition(":")[2])
        plain = [source.post(b"1", x_numaflow_id="a"), source.post(b"2", x_numaflow_id="b")]

        assert [answer.status for answer in (secured, *plain)] == [200, 200, 200]
        assert source.values() == [b"1", b"2"]
    with pytest.raises(ConnectionRefusedError):
        source.post(b"x")


def test_optional_https_is_skipped_when_its_port_is_taken(link, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        secured = Endpoint("127.0.0.1", port, self_signed=True, optional=True)
        with posting(link, tmp_path, endpoints=(LOOPBACK, secured)) as source:
            assert source.post(b"x").status == 200
            assert source.lines[0] == (
                f"in does not listen on https: another process uses 127.0.0.1:{port}"
            )


def test_a_free_port_is_released_when_another_port_is_taken(link, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Endpoint("127.0.0.1", other.getsockname()[1], self_signed=True)
        with (
            pytest.raises(SetupError, match=r"ports: \{https: PORT\}; 0 is any free port"),
            posting(link, tmp_path, endpoints=(Endpoint("127.0.0.1", port), taken)),
        ):
            pass
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_vertices_with_self_signed_certificates_share_a_port(link, tmp_path):
    optional = replace(SELF_SIGNED, optional=True)
    with (
        posting(link, tmp_path, pipeline="made", vertex="one", endpoints=(SELF_SIGNED,)) as first,
        posting(link, tmp_path, pipeline="made", vertex="two", endpoints=(optional,)) as second,
    ):
        assert first.port == second.port


def test_a_taken_port_is_reported_at_the_start(link, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(SetupError) as raised,
            posting(link, tmp_path, endpoints=(Endpoint("127.0.0.1", port),)),
        ):
            pass
    assert str(raised.value) == (
        f"The http source in cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop the program that listens there, or choose another port with ports: {http: PORT}; "
        "0 is any free port."
    )


def test_two_vertices_share_a_port_until_the_last_one_stops(link, tmp_path):
    with posting(link, tmp_path, pipeline="both", vertex="one") as first:
        with posting(link, tmp_path, pipeline="both", vertex="two") as second:
            assert first.port == second.port
            assert (first.post(b"1").status, second.post(b"2").status) == (200, 200)
            assert (first.values(), second.values()) == ([b"1"], [b"2"])
        assert second.post(b"x").status == 404
        assert first.post(b"3").status == 200
    with pytest.raises(ConnectionRefusedError):
        first.post(b"x")


def test_a_vertex_that_may_still_be_starting_is_answered_with_503(source, monkeypatch):
    monkeypatch.setattr(Listener, "settling", 60.0)
    answer = source.ask("POST", "/vertices/other", b"x")

    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.reason == "there is no http source of that name here yet"


def test_two_vertices_with_different_certificates_do_not_share_a_port(link, tmp_path, authority):
    secured = Endpoint("127.0.0.1", 0, certificate(authority))
    made = (SELF_SIGNED,)
    with (
        posting(link, tmp_path, pipeline="differ", vertex="one", endpoints=made) as first,
        pytest.raises(SetupError, match=r"share 127\.0\.0\.1:0 and have different certificates"),
        posting(link, tmp_path, pipeline="differ", vertex="two", endpoints=(secured,)),
    ):
        pass
    with pytest.raises(ConnectionRefusedError):
        first.post(b"x")


# --- stops and outages --------------------------------------------------------------------------


@pytest.mark.guarantee("http-200-means-stored")
def test_a_stop_finishes_requests_in_flight_and_refuses_new_ones(link, tmp_path):
    with posting(link, tmp_path) as source:
        waiting = begun(source, b"x" * 999)
        idle = source.connect()
        assert asked(idle, "POST", source.path, b"1").status == 200
        stopping, _ = in_background(source.feed.stop)
        until(lambda: source.feed.failure is not None)
        refused = asked(idle, "POST", source.path, b"2")
        health = source.ask("GET", "/health")
        waiting.sendall(b"x")
        answer = everything(waiting)
        stopping.join()

    assert (refused.status, refused.reason) == (503, "the run is stopping")
    assert (health.status, health.reason) == (503, "the run is stopping")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert sorted(source.values()) == [b"1", b"x" * 1_000]
    with pytest.raises(ConnectionRefusedError):
        source.post(b"x")


def test_a_stop_does_not_wait_forever_for_a_slow_client(link, tmp_path, monkeypatch):
    monkeypatch.setattr(HttpFeed, "grace", 0.2)
    with posting(link, tmp_path) as source:
        slow = begun(source, b"half")
        until(lambda: source.feed._admission._count == 1)
        source.feed.stop()

        assert not everything(slow).startswith(b"HTTP/1.1 200")
        assert source.rows() == []


def test_posts_are_refused_while_nats_is_down_and_stored_when_it_is_back(tmp_path):
    with contextlib.ExitStack() as first:
        server = first.enter_context(start_embedded(tmp_path / "nats", port=free_port()))
        link = first.enter_context(open_link(server))
        with posting(link, tmp_path) as source:
            assert source.ask("GET", "/health").body == {"status": "ok"}
            first.pop_all().close()
            until(lambda: source.feed.failure is not None)
            answer = source.post(b"x", x_numaflow_id="a")
            health = source.ask("GET", "/health")
            with start_embedded(tmp_path / "nats", port=port_of(server)) as server:
                until(lambda: source.post(b"x", x_numaflow_id="a").status == 200)
                with open_link(server) as source.link:
                    assert source.values() == [b"x"]

    assert (answer.status, answer.reason) == (503, "there is no connection to NATS")
    assert (answer.headers["retry-after"], health.status) == ("1", 503)


def port_of(server):
    return int(str(server).rpartition(":")[2])


@pytest.mark.guarantee("http-200-means-stored")
def test_posts_in_flight_when_nats_dies_are_not_answered_with_200(tmp_path):
    with contextlib.ExitStack() as first:
        server = first.enter_context(start_embedded(tmp_path / "nats", port=free_port()))
        link = first.enter_context(open_link(server))
        with posting(link, tmp_path, ack_wait=1.0) as source:
            stop = threading.Event()
            taken: list[str] = []

            def post_on(name):
                number = 0
                connection = source.connect()
                while not stop.is_set():
                    number += 1
                    head = {"x-numaflow-id": f"{name}-{number}"}
                    answer = asked(connection, "POST", source.path, b"x", head)
                    if answer.status == 200:
                        taken.append(f"{name}-{number}")
                    else:
                        assert answer.status == 503

            threads = [in_background(post_on, name) for name in "abcd"]
            until(lambda: len(taken) > 200)
            first.pop_all().close()
            until(lambda: source.feed.failure is not None)
            stop.set()
            for thread, results in threads:
                thread.join(120)
                assert results == [None]
            with (
                start_embedded(tmp_path / "nats", port=port_of(server)) as again,
                open_link(again) as link,
            ):
                source.link = link
                stored = {row["id"] for row in source.rows()}

    assert set(taken) <= stored
