"""Few answers of maps and transformers, as columns: those of a trickle.

Protobuf's own classes read some messages faster than the way that is made for thousands of them
(``responses``), which does as much for one. Both read the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from ebbflow.numaflow.fields import Numbers
from ebbflow.numaflow.nested import to_time
from ebbflow.numaflow.responses import DROP, FAIL, FAILED, NACK, Flags, ResultShape
from ebbflow.usercode.columns import TYPES

_OPTIONS = ("delay", "max_deliveries", "reason")


class FewResponses:
    """The same as ``Responses``."""

    def __init__(self, messages: Sequence[bytes], shape: ResultShape) -> None:
        self._shape = shape
        try:
            responses = [shape.response.FromString(message) for message in messages]
        except DecodeError as error:
            raise ValueError(str(error)) from error
        marked = shape.event_time is None
        self.ids: pa.StringArray = pa.array([r.id for r in responses], pa.string())
        self.last: Flags = np.array([marked and r.status.eot for r in responses], bool)
        owners = [owner for owner, response in enumerate(responses) for _ in response.results]
        self.owners: Numbers = np.array(owners, np.int64)
        self._results = [result for response in responses for result in response.results]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def have_ids(self) -> bool:
        """As in ``Responses``."""
        return any(self.ids.to_pylist())

    def columns(self) -> dict[str, pa.Array]:
        """As in ``Responses``."""
        results = self._results
        columns: dict[str, list[Any]] = {
            "value": [result.value for result in results],
            "keys": [list(result.keys) for result in results],
            "metadata": [_read_groups(result.metadata) for result in results],
        }
        if any(result.tags for result in results):
            columns |= self._tagged()
        if self._shape.event_time is not None:
            columns["event_time"] = [
                to_time(result.event_time) if result.HasField("event_time") else None
                for result in results
            ]
        return {name: pa.array(column, TYPES[name]) for name, column in columns.items()}

    def _tagged(self) -> dict[str, list[Any]]:
        tags = [list(result.tags) for result in self._results]
        columns: dict[str, list[Any]] = {"tags": [texts or None for texts in tags]}
        reserved = {text for texts in tags for text in texts}.intersection((DROP, FAIL, NACK))
        if DROP in reserved:
            columns["drop"] = [DROP in texts for texts in tags]
        if FAIL in reserved:
            reasons = [result.nack_options.reason or FAILED for result in self._results]
            pairs = zip(tags, reasons, strict=True)
            columns["error"] = [reason if FAIL in texts else None for texts, reason in pairs]
        if NACK in reserved:
            columns["nack"] = [NACK in texts for texts in tags]
            columns |= {f"nack_{name}": self._option(name) for name in _OPTIONS}
        return columns

    def _option(self, name: str) -> list[Any]:
        asked = [result.nack_options for result in self._results]
        return [getattr(options, name) if options.HasField(name) else None for options in asked]


def _read_groups(metadata: Any) -> list[tuple[str, list[tuple[str, bytes]]]]:
    groups = metadata.user_metadata
    return [(name, list(groups[name].key_value.items())) for name in groups]
