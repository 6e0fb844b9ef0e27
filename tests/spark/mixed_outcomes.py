"""A map and sinks with a different outcome for each of the first messages.

They are called in Spark's workers, and served by ``ebbflow serve-udf`` over gRPC.
"""

import json
from collections.abc import Iterator

from ebbflow import Datum, Message, NackOptions, Response, nack


def number(datum: Datum) -> int:
    return int(json.loads(datum.value)["value"])


def tried(datum: Datum) -> int:
    return int(datum.system_metadata["sink"]["retry_count"])


def step(datum: Datum) -> Message | list[Message] | None:
    """A map with every outcome."""
    match number(datum):
        case 1:
            return None
        case 2 if datum.deliveries == 1:
            nack(delay="20ms", reason="not yet")
        case 2:
            assert datum.nack_reason == "not yet"
        case 3:
            return [Message(datum.value), Message.to_nack(NackOptions(10, 1, "never"))]
        case 4:
            raise ValueError("boom")
        case 5 if tried(datum) < 2:
            return Message.to_fail("busy")
        case 6:
            return Message.to_fail("broken")
        case 7:
            return [Message(datum.value, tags=["a"]), Message(datum.value, tags=["b"])]
    return Message(datum.value)


class Store:
    """A sink with every response."""

    def open(self) -> None:
        self.opened = True

    def __call__(self, data: list[Datum]) -> Iterator[Response]:
        assert self.opened
        return map(self._answer, data)

    def _answer(self, datum: Datum) -> Response:
        match number(datum):
            case 11 if tried(datum) < 2:
                return Response.failure(datum.id, "busy")
            case 12:
                return Response.fallback(datum.id)
            case 13:
                return Response.serve(datum.id, b"answer")
            case 14:
                return Response.on_success(datum.id, Message(datum.value, ["written"]))
            case 15 if datum.deliveries == 1:
                return Response.nack(datum.id, NackOptions(20, 3, "later"))
            case 16:
                return Response.failure(datum.id, "never")
            case 17:
                return Response.nack(datum.id, NackOptions(max_deliveries=0, reason="refused"))
        return Response.ok(datum.id)


def take(data: list[Datum]) -> list[Response]:
    """A sink next to another one."""
    assert all(datum.keys == ("written",) for datum in data if number(datum) == 14)
    return [Response.ok(datum.id) for datum in data]
