"""Links lead somewhere, and every promise in guarantees.md is checked by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page

GUARANTEES = Page(ROOT / "docs" / "guarantees.md")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings_that_exist(page: Page) -> None:
    for link in _LINK.findall(page.prose):
        if link.startswith("https://"):
            continue
        file, _, heading = link.partition("#")
        target = (page.path.parent / file).resolve() if file else page.path
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(path: Path) -> set[str]:
    """The names by which headings can be linked to."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_test_named_as_a_proof_exists() -> None:
    proofs = _TEST.findall(GUARANTEES.text)
    assert len(proofs) > 20
    for name, file in proofs:
        path = (GUARANTEES.path.parent / file).resolve()
        assert name in functions(path), f"{name} is not in {file}"


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_a_proof() -> None:
    promises = GUARANTEES.text.split("\n## ")[1:]
    without = [
        promise.partition("\n")[0]
        for promise in promises
        if not _TEST.search(promise) and not promise.startswith("What is not promised")
    ]
    assert without == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix != ".md" or not path.exists():
            continue
        seen.add(path)
        links = _LINK.findall(Page(path).prose)
        waiting += [(path.parent / link.partition("#")[0]).resolve() for link in links]
    assert {page.path for page in PAGES} - seen == set()
