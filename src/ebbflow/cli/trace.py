"""``ebbflow trace``: show the path of a message through a pipeline, and where it is now.

The command uses the server of the running pipeline. If the pipeline is not running, it starts the
embedded server and stops it when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ebbflow.cli.options import HERE, JsonOption, PipelineArgument, ServerOptions
from ebbflow.cli.tables import print_table

if TYPE_CHECKING:
    from ebbflow.connectors.serving.store import ServedRequest
    from ebbflow.operations.trace import MessageTrace, TraceStep

_SHOWN = 20


def trace(
    pipeline: PipelineArgument,
    id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of the message or request.", show_default=False),
    ],
    as_json: JsonOption = False,
    server: ServerOptions = HERE,
) -> None:
    """Show what each vertex did with a message, and where it is now.

    Includes the messages made from it.
    """
    from ebbflow.operations.trace import trace_message

    found = trace_message(pipeline, id, state=server.state, nats=server.nats)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    for line in _describe(found):
        typer.echo(line)
    if found.steps:
        _print_steps(found)
    if found.request is not None and found.request.steps_left_out:
        typer.echo(f"{found.request.steps_left_out:,} more steps are not kept")
    for note in found.notes:
        typer.echo(note)


def _describe(found: MessageTrace) -> Iterator[str]:
    from ebbflow.status.terminal import one_line

    facts = {"message": found.id} if found.request is None else _describe_request(found.request)
    for name, text in facts.items():
        yield f"{name + ':':10} {one_line(text)}"
    for number, words in enumerate(_describe_places(found)):
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


def _describe_places(found: MessageTrace) -> Iterator[str]:
    for place in found.now[:_SHOWN]:
        yield f"{place.message} {place.words}"
    if len(found.now) > _SHOWN:
        yield f"and {len(found.now) - _SHOWN:,} more"
    if not found.now and found.steps:
        yield "it has ended; nothing of it is in flight"


def _print_steps(found: MessageTrace) -> None:
    day = _day(found)
    time = f"{day} UTC" if day else "time (UTC)"
    titles = (time, "vertex", "message", "delivery", "outcome", "reason")
    print_table(titles, (_cells(step, day) for step in found.steps))


def _cells(step: TraceStep, day: str) -> list[str]:
    words = [_time(step.at, day), step.vertex, step.message, str(step.delivery), step.outcome]
    return [*words, _reason(step, day)]


def _day(found: MessageTrace) -> str:
    """Returns the day of all steps, or nothing if they span several days."""
    days = {f"{step.at.astimezone(UTC):%Y-%m-%d}" for step in found.steps}
    return days.pop() if len(days) == 1 else ""


def _reason(step: TraceStep, day: str) -> str:
    due = f"due {_time(step.due, day)}" if step.due else None
    return "; ".join(filter(None, (step.reason, step.error, due)))


def _time(time: datetime, day: str = "") -> str:
    """Returns the time in UTC, without its day if that is ``day``."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3].removeprefix(f"{day} ")
