"""The Spark source: the rows of any format that Spark can read, as messages.

A feed: a query on the run's own Spark stores its rows in the vertex's buffer, from where they are
read like any others. Where a query is, is kept in the state folder, so that a run continues where
the last one ended. A micro-batch that is run again after a crash stores the same messages under the
same ids, which the server drops as copies.

The settings are here, light enough for workers. ``rows`` says how a row becomes a message, ``feed``
runs the query, ``storing`` is what its tasks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbflow.buffers.feed import Feed, Spot
from ebbflow.connectors.spark.format import Format

if TYPE_CHECKING:
    from ebbflow.connectors.spark.spec import SparkSource


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What to read, when, and how its rows become messages: expressions in SQL.

    ``stream`` of ``None`` is whatever the format can. ``every`` is a trigger in seconds.
    """

    format: Format
    schema: str | None = None
    stream: bool | None = None
    every: float | None = None
    available_now: bool = False
    value: str | None = None
    keys: str | None = None
    event_time: str | None = None
    id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, section: SparkSource, vertex: str) -> SparkSettings:
        """From a spec, with the secrets read now."""
        trigger = section.trigger
        every = trigger.processing_time if trigger else None
        return cls(
            format=Format.of(section, f"the source {vertex}"),
            schema=section.schema_,
            stream=section.stream,
            every=None if every is None else every / 1000,
            available_now=trigger is not None and trigger.available_now,
            value=section.value,
            keys=section.keys,
            event_time=section.event_time,
            id=section.id,
            headers=tuple(section.headers.items()),
        )

    def feed(self, spot: Spot) -> Feed:
        """The feed, not started yet."""
        from ebbflow.connectors.spark.feed import SparkFeed  # needs Spark's driver side

        return SparkFeed(self, spot)
