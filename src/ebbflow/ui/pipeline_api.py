"""The part of the API about one pipeline: spec, graph, logs, the way of a message, pauses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.nats.link import Link
from ebbflow.operations.pausing import PauseReport, pause, resume
from ebbflow.operations.tracing import trace_on_link
from ebbflow.runtime.run import StoredSpec, read_spec
from ebbflow.spec.echo import document_to_yaml
from ebbflow.spec.graph.layout import lay_out
from ebbflow.streams.logs import LogPage, read_logs
from ebbflow.streams.names import Names
from ebbflow.ui.pipelines import Pipelines
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest, read_name
from ebbflow.ui.site import PageRoute
from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal

T = TypeVar("T")

_YAML = "text/yaml; charset=utf-8"
_LONGEST_ID = 4_096
_LOGS = 200
_MOST_LOGS = 5_000

ChangePause = Callable[[Link, Names, str | None, float], PauseReport]
"""Pauses or resumes."""


class PipelineApi:
    """Answers questions about what a pipeline is, and has it pause."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    @property
    def routes(self) -> list[PageRoute]:
        """The paths of this part."""
        one = "/api/pipelines/{pipeline}"
        return [
            PageRoute("GET", f"{one}/spec", self._spec),
            PageRoute("GET", f"{one}/graph", self._graph),
            PageRoute("GET", f"{one}/logs", self._logs),
            PageRoute("GET", f"{one}/trace/{{id...}}", self._trace),
            PageRoute("POST", f"{one}/pause", partial(self._change_pause, pause)),
            PageRoute("POST", f"{one}/resume", partial(self._change_pause, resume)),
        ]

    async def _spec(self, request: PageRequest, exchange: Exchange) -> None:
        stored = await self._ask(request, _read_spec)
        PageReply(document_to_yaml(stored.document).encode(), 200, _YAML).send(exchange)

    async def _graph(self, request: PageRequest, exchange: Exchange) -> None:
        shape = (await self._ask(request, _read_spec)).shape
        answer = {"shape": shape.to_json(), "layout": lay_out(shape).to_json()}
        PageReply.of(answer).send(exchange)

    async def _logs(self, request: PageRequest, exchange: Exchange) -> None:
        vertex = request.vertex() or "*"
        most = max(1, request.number("limit", _LOGS, _MOST_LOGS))
        page = await self._ask(request, lambda link, names: _read_logs(link, names, vertex, most))
        PageReply.of({"logs": [entry.as_dict() for entry in page.entries]}).send(exchange)

    async def _trace(self, request: PageRequest, exchange: Exchange) -> None:
        message = request.path["id"]
        if not 0 < len(message) <= _LONGEST_ID:
            raise Refusal(400, f"an id has 1 to {_LONGEST_ID:,} characters")
        trace = await self._ask(request, lambda link, names: trace_on_link(link, names, message))
        if not trace.is_known:
            raise Refusal(
                404,
                f"nobody knows a message {message[:80]!r}",
                next_step=" ".join(trace.notes) or "See whether the id is right.",
            )
        PageReply.of(trace.to_json()).send(exchange)

    async def _change_pause(
        self, change: ChangePause, request: PageRequest, exchange: Exchange
    ) -> None:
        text = request.body.get("vertex")
        if text is not None and not isinstance(text, str):
            raise Refusal(400, "vertex must be the name of one")
        vertex = None if text is None else read_name(text, "vertex")
        report = await self._ask(request, partial(_change, change, vertex))
        PageReply.of(report).send(exchange)

    async def _ask(self, request: PageRequest, question: Callable[[Link, Names], T]) -> T:
        names = Names(request.pipeline)
        await self._pipelines.check(names.pipeline)
        return await self._pipelines.work(lambda link: question(link, names))


def _read_spec(link: Link, names: Names) -> StoredSpec:
    return link.run(read_spec(link.client, names))


def _read_logs(link: Link, names: Names, vertex: str, most: int) -> LogPage:
    return link.run(read_logs(link.client, names, vertex, most))


def _change(change: ChangePause, vertex: str | None, link: Link, names: Names) -> dict[str, Any]:
    """Has the pause stored and told; the page does not wait, it shows what comes of it."""
    try:
        report = change(link, names, vertex, 0.0)
    except SetupError:
        raise
    except EbbflowError as error:
        raise Refusal(404, str(error)) from None
    return {
        "vertices": report.vertices,
        "unfinished": report.unfinished,
        "runs": report.runs,
    }
