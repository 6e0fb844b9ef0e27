"""What the driver receives on one thread can be read on another at any time."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from ebbflow.accounts.listener import TaskListener
from ebbflow.accounts.numbers import TaskState
from ebbflow.streams.names import Names


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def state(vertex: str) -> Msg:
    state = TaskState(vertex, 0, "t", pending=1, opened=True)
    event = {"state": state.to_json(), "chunks": []}
    return Msg(Client(), subject="events.state", data=json.dumps(event).encode())


@pytest.mark.usefixtures("hasty_threads")
def test_vertices_can_be_read_while_the_first_events_of_others_arrive() -> None:
    listener = TaskListener(Names("test"), print)
    events = [state(f"v{number}") for number in range(3_000)]

    async def receive_all() -> None:
        for message in events:
            await listener._receive(message)

    nats = threading.Thread(target=lambda: asyncio.run(receive_all()))
    nats.start()
    while nats.is_alive():
        listener.pending("v0"), listener.waiting("v0"), listener.halted("v0"), listener.tally("v0")
    assert listener.pending("v2999") == 1
