"""Messages for tests: hypothesis strategies for rows, and short ways to build a few by hand."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from ebbflow.domain.durations import Backoff
from ebbflow.domain.outcome import Outcome
from ebbflow.engine import frames
from ebbflow.engine.account import Account
from ebbflow.engine.checks import Rules
from ebbflow.engine.frames import Rows
from ebbflow.engine.publications import Chunk, Place
from ebbflow.engine.settlement import settle
from ebbflow.engine.verdict import Emitter, Verdict

NOW = datetime(2026, 8, 1, 12, 0, 0, 123_456, tzinfo=UTC)
POLICY = Backoff("1s", steps=3, factor=2.0, cap="60s")
LARGEST = 1_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
times = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
counts = st.integers(0, 2**32 - 2)
maps = st.dictionaries(texts, texts, max_size=3)
metadata = st.dictionaries(
    texts, st.dictionaries(texts, st.binary(max_size=8), max_size=2), max_size=2
)

rows = st.fixed_dictionaries(
    {
        "id": texts,
        "keys": st.none() | st.lists(texts, max_size=3),
        "value": st.binary(max_size=40) | st.just(b"x" * 5_000),
        "event_time": st.none() | times,
        "headers": st.none() | maps.map(lambda m: list(m.items())),
        "metadata": st.none()
        | metadata.map(
            lambda groups: [(g, list(entries.items())) for g, entries in groups.items()]
        ),
        "deliveries": counts.map(lambda n: n + 1),
        "failures": counts,
        "retries": counts,
        "first_seen": st.none() | times,
        "nack_reason": st.none() | texts,
    }
)


def batch(given: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """A batch of these rows."""
    return pa.RecordBatch.from_pylist(list(given), schema=frames.SCHEMA)


def some(*ids: str, **columns: Any) -> Rows:
    """Rows with these ids, whose values are their ids; a scalar column is the same for all."""
    full = {
        name: given if isinstance(given, list) else [given] * len(ids)
        for name, given in columns.items()
    }
    values = [i.encode() for i in ids]
    return Rows(frames.batch_of({"id": list(ids), "value": values} | full, len(ids)))


def verdict_on(
    rows: Rows,
    policy: Backoff = POLICY,
    largest: int = LARGEST,
    *,
    emitter: Emitter | None = None,
    **rules: Any,
) -> Verdict:
    """An empty verdict on the rows, by vertex ``v``."""
    return Verdict(rows, Rules("v", policy, largest, **rules), emitter)


def decide(verdict: Verdict, outcomes: Mapping[int, Outcome]) -> Verdict:
    """The verdict with these outcomes."""
    for index, outcome in outcomes.items():
        verdict.decisions.finish(index, outcome)
    return verdict


def account_of(verdict: Verdict, place: Place | None = None) -> Account:
    """The account of a chunk with this verdict, as the loop makes it."""
    place = place or Place(verdict.rules.vertex, 0, (), LARGEST)
    account = settle(Chunk("k", verdict.rows), verdict, place, NOW).account
    assert account is not None
    return account
