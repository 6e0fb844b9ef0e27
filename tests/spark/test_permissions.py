"""A pipeline needs exactly the permissions that ``ebbflow permissions`` prints.

The server logs what it receives, which shows that every permission is used.
"""

from __future__ import annotations

import json
import queue
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ebbflow import Backoff, Message, MonoVertex, Nack, Pipeline, Response
from ebbflow.accounts.taps import TapRequest, Taps
from ebbflow.cli.main import app
from ebbflow.client import Client
from ebbflow.connectors import Blackhole, Generator, Ports
from ebbflow.domain.errors import AccessError, RequestFailed, SetupError
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.locate import open_link
from ebbflow.nats.login import Addresses
from ebbflow.nats.stored import read_last
from ebbflow.operations import answers
from ebbflow.publishing import Login
from ebbflow.runtime.provision import permissions_of
from ebbflow.spark.run import run_pipeline
from ebbflow.status.model import PipelineStatus
from ebbflow.status.run_report import Watcher
from ebbflow.status.stored import follow_status, read_chunks, read_history, read_status
from ebbflow.streams import catalogue, provision
from ebbflow.streams.logs import LogEntry
from ebbflow.streams.logs import follow_logs as follow_entries
from ebbflow.streams.names import Names
from ebbflow.streams.provision import Permissions
from ebbflow.testing.background_run import BackgroundRun
from tests.connectors.user_code.queue import QueueFile, RedeliveringQueue
from tests.engine.sample_rows import account_of, some, verdict_on
from tests.nats.securing import nats_server, reload
from tests.streams.test_provision import matches, subjects

pytestmark = pytest.mark.slow

QUICK = Backoff("10ms", steps=1)
# A vertex that ran inline parks a row when its own task reads it, unless it is due by then.
PARKED = "3s"
_SENT = re.compile(r'/user:me" - <<- \[(H?PUB|SUB) (\S+)')


class Watched:
    """A server that logs what each login sends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0

    @contextmanager
    def serving(self, allowed: Permissions) -> Iterator[Watched]:
        with nats_server(self.folder, self._config(allowed)) as self.port:
            yield self

    def allow(self, allowed: Permissions) -> None:
        reload(self.folder, self._config(allowed))

    def _config(self, allowed: Permissions) -> str:
        (self.folder / "me.conf").write_text(allowed.to_config())
        return (
            'trace: true\nauthorization { users: [ { user: "admin", password: "a" }, '
            '{ user: "me", password: "m", include "me.conf" } ] }\n'
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def as_(self, user: str, password: str, inbox: str = "_INBOX") -> Addresses:
        return Addresses((self.url,), Login(user=user, password=password), inbox)

    def dlq(self, *arguments: str) -> str:
        """Runs a dead-letter command with the login of the pipeline."""
        return self.run("dlq", *arguments)

    def run(self, *arguments: str) -> str:
        """Runs a command with the login of the pipeline."""
        login = {"EBBFLOW_NATS_USER": "me", "EBBFLOW_NATS_PASSWORD": "m"}
        result = CliRunner().invoke(app, [*arguments, "--nats", self.url], env=login)
        assert result.exit_code == 0, result.output
        return result.output

    def sent(self) -> tuple[set[str], set[str]]:
        """The subjects that the login of the pipeline has published and subscribed to."""
        found = set(_SENT.findall((self.folder / "nats.log").read_text()))
        published = {subject for verb, subject in found if verb.endswith("PUB")}
        return published, {subject for verb, subject in found if verb == "SUB"}

    def violations(self) -> list[str]:
        log = (self.folder / "nats.log").read_text()
        return re.findall(r".*Violation.*", log)


@pytest.fixture
def server(tmp_path: Path) -> Watched:
    folder = tmp_path / "server"
    folder.mkdir()
    return Watched(folder)


def number(datum):
    return json.loads(datum.value)["value"]


def troubled(datum):
    """Nacks some messages once, at once or with a delay, and always fails on one."""
    print("in prints")
    if datum.deliveries == 1 and number(datum) in (1, 2):
        raise Nack(delay="0s" if number(datum) == 1 else "50ms")
    if number(datum) == 3:
        raise ValueError("cannot be")
    return Message(datum.value)


def answer(data):
    print("out prints")
    ends = []
    for datum in data:
        value = number(datum)
        if datum.deliveries == 1 and value in (4, 5):
            ends.append(Response.nack(datum.id, delay="0s" if value == 4 else PARKED))
        elif value == 6:
            ends.append(Response.failure(datum.id, "no"))
        else:
            ends.append(Response.serve(datum.id, b"an answer"))
    return ends


def some_of_everything(name: str) -> Pipeline:
    """Every vertex redelivers at once and with a delay, and dead-letters; the sink also answers."""
    return (
        Pipeline(name, serving_store="nats")
        .source("in", Generator(messages=12), transformer=troubled, on_error=QUICK)
        .map("work", lambda d: troubled_later(d), on_error=QUICK)
        .sink("out", answer, on_error=QUICK)
    )


def troubled_later(datum):
    """Like ``troubled``, for messages that reach this vertex."""
    print("work prints")
    if datum.deliveries == 1 and number(datum) in (7, 8):
        raise Nack(delay="0s" if number(datum) == 7 else PARKED)
    if number(datum) == 9:
        raise ValueError("cannot be")
    return Message(datum.value)


class Impatient(Watcher):
    """Tries to run the pipeline a second time while it runs, which is rejected."""

    def __init__(self, pipeline: Pipeline, options: dict[str, Any]) -> None:
        self._again = lambda: run_pipeline(pipeline.spec, **options)
        self._tried = False

    def look(self, status: PipelineStatus) -> None:
        if not self._tried:
            self._tried = True
            with pytest.raises(SetupError, match="Pipeline p is running already"):
                self._again()


def have_changed(server: Watched) -> None:
    """Changes the streams as if from an earlier version: the next run updates them."""
    with open_link(server.as_("admin", "a")) as link:
        found = link.run(api.list_streams(link.client, ""))
        for stream in found:
            config = link.run(api.call(link.client, f"STREAM.INFO.{stream}"))["config"]
            changed = config | {"duplicate_window": config["duplicate_window"] // 2}
            link.run(api.call(link.client, f"STREAM.UPDATE.{stream}", changed))


def follow_logs(server: Watched) -> None:
    """As ``ebbflow logs --follow`` does, with the permissions of the pipeline."""
    entries: queue.Queue[Sequence[LogEntry]] = queue.Queue()
    names = Names("p")
    with open_link(server.as_("me", "m", names.inbox)) as link:
        follower = link.run(follow_entries(link.client, names, "out", 0, entries.put, print))
        assert entries.get(timeout=120)[0].printed.text == "out prints"
        link.run(follower.close())


def look_inside(server: Watched) -> None:
    """Pauses, resumes, draws and taps, with the permissions of the pipeline."""
    assert server.run("pause", "p", "out").startswith("Paused: out.")
    assert server.run("resume", "p").startswith("Resumed: out.")
    assert "work" in server.run("graph", "p")
    assert server.run("tap", "p", "work", "--waiting") == ""
    assert server.run("tap", "p", "work", "--timeout", "100ms") == ""
    names = Names("p")
    with open_link(server.as_("me", "m", names.inbox)) as link:
        # As tasks do during a tap.
        taps = Taps(link, names, "work", known={})
        taps.take(TapRequest("t", "work").to_json())
        taps.see(account_of(verdict_on(some("a"))))
        link.flush()


def look_at_status(server: Watched) -> None:
    """As ``ebbflow status --watch`` and the web UI do, with the permissions of the pipeline."""
    names = Names("p")

    async def follow(client: SecuredClient) -> PipelineStatus:
        async with aclosing(follow_status(client, names)) as statuses:
            return await anext(statuses)

    with open_link(server.as_("me", "m", names.inbox)) as link:
        assert read_status(link, names).ended == "drained"
        assert read_history(link, names)[-1].vertices["in"].read
        assert read_chunks(link, names, "in")
        assert link.run(follow(link.client)).phase == "ended"


def unused(allowed: Permissions, server: Watched) -> list[str]:
    lists = (allowed.publish, allowed.subscribe)
    return [
        pattern
        for groups, sent in zip(lists, server.sent(), strict=True)
        for pattern in subjects(groups)
        if not any(matches(pattern, subject) for subject in sent)
    ]


@pytest.mark.guarantee("printed-permissions-are-enough")
def test_a_pipeline_needs_exactly_its_printed_permissions(run, server):
    pipeline = some_of_everything("p")
    allowed = permissions_of(pipeline.spec)
    login = Login(user="me", password="m")
    with server.serving(allowed):
        options = {"nats": server.url, "login": login}
        first = run(pipeline, watcher=Impatient(pipeline, options), **options)
        assert first.ended == "drained"
        assert {name: c.dead_lettered for name, c in first.vertices.items()} == {
            "in": 1,
            "work": 1,
            "out": 1,
        }
        assert first.vertices["out"].served == 9

        assert "work: work prints" in server.run("logs", "p", "--lines", "20")
        follow_logs(server)
        look_inside(server)
        look_at_status(server)
        assert "3 dead letters" in server.dlq("list", "p")
        shown = [server.dlq("show", "p", str(letter)) for letter in (1, 2, 3)]
        assert sum("cannot be" in letter for letter in shown) == 2
        server.dlq("replay", "p", "--text", "in no letter of any vertex")
        server.dlq("replay", "p", "--vertex", "out", "--since", "1h")
        server.dlq("purge", "p", "--vertex", "work", "--yes")
        have_changed(server)
        second = run(pipeline, **options)
        assert second.vertices["out"].read == 1
        assert "2 dead letters" in server.dlq("list", "p")
        third = run(pipeline, fresh=True, **options)
        assert third.totals["out"].served == 9

        with answers("p", nats=server.url.replace("//", "//me:m@")) as stored:
            assert [answer.payload for answer in stored.get("in-0")] == [b"an answer"]
            assert len([*stored.list()]) == 9
            assert next(stored.watch("in-0")).request == "in-0"
        assert server.violations() == []
        # These are for a cluster, where a replica may lag behind.
        assert unused(allowed, server) == [
            "$JS.API.STREAM.INFO.ebb_p_status",
            "$JS.API.STREAM.MSG.GET.ebb_p_status",
            "$JS.API.STREAM.MSG.GET.ebb_p_logs",
            "$JS.API.STREAM.INFO.KV_ebb_p_answers",
            "$JS.API.STREAM.MSG.GET.KV_ebb_p_answers",
        ]


@pytest.mark.long
def test_a_monovertex_with_a_redelivering_source_needs_its_printed_permissions(
    run, server, tmp_path
):
    queue = QueueFile(tmp_path / "queue.db")
    queue.fill(json.dumps({"value": n}).encode() for n in range(5))
    source = type("MyQueue", (RedeliveringQueue,), {"path": str(queue.path)})
    mono = (
        MonoVertex("m", on_error=QUICK)
        .source(source)
        .map(troubled)
        .sink(lambda data: [Response.ok(datum.id) for datum in data])
    )
    allowed = permissions_of(mono.spec)
    with server.serving(allowed):
        summary = run(mono, nats=server.url, login=Login(user="me", password="m"))
        assert summary.vertices["m"].dead_lettered == 1
        assert server.violations() == []
        # The rest is for other versions, for --fresh and for runs that were stopped in between.
        assert [subject for subject in unused(allowed, server) if "returned" in subject] == [
            "$JS.API.STREAM.UPDATE.ebb_m_returned",
            "$JS.API.STREAM.DELETE.ebb_m_returned",
            "$JS.API.DIRECT.GET.ebb_m_returned",
            "$JS.API.STREAM.MSG.GET.ebb_m_returned",
        ]


class Serving(BackgroundRun):
    """A pipeline that answers requests, with the login of the server."""

    def __init__(self, pipeline: Pipeline, server: Watched, state: Path) -> None:
        self.url = ""
        super().__init__(pipeline, state, nats=server.url, login=Login(user="me", password="m"))

    def stage(self, text: str) -> None:
        if found := re.search(r"requests at (http://\S+)/v1/process", text):
            self.url = found[1]


@pytest.mark.guarantee("printed-permissions-are-enough")
def test_a_serving_pipeline_needs_its_printed_permissions(spark, server, tmp_path):
    ports = Ports(http=0, https=0)
    pipeline = (
        Pipeline("s")
        .serve("in", ports=ports, transformer=troubled, on_error=QUICK)
        .sink("out", answer, on_error=QUICK)
    )
    allowed = permissions_of(pipeline.spec)
    with server.serving(allowed):
        first = Serving(pipeline, server, tmp_path / "state")
        with Client(first.url) as client:
            for value in (0, 2, 5):
                assert client.ask({"value": value}).results == (b"an answer",)
            with pytest.raises(RequestFailed, match="cannot be"):
                client.ask({"value": 3})
            client.submit({"value": 1}, id="mine")
            assert client.wait("mine").results == (b"an answer",)
            assert len([*client.stream({"value": 4})]) == 1
            assert client.status("mine").status == "completed"
        first.stop()
        second = Serving(pipeline, server, tmp_path / "state")
        with Client(second.url) as client:
            assert client.fetch("mine").results == (b"an answer",)
        second.stop()
        assert "completed" in server.run("trace", "s", "mine")
        assert server.violations() == []
        # The rest is for other versions, for --fresh, for dead letters and for clusters.
        idle = [subject for subject in unused(allowed, server) if "_trail" in subject]
        assert idle == ["$JS.API.STREAM.UPDATE.ebb_s_trail", "$JS.API.STREAM.DELETE.ebb_s_trail"]


@pytest.mark.long
def test_a_vertex_with_planned_batches_needs_its_printed_permissions(run, server):
    pipeline = (
        Pipeline("q")
        .source("in", Generator(messages=20))
        .map("half", sql="SELECT id, value FROM messages WHERE deliveries = 1")
        .sink("out", lambda data: [Response.ok(datum.id) for datum in data])
    )
    allowed = permissions_of(pipeline.spec)
    with server.serving(allowed):
        summary = run(pipeline, nats=server.url, login=Login(user="me", password="m"))
        assert summary.vertices["out"].done == 20
        assert server.violations() == []
        # The rest is for other versions, for --fresh, and for a batch that ends inside a frame.
        assert [s for s in unused(allowed, server) if s.endswith("ebb_q_half_0")] == [
            "$JS.API.STREAM.UPDATE.ebb_q_half_0",
            "$JS.API.STREAM.DELETE.ebb_q_half_0",
            "$JS.API.STREAM.MSG.GET.ebb_q_half_0",
        ]


@pytest.mark.guarantee("printed-permissions-are-enough")
@pytest.mark.parametrize("name", ["other", "p-2"])
def test_the_permissions_of_a_pipeline_give_no_access_to_another_one(run, server, name):
    mine, theirs = some_of_everything("p"), some_of_everything(name)
    stream = f"ebb_{name}_out_0"
    with server.serving(permissions_of(mine.spec)):
        run(theirs, nats=server.url, login=Login(user="admin", password="a"))
        with open_link(server.as_("me", "m", Names("p").inbox)) as link:
            for call in (
                f"STREAM.INFO.{stream}",
                f"STREAM.DELETE.{stream}",
                f"STREAM.PURGE.{stream}",
                f"STREAM.MSG.GET.ebb_{name}_deadletters",
                f"CONSUMER.CREATE.{stream}.x",
                "STREAM.LIST",
                "STREAM.CREATE.mine",
            ):
                with pytest.raises(AccessError, match=re.escape(call)):
                    link.run(api.call(link.client, call, {}))
            with pytest.raises(AccessError, match=r"DIRECT\.GET"):
                link.run(read_last(link.client, f"KV_ebb_{name}_positions", ">"))
            for subject in chain.from_iterable(permissions_of(theirs.spec).subscribe.values()):
                with open_link(server.as_("me", "m", Names("p").inbox)) as listening:
                    listening.run(listening.client.subscribe(subject))
                    with pytest.raises(AccessError, match=re.escape(subject)):
                        listening.run(api.list_streams(listening.client, ""))


def without(allowed: Permissions, subject: str) -> Permissions:
    cut = {k: [s for s in found if s != subject] for k, found in allowed.publish.items()}
    assert cut != allowed.publish
    return Permissions(cut, allowed.subscribe)


@pytest.mark.guarantee("denied-subjects-are-named")
def test_a_run_names_a_missing_permission_and_continues_once_it_is_granted(run, server):
    """One that only workers use is shown as the vertex's failure; the driver's end the run."""
    source = Pipeline("p", inline=False).source("in", Generator(messages=5))
    pipeline = source.sink("out", Blackhole())
    allowed = permissions_of(pipeline.spec)
    seen: list[str] = []

    class Granting(Watcher):
        """Grants the permission when the failure has been shown."""

        def look(self, status):
            failure = status["in"].failure
            if failure and not seen:
                seen.append(failure)
                server.allow(allowed)

    login = Login(user="me", password="m")
    subject = "ebb.p.vertex.out.0.in"
    with server.serving(without(allowed, subject)):
        summary = run(pipeline, nats=server.url, login=login, watcher=Granting())
        assert summary.vertices["out"].done == 5
        assert re.fullmatch(
            rf"PermanentPublishError: {subject}: refused by the server after 1 attempt in .* s: "
            "the login may not publish to it",
            seen[0],
        )
        with open_link(server.as_("admin", "a")) as link:
            link.run(
                provision.ensure(link.client, catalogue.redelivery_config(Names("p"), "old", 0))
            )
            with pytest.raises(SetupError) as refused:
                run(pipeline, nats=server.url, login=login)
            link.run(api.delete(link.client, ["ebb_p_old_0_redelivery"]))
        assert str(refused.value) == (
            "Stream ebb_p_old_0_redelivery is of a vertex or partition that the pipeline no longer "
            "has, and this login may not look into it. Give it the permissions of the earlier "
            "form, too, or delete the stream."
        )
        call = "$JS.API.STREAM.INFO.ebb_p_out_0"
        server.allow(without(allowed, call))
        with pytest.raises(SetupError) as ended:
            run(pipeline, nats=server.url, login=login)
        assert str(ended.value) == (
            f"NATS at {server.url} does not let this login publish to {call}. "
            "Give it the permissions that are printed by: ebbflow permissions SPEC"
        )
