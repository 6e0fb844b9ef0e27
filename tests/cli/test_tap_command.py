"""``ebbflow tap``: messages that wait at a vertex, messages that arrive at one, output formats."""

import json
import threading
import time

import pytest
from typer.testing import CliRunner

from ebbflow.accounts.taps import TapRequest, Taps, pack_rows
from ebbflow.cli.main import app
from ebbflow.operations.sending import Sender, SentMessage
from ebbflow.operations.tapping import tap_vertex
from ebbflow.runtime.control import obey
from tests.engine.sample_rows import account_of, some, verdict_on
from tests.waiting import until


@pytest.fixture
def run_tap(state, standing):
    def invoke(*args):
        return CliRunner().invoke(app, ["tap", standing.name, *args, "--state", str(state)])

    return invoke


@pytest.fixture
def waiting(link, standing):
    sender = Sender(link, standing.names, "out")
    messages = [SentMessage(f"value {n}".encode(), f"m{n}", [f"k{n}"]) for n in range(3)]
    sender.send_page(messages)
    Sender(link, standing.names, "in").send_page([SentMessage(b"\xff", "source")])


@pytest.mark.usefixtures("waiting")
def test_waiting_messages_are_shown_as_lines_by_pattern_and_as_json(run_tap):
    text = run_tap("out", "--waiting").output.splitlines()
    assert sorted(line.partition(" ")[2] for line in text) == [
        f"out.0 m{n} waiting keys=k{n} value {n}" for n in range(3)
    ]
    pattern = run_tap("out", "--waiting", "-f", "{id}={value} {keys}", "--text", "value 2")
    assert pattern.output == "m2=value 2 k2\n"
    (source,) = map(json.loads, run_tap("in", "--waiting", "--json").output.splitlines())
    assert (source["value"], source["outcome"]) == ({"base64": "/w=="}, "waiting again")
    assert len(run_tap("out", "--waiting", "--limit", "2").output.splitlines()) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere"], "has no vertex 'nowhere'"),
        (["out", "-f", "{ids}"], "there is no field 'ids'; text, json, or fields: {at}"),
        (["out", "-f", "jsn"], "'jsn' has no fields"),
        (["out", "--outcome", "fine"], "'fine' is not one of done, sent"),
    ],
    ids=["vertex", "field", "format", "outcome"],
)
def test_mistakes_are_explained(run_tap, args, said):
    result = run_tap(*args)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())


def test_a_tap_on_a_vertex_with_batches_shows_arriving_messages(link, standing):
    passing = tap_vertex(link, standing.names, TapRequest("", "table"))
    assert next(passing).rows == []
    Sender(link, standing.names, "table").send_page(
        [SentMessage(b"v", "a"), SentMessage(b"w", "b")]
    )
    seen = _gather(passing, 2)
    assert sorted((row["id"], row["outcome"]) for row in seen) == [
        ("a", "arrived"),
        ("b", "arrived"),
    ]


def _gather(passing, count, seconds=20):
    deadline, seen = time.monotonic() + seconds, []
    while len(seen) < count and time.monotonic() < deadline:
        seen += next(passing).rows
    passing.close()
    return seen


def test_tasks_publish_passing_messages_only_while_a_tap_is_open(link, standing):
    names = standing.names
    taps = Taps(link, names, "sorted", known={})
    asked = threading.Event()

    async def receive(message):
        obey(message.data, {"tap": taps.take, "untap": taps.end})
        asked.set()

    subscription = link.run(link.client.subscribe(names.control_subject, cb=receive))
    verdict = verdict_on(some("a", "b"))
    taps.see(account_of(verdict))
    assert taps._sending is None, "no tap is open"
    passing = tap_vertex(link, names, TapRequest("", "sorted"))
    assert next(passing).rows == []
    assert asked.wait(20)
    taps.see(account_of(verdict))
    assert [row["id"] for row in _gather(passing, 2)] == ["a", "b"]
    link.flush()
    until(lambda: not taps._taps)
    link.run(subscription.unsubscribe())


class Clock:
    """A clock that is set by hand."""

    at = 0.0

    def monotonic(self):
        return self.at


def test_a_tap_keeps_to_its_rate_and_ends_when_its_request_is_not_renewed(link, standing):
    clock = Clock()
    taps = Taps(link, standing.names, "v", {}, clock.monotonic)
    request = TapRequest("t", "v", seconds=5, rate=3)
    taps.take(TapRequest("other", "w").to_json())
    assert not taps._taps
    taps.take(request.to_json())
    tapped = taps._taps["t"]
    verdict = verdict_on(some("a", "b"))

    def show():
        taps.see(account_of(verdict))
        if taps._sending is not None:
            taps._sending.result(10)
        return tapped.left, tapped.skipped

    assert [show(), show(), show()] == [(1, 0), (0, 0), (0, 2)]
    clock.at = 1.5
    assert show() == (1, 0)
    clock.at = 4.0
    taps.take(request.to_json())
    clock.at = 8.0
    taps.see(account_of(verdict))
    assert taps._taps
    clock.at = 9.5
    taps.see(account_of(verdict))
    assert not taps._taps


def test_a_tap_that_fails_costs_the_task_nothing(link, standing):
    taps = Taps(link, standing.names, "v", known={})
    taps.take(TapRequest("t", "v", sample="half").to_json())  # type: ignore[arg-type]
    taps.see(account_of(verdict_on(some("a"))))
    assert not taps._taps


def test_rows_are_sent_in_messages_that_are_not_too_large():
    rows = [{"value": "x" * 200_000}] * 5
    parts = [json.loads(part) for part in pack_rows(rows, 7)]
    assert [len(part["rows"]) for part in parts] == [2, 2, 1]
    assert [part["skipped"] for part in parts] == [7, 0, 0]
