"""The audit rows of a chunk: an observer that records every delivery for the audit table.

Publishing the rows is the last step before the chunk is done; they count once it is done
(``streams.audit_rows``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.engine import frames
from ebbflow.engine.account import Account, AccountPart, ChunkObserver, HeldRow, describe_outcome
from ebbflow.engine.publications import EdgeRows, Publication
from ebbflow.streams.audit_rows import COLUMNS, AuditRows


class AuditObserver(ChunkObserver):
    """Publishes the rows of the audit table."""

    def late(self, account: Account) -> Iterator[Publication]:
        """Yields the frames of the rows; again, as a later edition, if not all were stored."""
        for part in () if account.is_early else account.parts:
            rows = build_audit(part, account.held)
            if rows is not None:
                yield from rows.publish(account, part.place)


def build_audit(part: AccountPart, held: HeldRow | None) -> AuditRows | None:
    """Returns the outcome of each row of a chunk, and of the held row after it."""
    batch, ends, emitted = part.batch, part.ends, part.verdict.decisions.emitted_rows
    sent = None if emitted else _count_sent(part.routed.edges, batch.num_rows)
    if held is not None:
        ends = {**ends, batch.num_rows: describe_outcome(held.outcome, part.at)}
        batch = frames.concat([batch, held.row])
        sent = None
    if not batch.num_rows:
        return None
    shared: dict[str, Any] = {"ended": part.at}
    varied = {"id": batch.column("id")}
    facts: dict[str, Any] = {"outcome": "done"}
    facts |= {name: _shared_or_all(batch.column(name)) for name in ("deliveries", "first_seen")}
    facts |= _list_ends(ends, batch.num_rows) if ends else {}
    facts |= dict(zip(("sent", "sent_to"), sent, strict=True)) if sent is not None else {}
    for name, fact in facts.items():
        (varied if isinstance(fact, pa.Array) else shared)[name] = fact
    return AuditRows(batch.num_rows, varied, shared)


def _shared_or_all(column: pa.Array) -> Any:
    """Returns the value that all rows share, or else the column."""
    if len(column) == 1:
        return column[0].as_py()
    ends = pc.min_max(column).as_py()
    if ends["min"] == ends["max"] and not column.null_count:
        return ends["min"]
    return column.view(pa.int32()) if column.type == pa.uint32() else column


def _list_ends(ends: Mapping[int, dict[str, Any]], rows: int) -> dict[str, pa.Array]:
    """Returns the columns about the outcomes of rows; a row without an entry is done."""
    columns: dict[str, list[Any]] = {"outcome": ["done"] * rows}
    for index, end in ends.items():
        for name, value in end.items():
            if value is not None:
                columns.setdefault(name, [None] * rows)[index] = value
    return {name: pa.array(values, COLUMNS[name]) for name, values in columns.items()}


def _count_sent(edges: Sequence[EdgeRows], rows: int) -> tuple[Any, Any]:
    """Returns how many outputs each input has, and where they went; one value if all are equal."""
    if all(_is_one_each(edge.parents, rows) for edge in edges):
        return len(edges), ",".join(edge.to for edge in edges)
    counts = np.zeros(rows, np.int32)
    taken = np.zeros((len(edges), rows), bool)
    for number, edge in enumerate(edges):
        parents = np.asarray(edge.parents, np.int64)
        own = np.bincount(parents[parents >= 0], minlength=rows)
        counts += own.astype(np.int32)
        taken[number] = own > 0
    patterns, places = np.unique(taken, axis=1, return_inverse=True)
    names = [
        ",".join(edge.to for edge, is_taken in zip(edges, pattern, strict=True) if is_taken)
        for pattern in patterns.T
    ]
    return pa.array(counts), pa.array(names, pa.string()).take(pa.array(places.reshape(-1)))


def _is_one_each(parents: Sequence[int], rows: int) -> bool:
    """Returns whether each input has one output, in order."""
    if len(parents) != rows:
        return False
    return parents == (range(rows) if isinstance(parents, range) else _every(rows))


@lru_cache(maxsize=64)
def _every(rows: int) -> list[int]:
    return list(range(rows))
