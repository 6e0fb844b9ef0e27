"""The feeds of a pipeline, on the driver: started with the run, stopped before the vertices."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ebbflow.nats.link import Link
from ebbflow.runtime.plan import VertexPlan
from ebbflow.streams.feed import Feed, FeedContext, FeedPlan, Session


class EngineDied(Exception):
    """Spark, which runs the vertices and some of the feeds, has ended; a run starts it again."""


class Feeds:
    """All feeds, by the vertex they feed. ``log`` shows a line to people who watch the run.

    ``memory`` is the folder for state that must survive a restart, ``drain`` if the run ends when
    everything is processed. ``is_ready`` returns whether all vertices are running.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        memory: Path,
        drain: bool,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._log = log
        self._memory = memory
        self._drain = drain
        self._is_ready = is_ready
        self._feeds: dict[str, Feed] = {}

    @staticmethod
    def check(plans: Sequence[VertexPlan]) -> None:
        """Raises ``SetupError`` if a feed could not start, for example as its port is in use."""
        for plan in plans:
            if isinstance(plan.source, FeedPlan) and not plan.paused:
                plan.source.check()

    @contextmanager
    def running(self, link: Link, spark: Session, plans: Sequence[VertexPlan]) -> Iterator[None]:
        """Takes messages in while the context is open, unless the pipeline is paused.

        When Spark dies, only feeds that need it are stopped: clients of the others notice nothing.
        """
        try:
            for plan in plans:
                if plan.paused or plan.vertex in self._feeds:
                    continue
                if isinstance(plan.source, FeedPlan):
                    context = self._context(plan, plan.source, link, spark)
                    self._start(plan.vertex, plan.source, context)
            yield
        except EngineDied:
            self.stop(only_on_spark=True)
            raise
        except BaseException:
            self.stop()
            raise
        self.stop()

    def _start(self, vertex: str, plan: FeedPlan, context: FeedContext) -> None:
        feed = plan.make(context)
        feed.start()
        self._feeds[vertex] = feed

    def stop(self, only_on_spark: bool = False) -> None:
        """Stops all feeds, or only those that need Spark."""
        for vertex, feed in reversed([*self._feeds.items()]):
            if feed.on_spark or not only_on_spark:
                del self._feeds[vertex]
                feed.stop()

    def _context(self, plan: VertexPlan, feed: FeedPlan, link: Link, spark: Session) -> FeedContext:
        return FeedContext(
            plan.pipeline,
            plan.vertex,
            plan.partitions,
            plan.largest,
            link,
            spark,
            self._log,
            self._memory / plan.vertex,
            self._drain,
            feed.store,
            self._is_ready,
        )

    def forget(self) -> None:
        """Deletes the state of all feeds from earlier runs."""
        shutil.rmtree(self._memory, ignore_errors=True)

    @property
    def exhausted(self) -> bool:
        """True when no feed will take in more messages."""
        return all(feed.exhausted for feed in self._feeds.values())

    def failure(self, vertex: str) -> str | None:
        """Returns why the vertex's feed takes nothing in, if it has a feed that has failed."""
        feed = self._feeds.get(vertex)
        return feed.failure if feed else None
