"""``ebbflow trace``: the way of a request through a pipeline that answers requests.

The command uses the server of a pipeline that runs. If it does not run, it starts the embedded
server for as long as it takes.
"""

from __future__ import annotations

import json
import sys
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

    from ebbflow.connectors.serving.served_request import ServedRequest
    from ebbflow.core.completion import RequestStep


def trace(
    pipeline: PipelineArgument,
    id: Annotated[str, typer.Argument(help="The id of the request.", show_default=False)],
    as_json: JsonOption = False,
    state: StateOption = DEFAULT_STATE,
    nats: NatsOption = None,
) -> None:
    """Show the way of a request: what each vertex did with its messages, and when."""
    from ebbflow.display import console_for
    from ebbflow.tracing import trace_request

    request = trace_request(pipeline, id, state=state, nats=nats)
    if as_json:
        typer.echo(json.dumps(request.describe()))
        return
    typer.echo(_describe(request))
    if request.steps:
        console_for(sys.stdout).print(_table(request))
    if request.steps_left_out:
        typer.echo(f"{request.steps_left_out:,} more steps are not kept")


def _describe(request: ServedRequest) -> str:
    from ebbflow.display import one_line

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
    if not request.steps:
        facts["way"] = "it waits in the buffer of its source"
    return "\n".join(f"{name + ':':10} {one_line(text)}" for name, text in facts.items())


def _table(request: ServedRequest) -> Table:
    from rich.table import Table
    from rich.text import Text

    from ebbflow.display import one_line

    table = Table()
    for name in ("time (UTC)", "vertex", "message", "delivery", "outcome", "reason"):
        table.add_column(name, overflow="fold")
    for step in request.steps:
        words = [_time(step.at), step.vertex, step.message, str(step.deliveries), step.outcome]
        table.add_row(*(Text(one_line(word)) for word in (*words, _reason(step))))
    return table


def _reason(step: RequestStep) -> str:
    due = f"due {_time(step.due)}" if step.due else None
    return "; ".join(filter(None, (step.reason, step.error, due)))


def _time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
