"""The reference, and what guides take from it, is what the code says now."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
MADE: dict[Path, str] = GENERATE["written"]()
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_page_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run: python docs/generate.py"


def test_nothing_else_is_in_the_reference() -> None:
    assert set(REFERENCE.iterdir()) == {path for path in MADE if path.parent == REFERENCE}
