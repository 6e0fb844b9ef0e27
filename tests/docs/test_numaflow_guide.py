"""The guide for users of Numaflow: its pipeline runs with its bindings and its code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ebbflow.builders import Builder
from ebbflow.spec.lint import load
from ebbflow.testing.background_run import BackgroundRun, until
from tests.docs.pages import PAGES

GUIDE = next(page for page in PAGES if page.path.name == "numaflow.md")


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_orders_of_the_guide_are_priced_and_stored(tmp_path: Path) -> None:
    for block in GUIDE.blocks:
        if block.name is not None:
            (tmp_path / block.name).write_text(block.text, encoding="utf-8")
    lines: list[str] = []
    orders = cast(Builder, SimpleNamespace(spec=load(tmp_path / "orders.yaml")))
    live = BackgroundRun(orders, tmp_path / "state", lines.append, search=tmp_path)
    try:
        assert until(lambda: live.status["price"].counts.dropped > 0, 120), live.failures
        assert until(lambda: "stored 6 EUR on delivery 2" in lines, 120), live.failures
    finally:
        summary = live.stop()
    wanted = {f"stored {number * 3} EUR on delivery 1" for number in (0, 1, 3, 4, 5, 6, 7, 8)}
    assert wanted <= set(lines)
    assert "stored 27 EUR on delivery 1" not in lines
    assert summary.vertices["out"].redelivered == 1
