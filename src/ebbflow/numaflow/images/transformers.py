"""Source transformers that do what the transformer images of Numaflow's examples do."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from ebbflow.domain.message import Datum, Message
from ebbflow.engine.frames import TIME
from ebbflow.numaflow.images.maps import is_good_greeting, tags_by_words, without
from ebbflow.usercode.columns import TYPES

_STARTS = pa.array([datetime(2022, 1, 1, tzinfo=UTC), datetime(2023, 1, 1, tzinfo=UTC)], TIME)
_YEAR_TAGS = pa.array([["within_year_2022"], ["after_year_2022"]], TYPES["tags"])


def assign_event_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Gives every message the present time as its event time."""
    now = pa.repeat(pa.scalar(datetime.now(UTC), TIME), batch.num_rows)
    columns = {"value": batch.column("value"), "event_time": now}
    return pa.RecordBatch.from_pydict(columns | without(batch.num_rows, "metadata"))


def filter_event_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drops what happened before 2022; tags the rest by year and moves it to a first of January.

    What is of 2022 moves to the beginning of 2022, what is later to that of 2023. Keys are gone.
    """
    kept = batch.filter(pc.greater_equal(batch.column("event_time"), _STARTS[0]))
    later = pc.greater_equal(kept.column("event_time"), _STARTS[1]).cast(pa.int8())
    columns = {
        "id": kept.column("id"),
        "value": kept.column("value"),
        "tags": _YEAR_TAGS.take(later),
        "event_time": _STARTS.take(later),
        **without(kept.num_rows, "keys", "metadata"),
    }
    return pa.RecordBatch.from_pydict(columns)


def filter_greetings(datum: Datum) -> Message:
    """Forwards JSON objects that are a good greeting, with their keys; drops the others."""
    good = is_good_greeting(datum.value)
    return Message(datum.value, metadata={}) if good else Message.to_drop()


def add_event_time(datum: Datum) -> Message:
    """Gives the message the present time, also in its metadata, in ``event-time-group``."""
    now = datetime.now(UTC)
    text = now.isoformat(timespec="seconds").encode()
    group = {**datum.metadata.get("event-time-group", {}), "event-time": text}
    metadata = {**datum.metadata, "event-time-group": group}
    return Message(datum.value, event_time=now, metadata=metadata)


def tag_for_bypass(datum: Datum) -> Message:
    """Forwards the message, as of now, with the tags of the sinks that its payload speaks of."""
    tags, now = tags_by_words(datum.value), datetime.now(UTC)
    return Message(datum.value, tags=tags, event_time=now, metadata={})
