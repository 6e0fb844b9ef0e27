"""User code between the serving source and the sink of the chaos test."""

from __future__ import annotations

from ebbflow import Message, nack


def work(datum):
    """Answer a number by its last digit: drop it, fail it, nack it once, answer twice, or once."""
    match int(datum.value) % 10:
        case 0:
            return []
        case 1:
            nack(delay="50ms", max_deliveries=1, reason="nobody can do this")
        case 2 if datum.deliveries == 1:
            nack(delay="400ms", reason="not yet")
        case 3:
            return [Message(b"first " + datum.value), Message(b"second " + datum.value)]
    return Message(b"answer to " + datum.value)
