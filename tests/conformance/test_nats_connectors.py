"""The four NATS connectors keep every rule, on a server with permissions."""

from __future__ import annotations

import json
import socket
import urllib.request

import pytest

from ebbflow.connectors import JetStream, Nats
from ebbflow.connectors.nats.messages import read_keys_and_headers, write_keys_and_headers
from ebbflow.domain.errors import MessageTooLarge
from ebbflow.publishing import Outgoing, Publisher
from ebbflow.testing import (
    SINK_RULES,
    Refused,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.conformance.waiving import RULES_FLOODED_WHEN_ASKED, blocked_when_asked
from tests.nats.outside import Outside
from tests.nats.securing import reload
from tests.waiting import until

pytestmark = pytest.mark.slow

USERS = """
http: "127.0.0.1:{monitor}"
authorization {{ users: [
  {{ user: boss, password: b }}
  {{ user: worker, password: w, permissions: {{ publish: {{ allow: [{allowed}] }} }} }}
] }}
"""


class Server:
    """The server, and the login of the pipelines, which can be denied publishing."""

    def __init__(self, folder, monitor, outside) -> None:
        self._folder, self._monitor = folder, monitor
        self.outside = outside
        self.stream = outside.stream()
        self.access = {
            "url": outside.url.replace("boss:b@", ""),
            "auth": {
                "basic": {"user": {"env": "TRIAL_USER"}, "password": {"env": "TRIAL_PASSWORD"}}
            },
        }

    def allow(self, publishing: str) -> None:
        reload(self._folder, USERS.format(monitor=self._monitor, allowed=publishing))

    def connections(self) -> list[str]:
        """The open connections of the pipelines."""
        address = f"http://127.0.0.1:{self._monitor}/connz?auth=1"
        with urllib.request.urlopen(address, timeout=5) as answer:
            found = json.load(answer)["connections"]
        return [f"connection {one['cid']}" for one in found if one["authorized_user"] == "worker"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nats")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monitor = probe.getsockname()[1]
    users = USERS.format(monitor=monitor, allowed='">"')
    with (
        Outside.running(folder, config=users, login="boss:b@") as outside,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TRIAL_USER", "worker")
        patch.setenv("TRIAL_PASSWORD", "w")
        yield Server(folder, monitor, outside)


class _Nats:
    """What all four have in common."""

    keeps_keys = keeps_headers = True

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stream = server.outside.stream()

    def left_behind(self):
        return self.server.connections()


# --- sources --------------------------------------------------------------------------------------


class StreamUnderTest(_Nats, SourceUnderTest):
    waived = blocked_when_asked()

    def source(self):
        given = {"stream": self.stream.name, "consumer": "c", "ack_wait": "2s"}
        return JetStream(**self.server.access | given)

    def put(self, samples):
        messages = [
            Outgoing(self.stream.subject, one.value, write_keys_and_headers(one.keys, one.headers))
            for one in samples
        ]
        try:
            with Publisher(self.server.outside.url) as publisher:
                publisher.publish_many(messages)
        except MessageTooLarge as error:
            raise Refused(str(error)) from None

    def waiting(self):
        return self.stream.info()["num_pending"]

    def unsettled(self):
        info = self.stream.info()
        return info["num_pending"] + info["num_ack_pending"]


class SubjectUnderTest(_Nats, SourceUnderTest):
    keeps_waiting = False
    waived = blocked_when_asked()

    def source(self):
        return Nats(**self.server.access | {"subject": "plain.>", "queue": "workers"})

    def put(self, samples):
        link = self.server.outside.link
        if any(len(one.value) > link.client.max_payload for one in samples):
            raise Refused("it is larger than a message of NATS can be")
        link.run(self._publish(link.client, samples))

    @staticmethod
    async def _publish(client, samples):
        for one in samples:
            headers = write_keys_and_headers(one.keys, one.headers)
            await client.publish("plain.a", one.value, headers=headers or None)
        await client.flush()


@pytest.fixture(scope="module", params=[StreamUnderTest, SubjectUnderTest])
def source_trial(request, server, tmp_path_factory):
    with SourceTrial(request.param(server), tmp_path_factory.mktemp("source"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", RULES_FLOODED_WHEN_ASKED)
def test_the_nats_sources_keep_every_rule(rule, source_trial):
    rule(source_trial)


# --- sinks ----------------------------------------------------------------------------------------


class _Target(_Nats, SinkUnderTest):
    can_go_down = True

    def go_down(self):
        self.server.allow('"$JS.API.>"')

    def come_up(self):
        self.server.allow('">"')


class StreamTarget(_Target):
    def sink(self):
        return JetStream(**self.server.access | {"subject": self.stream.subject})

    def landed(self):
        return [
            Sample(value, tuple(read_keys_and_headers(subject, headers)[0]), headers)
            for subject, value, headers in self.stream.stored()
        ]


class SubjectTarget(_Target):
    writes_twice = True

    def __init__(self, server):
        super().__init__(server)
        self._received = []
        link = server.outside.link
        self._listening = link.run(link.client.subscribe("landing.a", cb=self._record))
        link.flush()

    async def _record(self, message):
        keys, headers = read_keys_and_headers(message.subject, message.headers)
        self._received.append(Sample(message.data, tuple(keys), headers))

    def sink(self):
        return Nats(**self.server.access | {"subject": "landing.a"})

    def landed(self):
        return list(self._received)


@pytest.fixture(scope="module", params=[StreamTarget, SubjectTarget])
def sink_trial(request, server, tmp_path_factory):
    with SinkTrial(request.param(server), tmp_path_factory.mktemp("sink"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_nats_sinks_keep_every_rule(rule, sink_trial):
    rule(sink_trial)


def test_no_connection_of_the_pipelines_is_left_open(server):
    until(lambda: server.connections() == [])
