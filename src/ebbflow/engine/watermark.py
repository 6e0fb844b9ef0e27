"""The watermark: the event time up to which everything has been seen, as far as one can know.

A source's watermark follows the earliest event time of each chunk it makes, nacked and dropped
messages included. Frames carry the watermark of the task that wrote them. A reader's watermark is
the lowest of those that feed it, and is not known before each of them has been heard of. It never
goes back, also not across restarts, because it is part of the position.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


class Watermark:
    """The watermark of one task. ``feeders`` are the tasks that write to it."""

    def __init__(self, feeders: Iterable[str], start: datetime | None) -> None:
        self.current = start
        self._heard: dict[str, datetime | None] = dict.fromkeys(feeders)

    def hear(self, frames: Iterable[tuple[str | None, datetime | None]]) -> None:
        """Takes in the frames of a chunk: for each who wrote it, and their watermark then.

        Of several frames of one writer the first counts for this chunk, because rows of the first
        may be older than what the last one promises.
        """
        heard: dict[str, datetime] = {}
        for feeder, watermark in frames:
            if feeder in self._heard and watermark is not None:
                heard.setdefault(feeder, watermark)
        self._heard |= heard
        known = [time for time in self._heard.values() if time is not None]
        if known and len(known) == len(self._heard):
            self._rise(min(known))

    def made(self, event_times: Iterable[datetime]) -> None:
        """Follows the event times of messages that a source has made."""
        earliest = min(event_times, default=None)
        if earliest is not None:
            self._rise(earliest)

    def _rise(self, to: datetime) -> None:
        if self.current is None or to > self.current:
            self.current = to
