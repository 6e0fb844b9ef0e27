"""How many dead letters there are for each vertex and reason, kept up to date cheaply.

The server counts letters by vertex, but not by reason. So the letters are read once, and afterwards
only those that are new. A letter takes a few bytes here.
"""

from __future__ import annotations

from array import array
from collections import Counter

from ebbflow.deadletters.filters import LetterFilter
from ebbflow.deadletters.shelf import LetterShelf
from ebbflow.nats import api
from ebbflow.nats.stored import StreamSnapshot, take_snapshot

Causes = dict[tuple[str, str], int]
"""The number of letters by vertex and reason."""

_PAGE = 1_000


class CauseIndex:
    """The reason of each letter, by its number."""

    def __init__(self, shelf: LetterShelf) -> None:
        self._shelf = shelf
        self._numbers = array("Q")
        self._codes = array("L")
        self._causes: dict[tuple[str, str], int] = {}

    def count(self) -> Causes:
        """Returns the letters that there are now, by vertex and reason."""
        there = self._shelf.look()
        self._add_new(there)
        if self._is_stale(there):
            self._remove_deleted()
        names = {code: cause for cause, code in self._causes.items()}
        counted = Counter(self._codes)
        return {names[code]: count for code, count in sorted(counted.items())}

    @property
    def is_known(self) -> bool:
        """``True`` once all letters were read, so that another look is cheap."""
        return bool(self._numbers)

    def count_matching(self, chosen: LetterFilter) -> int:
        """Returns how many letters there are now that a filter by vertex and reason takes."""
        return sum(n for cause, n in self.count().items() if chosen.matches_cause(*cause))

    def _add_new(self, there: StreamSnapshot) -> None:
        after = self._numbers[-1] if self._numbers else 0
        while records := self._shelf.read_page(None, after, there, _PAGE):
            for record in records:
                cause = str(record.fact("Vertex", "")), str(record.fact("Reason", ""))
                self._numbers.append(record.number)
                self._codes.append(self._causes.setdefault(cause, len(self._causes)))
            after = records[-1].number

    def _is_stale(self, there: StreamSnapshot) -> bool:
        client, stream = self._shelf.link.client, self._shelf.names.dead_letters
        state = self._shelf.link.run(api.read_info(client, stream))
        return bool(len(self._numbers) != state["messages"] or there.last != state["last_seq"])

    def _remove_deleted(self) -> None:
        client, stream = self._shelf.link.client, self._shelf.names.dead_letters
        there = self._shelf.link.run(take_snapshot(client, stream))
        kept = [place for place, number in enumerate(self._numbers) if number in there]
        self._numbers = array("Q", [self._numbers[place] for place in kept])
        self._codes = array("L", [self._codes[place] for place in kept])
