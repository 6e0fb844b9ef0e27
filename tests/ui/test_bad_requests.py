"""The web UI answers every request, and never with a server error."""

import http.client
import json
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbflow.streams.names import Names
from tests.thorough import examples
from tests.ui.shown import Shown
from tests.ui.ui_client import POST, UiClient, serve_ui

WORDS = (
    *("api", "pipelines", "bad", "status", "dead-letters", "replay", "purge", "export", "trace"),
    *("counts", "static", "jobs", "stop", "1", "vertices", "enrich", "chunks", "history", "spec"),
    *("graph", "pause", "resume", "logs", "%00", "..", "%ff", "*", ">", "%2F"),
)
FIELDS = ("numbers", "filter", "value", "rate", "vertex", "since", "keys", "headers", "dry_run")
NAMES = (*FIELDS, "until", "after", "limit", "text", "id", "token", "pipeline")
PIECES = st.sampled_from(WORDS) | st.text("aZ9-._~%", max_size=6)
LETTERS = st.lists(PIECES, max_size=3).map(
    lambda pieces: ["api", "pipelines", "bad", "dead-letters", *pieces]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner) | st.lists(inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def ui(link):
    shown = Shown(link, Names("bad"))
    shown.add_vertex("enrich")
    shown.bury()
    shown.publish_status()
    with serve_ui(link) as ui:
        yield ui


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "POST", "POST", "PUT", "DELETE", "HEAD"]),
    pieces=st.lists(PIECES, max_size=6) | LETTERS,
    query=st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=8)), max_size=3),
    body=st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_no_request_causes_a_server_error(ui: UiClient, method, pieces, query, body):
    names = "/".join(piece for piece in pieces if piece != "events")
    text = "&".join(f"{name}={quote(value)}" for name, value in query)
    assert ask(ui, method, f"/{names}?{text}", body) < 500


def ask(ui: UiClient, method: str, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", ui.port, timeout=120)
    try:
        connection.request(method, path, body, POST)
        return connection.getresponse().status
    finally:
        connection.close()
