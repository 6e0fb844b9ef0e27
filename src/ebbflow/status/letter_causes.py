"""The dead letters of a pipeline: how many each vertex has, and their causes, all of them.

The letters themselves are the record of their causes, so nothing is counted twice or lost by a
crash, a restart, a replay or a purge. Only their headers are read, and each once. There may be very
many: whoever has little time reads for a while and goes on the next time, those of its own run
first. A letter takes a few bytes here.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbflow.engine.causes import CauseCount, CauseGroups
from ebbflow.engine.dead_letter import PREFIX, describe_cause
from ebbflow.nats import api
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.pull import Deliveries
from ebbflow.nats.stored import read_after, take_snapshot
from ebbflow.status.model import Cause, list_causes
from ebbflow.streams.names import Names


@dataclass(slots=True)
class _Part:
    """Letters of the stream behind ``seen``, up to and including ``end``."""

    seen: int
    end: float = math.inf


class LetterCauses:
    """Knows the dead letters of one pipeline. Everything here runs on the loop of the client."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names
        self._stored: dict[str, int] = {}
        self._parts = [_Part(0)]
        self._groups = CauseGroups()
        self._numbers, self._codes = array("Q"), array("L")
        self._counts: Counter[int] = Counter()
        self._run_began = math.inf
        self._run_counts: Counter[int] = Counter()

    async def begin_run(self) -> None:
        """Has letters that come from now on count as those of this run."""
        state = await self._read_state()
        began = self._run_began = state["last_seq"] if state else 0
        self._parts = [_Part(began), _Part(0, began)]

    async def look(self, within: float = math.inf) -> None:
        """Reads what has changed since the last look, for so many seconds at most."""
        state, deadline = await self._read_state(), time.monotonic() + within
        if state is None:
            return
        subjects = state.get("subjects") or {}
        self._stored = {name.rpartition(".")[2]: count for name, count in subjects.items()}
        for part in self._parts:
            if not await self._read(part, min(part.end, state["last_seq"]), deadline):
                return
        if len(self._numbers) != state["messages"]:
            await self._forget_deleted()

    async def _read_state(self) -> dict[str, Any] | None:
        subject = self._names.dead_letter_subject()
        try:
            return await api.read_info(
                self._client, self._names.dead_letters, subjects_filter=subject
            )
        except api.ApiError as error:
            if error.code != api.NOT_FOUND:
                raise
            return None

    async def _read(self, part: _Part, last: float, deadline: float) -> bool:
        """Reads letters of a part; returns whether those were all."""
        if part.seen >= last:
            return True
        stream = self._names.dead_letters
        letters = read_after(self._client, stream, "", part.seen, headers_only=True)
        async with contextlib.aclosing(letters):
            async for deliveries in letters:
                self._note(deliveries, part.end)
                part.seen = deliveries.seqs[-1]
                if part.seen >= part.end or time.monotonic() > deadline:
                    break
            else:
                part.seen = max(part.seen, int(last))
        return part.seen >= last

    def _note(self, deliveries: Deliveries, end: float) -> None:
        for row, seq in enumerate(deliveries.seqs):
            if seq > end:
                return
            vertex = deliveries.parcel.subjects[row].rpartition(b".")[2].decode()
            code = self._groups.code(vertex, _cause_of(deliveries.parcel.headers(row) or {}))
            self._numbers.append(seq)
            self._codes.append(code)
            self._counts[code] += 1
            if seq > self._run_began:
                self._run_counts[code] += 1

    async def _forget_deleted(self) -> None:
        there = await take_snapshot(self._client, self._names.dead_letters)
        kept = [place for place, number in enumerate(self._numbers) if number in there]
        self._numbers = array("Q", [self._numbers[place] for place in kept])
        self._codes = array("L", [self._codes[place] for place in kept])
        self._counts = Counter(self._codes)

    @property
    def is_known(self) -> bool:
        """``True`` once letters were read, so that another look is cheap."""
        return bool(self._numbers)

    def count(self, vertex: str) -> int:
        """Returns how many letters of the vertex are stored."""
        return self._stored.get(vertex, 0)

    def all_causes(self) -> list[CauseCount]:
        """Returns the causes of the letters of all vertices, the most frequent first."""
        return self._groups.describe(self._counts)

    def causes(self, vertex: str) -> tuple[Cause, ...]:
        """Returns the causes of its stored letters, the most frequent first; they add up."""
        own = [cause for cause in self.all_causes() if cause.group == vertex]
        return list_causes(own, self.count(vertex))

    def run_causes(self, vertex: str, total: int) -> tuple[Cause, ...]:
        """Returns the causes of the letters of this run, which are to be ``total``."""
        causes = self._groups.describe(self._run_counts)
        return list_causes([cause for cause in causes if cause.group == vertex], total)


def _cause_of(headers: Mapping[str, str]) -> str:
    reason, error = headers.get(f"{PREFIX}Reason"), headers.get(f"{PREFIX}Error")
    if reason is None:
        return "unknown"
    return describe_cause(json.loads(reason), json.loads(error) if error else None)
