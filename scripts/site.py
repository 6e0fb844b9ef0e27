"""The hook of ``mkdocs.yml``, which adapts pages written for a Git forge to the site.

The navigation comes from the index ``docs/README.md``. Headings get the same anchors as on a forge,
links to files outside ``docs`` point to the forge, pictures outside ``docs`` are copied, and test
markers in code fences are removed.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+)\)", re.MULTILINE)
_FENCE = re.compile(r"^(```\w*)[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
_ELSEWHERE = "elsewhere"
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)


def navigation(index: str) -> list[dict[str, Any]]:
    """Returns the sections of the index, each with its pages."""
    parts = _SECTION.split(index)[1:]
    return [
        {title: [{name: page} for name, page in _ENTRY.findall(body)]}
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def on_config(config: Any) -> Any:
    """Sets the navigation from the index, with the pages of listed folders."""
    docs = Path(config["docs_dir"])
    config["nav"] = [{"Home": "README.md"}, *navigation((docs / "README.md").read_text("utf-8"))]
    for section in config["nav"][1:]:
        for pages in section.values():
            pages[:] = [_with_folder(docs, page) for page in pages]
    return config


def _with_folder(docs: Path, entry: dict[str, str]) -> dict[str, Any]:
    """Returns a page, or all pages of a folder if the index lists only its README."""
    ((name, page),) = entry.items()
    folder = PurePosixPath(page).parent
    if folder.as_posix() not in ("reference", "decisions"):
        return dict(entry)
    inside = sorted((docs / folder).glob("*.md"), key=lambda path: (path.name != "README.md", path))
    return {name: [(folder / path.name).as_posix() for path in inside]}


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pictures outside the docs that pages show."""
    docs = Path(config["docs_dir"])
    for path in sorted(docs.rglob("*.md")):
        for link in _PICTURE.findall(path.read_text("utf-8")):
            target = _target(path.parent.relative_to(docs).as_posix(), link)
            if not target.startswith("docs/") and not files.get_file_from_path(
                f"{_ELSEWHERE}/{target}"
            ):
                source = str(docs.parent / target)
                added = File.generated(config, f"{_ELSEWHERE}/{target}", abs_src_path=source)
                files.append(added)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Returns a page adapted to the site."""
    pieces, end = [], 0
    used: dict[str, int] = {}
    for fence in _FENCE.finditer(markdown):
        pieces += [_prose(markdown[end : fence.start()], page, config, used)]
        pieces += [fence[0].replace(fence[0].partition("\n")[0], fence[1], 1)]
        end = fence.end()
    return "".join([*pieces, _prose(markdown[end:], page, config, used)])


def _prose(text: str, page: Any, config: Any, used: dict[str, int]) -> str:
    text = _COMMENT.sub("\n", text)
    text = _HEADING.sub(lambda heading: _anchored(heading, used), text)
    folder = PurePosixPath(page.file.src_uri).parent.as_posix()
    text = _PICTURE.sub(lambda picture: _picture(picture, folder), text)
    return _LINK.sub(lambda link: _link(link, folder, config["extra"]["source"]), text)


def _target(folder: str, link: str) -> str:
    """Returns the target of a link in a folder of the docs, relative to the repository."""
    return normpath(f"docs/{folder}/{link}")


def _picture(picture: re.Match[str], folder: str) -> str:
    target = _target(folder, picture[1])
    if target.startswith("docs/"):
        return picture[0]
    return picture[0].replace(picture[1], relpath(f"{_ELSEWHERE}/{target}", folder))


def _anchored(heading: re.Match[str], used: dict[str, int]) -> str:
    slug = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
    used[slug] = used.get(slug, -1) + 1
    anchor = f"{slug}-{used[slug]}" if used[slug] else slug
    return f"{heading[0]} {{ #{anchor} }}"


def _link(link: re.Match[str], folder: str, source: str) -> str:
    """Returns a link, pointed to the forge if it leaves the docs."""
    target = _target(folder, link[2])
    if "://" in link[2] or target.startswith("docs/"):
        return link[0]
    return f"{link[1]}{source}/{target}{link[3] or ''})"
