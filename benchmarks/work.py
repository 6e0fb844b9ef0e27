"""The work that every contestant does for a message: the same Python call."""

from __future__ import annotations

from ebbflow import Datum, Message


def work(payload: bytes) -> bytes:
    """A small change to the payload."""
    return payload + b"!"


def map_message(datum: Datum) -> Message:
    """The same as a map."""
    return Message(work(datum.value))
