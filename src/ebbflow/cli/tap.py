"""``ebbflow tap``: show messages as they pass a vertex or while they wait at it."""

from __future__ import annotations

import json
import math
import string
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbflow.cli.options import HERE, PipelineArgument, ServerOptions, VertexArgument, parse_seconds

if TYPE_CHECKING:
    from ebbflow.operations.tapping import Tapped

Row = dict[str, Any]
Show = Callable[[Row], str]

_FIELDS = (
    "at", "vertex", "partition", "id", "keys", "value", "headers", "event_time", "deliveries",
    "outcome", "reason", "error", "due", "outputs",
)  # fmt: skip
_OUTCOMES = "done, sent, redelivered, dropped, fallback, served, on_success or dead_lettered"


def tap(
    pipeline: PipelineArgument,
    vertex: VertexArgument,
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only messages with this id, or made from it.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only messages with this key.")
    ] = None,
    header: Annotated[
        str | None, typer.Option(metavar="NAME[=VALUE]", help="Only messages with this header.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Only messages with an output of this tag.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only messages whose value holds this text.")
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(metavar="OUTCOME", help=f"Only messages with this outcome: {_OUTCOMES}."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Stop after this many messages.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this time, such as 30s.")
    ] = None,
    sample: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Show this share of the messages."),
    ] = 1.0,
    rate: Annotated[
        int,
        typer.Option(
            min=1, metavar="NUMBER", help="Show at most this many messages per second and task."
        ),
    ] = 200,
    waiting: Annotated[
        bool,
        typer.Option("--waiting", help="Show what waits at the vertex now, and exit."),
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Show whole values, up to 64 KiB.")
    ] = False,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Print text, json, or a pattern such as '{id} {outcome} {value}'.",
        ),
    ] = "text",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line: --format json.")
    ] = False,
    server: ServerOptions = HERE,
) -> None:
    """Show messages as they pass a vertex.

    Each is shown with its outcome, the reason, and its outputs by vertex. The pipeline is not
    disturbed: it never waits for this command. Messages that are too many to show are counted.
    """
    from ebbflow.accounts.taps import TapFilter, TapRequest

    show = _choose_format("json" if as_json else format)
    _check_outcome(outcome)
    seconds = math.inf if timeout is None else parse_seconds(timeout, "--timeout")
    wanted = TapFilter(id, key, header, tag, text, outcome)
    longest = 65_536 if whole or show is _to_json else 4096
    request = TapRequest("", vertex, 10.0, wanted, sample, rate, longest)
    with server.open(pipeline) as (link, names):
        from ebbflow.operations import tapping

        if waiting:
            rows: Iterator[Row] = tapping.read_waiting(link, names, request)
        else:
            rows = _rows_of(tapping.tap_vertex(link, names, request), seconds)
        with closing(rows):  # type: ignore[type-var]
            _print(rows, show, limit)


def _rows_of(tapped: Iterator[Tapped], seconds: float) -> Iterator[Row]:
    """Yields messages until the time is over or the user interrupts."""
    deadline = time.monotonic() + seconds
    skipped = 0
    try:
        for passed in tapped:
            yield from passed.rows
            skipped += passed.skipped
            if time.monotonic() >= deadline:
                return
    except KeyboardInterrupt:
        pass
    finally:
        if skipped:
            typer.echo(f"{skipped:,} more were too many to show; see --rate and --sample", err=True)


def _print(rows: Iterator[Row], show: Show, limit: int | None) -> None:
    for count, row in enumerate(rows, 1):
        typer.echo(show(row))
        if count == limit:
            return


def _check_outcome(outcome: str | None) -> None:
    if outcome is not None and outcome not in _OUTCOMES.replace(" or ", ", ").split(", "):
        raise typer.BadParameter(f"{outcome!r} is not one of {_OUTCOMES}.", param_hint="--outcome")


# --- formats ------------------------------------------------------------------------------------


def _choose_format(format: str) -> Show:
    if format in ("text", "json"):
        return _to_text if format == "text" else _to_json
    try:
        named = {
            name.partition("[")[0].partition(".")[0]
            for _, name, _, _ in string.Formatter().parse(format)
            if name
        }
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--format") from None
    unknown = sorted(named - set(_FIELDS))
    if unknown or not named:
        what = f"there is no field {unknown[0]!r}" if unknown else f"{format!r} has no fields"
        fields = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise typer.BadParameter(f"{what}; text, json, or fields: {fields}.", param_hint="--format")
    return lambda row: format.format(**{name: _plain(row, name) for name in _FIELDS})


def _plain(row: Row, name: str) -> object:
    """Returns a field for a pattern. A missing field is empty, a list is joined."""
    value = row.get(name)
    if name == "value":
        return _value(row)
    if name == "keys":
        return ",".join(value or ())
    if name == "outputs":
        return " ".join(_value(output) for output in value or ())
    return json.dumps(value) if isinstance(value, dict) else "" if value is None else value


def _to_json(row: Row) -> str:
    return json.dumps(row)


def _value(row: Row) -> str:
    value = row["value"]
    return f"base64 {value['base64']}" if isinstance(value, dict) else str(value)


def _to_text(row: Row) -> str:
    from ebbflow.status.terminal import one_line

    at = row["at"][11:23]
    again = f" delivery {row['deliveries']}" if row["deliveries"] > 1 else ""
    why = [row.get("reason"), row.get("error"), row.get("due") and f"due {row['due'][11:19]} UTC"]
    words = f" ({'; '.join(text for text in why if text)})" if any(why) else ""
    head = f"{at} {row['vertex']}.{row['partition']} {row['id']}{again} {row['outcome']}{words}"
    lines = [one_line(f"{head}{_content(row)}")]
    for output in row["outputs"]:
        to = ", ".join(output["to"]) or "nowhere"
        tags = f" tags={','.join(output['tags'])}" if output["tags"] else ""
        same = output["id"] == row["id"]  # it is forwarded unchanged
        what = "" if same else f" {output['id']}{tags}{_content(output)}"
        lines.append(one_line(f"  → {to}{what}"))
    if row["outputs_left_out"]:
        lines.append(f"  … {row['outputs_left_out']:,} more outputs")
    return "\n".join(lines)


def _content(row: Row) -> str:
    keys = f" keys={','.join(row['keys'])}" if row["keys"] else ""
    size = f" … {row['size']:,} bytes" if "size" in row else ""
    return f"{keys} {_value(row)}{size}"
