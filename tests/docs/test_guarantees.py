"""Every promise in the docs is checked by a test, and every marker names a promise."""

from __future__ import annotations

import runpy

import pytest

from tests.docs.pages import PAGES, ROOT, Page

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))
PROMISED: list[str] = GENERATE["promised"]()
TESTS: dict[str, list[tuple[str, str]]] = GENERATE["marked_tests"]()


def test_every_promise_has_a_slug_of_its_own() -> None:
    assert len(PROMISED) > 20
    assert len(PROMISED) == len(set(PROMISED))


@pytest.mark.parametrize("slug", PROMISED)
def test_every_promise_is_checked_by_a_test(slug: str) -> None:
    assert TESTS.get(slug), f'no test has the marker @pytest.mark.guarantee("{slug}")'


@pytest.mark.parametrize("slug", sorted(TESTS))
def test_every_marker_names_a_promise(slug: str) -> None:
    named = [name for name, _ in TESTS[slug]]
    assert slug in PROMISED, f"no page has the anchor of the promise that {named} check"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_promise_links_to_its_own_tests(page: Page) -> None:
    _, *parts = page.text.split('<a id="') if page.path in GENERATE["promise_pages"]() else [""]
    for slug, _, text in (part.partition('"') for part in parts):
        assert f"reference/guarantee-tests.md#{slug})" in text, slug
