"""Conversations of a client with a server in memory, whatever is lost and whenever.

The server accepts an id once. Each call meets a fault or none; the clock moves only while the
client waits. So these tests see every order of losses without a network and without waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbflow.client import conversations
from ebbflow.client.conversations import Following, TimeLimit
from ebbflow.client.protocol import (
    Answered,
    Conversation,
    Emit,
    MoreEvents,
    NamedRequest,
    NoReply,
    ServerCall,
    ServerPaths,
    ServerReply,
    Step,
    StepResult,
    Wait,
)
from ebbflow.domain.errors import AnswerPending, RequestError, RequestRefused

RESULTS = (b"b", b"", b"a\nc")
REQUEST = NamedRequest("r-1", b"x")
PATHS = ServerPaths("X-Numaflow-Id")


class Fault(Enum):
    NONE = "no fault"
    NO_CONNECTION = "no server is there"
    BEFORE = "lost before the server received it"
    AFTER = "lost after the server accepted it"
    LATE = "lost, and accepted after the client has looked for it"
    BUSY = "429"
    STARTING = "503 before the server accepted it"
    STOPPING = "503 after the server accepted it"
    GATEWAY = "502 after the server accepted it"
    SLOW = "408, or still in progress"


@dataclass
class MemoryServer:
    """Accepts one request, and refuses further copies of it: ``copies`` counts them.

    ``late`` is 1 while the request is still in flight on a connection that was lost.
    """

    faults: list[Fault]
    taken: int = 0
    copies: int = 0
    now: float = 0.0
    late: int = 0
    emitted: list[bytes] = field(default_factory=list)
    stream: list[bytes] = field(default_factory=list)

    def carry_out(self, step: Step) -> StepResult:
        match step:
            case Wait(seconds):
                self.now += seconds
            case Emit(result):
                self.emitted.append(result)
            case MoreEvents():
                return self.more_events()
            case ServerCall():
                self.now += 0.001
                return self.reply(step)
        return None

    def reply(self, call: ServerCall) -> StepResult:
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        if fault is Fault.NO_CONNECTION:
            return NoReply("refused", sent=False)
        if fault is Fault.BEFORE:
            return NoReply("lost", sent=True)
        if fault is Fault.BUSY:
            return ServerReply(429, {"retry-after": "1"}, b"")
        if fault is Fault.STARTING:
            return ServerReply(503, {}, b"{}")
        answer = self.answer(call, fault)
        if fault is Fault.AFTER:
            return NoReply("lost", sent=True)
        if fault in (Fault.STOPPING, Fault.GATEWAY):
            return ServerReply(503 if fault is Fault.STOPPING else 502, {}, b"")
        return answer

    def answer(self, call: ServerCall, fault: Fault) -> StepResult:
        if call.method == "GET":
            known, self.taken, self.late = self.taken, self.taken or self.late, 0
            if not known:
                return ServerReply(404, {}, b"{}")
        elif self.taken:
            self.copies += 1
            return ServerReply(409, {}, b"{}")
        elif fault is Fault.LATE:
            self.late = 1
            return NoReply("lost", sent=True)
        else:
            self.taken, self.late = 1, 0
        return self.say(call, fault)

    def say(self, call: ServerCall, fault: Fault) -> StepResult:
        if call.follows:
            return self.begin_stream(call, fault)
        if call.path.endswith(("/async", "/status")):
            return ServerReply(200, {}, b"{}")
        if fault is Fault.SLOW:
            return ServerReply(408 if call.method == "POST" else 200, {}, b"{}")
        lengths = ",".join(str(len(result)) for result in RESULTS)
        headers = {"numaflow-array-len": "3", "numaflow-array-index-len": lengths}
        return ServerReply(200, headers, b"".join(RESULTS))

    def begin_stream(self, call: ServerCall, fault: Fault) -> StepResult:
        seen = int(call.headers.get("last-event-id", "0"))
        events = [
            b"id: %d\ndata: %b\n\n" % (place, result.replace(b"\n", b"\ndata: "))
            for place, result in enumerate(RESULTS, 1)
            if place > seen
        ]
        late = json.dumps({"code": 408}).encode()
        end = b"event: error\ndata: %b\n\n" % late if fault is Fault.SLOW else b"event: done\n\n"
        self.stream = [*events, end]
        return ServerReply(200, {}, b"")

    def more_events(self) -> StepResult:
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        if fault is not Fault.NONE or not self.stream:
            return NoReply("the stream broke off", sent=True)
        return self.stream.pop(0)


def outcome(server: MemoryServer, conversation: Conversation[object]) -> object:
    """Carries out a conversation; returns its result, or the error that it raised."""
    received: StepResult = None
    try:
        while True:
            received = server.carry_out(conversation.send(received))
    except StopIteration as end:
        return end.value
    except RequestError as error:
        return error


FAULTS = st.lists(st.sampled_from(Fault), max_size=12)
SECONDS = st.sampled_from([0.2, 3.0, 1_000.0])
WAYS: dict[str, Callable[[TimeLimit], Conversation[object]]] = {
    "ask": lambda limit: conversations.ask(PATHS, REQUEST, limit),
    "submit": lambda limit: conversations.submit(PATHS, REQUEST, limit),
    "stream": lambda limit: Following(
        PATHS, "r-1", REQUEST, limit, limit.end - limit.clock()
    ).follow(),
}
GOOD = {"ask": Answered("r-1", RESULTS), "submit": "r-1", "stream": None}


@pytest.mark.guarantee("a-client-asks-once")
@pytest.mark.parametrize("way", WAYS)
@given(faults=FAULTS, seconds=SECONDS)
def test_a_request_is_accepted_once_and_its_results_are_right_whatever_is_lost(
    way: str, faults: list[Fault], seconds: float
) -> None:
    server = MemoryServer(list(faults))
    result = outcome(server, WAYS[way](TimeLimit.of(seconds, lambda: server.now)))
    # A copy may arrive only of a request that was still in flight when the client looked for it.
    assert server.copies <= faults.count(Fault.LATE)
    assert tuple(server.emitted) == RESULTS[: len(server.emitted)]
    if not isinstance(result, RequestError):
        assert result == GOOD[way]
        assert server.taken == 1
        assert way != "stream" or tuple(server.emitted) == RESULTS
    else:
        assert result.id == "r-1"
    if isinstance(result, RequestRefused):
        assert server.taken + server.late == 0, "a refused request is not accepted"
    if isinstance(result, AnswerPending):
        assert server.taken == 1


@pytest.mark.parametrize("way", WAYS)
@given(faults=FAULTS)
def test_with_enough_time_there_is_an_answer_unless_no_server_was_there_at_first(
    way: str, faults: list[Fault]
) -> None:
    server = MemoryServer(list(faults))
    result = outcome(server, WAYS[way](TimeLimit.of(10_000, lambda: server.now)))
    first = next((f for f in faults if f is not Fault.BUSY), None)
    if first is Fault.NO_CONNECTION:
        assert isinstance(result, RequestRefused)
    else:
        assert result == GOOD[way]


@given(faults=FAULTS, seconds=SECONDS)
def test_no_conversation_takes_much_longer_than_its_limit(
    faults: list[Fault], seconds: float
) -> None:
    for way in ("ask", "submit"):
        server = MemoryServer(list(faults) * 50)
        outcome(server, WAYS[way](TimeLimit.of(seconds, lambda server=server: server.now)))
        assert server.now < seconds + 0.1
