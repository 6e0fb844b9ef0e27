"""The docs use plain words, list every page once, and quote the code correctly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import wording
from tests.docs.pages import ROOT

LONGEST_README = 130


@pytest.mark.parametrize("page", wording.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_plain_words(page: Path) -> None:
    assert wording.found(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "page",
    [*wording.made_pages(), *wording.records()],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_reference_and_the_changelog_use_plain_words(page: Path) -> None:
    assert wording.found(page.read_text(encoding="utf-8")) == [], "change the docstring, then docs"


def test_errors_log_lines_and_descriptions_use_plain_words() -> None:
    hits = [
        f"{source.relative_to(ROOT)}:{line}: {hit}"
        for source in wording.sources()
        for line, text in wording.texts(source)
        for hit in wording.found(text)
    ]
    assert hits == []


def test_the_web_ui_and_the_dashboard_use_plain_words() -> None:
    shown = [*(ROOT / "src").rglob("*.js"), *(ROOT / "src").rglob("*.html")]
    shown += [*(ROOT / "src").rglob("*.yaml"), *(ROOT / "deploy").rglob("*.*")]
    assert len(shown) > 10
    hits = [(path.name, hit) for path in shown for hit in wording.found(path.read_text("utf-8"))]
    # The code of the web UI calls dead letters "letters", as the Python code does.
    assert [(name, hit) for name, hit in hits if not hit.startswith("letter:")] == []


def test_help_texts_use_plain_words() -> None:
    assert {name: hits for name, text in wording.helps() if (hits := wording.found(text))} == {}


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("That is no message.", ["is no X"]),
        ("There is no message, and it is no longer there.", []),
        ("Nobody waits; the run goes\non.", ["nobody, somebody", "goes on"]),
        (
            "A letter waits beside a folder of its own.",
            ["of yours, of its own", "beside", "letter"],
        ),
        ("A dead letter has letters and digits in its own folder.", []),
        ("`nobody` is a name.\n\n```text\nso many\n```\n", []),
    ],
)
def test_phrases_are_found_in_prose_and_not_in_code(text: str, hits: list[str]) -> None:
    assert [hit.partition(":")[0] for hit in wording.found(text)] == hits


def test_the_index_has_six_sections_and_lists_every_page_once() -> None:
    sections = wording.sections()
    assert list(sections) == ["Learn", "Build", "Operate", "Integrate", "Reference", "Explain"]
    listed = [page for pages in sections.values() for page in pages]
    assert len(set(listed)) == len(listed)
    pages = set(wording.pages()) - {ROOT / "README.md", wording.INDEX}
    index_of = {ROOT / "docs/reference/README.md", ROOT / "docs/decisions/README.md"}
    missing = [page.relative_to(ROOT / "docs") for page in (pages | index_of) - set(listed)]
    assert not missing, f"add a line to docs/README.md, the navigation, for: {missing}"
    assert set(listed) == pages | index_of


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_README


def test_troubleshooting_quotes_texts_that_are_in_the_code() -> None:
    guide = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE)
    quoted = [text for cell in first_cells for text in re.findall(r"`([^`…]+?) ?…?`", cell)]
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(quoted) > 15
    assert [text for text in quoted if text not in source] == []
