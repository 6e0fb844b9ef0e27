"""The login of a pipeline may do all that its book and a trace need."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from ebbflow.cli.main import app
from ebbflow.nats.link import Link
from ebbflow.nats.login import Addresses, Login
from ebbflow.streams.names import Names, VertexStreams
from ebbflow.streams.provision import derive_permissions
from tests.connectors.serving.desk import Desk, payloads, row
from tests.nats.securing import nats_server


def test_the_login_of_a_pipeline_has_all_permissions_that_its_book_needs(tmp_path: Path):
    names = Names("p")
    vertices = [VertexStreams("in", 1, has_buffer=True, serves=True), VertexStreams("out", 1, True)]
    allowed = derive_permissions(names, vertices, "p-answers")
    (tmp_path / "me.conf").write_text(allowed.to_config())
    config = 'authorization { users: [ { user: "me", password: "m", include "me.conf" } ] }\n'
    with nats_server(tmp_path, config) as port:
        url = f"nats://127.0.0.1:{port}"
        link = Link(Addresses((url,), Login(user="me", password="m"), names.inbox))
        desk = Desk(link, tmp_path, names)
        with desk.opened() as book:
            desk.submit(book, "r")
            desk.submit(book, "open")
            desk.serve("r", b"answer")
            assert payloads(desk.wait(book, "r")) == [b"answer"]
            desk.run(book._records.flush())
        with desk.opened() as book:
            assert payloads(desk.run(book.find("r"))) == [b"answer"]
            desk.report("in", row("open", "redelivered"))
            login = {"EBBFLOW_NATS_USER": "me", "EBBFLOW_NATS_PASSWORD": "m"}
            for request, status in (("r", "completed"), ("open", "in-progress")):
                traced = CliRunner().invoke(app, ["trace", "p", request, "--nats", url], env=login)
                assert f"status:    {status}" in traced.output
        link.close()
        assert "Violation" not in (tmp_path / "nats.log").read_text()
