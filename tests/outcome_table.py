"""The table of outcomes: what user code does with one message, and the result.

It runs on Spark (``tests.spark.test_every_outcome``), and without it in process and over gRPC
(``tests.numaflow.test_every_outcome``). The upstream acceptance cases that a row re-creates are
named next to it (A1 to A14, B4, C1, C2); where our rules differ from upstream's, the row says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ebbflow import Backoff, Message, Nack, NackOptions, Response

COUNT = 12
QUICK = Backoff("10ms", steps=2)


@dataclass
class Case:
    """What user code does with message 3, while all others are plain, and the result.

    ``ends`` are the counts of the deciding vertex that differ from "all done".
    """

    name: str
    sink: Callable[[Any], Response] | None = None
    map: Callable[[Any], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    map_options: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    stored: int = 1
    fallback: int = 0
    succeeded: int = 0
    letter: tuple[str, str] | None = None
    calls: int = 1

    def __str__(self) -> str:
        return self.name


def once(datum, first, then):
    return first if datum.deliveries == 1 else then


def tried(datum):
    return int(datum.system_metadata["sink"]["retry_count"])


SINK_CASES = [
    Case("OK is done", sink=lambda d: Response.ok(d.id)),
    Case(
        "FAILURE without a strategy is a dead letter (upstream retries forever)",
        sink=lambda d: Response.failure(d.id, "cannot be"),
        ends={"done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("sink failure", "cannot be"),
    ),
    Case(
        "FAILURE is retried and then OK (A10)",
        sink=lambda d: Response.ok(d.id) if tried(d) == 2 else Response.failure(d.id, "busy"),
        options={"retry": QUICK},
        calls=3,
    ),
    Case(
        "FAILURE retried in vain goes to the dead letters with onFailure drop (A11)",
        sink=lambda d: Response.failure(d.id, "busy"),
        options={"retry": QUICK, "on_failure": "drop"},
        ends={"done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("retries exhausted", "busy (after 2 retries)"),
        calls=3,
    ),
    Case(
        "FAILURE retried in vain goes to the fallback sink with onFailure fallback",
        sink=lambda d: Response.failure(d.id, "busy"),
        options={"retry": QUICK, "on_failure": "fallback", "fallback": True},
        ends={"done": -1, "fallback": 1},
        stored=0,
        fallback=1,
        calls=3,
    ),
    Case(
        "a long wait between retries goes through redelivery and keeps the count",
        sink=lambda d: Response.ok(d.id) if tried(d) == 1 else Response.failure(d.id, "busy"),
        options={"retry": Backoff("1500ms", steps=2)},
        ends={"read": 1, "redelivered": 1},
        calls=2,
    ),
    Case(
        "FALLBACK goes to the fallback sink at once (A12)",
        sink=lambda d: Response.fallback(d.id),
        options={"fallback": True, "retry": QUICK},
        ends={"done": -1, "fallback": 1},
        stored=0,
        fallback=1,
    ),
    Case(
        "FALLBACK without a fallback sink is a violation, retried and then a dead letter",
        sink=lambda d: Response.fallback(d.id),
        ends={"read": 2, "redelivered": 2, "done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("ContractViolation", "Configure sink.fallback"),
        calls=3,
    ),
    Case(
        "SERVE is done and stored as an answer (A12)",
        sink=lambda d: Response.serve(d.id, b"answer"),
        options={"serve": True},
        ends={"served": 1},
        stored=0,
    ),
    Case(
        "SERVE without a store is a violation",
        sink=lambda d: Response.serve(d.id, b"answer"),
        ends={"read": 2, "redelivered": 2, "done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("ContractViolation", "Configure spec.servingStore"),
        calls=3,
    ),
    Case(
        "ON_SUCCESS is done and the on-success sink gets the original",
        sink=lambda d: Response.on_success(d.id),
        options={"on_success": True},
        ends={"on_success": 1, "written": 1},
        stored=0,
        succeeded=1,
    ),
    Case(
        "ON_SUCCESS with a message forwards that one (A13)",
        sink=lambda d: Response.on_success(d.id, Message(b'{"value":3,"extra":1}')),
        options={"on_success": True},
        ends={"on_success": 1, "written": 1},
        stored=0,
        succeeded=1,
    ),
    Case(
        "NACK with options is redelivered with its reason (A4, A5)",
        sink=lambda d: once(
            d,
            Response.nack(d.id, NackOptions(delay=50, max_deliveries=3, reason="later")),
            Response.ok(d.id) if d.nack_reason == "later" else Response.failure(d.id, "?"),
        ),
        ends={"read": 1, "redelivered": 1},
        calls=2,
    ),
    Case(
        "NACK without options is redelivered at once (A6)",
        sink=lambda d: once(d, Response.nack(d.id), Response.ok(d.id)),
        ends={"read": 1, "redelivered": 1},
        calls=2,
    ),
    Case(
        "NACK with its deliveries used up is a dead letter",
        sink=lambda d: Response.nack(d.id, NackOptions(max_deliveries=1, reason="never")),
        ends={"read": 1, "redelivered": 1, "done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("never", "max_deliveries is 1"),
        calls=2,
    ),
    Case(
        "NACK with its deliveries used up goes to the fallback sink where there is one",
        sink=lambda d: Response.nack(d.id, NackOptions(max_deliveries=1, reason="never")),
        options={"fallback": True},
        ends={"read": 1, "redelivered": 1, "done": -1, "fallback": 1},
        stored=0,
        fallback=1,
        calls=2,
    ),
    Case(
        "NACK from the fallback sink redelivers the input to the primary",
        sink=lambda d: Response.fallback(d.id),
        options={"fallback": lambda d: once(d, Response.nack(d.id), Response.ok(d.id))},
        ends={"read": 1, "redelivered": 1, "done": -1, "fallback": 1},
        stored=0,
        fallback=1,
        calls=2,
    ),
    Case(
        "FAILURE from the fallback sink is a dead letter",
        sink=lambda d: Response.fallback(d.id),
        options={"fallback": lambda d: Response.failure(d.id, "full too")},
        ends={"done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("fallback sink failure", "full too"),
    ),
    Case(
        "FALLBACK from the fallback sink is a violation",
        sink=lambda d: Response.fallback(d.id),
        options={"fallback": lambda d: Response.fallback(d.id)},
        ends={"read": 2, "redelivered": 2, "done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("ContractViolation", "its fallback sink answered FALLBACK, which only the primary"),
        calls=3,
    ),
    Case(
        "NACK from the on-success sink redelivers the input",
        sink=lambda d: Response.on_success(d.id),
        options={"on_success": lambda d: once(d, Response.nack(d.id), Response.ok(d.id))},
        ends={"read": 1, "redelivered": 1, "on_success": 1, "written": 1},
        stored=0,
        succeeded=1,
        calls=2,
    ),
    Case(
        "a missing response is a violation and the others keep theirs (A9 stops upstream)",
        sink=lambda d: None,
        ends={"read": 2, "redelivered": 2, "done": -1, "written": -1, "dead_lettered": 1},
        stored=0,
        letter=("ContractViolation", "no response for 1"),
        calls=3,
    ),
]


def nacked_among_outputs(datum):
    yield Message(datum.value)
    if datum.deliveries == 1:
        yield Message.to_nack(NackOptions(delay=20, reason="not yet"))


def raised_from_depth(datum):
    def deeper():
        if datum.deliveries == 1:
            raise Nack(delay="20ms", reason="deep down")

    deeper()
    return Message(datum.value)


MAP_CASES = [
    Case(
        "an empty result is a drop (B4)",
        map=lambda d: None,
        ends={"done": -1, "dropped": 1},
        stored=0,
    ),
    Case(
        "a message to drop is a drop (B4)",
        map=lambda d: Message.to_drop(),
        ends={"done": -1, "dropped": 1},
        stored=0,
    ),
    Case(
        "a nack among the outputs redelivers the whole input (A1, C1; upstream forwards siblings)",
        map=nacked_among_outputs,
        ends={"read": 1, "redelivered": 1},
    ),
    Case(
        "a nack raised at any depth does so too",
        map=raised_from_depth,
        ends={"read": 1, "redelivered": 1},
    ),
    Case(
        "a nack whose deliveries are used up is a dead letter (A2 only passes the number on)",
        map=lambda d: Message.to_nack(NackOptions(delay=10, max_deliveries=2, reason="never")),
        ends={"read": 2, "redelivered": 2, "done": -1, "dead_lettered": 1},
        stored=0,
        letter=("never", "max_deliveries is 2"),
    ),
    Case(
        "an exception is tried again and then a dead letter with its traceback",
        map=lambda d: 1 / 0,
        ends={"read": 2, "redelivered": 2, "done": -1, "dead_lettered": 1},
        stored=0,
        letter=("ZeroDivisionError", "division by zero"),
    ),
    Case(
        "a failed message is retried by the strategy (C2)",
        map=lambda d: Message(d.value) if tried(d) == 2 else Message.to_fail("busy"),
        map_options={"retry": QUICK},
    ),
    Case(
        "a failed message whose retries are exhausted is a dead letter (C2)",
        map=lambda d: Message.to_fail("busy"),
        map_options={"retry": QUICK, "on_failure": "drop"},
        ends={"done": -1, "dead_lettered": 1},
        stored=0,
        letter=("retries exhausted", "busy (after 2 retries)"),
    ),
    Case(
        "a failed message without a strategy is a dead letter (upstream retries forever)",
        map=lambda d: Message.to_fail("broken"),
        ends={"done": -1, "dead_lettered": 1},
        stored=0,
        letter=("map failure", "broken"),
    ),
]
