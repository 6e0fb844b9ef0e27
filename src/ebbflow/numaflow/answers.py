"""The answers of a function to one batch, matched with its rows and turned into columns.

Every row has exactly one answer, under the id of its request. A row that has none or several, or
that may be the one meant by an id that nobody asked about, has failed with a ``ContractViolation``;
the others keep their answers. The outputs are in the order of the inputs, whatever the order of the
answers was, so that a replay makes the same frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.errors import CallTimeout, ContractViolation, StreamBroken
from ebbflow.engine.frames import FEW
from ebbflow.numaflow.breaks import Failures
from ebbflow.numaflow.few_responses import FewResponses
from ebbflow.numaflow.fields import Numbers, Places
from ebbflow.numaflow.responses import Flags, Responses, ResultShape
from ebbflow.numaflow.stream import Arrived

_FIX = "A function answers each request once, with the id of that request."
_UNKNOWN = -1


class Answers:
    """What has arrived for the requests with these ids.

    ``streamed`` if there may be several responses to a request, the last one with a mark. SDKs that
    answer such requests one after the other leave out the ids; then the order counts.
    """

    def __init__(self, ids: pa.StringArray, shape: ResultShape, streamed: bool) -> None:
        self._ids = ids
        self._shape = shape
        self._streamed = streamed
        self._parts: list[Arrived] = []
        self._asked: list[int] = []
        self._read: _Matched | None = None

    def keep(self, parts: Sequence[Arrived]) -> None:
        """Keeps responses as they arrive; they are read later, all at once."""
        self._parts += parts
        self._read = None

    @contextmanager
    def all_or_nothing(self, rows: Sequence[int]) -> Iterator[None]:
        """Forgets the responses that arrive meanwhile if asking for these rows breaks off."""
        mark = len(self._parts)
        try:
            yield
        except (StreamBroken, CallTimeout):
            del self._parts[mark:]
            self._read = None
            raise
        self._asked += rows

    def unanswered(self, rows: Sequence[int]) -> list[int]:
        """Returns those of the rows that have no answer."""
        answered = self._matched.counts
        return [row for row in rows if not answered[row]]

    def violations(self, vertex: str, failures: Failures) -> Failures:
        """Returns the rows that are not answered as they should be, beside those that failed."""
        matched = self._matched
        wrong = [row for row in np.flatnonzero(matched.counts != 1).tolist() if row not in failures]
        if not wrong:
            return {}
        twice = pc.take(self._ids, pa.array(np.flatnonzero(matched.counts > 1))).to_pylist()
        ids = self._ids.take(pa.array(wrong, pa.int64())).to_pylist()
        what = _describe(twice, matched.unknown)
        return dict.fromkeys(wrong, ContractViolation(vertex, what, ids, fix=_FIX))

    def columns(self, failures: Failures) -> pa.RecordBatch:
        """Returns the outputs of all rows but those that failed; ``row`` has the input of each."""
        matched, columns = self._matched, self._matched.responses.columns()
        rows = matched.result_rows
        keep = rows != _UNKNOWN
        if failures:
            keep &= ~np.isin(rows, list(failures))
        chosen = np.flatnonzero(keep)
        order = chosen[np.argsort(rows[chosen], kind="stable")]
        if not _is_range(order, len(rows)):
            taken = pa.array(order)
            columns = {name: column.take(taken) for name, column in columns.items()}
        if not (len(order) == len(self._ids) and _is_range(rows[order], len(order))):
            columns["row"] = pa.array(rows[order])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    @property
    def _matched(self) -> _Matched:
        if self._read is None:
            self._read = _Matched(self._ids, self._responses(), self._streamed, self._asked)
        return self._read

    def _responses(self) -> Responses | FewResponses:
        try:
            if sum(map(len, self._parts)) <= FEW:
                messages = [message for part in self._parts for message in part.messages()]
                return FewResponses(messages, self._shape)
            return Responses(self._places(), self._shape)
        except ValueError as error:
            raise StreamBroken(f"the function answered what cannot be read: {error}") from error

    def _places(self) -> Places:
        edges, shift = [np.empty(0, np.int64)], 0
        for part in self._parts:
            edges.append(np.array(part.edges, np.int64) + shift)
            shift += len(part.buffer)
        buffer, joined = b"".join([part.buffer for part in self._parts]), np.concatenate(edges)
        return Places(buffer, joined[::2], joined[1::2])


class _Matched:
    """Responses with the rows they are for; ``counts`` says how often each row is answered."""

    def __init__(
        self,
        ids: pa.StringArray,
        responses: Responses | FewResponses,
        streamed: bool,
        asked: Sequence[int],
    ) -> None:
        self.responses = responses
        rows = _find_rows(responses.ids, ids)
        if streamed and (rows == _UNKNOWN).all() and not responses.have_ids:
            rows = _rows_in_turn(responses.last, asked)
        ends: Flags = responses.last if streamed else ~responses.last
        # The mark at the end of a batch is no answer, and has no id.
        self._strange: Flags = (rows == _UNKNOWN) & (ends | ~responses.last)
        self.counts = np.bincount(rows[ends & (rows != _UNKNOWN)], minlength=len(ids))
        self.result_rows: Numbers = rows[responses.owners]

    @property
    def unknown(self) -> list[str]:
        """The ids of responses that belong to no row."""
        ids: list[str] = self.responses.ids.filter(pa.array(self._strange)).to_pylist()
        return ids


def _find_rows(named: pa.StringArray, ids: pa.StringArray) -> Numbers:
    """Returns the row that each response names."""
    if len(named) <= FEW:
        rows = {row_id: row for row, row_id in enumerate(ids.to_pylist())}
        return np.array([rows.get(row_id, _UNKNOWN) for row_id in named.to_pylist()], np.int64)
    places = pc.index_in(named, value_set=ids).fill_null(_UNKNOWN)
    numbers: Numbers = places.to_numpy().astype(np.int64)
    return numbers


def _rows_in_turn(last: Flags, asked: Sequence[int]) -> Numbers:
    """Returns the rows of responses without ids: one row after the other, up to each mark."""
    turns: Numbers = np.cumsum(last) - last
    return np.append(np.array(asked, np.int64), _UNKNOWN)[np.minimum(turns, len(asked))]


def _is_range(numbers: Numbers, count: int) -> bool:
    return len(numbers) == count and bool((numbers == np.arange(count)).all())


def _describe(twice: Sequence[str], unknown: Sequence[str]) -> str:
    if unknown:
        return f"answered the id {unknown[0]!r}, which is of no request"
    if twice:
        return f"answered the id {twice[0]!r} more than once"
    return "did not answer all requests of a batch"
