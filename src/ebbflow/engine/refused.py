"""Publications that the server refuses for good because of one message, over the stream's limit.

A plan is checked against the server's limits before it is carried out. But an operator may have
edited a stream, and then the same frame is refused in every replay. So a refused frame is halved
until the rows that the stream refuses are alone. These become dead letters
(``engine.settlement``), and all others are stored.

The id of a half follows from its rows, as that of every frame. A replay is refused in the same way
and makes the same halves, so the server and the readers recognise copies of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from ebbflow.domain.errors import MessageTooLarge, PermanentPublishError
from ebbflow.domain.outcome import DeadLetter
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.publications import (
    REASONS,
    REDELIVERED_BY,
    ROWS,
    Publication,
    Stage,
    list_reasons,
    mark_frame,
)
from ebbflow.engine.redelivery import shorten

REASON = "refused by NATS"
"""The reason of a dead letter whose message, or an output of it, a stream has refused."""

# The message is larger than its stream allows; its headers are larger than any stream allows.
_TOO_LARGE, _HEADERS_TOO_LARGE = 10054, 10097
_FRAMES = frozenset({Stage.OUTPUT, Stage.REDELIVER, Stage.HAND_OVER})


def explain_refusal(error: Exception, stream: str) -> str | None:
    """Returns why a stream refused a message for its content; ``None`` if for another reason."""
    if isinstance(error, MessageTooLarge):
        return f"the server refuses it: {error}"
    if isinstance(error, PermanentPublishError) and error.code in (_TOO_LARGE, _HEADERS_TOO_LARGE):
        return f"the stream {stream} refused it: {error.detail} ({error.code})"
    return None


def divide(publication: Publication) -> Sequence[Publication]:
    """Returns the halves of a refused frame; none if it is a single row or not a frame."""
    if publication.stage not in _FRAMES:
        return ()
    rows = frames.decode(publication.payload)
    half, parents = rows.num_rows // 2, publication.parents
    pieces = [
        _rename(publication, _copy(rows, start, end), parents[start:end])
        for start, end in ((0, half), (half, rows.num_rows))
        if end > start
    ]
    # A single row is tried again if its copy is smaller, without what Arrow kept of other rows.
    return pieces if half or len(pieces[0].payload) < len(publication.payload) else ()


def _copy(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Returns a copy of some rows: a slice would be encoded with parts of its neighbours."""
    return frames.take_rows(rows, range(start, end))


def _rename(whole: Publication, rows: pa.RecordBatch, parents: Sequence[int]) -> Publication:
    """Returns a part of a frame as a publication to the same partition."""
    msg_id = f"{whole.msg_id.rpartition(':')[0]}:{mark_frame(rows, whole.via)}"
    headers = whole.headers | {ROWS: str(rows.num_rows)}
    if whole.stage is Stage.REDELIVER:
        headers[REASONS] = list_reasons(rows)
        # Its reader skips a frame that names its chunk and is not awaited. The halves are too late
        # to be listed as awaited, so they name no chunk.
        headers.pop(REDELIVERED_BY, None)
    return replace(
        whole, msg_id=msg_id, payload=frames.encode(rows), headers=headers, parents=parents
    )


def cut_dead_letter(publication: Publication) -> Publication | None:
    """Returns a refused dead letter at half its size; ``None`` if it cannot be smaller."""
    size = len(publication.payload) + sum(len(k) + len(v) for k, v in publication.headers.items())
    letter = Letter.from_message(publication.payload, publication.headers).fitting(size // 2)
    cut = replace(publication, payload=letter.value, headers=letter.to_headers())
    smaller = (cut.payload, cut.headers) != (publication.payload, publication.headers)
    return cut if smaller else None


def find_dead(refused: Collection[Publication]) -> dict[int, DeadLetter]:
    """Returns the inputs that become dead letters, once each, however often they were refused."""
    dead: dict[int, DeadLetter] = {}
    for publication in refused:
        for parent in publication.parents:
            dead.setdefault(parent, _explain(publication))
    return dead


def _explain(publication: Publication) -> DeadLetter:
    error = publication.refusal
    if publication.stage in (Stage.REDELIVER, Stage.HAND_OVER):
        why = frames.decode(publication.payload).column("nack_reason")[0].as_py()
        error = f"{error}; it was to be redelivered: {why or 'nacked'}"
    return DeadLetter(REASON, shorten(error))
