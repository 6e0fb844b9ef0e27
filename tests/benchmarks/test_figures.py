"""Figures are stored and read back, part by part, and documents show those of the last run."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figures, keep, read
from benchmarks.pages import NOT_YET, PAGES, RESULTS, ROOT, fill
from tests.benchmarks.test_goals import FIGURES, case


def test_stored_figures_are_read_back_unchanged(tmp_path):
    keep(FIGURES, tmp_path / "kept.json", machine={"cores": 2}, seed=7)

    assert read(tmp_path / "kept.json") == FIGURES
    assert read(tmp_path / "nothing.json") == Figures()


def test_measuring_a_part_again_replaces_only_its_own_figures():
    earlier = Figures(
        cases=[case("a", "", 1, job="sources"), case("b", "", 2, job="sinks")],
        starts=[5.0],
        taken={"sources": "monday", "sinks": "monday", "start": "monday"},
        left_out=["c"],
    )
    again = Figures(cases=[case("a", "", 3, job="sources")], taken={"sources": "tuesday"})

    both = again.over(earlier)

    assert [(one.name, one.rate) for one in both.cases] == [("b", 2), ("a", 3)]
    assert both.taken == {"sources": "tuesday", "sinks": "monday", "start": "monday"}
    assert (both.starts, both.left_out) == ([5.0], [])


@pytest.mark.parametrize("page", PAGES)
def test_documents_show_the_figures_of_the_last_run(page):
    text = (ROOT / page).read_text(encoding="utf-8")

    assert fill(text, read(RESULTS)) == text, "run: python -m benchmarks.pages"


@pytest.mark.parametrize("page", PAGES)
def test_every_table_of_a_document_can_be_filled_by_a_run(page):
    text = (ROOT / page).read_text(encoding="utf-8")

    assert NOT_YET not in fill(text, FIGURES)
