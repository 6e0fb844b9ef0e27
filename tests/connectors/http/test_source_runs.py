"""HTTP sources in running pipelines: posted messages arrive, even after a restart."""

from __future__ import annotations

import http.client
import socket
import time

import pytest

from ebbflow import Message, MonoVertex, Pipeline, Response
from ebbflow.connectors import Blackhole, Http, Ports
from ebbflow.domain.errors import SetupError
from ebbflow.publishing import Login
from ebbflow.runtime.provision import permissions_of
from ebbflow.status.run_report import Watcher
from ebbflow.testing.background_run import BackgroundRun, until
from tests.connectors.http.posting import NDJSON, Answered, asked
from tests.nats.securing import nats_server
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def store(journal):
    def sink(data):
        journal.write(*([datum.id, datum.value.decode(), datum.keys] for datum in data))
        return [Response.ok(datum.id) for datum in data]

    return sink


def post(port: int, vertex: str, body: bytes, **headers: str) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        return asked(connection, "POST", f"/vertices/{vertex}", body, named)
    finally:
        connection.close()


def test_posts_to_two_sources_on_one_port_arrive(port, store, journal, tmp_path):
    both = {"ports": {"http": port}}
    pipeline = (
        Pipeline("test")
        .source("one", Http(**both), partitions=2)
        .source("two", Http(**both))
        .sink("out", store, after=["one", "two"])
    )
    live = BackgroundRun(pipeline, tmp_path / "state")
    try:
        for number in range(20):
            post(port, "one", b"%d" % number, x_numaflow_id=f"a{number}", x_numaflow_keys="k")
        post(port, "two", b"20\n21\n22", x_numaflow_id="b", content_type=NDJSON)
        assert until(lambda: len(journal.read()) >= 23, 120)
    finally:
        summary = live.stop()

    wanted = [[f"a{n}", str(n), ["k"]] for n in range(20)]
    wanted += [["b-0", "20", []], ["b-1", "21", []], ["b-2", "22", []]]
    assert sorted(journal.read()) == sorted(wanted)
    assert (summary.vertices["one"].read, summary.vertices["two"].read) == (20, 3)


def test_a_restart_loses_no_message_and_keeps_the_known_ids(port, store, journal, tmp_path):
    mono = MonoVertex("test").source(Http(ports=Ports(http=port))).map(slowly).sink(store)
    posted = 0
    for _ in range(2):
        live = BackgroundRun(mono, tmp_path / "state")
        try:
            for number in range(50):
                assert post(port, "test", b"%d" % number, x_numaflow_id=f"m{number}").status == 200
            for _ in range(20):
                assert post(port, "test", b"new").status == 200
            posted += 20
        finally:
            live.stop()
    live = BackgroundRun(mono, tmp_path / "state")
    try:
        assert until(lambda: len(journal.read()) >= 50 + posted, 120)
    finally:
        summary = live.stop()

    values = [value for _, value, _ in journal.read()]
    assert sorted(values) == sorted([*map(str, range(50)), *["new"] * posted])
    assert summary.totals["test"].read == 50 + posted


def slowly(datum):
    time.sleep(0.02)
    return Message(datum.value)


class Stages(Watcher):
    def __init__(self):
        self.stages = []

    def stage(self, text):
        self.stages.append(text)


def test_a_taken_port_ends_the_run_before_spark_starts(run, tmp_path):
    stages = Stages()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        pipeline = Pipeline("test").source("in", Http(ports=Ports(http=port)))
        with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            run(pipeline.sink("out", Blackhole()), watcher=stages)
    assert [stage for stage in stages.stages if "NATS" not in stage] == []


def test_a_pipeline_runs_with_the_permissions_printed_for_it(port, store, journal, tmp_path):
    pipeline = Pipeline("test").source("in", Http(ports=Ports(http=port))).sink("out", store)
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "me.conf").write_text(permissions_of(pipeline.spec).to_config())
    config = 'authorization { users: [ { user: "me", password: "m", include "me.conf" } ] }\n'
    with nats_server(tmp_path / "nats", config) as server:
        login = Login(user="me", password="m")
        live = BackgroundRun(
            pipeline, tmp_path / "state", nats=f"nats://127.0.0.1:{server}", login=login
        )
        try:
            assert post(port, "in", b"x", x_numaflow_id="a").status == 200
            assert until(lambda: journal.read() == [["a", "x", []]], 120)
        finally:
            live.stop()
        assert "Violation" not in (tmp_path / "nats" / "nats.log").read_text()
