"""The body of a request while it arrives: bounded in size, and in what it holds of the room."""

from __future__ import annotations

from collections.abc import Callable

from ebbflow.web.refusal import Refusal
from ebbflow.web.room import RequestRoom


class Body:
    """Takes the pieces of a body, of which there are ``largest`` bytes at most."""

    __slots__ = ("_largest", "_pieces", "_room", "received")

    def __init__(self, room: RequestRoom, largest: int) -> None:
        self._room = room
        self._largest = largest
        self._pieces: list[bytes] = []
        self.received = 0

    def feed(self, piece: bytes) -> None:
        """Takes a piece of the body; ``Refusal`` if there is no room for it."""
        self.received += len(piece)
        check_size(self.received, self._largest)
        self._room.cover(self.received)
        self._pieces.append(piece)

    def join(self) -> bytes:
        """Returns all that has arrived."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def abandon(self) -> None:
        """Gives its room back."""
        self._room.release()


def check_size(size: int, largest: int) -> None:
    """Refuses a body that is larger than a message may be."""
    if size > largest:
        raise Refusal(413, f"a body may have {largest:,} bytes, not {size:,} or more")


class BodilessRequest:
    """A request that is answered when it is complete; its body does not matter."""

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def feed(self, piece: bytes) -> None:
        """Forgets it."""

    def finish(self) -> None:
        """Answers."""
        self._answer()

    def abandon(self) -> None:
        """Has nothing to give back."""
