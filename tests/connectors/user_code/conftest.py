"""A queue of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connectors.user_code.queue import QueueFile


@pytest.fixture
def queue(tmp_path: Path) -> QueueFile:
    return QueueFile(tmp_path / "queue.db")
