"""A request on its way into the source's buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ebbflow.connectors.http.request import ID, Envelope
from ebbflow.web.refusal import Refusal

_ROW_BYTES = 128


class Submission:
    """One request, as ``PostStore`` stores it: a single message.

    ``told`` has the first that is known: stored, refused, or nothing certain. ``settled`` is called
    once, when it is known for good. Copies are known by the book, so it has no named id.
    """

    __slots__ = ("count", "envelope", "rows", "settled", "size", "told", "value")

    named_id = None

    def __init__(
        self, envelope: Envelope, body: bytes, settled: Callable[[Refusal | None], Any]
    ) -> None:
        self.envelope = envelope
        self.value = body
        self.rows = None
        self.count = 1
        self.size = len(body) + envelope.size + _ROW_BYTES
        self.settled = settled
        self.told: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        _name_request(envelope)

    def settle(self, refusal: Refusal | None) -> None:
        """Hears that it is stored, or why not."""
        self.settled(refusal)
        self.answer(refusal)

    def answer(self, refusal: Refusal | None) -> None:
        """Tells whoever waits, who may have gone."""
        if not self.told.done():
            self.told.set_result(refusal)


def _name_request(envelope: Envelope) -> None:
    """Has every message that comes of the request name it: answers are stored under that id."""
    others = [pair for pair in envelope.headers if pair[0].lower() != ID]
    envelope.headers = [*others, (ID, envelope.id)]
