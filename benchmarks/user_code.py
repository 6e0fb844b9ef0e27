"""User code of the runs that are measured as separate processes.

It imports only what a user's code would, because the memory of its worker is measured.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from ebbflow import Datum, Message, Response

MARK, NOTES = "EBBFLOW_BENCH_MARK", "EBBFLOW_BENCH_NOTES"
"""The variables with the file of ``mark`` and with that of the sinks that note arrivals."""

_COST = 0.001


def mark(data: list[Datum]) -> list[Response]:
    """A sink that leaves a file behind when a message has arrived."""
    Path(os.environ[MARK]).touch()
    return [Response.ok(datum.id) for datum in data]


def burn(datum: Datum) -> Message:
    """A map that takes a millisecond of CPU of its thread."""
    _burn()
    return Message(datum.value)


def _burn() -> None:
    until = time.thread_time() + _COST
    while time.thread_time() < until:
        pass


class _Noting:
    """A sink that appends a line about each arrival to a file."""

    def open(self) -> None:
        """Continues the file of the epoch before."""
        self._notes = open(os.environ[NOTES], "a", encoding="ascii")  # noqa: SIM115

    def close(self) -> None:
        """All notes are in the file then."""
        self._notes.close()

    def _note(self, line: str) -> None:
        self._notes.write(line)


class NotingLatency(_Noting):
    """Notes when each message arrived, and how many milliseconds it took."""

    def __call__(self, data: list[Datum]) -> list[Response]:
        """In seconds since 1970, and in milliseconds."""
        now = time.time()
        for datum in data:
            self._note(f"{now} {1000 * (now - datum.event_time.timestamp())}\n")
        self._notes.flush()
        return [Response.ok(datum.id) for datum in data]


class NotingRows(_Noting):
    """Notes when how many messages arrived."""

    def __call__(self, rows: pa.RecordBatch) -> None:
        """In seconds since 1970."""
        self._note(f"{time.time()} {rows.num_rows}\n")
        self._notes.flush()


class BurningAndNoting(_Noting):
    """Takes a millisecond of CPU for each message, and notes when it arrived."""

    def __call__(self, data: list[Datum]) -> list[Response]:
        """In seconds since 1970."""
        for _ in data:
            _burn()
            self._note(f"{time.time()} 1\n")
        self._notes.flush()
        return [Response.ok(datum.id) for datum in data]
