"""The reference, and what guides take from it, is what the code says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, generator

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    """The pages as they should be. Made here and not while tests are collected, by every worker."""
    pages: dict[Path, str] = generator()["written"]()
    return pages


@pytest.mark.parametrize("path", sorted(REFERENCE.iterdir()), ids=lambda path: path.name)
def test_the_page_is_up_to_date(path: Path, made: dict[Path, str]) -> None:
    assert path.read_text(encoding="utf-8") == made.get(path), "run: python docs/generate.py"


def test_what_guides_take_from_it_is_up_to_date(made: dict[Path, str]) -> None:
    guides = {path: text for path, text in made.items() if path.parent != REFERENCE}
    stale = [str(path) for path, text in guides.items() if path.read_text("utf-8") != text]
    assert guides
    assert stale == [], "run: python docs/generate.py"


def test_every_page_is_in_the_reference(made: dict[Path, str]) -> None:
    assert set(REFERENCE.iterdir()) == {path for path in made if path.parent == REFERENCE}
