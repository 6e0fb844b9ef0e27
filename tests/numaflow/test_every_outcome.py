"""Every row of the table of outcomes, in process and over gRPC: one code, one outcome for both."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ebbflow import (
    Message,
    NackOffset,
    NackOptions,
    Response,
    Source,
    SourceMessage,
    Unavailable,
)
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import Counts, Redeliver
from ebbflow.engine import frames
from ebbflow.engine.blame import SystemOutage
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.inlet import NACKS, SourceAcks
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.source_columns import frame_of
from ebbflow.engine.system_errors import LISTED
from ebbflow.engine.verdict import Operator, Verdict
from ebbflow.runtime.source_process.protocol import Order, Settle
from ebbflow.runtime.source_process.reading import SourceReading
from ebbflow.usercode.calling import call_with_retries
from ebbflow.usercode.sinks import Sinks, run_sinks
from tests.engine.sample_rows import NOW
from tests.numaflow.memory_vertex import LARGEST, Ended, MemoryVertex, messages
from tests.numaflow.sides import SIDES, Side
from tests.outcome_table import COUNT, MAP_CASES, SINK_CASES, Case

ERRORS = Backoff("10ms", steps=2)
VALUES = [b'{"value": %d}' % number for number in range(COUNT)]
SPECIAL = "in-3"


@pytest.fixture(params=SIDES)
def side(request: Any) -> Iterator[Side]:
    chosen: Side = SIDES[request.param]()
    with chosen.opened:
        yield chosen


def no_pause(_seconds: float) -> None:
    """A test does not wait."""


def strategy(options: dict[str, Any]) -> RetryStrategy | None:
    if "retry" not in options:
        return None
    return RetryStrategy(options["retry"], options.get("on_failure", "retry"))


class SinkWorld:
    """The sinks of a case, with the messages they received and their answers."""

    def __init__(self, case: Case, side: Side) -> None:
        self.said: list[tuple[str, str, Any]] = []
        options = case.options
        operators = {"sink": side.operator(self._sink("sink", case.sink), "sink")}
        for role, kind in (("fallback", "fallback-sink"), ("on_success", "on-success-sink")):
            if role in options:
                own = options[role] if callable(options[role]) else None
                operators[role] = side.operator(self._sink(role, own), kind)
        sinks = Sinks(
            operators["sink"],
            operators.get("fallback"),
            operators.get("on_success"),
            strategy(options),
            serves="serve" in options,
        )
        decide = partial(run_sinks, sinks=sinks, pause=no_pause)
        self.ended = MemoryVertex(decide, ERRORS, True, side.renew).run(messages(VALUES))

    def _sink(self, role: str, decide: Any) -> Any:
        def sink(data: list[Any]) -> list[Response]:
            answers = [
                decide(datum) if datum.id == SPECIAL and decide else Response.ok(datum.id)
                for datum in data
            ]
            for datum, answer in zip(data, answers, strict=True):
                self.said.append((role, datum.id, answer and answer.status.name))
            return [answer for answer in answers if answer is not None]

        return sink

    def written(self, role: str) -> int:
        taken = ("OK",) if role == "sink" else ("OK", "ON_SUCCESS")
        return sum((role, SPECIAL, status) in self.said for status in taken)

    @property
    def calls(self) -> int:
        return sum(said[:2] == ("sink", SPECIAL) for said in self.said)


def check_counts(case: Case, counts: Counts) -> None:
    usual = Counts(read=COUNT, done=COUNT, written=COUNT)
    wanted = {name: getattr(usual, name) + change for name, change in case.ends.items()}
    assert counts == replace(usual, **wanted)


def check_letter(case: Case, ended: Ended) -> None:
    letters = [(letter.id, letter.reason) for letter in ended.letters]
    assert letters == ([] if case.letter is None else [(SPECIAL, case.letter[0])])
    if case.letter is not None:
        assert case.letter[1] in (ended.letters[0].error or "")


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("case", SINK_CASES, ids=str)
def test_the_response_of_a_sink_decides_the_outcome(case: Case, side: Side) -> None:
    world = SinkWorld(case, side)
    check_letter(case, world.ended)
    check_counts(case, world.ended.counts)
    assert world.written("fallback") == case.fallback
    assert world.written("on_success") == case.succeeded
    # Over gRPC a message without an answer is sent once more alone, to be sure that it is the one.
    broken = sum(said == ("sink", SPECIAL, None) for said in world.said)
    assert world.calls - broken + broken // side.tries == case.calls


def decided_by(side: Side, code: Any, kind: str, retry: RetryStrategy | None = None) -> Operator:
    """The operator of a map, with its retries."""
    call = side.operator(code, kind)
    return partial(call_with_retries, call=call, strategy=retry, pause=no_pause, what="map")


def run_vertex(side: Side, decide: Operator, **columns: Any) -> Ended:
    return MemoryVertex(decide, ERRORS, False, side.renew).run(messages(VALUES, **columns))


def in_one_call(step: Any) -> Any:
    """The map as one that takes a batch; an exception would fail the batch as a whole."""
    return lambda data: {datum.id: step(datum) for datum in data}


RAISING = ("depth", "traceback")
KINDS = ("map", "transformer", "stream-map", "batch-map")
MAPS = [
    pytest.param(kind, case, id=f"{kind}: {case}")
    for kind in KINDS
    for case in MAP_CASES
    if kind != "batch-map" or not any(word in case.name for word in RAISING)
]


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(("kind", "case"), MAPS)
def test_the_result_of_a_map_decides_the_outcome(kind: str, case: Case, side: Side) -> None:
    def step(datum: Any) -> Any:
        return case.map(datum) if datum.id == SPECIAL and case.map else Message(datum.value)

    code = in_one_call(step) if kind == "batch-map" else step
    ended = run_vertex(side, decided_by(side, code, kind, strategy(case.map_options)))
    check_letter(case, ended)
    check_counts(case, replace(ended.counts, written=COUNT))
    passed = [datum.id for datum in ended.outputs]
    assert passed.count(f"{SPECIAL}/out") == case.stored
    assert len(passed) == COUNT - 1 + case.stored


def test_a_dead_letter_shows_the_stack_of_the_function(side: Side) -> None:
    def divide(datum: Any) -> Message:
        return Message(b"%d" % (1 // (datum.id != SPECIAL)))

    (letter,) = run_vertex(side, decided_by(side, divide, "map")).letters
    assert letter.error == "ZeroDivisionError: integer division or modulo by zero"
    assert "in divide" in (letter.traceback or "")


class Down:
    """A function whose system is down until the vertex has waited for it."""

    now = True

    @classmethod
    def recover_after(cls, side: Side) -> Any:
        """What the vertex does between chunks: the second time the system is up."""
        cls.now, rounds = True, count()

        def renew() -> None:
            cls.now = next(rounds) == 0
            side.renew()

        return renew


class DownMap(Down):
    def __call__(self, datum: Any) -> Message:
        if Down.now:
            raise Unavailable("the database")
        return Message(b"%d" % datum.deliveries)


class DownSink(Down):
    def __call__(self, data: list[Any]) -> list[Response]:
        if Down.now:
            return [Response.unavailable(datum.id, "the database") for datum in data]
        return [Response.ok(datum.id) for datum in data]


@pytest.mark.parametrize("kind", ["map", "stream-map", "transformer", "sink"])
def test_an_outage_counts_against_no_message(kind: str, side: Side) -> None:
    code = DownSink if kind == "sink" else DownMap
    renew = Down.recover_after(side)
    decide = side.operator(code, kind)
    ended = MemoryVertex(decide, ERRORS, kind == "sink", renew).run(messages(VALUES))
    assert ended.counts == Counts(2 * COUNT, COUNT, COUNT, COUNT)
    assert {datum.value for datum in ended.outputs} <= {b"1"}, "each is redelivered unchanged"
    assert ended.letters == []


def test_an_outage_lasts_as_long_as_the_function_says(side: Side) -> None:
    def refuse(datum: Any) -> Message:
        raise Unavailable("the database", retry_after="1500ms")

    decide = side.operator(refuse, "map")
    decide(Verdict(Rows(messages(VALUES)), Rules("out", ERRORS, LARGEST)))
    (handler,) = side.handlers
    assert handler.blame.outage == SystemOutage("the database", named=True, retry_after=1_500)


def test_every_field_of_a_message_is_the_same(side: Side) -> None:
    seen: list[Any] = []

    def tell(datum: Any) -> list[Message]:
        seen.extend([datum.id, datum.value, datum.keys, datum.headers, datum.metadata])
        seen.extend([datum.event_time, datum.watermark, datum.deliveries, datum.nack_reason])
        seen.append(datum.system_metadata)
        own = {"own": {"key": b"value"}}
        return [Message(b"same"), Message(b"other", ["k1", "k2"], ["tag"], metadata=own)]

    columns = {
        "keys": ["a", "b"],
        "headers": [("h", "1")],
        "metadata": [("g", [("k", b"v")])],
        "deliveries": 3,
        "nack_reason": "busy",
        "retries": 2,
    }
    rows = Rows(messages([b"v"], **{name: [fact] for name, fact in columns.items()}), NOW)
    verdict = Verdict(rows, Rules("out", ERRORS, LARGEST))
    side.operator(tell, "map")(verdict)
    metadata = {"g": {"k": b"v"}}
    assert seen == [
        *("in-0", b"v", ("a", "b"), {"h": "1"}, metadata, NOW, NOW),
        *(3, "busy", {"sink": {"retry_count": b"2"}}),
    ]
    made = Rows(verdict.outputs.batch(rows, "out", NOW)).data()
    assert [(d.id, d.value, d.keys, d.metadata) for d in made] == [
        ("in-0/out", b"same", ("a", "b"), metadata),
        ("in-0/out.1", b"other", ("k1", "k2"), {"own": {"key": b"value"}}),
    ]
    assert [list(tags) for tags in verdict.outputs.tags] == [[], ["tag"]]
    assert [d.headers for d in made] == [{"h": "1"}] * 2


def test_event_times_of_a_transformer_count_even_if_nothing_is_forwarded(side: Side) -> None:
    def assign(datum: Any) -> Any:
        time = NOW - timedelta(hours=int(datum.value))
        match int(datum.value):
            case 1:
                return Message.to_nack(NackOptions(delay=50, reason="later"), time)
            case 2:
                return Message.to_drop(time)
            case 3:
                return Message(datum.value, event_time=time)
        return Message(datum.value)

    rows = Rows(messages([b"0", b"1", b"2", b"3"]))
    for number, hours in (([3], 3), ([2], 2), ([1], 1), ([0], 0)):
        part = Verdict(Rows(frames.take_rows(rows.batch, number)), Rules("in", ERRORS, LARGEST))
        side.operator(assign, "transformer")(part)
        assert min(part.gather_event_times()) == NOW - timedelta(hours=hours)
        nacked = Redeliver(50, "later", 0)
        assert part.outcomes == {0: nacked} if hours == 1 else nacked not in part.outcomes.values()


# --- stores and sources ---------------------------------------------------------------------------


class Answers:
    """A store that cannot take the answer to one request."""

    kept: ClassVar[dict[str, list[bytes]]] = {}

    def put(self, id: str, payloads: Sequence[bytes]) -> None:
        if id == SPECIAL:
            raise ValueError("no room")
        Answers.kept.setdefault(id, []).extend(payloads)


def test_a_store_that_raises_fails_only_its_message(side: Side) -> None:
    def serve(data: list[Any]) -> list[Response]:
        return [Response.serve(datum.id, datum.value) for datum in data]

    Answers.kept.clear()
    store, sink = side.store(Answers), side.operator(serve, "sink")
    decide = partial(run_sinks, sinks=Sinks(sink, serves=True, store=store), pause=no_pause)
    ended = MemoryVertex(decide, ERRORS, True, side.renew).run(messages(VALUES))
    assert ended.counts == Counts(COUNT + 2, COUNT - 1, COUNT - 1, 2, 1, served=COUNT - 1)
    assert len(Answers.kept) == COUNT - 1
    assert Answers.kept["in-0"] == [VALUES[0]]
    (letter,) = ended.letters
    assert (letter.id, letter.error) == (SPECIAL, "ValueError: no room")


class Queue(Source):
    """Provides three messages, records acks and nacks, and redelivers nacked ones."""

    given: ClassVar[list[int]] = []
    acked: ClassVar[list[bytes]] = []
    nacked: ClassVar[list[NackOffset]] = []

    def open(self) -> None:
        Queue.given, Queue.acked, Queue.nacked = [0, 1, 2], [], []

    def read(self, limit: int, timeout: timedelta) -> list[SourceMessage]:
        numbers, Queue.given = Queue.given[:limit], Queue.given[limit:]
        own = {"g": {"k": b"v"}}
        return [
            SourceMessage(b"v%d" % n, b"%d" % n, NOW, ["k"], {"h": "1"}, metadata=own)
            for n in numbers
        ]

    def ack(self, offsets: Sequence[bytes]) -> None:
        Queue.acked += offsets

    def nack(self, nacks: Sequence[NackOffset]) -> None:
        Queue.nacked += nacks
        Queue.given += [int(nack.offset) for nack in nacks]

    def pending(self) -> int:
        return 7


def reading_of(code: Any) -> SourceReading:
    """A source as its process has it."""
    return SourceReading(Order("in", 0, pickle.dumps(code), None, [], "", LISTED, 0, 500, 500, 1.0))


def read_messages(reading: SourceReading, count: int) -> pa.RecordBatch:
    """This many messages; a read returns what has arrived."""
    rows: list[pa.RecordBatch] = []
    while sum(map(len, rows)) < count:
        if (given := reading.read()) is not None:
            rows.append(given.read_rows())
    return pa.concat_batches(rows)


def test_a_source_receives_acks_and_nacks_with_their_options(side: Side) -> None:
    reading = reading_of(side.source(Queue))
    try:
        assert reading.greet().redelivers
        rows = read_messages(reading, 3)
        offsets = rows.column("offset")
        nack = [*offsets.slice(1, 1).to_pylist(), 250, 0, "busy"]
        nacks = pa.RecordBatch.from_pylist([dict(zip(NACKS.names, nack, strict=True))], NACKS)
        ends = SourceAcks(offsets.take(pa.array([0, 2])), nacks, pa.array([], pa.string()))
        reading.settle(Settle.of(ends))
        assert Queue.acked == [b"0", b"2"]
        assert Queue.nacked == [NackOffset(b"1", NackOptions(250, 0, "busy"))]
        again = read_messages(reading, 1)
        assert again.column("offset").to_pylist() == [nack[0]], "the same message"
        report = reading.report()
        assert report is not None
        assert report.pending == 7
    finally:
        reading.close()
    facts = Rows(frame_of(rows)).data()
    assert [(d.value, d.keys, d.headers) for d in facts] == [
        (b"v%d" % number, ("k",), {"h": "1"}) for number in range(3)
    ]
    assert [(d.event_time, d.metadata) for d in facts] == [(NOW, {"g": {"k": b"v"}})] * 3
