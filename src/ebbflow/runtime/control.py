"""Control words: the driver, or ``ebbflow resume``, sends them to running tasks.

They go over the control subject of the pipeline and are not stored: a sender repeats a word until
it sees the effect.
"""

from __future__ import annotations

STOP = b"stop"
"""Tells tasks to settle what they hold and end; no other epoch follows."""

_TURN = b"turn "
_RESUME = b"resume"


def turn(seconds: float) -> bytes:
    """Returns the word that ends epochs after this time, because others wait for the slots."""
    return _TURN + f"{seconds:g}".encode()


def turn_of(word: bytes) -> float | None:
    """Returns the seconds of a turn, if that is what the word says."""
    return float(word.removeprefix(_TURN)) if word.startswith(_TURN) else None


def resume(vertex: str | None) -> bytes:
    """Returns the word that lets a vertex, or all, go on after too many dead letters."""
    return _RESUME + (f" {vertex}".encode() if vertex else b"")


def resumes(word: bytes, vertex: str) -> bool:
    """Whether the word has the vertex go on."""
    return word in (resume(None), resume(vertex))
