"""The serving source on a real server: requests are stored, and found again by the next run."""

from __future__ import annotations

import gc
import json
import ssl
import urllib.request
from dataclasses import replace

import pytest

from ebbflow.connectors.serving.source import ServingFeed
from ebbflow.domain.errors import SetupError
from ebbflow.streams import catalogue, provision
from ebbflow.web.server import Endpoint
from tests.connectors.http.posting import in_background, posting
from tests.connectors.serving.asking import started
from tests.connectors.serving.desk import Desk
from tests.waiting import until


@pytest.fixture
def desk(link, names, tmp_path):
    return Desk(link, tmp_path, names)


def test_a_request_is_stored_answered_and_known_to_the_next_run(desk):
    with started(ServingFeed, desk.context) as server:
        assert server.post("async", b"1", X_Numaflow_Id="later", X_Own="1").status == 200
        ((stored,),) = desk.waiting()
        assert (stored["id"], stored["value"], stored["headers"]["x-own"]) == ("later", b"1", "1")
        thread, answers = in_background(lambda: server.post("sync", b"2", X_Numaflow_Id="now"))
        until(lambda: len(desk.waiting()) == 2)
        desk.serve("now", b"a", b"bc")
        thread.join()
        assert (answers[0].status, answers[0].body) == (200, b"abc")
        assert answers[0].headers["Numaflow-Array-Index-Len"] == "1,2"
    with started(ServingFeed, desk.context) as server:
        assert server.post("sync", b"1", X_Numaflow_Id="later").status == 409
        assert server.get("fetch?id=later").json == {"status": "in-progress"}
        assert server.get("fetch?id=now").body == b"abc"
        desk.serve("later", b"d")
        until(lambda: server.get("fetch?id=later").body == b"d")
        assert server.get("status?id=later").json["status"] == "completed"


def test_a_caller_waiting_at_a_stop_receives_the_id_to_fetch(desk, monkeypatch):
    monkeypatch.setattr(ServingFeed, "grace", 0.1)
    with started(ServingFeed, desk.context) as server:
        thread, answers = in_background(lambda: server.post("sync", b"?", X_Numaflow_Id="open"))
        until(desk.waiting)
    thread.join()
    assert (answers[0].status, answers[0].json["id"]) == (503, "open")
    with started(ServingFeed, desk.context) as server:
        desk.serve("open", b"after all")
        until(lambda: server.get("fetch?id=open").body == b"after all")


def test_http_and_serving_sources_share_a_server(desk, link, tmp_path):
    pipeline = desk.names.pipeline
    link.run(provision.ensure(link.client, catalogue.seen_config(desk.names)))
    with (
        started(ServingFeed, desk.context) as server,
        posting(link, tmp_path, pipeline=pipeline, vertex="other") as posted,
    ):
        assert posted.port == server.port
        assert posted.post(b"x").status == 200
        assert server.post("async", b"y").status == 200
        assert server.ask("GET", "/ready").status == 200


def test_two_serving_sources_do_not_share_a_port(desk, link):
    other = replace(desk.context, vertex="other")
    link.run(provision.ensure(link.client, catalogue.buffer_config(desk.names, "other", 0, 10)))
    with started(ServingFeed, desk.context) as server:
        with pytest.raises(SetupError) as raised, started(ServingFeed, other):
            pass
        assert server.post("async", b"y").status == 200
    assert str(raised.value) == (
        f"Two sources take requests at {server.url}/v1/process/sync. "
        "Give the vertex other other ports."
    )


def test_requests_can_be_sent_over_tls(desk):
    secured = (Endpoint("127.0.0.1", 0, self_signed=True),)
    with started(ServingFeed, desk.context, secured) as server:
        unchecked = ssl._create_unverified_context()
        asked = urllib.request.Request(f"{server.url}/v1/process/async", b"x")
        with urllib.request.urlopen(asked, context=unchecked, timeout=120) as answer:
            assert json.load(answer)["code"] == 200


def test_the_garbage_collector_skips_older_objects_while_requests_are_served(desk):
    gc.unfreeze()  # what the tests themselves have frozen
    try:
        with started(ServingFeed, desk.context):
            assert gc.get_freeze_count() > 1_000
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
