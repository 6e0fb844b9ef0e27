"""The reference, and what guides copy from it, match the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, generator

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    """The pages as they should be; generated here, so that not every worker does it to collect."""
    pages: dict[Path, str] = generator()["written"]()
    return pages


@pytest.mark.parametrize("path", sorted(REFERENCE.iterdir()), ids=lambda path: path.name)
def test_a_page_of_the_reference_is_up_to_date(path: Path, generated: dict[Path, str]) -> None:
    assert path.read_text(encoding="utf-8") == generated.get(path), "run: python docs/generate.py"


def test_parts_of_guides_that_come_from_the_code_are_up_to_date(generated: dict[Path, str]) -> None:
    guides = {path: text for path, text in generated.items() if path.parent != REFERENCE}
    stale = [str(path) for path, text in guides.items() if path.read_text("utf-8") != text]
    assert guides
    assert stale == [], "run: python docs/generate.py"


def test_the_reference_has_every_generated_page_and_no_other(generated: dict[Path, str]) -> None:
    assert set(REFERENCE.iterdir()) == {path for path in generated if path.parent == REFERENCE}
