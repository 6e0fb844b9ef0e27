"""Links lead to files and headings that exist, and every page can be reached."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


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
    """The names by which headings and anchors can be linked."""
    text = path.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    again = {f"{slug}-{slugs[:n].count(slug)}" for n, slug in enumerate(slugs)}
    return set(slugs) | again | set(_ANCHOR.findall(text))


def test_every_file_that_the_architecture_names_exists() -> None:
    text = Page(ROOT / "docs" / "architecture.md").text
    named = set(re.findall(r"\b(?:\w+/)*\w+\.py\b", text))
    assert len(named) > 20
    places = (ROOT, ROOT / "src" / "ebbflow")
    assert [name for name in sorted(named) if not any((p / name).exists() for p in places)] == []


def test_decisions_are_numbered_without_gaps_dated_and_listed_in_the_index_with_a_status() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("0*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for page in pages:
        title, _, status = page.read_text(encoding="utf-8").splitlines()[:3]
        assert f"- [{title.removeprefix('# ')}]({page.name})" in index
        assert re.match(r"\*Date: \d{4}-\d\d-\d\d\. Status: ", status), page.name


def test_packages_say_where_to_start_and_list_modules_that_exist() -> None:
    for path in (ROOT / "src" / "ebbflow").glob("*/**/__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        begin = re.search(r"Start\s+with\s+``([\w.]+)``", text)
        assert begin, path
        listed = [begin[1], *re.findall(r"^ *(\w+) {3,}\w", text, re.MULTILINE)]
        modules = {place.name for place in path.parent.iterdir()}
        for name in listed:
            assert {name, f"{name}.py", name.rpartition(".")[2]} & modules, (path, name)


def test_contributing_describes_every_folder_of_tests() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    described = re.findall(r"`tests/(\w+)`", Page(ROOT / "CONTRIBUTING.md").text)
    assert folders - set(described) == set()


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
