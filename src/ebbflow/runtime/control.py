"""Control of running tasks: the words they are sent, and one way to listen to them.

The driver, or a person with ``ebbflow pause``, ``resume`` or ``tap``, sends words over the control
subject of a pipeline: JSON, with a name and its facts. Words are not stored: a sender repeats a
word until it sees the effect. A word that a task does not know is for others.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nats.aio.msg import Msg

from ebbflow.accounts.taps import TapWish
from ebbflow.nats.link import Link
from ebbflow.streams.names import Names
from ebbflow.streams.positions import Pauses, read_pauses


def _word(name: str, **facts: Any) -> bytes:
    return json.dumps({"word": name} | facts).encode()


STOP = _word("stop")
"""Has tasks settle what they hold and end; no other epoch follows."""


def tell_shorter_epochs(seconds: float, vertex: str | None = None) -> bytes:
    """Returns the word that ends epochs after this time, of all tasks or of those of a vertex.

    Other vertices wait for the slots, or vertices are to share tasks in another way.
    """
    return _word("shorten", seconds=seconds, vertex=vertex)


def tell_resume(vertex: str | None) -> bytes:
    """Returns the word that lets a vertex, or all, continue after too many dead letters."""
    return _word("resume", vertex=vertex)


def tell_pauses(pauses: Pauses) -> bytes:
    """Returns the word that has tasks know what is paused: the whole record, and its revision."""
    return _word("pauses", revision=pauses.revision, record=json.dumps(pauses.to_json()))


def ask_tap(wish: TapWish) -> bytes:
    """Returns the word that has tasks of the vertex show what passes."""
    return _word("tap", wish=wish.to_json())


def end_tap(token: str) -> bytes:
    """Returns the word that ends a tap before its time is over."""
    return _word("untap", token=token)


Handlers = Mapping[str, Callable[..., None]]
"""What to do at each word, called with its facts by name on the thread of the link."""


def obey(word: bytes, handlers: Handlers) -> None:
    """Does what a word says, if there is a handler for it."""
    try:
        facts = json.loads(word)
    except ValueError:  # from another version of Ebbflow
        return
    handler = handlers.get(facts.pop("word"))
    if handler is not None:
        handler(**facts)


@contextlib.contextmanager
def listening(link: Link, names: Names, handlers: Handlers) -> Iterator[None]:
    """Obeys the words of a pipeline for as long as the context lasts."""

    async def hear(message: Msg) -> None:
        obey(message.data, handlers)

    words = link.run(link.client.subscribe(names.control_subject, cb=hear))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # else it would take the place of a real error
            link.run(words.unsubscribe(), timeout=5)


class PauseWatch:
    """Whether one vertex is paused: from the record when a task begins, then from words.

    Words come within milliseconds. One that got lost is made up for by the next one, or by the
    record when the next epoch begins. ``tell`` is called whenever the answer may have changed.
    """

    def __init__(self, names: Names, vertex: str, tell: Callable[[bool], None]) -> None:
        self._names = names
        self._vertex = vertex
        self._tell = tell
        self._known = Pauses()

    def read(self, link: Link) -> None:
        """Reads the record. To be called when words are heard already: none may fall between."""
        self._note(link.run(read_pauses(link.client, self._names)))

    def hear(self, revision: int, record: str) -> None:
        """Takes the record that a word carries."""
        self._note(Pauses.from_json(record, revision))

    def _note(self, pauses: Pauses) -> None:
        if pauses.revision >= self._known.revision:
            self._known = pauses
            self._tell(pauses.since(self._vertex) is not None)
