"""No public call accepts a bare number as a duration: its error shows both spellings."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ebbflow.connectors
from ebbflow import Backoff, Limits, Message, Nack, Pipeline, PipelineRun, Response, Unavailable
from ebbflow.builders import Audit, NatsStore, OnUnavailable, Publish
from ebbflow.client import AsyncClient, Client
from ebbflow.connectors import Generator, Log, Ports
from ebbflow.operations import stored_answers
from ebbflow.publishing import PublishOptions
from ebbflow.runtime.run_setup import RunOptions
from ebbflow.testing import (
    Crash,
    Outage,
    Pause,
    SinkTrial,
    SourceTrial,
    check_sink,
    check_source,
    simulate,
)

MODULES = (
    "ebbflow", "ebbflow.builders", "ebbflow.client", "ebbflow.connectors", "ebbflow.datasource",
    "ebbflow.deadletters", "ebbflow.operations", "ebbflow.publishing", "ebbflow.status",
    "ebbflow.testing",
)  # fmt: skip
SPELLINGS = r'has no unit; write "5s" or timedelta\(seconds=5\)'
URL = "http://127.0.0.1:1"
PIPELINE = Pipeline("p").source("in", Generator(messages=1)).sink("out", Log())
UNDER_TEST: Any = None


def waiting_run() -> PipelineRun:
    from ebbflow.status.run_report import Watcher

    return PipelineRun(PIPELINE.spec, RunOptions(), Watcher())


def of_connector(name: str, **required: Any) -> Callable[[str], Any]:
    connector = getattr(ebbflow.connectors, name)
    return lambda option: connector(**required, **{option: 5})


def finish(call: Any) -> None:
    if inspect.isawaitable(call):
        asyncio.run(call)  # type: ignore[arg-type]


CALLS: dict[str, Callable[[str], Any]] = {
    "Backoff": lambda name: Backoff(**{"interval": "1s", name: 5}),
    "Limits": lambda name: Limits(**{name: 5}),
    "Nack": lambda name: Nack(**{name: 5}),
    "nack": lambda name: ebbflow.nack(**{name: 5}),
    "NackOptions.of": lambda name: Nack("why", **{name: 5}),
    "Message.to_nack": lambda name: Message.to_nack(**{name: 5}),
    "Response.nack": lambda name: Response.nack("1", **{name: 5}),
    "Response.unavailable": lambda name: Response.unavailable("1", "it", **{name: 5}),
    "Unavailable": lambda name: Unavailable("it", **{name: 5}),
    "Audit": lambda name: Audit(**{"format": "parquet", name: 5}),
    "NatsStore": lambda name: NatsStore(**{name: 5}),
    "OnUnavailable": lambda name: OnUnavailable(**{name: 5}),
    "Publish": lambda name: Publish(**{name: 5}),
    "PipelineRun.start": lambda name: waiting_run().start(**{name: 5}),
    "PipelineRun.wait": lambda name: waiting_run().wait(**{name: 5}),
    "PipelineRun.stop": lambda name: waiting_run().stop(**{name: 5}),
    "PipelineRun.wait_async": lambda name: waiting_run().wait(**{name: 5}),
    "PipelineRun.stop_async": lambda name: waiting_run().stop(**{name: 5}),
    "StoredAnswers.watch": lambda name: next(
        object.__new__(stored_answers._InBucket).watch(**{name: 5})
    ),
    "Client": lambda name: Client(URL, **{name: 5}),
    "AsyncClient": lambda name: AsyncClient(URL, **{name: 5}),
    **{
        f"{kind.__name__}.{call}": lambda name, of=kind, call=call: finish(
            getattr(of(URL), call)("1", **{name: 5})
        )
        for kind in (Client, AsyncClient)
        for call in ("ask", "submit", "fetch", "wait", "status", "stream")
    },
    **{
        f"{kind}{call}": lambda name: PublishOptions().with_changes({name: 5})
        for kind in ("Publisher", "AsyncPublisher")
        for call in ("", ".publish", ".publish_many")
    },
    **{
        f"{kind}.{call}": lambda name, call=call: getattr(PIPELINE, call)(**{name: 5})
        for kind in ("Pipeline", "MonoVertex")
        for call in ("run", "start")
    },
    **{
        f"{kind}.serve": lambda name: Pipeline("p").serve("in", ports=Ports(), **{name: 5}).spec
        for kind in ("Pipeline", "MonoVertex")
    },
    "PublishOptions": lambda name: PublishOptions(**{name: 5}),
    "Outage": lambda name: Outage(**{"vertex": "out", "lasts": "1s", name: 5}),
    "Pause": lambda name: Pause(**{"vertex": "out", "lasts": "1s", name: 5}),
    "Crash": lambda name: Crash("out", **{name: 5}),
    "Simulation.advance": lambda name: simulate(PIPELINE).advance(5),
    "simulate": lambda name: simulate(PIPELINE, **{name: 5}),
    "SinkTrial": lambda name: SinkTrial(UNDER_TEST, Path(), 5),
    "SourceTrial": lambda name: SourceTrial(UNDER_TEST, Path(), 5),
    "check_sink": lambda name: check_sink(UNDER_TEST, Path(), 5),
    "check_source": lambda name: check_source(UNDER_TEST, Path(), 5),
    "Generator": of_connector("Generator"),
    "Http": of_connector("Http"),
    "JetStream": of_connector("JetStream", url="nats://x", stream="s"),
    "Nats": of_connector("Nats", url="nats://x", subject="s"),
    "Postgres": of_connector("Postgres", url="postgresql://x/y", table="t"),
    "Pubsub": of_connector("Pubsub", project="p", subscription="s"),
    "Serving": of_connector("Serving"),
    "Trigger": of_connector("Trigger"),
}
"""For every public callable that takes a duration: a call with 5 as the value of an option."""


def with_durations() -> Iterator[tuple[str, str]]:
    """Every public call and each of its options that is a duration."""
    for module in map(import_module, MODULES):
        for name in module.__all__:
            public = getattr(module, name)
            for call, target in callables(name, public):
                yield from ((call, option) for option in durations_of(target))


def callables(name: str, public: Any) -> Iterator[tuple[str, Any]]:
    if not inspect.isclass(public):
        yield name, public
        return
    yield name, public.__init__
    for member in dir(public):
        if not member.startswith("_") and callable(method := getattr(public, member, None)):
            yield f"{name}.{member}", method


def durations_of(target: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(target, eval_str=False).parameters.values()
    except (TypeError, ValueError):
        return
    for parameter in parameters:
        if "Duration" in str(parameter.annotation) and "float" not in str(parameter.annotation):
            yield parameter.name
        elif str(parameter.annotation).startswith("Unpack["):
            yield from durations_in_options(target, str(parameter.annotation)[7:-1])


def durations_in_options(target: Any, options: str) -> Iterator[str]:
    module = import_module(inspect.unwrap(target).__module__)
    typed = getattr(module, options, None) or getattr(
        import_module("ebbflow.runtime.run_setup"), options
    )
    hints = inspect.get_annotations(typed)
    return (name for name, hint in hints.items() if "Duration" in str(hint))


@pytest.mark.parametrize(("call", "option"), sorted({*with_durations()}))
def test_a_bare_number_is_rejected_with_both_spellings(call: str, option: str) -> None:
    with pytest.raises(Exception, match=SPELLINGS):
        CALLS[call](option)


def test_options_that_numaflow_and_nats_clients_define_accept_bare_numbers() -> None:
    assert ebbflow.NackOptions(delay=5).delay == 5
    options = PublishOptions(retry_wait=0.5, ack_wait=2)
    assert (options.retry_wait, options.ack_wait) == (0.5, 2)
    assert Backoff("1s") == Backoff(timedelta(seconds=1))
