"""Words to running tasks, on the control subject of a pipeline. They are not stored."""

from __future__ import annotations

STOP = b"stop"
"""Settle what is in hand and end; no other epoch follows."""

_TURN = b"turn "
_RESUME = b"resume"


def turn(seconds: float) -> bytes:
    """End the epoch when it has lasted so long: others wait for the slot."""
    return _TURN + f"{seconds:g}".encode()


def turn_of(word: bytes) -> float | None:
    """How long a turn is, if that is what the word says."""
    return float(word.removeprefix(_TURN)) if word.startswith(_TURN) else None


def resume(vertex: str | None) -> bytes:
    """Go on although there were too many dead letters: a vertex, or all."""
    return _RESUME + (f" {vertex}".encode() if vertex else b"")


def resumes(word: bytes, vertex: str) -> bool:
    """Whether the word has the vertex go on."""
    return word in (resume(None), resume(vertex))
