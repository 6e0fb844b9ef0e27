"""The way of a message back to the vertex where it died: which partition, and in which frames.

Messages with the same keys go to the same partition, as an ordered vertex wants it, and those
without keys are spread by their ids. Within a partition they keep the order of the letters.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from ebbflow.deadletters.chain import ReplayParcel
from ebbflow.deadletters.replaying import Sendable
from ebbflow.engine import frames
from ebbflow.engine.dead_letter import Letter
from ebbflow.engine.publications import partition_of
from ebbflow.streams.names import Names
from ebbflow.streams.replays import PackedFrame, ReplayTarget

_UNREAD = (
    "a source could not read this, so there is no message to send back; correct the row, or the "
    "schema, and have the source read it again"
)
_CUT = (
    "the value was cut because it was too large to be kept whole; send the original message to the "
    "source again"
)
# What a frame of one message takes besides its bytes, generously, with the story of its deaths.
_FRAME = 8192


class LetterPacking:
    """Knows the partitions of a pipeline, as its streams show them."""

    def __init__(
        self, names: Names, list_streams: Callable[[], Collection[str]], largest: int
    ) -> None:
        self._names = names
        self._list_streams = list_streams
        self._largest = largest
        self.renew()

    def renew(self) -> None:
        """As in ``Packing``."""
        self._streams = self._list_streams()
        self._partitions: dict[str, Sequence[int]] = {}

    def find_targets(self, vertex: str) -> list[ReplayTarget]:
        """Returns all partitions of the vertex that exist."""
        return [ReplayTarget(vertex, partition) for partition in self._find_partitions(vertex)]

    def explain_refusal(self, letter: Letter) -> str | None:
        """As in ``Packing``."""
        if letter.unread:
            return _UNREAD
        if letter.size is not None:
            return _CUT
        if not self._find_partitions(letter.vertex):
            return (
                f"the pipeline has no vertex {letter.vertex!r} any more; run a pipeline that has "
                "it once, then replay"
            )
        return None

    def explain_size(self, letter: Letter) -> str | None:
        """As in ``Packing``."""
        if len(letter.value) + _FRAME < self._largest // 2:
            return None
        size = len(frames.encode(_to_rows([letter], [{}])))
        if size + _FRAME <= self._largest:
            return None
        return f"as a message it takes {size:,} bytes; the server takes {self._largest:,}"

    def pack(self, letters: Sequence[Sendable]) -> dict[ReplayTarget, ReplayParcel]:
        """As in ``Packing``."""
        by_target: dict[ReplayTarget, list[Sendable]] = defaultdict(list)
        for sendable in letters:
            by_target[sendable.target].append(sendable)
        return {target: _pack(sendables) for target, sendables in by_target.items()}

    def choose(self, letter: Letter) -> ReplayTarget:
        """As in ``Packing``: by what the letter says, never by what a transform has made of it."""
        partitions = self._find_partitions(letter.vertex)
        if len(partitions) == 1:
            place = 0
        elif letter.keys:
            place = partition_of(letter.keys, len(partitions))
        else:
            digest = hashlib.blake2b(letter.id.encode(), digest_size=8).digest()
            place = int.from_bytes(digest) % len(partitions)
        return ReplayTarget(letter.vertex, partitions[place])

    def _find_partitions(self, vertex: str) -> Sequence[int]:
        if vertex not in self._partitions:
            known = self._names.partitions_in(self._streams)
            self._partitions[vertex] = sorted(number for name, number in known if name == vertex)
        return self._partitions[vertex]


def _pack(sendables: Sequence[Sendable]) -> ReplayParcel:
    rows = _to_rows([one.letter for one in sendables], [one.story for one in sendables])
    packed = [PackedFrame(frame.num_rows, frames.encode(frame)) for frame in frames.split(rows)]
    return ReplayParcel(packed, tuple(sendable.number for sendable in sendables))


def _to_rows(letters: Sequence[Letter], stories: Sequence[Mapping[str, str]]) -> pa.RecordBatch:
    """Returns messages as on their first delivery: of their failures only the history is kept."""
    headers = [
        [*{**letter.headers, **story}.items()]
        for letter, story in zip(letters, stories, strict=True)
    ]
    columns = {
        "id": [letter.id for letter in letters],
        "keys": [letter.keys for letter in letters],
        "value": [letter.value for letter in letters],
        "event_time": [letter.event_time for letter in letters],
        "headers": headers,
        "metadata": [
            [(group, [*entries.items()]) for group, entries in letter.metadata.items()]
            for letter in letters
        ],
        "first_seen": [letter.first_seen for letter in letters],
    }
    return frames.batch_of(columns, len(letters))
