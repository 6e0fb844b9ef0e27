"""How a task knows that its vertex is paused: from the record when it begins, then from words.

The words carry the whole record with its revision and come over the control subject, so that a
pause holds within milliseconds. A word that got lost is made up for by the next one, or by the
record when the next epoch begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ebbflow.engine.pauses import Pauses
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from ebbflow.streams.positions import read_pauses

_WORD = b"pauses "


def tell_pauses(pauses: Pauses) -> bytes:
    """Returns the word that has tasks know what is paused."""
    return _WORD + json.dumps([pauses.revision, json.dumps(pauses.to_json())]).encode()


class PauseWatch:
    """Whether one vertex is paused; ``tell`` hears it whenever that may have changed.

    Words come from the link's thread, the record is read by the task's.
    """

    def __init__(self, names: Names, vertex: str, tell: Callable[[bool], None]) -> None:
        self._names = names
        self._vertex = vertex
        self._tell = tell
        self._known = Pauses()

    def read(self, link: Link) -> None:
        """Reads the record. To be called when words are heard already: none may fall between."""
        self._note(link.run(read_pauses(link.client, self._names)))

    def hear(self, word: bytes) -> None:
        """Takes what a word says, if it is one about pauses."""
        if word.startswith(_WORD):
            revision, record = json.loads(word.removeprefix(_WORD))
            self._note(Pauses.from_json(record, revision))

    def _note(self, pauses: Pauses) -> None:
        if pauses.revision >= self._known.revision:
            self._known = pauses
            self._tell(pauses.since(self._vertex) is not None)
