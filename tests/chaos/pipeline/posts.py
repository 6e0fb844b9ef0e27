"""User code between the HTTP source and the file sink of the chaos test."""

from __future__ import annotations

import zlib

from ebbflow import Message, nack


def work(datum):
    """Nack one message in fifty once."""
    if datum.deliveries == 1 and zlib.crc32(datum.value) % 50 == 0:
        nack(delay="50ms", reason="not now")
    return Message(datum.value)
