"""A MonoVertex: one outcome for every message read (a root), whatever was made of it."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbflow import Datum, Message, Nack, NackOptions, Response
from ebbflow.accounts.trail import TrailObserver
from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import DeadLetter, FellBack, Redeliver, Retry, Served, Succeeded
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.publications import Chunk, Place, Stage
from ebbflow.engine.retry import RetryStrategy
from ebbflow.engine.routing import Edge
from ebbflow.engine.settlement import Settlement, settle
from ebbflow.engine.verdict import EMPTY, Verdict
from ebbflow.streams.trail_rows import read_trail
from ebbflow.usercode.calling import Handler, call_map, call_sink
from ebbflow.usercode.monovertex import NOT_FOR_THE_SINK, Bypass, Mono, MonoStep, run_mono
from ebbflow.usercode.sinks import Sinks
from tests.engine.sample_rows import NOW, some, verdict_on
from tests.thorough import examples

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
BUSY = NackOptions(delay=5, reason="busy")
USED_UP = NackOptions(max_deliveries=0, reason="given up")
MapCode = Callable[[Datum], Any]


class Sink:
    """Answers by the value of a message; keeps the messages it received."""

    def __init__(self, **answers: Callable[[str], Response]) -> None:
        self._answers = answers
        self.received: list[Datum] = []

    def __call__(self, data: list[Datum]) -> list[Response]:
        self.received += data
        return [self._answers.get(d.value.decode(), Response.ok)(d.id) for d in data]

    @property
    def values(self) -> list[str]:
        return [d.value.decode() for d in self.received]

    @property
    def ids(self) -> list[str]:
        return [d.id for d in self.received]


def letters_of(datum: Datum) -> list[Message]:
    """Fan-out: a message for each letter of the value."""
    return [Message(bytes([letter])) for letter in datum.value]


def doubled(datum: Datum) -> list[Message]:
    return [Message(datum.value * 2), Message(datum.value * 2)]


def tagged(datum: Datum) -> Message:
    return Message(datum.value, tags=[datum.value.decode()])


class Vertex:
    """A MonoVertex of these parts, whose sinks a test can inspect."""

    def __init__(
        self,
        transformer: MapCode | None = None,
        map: MapCode | None = None,
        sink: Any = None,
        fallback: Any = None,
        on_success: Any = None,
        bypass: Bypass | None = None,
        strategy: RetryStrategy | None = None,
        **more: Any,
    ) -> None:
        self.sink = sink or Sink()
        steps = (("transformer", transformer), ("map", map))
        self._mono = Mono(
            [
                MonoStep(name, partial(call_map, Handler(code), concurrency=1), strategy)
                for name, code in steps
                if code
            ],
            Sinks(
                self._call(self.sink),
                self._call(fallback),
                self._call(on_success),
                strategy,
                **more,
            ),
            bypass or Bypass(),
        )

    @staticmethod
    def _call(sink: Any) -> Any:
        return partial(call_sink, Handler(sink), batch_size=100) if sink else None

    def run(self, *ids: str, **columns: Any) -> Verdict:
        verdict = verdict_on(some(*ids, **columns))
        run_mono(verdict, self._mono, lambda _seconds: None)
        return verdict


def settled(verdict: Verdict, trail: bool = False) -> Settlement:
    place = Place("mono", 0, [], 1_000_000, "answers")
    observers = [TrailObserver()] if trail else []
    return settle(Chunk("k", verdict.rows), verdict, place, NOW, observers=observers)


def test_messages_go_through_transformer_map_and_sink():
    vertex = Vertex(lambda d: Message(d.value + b"t"), lambda d: Message(d.value + b"m"))
    assert vertex.run("a", "b").outcomes == {}
    assert vertex.sink.values == ["atm", "btm"]
    assert vertex.sink.ids == ["a/transformer/map", "b/transformer/map"]


def test_a_monovertex_may_consist_of_a_sink_alone():
    vertex = Vertex()
    assert vertex.run("a", "b").outcomes == {}
    assert vertex.sink.ids == ["a", "b"]


def test_fan_out_over_both_steps_keeps_ids_unique():
    """Numaflow's C6."""
    vertex = Vertex(letters_of, doubled)
    assert vertex.run("abc", "aa").outcomes == {}
    assert vertex.sink.values == ["aa", "aa", "bb", "bb", "cc", "cc", "aa", "aa", "aa", "aa"]
    assert len(set(vertex.sink.ids)) == 10
    assert vertex.sink.ids[:4] == [
        "abc/transformer/map",
        "abc/transformer/map.1",
        "abc/transformer.1/map",
        "abc/transformer.1/map.1",
    ]


def test_the_properties_of_a_message_stay_with_it_up_to_the_sink():
    """Numaflow's C10; deliveries and the last reason too, for there is only one vertex."""
    vertex = Vertex(lambda d: Message(d.value, event_time=WHEN), lambda d: Message(d.value))
    vertex.run(
        "a",
        keys=[["k"]],
        headers=[[("h", "1")]],
        metadata=[[("g", [("k", b"1")])]],
        deliveries=3,
        retries=2,
        nack_reason="busy",
    )
    (datum,) = vertex.sink.received
    assert (datum.keys, datum.headers, datum.metadata) == (("k",), {"h": "1"}, {"g": {"k": b"1"}})
    assert (datum.deliveries, datum.nack_reason, datum.event_time) == (3, "busy", WHEN)
    assert datum.system_metadata == {"sink": {"retry_count": b"2"}}


def nacks(letter: bytes, options: NackOptions | None = BUSY, then: MapCode = tagged) -> MapCode:
    return lambda d: Message.to_nack(options, WHEN) if letter in d.value else then(d)


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(
    "parts",
    [
        {"transformer": nacks(b"x", then=letters_of)},
        {"transformer": lambda d: [*letters_of(d), *([Message.to_nack(BUSY)] * (b"x" in d.value))]},
        {"transformer": letters_of, "map": nacks(b"x")},
        {"map": lambda d: nacks(b"x", then=letters_of)(d)},
    ],
    ids=["transformer", "sibling", "map", "map alone"],
)
def test_a_nack_redelivers_the_whole_root_before_any_part_of_it_reaches_the_sink(parts):
    vertex = Vertex(**parts)
    verdict = vertex.run("abx", "cd", "xef", "g")
    assert verdict.outcomes == {0: Redeliver(5, "busy", 0), 2: Redeliver(5, "busy", 0)}
    assert vertex.sink.values == ["c", "d", "g"]


@pytest.mark.guarantee("outcomes-hold")
def test_a_nack_of_the_sink_redelivers_the_whole_root():
    vertex = Vertex(letters_of, sink=Sink(x=lambda i: Response.nack(i, BUSY)))
    assert vertex.run("abx", "cd").outcomes == {0: Redeliver(5, "busy", 0)}


def test_the_first_of_several_nacks_that_has_options_counts():
    """Numaflow's A14: none, then some, is some."""
    later = NackOptions(delay=9, reason="later")
    requested = {b"a": None, b"b": BUSY, b"c": later}
    vertex = Vertex(letters_of, lambda d: Message.to_nack(requested[d.value]))
    assert vertex.run("abc").outcomes == {0: Redeliver(5, "busy", 0)}
    assert vertex.run("acb").outcomes == {0: Redeliver(9, "later", 0)}
    assert vertex.run("a").outcomes == {0: Redeliver(0, None, 0)}


def test_the_event_time_of_a_nacked_message_counts():
    assert Vertex(nacks(b"x")).run("x").gather_event_times() == [WHEN]


def raises(error: BaseException) -> MapCode:
    def code(datum: Datum) -> list[Message]:
        if b"x" in datum.value:
            raise error
        return letters_of(datum)

    return code


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no"), Redeliver(1_000, "ValueError: no", 1)),
        (Nack(delay="7ms"), Redeliver(7, None, 0)),
        (SystemExit(3), Redeliver(1_000, "SystemExit: 3", 1)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("level", ["transformer", "map"])
def test_an_exception_of_a_step_redelivers_the_root(level, error, expected):
    parts = {"transformer": letters_of} | {level: raises(error)}
    vertex = Vertex(**parts)
    assert vertex.run("ax", "b").outcomes == {0: expected}
    assert vertex.sink.values == ["b"]


@pytest.mark.guarantee("outcomes-hold")
@pytest.mark.parametrize("level", ["transformer", "map", "sink"])
def test_a_dead_letter_holds_the_root(level):
    vertex = {
        "transformer": lambda: Vertex(nacks(b"x", USED_UP, letters_of)),
        "map": lambda: Vertex(letters_of, nacks(b"x", USED_UP)),
        "sink": lambda: Vertex(letters_of, sink=Sink(x=lambda i: Response.failure(i, "no"))),
    }[level]()
    settlement = settled(vertex.run("abx", "c", headers=[[("h", "1")], None]))
    (publication,) = settlement.publications
    assert publication.stage is Stage.DEAD_LETTER
    letter = Letter.from_message(publication.payload, publication.headers)
    assert (letter.id, letter.value, letter.headers) == ("abx", b"abx", {"h": "1"})
    assert (settlement.counts.dead_lettered, settlement.counts.done) == (1, 1)


@pytest.mark.parametrize(
    ("transformer", "map"),
    [(lambda d: None, None), (letters_of, lambda d: None), (None, lambda d: Message.to_drop())],
    ids=["transformer", "map", "map alone"],
)
def test_a_root_without_remaining_messages_is_dropped(transformer, map):
    vertex = Vertex(transformer, map)
    verdict = vertex.run("ab", "c")
    assert verdict.outcomes == {0: EMPTY, 1: EMPTY}
    assert vertex.sink.received == []
    assert settled(verdict).counts.dropped == 2


def test_a_root_with_a_remaining_message_is_done():
    vertex = Vertex(letters_of, lambda d: None if d.value == b"x" else Message(d.value))
    assert vertex.run("xa", "bx").outcomes == {}
    assert vertex.sink.values == ["a", "b"]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({"b": Response.fallback}, FellBack()),
        ({"b": Response.on_success}, Succeeded()),
        ({"b": lambda i: Response.serve(i, b"answer")}, Served()),
        ({"a": Response.fallback, "b": Response.on_success}, FellBack()),
        (
            {"a": lambda i: Response.failure(i, "no"), "b": Response.fallback},
            DeadLetter("sink failure", error="no"),
        ),
        (
            {"a": lambda i: Response.failure(i, "no"), "b": lambda i: Response.nack(i, BUSY)},
            Redeliver(5, "busy", 0),
        ),
    ],
    ids=["ok", "fallback", "on success", "serve", "fallback wins", "dead wins", "nack wins"],
)
def test_a_root_has_the_strongest_outcome_of_its_messages(answers, expected):
    vertex = Vertex(
        letters_of, sink=Sink(**answers), fallback=Sink(), on_success=Sink(), serves=True
    )
    assert vertex.run("ab").outcomes == ({} if expected is None else {0: expected})


UNFINISHED = {
    "nack": lambda i: Response.nack(i, BUSY),
    "failure": lambda i: Response.failure(i, "no"),
}


@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_the_sink_gets_no_further_message_of_a_root_after_one_that_is_not_done(unfinished):
    vertex = Vertex(letters_of, sink=Sink(b=UNFINISHED[unfinished]), batch_size=2)
    verdict = vertex.run("abcd", "ef")
    assert vertex.sink.values == ["a", "b", "e", "f"]
    assert list(verdict.outcomes) == [0]
    assert verdict.decisions.written == 3


@pytest.mark.parametrize("unfinished", UNFINISHED)
@pytest.mark.parametrize("ask", [Response.fallback, Response.on_success])
def test_no_other_sink_gets_a_message_of_a_root_after_one_that_is_not_done(unfinished, ask):
    secondary = Sink()
    vertex = Vertex(
        letters_of,
        sink=Sink(a=ask, b=UNFINISHED[unfinished], c=ask),
        fallback=secondary,
        on_success=secondary,
    )
    assert list(vertex.run("ab", "cd").outcomes) == [0, 1]
    assert secondary.values == ["c"]


def test_messages_retried_in_place_do_not_hold_back_others():
    answers = iter([Response.failure])
    sink = Sink(b=lambda i: next(answers, lambda i, _: Response.ok(i))(i, "no"))
    vertex = Vertex(
        letters_of, sink=sink, strategy=RetryStrategy(Backoff("1ms", steps=3)), batch_size=1
    )
    assert vertex.run("abc").outcomes == {}
    assert vertex.sink.values == ["a", "b", "c", "b"]


@pytest.mark.parametrize("also", [{}, {"x": Response.fallback}, {"x": Response.on_success}])
def test_every_answer_of_a_root_is_stored_whatever_the_outcome_of_its_other_messages(also):
    answers = {c: lambda i, c=c: Response.serve(i, c.encode()) for c in "abc"}
    vertex = Vertex(
        letters_of, sink=Sink(**answers, **also), fallback=Sink(), on_success=Sink(), serves=True
    )
    settlement = settled(vertex.run("xaxb", "c"))
    found = [(p.key.partition(".")[0], p.payload) for p in settlement.publications]
    assert found == [("xaxb", b"a"), ("xaxb", b"b"), ("c", b"c")]
    assert len({p.key for p in settlement.publications}) == 3
    assert len({p.msg_id for p in settlement.publications}) == 3


def test_the_answers_of_a_root_keep_the_order_of_its_messages_despite_a_retry():
    tried = []

    def fail_once(i):
        tried.append(i)
        return Response.failure(i, "no") if len(tried) == 1 else Response.serve(i, b"0")

    answers = {c: lambda i, c=c: Response.serve(i, c.encode()) for c in "bcdefghijkl"}
    strategy = RetryStrategy(Backoff("1ms", steps=3), "retry")
    vertex = Vertex(letters_of, sink=Sink(a=fail_once, **answers), strategy=strategy, serves=True)
    settlement = settled(vertex.run("abcdefghijkl"))
    assert b"".join(p.payload for p in settlement.publications) == b"0bcdefghijkl"


@pytest.mark.parametrize(
    "stops",
    [lambda i: Response.nack(i, BUSY), lambda i: Response.failure(i, "no")],
    ids=["redelivered", "dead letter"],
)
def test_a_root_that_is_redelivered_or_dead_lettered_stores_no_answer(stops):
    answers = {"a": lambda i: Response.serve(i, b"answer"), "x": stops}
    vertex = Vertex(letters_of, sink=Sink(**answers), serves=True)
    assert vertex.run("ax").answers == {}


@pytest.mark.parametrize("level", ["transformer", "map", "sink"])
def test_a_root_whose_nack_is_used_up_goes_to_the_fallback_sink_from_every_step(level):
    fallback = Sink()
    vertex = {
        "transformer": lambda: Vertex(nacks(b"x", USED_UP), fallback=fallback),
        "map": lambda: Vertex(letters_of, nacks(b"x", USED_UP), fallback=fallback),
        "sink": lambda: Vertex(
            letters_of, sink=Sink(x=lambda i: Response.nack(i, USED_UP)), fallback=fallback
        ),
    }[level]()
    assert vertex.run("x", "a").outcomes == {0: FellBack()}
    assert fallback.values == ["x"]
    counts = settled(vertex.run("x", "a")).counts
    assert (counts.fallback, counts.done, counts.read, counts.ended) == (1, 1, 2, 2)


def test_a_root_whose_step_failed_for_good_goes_to_the_fallback_sink_if_the_strategy_says_so():
    fallback = Sink()
    strategy = RetryStrategy(Backoff("1ms", 2), "fallback")
    vertex = Vertex(lambda d: Message.to_fail("no"), fallback=fallback, strategy=strategy)
    assert vertex.run("a").outcomes == {0: FellBack()}
    assert fallback.values == ["a"]


def test_a_long_retry_of_a_step_redelivers_the_root():
    strategy = RetryStrategy(Backoff("5s", 2), "drop")
    vertex = Vertex(
        letters_of, nacks(b"x", then=lambda d: Message.to_fail("no")), strategy=strategy
    )
    assert vertex.run("ab").outcomes == {0: Retry(5_000, "no", retries=1, failures=0)}
    assert vertex.run("xb").outcomes == {0: Redeliver(5, "busy", 0)}


def test_no_part_of_a_root_that_is_retried_later_reaches_the_sink():
    def map(datum: Datum) -> Message:
        return Message.to_fail("no") if datum.value == b"x" else Message(datum.value)

    vertex = Vertex(letters_of, map, strategy=RetryStrategy(Backoff("5s", 2)))
    assert vertex.run("axb", "c").outcomes == {0: Retry(5_000, "no", retries=1, failures=0)}
    assert vertex.sink.values == ["c"]


def edge(*values: str, operator: Any = "or") -> Edge:
    return Edge("", 1, operator, frozenset(values))


@pytest.mark.parametrize("level", ["transformer", "map"])
def test_a_bypass_by_tags_reaches_each_of_the_three_sinks(level):
    """Numaflow's C9."""
    fallback, on_success, mapped = Sink(), Sink(), []
    parts: dict[str, MapCode] = {level: tagged}
    if level == "transformer":
        parts["map"] = lambda d: mapped.append(d.id)
    vertex = Vertex(
        **parts,
        fallback=fallback,
        on_success=on_success,
        bypass=Bypass(edge("s"), edge("f", "x"), edge("o", "s")),
    )
    verdict = vertex.run("s", "f", "o", "x")
    assert (vertex.sink.values, fallback.values, on_success.values) == (["s"], ["f", "x"], ["o"])
    assert verdict.outcomes == {1: FellBack(), 2: Succeeded(), 3: FellBack()}
    assert mapped == [], "what bypasses does not reach the map"


def test_a_rule_for_the_sink_drops_messages_without_a_match_and_nacks_keep_their_options():
    """Numaflow's A3: plain acked unwritten, nak keeps its options."""
    options = NackOptions(delay=750, max_deliveries=4, reason="busy")
    vertex = Vertex(nacks(b"n", options), bypass=Bypass(sink=edge("s")))
    verdict = vertex.run("other", "n", "s")
    assert verdict.outcomes == {0: NOT_FOR_THE_SINK, 1: Redeliver(750, "busy", 0)}
    assert vertex.sink.values == ["s"]
    assert settled(verdict).counts.dropped == 1


def test_messages_without_a_match_go_to_the_sink_if_it_has_no_rule():
    fallback = Sink()
    vertex = Vertex(tagged, fallback=fallback, bypass=Bypass(fallback=edge("f")))
    assert vertex.run("plain", "f").outcomes == {1: FellBack()}
    assert (vertex.sink.values, fallback.values) == (["plain"], ["f"])


def test_a_rule_with_not_matches_messages_with_other_tags():
    fallback = Sink()
    vertex = Vertex(tagged, fallback=fallback, bypass=Bypass(fallback=edge("a", operator="not")))
    vertex.run("a", "b")
    assert (vertex.sink.values, fallback.values) == (["a"], ["b"])


@pytest.mark.parametrize("target", ["f", "o", "s"])
def test_no_part_of_a_redelivered_root_bypasses_to_a_sink(target):
    fallback, on_success = Sink(), Sink()
    vertex = Vertex(
        lambda d: [Message(c.encode(), tags=[c]) for c in d.value.decode()],
        nacks(b"x"),
        fallback=fallback,
        on_success=on_success,
        bypass=Bypass(edge("s"), edge("f"), edge("o")),
    )
    assert vertex.run(f"{target}x").outcomes == {0: Redeliver(5, "busy", 0)}
    assert vertex.sink.received + fallback.received + on_success.received == []


@pytest.mark.parametrize(("target", "fine"), [("f", FellBack()), ("o", Succeeded())])
@pytest.mark.parametrize("answer", ["ok", "nack", "failure", "fallback"])
def test_the_sink_that_a_message_bypasses_to_decides_its_outcome(target, fine, answer):
    answers = {
        "ok": Response.ok,
        "nack": lambda i: Response.nack(i, BUSY),
        "failure": lambda i: Response.failure(i, "no"),
        "fallback": Response.fallback,
    }
    secondary = Sink(**{target: answers[answer]})
    vertex = Vertex(
        tagged, fallback=secondary, on_success=secondary, bypass=Bypass(None, edge("f"), edge("o"))
    )
    outcome = vertex.run(target).outcomes[0]
    name = {"f": "fallback sink", "o": "on-success sink"}[target]
    if answer == "fallback":
        assert isinstance(outcome, Redeliver)
        assert outcome.reason.startswith(f"ContractViolation: v: its {name} answered FALLBACK")
    else:
        assert (
            outcome
            == {
                "ok": fine,
                "nack": Redeliver(5, "busy", 0),
                "failure": DeadLetter(f"{name} failure", error="no"),
            }[answer]
        )


def test_a_root_is_counted_once_however_many_messages_it_produced():
    vertex = Vertex(
        letters_of,
        doubled,
        sink=Sink(xx=lambda i: Response.nack(i, BUSY), ff=Response.fallback),
        fallback=Sink(),
    )
    counts = settled(vertex.run("abc", "ax", "f", "ab")).counts
    assert (counts.read, counts.ended) == (4, 4)
    assert (counts.done, counts.redelivered, counts.fallback) == (2, 1, 1)


TAGS = ("s", "f", "o", "")
BEHAVIOUR = ("one", "two", "none", "nack", "used up", "raise", "fail", "dead", *TAGS)
SINK_ANSWERS: dict[str, Callable[[str], Any]] = {
    "ok": Response.ok,
    "fallback": Response.fallback,
    "on_success": Response.on_success,
    "serve": lambda i: Response.serve(i, b"answer"),
    "failure": lambda i: Response.failure(i, "no"),
    "nack": lambda i: Response.nack(i, BUSY),
    "used up": lambda i: Response.nack(i, USED_UP),
    "silent": lambda i: None,
    "unknown": lambda i: Response.ok("?"),
}


def random_map(chance: Any) -> MapCode:
    def code(datum: Datum) -> Any:
        match chance.choice(BEHAVIOUR):
            case "one":
                return Message(datum.value)
            case "two":
                return [Message(b"1"), Message(b"2", tags=[chance.choice(TAGS)])]
            case "none":
                return None
            case "nack":
                return [Message(b"never"), Message.to_nack(BUSY)]
            case "used up":
                return Message.to_nack(USED_UP)
            case "raise":
                raise ValueError("no")
            case "fail":
                return Message.to_fail("no")
            case "dead":
                return Message(b"x" * 2_000_000)
            case tag:
                return Message(datum.value, tags=[tag])

    return code


def random_sink(chance: Any) -> Any:
    def code(data: list[Datum]) -> list[Any]:
        if chance.random() < 0.05:
            raise ValueError("no")
        return [SINK_ANSWERS[chance.choice(list(SINK_ANSWERS))](d.id) for d in data]

    return code


rules = st.none() | st.sampled_from(TAGS[:3]).map(edge)


@pytest.mark.guarantee("outcomes-hold")
@settings(max_examples=examples(150))
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 6),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.tuples(rules, rules, rules),
    st.sampled_from([None, "retry", "fallback", "drop"]),
    st.integers(0, 4),
)
def test_whatever_user_code_does_every_root_has_exactly_one_outcome(
    chance, count, parts, bypass, on_failure, failures
):
    transformer, map, fallback, on_success = parts
    vertex = Vertex(
        random_map(chance) if transformer else None,
        random_map(chance) if map else None,
        random_sink(chance),
        random_sink(chance) if fallback else None,
        random_sink(chance) if on_success else None,
        Bypass(bypass[0], bypass[1] if fallback else None, bypass[2] if on_success else None),
        None if on_failure is None else RetryStrategy(Backoff("400ms", 1), on_failure),
        serves=chance.random() < 0.5,
    )
    ids = [f"m{n}" for n in range(count)]
    verdict = vertex.run(*ids, failures=failures)
    settlement = settled(verdict, trail=True)
    counts = settlement.counts
    assert counts.read == counts.ended == count
    assert set(verdict.outcomes) <= set(range(count))
    stages = Counter(publication.stage for publication in settlement.publications)
    assert stages[Stage.DEAD_LETTER] == counts.dead_lettered
    assert stages[Stage.ANSWER] >= counts.served
    stopped = [i for i, o in verdict.outcomes.items() if isinstance(o, Redeliver | Retry)]
    assert not verdict.answers.keys() & set(stopped), "what is redelivered answers again"
    assert stages[Stage.OUTPUT] == 0
    redeliveries = [p for p in settlement.publications if p.stage is Stage.REDELIVER]
    redelivered_ids = [
        i for p in redeliveries for i in frames.decode(p.payload).column("id").to_pylist()
    ]
    assert len(set(redelivered_ids)) == len(redelivered_ids) == counts.redelivered
    reported = [
        r for p in settlement.publications if p.stage is Stage.TRAIL for r in read_trail(p.payload)
    ]
    outcomes = Counter(row.outcome for row in reported)
    assert [row.id for row in reported] == ids, "of the roots, and of them alone"
    assert sum(row.answers for row in reported) == stages[Stage.ANSWER]
    assert outcomes["dead_lettered"] == counts.dead_lettered
    assert outcomes["redelivered"] == counts.redelivered
    assert outcomes["fallback"] == counts.fallback
