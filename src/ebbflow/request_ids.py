"""Ids of requests: UUIDs of version 7, which sort by the time they were made at."""

from __future__ import annotations

import os
import time

_RANDOM = ~(15 << 76 | 3 << 62)
_VERSION_7 = 7 << 76 | 2 << 62


def make_request_id() -> str:
    """Returns a new id, by this machine's clock."""
    return format_request_id(time.time_ns() // 1_000_000, os.urandom(10))


def format_request_id(milliseconds: int, random: bytes) -> str:
    """Returns the id of a moment since 1970; ten random bytes tell it from others."""
    value = milliseconds << 80 | int.from_bytes(random, "big")
    digits = f"{value & _RANDOM | _VERSION_7:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
