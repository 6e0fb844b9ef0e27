"""The web UI's server on a real NATS server: states, events, files, probes, and bad requests."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
from contextlib import ExitStack
from itertools import islice

import pytest

from ebbflow.domain.errors import SetupError
from ebbflow.nats.login import Addresses
from ebbflow.status.model import Concern
from ebbflow.ui import pipelines
from ebbflow.ui.web_ui import UiAddress, attach_web_ui, open_socket, parse_address
from ebbflow.web.connection import HttpConnection
from ebbflow.web.server import make_certificate
from tests.ui.shown import Shown
from tests.ui.ui_client import Answer, UiClient, serve_ui
from tests.waiting import until

_FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def shown(link, names) -> Shown:
    return Shown(link, names)


@pytest.fixture(scope="module")
def ui(link):
    with serve_ui(link) as ui:
        yield ui


def test_a_pipeline_is_listed_with_its_phase_and_readiness(ui: UiClient, shown: Shown):
    shown.publish_status()
    path = f"/api/pipelines/{shown.name}/status"
    assert ui.get(path).json["phase"] == "running"
    entries = {entry["name"]: entry for entry in ui.get("/api/pipelines").json["pipelines"]}
    assert entries[shown.name]["phase"] == "running"
    assert entries[shown.name]["ready"] is True


def test_the_status_is_the_one_that_the_run_published(ui: UiClient, shown: Shown):
    status = shown.publish_status()
    answer = ui.get(f"/api/pipelines/{shown.name}/status")
    assert answer.json == json.loads(status.to_bytes())
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.guarantee("pages-hold-up-nothing")
def test_events_carry_each_state_and_a_hundred_viewers_share_one_read(
    link, shown: Shown, monkeypatch
):
    reads = []

    original = pipelines.read_status
    monkeypatch.setattr(
        pipelines, "read_status", lambda link, names: (reads.append(1), original(link, names))[1]
    )
    shown.publish_status()
    with serve_ui(link) as ui, ExitStack() as stack:
        path = f"/api/pipelines/{shown.name}/events"
        streams = [stack.enter_context(ui.stream(path)) for _ in range(100)]
        for events in streams:
            status = next(status for kind, status in events if kind == "status")
            assert status["phase"] == "running"
        shown.publish_status(phase="stopping")
        before = len(reads)
        for events in streams:
            # On a busy machine a read may fail now and then, which is an event of another kind.
            assert any(
                kind == "status" and status["phase"] == "stopping" for kind, status in events
            )
        assert len(reads) - before < 20


@pytest.mark.guarantee("pages-hold-up-nothing")
def test_a_browser_that_stops_reading_is_disconnected_and_delays_no_other(
    link, shown: Shown, monkeypatch
):
    monkeypatch.setattr(HttpConnection, "patience", 0.3)
    large = Concern("warning", None, "x" * 2_000_000, "y")
    shown.publish_status(problems=(large,))
    with serve_ui(link) as ui:
        request = f"GET /api/pipelines/{shown.name}/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with ui.connect() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.sendall(request.encode())
            with ui.stream(f"/api/pipelines/{shown.name}/events") as events:
                # On a busy machine a read of a state of this size may fail now and then.
                states = (event for event in events if event[0] == "status")
                assert len(list(islice(states, 4))) == 4
            until(lambda: is_closed(stuck))


def is_closed(client: socket.socket) -> bool:
    """Whether the other side has disconnected, without reading what it has sent."""
    try:
        client.send(b" ")
    except OSError:
        return True
    return False


def test_an_unknown_pipeline_is_not_found_and_the_known_ones_are_named(ui: UiClient, shown: Shown):
    answer = ui.get("/api/pipelines/nobody/status")
    assert (answer.status, answer.json["error"]) == (404, "there is no pipeline 'nobody'")
    assert answer.json["next_step"].startswith("Known here: ")
    wild = ui.get("/api/pipelines/%3E/status")
    assert (wild.status, wild.json["error"]) == (404, "there is no pipeline '>'")


def test_the_web_ui_and_its_files_are_served_and_nothing_else(ui: UiClient):
    answer = ui.get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    same = ui.get("/", if_none_match=answer.headers["etag"])
    assert (same.status, same.raw) == (304, b"")
    script = ui.get("/static/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/static/", "/static/..%2fweb_ui.py", "/static/../web_ui.py", "/static/vendor",
                 "/static/%00.js", "/static/.js", "/nothing", "/api"):  # fmt: skip
        assert ui.get(path).status == 404, path


def test_a_web_ui_of_one_pipeline_shows_no_other(link, shown: Shown):
    shown.publish_status()
    with serve_ui(link, shown.name) as ui:
        assert [p["name"] for p in ui.get("/api/pipelines").json["pipelines"]] == [shown.name]
        assert ui.get("/api/pipelines/nobody/status").status == 404


def test_probes_fail_with_a_vertex_and_metrics_are_served(link, shown: Shown):
    shown.publish_status()
    with serve_ui(link, shown.name, whole=False) as ui:
        probes = ("/health", "/livez", "/ready", "/readyz")
        assert [ui.get(path).status for path in probes] == [200] * 4
        metrics = ui.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert f'pipeline="{shown.name}"'.encode() in metrics.raw
        assert ui.get("/").status == 404
        shown.publish_status(
            problems=(Concern("error", "enrich", "it is dead", "look at it"),), ready=False
        )
        answer = ask_until(ui, "/health", 503)
        assert answer.json["status"] == "failing"
        (problem,) = answer.json["pipelines"][shown.name]["problems"]
        assert problem["what"] == "it is dead"
        assert ui.get("/livez").status == 200


def ask_until(ui: UiClient, path: str, status: int) -> Answer:
    """Asks until the answer has this status: states are read a moment late."""
    until(lambda: ui.get(path).status == status)
    return ui.get(path)


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_beyond_this_machine_everything_but_probes_requires_the_token(link, shown, monkeypatch):
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "let-me-in")
    shown.publish_status()
    with serve_ui(link, shown.name, host="0.0.0.0") as ui:
        probe = ui.get("/health")
        assert (probe.status, probe.json) == (200, {"status": "ok"})
        for path in ("/api/pipelines", "/metrics", "/static/app.js"):
            refused = ui.get(path)
            assert refused.status == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        asked = ui.get("/")
        assert asked.status == 401
        assert b'name="token"' in asked.raw
        assert ui.get("/?token=wrong").status == 401
        logged_in = ui.get("/?token=let-me-in")
        assert (logged_in.status, logged_in.headers["cache-control"]) == (200, "no-store")
        cookie = logged_in.headers["set-cookie"].partition(";")[0]
        assert ui.get("/api/pipelines", cookie=cookie).status == 200
        assert ui.get("/", cookie=cookie).headers["etag"]
        bearer = ui.get("/api/pipelines", authorization="Bearer let-me-in", host="evil.com")
        assert bearer.status == 200
        assert all(b"let-me-in" not in answer.raw for answer in (asked, logged_in, bearer))
        assert b'method="post"' in asked.raw
        assert send_form(ui, b"token=wrong").status == 401
        assert cookie in send_form(ui, b"token=let-me-in").headers["set-cookie"]
        foreign = send_form(ui, b"token=let-me-in", origin="http://evil.com")
        large = send_form(ui, b"token=" + b"x" * 5_000)
        assert (foreign.status, large.status) == (403, 413)


def send_form(ui: UiClient, body: bytes, **headers: str) -> Answer:
    """Sends what a browser sends when a user has typed the token."""
    connection = ui.open()
    try:
        connection.request("POST", "/", body, {"content-type": _FORM, **headers})
        return ui.read(connection)
    finally:
        connection.close()


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_web_ui_with_a_certificate_speaks_tls_only(link, shown, monkeypatch):
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "let-me-in")
    shown.publish_status()
    with serve_ui(link, shown.name, secured=True) as ui:
        answer = ui.get("/?token=let-me-in")
        assert (answer.status, answer.headers["set-cookie"][-8:]) == (200, "; Secure")
        with pytest.raises((OSError, http.client.HTTPException)):
            UiClient(ui.port).get("/health")


@pytest.mark.guarantee("guessing-is-slow")
def test_a_browser_that_guesses_tokens_must_wait(link, shown, monkeypatch):
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "let-me-in")
    with serve_ui(link, shown.name) as ui:
        statuses = [ui.get(f"/?token=guess{n}").status for n in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert ui.get("/api/pipelines", authorization="Bearer let-me-in").status == 429


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_a_foreign_page_in_the_same_browser_is_refused(ui: UiClient, shown: Shown):
    assert ui.get("/api/pipelines", host="evil.com:80").status == 403
    assert ui.get("/api/pipelines", sec_fetch_site="cross-site").status == 403
    assert ui.ask("POST", f"/api/pipelines/{shown.name}/pause", {}).status == 403
    preflight = ui.ask("OPTIONS", "/api/pipelines", headers={"Origin": "http://evil.com"})
    assert preflight.status in (403, 405)
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.guarantee("pages-hold-up-nothing")
def test_clients_that_come_and_go_leave_nothing_behind(link, shown: Shown):
    shown.publish_status()
    with serve_ui(link) as ui:
        request = f"GET /api/pipelines/{shown.name}/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
        for _ in range(30):
            with ui.connect() as client:
                client.sendall(request.encode())
        before = threading.active_count()
        for _ in range(30):
            with ui.connect() as client:
                client.sendall(request.encode())
                client.recv(100)
        assert ui.get(f"/api/pipelines/{shown.name}/status").status == 200
        assert threading.active_count() <= before + 12


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (True, UiAddress("127.0.0.1", 8321, usual=True)),
        ("", UiAddress("127.0.0.1", 8321, usual=True)),
        ("9000", UiAddress("127.0.0.1", 9000)),
        ("https://9000", UiAddress("127.0.0.1", 9000, secured=True)),
        ("https://my-host", UiAddress("my-host", 8321, usual=True, secured=True)),
        ("http://[::1]:0", UiAddress("::1", 0, secured=False)),
        (":9000", UiAddress("127.0.0.1", 9000)),
        ("0.0.0.0:9000", UiAddress("0.0.0.0", 9000)),
        ("0.0.0.0", UiAddress("0.0.0.0", 8321, usual=True)),
        ("[::1]:0", UiAddress("::1", 0)),
        ("[::1]", UiAddress("::1", 8321, usual=True)),
        ("my-host", UiAddress("my-host", 8321, usual=True)),
    ],
)
def test_an_address_is_a_host_a_port_or_both(text, address):
    assert parse_address(text, 8321) == address


@pytest.mark.parametrize("text", ["a:b", "host:99999", "::1", "a:1:2", "ftp://a:1", "a/b:1"])
def test_an_invalid_address_is_rejected_with_an_example(text):
    with pytest.raises(SetupError) as raised:
        parse_address(text, 8321)
    assert str(raised.value) == (
        f"{text!r} is not an address that the web UI can listen on. "
        "Write it as HOST:PORT, such as 127.0.0.1:8321; port 0 is any that is free."
    )


def test_a_taken_default_port_is_replaced_and_a_taken_named_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        entrance = open_socket(UiAddress("127.0.0.1", port, usual=True))
        with entrance.bound:
            assert entrance.bound.getsockname()[1] != port
        with pytest.raises(SetupError) as raised:
            open_socket(UiAddress("127.0.0.1", port))
    assert str(raised.value) == (
        f"The web UI cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Stop what listens there, or name another port; 0 is any that is free."
    )


def test_an_error_names_the_option_whose_port_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        (attachment,) = attach_web_ui(False, place)
        with pytest.raises(SetupError) as raised, attachment(Addresses(()), "orders", print):
            pass
    said = f"The endpoint of --metrics cannot listen on {place}: Address already in use. "
    assert str(raised.value).startswith(said)
    with pytest.raises(SetupError, match="not an address that the endpoint of --metrics can"):
        attach_web_ui(False, "a:b")


@pytest.mark.guarantee("pages-are-kept-to-those-who-may")
def test_listening_beyond_this_machine_requires_a_token(monkeypatch):
    with pytest.raises(SetupError) as raised:
        open_socket(UiAddress("0.0.0.0", 0))
    assert str(raised.value) == (
        "The web UI would show everything to anybody who can reach 0.0.0.0. "
        "Choose a token and set EBBFLOW_UI_TOKEN to it, or have the web UI listen on 127.0.0.1."
    )
    monkeypatch.setenv("EBBFLOW_UI_TOKEN", "chosen")
    entrance = open_socket(UiAddress("0.0.0.0", 0))
    with entrance.bound:
        assert entrance.token.reveal() == "chosen"
        assert announced(entrance) == [
            f"web UI at {entrance.url}",
            "it is reached without TLS: its token and what it shows can be read in transit",
        ]
        assert "chosen" not in entrance.url + repr(entrance)


def announced(entrance):
    lines = []
    entrance.announce(lines.append, "web UI at")
    return lines


class Stream(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.guarantee("secrets-are-in-no-text")
@pytest.mark.parametrize("terminal", ["stdout", "stderr"])
def test_a_generated_token_is_written_to_a_terminal_and_nowhere_else(monkeypatch, terminal):
    streams = {name: Stream(name == terminal) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    entrance = open_socket(UiAddress("0.0.0.0", 0))
    with entrance.bound:
        lines = announced(entrance)
        token = entrance.token.reveal()
        assert len(token) >= 32
        assert f"http://{socket.gethostname()}:" in entrance.url
        assert token not in repr(entrance) + "".join(lines)
        assert streams.pop(terminal).getvalue() == f"Open {entrance.url}?token={token}\n"
        assert [stream.getvalue() for stream in streams.values()] == [""]


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    made = make_certificate("127.0.0.1")
    texts = {"CERT": made.chain, "KEY": made.key.reveal()}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setenv(f"EBBFLOW_UI_{name}_FILE", str(path))
    return made.chain


@pytest.mark.parametrize(("secured", "scheme"), [(None, "https"), (True, "https"), (False, "http")])
def test_with_a_certificate_the_web_ui_speaks_tls_unless_it_is_switched_off(
    certificate, secured, scheme
):
    entrance = open_socket(UiAddress("127.0.0.1", 0, secured=secured))
    with entrance.bound:
        assert entrance.url.startswith(f"{scheme}://127.0.0.1:")


def test_a_certificate_without_a_key_is_rejected_with_the_missing_variable(
    certificate, monkeypatch
):
    monkeypatch.delenv("EBBFLOW_UI_KEY_FILE")
    with pytest.raises(SetupError) as raised:
        open_socket(UiAddress("127.0.0.1", 0))
    assert str(raised.value) == (
        "The web UI cannot read the file that EBBFLOW_UI_KEY_FILE names: it is not set. "
        "Set EBBFLOW_UI_CERT_FILE and EBBFLOW_UI_KEY_FILE to a certificate and its key, in PEM "
        "form."
    )
