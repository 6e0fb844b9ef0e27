"""``python scripts/wording.py``: counts the words of the docs, and finds wording to avoid.

The sections are those of ``docs/README.md``, which lists every page once. It searches the pages
without their code, the help of every command, the texts of the source (errors, log lines,
descriptions) and the docstrings of public names. It skips tables that are generated from the code,
because the code is the place to change them. ``tests/docs/test_wording.py`` fails if it finds any.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "README.md"

PHRASES = {
    # "There is no X" is plain English; "this is no X" is not.
    "is no X": r"(?<!\bthere )\b(?:is|are|was|were) no\b(?! (?:longer|more|less|later)\b)",
    "nobody, somebody": r"\b(?:no|some)body\b",
    "so many": r"\bso many\b",
    "goes on": r"\b(?:goes|go|went|going) on\b",
    "of yours, of its own": r"\bof yours\b|"
    r"\ba [\w -]{2,30} of (?:its|their|your|our) own\b(?! \w+ing)",
    "stands for": r"\bstands?(?: in)? for\b",
    "beside": r"\bbeside\b",
    "in hand": r"\bin hand\b",
    "is away": r"\b(?:is|are|was|were) away\b",
    "letter": r"(?<!dead )(?<!dead-)(?<!case )(?<!small )(?<!with a )"
    r"\b(?-i:letters?)\b(?!,? (?:and )?digits)",
    "what was told": r"\b(?:the|those|these|what is|what was) (?:told|heard|given)\b(?! \w)",
    "anew": r"\banew\b",
    "what became of it": r"\bbec(?:a|o)mes? of\b",
}
_CODE = re.compile(
    r"^```.*?^```$|`[^`\n]*`|(?<=\])\([^)\s]*\)|<a id=.*?>", re.MULTILINE | re.DOTALL
)
_MADE = re.compile(r"<!-- (images|fields[^>]*|figures[^>]*) -->.*?<!-- end of \w+ -->", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def prose(text: str) -> str:
    """Returns a page without its code and without generated tables."""
    return _CODE.sub(" ", _MADE.sub(" ", text))


def words(text: str) -> int:
    """Returns how many words a page has, including code and tables."""
    return len(text.split())


def found(text: str) -> list[str]:
    """Returns the phrases to avoid in a page, each with its context."""
    plain = " ".join(prose(text).split())
    hits = (
        (name, match)
        for name, pattern in PHRASES.items()
        for match in re.finditer(pattern, plain, re.IGNORECASE)
    )
    return [f"{name}: …{plain[max(0, m.start() - 40) : m.end() + 25]}…" for name, m in hits]


def sections() -> dict[str, list[Path]]:
    """Returns the pages of each section of the docs, as listed in the index."""
    parts = re.split(r"^## (.+)$", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        title: [(INDEX.parent / link).resolve() for link in _LINK.findall(body)]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def pages() -> list[Path]:
    """Returns the pages of README and docs, except decisions and the reference."""
    docs = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", *docs, *sorted((ROOT / "docs" / "guides").rglob("*.md"))]


def made_pages() -> list[Path]:
    """Returns the pages of the reference, whose text comes from docstrings and models."""
    return sorted((ROOT / "docs" / "reference").glob("*.md"))


def records() -> list[Path]:
    """Returns the pages for contributors."""
    return [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]


def texts(source: Path) -> Iterator[tuple[int, str]]:
    """Yields the strings of a module that have spaces, with their lines, except docstrings."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
            skipped |= {id(value) for value in node.values}
            yield node.lineno, "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and id(node) not in skipped and " " in str(node.value):
            yield node.lineno, str(node.value)


def sources() -> list[Path]:
    """Returns the modules of the package."""
    return sorted((ROOT / "src").rglob("*.py"))


def helps() -> Iterator[tuple[str, str]]:
    """Yields every command with its help, including the help of its options."""
    from typer.main import get_command

    from ebbflow.cli.main import app

    waiting = [("ebbflow", get_command(app))]
    while waiting:
        name, command = waiting.pop()
        options = [getattr(option, "help", None) or "" for option in command.params]
        yield name, "\n".join([command.help or "", *options])
        inside = getattr(command, "commands", {})
        waiting += [(f"{name} {word}", child) for word, child in inside.items()]


def main() -> None:
    """Prints the word counts and the phrases to avoid."""
    for title, listed in sections().items():
        texts_of = [page.read_text(encoding="utf-8") for page in listed]
        total, plain = sum(map(words, texts_of)), sum(words(prose(text)) for text in texts_of)
        print(f"{total:7,}  {title}, {len(listed)} pages; {plain:,} without code and made tables")
    for page in [*pages(), *made_pages(), *records()]:
        for hit in found(page.read_text(encoding="utf-8")):
            print(f"{page.relative_to(ROOT)}: {hit}")
    for name, text in helps():
        for hit in found(text):
            print(f"{name} --help: {hit}")
    for source in sources():
        for line, text in texts(source):
            for hit in found(text):
                print(f"{source.relative_to(ROOT)}:{line}: {hit}")


if __name__ == "__main__":
    main()
