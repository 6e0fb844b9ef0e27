"""The trail of a chunk: an observer that publishes the outcome of each of its rows.

A pipeline with a serving source publishes it once the outputs and answers of a chunk are stored
(``streams.trail_rows``). ``accounts.completion`` reads it to determine when a request is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ebbflow.domain.outcome import Served
from ebbflow.engine.account import SENT, Account, AccountPart, ChunkObserver
from ebbflow.engine.frames import request_id
from ebbflow.engine.publications import EdgeRows, Publication
from ebbflow.engine.verdict import Verdict
from ebbflow.streams.trail_rows import SentTo, TrailRow, publish_trail

# More outputs of one message are listed in several rows, because a frame must fit into a message.
_MOST_SENT = 1_000


class TrailObserver(ChunkObserver):
    """Publishes the outcome of every message, for clients that wait for answers."""

    def late(self, account: Account) -> Iterator[Publication]:
        """Yields the frames of a chunk's trail; for an early account, its outputs so far."""
        for part in account.parts:
            rows = _list_rows(part, account.is_early)
            yield from publish_trail(rows, account.key, part.place.vertex, part.place.partition)


def _list_rows(part: AccountPart, is_early: bool) -> list[TrailRow]:
    sent = _gather_sent(part.routed.edges)
    listed: list[TrailRow] = []
    for index in sorted(sent) if is_early else range(part.batch.num_rows):
        # Not all outputs of an amended row are stored. Its outcome is enough: the request failed.
        outputs = [] if index in part.amended else sent.get(index, [])
        while len(outputs) > _MOST_SENT or (is_early and outputs):
            first, outputs = outputs[:_MOST_SENT], outputs[_MOST_SENT:]
            listed.append(_row(part, index, outcome=SENT, sent=tuple(first)))
        if not is_early:
            answers = _count_answers(part.verdict, index)
            end = part.end(index)
            listed.append(_row(part, index, answers=answers, sent=tuple(outputs), **end))
    return listed


def _gather_sent(edges: Sequence[EdgeRows]) -> dict[int, list[SentTo]]:
    """Returns the outputs of each input that has any."""
    sent: dict[int, list[SentTo]] = {}
    for edge in edges:
        for parent, row_id in zip(edge.parents, edge.ids.to_pylist(), strict=True):
            sent.setdefault(parent, []).append(SentTo(edge.to, row_id))
    return sent


def _count_answers(verdict: Verdict, index: int) -> int:
    """Returns how many answers a row has stored; with the user's own store, 1 if any."""
    is_served = isinstance(verdict.outcomes.get(index), Served)
    return len(verdict.answers.get(index, ())) or int(is_served)


def _row(part: AccountPart, index: int, **facts: Any) -> TrailRow:
    rows = part.rows
    return TrailRow(
        request_id(rows, index),
        rows.column("id")[index],
        part.at,
        rows.column("deliveries")[index],
        **facts,
    )
