"""Answers of maps and transformers, as columns.

A response names its request and holds any number of results. The columns are those that a columnar
map returns (``usercode.columns``). An output without keys or metadata has none, as in Numaflow:
SDKs say nothing of what they leave out. Without an event time it has that of its input. Reserved
tags have become ``drop``, ``nack`` and ``error``. The text of an error is the reason in the options
of a nack, if there is one: no other field could hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ebbflow.domain.message import Signal
from ebbflow.numaflow.fields import Fields, Messages, Numbers, Places
from ebbflow.numaflow.nested import list_texts, map_groups, read_times
from ebbflow.numaflow.proto import map_pb2, sourcetransform_pb2
from ebbflow.numaflow.proto.nack_options_pb2 import NackOptions
from ebbflow.usercode.columns import TYPES

DROP, NACK, FAIL = Signal.DROP.tag, Signal.NACK.tag, Signal.FAIL.tag
"""The tags by which a function says what is to become of a message, in every language."""

Flags = NDArray[np.bool_]

_RESULTS, _ID, _STATUS, _EOT = 1, 2, 4, 1
FAILED = "failed"
"""The error of a message of which a function says only that it has failed."""


@dataclass(frozen=True, slots=True)
class ResultShape:
    """A service's response, and the numbers of the fields of a result in it."""

    response: Any
    tags: int
    metadata: int
    nack_options: int
    event_time: int | None = None
    keys: int = 1
    value: int = 2


MAP_RESULT = ResultShape(map_pb2.MapResponse, tags=3, metadata=4, nack_options=5)
TRANSFORM_RESULT = ResultShape(
    sourcetransform_pb2.SourceTransformResponse, tags=4, metadata=5, nack_options=6, event_time=3
)


class Responses:
    """Responses to requests, in the order of their arrival; ``ValueError`` if one is none.

    ``ids`` name the requests, ``last`` are those with the mark that ends what is transmitted.
    """

    def __init__(self, places: Places, shape: ResultShape) -> None:
        self._shape = shape
        messages = Messages(places)
        self.ids: pa.StringArray = messages.field(_ID).last(places).texts()
        self.last: Flags = _marked(messages.field(_STATUS), len(places))
        results = messages.field(_RESULTS)
        self.owners: Numbers = results.owners
        self._results = Messages(results.places)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def have_ids(self) -> bool:
        """Whether one of the responses names its request."""
        return bool(pc.max(pc.binary_length(self.ids)).as_py())

    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns of all results; ``owners`` has the response of each."""
        results, shape = self._results, self._shape
        columns = {
            "value": results.field(shape.value).last(results.places).column(),
            "keys": list_texts(results.field(shape.keys), len(results), nulls=False),
            "metadata": self._metadata(),
        }
        if len(tags := results.field(shape.tags)):
            columns |= self._tagged(tags)
        if shape.event_time is not None and len(times := results.field(shape.event_time)):
            columns["event_time"] = read_times(times, len(results))
        return columns

    def _metadata(self) -> pa.MapArray:
        fields, count = self._results.field(self._shape.metadata), len(self._results)
        if fields.places.has_content:
            return map_groups(fields, count, nulls=False)
        none, offsets = pa.array([], TYPES["metadata"]), pa.array(np.zeros(count + 1, np.int32))
        return pa.MapArray.from_arrays(offsets, none.keys, none.items)

    def _tagged(self, tags: Fields) -> dict[str, pa.Array]:
        """Returns the column of tags, and those that the reserved tags ask for."""
        texts, count = tags.places.texts(), len(self._results)

        def having(tag: str) -> Numbers:
            rows: Numbers = tags.owners[np.flatnonzero(pc.equal(texts, tag).to_numpy(False))]
            return rows

        columns = {"tags": list_texts(tags, count)}
        if len(dropped := having(DROP)):
            columns["drop"] = _flags(dropped, count)
        if len(failed := having(FAIL)):
            reasons = self._nack_options(count)["nack_reason"].to_pylist()
            texts_of = {row: reasons[row] or FAILED for row in failed.tolist()}
            columns["error"] = pa.array([texts_of.get(row) for row in range(count)], pa.string())
        if len(nacked := having(NACK)):
            columns |= {"nack": _flags(nacked, count), **self._nack_options(count)}
        return columns

    def _nack_options(self, count: int) -> dict[str, pa.Array]:
        asked: dict[str, list[Any]] = {
            name: [None] * count for name in ("delay", "max_deliveries", "reason")
        }
        fields = self._results.field(self._shape.nack_options)
        for row, packed in zip(fields.owners, fields.places.column().to_pylist(), strict=True):
            options = NackOptions.FromString(packed)
            for name, column in asked.items():
                if options.HasField(name):
                    column[row] = getattr(options, name)
        kinds = {"delay": pa.int64(), "max_deliveries": pa.int64(), "reason": pa.string()}
        return {f"nack_{name}": pa.array(column, kinds[name]) for name, column in asked.items()}


def _marked(statuses: Fields, count: int) -> Flags:
    """Returns which of the messages have the mark of the end."""
    marks = np.zeros(count, bool)
    if len(statuses):
        ends = Messages(statuses.places).field(_EOT).last_numbers(len(statuses))
        marks[statuses.owners] = ends != 0
    return marks


def _flags(rows: Numbers, count: int) -> pa.BooleanArray:
    flags = np.zeros(count, bool)
    flags[rows] = True
    return pa.array(flags)
