"""The reference is what the code says now."""

from __future__ import annotations

import runpy

import pytest

from tests.docs.pages import ROOT

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
MADE: dict[str, str] = GENERATE["pages"]()


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_up_to_date(name: str) -> None:
    stored = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert stored == MADE[name], "run: python docs/generate.py"


def test_nothing_else_is_there() -> None:
    assert {path.name for path in (ROOT / "docs" / "reference").iterdir()} == set(MADE)
