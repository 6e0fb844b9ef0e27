"""Publishing the status of a run, so that any process that reaches the NATS server can read it.

The latest state replaces the one before; the last one stays when the run has ended. Samples for
charts are kept for an hour. The chunks of each vertex are told apart from the state, because few
look at them. Nothing waits for any of this but the last state of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ebbflow.domain.records import to_json
from ebbflow.nats.client import SecuredClient
from ebbflow.nats.publish import PublishRetry, publish
from ebbflow.status.model import ChunkTimes, PipelineStatus, Sample, VertexSample, VertexStatus
from ebbflow.streams.names import Names

NOW, SAMPLE, CHUNKS = "now", "sample", "chunks"
"""The kinds of state, as their subjects end."""

KEPT_FOR = 3600
"""Seconds that samples are kept."""

SAMPLE_EVERY = 2.0
_ROLLUP = {"Nats-Rollup": "sub"}
_LAST_WORD = PublishRetry(attempts=3, ack_wait=5.0)
# Of the server's limit for a message, for the state; headers need some of the rest.
_SHARE = 0.9
_MOST_BYTES = 512 * 1024


class StatusPublisher:
    """Publishes what an observer has seen. Everything here runs on the loop of the client."""

    def __init__(self, client: SecuredClient, names: Names) -> None:
        self._client = client
        self._names = names

    async def tell(self, status: PipelineStatus) -> None:
        """Publishes the state, and does not wait for it to be stored."""
        await self._send(NOW, self._pack(status), _ROLLUP)

    async def sample(self, status: PipelineStatus) -> None:
        """Publishes a sample of the state."""
        await self._send(SAMPLE, to_json(make_sample(status)), {"Nats-TTL": f"{KEPT_FOR}s"})

    async def tell_chunks(self, vertex: str, chunks: Sequence[ChunkTimes]) -> None:
        """Publishes the last chunks of a vertex."""
        await self._send(f"{CHUNKS}.{vertex}", to_json([*chunks]), _ROLLUP)

    async def tell_last(self, status: PipelineStatus) -> None:
        """Publishes the state that the run leaves behind; returns when it is stored."""
        subject = self._names.status_subject(NOW)
        await publish(self._client, subject, self._pack(status), _ROLLUP, retry=_LAST_WORD)

    async def _send(self, kind: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._client.publish(self._names.status_subject(kind), payload, headers=headers)

    def _pack(self, status: PipelineStatus) -> bytes:
        """Returns the state, without what helps least if it is too large to be told each second."""
        limit = int(min(_MOST_BYTES, self._client.max_payload * _SHARE))
        packed = status.to_bytes()
        for traces, errors in ((3, 20), (1, 20), (0, 20), (0, 1)):
            if len(packed) <= limit:
                break
            packed = _shorten(status, traces, errors).to_bytes()
        return packed


def _shorten(status: PipelineStatus, traces: int, errors: int) -> PipelineStatus:
    """Returns the state with so many errors of each vertex, and the tracebacks of so many."""

    def shorten(vertex: VertexStatus) -> VertexStatus:
        kept = [
            error if number < traces else replace(error, traceback=None)
            for number, error in enumerate(vertex.errors[:errors])
        ]
        return replace(vertex, errors=tuple(kept))

    return replace(status, vertices=tuple(map(shorten, status.vertices)))


def make_sample(status: PipelineStatus) -> Sample:
    """Returns the numbers of a state that charts need."""
    assert status.at is not None
    return Sample(
        status.at,
        {
            vertex.name: VertexSample(
                vertex.totals.read,
                vertex.totals.written,
                vertex.totals.redelivered,
                vertex.totals.dead_lettered,
                vertex.pending,
                vertex.parked.messages,
                vertex.dead_letters,
                vertex.oldest_waiting_seconds,
                exact=vertex.pending_exact and vertex.parked.exact,
            )
            for vertex in status.vertices
        },
    )
