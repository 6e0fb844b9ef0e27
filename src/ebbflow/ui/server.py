"""The page of pipelines: a web server on a thread and a connection to NATS of its own.

It reads what runs have stored and touches no object of a run, so that a page, however many look at
it and however slow they are, cannot hold up messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ebbflow.nats.link import LoopThread
from ebbflow.ui.address import Entrance, PageAddress, open_entrance
from ebbflow.ui.front_door import FrontDoor
from ebbflow.ui.guard import PageGuard
from ebbflow.ui.jobs import Jobs
from ebbflow.ui.letters_api import LettersApi
from ebbflow.ui.links import PageLink
from ebbflow.ui.pipeline_api import PipelineApi
from ebbflow.ui.pipelines import Pipelines
from ebbflow.ui.probes_api import ProbesApi
from ebbflow.ui.site import PageRoute, Site
from ebbflow.ui.status_api import StatusApi
from ebbflow.web.server import WebServer

_READ_TIMEOUT = 10.0
_END = 10.0


class PageServer:
    """One page on one port. Started and stopped by any thread but its own.

    One that is not ``whole`` has metrics and health only.
    """

    def __init__(
        self, entrance: Entrance, link: PageLink, only: Collection[str], whole: bool
    ) -> None:
        self._thread = LoopThread("page")
        self._link = link
        self._server = WebServer(entrance.bound, self._thread, entrance.tls, _READ_TIMEOUT)
        port = entrance.bound.getsockname()[1]
        self._guard = PageGuard(entrance.token, entrance.is_local, port, entrance.tls is not None)
        self._only = only
        self._whole = whole
        self.entrance = entrance

    def start(self) -> None:
        """Begins to answer."""
        self._thread.run(self._build())
        self._server.start(self._site.open)

    def stop(self) -> None:
        """Answers what is asked, lets go of streams, and ends."""
        self._thread.run(self._end(), timeout=_END)
        self._server.stop()
        self._thread.stop()
        self._link.close()

    async def _build(self) -> None:
        self._pipelines = Pipelines(self._link, self._only)
        self._jobs = Jobs()
        self._site = Site(self._routes(), self._guard)

    def _routes(self) -> list[PageRoute]:
        probes = ProbesApi(self._pipelines, self._guard).routes
        if not self._whole:
            return probes
        return [
            *probes,
            *FrontDoor(self._guard).routes,
            *StatusApi(self._pipelines).routes,
            *PipelineApi(self._pipelines).routes,
            *LettersApi(self._pipelines, self._jobs).routes,
        ]

    async def _end(self) -> None:
        await self._site.end()
        self._jobs.close()
        self._pipelines.close()


@contextmanager
def open_page(
    address: PageAddress, link: PageLink, only: Collection[str] = (), whole: bool = True
) -> Iterator[Entrance]:
    """Serves the page for as long as the context lasts; ``SetupError`` when it cannot listen.

    It shows ``only`` these pipelines, or all. If it is not ``whole``, it has metrics and health
    only. The link is closed with it.
    """
    try:
        page = PageServer(open_entrance(address), link, only, whole)
    except BaseException:
        link.close()
        raise
    try:
        page.start()
        yield page.entrance
    finally:
        page.stop()
