"""Rows that are dead on arrival: what a source could not read, and what no message can hold.

A feed stores them in the buffer of its vertex with all others, marked. No user code is given them:
they go straight to the dead letters, settled and counted with the rows around them. So a row that
cannot be read ends exactly once and is counted, whatever is killed in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

from ebbflow.core import frames
from ebbflow.core.frames import Rows
from ebbflow.core.verdict import Verdict
from ebbflow.outcome import DeadLetter

MARK = "ebbflow"
"""The group of metadata that says why a row is dead; only a feed can have written it."""
_WHY = "dead"

Operator = Callable[[Verdict], None]
Metadata = list[tuple[str, list[tuple[str, bytes]]]]


def marked(why: DeadLetter) -> Metadata:
    """The metadata of a row that is dead on arrival, as a frame holds it."""
    return [(MARK, [(_WHY, json.dumps(asdict(why)).encode())])]


def setting_aside(operator: Operator) -> Operator:
    """The operator, given only the rows that are not dead on arrival."""

    def decide(verdict: Verdict) -> None:
        dead = _dead(verdict.rows)
        if not dead:
            operator(verdict)
            return
        verdict.outcomes.update(dead)
        alive = [index for index in range(len(verdict.rows)) if index not in dead]
        if alive:
            batch = frames.taken(verdict.rows.batch, alive)
            part = verdict.part(Rows(batch, verdict.rows.watermark))
            operator(part)
            verdict.merge(alive, part)

    return decide


def _dead(rows: Rows) -> dict[int, DeadLetter]:
    column = rows.batch.column("metadata")
    if column.null_count == len(rows):
        return {}
    # From the batch: what user code is shown must not lose its mark, nor gain one.
    groups = (dict(row or ()) for row in column.to_pylist())
    return {
        index: DeadLetter(**json.loads(dict(found[MARK])[_WHY]))
        for index, found in enumerate(groups)
        if MARK in found
    }
