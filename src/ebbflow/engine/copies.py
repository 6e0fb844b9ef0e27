"""Recognises copies: frames of a buffer that its reader has read before, however long ago.

A chunk that was published but not recorded is published again after a crash, and its frames are in
the buffer twice unless the server still knows their ids, which it does for two minutes. The reader
knows better. Every frame is stamped with its writer, the place where its chunk begins and a hash of
its rows; with its position the reader keeps the stamps of each writer's last chunk.

The last chunk is enough: a writer begins another one only after the one before it is recorded as
done, with all it came to on the server. So a frame of an earlier chunk that comes behind one of a
later chunk is a copy that was late, and a frame of the same chunk is a copy if its rows are the
same. Rows that a replay decided about differently have another hash and are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 256
"""So many frames of a chunk are known; of a larger one the last so many."""

_LENGTH = 16
_MARK = r"(\d+)(?:\.(\d+))?"
# As ``chunk_key`` and the publication of an output have made it.
_ID = re.compile(rf"([^:]+):([^:]+):(\d+):{_MARK}-[\d.]+:{_MARK}-[\d.]+:[^:]+:([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A frame's identity: its writer, where its chunk begins, and a hash of its rows.

    ``lineage`` is another one when the writer was started over, and ``begins`` counts from 0 again.
    """

    writer: str
    lineage: str
    begins: tuple[int, ...]
    rows: str

    @classmethod
    def of(cls, writer: str | None, msg_id: str | None) -> Stamp | None:
        """Returns the stamp in a frame's headers; ``None`` if no task of a vertex wrote it."""
        parts = _ID.fullmatch(msg_id) if writer and msg_id else None
        if parts is None or f"{parts[2]}.{parts[3]}" != writer:
            return None
        begins = tuple(int(number or 0) for number in parts.groups()[3:7])
        return cls(writer, parts[1], begins, parts[8][:_LENGTH])


@dataclass(frozen=True, slots=True)
class LastChunk:
    """The part of a writer's last chunk that was read: hashes of the rows of its frames."""

    lineage: str
    begins: tuple[int, ...]
    rows: tuple[str, ...] = ()


Known = Mapping[str, LastChunk]
"""The last chunk of each writer. It is never changed, only replaced."""

NOTHING: Known = {}


def is_copy(known: Known, stamp: Stamp) -> bool:
    """Returns whether a frame was read before."""
    last = known.get(stamp.writer)
    # A writer of another lineage counts its marks from 0 again: nothing of it is older, and taking
    # it for a copy would lose it.
    if last is None or last.lineage != stamp.lineage:
        return False
    return stamp.begins < last.begins or (stamp.begins == last.begins and stamp.rows in last.rows)


def with_frame(known: Known, stamp: Stamp) -> Known:
    """Returns what is known when the last row of a frame is read, too.

    Not before the last row: a frame of which some rows are unread is no copy when it comes again.
    """
    last = known.get(stamp.writer)
    if last is None or (last.lineage, last.begins) != (stamp.lineage, stamp.begins):
        last = LastChunk(stamp.lineage, stamp.begins)
    rows = (*last.rows, stamp.rows)[-MOST:]
    return {**known, stamp.writer: LastChunk(last.lineage, last.begins, rows)}


def dump_known(known: Known) -> dict[str, list[Any]]:
    """Returns what is stored with a position: small, for it is written with every chunk."""
    return {
        writer: [last.lineage, [*last.begins], "".join(last.rows)] for writer, last in known.items()
    }


def load_known(stored: Mapping[str, Any]) -> Known:
    """Returns what is known from what was stored."""
    return {
        writer: LastChunk(lineage, tuple(begins), _cut(rows))
        for writer, (lineage, begins, rows) in stored.items()
    }


def _cut(rows: str) -> tuple[str, ...]:
    return tuple(rows[start : start + _LENGTH] for start in range(0, len(rows), _LENGTH))
