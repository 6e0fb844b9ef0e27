"""Lint for tests: a text as a file next to user code, and its problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbflow.spec.lint import lint

NO_SIDE_INPUTS = "is not supported; have user code read such values itself, in its open()"
NO_RATE_LIMIT = "is not supported; bound what is worked on at a time with limits.concurrency"
NO_GROUP_BY = "is not supported; aggregate in a Spark job that reads what a jetstream sink writes"

HANDLERS = """
LIMIT = 3

def enrich(datum):
    return None

def first_look(datum):
    return None

class Reader:
    def read(self, limit, timeout):
        return []

class Queue(Reader):
    def ack(self, offsets):
        pass

class Store:
    def __call__(self, data):
        return []

    def put(self, id, payloads):
        pass

    def get(self, id):
        return []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with user code, next to which a pipeline is put."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


@pytest.fixture
def problems_of(folder: Path) -> Callable[[str], list[str]]:
    """Lints a text as a file and returns its problems: ``line:col: code message``."""

    def run(text: str) -> list[str]:
        file = folder / "pipeline.yaml"
        file.write_text(text)
        return [str(problem).removeprefix(f"{file}:") for problem in lint(file)]

    return run
