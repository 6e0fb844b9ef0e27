"""Every promise in the docs is checked by a test, and every marker names a promise."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES, Page, generator


@pytest.fixture(scope="module")
def promised() -> list[str]:
    slugs: list[str] = generator()["promised"]()
    return slugs


@pytest.fixture(scope="module")
def marked() -> dict[str, list[tuple[str, str]]]:
    """The tests of each slug; all test files are read for them."""
    tests: dict[str, list[tuple[str, str]]] = generator()["marked_tests"]()
    return tests


def test_every_promise_has_a_unique_slug(promised) -> None:
    assert len(promised) > 20
    assert len(promised) == len(set(promised))


def test_every_promise_is_checked_by_a_test(promised, marked) -> None:
    unchecked = [slug for slug in promised if not marked.get(slug)]
    assert unchecked == [], 'no test has the marker @pytest.mark.guarantee("slug")'


def test_every_marker_names_a_promise(promised, marked) -> None:
    unknown = {slug: tests for slug, tests in marked.items() if slug not in promised}
    assert unknown == {}, "no page has the anchor of the promise that these tests check"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_promise_links_to_its_own_tests(page: Page) -> None:
    _, *parts = page.text.split('<a id="') if page.path in generator()["promise_pages"]() else [""]
    for slug, _, text in (part.partition('"') for part in parts):
        assert f"reference/guarantee-tests.md#{slug})" in text, slug
