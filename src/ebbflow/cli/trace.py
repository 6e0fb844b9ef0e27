"""``ebbflow trace``: the way of a message through a pipeline, and where it is now.

The command uses the server of a pipeline that runs. If it does not run, it starts the embedded
server for as long as it takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.conventions import (
    DEFAULT_STATE,
    JsonOption,
    NatsOption,
    PipelineArgument,
    StateOption,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ebbflow.connectors.serving.store import ServedRequest
    from ebbflow.operations.tracing import MessageTrace, TraceStep

_SHOWN = 20


def trace(
    pipeline: PipelineArgument,
    id: Annotated[
        str, typer.Argument(help="The id of the message or request.", show_default=False)
    ],
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Show what each vertex did with a message and with those made of it, and where it is now."""
    from ebbflow.operations.tracing import trace_message
    from ebbflow.status.terminal import console_for

    way = trace_message(pipeline, id, state=state, nats=nats)
    if as_json:
        typer.echo(json.dumps(way.to_json()))
        return
    for line in _describe(way):
        typer.echo(line)
    if way.steps:
        console_for(sys.stdout).print(_table(way))
    if way.request is not None and way.request.steps_left_out:
        typer.echo(f"{way.request.steps_left_out:,} more steps are not kept")
    for note in way.notes:
        typer.echo(note)


def _describe(way: MessageTrace) -> Iterator[str]:
    from ebbflow.status.terminal import one_line

    facts = {"message": way.id} if way.request is None else _describe_request(way.request)
    for name, text in facts.items():
        yield f"{name + ':':10} {one_line(text)}"
    for number, words in enumerate(_describe_places(way)):
        yield f"{'' if number else 'now:':10} {one_line(words)}"


def _describe_request(request: ServedRequest) -> dict[str, str]:
    facts = {
        "request": request.id,
        "status": request.status,
        "accepted": _time(request.accepted),
        "ended": _time(request.ended) if request.ended else "not yet",
        "answers": f"{request.answer_count:,}",
    }
    if request.failure is not None:
        failure = request.failure
        words = (failure.reason, failure.error)
        facts["failure"] = f"at {failure.vertex}: {': '.join(filter(None, words))}"
    return facts


def _describe_places(way: MessageTrace) -> Iterator[str]:
    for place in way.now[:_SHOWN]:
        yield f"{place.message} {place.words}"
    if len(way.now) > _SHOWN:
        yield f"and {len(way.now) - _SHOWN:,} more"
    if not way.now and way.steps:
        yield "it has ended; nothing of it is on its way"


def _table(way: MessageTrace) -> Table:
    from rich.table import Table
    from rich.text import Text

    from ebbflow.status.terminal import one_line

    table = Table()
    day = _day(way)
    time = f"{day} UTC" if day else "time (UTC)"
    for name in (time, "vertex", "message", "delivery", "outcome", "reason"):
        table.add_column(name, overflow="fold")
    for step in way.steps:
        words = [_time(step.at, day), step.vertex, step.message, str(step.delivery), step.outcome]
        table.add_row(*(Text(one_line(word)) for word in (*words, _reason(step, day))))
    return table


def _day(way: MessageTrace) -> str:
    """Returns the day on which everything happened, if it is one."""
    days = {f"{step.at.astimezone(UTC):%Y-%m-%d}" for step in way.steps}
    return days.pop() if len(days) == 1 else ""


def _reason(step: TraceStep, day: str) -> str:
    due = f"due {_time(step.due, day)}" if step.due else None
    return "; ".join(filter(None, (step.reason, step.error, due)))


def _time(time: datetime, day: str = "") -> str:
    """Returns the time in UTC, without the day if it is that one."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3].removeprefix(f"{day} ")
