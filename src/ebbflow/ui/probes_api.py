"""Metrics for Prometheus, and how pipelines are in one word, for those who watch over processes.

Probes need no token: 200 if all is well, 503 if not. Only those who have the token, where there is
one, hear what is wrong: its words may be those of user code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ebbflow.domain.records import to_plain
from ebbflow.status.conditions import Health, judge_health
from ebbflow.status.metrics import render_metrics
from ebbflow.status.model import PipelineStatus
from ebbflow.ui.guard import PageGuard
from ebbflow.ui.pipelines import Pipelines
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest, read_name
from ebbflow.ui.site import PageRoute
from ebbflow.web.exchange import Exchange


class ProbesApi:
    """Answers those who watch: about all pipelines of the page, or about ``?pipeline=``.

    Of a page of all that there are, those count that run.
    """

    def __init__(self, pipelines: Pipelines, guard: PageGuard) -> None:
        self._pipelines = pipelines
        self._guard = guard

    @property
    def routes(self) -> list[PageRoute]:
        """The paths of this part."""
        probes: dict[str, Callable[[Health], bool]] = {
            "/health": lambda health: health.healthy,
            "/livez": lambda health: health.alive,
            "/ready": lambda health: health.ready,
            "/readyz": lambda health: health.ready,
        }
        return [
            PageRoute("GET", "/metrics", self._metrics),
            *(
                PageRoute("GET", path, partial(self._probe, is_well), open=True)
                for path, is_well in probes.items()
            ),
        ]

    async def _metrics(self, request: PageRequest, exchange: Exchange) -> None:
        statuses = await self._read(request)
        exposition = render_metrics(statuses, request.header("accept"))
        PageReply(exposition.body, 200, exposition.content_type).send(exchange)

    async def _probe(
        self, is_well: Callable[[Health], bool], request: PageRequest, exchange: Exchange
    ) -> None:
        statuses = await self._read(request)
        if not self._pipelines.is_chosen and not request.text("pipeline"):
            statuses = [status for status in statuses if status.phase != "ended"]
        healths = {status.pipeline: judge_health(status) for status in statuses}
        is_fine = all(map(is_well, healths.values()))
        answer: dict[str, Any] = {"status": "ok" if is_fine else "failing"}
        if self._guard.admits(request.head):
            answer["pipelines"] = {name: to_plain(health) for name, health in healths.items()}
        PageReply.of(answer, 200 if is_fine else 503).send(exchange)

    async def _read(self, request: PageRequest) -> Sequence[PipelineStatus]:
        chosen = request.text("pipeline")
        names = [read_name(chosen, "pipeline")] if chosen else await self._pipelines.list()
        return await asyncio.gather(*map(self._pipelines.status, names))
