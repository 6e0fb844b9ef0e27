"""The files of an audit table in a folder of this machine: which wait, which are in it, which go.

A batch is written as files that wait, one for each day, in ``_ebbflow``, where readers of the table
do not look. Now and then those of several batches are merged into one file for each day, which is
put in its place in one step::

    audit/_ebbflow/orders-1f0c-00000012~2026-11-17.waiting
    audit/day=2026-11-17/orders-1f0c-00000000-00000011.parquet

**A file of the table never changes**, and is only ever deleted when it expires. So whoever reads
the folder sees each row once at any moment: nothing is replaced, nothing has to be swapped. A file
that waits counts until one that covers its batch is in the table; the names alone say so. Whoever
crashes leaves names from which the next one goes on: files that wait are deleted only when the file
that covers them is in its place, and that one is never written over, not even by itself.

A table that was begun without days has its files in the folder itself, and goes on like that:
Spark would not see both.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

ASIDE = "_ebbflow"
DAY = "day="
WAITING = ".waiting"
_HIDDEN = ("_", ".")
_WAITS = re.compile(r"(?P<life>.+-[0-9a-f]+)-(?P<number>\d{8})~(?P<day>\d{4}-\d\d-\d\d)\.waiting")
_COVERS = re.compile(r"(?P<life>.+-[0-9a-f]+)-(?P<first>\d{8})-(?P<last>\d{8})\.parquet")

Merge = Callable[[Sequence[str], str], object]
"""Writes the rows of some files into another one; it is on disk when this returns."""


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Batches of one life of a pipeline, from ``first`` up to before ``end``."""

    life: str
    first: int
    end: int

    @property
    def name(self) -> str:
        """The name of the files that cover them."""
        return f"{self.life}-{self.first:08d}-{self.end - 1:08d}.parquet"


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """The rows of a batch that ended on one day, before they are in the table."""

    path: Path
    life: str
    number: int
    day: str


class TableFiles:
    """The files of one table. Several pipelines may share it; each has names of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def aside(self) -> Path:
        """The folder of what is not in the table yet."""
        return self.folder / ASIDE

    # --- reading --------------------------------------------------------------------------------

    def list_rows(self, life: str = "") -> list[Path]:
        """Returns the files that have each row once; those of one life have names that begin so.

        A file that waits may be gone when it is opened: then it is in the table; list them again.
        """
        # What waits first: what is put into the table meanwhile is met there, and known by name.
        waiting = [file for file in self.list_waiting() if file.path.name.startswith(life)]
        files = [path for path in self.list_table() if path.name.startswith(life)]
        covers = [(path.parent.name, found) for path in files if (found := _span_of(path))]
        return files + [file.path for file in waiting if not _is_covered(file, covers)]

    def list_table(self) -> list[Path]:
        """Returns the files of the table, also those that people have put there."""
        found = [*self.folder.glob("*.parquet"), *self.folder.glob(f"{DAY}*/*.parquet")]
        return sorted(path for path in found if not path.name.startswith(_HIDDEN))

    def list_waiting(self) -> list[WaitingFile]:
        """Returns the files that wait, in the order of their batches."""
        found = []
        for path in self.aside.glob("*.waiting"):
            if match := _WAITS.fullmatch(path.name):
                found.append(WaitingFile(path, match["life"], int(match["number"]), match["day"]))
        return sorted(found, key=lambda file: (file.life, file.number, file.day))

    # --- writing --------------------------------------------------------------------------------

    def begin(self, batch: str) -> Path:
        """Returns where to write a batch; the days are put behind it."""
        self.aside.mkdir(parents=True, exist_ok=True)
        return self.aside / f"{batch}-{secrets.token_hex(4)}"

    def has(self, batch: str) -> bool:
        """Returns whether a batch is in a table that was written batch by batch."""
        return (self.folder / f"{batch}.parquet").exists()

    def keep(self, batch: str, written: dict[str, str]) -> None:
        """Has the files of a batch, by their days, wait; a batch may be written again."""
        for day, path in written.items():
            os.replace(path, self.aside / f"{batch}~{day}.waiting")
        sync_folder(self.aside)

    def publish(self, span: BatchSpan, merge: Merge) -> None:
        """Puts what waits of some batches into the table; whoever crashed here before goes on."""
        waiting: dict[Path, list[WaitingFile]] = {}
        for file in self.list_waiting():
            if file.life == span.life and span.first <= file.number < span.end:
                waiting.setdefault(self._place(file.day), []).append(file)
        for place, files in waiting.items():
            if not (place / span.name).exists():
                self._put(place / span.name, [str(file.path) for file in files], merge)
            for file in files:
                file.path.unlink(missing_ok=True)

    def list_left(self, now: BatchSpan) -> list[BatchSpan]:
        """Returns what earlier lives of the same pipeline have left waiting."""
        pipeline, lives = now.life.rpartition("-")[0], dict[str, list[int]]()
        for file in self.list_waiting():
            if file.life != now.life and file.life.rpartition("-")[0] == pipeline:
                lives.setdefault(file.life, []).append(file.number)
        return [BatchSpan(life, min(all_of), max(all_of) + 1) for life, all_of in lives.items()]

    def _place(self, day: str) -> Path:
        is_flat = any(self.folder.glob("*.parquet")) and not any(self.folder.glob(f"{DAY}*"))
        return self.folder if is_flat else self.folder / f"{DAY}{day}"

    def _put(self, target: Path, files: Sequence[str], merge: Merge) -> None:
        aside = Path(f"{self.begin(target.stem)}.part")
        try:
            merge(files, str(aside))
            target.parent.mkdir(exist_ok=True)
            # A link never replaces a file: one that is there has the same rows, all of them.
            with contextlib.suppress(FileExistsError):
                _link(aside, target)
            sync_folder(target.parent)
        finally:
            aside.unlink(missing_ok=True)

    def clean(self, life: str) -> None:
        """Deletes what a crash has left half written."""
        for path in self.aside.glob("*.part"):
            if path.name.startswith(life):
                path.unlink(missing_ok=True)

    # --- expiry ---------------------------------------------------------------------------------

    def expire(self, pipeline: str, before: datetime) -> None:
        """Deletes the files of a pipeline all of whose rows ended before a time."""
        own = re.compile(rf"{re.escape(pipeline)}-[0-9a-f]+-\d{{8}}(-\d{{8}})?\.parquet")
        for path in self.list_table():
            if own.fullmatch(path.name) and _end_of(path) <= before:
                path.unlink(missing_ok=True)
        for folder in self.folder.glob(f"{DAY}*"):
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()


def local_folder(path: str) -> Path | None:
    """Returns the folder of a path if it is one of this machine."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else path).absolute()


def day_of(path: Path) -> date | None:
    """Returns the day on which all rows of a file ended, if its name or its folder says so."""
    waits = _WAITS.fullmatch(path.name)
    with contextlib.suppress(ValueError):
        return date.fromisoformat(waits["day"] if waits else path.parent.name.removeprefix(DAY))
    return None


def _span_of(path: Path) -> re.Match[str] | None:
    return _COVERS.fullmatch(path.name)


def _is_covered(file: WaitingFile, covers: Sequence[tuple[str, re.Match[str]]]) -> bool:
    return any(
        found["life"] == file.life
        and int(found["first"]) <= file.number <= int(found["last"])
        and (not folder.startswith(DAY) or folder == f"{DAY}{file.day}")
        for folder, found in covers
    )


def _end_of(path: Path) -> datetime:
    """Returns a time before which all rows of a file have ended: the end of its day, if any."""
    day = day_of(path)
    if day is None:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return datetime.combine(day, datetime.min.time(), UTC) + timedelta(days=1)


def _link(aside: Path, target: Path) -> None:
    try:
        os.link(aside, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.rename(aside, target)


def sync_folder(folder: Path) -> None:
    """Has the names in a folder be on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
