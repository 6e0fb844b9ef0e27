"""The dead letters that are stored now: how many each vertex has, and their causes.

The numbers are exact. The causes are those of the newest ``MOST`` letters: only their headers are
read, and each once.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter

from ebbflow.buffers.names import Names
from ebbflow.core.dead_letter import PREFIX
from ebbflow.core.raised import normalise
from ebbflow.nats import api
from ebbflow.nats.behind import read_behind
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import Deliveries
from ebbflow.status.model import Cause

MOST = 1_000
"""The most letters whose causes are known."""

_SHOWN = 10
_LONGEST = 200


class LetterCauses:
    """Knows the dead letters of one pipeline. Everything here runs on the loop of the client."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names
        self._counts: dict[str, int] = {}
        self._known: dict[int, tuple[str, str]] = {}
        self._seen = 0

    async def look(self) -> None:
        """Reads what has changed since the last look."""
        subject = self._names.dead_letter_subject()
        try:
            state = await api.read_info(
                self._client, self._names.dead_letters, subjects_filter=subject
            )
        except api.ApiError as error:
            if error.code != api.NOT_FOUND:
                raise
            return
        before, subjects = sum(self._counts.values()), state.get("subjects") or {}
        self._counts = {name.rpartition(".")[2]: count for name, count in subjects.items()}
        last, messages = state["last_seq"], state["messages"]
        if messages != before + (last - self._seen):  # some were replayed or purged
            self._known.clear()
            self._seen = 0
        if messages and last > self._seen:
            await self._read_behind(max(self._seen, last - MOST))
        self._seen = last

    async def _read_behind(self, after: int) -> None:
        stream = self._names.dead_letters
        letters = read_behind(self._client, stream, "", after, headers_only=True)
        async with contextlib.aclosing(letters):
            async for deliveries in letters:
                self._note(deliveries)
        for seq in sorted(self._known)[:-MOST]:
            del self._known[seq]

    def _note(self, deliveries: Deliveries) -> None:
        for row, seq in enumerate(deliveries.seqs):
            facts = deliveries.parcel.headers(row) or {}
            text = facts.get(f"{PREFIX}Error") or facts.get(f"{PREFIX}Reason")
            vertex = deliveries.parcel.subjects[row].rpartition(b".")[2].decode()
            self._known[seq] = vertex, json.loads(text)[:_LONGEST] if text else "unknown"

    def count(self, vertex: str) -> int:
        """Returns how many letters of the vertex are stored."""
        return self._counts.get(vertex, 0)

    def causes(self, vertex: str) -> tuple[Cause, ...]:
        """Returns the causes of its newest letters, the most frequent first."""
        counts: Counter[str] = Counter()
        latest: dict[str, str] = {}
        for owner, text in self._known.values():
            if owner == vertex:
                counts[normalise(text)] += 1
                latest[normalise(text)] = text
        return tuple(Cause(latest[kind], count) for kind, count in counts.most_common(_SHOWN))
