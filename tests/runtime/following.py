"""The reader of a buffer in the crash model: it may crash, too, and copies reach it at any time.

What it skips and what it stores with its position is decided by the real core (``copies``,
``Position``); marks and rows are cut here as ``FrameReader`` cuts them.
"""

from random import Random

import pyarrow as pa

from ebbflow.domain.outcome import Counts
from ebbflow.engine import frames
from ebbflow.engine.position import Mark, Position, Span, Stamp, is_copy, with_frame
from ebbflow.engine.publications import FROM, Publication


class Follower:
    """Reads one buffer. ``done`` are the ids of the rows that it has recorded as done."""

    def __init__(self) -> None:
        self._stream: list[tuple[Stamp | None, pa.RecordBatch]] = []
        self._stored = Position("reader").to_json()
        self.done: list[str] = []
        self.restart()

    def store(self, publication: Publication) -> None:
        """A frame has arrived."""
        stamp = Stamp.of(publication.headers.get(FROM), publication.msg_id)
        self._stream.append((stamp, frames.decode(publication.payload)))

    def restart(self) -> None:
        """Another reader takes over from the recorded position."""
        done = Position.from_json(self._stored).done
        self._mark, self._known, self._read = done.inlet, done.known, list[str]()

    def read(self, limit: int) -> None:
        """At most that many rows, and any number of copies between them."""
        while limit > 0 and self._mark.seq < len(self._stream):
            stamp, batch = self._stream[self._mark.seq]
            if stamp and not self._mark.row and self._is_known(stamp):
                self._mark = Mark(self._mark.seq + 1)
                continue
            piece = batch.slice(self._mark.row, limit)
            row = self._mark.row + piece.num_rows
            whole = row == batch.num_rows
            self._mark = Mark(self._mark.seq + 1) if whole else Mark(self._mark.seq, row)
            self._known = with_frame(self._known, stamp) if whole and stamp else self._known
            self._read += piece.column("id").to_pylist()
            limit -= piece.num_rows

    def _is_known(self, stamp: Stamp) -> bool:
        return is_copy(self._known, stamp)

    def record(self) -> None:
        """Everything that was read is done."""
        position = Position.from_json(self._stored)
        end = Span(self._mark, known=self._known)
        self._stored = position.settled(end, Counts()).to_json()
        self.done += self._read
        self._read = []

    def happen(self, random: Random) -> None:
        """Does any of the things that a reader may do next."""
        match random.randrange(6):
            case 0:
                self.restart()
            case 1:
                self.record()
            case _:
                self.read(random.randint(1, 3))

    def finish(self) -> None:
        """Reads and records everything."""
        self.read(10**6)
        self.record()


class Forgetful(Follower):
    """A reader that would rely on the server: it does not recognise copies."""

    def _is_known(self, stamp: Stamp) -> bool:
        return False


class Hasty(Follower):
    """A reader that would take any frame of a chunk it has read from for a copy."""

    def _is_known(self, stamp: Stamp) -> bool:
        last = self._known.get(stamp.writer)
        return last is not None and stamp.begins <= last.begins
