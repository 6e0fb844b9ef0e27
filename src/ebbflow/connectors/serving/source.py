"""The serving source: each POST is a request, and its answers are returned to the caller.

A feed: a request is stored in the vertex's buffer before its caller is told that it is accepted,
and the book of requests tracks its outcome. The endpoints are on the pipeline's web server, next to
those of its http sources. An OpenAPI document describes them, and so does a self-contained web
page.
"""

from __future__ import annotations

import gc
import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from ebbflow.connectors.listening.feed import ListeningFeed
from ebbflow.connectors.listening.posts import KEYS, TIME
from ebbflow.connectors.serving.answer_stores import AnswerSource, BucketAnswers, OwnStoreAnswers
from ebbflow.connectors.serving.book import RequestBook
from ebbflow.connectors.serving.replies import (
    LENGTH,
    LENGTHS,
    Endpoints,
    ServingSettings,
    describe_problem,
)
from ebbflow.domain import __version__
from ebbflow.nats.link import Link
from ebbflow.streams.answer_bucket import AnswerBucket
from ebbflow.streams.feed import FeedContext, StorePlan
from ebbflow.web.app import BodilessRequest, HttpReply, Route, reply_always
from ebbflow.web.exchange import Exchange, HttpRequest, Opener, Receiver, unavailable
from ebbflow.web.guard import Cors


class ServingFeed(ListeningFeed):
    """One vertex that accepts requests and answers them."""

    kind, purpose = "serving", "answers requests"
    advice = "name their origin in cors, or give the source a token"

    def __init__(self, settings: ServingSettings, context: FeedContext) -> None:
        super().__init__(
            context,
            "/v1/process",
            settings.endpoints,
            settings.token,
            settings.read_timeout,
            settings.cors,
        )
        self._settings = settings
        self._cors = Cors(
            settings.cors,
            ("authorization", "content-type", settings.id_header, KEYS, TIME, "last-event-id"),
            (settings.id_header, LENGTH, LENGTHS),
        )
        self._book: RequestBook | None = None
        self._endpoints: Endpoints
        self._has_frozen = False

    @property
    @override
    def failure(self) -> str | None:
        if not self._stopping and self._book is None:
            return "the run is starting"
        return super().failure or (self._book.failure if self._book else None)

    @override
    def stop(self) -> None:
        super().stop()
        if self._has_frozen:
            gc.unfreeze()
            self._has_frozen = False

    async def _prepare(self, link: Link) -> None:
        book = await self._open_book(link)
        self._endpoints = Endpoints(book, self._settings, self._context.largest)
        self._book = book
        self._freeze()

    async def _open_book(self, link: Link) -> RequestBook:
        answers = open_answer_source(link, self._context.store)
        book = RequestBook(link, self._context, answers, self._settings.ack_wait)
        await book.open()
        return book

    def _freeze(self) -> None:
        """Makes the garbage collector ignore all imported objects.

        Scanning them would delay callers by a tenth of a second. If the program that this run is
        part of has frozen objects already, it decides when to unfreeze them.
        """
        self._has_frozen = not gc.get_freeze_count()
        if self._has_frozen:
            gc.collect()
            gc.freeze()

    async def _end(self) -> None:
        if self._book is not None:
            await self._endpoints.end(self.grace)
            await self._book.close()

    def _routes(self) -> list[Route]:
        document = make_document(self._context.pipeline, self._settings)
        page = HttpReply(
            make_page(document).encode(), 200, "text/html; charset=utf-8", PAGE_HEADERS
        )
        routes = [
            *self._endpoints.routes,
            Route((b"GET",), "/openapi.json", reply_always(HttpReply.json(document))),
            Route((b"GET",), "/docs", reply_always(page)),
        ]
        guarded = [replace(route, open=partial(self._open, route.open)) for route in routes]
        preflights = self._list_preflights(routes) if self._cors.is_on else []
        return [replace(route, error_body=describe_problem) for route in [*guarded, *preflights]]

    def _list_preflights(self, routes: Sequence[Route]) -> list[Route]:
        methods: dict[str, tuple[bytes, ...]] = {}
        for route in routes:
            methods[route.path] = (*methods.get(route.path, ()), *route.methods)
        return [
            Route((b"OPTIONS",), path, partial(self._answer_preflight, taken))
            for path, taken in methods.items()
        ]

    def _open(self, open: Opener, request: HttpRequest, exchange: Exchange) -> Receiver:
        """Returns the receiver of a request's body; ``Refusal`` if it is not allowed."""
        self._guard.check_site(request)
        self._cors.allow(request, exchange)
        self._guard.check_token(request)
        if failure := self.failure:
            raise unavailable(failure)
        return open(request, exchange)

    def _answer_preflight(
        self, methods: tuple[bytes, ...], request: HttpRequest, exchange: Exchange
    ) -> Receiver:
        """Answers a browser's preflight request, which cannot carry the token."""
        self._guard.check_site(request)
        self._cors.allow(request, exchange)
        self._cors.answer_preflight(exchange, (*methods, b"OPTIONS"))
        return BodilessRequest(lambda: None)


def open_answer_source(link: Link, store: StorePlan | None) -> AnswerSource:
    """Returns the store of a pipeline's answers, for reading."""
    assert store is not None, "a pipeline that serves has a store"
    if store.code is None:
        return BucketAnswers(AnswerBucket(link.client, store.bucket))
    return OwnStoreAnswers(store.code, store.search, store.env)


# --- the OpenAPI document ------------------------------------------------------------------------

Tree = dict[str, Any]

_DOCUMENT = Path(__file__).with_name("openapi.yaml")


def make_document(pipeline: str, settings: ServingSettings) -> Tree:
    """Returns the OpenAPI document of a serving source."""
    values = {
        "{pipeline}": pipeline,
        "{version}": __version__,
        "{id_header}": settings.id_header,
        "{timeout}": f"{settings.request_timeout:g}",
    }
    document: Tree = _fill(yaml.safe_load(_DOCUMENT.read_text("utf-8")), values)
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


def _fill(tree: Any, values: Mapping[str, str]) -> Any:
    """Returns a copy of a tree with the placeholders in its texts filled in."""
    if isinstance(tree, dict):
        return {_fill(name, values): _fill(part, values) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_fill(part, values) for part in tree]
    if not isinstance(tree, str) or "{" not in tree:
        return tree
    name = next((name for name in values if name in tree), None)
    return tree if name is None else tree.replace(name, values[name])


# --- the page about the document ----------------------------------------------------------------

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
    """Returns a self-contained HTML page about the document."""
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
