"""Disks that are full: small file systems in memory, which only root can mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_missing: list[str] = []


class SmallDisk:
    """A file system of a few megabytes, mounted at a folder."""

    def __init__(self, folder: Path, size: str) -> None:
        folder.mkdir()
        self.folder = folder
        _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))

    def enlarge(self, size: str) -> None:
        """Makes room."""
        _mount("-o", f"remount,size={size}", str(self.folder))

    def remove(self) -> None:
        """Removes it, even if something is still open there."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 24 MB; where none can be mounted the test is skipped, and the summary says so."""
    try:
        disk = SmallDisk(tmp_path / "disk", "24m")
    except (OSError, subprocess.CalledProcessError) as error:
        _missing.append(str(getattr(error, "stderr", "") or error).strip())
        pytest.skip(f"a full disk is not tested: {_missing[0]}")
    yield disk
    disk.remove()


def report_what_is_missing(reporter: Any) -> None:
    """Reports in the summary that no full disk was tested."""
    if _missing:
        reporter.section("A full disk was NOT tested", sep="!", yellow=True, bold=True)
        reporter.line(f"No small file system could be mounted: {_missing[0]}.")
