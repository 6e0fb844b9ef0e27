"""The endpoints as an OpenAPI document, and as a page that a browser shows without a network."""

from __future__ import annotations

import html
from typing import Any

from ebbflow.connectors.listening.posts import KEYS, TIME
from ebbflow.connectors.serving.replies import BINARY, LENGTH, LENGTHS, TEXT, ServingSettings
from ebbflow.domain.version import __version__
from ebbflow.web.exchange import JSON

Tree = dict[str, Any]

_ID = {"type": "string", "pattern": "^[\\x21-\\x2e\\x30-\\x7e]{1,256}$"}
_ANY = {JSON: {}, TEXT: {"schema": {"type": "string"}}, BINARY: {}}
_EVENT = {
    "type": "object",
    "properties": {
        "event": {"enum": ["message", "base64", "done", "error"]},
        "id": {"type": "string"},
        "data": {"type": "string"},
    },
    "required": ["data"],
}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}
_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_PROBLEMS = {
    "400": "the request is wrong",
    "401": "the bearer token is missing or wrong",
    "403": "pages of other sites may not send requests here",
    "404": "nobody knows a request of this id",
    "408": "there is no answer yet; the request goes on and can be fetched by its id",
    "409": "a request of this id was taken before",
    "413": "the body is too large",
    "429": "too many requests at the moment, or too many wrong tokens; retry after Retry-After",
    "500": "the request has failed; vertex, reason and error say where and why",
    "503": "the run cannot take requests at the moment; come again",
}


def make_document(pipeline: str, settings: ServingSettings) -> Tree:
    """Returns the OpenAPI document of a serving source."""
    document: Tree = {
        "openapi": "3.1.0",
        "info": {
            "title": pipeline,
            "version": __version__,
            "description": "Ask a pipeline, and get its results.",
        },
        "servers": [{"url": "/"}],
        "paths": _paths(settings),
        "components": {"schemas": _schemas()},
    }
    if settings.token is not None:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"token": scheme}
        document["security"] = [{"token": []}]
    return document


def _paths(settings: ServingSettings) -> Tree:
    header = settings.id_header
    asking = [
        _parameter("header", header, _ID, "the id of the request; without it the server makes one"),
        _parameter("header", KEYS, {"type": "string"}, "the keys of the message, with commas"),
        _parameter("header", TIME, {"type": "string", "pattern": "^[0-9]{1,14}$"},
                   "the time of the event, in milliseconds since 1970"),
    ]  # fmt: skip
    wait = _parameter(
        "query",
        "timeout",
        {"type": "number", "exclusiveMinimum": 0},
        f"how many seconds to wait; {settings.request_timeout:g} at most, but for streams",
    )
    by_id = _parameter("query", "id", _ID, "the id of the request", required=True)
    last = _parameter(
        "header", "Last-Event-ID", {"type": "string", "pattern": "^[0-9]{0,18}$"},
        "the id of the last event that was seen",
    )  # fmt: skip
    results = _answer("the results, one behind the other", _ANY, header, LENGTH, LENGTHS)
    nothing = _answer("the request is complete and has no results", None, header, LENGTH)
    events = _answer("an event for each result; then done or error", _EVENTS, header)
    accepted = _answer("the request is stored", _json("Accepted"), header)
    refused = ("400", "408", "409", "413", "429", "503")
    body: Tree = {"content": {BINARY: {}, JSON: {}, "text/plain": {}}}
    return {
        "/v1/process/sync": {
            "post": {
                "operationId": "sync",
                "summary": "Ask, and wait for the results",
                "parameters": [*asking, wait],
                "requestBody": body,
                "responses": {
                    "200": results,
                    "204": nothing,
                    **_problems(settings, *refused, "500"),
                },
            }
        },
        "/v1/process/async": {
            "post": {
                "operationId": "async",
                "summary": "Ask, and fetch the results later",
                "parameters": asking,
                "requestBody": body,
                "responses": {"200": accepted, **_problems(settings, *refused)},
            }
        },
        "/v1/process/fetch": {
            "get": {
                "operationId": "fetch",
                "summary": "Fetch the results of a request",
                "description": f"While it is in progress there is no header {LENGTH}.",
                "parameters": [by_id],
                "responses": {
                    "200": results,
                    "204": nothing,
                    **_problems(settings, "400", "404", "429", "500", "503"),
                },
            }
        },
        "/v1/process/status": {
            "get": {
                "operationId": "status",
                "summary": "See how far a request is, and its way",
                "parameters": [by_id],
                "responses": {
                    "200": _answer("how far it is", _json("Status"), header),
                    **_problems(settings, "400", "404", "429", "503"),
                },
            }
        },
        "/v1/process/sse": {
            "get": {
                "operationId": "follow",
                "summary": "Follow a request: results as they come",
                "parameters": [by_id, wait, last],
                "responses": {
                    "200": events,
                    **_problems(settings, "400", "404", "429", "503"),
                },
            },
            "post": {
                "operationId": "stream",
                "summary": "Ask, and get results as they come",
                "parameters": [*asking, wait],
                "requestBody": body,
                "responses": {"200": events, **_problems(settings, *refused)},
            },
        },
        "/health": _check("health", "Whether requests are taken in"),
        "/ready": _check("ready", "Whether the run works on requests"),
    }


def _parameter(
    place: str, name: str, schema: Tree, description: str, required: bool = False
) -> Tree:
    return {
        "name": name,
        "in": place,
        "required": required,
        "schema": schema,
        "description": description,
    }


def _answer(description: str, content: Tree | None, *headers: str) -> Tree:
    answer: Tree = {"description": description}
    if content is not None:
        answer["content"] = content
    if headers:
        answer["headers"] = {name: {"schema": {"type": "string"}} for name in headers}
    return answer


def _json(name: str) -> Tree:
    return {JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _problems(settings: ServingSettings, *codes: str) -> Tree:
    strangers = "403" if settings.token is None else "401"
    content = {JSON: {"schema": _PROBLEM}}
    return {code: _answer(_PROBLEMS[code], content) for code in sorted((strangers, *codes))}


def _check(name: str, summary: str) -> Tree:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    reason = {"type": "object", "properties": {"reason": {"type": "string"}}}
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "security": [],
            "responses": {
                "200": _answer("yes", {JSON: {"schema": schema}}),
                "503": _answer("no, and why", {JSON: {"schema": reason}}),
            },
        }
    }


def _schemas() -> Tree:
    text, maybe = {"type": "string"}, {"type": ["string", "null"]}
    moment = {"type": "string", "format": "date-time"}
    told = {"message": text, "code": {"type": "integer"}, "timestamp": moment, "id": text}
    failure: Tree = {"vertex": text, "reason": text, "error": maybe}
    step = {
        "vertex": text,
        "message": text,
        "deliveries": {"type": "integer", "minimum": 1},
        "outcome": text,
        "at": moment,
    }
    why: Tree = {"reason": text, "error": text, "due": moment}
    status = {
        "id": text,
        "status": {"enum": ["in-progress", "completed", "failed"]},
        "accepted": moment,
        "ended": maybe,
        "failure": {"anyOf": [_object(failure), {"type": "null"}]},
        "answer_count": {"type": "integer"},
        "steps": {"type": "array", "items": _object(step, **why)},
        "steps_left_out": {"type": "integer"},
    }
    beside = {"id": told.pop("id")}
    problem = _object(told, **beside, **failure)
    accepted = _object(told | beside)
    return {"Accepted": accepted, "Status": _object(status), "Problem": problem}


def _object(required: Tree, **optional: Tree) -> Tree:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required)}


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
