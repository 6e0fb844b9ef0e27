"""The outcome of a dead letter in a replay: sent back unchanged or changed, deleted, or it stays.

A transform is a function of the user. It is called with the ``Letter`` in the process that replays,
and returns the message to send back to the vertex:

- a ``Letter``: its value, keys, headers, event time and metadata; make it with
  ``dataclasses.replace(letter, value=…)``. Id and vertex must not change.
- ``bytes``: a new value; everything else stays the same.
- a ``Message``: a new value, and keys, event time and metadata if it has them. Tags have no meaning
  here and are refused.
- ``Message.to_drop()``: the dead letter is deleted and nothing is sent back.

A list with one of them works too. For anything else the dead letter stays where it is and is
reported: an exception, ``Message.to_nack`` and ``Message.to_fail``, ``None``, and several messages,
because a message is replayed as one message, which a map may split afterwards. A transform may be
called again for a dead letter if a replay is interrupted or another one runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebbflow.domain.message import Message, Nack, Signal
from ebbflow.engine.blame import USER_ERRORS
from ebbflow.engine.dead_letter import Letter

Transform = Callable[[Letter], Any]

DROP = "drop"
"""The fate of a dead letter to delete."""


@dataclass(frozen=True, slots=True)
class Stays:
    """The fate of a dead letter that is not replayed, and why."""

    why: str


Fate = Letter | Stays | str
"""The message to send back, or why it stays, or ``DROP``."""


@dataclass(frozen=True, slots=True)
class LetterEdit:
    """A transform that replaces value, keys and headers, unless they are ``None``."""

    value: bytes | None = None
    keys: Sequence[str] | None = None
    headers: Mapping[str, str] | None = None

    def __call__(self, letter: Letter) -> Letter:
        """Returns the edited dead letter."""
        return replace(
            letter,
            value=letter.value if self.value is None else self.value,
            keys=letter.keys if self.keys is None else [*self.keys],
            headers=letter.headers if self.headers is None else {**self.headers},
        )


def transform_letter(letter: Letter, transform: Transform | None) -> Fate:
    """Returns the fate of a dead letter; if the transform raises anything, it stays."""
    if transform is None:
        return letter
    try:
        return _read(letter, transform(letter))
    except Nack as error:
        return Stays(f"the transform nacked it: {error}")
    except USER_ERRORS as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return Stays(f"the transform raised {text}{_place(error)}")


def _read(letter: Letter, result: Any) -> Fate:
    if isinstance(result, list | tuple):
        if len(result) != 1:
            return Stays(
                f"the transform returned {len(result)} messages; return one, or Message.to_drop() "
                "to delete the dead letter"
            )
        (result,) = result
    if isinstance(result, Letter):
        return _read_letter(letter, result)
    if isinstance(result, bytes):
        return replace(letter, value=result)
    if isinstance(result, Message):
        return _read_message(letter, result)
    if result is None:
        return Stays(
            "the transform returned nothing; return the message to send back, or Message.to_drop() "
            "to delete the dead letter"
        )
    return Stays(
        f"the transform returned {type(result).__name__}; return a Letter, bytes or a Message"
    )


def _read_letter(letter: Letter, changed: Letter) -> Fate:
    if (changed.id, changed.vertex) != (letter.id, letter.vertex):
        return Stays("the transform changed its id or its vertex, which stay as they are")
    if not isinstance(changed.value, bytes):
        return Stays(f"its value became {type(changed.value).__name__}; encode it to bytes")
    return changed


def _read_message(letter: Letter, message: Message) -> Fate:
    if message.signal is Signal.DROP:
        return DROP
    if message.signal is not None:
        nacked = message.nack_options.reason if message.nack_options else None
        return Stays(f"the transform refused it: {message.error or nacked or 'no reason given'}")
    if message.tags:
        return Stays("the transform set tags, but it goes back to its own vertex; leave them out")
    if not isinstance(message.value, bytes):
        return Stays(f"its value became {type(message.value).__name__}; encode it to bytes")
    return replace(
        letter,
        value=message.value,
        keys=letter.keys if message.keys is None else [*message.keys],
        event_time=message.event_time or letter.event_time,
        metadata=letter.metadata if message.metadata is None else _copy(message.metadata),
    )


def _copy(metadata: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, bytes]]:
    return {group: dict(entries) for group, entries in metadata.items()}


def _place(error: BaseException) -> str:
    """Returns the line of the user's code where it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return f" ({Path(last.filename).name}:{last.lineno})" if last else ""
