"""The HTTP source, the HTTP sink and the file sink keep the rules that all connectors keep."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
from base64 import b64decode

import pytest

from ebbflow.connectors import File, Http, HttpBatch, Ports
from ebbflow.testing import (
    SINK_RULES,
    SOURCE_RULES,
    Full,
    Refused,
    Sample,
    SinkTrial,
    SinkUnderTest,
    SourceTrial,
    SourceUnderTest,
)
from tests.conformance.conftest import PATIENCE
from tests.connectors.http.receiver import Receiver
from tests.ports import free_port

pytestmark = pytest.mark.slow


# --- the source ---------------------------------------------------------------------------------


class HttpSourceUnderTest(SourceUnderTest):
    """Clients that post one by one, or several lines at once if the messages are plain values."""

    keeps_keys = True
    keeps_waiting = False
    path = "/vertices/in"
    lines = 10
    flood = 6_000  # the buffer holds 100 frames, each of at most the four posts that come together

    def __init__(self) -> None:
        self.port = free_port()
        self._threads = threading.local()

    def source(self):
        return Http(ports=Ports(http=self.port))

    def put(self, samples):
        plain = not any(one.keys or b"\n" in one.value or not one.value for one in samples)
        if plain and len(samples) > 1:
            for start in range(0, len(samples), self.lines):
                some = samples[start : start + self.lines]
                self._post(b"\n".join(s.value for s in some), {"content-type": NDJSON}, start)
        else:
            for number, sample in enumerate(samples):
                self._post(sample.value, self._keys(sample), number)

    def _keys(self, sample):
        keys = ",".join(sample.keys)
        if keys.strip() != keys:
            raise Refused("a header cannot have blanks at its ends")
        return {"x-numaflow-keys": keys.encode()} if keys else {}

    def _post(self, body, headers, taken):
        status, reason = self._answer(body, {"x-numaflow-id": secrets.token_hex(8), **headers})
        if status == 429:
            raise Full(taken)
        if status == 413:
            raise Refused(reason)
        assert status == 200, (status, reason)

    def _answer(self, body, headers):
        if not hasattr(self._threads, "connection"):
            self._threads.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            self._threads.connection.request("POST", self.path, body, headers)
            response = self._threads.connection.getresponse()
            return response.status, response.read().decode()
        except (http.client.HTTPException, ConnectionError):
            # Closed by the stop of an earlier run; the id makes it safe to post again.
            del self._threads.connection
            return self._answer(body, headers)


NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def source_trial(tmp_path_factory):
    with SourceTrial(HttpSourceUnderTest(), tmp_path_factory.mktemp("source"), PATIENCE) as trial:
        yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_the_http_source_keeps_every_rule(rule, source_trial):
    rule(source_trial)


# --- the sinks ----------------------------------------------------------------------------------


class HttpSinkUnderTest(SinkUnderTest):
    """A web server that records what it receives."""

    can_refuse = True
    can_go_down = True
    writes_twice = True

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.refuse = receiver.refuse
        self.go_down = receiver.go_down
        self.come_up = receiver.come_up

    def sink(self):
        return Http(url=self._receiver.url, timeout="2m")

    def landed(self):
        return [Sample(one.body) for one in self._receiver.taken]


class HttpBatchSinkUnderTest(HttpSinkUnderTest):
    """The same, with many messages in a request."""

    keeps_keys = True
    keeps_headers = True

    def __init__(self, receiver: Receiver, form: str) -> None:
        super().__init__(receiver)
        self._form = form

    def sink(self):
        return Http(
            url=self._receiver.url, timeout="2m", batch=HttpBatch(format=self._form, size=50)
        )

    def landed(self):
        return [sample_of(json.loads(one.body)) for one in self._receiver.taken]


def sample_of(record):
    value = record.get("value")
    raw = b64decode(record["valueBase64"]) if value is None else value.encode()
    return Sample(raw, tuple(record["keys"]), record["headers"])


class FileSinkUnderTest(SinkUnderTest):
    """A file for each partition. While it is down there is a folder in its place."""

    writes_twice = True
    can_go_down = True

    def __init__(self, folder, form) -> None:
        self._folder = folder
        self._form = form
        self._aside = folder.parent / "aside"
        self.keeps_keys = self.keeps_headers = form == "json"

    def go_down(self):
        (self._folder / "out-0.txt").rename(self._aside)
        (self._folder / "out-0.txt").mkdir()

    def come_up(self):
        if self._aside.exists():
            (self._folder / "out-0.txt").rmdir()
            self._aside.rename(self._folder / "out-0.txt")

    def sink(self):
        path = str(self._folder / "{vertex}-{partition}.txt")
        return File(path=path, format=self._form)

    def landed(self):
        lines = [
            line
            for path in self._folder.glob("*")
            if path.is_file()
            for line in path.read_bytes().split(b"\n")[:-1]
        ]
        if self._form == "json":
            return [sample_of(json.loads(line)) for line in lines]
        return [Sample(line) for line in lines]


@pytest.fixture(scope="module", params=["http", "http ndjson", "lines", "json"])
def sink_trial(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sink")
    kind, _, form = request.param.rpartition(" ")
    with Receiver() as receiver:
        if request.param == "http":
            under_test = HttpSinkUnderTest(receiver)
        elif kind == "http":
            under_test = HttpBatchSinkUnderTest(receiver, form)
        else:
            under_test = FileSinkUnderTest(folder / "out", form)
        with SinkTrial(under_test, folder / "state", PATIENCE) as trial:
            yield trial


@pytest.mark.guarantee("connectors-keep-the-same-rules")
@pytest.mark.parametrize("rule", SINK_RULES)
def test_the_http_and_file_sinks_keep_every_rule(rule, sink_trial):
    rule(sink_trial)
