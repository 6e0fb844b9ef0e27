"""The part of the API that tells how pipelines are: once, as events, and over time."""

from __future__ import annotations

import asyncio
from typing import Any

from ebbflow.domain.records import to_plain
from ebbflow.status.model import PipelineStatus
from ebbflow.status.reading import read_chunks, read_history
from ebbflow.streams.names import Names
from ebbflow.ui.pipelines import Pipelines
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest, read_name
from ebbflow.ui.site import PageRoute
from ebbflow.web.event_stream import EventStream
from ebbflow.web.exchange import Exchange


class StatusApi:
    """Answers questions about the state of pipelines."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    @property
    def routes(self) -> list[PageRoute]:
        """The paths of this part."""
        one = "/api/pipelines/{pipeline}"
        return [
            PageRoute("GET", "/api/pipelines", self._list),
            PageRoute("GET", f"{one}/status", self._status),
            PageRoute("GET", f"{one}/events", self._events),
            PageRoute("GET", f"{one}/history", self._history),
            PageRoute("GET", f"{one}/vertices/{{vertex}}/chunks", self._chunks),
        ]

    async def _list(self, request: PageRequest, exchange: Exchange) -> None:
        names = await self._pipelines.list()
        entries = await asyncio.gather(*map(self._describe, names))
        PageReply.of({"pipelines": entries}).send(exchange)

    async def _describe(self, name: str) -> dict[str, Any]:
        try:
            return describe_pipeline(await self._pipelines.status(name))
        except Exception:
            # One that cannot be read does not hide the others.
            return {"name": name, "phase": None}

    async def _status(self, request: PageRequest, exchange: Exchange) -> None:
        status = await self._pipelines.status(request.pipeline)
        PageReply.of(status.to_json()).send(exchange)

    async def _events(self, request: PageRequest, exchange: Exchange) -> None:
        follower = await self._pipelines.follow(request.pipeline)
        async with EventStream(exchange):
            async for event in follower.watch():
                await exchange.send(event)

    async def _history(self, request: PageRequest, exchange: Exchange) -> None:
        names = Names(request.pipeline)
        await self._pipelines.check(names.pipeline)
        samples = await self._pipelines.work(lambda link: read_history(link, names))
        PageReply.of({"samples": [*map(to_plain, samples)]}).send(exchange)

    async def _chunks(self, request: PageRequest, exchange: Exchange) -> None:
        names, vertex = Names(request.pipeline), read_name(request.path["vertex"], "vertex")
        await self._pipelines.check(names.pipeline)
        chunks = await self._pipelines.work(lambda link: read_chunks(link, names, vertex))
        PageReply.of({"chunks": [*map(to_plain, chunks)]}).send(exchange)


def describe_pipeline(status: PipelineStatus) -> dict[str, Any]:
    """Returns what a list of pipelines shows of one."""
    return {
        "name": status.pipeline,
        "phase": status.phase,
        "ended": status.ended,
        "ready": status.ready,
        "answers": status.answers,
        "at": status.at.isoformat() if status.at else None,
        "problems": len(status.problems),
        "dead_letters": sum(vertex.dead_letters for vertex in status.vertices),
    }
