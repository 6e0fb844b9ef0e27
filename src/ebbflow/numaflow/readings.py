"""Messages that a source's function has read, as the columns of a source.

The name of a message in the columns is the function's offset and partition in one: two partitions
may have the same offsets. ``offset_of`` takes it apart again, also for a process of the function
that did not give the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.source import SourceMessage
from ebbflow.engine.frames import FEW
from ebbflow.engine.source_columns import columns_of
from ebbflow.numaflow.fields import Fields, Messages, Numbers, join_parts
from ebbflow.numaflow.nested import list_texts, map_groups, map_texts, read_times
from ebbflow.numaflow.proto import source_pb2
from ebbflow.numaflow.stream import Arrived

_RESULT, _STATUS, _EOT = 1, 2, 1
_PAYLOAD, _OFFSET, _EVENT_TIME, _KEYS, _HEADERS, _METADATA = range(1, 7)
_NAME, _PARTITION = 1, 2

_NO_OFFSET = "the function gave a message without an offset"


def offset_of(name: bytes) -> dict[str, Any]:
    """Returns the offset and the partition that a function knows a message by."""
    offset, _, partition = name.rpartition(b".")
    return {"offset": offset, "partition_id": int(partition)}


def read_messages(parts: Sequence[Arrived]) -> tuple[pa.RecordBatch, int]:
    """Returns the messages in some responses, and how many of these mark an end.

    ``ValueError`` if a response cannot be read or a message has no offset.
    """
    if sum(map(len, parts)) <= FEW:
        return _read_few([text for part in parts for text in part.messages()])
    messages = Messages(join_parts(parts))
    return _read_many(messages.field(_RESULT)), _count_marks(messages.field(_STATUS))


# --- few messages -------------------------------------------------------------------------------


def _read_few(texts: Sequence[bytes]) -> tuple[pa.RecordBatch, int]:
    responses = [source_pb2.ReadResponse.FromString(text) for text in texts]
    messages = [_read_one(said.result) for said in responses if said.HasField("result")]
    return columns_of(messages), sum(said.status.eot for said in responses)


def _read_one(result: Any) -> SourceMessage:
    if not result.offset.offset:
        raise ValueError(_NO_OFFSET)
    partition = result.offset.partition_id
    return SourceMessage(
        result.payload,
        b"%b.%d" % (result.offset.offset, partition),
        _time(result.event_time) if result.HasField("event_time") else None,
        list(result.keys),
        dict(result.headers),
        partition,
        metadata={
            name: dict(group.key_value) for name, group in result.metadata.user_metadata.items()
        },
    )


def _time(said: Any) -> datetime | None:
    try:
        moment: datetime = said.ToDatetime(UTC)
    except (ValueError, OverflowError):  # none that Python knows
        return None
    return moment


# --- many messages ------------------------------------------------------------------------------


def _read_many(fields: Fields) -> pa.RecordBatch:
    results = Messages(fields.places)
    count = len(results)
    offsets, partitions = _read_offsets(results)
    columns = {
        "value": results.field(_PAYLOAD).last(results.places).column(),
        "offset": offsets,
        "partition": pa.array(partitions.astype(np.int32)),
        "event_time": read_times(results.field(_EVENT_TIME), count),
        "keys": list_texts(results.field(_KEYS), count),
        "headers": map_texts(results.field(_HEADERS), count),
        "metadata": map_groups(results.field(_METADATA), count),
    }
    return pa.RecordBatch.from_pydict(columns)


def _read_offsets(results: Messages) -> tuple[pa.BinaryArray, Numbers]:
    places = results.field(_OFFSET).last(results.places)
    offsets = Messages(places)
    names = offsets.field(_NAME).last(places)
    if (names.ends == names.starts).any():
        raise ValueError(_NO_OFFSET)
    partitions = offsets.field(_PARTITION).last_numbers(len(places))
    texts = pa.array(partitions).cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(names.column(), texts, b"."), partitions


def _count_marks(statuses: Fields) -> int:
    marks = Messages(statuses.places).field(_EOT).last_numbers(len(statuses))
    return int(np.count_nonzero(marks))
