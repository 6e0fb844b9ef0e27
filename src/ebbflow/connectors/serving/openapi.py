"""The endpoints as an OpenAPI document, and as a page that a browser shows without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ebbflow.connectors.serving.replies import ServingSettings
from ebbflow.domain.version import __version__

Tree = dict[str, Any]

_DOCUMENT = Path(__file__).with_name("openapi.yaml")


def make_document(pipeline: str, settings: ServingSettings) -> Tree:
    """Returns the OpenAPI document of a serving source."""
    words = {
        "{pipeline}": pipeline,
        "{version}": __version__,
        "{id_header}": settings.id_header,
        "{timeout}": f"{settings.request_timeout:g}",
    }
    document: Tree = _fill(yaml.safe_load(_DOCUMENT.read_text("utf-8")), words)
    del document["parts"]
    impossible = "401" if settings.token is None else "403"
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop(impossible, None)
    if settings.token is not None:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"token": scheme}
        document["security"] = [{"token": []}]
    return document


def _fill(tree: Any, words: Mapping[str, str]) -> Any:
    """Returns a copy of a tree with the words that its texts leave open."""
    if isinstance(tree, dict):
        return {_fill(name, words): _fill(part, words) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_fill(part, words) for part in tree]
    if not isinstance(tree, str) or "{" not in tree:
        return tree
    name = next((name for name in words if name in tree), None)
    return tree if name is None else tree.replace(name, words[name])


# --- the page -----------------------------------------------------------------------------------

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}code,pre{font-family:ui-monospace,monospace;font-size:.9em}"
    "h2{margin-top:2.5rem}table{border-collapse:collapse}td,th{text-align:left;"
    "vertical-align:top;padding:.2rem 1rem .2rem 0}b{font-weight:600}"
)


def make_page(document: Tree) -> str:
    """Returns a page about the document, in HTML, that needs nothing else."""
    title = html.escape(document["info"]["title"])
    sections = [
        _describe_operation(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style><h1>{title}</h1>"
        f"<p>{html.escape(document['info']['description'])} "
        'For programs: <a href="/openapi.json">openapi.json</a>.</p>' + "".join(sections)
    )


def _describe_operation(path: str, method: str, operation: Tree) -> str:
    rows = [
        (parameter["name"], f"{parameter['in']}: {parameter['description']}")
        for parameter in operation.get("parameters", ())
    ]
    answers = [(code, answer["description"]) for code, answer in operation["responses"].items()]
    return (
        f"<h2>{html.escape(operation['summary'])}</h2>"
        f"<p><code><b>{method.upper()}</b> {html.escape(path)}</code></p>"
        f"<p>{html.escape(operation.get('description', ''))}</p>"
        f"{_describe_rows('Says', rows)}{_describe_rows('Answers', answers)}"
    )


def _describe_rows(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f'<table><tr><th colspan="2">{title}</th></tr>{cells}</table>'
