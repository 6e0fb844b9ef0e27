"""The state of a pipeline as ``ebbflow status`` shows it, and the end of a run.

The pipeline in a line, its vertices in a table, what needs attention below it; or all facts about
one vertex. The end of a run is its counts, what is left, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.text import Text

from ebbflow.domain.durations import format_duration
from ebbflow.status.ending import clock_time, describe_parked
from ebbflow.status.model import PipelineStatus, VertexStatus
from ebbflow.status.terminal.lines import JsonLines, NewsItem
from ebbflow.status.terminal.table import describe_error_group, draw_status, result_table
from ebbflow.status.terminal.terminal import nonzero, number, one_line, plural

if TYPE_CHECKING:
    from ebbflow.status.run_report import Summary
    from ebbflow.status.terminal import Display


def draw_overview(status: PipelineStatus, console: Console) -> RenderableType:
    """Returns everything about a pipeline, cut to fit the console."""
    runs = status.phase != "ended" and status.answers
    now = status if runs else replace(status, at=datetime.now(UTC), links={})
    return draw_status(now, console, describe_pipeline(status))


def describe_pipeline(status: PipelineStatus) -> str:
    """Returns in a line whether a pipeline runs, since when and where, or how it ended."""
    name, at = status.pipeline, status.at
    where = f"process {status.pid} on {status.host}"
    if not status.run:
        return f"{name} does not run"
    when = clock_time(at, None) if at else "long ago"
    if not status.answers:
        return f"{name}: not responding; its run ({where}) has not reported since {when}"
    if status.phase == "ended":
        return f"{name} does not run; its last run ended at {when}: {status.ended or 'unknown'}"
    age = (at - status.began).total_seconds() if at and status.began else 0.0
    ready = "" if status.ready or status.phase != "running" else ", not all vertices are at work"
    return f"{name}: {status.phase} for {format_duration(age)}{ready} ({where})"


def describe_details(status: PipelineStatus, vertex: VertexStatus) -> Iterator[str]:
    """Yields all facts about one vertex, line by line, with the tracebacks of its errors."""
    for name, text in _facts(status, vertex).items():
        yield f"{name + ':':14} {one_line(text)}"
    for group in vertex.errors:
        yield ""
        seen = f"last at {clock_time(group.last, status.at)}"
        yield one_line(f"{describe_error_group(group)}; {seen}")
        yield from (f"  {one_line(line)}" for line in (group.traceback or "").splitlines())


def _facts(status: PipelineStatus, vertex: VertexStatus) -> dict[str, str]:
    counted = " ".join(f"{name}={count:,}" for name, count in nonzero(vertex.counts).items())
    total = " ".join(f"{name}={count:,}" for name, count in nonzero(vertex.totals).items())
    about = "" if vertex.pending_exact else "about "
    facts = {
        "vertex": f"{vertex.name} ({vertex.kind}, {plural(vertex.partitions, 'partition')})",
        "state": vertex.words or vertex.condition,
        "rate": f"{number(vertex.rate_in)}/s in, {number(vertex.rate_out)}/s out",
        "this run": counted or "nothing read",
        "all runs": total or "nothing read",
        "waiting": f"{about}{vertex.pending:,}{_describe_wait(vertex)}",
        "parked": describe_parked(vertex.parked, status.at) if vertex.parked.messages else "0",
        "dead letters": _dead_letters(vertex),
    }
    if vertex.in_flight is not None and status.at is not None:
        age = format_duration((status.at - vertex.in_flight.since).total_seconds())
        facts["in flight"] = f"{vertex.in_flight.messages:,} for {age}"
    if vertex.source_pending is not None:
        facts["at the source"] = f"{vertex.source_pending:,}"
    if vertex.watermark is not None:
        facts["watermark"] = vertex.watermark.isoformat()
    if vertex.nack_reasons:
        facts["nacked for"] = ", ".join(f"{c.text} ({c.count:,})" for c in vertex.nack_reasons)
    for stage, latency in vertex.latency.items():
        p50, p99 = latency.p50 * 1000, latency.p99 * 1000
        facts[f"{stage} of chunk"] = f"p50 {p50:,.1f} ms, p99 {p99:,.1f} ms"
    return facts


def _describe_wait(vertex: VertexStatus) -> str:
    age, drain, grows = (
        vertex.oldest_waiting_seconds,
        vertex.drain_seconds,
        vertex.backlog_growing_seconds,
    )
    oldest = f", the oldest for {format_duration(age)}" if age is not None else ""
    empty = f", empty in about {format_duration(drain)}" if drain is not None else ""
    return oldest + (empty or (f", more for {format_duration(grows)}" if grows else ""))


def _dead_letters(vertex: VertexStatus) -> str:
    causes = ", ".join(f"{cause.text} ({cause.count:,})" for cause in vertex.dead_letter_causes)
    return f"{vertex.dead_letters:,}{f': {causes}' if causes else ''}"


def show_end(display: Display, summary: Summary, where: str = "") -> None:
    """Shows how a run ended. ``where`` are the options with which a command finds the pipeline."""
    lines = [one_line(line) for line in summary.describe(where)]
    if isinstance(display, JsonLines):
        level = "info" if summary.ended in ("drained", "stopped") else "error"
        display.report(NewsItem(level, "end", "", " ".join(lines), summary.facts()))
        return
    console = display.console
    console.print(result_table(summary.vertices, console.width))
    console.print()
    for line in lines:
        console.print(Text(line, _style(line)), soft_wrap=True)


def _style(line: str) -> str:
    return (
        "bold red"
        if line.startswith(("Not drained", "Counts do not match", "failed after"))
        else ""
    )
