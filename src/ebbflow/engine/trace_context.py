"""The trace of a message in W3C Trace Context: the header ``traceparent``.

A header is part of its row, so it follows the row everywhere: through vertices, nacks,
redeliveries, dead letters and their replays, and out through sinks. This module finds and replaces
it for the few rows whose trace is recorded, without handling the others in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.engine import frames
from ebbflow.engine.frames import TRACEPARENT, Rows

TRACESTATE = "tracestate"

# Version 00, trace id, span id and flags: the trace is recorded if the last bit is set.
_PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile("[ -~]{1,512}")
_RECORDED = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]$"


def find_contexts(headers: pa.MapArray) -> dict[int, str]:
    """Returns the ``traceparent`` of each row that has one, even if it is malformed."""
    rows, texts = _find(headers)
    return dict(zip(rows.tolist(), texts.to_pylist(), strict=True))


def find_recorded(headers: pa.MapArray) -> dict[int, str]:
    """Returns the ``traceparent`` of each row whose trace is recorded."""
    rows, texts = _find(headers)
    if not len(rows):
        return {}
    recorded = pc.match_substring_regex(texts, _RECORDED).to_numpy(zero_copy_only=False)
    return dict(zip(rows[recorded].tolist(), texts.filter(recorded).to_pylist(), strict=True))


def find_propagated(headers: pa.MapArray) -> dict[int, dict[str, str]]:
    """Returns the headers of each row that continue its trace elsewhere, if they are well formed.

    Other headers of a message must not become part of a request.
    """
    rows = [row for row, text in find_contexts(headers).items() if _PARENT.fullmatch(text)]
    pairs = headers.take(pa.array(rows, pa.int64())).to_pylist() if rows else []
    lowered = ({name.lower(): text for name, text in row} for row in pairs)
    return {row: _keep_of_the_trace(own) for row, own in zip(rows, lowered, strict=True)}


def _keep_of_the_trace(headers: Mapping[str, str]) -> dict[str, str]:
    kept = {TRACEPARENT: headers[TRACEPARENT]}
    if _STATE.fullmatch(headers.get(TRACESTATE, "")):
        kept[TRACESTATE] = headers[TRACESTATE]
    return kept


def _find(headers: pa.MapArray) -> tuple[np.ndarray, pa.StringArray]:
    """Returns the rows that have the header, and its values."""
    nothing = np.empty(0, np.int64), pa.array([], pa.string())
    if headers.null_count == len(headers):
        return nothing
    at = np.flatnonzero(pc.equal(pc.utf8_lower(headers.keys), TRACEPARENT))
    if not len(at):
        return nothing
    # The children of a slice are those of the whole column, and a null row may have entries.
    ends = headers.offsets.to_numpy()
    rows = np.searchsorted(ends, at, side="right") - 1
    inside = (rows >= 0) & (rows < len(headers))
    rows, at = rows[inside], at[inside]
    valid = headers.is_valid().to_numpy(zero_copy_only=False)[rows]
    return rows[valid], headers.items.take(pa.array(at[valid]))


def with_contexts(batch: pa.RecordBatch, contexts: Mapping[int, str]) -> pa.RecordBatch:
    """Returns the batch with this ``traceparent`` among the headers of these rows."""
    if not contexts:
        return batch
    headers, rows = batch.column("headers"), np.fromiter(contexts, np.int64)
    before = headers.take(pa.array(rows)).to_pylist()
    after = [
        [*(pair for pair in row or () if pair[0].lower() != TRACEPARENT), (TRACEPARENT, text)]
        for row, text in zip(before, contexts.values(), strict=True)
    ]
    order = np.arange(len(headers))
    order[rows] = len(headers) + np.arange(len(rows))
    both = pa.concat_arrays([headers, pa.array(after, headers.type)])
    return frames.with_columns(batch, headers=both.take(pa.array(order)))


Scope = Callable[[], AbstractContextManager[object]]
"""Makes the trace of one message the current one while the context is open."""


class CallScopes:
    """The scopes in which user code is called with single messages, while traces are recorded.

    ``find`` returns the scopes of the rows that have one, by index; ``None`` while no trace is
    recorded.
    """

    __slots__ = ("find",)

    def __init__(self) -> None:
        self.find: Callable[[Rows], Mapping[int, Scope]] | None = None

    def of(self, rows: Rows) -> Mapping[int, Scope]:
        """Returns the scopes of the rows that are traced."""
        return {} if self.find is None else self.find(rows)


SCOPES = CallScopes()
