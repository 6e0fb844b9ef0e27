"""The examples of the testing guide, run for real: the other tests of the docs start no Spark."""

from __future__ import annotations

import pytest

from ebbflow.testing import SOURCE_RULES
from tests.docs.pages import PAGES

pytestmark = pytest.mark.slow

GUIDE = next(page for page in PAGES if page.path.name == "testing.md" and "guides" in str(page))


def example_with(name):
    """The names that are defined by the guide's block with this function or class."""
    (text,) = (b.text for b in GUIDE.blocks if b.language == "python" and f" {name}(" in b.text)
    names = {"__name__": "guide"}
    exec(compile(text, str(GUIDE), "exec"), names)
    return names


def test_the_guides_pipeline_between_memory_connectors_runs(tmp_path):
    example_with("test_orders_arrive")["test_orders_arrive"](tmp_path)


def test_the_source_of_the_guide_keeps_the_first_rules(tmp_path):
    names = example_with("test_the_spool")
    (tmp_path / "spool").mkdir()
    under_test = names["SpoolUnderTest"](tmp_path / "spool")
    with names["SourceTrial"](under_test, tmp_path / "state") as trial:
        for rule in SOURCE_RULES[:5]:
            names["test_the_spool"](rule, trial)
