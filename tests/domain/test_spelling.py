"""Wrong options and old names raise an error at the call that says what to write instead."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

import ebbflow
from ebbflow import (
    Backoff,
    DeadLetters,
    Function,
    Message,
    MonoVertex,
    Nack,
    NackOptions,
    Pipeline,
    PipelineRun,
    Response,
    Unavailable,
    nack,
)
from ebbflow.client import AsyncClient, Client
from ebbflow.connectors import Generator, Kafka
from ebbflow.deadletters import LetterFilter
from ebbflow.operations import answers
from ebbflow.publishing import Publisher, PublishOptions
from ebbflow.status import VertexStatus
from ebbflow.testing import Crash, Outage, Pause, run_map, run_sink, simulate


def store(batch: list[ebbflow.Datum]) -> None: ...


PIPELINE = Pipeline("test").source("in", Generator(messages=1))
CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8")


def refusal(call) -> str:
    with pytest.raises((TypeError, ValueError, AttributeError, ImportError)) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Nack("x", delai="5s"), "Nack() has no option 'delai'; did you mean 'delay'?"),
        (lambda: nack(raison="x"), "nack() has no option 'raison'; did you mean 'reason'?"),
        (lambda: Message(b"x", tag=["a"]), "Message() has no option 'tag'; did you mean 'tags'?"),
        (
            lambda: Message.json(1, kyes=["a"]),
            "Message.json() has no option 'kyes'; did you mean 'keys'?",
        ),
        (
            lambda: Message.to_fail(eror="x"),
            "Message.to_fail() has no option 'eror'; did you mean 'error'?",
        ),
        (
            lambda: ebbflow.Datum(b"x", key=["a"]),
            "Datum() has no option 'key'; did you mean 'keys'?",
        ),
        (
            lambda: Response.failure("1", eror="x"),
            "Response.failure() has no option 'eror'; did you mean 'error'?",
        ),
        (
            lambda: Response.serve("1", playload=b""),
            "Response.serve() has no option 'playload'; did you mean 'payload'?",
        ),
        (
            lambda: Message.to_nack(max_delivery=3),
            "Message.to_nack() has no option 'max_delivery'; did you mean 'max_deliveries'?",
        ),
        (
            lambda: Response.nack("1", dely="5s"),
            "Response.nack() has no option 'dely'; did you mean 'delay'?",
        ),
        (lambda: NackOptions(dely=5), "NackOptions() has no option 'dely'; did you mean 'delay'?"),
        (lambda: Backoff("1s", step=3), "Backoff() has no option 'step'; did you mean 'steps'?"),
        (
            lambda: Unavailable("db", retry="5s"),
            "Unavailable() has no option 'retry'; did you mean 'retry_after'?",
        ),
        (lambda: Function(comand=()), "Function() has no option 'comand'; did you mean 'command'?"),
        (lambda: Outage("v", "5s", form="1s"), "Outage() has no option 'form'; it takes vertex, "),
        (lambda: Pause("v", lasting="5s"), "Pause() has no option 'lasting'; did you mean 'lasts'"),
        (lambda: Crash("v", steps=2), "Crash() has no option 'steps'; did you mean 'step'?"),
        (
            lambda: simulate(PIPELINE, mesages=[]),
            "simulate() has no option 'mesages'; did you mean 'messages'?",
        ),
        (lambda: run_map(store, mod="batch"), "run_map() has no option 'mod'; did you mean 'mode'"),
        (
            lambda: run_sink(store, serve=True),
            "run_sink() has no option 'serve'; give Serve(...) of",
        ),
        (
            lambda: Client("http://localhost", timout="5s"),
            "Client() has no option 'timout'; did you mean 'timeout'?",
        ),
        (
            lambda: AsyncClient("http://localhost").ask(b"", timout="5s"),
            "AsyncClient.ask() has no option 'timout'; did you mean 'timeout'?",
        ),
        (
            lambda: Publisher("nats://localhost", retry_atempts=1),
            "PublishOptions() has no option 'retry_atempts'; did you mean 'retry_attempts'?",
        ),
        (
            lambda: PublishOptions(ack_wat=1),
            "PublishOptions() has no option 'ack_wat'; did you mean 'ack_wait'?",
        ),
        (
            lambda: LetterFilter(vertx="v"),
            "LetterFilter() has no option 'vertx'; did you mean 'vertex'?",
        ),
        (
            lambda: DeadLetters.open("p", stat="x"),
            "DeadLetters.open() has no option 'stat'; did you mean 'state'?",
        ),
        (lambda: answers("p", nat="x"), "answers() has no option 'nat'; did you mean 'nats'?"),
        (
            lambda: PipelineRun.wait(None, timout="5s"),
            "PipelineRun.wait() has no option 'timout'; did you mean 'timeout'?",
        ),
        (
            lambda: Generator(message=1),
            "Generator() has no option 'message'; did you mean 'message",
        ),
        (lambda: Kafka(topics="a"), "Kafka() has no option 'topics'; did you mean 'topic'?"),
        (
            lambda: PIPELINE.sink("out", store, partitons=2),
            "Pipeline.sink() has no option 'partitons'; did you mean 'partitions'?",
        ),
        (
            lambda: PIPELINE.sink("out", store, on_full="discard"),
            "on_full cannot be 'discard'; did you mean 'discard_latest'?",
        ),
        (
            lambda: PIPELINE.sink("out", store).run(timout="5s"),
            "run() has no option 'timout'; did you mean 'timeout'?",
        ),
        (lambda: VertexStatus("v").parkd, "VertexStatus has no attribute 'parkd'; did you mean 'p"),
    ],
)
def test_a_wrong_option_raises_an_error_at_the_call(call, text: str) -> None:
    assert refusal(call).startswith(text)


OLD = [
    *(
        (kind, lambda kind=kind: PIPELINE.source("in", **{kind: {}}), rf"{name}\(\.\.\.\)")
        for kind, name in [
            ("generator", "Generator"),
            ("kafka", "Kafka"),
            ("jetstream", "JetStream"),
            ("nats", "Nats"),
            ("http", "Http"),
            ("file", "File"),
            ("spark", "Spark"),
            ("serving", "Serving"),
        ]
    ),
    *(
        (f"{kind}=True", lambda kind=kind: PIPELINE.sink("out", **{kind: True}), rf"{name}\(")
        for kind, name in [("log", "Log"), ("blackhole", "Blackhole"), ("serve", "Serve")]
    ),
    ('fallback="log"', lambda: PIPELINE.sink("out", store, fallback="log"), r"Log\(\)"),
    ("mappings", lambda: PIPELINE.sink("out", {"log": {}}), "ebbflow.connectors"),
    ("limits", lambda: Pipeline("p", limits={"readBatchSize": 1}), r"Limits\("),
    ("audit", lambda: Pipeline("p", audit={"format": "parquet"}), r"Audit\("),
    ("inter_step_buffer", lambda: Pipeline("p", inter_step_buffer={}), r"InterStepBuffer\("),
    ("serving_store", lambda: Pipeline("p", serving_store={"nats": {}}), r"NatsStore\("),
    ("breaker", lambda: PIPELINE.sink("out", store, breaker={}), r"Breaker\("),
    ("on_unavailable", lambda: PIPELINE.sink("out", store, on_unavailable={}), r"OnUnavailable\("),
    ("retry", lambda: PIPELINE.sink("out", store, retry={"steps": 1}), r"Backoff\("),
    ("on_error", lambda: PIPELINE.sink("out", store, on_error={"steps": 1}), r"Backoff\("),
    ("on_full", lambda: PIPELINE.sink("out", store, on_full="discardLatest"), "'discard_latest'"),
    ("`code=`", lambda: Pipeline("p").source("in", code=store), "it is 'source' now"),
    ("`code=`", lambda: PIPELINE.sink("out", code=store), "it is 'sink' now"),
    ("`code=`", lambda: MonoVertex("p").source(code=store), "it is 'source' now"),
    ("`code=`", lambda: MonoVertex("p").sink(code=store), "it is 'sink' now"),
    ("`options=`", lambda: Message.to_nack(options=NackOptions()), "in place of the reason"),
    ("`options=`", lambda: Response.nack("1", options=NackOptions()), "in place of the reason"),
    ('Nack("5s")', lambda: Nack("5s"), "write delay='5s'"),
    ('Nack("5s")', lambda: nack(timedelta(seconds=5)), "write delay=datetime.timedelta"),
    ("Nack.of", lambda: Nack.of(NackOptions()), r"write Nack\(options\)"),
    ("in_hand", lambda: VertexStatus("v").in_hand, "it is 'in_flight' now"),
    ("RowResponse", lambda: ebbflow.RowResponse, "write Response"),
    *(
        (name, lambda name=name: getattr(ebbflow, name), f"write: from {module} import {name}$")
        for module, names in {
            "ebbflow.deadletters": "EarlierDeath Letter LetterEdit LetterFilter LetterPage "
            "ReplayResult StoredLetter",
            "ebbflow.domain.errors": "AccessError CallTimeout ContractViolation EngineLost Problem "
            "JetStreamUnavailable MessageTooLarge SourceError TargetError",
            "ebbflow.operations": "Answer ServingStore StoredAnswers answers",
            "ebbflow.status": "PipelineStatus VertexStatus",
        }.items()
        for name in names.split()
    ),
]
"""Old names and shapes as the changelog calls them, a use of each, and what the error must say."""


@pytest.mark.parametrize(("name", "call", "gives"), OLD, ids=[name for name, _, _ in OLD])
def test_an_old_name_raises_an_error_that_names_the_new_one(name: str, call, gives: str) -> None:
    assert re.search(gives, refusal(call))
    assert name in CHANGELOG


def test_a_reason_that_merely_contains_a_duration_is_accepted() -> None:
    assert Nack("5s after the last try").options.reason == "5s after the last try"
    assert NackOptions(reason="5s").reason == "5s"
