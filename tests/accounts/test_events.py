"""Events of tasks: any text arrives, and nothing fails because of the connection."""

from __future__ import annotations

import queue

import pytest

from ebbflow.accounts.events import Events
from ebbflow.accounts.listener import TaskListener
from ebbflow.nats.embedded import EmbeddedServer, StateFolder
from ebbflow.nats.locate import open_link
from ebbflow.nats.publish import Tally
from ebbflow.usercode.printing import Printed
from tests.waiting import until


@pytest.fixture
def received(link, names):
    """The texts that a listener has received."""
    texts = queue.Queue()
    with TaskListener(names, lambda entry: texts.put(entry.printed.text)).listen(link):
        link.flush()
        yield texts


@pytest.fixture
def events(link, names):
    return Events(link, names, "v", 0, Tally())


@pytest.mark.parametrize(
    ("text", "shown"), [("caf\u00e9 \U0001f600", None), ("a \ud800 b", "a \\ud800 b"), ("\0", None)]
)
def test_any_character_can_be_reported(events, received, text, shown):
    events.log(Printed(text))
    assert received.get(timeout=120) == (shown or text)


@pytest.mark.guarantee("failures-stay-with-their-message")
@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600"])
def test_a_text_larger_than_a_message_arrives_in_pieces(link, events, received, character):
    text = character * (link.client.max_payload + 100)
    events.log(Printed(text))

    pieces = []
    while sum(map(len, pieces)) < len(text):
        pieces.append(received.get(timeout=120))
    assert "".join(pieces) == text


def test_pieces_are_cut_between_lines(events, received):
    lines = [f"{n} " + "x" * 100_000 for n in range(30)]
    events.log(Printed("\n".join(lines)))

    found = []
    while len(found) < len(lines):
        found += received.get(timeout=120).split("\n")
    assert found == lines


def test_a_vertex_whose_first_call_has_not_ended_counts_as_opened(link, names):
    listener = TaskListener(names, print)
    events = Events(link, names, "v", 0, Tally())
    with listener.listen(link):
        link.flush()
        events.in_call(1.0)
        until(lambda: listener.in_call("v"))
        assert not listener.has_opened("v", 1)
        events.opened()
        events.in_call(2.0)
        until(lambda: listener.has_opened("v", 1))


@pytest.mark.guarantee("failures-stay-with-their-message")
def test_reporting_does_not_fail_when_the_server_is_gone(tmp_path, names):
    folder = StateFolder(tmp_path)
    folder.acquire()
    server = EmbeddedServer(folder)
    with open_link(server.start()) as link:
        events = Events(link, names, "v", 0, Tally())
        server.stop()
        for _ in range(40):
            events.log(Printed("z" * 900_000))
        events.nacked({"why": 1})
        events.flush()
    folder.release()
