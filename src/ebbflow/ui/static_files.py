"""The files of the page: they come with the package, and nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ebbflow.ui.reply import PageReply
from ebbflow.web.refusal import Refusal

FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


def read_file(parts: Sequence[str], known: bytes = b"") -> PageReply:
    """Returns a file of the page; 304 if its mark is one that the browser ``known``-s already."""
    path = _find(parts)
    body = path.read_bytes()
    mark = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    # A browser keeps them, and asks each time whether they are still the same.
    headers = {"cache-control": "no-cache", "etag": mark}
    if mark.encode() in known:
        return PageReply(b"", 304, _TYPES[path.suffix], headers)
    return PageReply(body, 200, _TYPES[path.suffix], headers)


def _find(parts: Sequence[str]) -> Path:
    """Returns the path; 404 for what is not a file of the page, whatever its name tries."""
    is_plain = all(part and not part.startswith(".") and "/" not in part for part in parts)
    path = FOLDER.joinpath(*parts) if is_plain and "\0" not in "".join(parts) else FOLDER
    if path.suffix not in _TYPES or not path.is_file():
        raise Refusal(404, "there is no such file")
    return path
