"""What a request to the API says, checked; whatever is wrong with it is a ``Refusal`` with 400.

Names of pipelines and vertices become parts of NATS subjects, so only names are taken for names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from ebbflow.web.connection import RequestHead
from ebbflow.web.refusal import Refusal

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"\d{1,15}")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request: the names in its path, the parameters of its address, and its body from JSON."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    head: RequestHead

    def with_body(self, body: Mapping[str, Any]) -> PageRequest:
        """Returns the same request with its body."""
        return replace(self, body=body)

    def header(self, name: str) -> str:
        """Returns the first header of this name, which is in lower case; empty if there is none."""
        wanted = name.encode()
        values = (text for key, text in self.head.headers if key == wanted)
        return next(values, b"").decode("latin-1")

    @property
    def pipeline(self) -> str:
        """The pipeline that it is about."""
        return read_name(self.path["pipeline"], "pipeline")

    def text(self, name: str) -> str | None:
        """Returns a parameter of the address; ``None`` if it is missing or empty."""
        return self.query.get(name) or None

    def vertex(self) -> str | None:
        """Returns the vertex that the address names, if it does."""
        text = self.text("vertex")
        return None if text is None else read_name(text, "vertex")

    def number(self, name: str, default: int, most: int) -> int:
        """Returns a parameter that is a number from 0 to ``most``."""
        text = self.text(name)
        return default if text is None else read_number(text, name, most)

    def time(self, name: str) -> datetime | None:
        """Returns a parameter that is a time in ISO 8601; without a zone it is UTC."""
        text = self.text(name)
        return None if text is None else read_time(text, name)


def read_name(text: str, what: str) -> str:
    """Returns a name of a pipeline or vertex; 404 for what cannot be one."""
    if _NAME.fullmatch(text) is None:
        raise Refusal(404, f"there is no {what} {text[:80]!r}")
    return text


def read_number(text: str, name: str, most: int) -> int:
    """Returns a whole number from 0 to ``most``."""
    if _NUMBER.fullmatch(text) is None or int(text) > most:
        raise Refusal(400, f"{name} must be a whole number from 0 to {most}")
    return int(text)


def read_time(text: str, name: str) -> datetime:
    """Returns a time in UTC."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refusal(400, f"{name} must be a time such as 2026-01-31T12:00:00Z") from None


def split_path(target: bytes) -> list[str]:
    """Returns the parts of a path, each decoded: a part may have a slash that was written %2F."""
    try:
        parts = target.partition(b"?")[0].split(b"/")[1:]
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise Refusal(400, "the path is not UTF-8") from None


def read_body(body: bytes) -> dict[str, Any]:
    """Returns a body that is a JSON object; an empty one is an object without fields."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
        # A half of a surrogate pair is text for JSON, and for nobody else.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


def read_form(body: bytes) -> dict[str, Any]:
    """Returns the fields of a form that a browser has sent."""
    return dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True))
