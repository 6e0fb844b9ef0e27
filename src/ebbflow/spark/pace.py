"""How many rows a chunk may have: as many as user code gets through in about a quarter second.

Large chunks are cheap, small ones settle soon. A slow handler gets small chunks, so that its
results move on, its epoch can end and a stop need not wait; a fast one gets large ones. Large
messages get small chunks too: what does not fit into the caches of a processor is slower to handle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_TARGET = 0.25
_SMALLEST, _FIRST, _LARGEST = 1, 256, 8_192
_GROWTH = 4
_MOST_BYTES = 8 * 1024 * 1024


class Pace:
    """The chunk size of one task, adapted after each chunk."""

    def __init__(self) -> None:
        self.limit = _FIRST

    @contextmanager
    def measured(self, rows: int, size: int) -> Iterator[None]:
        """Time user code on a chunk of ``rows`` that take ``size`` bytes."""
        start = time.perf_counter()
        yield
        self.took(rows, time.perf_counter() - start, size)

    def took(self, rows: int, seconds: float, size: int = 0) -> None:
        """Adapt to what was seen; a chunk that was not full says little about larger ones."""
        fitting = int(rows * _TARGET / max(seconds, 1e-6))
        if fitting < self.limit or rows >= self.limit // 2:
            wanted = min(fitting, self.limit * _GROWTH)
            room = _MOST_BYTES * rows // max(1, size)
            self.limit = max(_SMALLEST, min(wanted, room, _LARGEST))
