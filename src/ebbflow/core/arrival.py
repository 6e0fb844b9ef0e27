"""Rows that are dead on arrival: what a source could not read, and what no message can hold.

A feed stores them in the buffer of its vertex with all others, marked. No user code is given them:
they go straight to the dead letters, settled and counted with the rows around them. So a row that
cannot be read ends exactly once and is counted, whatever is killed in between.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from ebbflow.core.frames import Rows
from ebbflow.core.verdict import Operator, Verdict
from ebbflow.outcome import DeadLetter

MARK = "ebbflow"
"""The group of metadata that says why a row is dead; only a feed can have written it."""
_WHY = "dead"

MetadataRow = list[tuple[str, list[tuple[str, bytes]]]]


def mark_dead(why: DeadLetter) -> MetadataRow:
    """Returns the metadata of a row that is dead on arrival, as a frame holds it."""
    return [(MARK, [(_WHY, json.dumps(asdict(why)).encode())])]


def set_aside_dead(operator: Operator) -> Operator:
    """Returns an operator that is given only the rows that are not dead on arrival."""

    def decide(verdict: Verdict) -> None:
        dead = _find_dead(verdict.rows)
        if not dead:
            operator(verdict)
            return
        for index, why in dead.items():
            verdict.decisions.dead_letter(index, why)
        alive = [index for index in range(len(verdict.rows)) if index not in dead]
        if alive:
            part = verdict.part_at(alive)
            operator(part)
            verdict.decisions.merge(alive, part.decisions)

    return decide


def _find_dead(rows: Rows) -> dict[int, DeadLetter]:
    column = rows.batch.column("metadata")
    if column.null_count == len(rows):
        return {}
    # From the batch: what user code is shown must not lose its mark, nor gain one.
    rows_metadata = (dict(row or ()) for row in column.to_pylist())
    return {
        index: DeadLetter(**json.loads(dict(groups[MARK])[_WHY]))
        for index, groups in enumerate(rows_metadata)
        if MARK in groups
    }
