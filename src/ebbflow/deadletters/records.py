"""Dead letters as they are stored: read fact by fact, or as a whole.

A search looks at a hundred thousand letters to find a few. A ``LetterRecord`` reads only the facts
that it is asked for, from the headers as they came from the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ebbflow.engine.dead_letter import PREFIX, Letter
from ebbflow.nats.stored import StoredMessage, StoredPage
from ebbflow.nats.wire import write_headers

_FIRST = "\r\n" + PREFIX


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A letter and its number in the dead-letter stream."""

    number: int
    letter: Letter


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """A message of the dead-letter stream: its number, its headers as they came, its payload."""

    number: int
    block: bytes
    payload: bytes

    def fact(self, name: str, absent: Any = None) -> Any:
        """Returns a fact of the letter by its name in the headers; ``absent`` if it has none.

        So it does for what is in the stream and no letter, which then matches no filter.
        """
        mark = f"{_FIRST}{name}: ".encode()
        start = self.block.find(mark)
        if start < 0:
            return absent
        start += len(mark)
        try:
            return json.loads(self.block[start : self.block.index(b"\r\n", start)])
        except ValueError:
            return absent

    def to_letter(self) -> StoredLetter:
        """Returns all of it; ``KeyError`` or ``ValueError`` if this is no letter."""
        return StoredLetter(self.number, Letter.from_block(self.payload, self.block))


def records_of(page: StoredPage) -> list[LetterRecord]:
    """Returns what was read together, in its order."""
    parcel = page.parcel
    return [
        LetterRecord(number, parcel.block(row), parcel.payload(row))
        for row, number in enumerate(page.seqs)
    ]


def record_of(message: StoredMessage) -> LetterRecord:
    """Returns a single message as one that was read with others."""
    return LetterRecord(message.seq, write_headers(message.headers), message.payload)
