"""The pipelines that a web UI shows, and their API: status, specs, logs, traces, probes.

A few threads wait for NATS, on the web UI's own connection. Reading status has its own threads, so
that a long search does not stop the numbers.

Each pipeline has one reader, however many browsers watch it; it stops when none does. Each status
is encoded as an event once. A slow browser skips events that newer ones have replaced, so it delays
neither the reader nor other browsers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ebbflow.domain.errors import EbbflowError, SetupError
from ebbflow.domain.records import to_plain
from ebbflow.nats import api
from ebbflow.nats.link import Link
from ebbflow.operations.pausing import PauseReport, pause_vertices, resume_vertices
from ebbflow.operations.trace import trace_on_link
from ebbflow.runtime.run_setup import StoredSpec, read_spec
from ebbflow.spec.echo import document_to_yaml
from ebbflow.spec.graph.layout import lay_out
from ebbflow.status.conditions import Health, judge_health
from ebbflow.status.metrics import render_metrics
from ebbflow.status.model import PipelineStatus
from ebbflow.status.stored import read_chunks, read_history, read_status
from ebbflow.streams.logs import LogPage, read_logs
from ebbflow.streams.names import PREFIX, Names, list_pipelines
from ebbflow.ui.app import (
    Stream,
    UiRoute,
    describe_refusal,
    explain_failure,
    number_of,
    parameter,
    pipeline_of,
    read_name,
)
from ebbflow.ui.links import UiLink
from ebbflow.web.app import EventStream, HttpReply, format_event, reply_health
from ebbflow.web.exchange import Exchange, HttpRequest, Refusal, encode_json
from ebbflow.web.guard import WebUiGuard

T = TypeVar("T")

_THREADS = 8
_READERS = 4
_NAMES_KEPT = 2.0
_YAML = "text/yaml; charset=utf-8"
_LONGEST_ID = 4_096
_LOGS = 200
_MOST_LOGS = 5_000
# A pipeline that is slow to read is read less often, so that it does not keep the server busy.
_PAUSES = 10
_AGAIN = 2.0

Read = Callable[[], Awaitable[PipelineStatus]]
"""Reads the current status of a pipeline."""

Describe = Callable[[Exception], bytes]
"""Returns the JSON error to show if a status cannot be read."""

ChangePause = Callable[[Link, Names, str | None, float], PauseReport]
"""Pauses or resumes."""


class StatusFollower:
    """Follows the status of one pipeline. Used on one loop.

    The status is read every ``every`` seconds while the pipeline runs, and every ``at_rest``
    seconds otherwise. Reading stops ``linger`` seconds after the last use.
    """

    def __init__(
        self,
        read: Read,
        describe: Describe,
        every: float = 0.5,
        at_rest: float = 2.0,
        linger: float = 10.0,
    ) -> None:
        self._read = read
        self._describe = describe
        self._every, self._at_rest, self._linger = every, at_rest, linger
        self._status: PipelineStatus | Exception | None = None
        self._event = b""
        self._looks = 0
        self._news = asyncio.Event()
        self._watchers = 0
        self._wanted_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> PipelineStatus:
        """Returns the latest status; raises the error of reading it."""
        self._want()
        while self._status is None:
            await self._news.wait()
        if isinstance(self._status, Exception):
            raise self._status
        return self._status

    async def watch(self) -> AsyncIterator[bytes]:
        """Yields an event for each read, always the latest; never ends by itself.

        An unchanged status is also an event, so that a browser without events knows that the
        connection is lost.
        """
        self._watchers += 1
        try:
            self._want()
            seen = self._looks if self._status is None else self._looks - 1
            while True:
                news = self._news
                if self._looks != seen:
                    seen = self._looks
                    yield self._event
                else:
                    await news.wait()
        finally:
            self._watchers -= 1

    def stop(self) -> None:
        """Stops reading."""
        if self._reading is not None:
            self._reading.cancel()

    def _want(self) -> None:
        loop = asyncio.get_running_loop()
        self._wanted_until = loop.time() + self._linger
        if self._reading is None or self._reading.done():
            self._status = None
            self._reading = loop.create_task(self._follow())

    async def _follow(self) -> None:
        while self._is_wanted:
            began = time.monotonic()
            await self._look()
            is_live = isinstance(self._status, PipelineStatus) and self._status.phase != "ended"
            pause = _PAUSES * (time.monotonic() - began)
            await self._rest(max(self._every if is_live else self._at_rest, pause))

    @property
    def _is_wanted(self) -> bool:
        return bool(self._watchers) or asyncio.get_running_loop().time() < self._wanted_until

    async def _rest(self, seconds: float) -> None:
        """Waits until the next read; repeats the event meanwhile, so that no browser gives up."""
        end = time.monotonic() + seconds
        while self._is_wanted and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _AGAIN))
            if end - time.monotonic() > 0:
                self._notify()

    async def _look(self) -> None:
        try:
            status = self._status = await self._read()
            self._event = format_event(encode_json(status.to_json()), b"status")
        except Exception as error:
            self._status = error
            self._event = format_event(self._describe(error), b"problem")
        self._notify()

    def _notify(self) -> None:
        self._looks += 1
        news, self._news = self._news, asyncio.Event()
        news.set()


class Pipelines:
    """The pipelines on a NATS server, or ``only`` some of them. Used on the web UI's loop."""

    def __init__(self, link: UiLink, only: Collection[str] = ()) -> None:
        self._link = link
        self._only = sorted(only)
        self._threads = ThreadPoolExecutor(_THREADS, "web-ui")
        self._readers = ThreadPoolExecutor(_READERS, "web-ui-status")
        self._followers: dict[str, StatusFollower] = {}
        self._listed: list[str] = []
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()

    @property
    def is_chosen(self) -> bool:
        """True if the user named the pipelines."""
        return bool(self._only)

    async def list(self, within: float = _NAMES_KEPT) -> list[str]:
        """Returns the names of all pipelines, at most ``within`` seconds old."""
        if self._only:
            return self._only
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if now >= self._listed_at + within:
                self._listed = await self._submit(self._readers, _read_pipelines)
                self._listed_at = now
        return self._listed

    async def status(self, name: str) -> PipelineStatus:
        """Returns the status of a pipeline; ``Refusal`` if there is no such pipeline."""
        return await (await self.follow(name)).get()

    async def follow(self, name: str) -> StatusFollower:
        """Returns the follower of a pipeline; ``Refusal`` if there is no such pipeline."""
        await self.check(name)
        if name not in self._followers:
            read = partial(self._submit, self._readers, partial(read_status, names=Names(name)))
            self._followers[name] = StatusFollower(read, _describe)
        return self._followers[name]

    async def check(self, name: str) -> None:
        """Raises ``Refusal`` if there is no such pipeline."""
        # An unknown pipeline may have been started just now.
        if name not in await self.list() and name not in await self.list(within=0):
            known = ", ".join((self._only or self._listed)[:20])
            step = f"Known here: {known}." if known else "Start one with: ebbflow run"
            raise Refusal(404, f"there is no pipeline {name!r}", next_step=step)

    async def work(self, function: Callable[[Link], T]) -> T:
        """Calls a blocking function with the connection, on a thread."""
        return await self._submit(self._threads, function)

    async def ask(self, request: HttpRequest, question: Callable[[Link, Names], T]) -> T:
        """Calls a function about a request's pipeline; ``Refusal`` if there is no such pipeline."""
        names = Names(pipeline_of(request))
        await self.check(names.pipeline)
        return await self.work(lambda link: question(link, names))

    def close(self) -> None:
        """Ends the threads. Call it on the loop, when no request is left."""
        for follower in self._followers.values():
            follower.stop()
        for threads in (self._threads, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _submit(self, threads: ThreadPoolExecutor, function: Callable[[Link], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, lambda: function(self._link.get()))


def _read_pipelines(link: Link) -> list[str]:
    """Returns the names of all pipelines that have streams on a server; blocks."""
    return list_pipelines(link.run(api.list_streams(link.client, PREFIX)))


def _describe(error: Exception) -> bytes:
    return describe_refusal(explain_failure(error))


# --- status, specs, logs and traces ---------------------------------------------------------------


class PipelinesApi:
    """The API for pipelines, with pausing and resuming."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines

    @property
    def routes(self) -> list[UiRoute]:
        """The paths of this part."""
        one = "/api/pipelines/{pipeline}"
        return [
            UiRoute("GET", "/api/pipelines", self._list),
            UiRoute("GET", f"{one}/status", self._status),
            UiRoute("GET", f"{one}/events", self._events),
            UiRoute("GET", f"{one}/history", self._history),
            UiRoute("GET", f"{one}/vertices/{{vertex}}/chunks", self._chunks),
            UiRoute("GET", f"{one}/spec", self._spec),
            UiRoute("GET", f"{one}/graph", self._graph),
            UiRoute("GET", f"{one}/logs", self._logs),
            UiRoute("GET", f"{one}/trace/{{id...}}", self._trace),
            UiRoute("POST", f"{one}/pause", partial(self._change_pause, pause_vertices)),
            UiRoute("POST", f"{one}/resume", partial(self._change_pause, resume_vertices)),
        ]

    async def _list(self, request: HttpRequest) -> HttpReply:
        names = await self._pipelines.list()
        entries = await asyncio.gather(*map(self._describe, names))
        return HttpReply.json({"pipelines": entries})

    async def _describe(self, name: str) -> dict[str, Any]:
        try:
            return summarise_pipeline(await self._pipelines.status(name))
        except Exception:
            # A pipeline that cannot be read must not hide the others.
            return {"name": name, "phase": None}

    async def _status(self, request: HttpRequest) -> HttpReply:
        status = await self._pipelines.status(pipeline_of(request))
        return HttpReply.json(status.to_json())

    async def _events(self, request: HttpRequest) -> Stream:
        follower = await self._pipelines.follow(pipeline_of(request))

        async def stream(exchange: Exchange) -> None:
            async with EventStream(exchange):
                async for event in follower.watch():
                    await exchange.send(event)

        return stream

    async def _history(self, request: HttpRequest) -> HttpReply:
        samples = await self._pipelines.ask(request, read_history)
        return HttpReply.json({"samples": [*map(to_plain, samples)]})

    async def _chunks(self, request: HttpRequest) -> HttpReply:
        vertex = read_name(request.names["vertex"], "vertex")
        chunks = await self._pipelines.ask(request, partial(read_chunks, vertex=vertex))
        return HttpReply.json({"chunks": [*map(to_plain, chunks)]})

    async def _spec(self, request: HttpRequest) -> HttpReply:
        stored = await self._pipelines.ask(request, _read_spec)
        return HttpReply(document_to_yaml(stored.document).encode(), 200, _YAML)

    async def _graph(self, request: HttpRequest) -> HttpReply:
        shape = (await self._pipelines.ask(request, _read_spec)).shape
        answer = {"shape": to_plain(shape), "layout": lay_out(shape).to_json()}
        return HttpReply.json(answer)

    async def _logs(self, request: HttpRequest) -> HttpReply:
        named = parameter(request, "vertex")
        vertex = "*" if named is None else read_name(named, "vertex")
        most = max(1, number_of(request, "limit", _LOGS, _MOST_LOGS))
        page = await self._pipelines.ask(
            request, lambda link, names: _read_logs(link, names, vertex, most)
        )
        return HttpReply.json({"logs": [entry.as_dict() for entry in page.entries]})

    async def _trace(self, request: HttpRequest) -> HttpReply:
        message = request.names["id"]
        if not 0 < len(message) <= _LONGEST_ID:
            raise Refusal(400, f"an id has 1 to {_LONGEST_ID:,} characters")
        trace = await self._pipelines.ask(
            request, lambda link, names: trace_on_link(link, names, message)
        )
        if not trace.is_known:
            raise Refusal(
                404,
                f"no message with the id {message[:80]!r}",
                next_step=" ".join(trace.notes) or "See whether the id is right.",
            )
        return HttpReply.json(trace.to_json())

    async def _change_pause(self, change: ChangePause, request: HttpRequest) -> HttpReply:
        text = request.json().get("vertex")
        if text is not None and not isinstance(text, str):
            raise Refusal(400, "vertex must be the name of a vertex")
        vertex = None if text is None else read_name(text, "vertex")
        report = await self._pipelines.ask(request, partial(_change, change, vertex))
        return HttpReply.json(report)


def summarise_pipeline(status: PipelineStatus) -> dict[str, Any]:
    """Returns the entry of a pipeline in the list of pipelines."""
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


def _read_spec(link: Link, names: Names) -> StoredSpec:
    return link.run(read_spec(link.client, names))


def _read_logs(link: Link, names: Names, vertex: str, most: int) -> LogPage:
    return link.run(read_logs(link.client, names, vertex, most))


def _change(change: ChangePause, vertex: str | None, link: Link, names: Names) -> dict[str, Any]:
    """Stores and publishes the pause. Does not wait, because the web UI shows its effect."""
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


# --- probes ---------------------------------------------------------------------------------------


class ProbesApi:
    """Metrics and health probes, for all pipelines of the web UI or for ``?pipeline=``.

    In a web UI for all pipelines, health covers only those that run.
    """

    def __init__(self, pipelines: Pipelines, guard: WebUiGuard) -> None:
        self._pipelines = pipelines
        self._guard = guard

    @property
    def routes(self) -> list[UiRoute]:
        """The paths of this part."""
        probes: dict[str, Callable[[Health], bool]] = {
            "/health": lambda health: health.healthy,
            "/livez": lambda health: health.alive,
            "/ready": lambda health: health.ready,
            "/readyz": lambda health: health.ready,
        }
        return [
            UiRoute("GET", "/metrics", self._metrics),
            *(
                UiRoute("GET", path, partial(self._probe, is_well), open=True)
                for path, is_well in probes.items()
            ),
        ]

    async def _metrics(self, request: HttpRequest) -> HttpReply:
        statuses = await self._read(request)
        exposition = render_metrics(statuses, request.header(b"accept").decode("latin-1"))
        return HttpReply(exposition.body, 200, exposition.content_type)

    async def _probe(self, is_well: Callable[[Health], bool], request: HttpRequest) -> HttpReply:
        statuses = await self._read(request)
        if not self._pipelines.is_chosen and not parameter(request, "pipeline"):
            statuses = [status for status in statuses if status.phase != "ended"]
        healths = {status.pipeline: judge_health(status) for status in statuses}
        is_fine = all(map(is_well, healths.values()))
        return reply_health(
            is_fine,
            {"status": "ok" if is_fine else "failing"},
            {"pipelines": {name: to_plain(health) for name, health in healths.items()}},
            may_know=lambda: self._guard.admits(request),
        )

    async def _read(self, request: HttpRequest) -> Sequence[PipelineStatus]:
        chosen = parameter(request, "pipeline")
        names = [read_name(chosen, "pipeline")] if chosen else await self._pipelines.list()
        return await asyncio.gather(*map(self._pipelines.status, names))
