"""The API of the web UI for dead letters: search, open, export, replay and purge them.

A reader for each pipeline is kept between requests, so that dead letters are not read again. An
invalid request or edit is a 400.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ebbflow.deadletters import DeadLetters, LetterEdit, LetterFilter, StoredLetter
from ebbflow.deadletters.filters import describe_letter
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.causes import MOST_SHOWN
from ebbflow.nats.link import Link
from ebbflow.ui.app import (
    Stream,
    UiRoute,
    number_of,
    parse_iso_time,
    pipeline_of,
    read_name,
    read_number,
)
from ebbflow.ui.jobs import Jobs, Progress
from ebbflow.ui.pipelines import Pipelines
from ebbflow.web.app import HttpReply
from ebbflow.web.exchange import Exchange, HttpRequest, Refusal

T = TypeVar("T")

Chosen = LetterFilter | Sequence[int]
"""A filter, or the numbers of dead letters."""

_TEXTS = ("reason", "cause", "error", "text", "id", "key", "header")
_TIMES = ("since", "until")
_FIELDS = frozenset((*_TEXTS, *_TIMES, "vertex", "up_to"))
_MOST_NUMBERS = 100_000
_PAGE = 50
_LARGEST_PAGE = 1_000
_LARGEST_NUMBER = 10**15 - 1
_EXPORTED_AT_A_TIME = 200
_LINES = "application/x-ndjson"


class LettersApi:
    """The API for dead letters."""

    def __init__(self, pipelines: Pipelines, jobs: Jobs) -> None:
        self._pipelines = pipelines
        self._jobs = jobs
        self._readers = LetterReaders()

    @property
    def routes(self) -> list[UiRoute]:
        """The paths of this part."""
        letters = "/api/pipelines/{pipeline}/dead-letters"
        return [
            UiRoute("GET", letters, self._search),
            UiRoute("GET", f"{letters}/counts", self._count),
            UiRoute("GET", f"{letters}/export", self._export),
            UiRoute("POST", f"{letters}/replay", self._replay),
            UiRoute("POST", f"{letters}/purge", self._purge),
            UiRoute("GET", f"{letters}/jobs/{{job}}", self._show_job),
            UiRoute("POST", f"{letters}/jobs/{{job}}/stop", self._stop_job),
            UiRoute("GET", f"{letters}/{{number}}", self._show),
        ]

    # --- finding --------------------------------------------------------------------------------

    async def _search(self, request: HttpRequest) -> HttpReply:
        chosen, newest = read_filter(request.query), read_order(request.query)
        after = number_of(request, "after", 0, _LARGEST_NUMBER)
        limit = max(1, number_of(request, "limit", _PAGE, _LARGEST_PAGE))
        page = await self._ask(
            request, lambda letters: letters.search(chosen, after, limit, newest)
        )
        entries = [letter_to_json(stored, whole=False) for stored in page.letters]
        answer = {"letters": entries, "next": page.next, "total": page.total}
        return HttpReply.json(answer)

    async def _count(self, request: HttpRequest) -> HttpReply:
        causes = await self._ask(request, DeadLetters.causes, "causes")
        vertices: Counter[str] = Counter()
        for (vertex, _), number in causes.items():
            vertices[vertex] += number
        entries = [
            {"vertex": vertex, "text": text, "reason": text, "count": number}
            for (vertex, text), number in [*causes.items()][:MOST_SHOWN]
        ]
        more = [*causes.values()][MOST_SHOWN:]
        answer = {
            "total": vertices.total(),
            "vertices": vertices,
            "causes": entries,
            "more": {"causes": len(more), "count": sum(more)},
        }
        return HttpReply.json(answer)

    async def _show(self, request: HttpRequest) -> HttpReply:
        number = read_number(request.names["number"], "the number", _LARGEST_NUMBER)
        stored = await self._ask(request, partial(_find, number=number))
        return HttpReply.json(letter_to_json(stored, whole=True))

    async def _export(self, request: HttpRequest) -> Stream:
        """Streams all matching dead letters; a client that reads slowly blocks no thread."""
        chosen, pipeline = read_filter(request.query), pipeline_of(request)
        lines = await self._pipelines.ask(
            request, lambda link, _: _lines(DeadLetters(link, pipeline), chosen)
        )
        piece = await self._pipelines.work(lambda link: next(lines, b""))
        name = f'attachment; filename="{pipeline}-dead-letters.jsonl"'
        headers = {"content-disposition": name, "cache-control": "no-store"}

        async def stream(exchange: Exchange) -> None:
            exchange.begin(200, headers, _LINES)
            some = piece
            while some:
                await exchange.send(some)
                some = await self._pipelines.work(lambda link: next(lines, b""))
            exchange.end()

        return stream

    async def _ask(
        self, request: HttpRequest, question: Callable[[DeadLetters], T], purpose: str = ""
    ) -> T:
        """Calls a function that reads dead letters and changes nothing."""
        return await self._pipelines.ask(
            request,
            lambda link, names: self._readers.use(link, names.pipeline, purpose, question),
        )

    # --- changing -------------------------------------------------------------------------------

    async def _replay(self, request: HttpRequest) -> HttpReply:
        body = request.json()
        chosen, edit, rate = read_choice(body), read_edit(body), read_rate(body)
        dry_run = read_flag(body, "dry_run")

        def work(letters: DeadLetters, progress: Progress) -> dict[str, Any]:
            bounded = _bound(letters, chosen) if dry_run else chosen
            result = letters.replay(
                bounded,
                transform=edit,
                rate=rate,
                dry_run=dry_run,
                progress=lambda now: progress({"sent": now.sent, "purged": now.purged}),
            )
            facts = {"sent": result.sent, "purged": result.purged, "stayed": {**result.stayed}}
            return facts | _bound_to_json(bounded)

        return await self._begin_job(request, work)

    async def _purge(self, request: HttpRequest) -> HttpReply:
        body = request.json()
        chosen, dry_run = read_choice(body), read_flag(body, "dry_run")

        def work(letters: DeadLetters, progress: Progress) -> dict[str, Any]:
            if not dry_run:
                return {"purged": letters.purge(chosen)}
            bounded = _bound(letters, chosen)
            if not isinstance(bounded, LetterFilter):
                return {"purged": len(letters.get(*bounded))}
            return {"purged": _count_matching(letters, bounded, progress)} | _bound_to_json(bounded)

        return await self._begin_job(request, work)

    async def _begin_job(
        self,
        request: HttpRequest,
        work: Callable[[DeadLetters, Progress], dict[str, Any]],
    ) -> HttpReply:
        link, names = await self._pipelines.ask(request, lambda *found: found)
        pipeline = names.pipeline
        return await self._jobs.run(
            pipeline, lambda progress: work(DeadLetters(link, pipeline), progress)
        )

    async def _show_job(self, request: HttpRequest) -> HttpReply:
        job = self._jobs.find(pipeline_of(request), request.names["job"])
        return HttpReply.json(job.describe())

    async def _stop_job(self, request: HttpRequest) -> HttpReply:
        job = self._jobs.find(pipeline_of(request), request.names["job"])
        job.stop.set()
        return HttpReply.json(job.describe())


def letter_to_json(stored: StoredLetter, whole: bool) -> dict[str, Any]:
    """Returns a dead letter as JSON fields; its value is ``{"text": …}`` or ``{"base64": …}``."""
    facts = describe_letter(stored, whole)
    if isinstance(facts.get("value"), str):
        facts["value"] = {"text": facts["value"]}
    return facts


def _find(letters: DeadLetters, number: int) -> StoredLetter:
    try:
        (stored,) = letters.get(number)
    except EbbflowError:
        raise Refusal(
            404,
            f"there is no dead letter {number}",
            next_step="It was replayed or purged; search for its message by id.",
        ) from None
    return stored


def _lines(letters: DeadLetters, chosen: LetterFilter) -> Iterator[bytes]:
    """Yields dead letters as lines of JSON, many at a time; nothing is read before the first."""
    matching = letters.list(chosen)
    while some := list(islice(matching, _EXPORTED_AT_A_TIME)):
        lines = [json.dumps(describe_letter(stored, whole=True)) for stored in some]
        yield ("\n".join(lines) + "\n").encode()


def _bound(letters: DeadLetters, chosen: Chosen) -> Chosen:
    """Returns the choice without dead letters that arrive later.

    After a dry run the user then changes exactly the dead letters that were counted.
    """
    if not isinstance(chosen, LetterFilter):
        return chosen
    return replace(chosen, up_to=letters.last_number(chosen))


def _bound_to_json(chosen: Chosen) -> dict[str, Any]:
    return {"up_to": chosen.up_to} if isinstance(chosen, LetterFilter) else {}


def _count_matching(letters: DeadLetters, chosen: LetterFilter, progress: Progress) -> int:
    if chosen.is_everything:
        counts = letters.counts()
        if letters.last_number() == chosen.up_to:
            return counts.get(chosen.vertex, 0) if chosen.vertex else sum(counts.values())
    number = 0
    for _ in letters.list(chosen):
        number += 1
        if number % _EXPORTED_AT_A_TIME == 0:
            progress({"matching": number})
    return number


# --- readers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LetterReader:
    """Reads the dead letters of one pipeline over one connection, on one thread at a time."""

    link: Link
    letters: DeadLetters
    lock: threading.Lock = field(default_factory=threading.Lock)


class LetterReaders:
    """A reader for each pipeline and purpose. Used by any thread."""

    def __init__(self) -> None:
        self._readers: dict[tuple[str, str], LetterReader] = {}
        self._finding = threading.Lock()

    def use(
        self, link: Link, pipeline: str, purpose: str, question: Callable[[DeadLetters], T]
    ) -> T:
        """Calls a function with a reader; calls with the same purpose take turns."""
        reader = self._find(link, pipeline, purpose)
        with reader.lock:
            return question(reader.letters)

    def _find(self, link: Link, pipeline: str, purpose: str) -> LetterReader:
        with self._finding:
            reader = self._readers.get((pipeline, purpose))
            if reader is None or reader.link is not link:
                reader = LetterReader(link, DeadLetters(link, pipeline))
                self._readers[pipeline, purpose] = reader
            return reader


# --- reading requests -----------------------------------------------------------------------------


def read_filter(fields: Mapping[str, Any]) -> LetterFilter:
    """Returns the filter in query parameters or in a JSON object.

    Ignores empty and unknown fields.
    """
    texts = {name: _text(fields[name], name) for name in _FIELDS & fields.keys()}
    chosen: dict[str, Any] = {name: texts.get(name) for name in _TEXTS}
    chosen |= {name: parse_iso_time(texts[name], name) for name in _TIMES if texts.get(name)}
    if texts.get("vertex"):
        chosen["vertex"] = read_name(str(texts["vertex"]), "vertex")
    if texts.get("up_to"):
        chosen["up_to"] = read_number(str(texts["up_to"]), "up_to", _LARGEST_NUMBER)
    return LetterFilter(**chosen)


def read_order(fields: Mapping[str, Any]) -> bool:
    """Returns whether to list the newest dead letter first, which is the default."""
    order = fields.get("order") or "newest"
    if order not in ("newest", "oldest"):
        raise Refusal(400, "order must be newest or oldest")
    return bool(order == "newest")


def _text(value: object, name: str) -> str:
    """Returns a field as text; empty if it is missing."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Refusal(400, f"{name} must be text")
    return str(value)


def read_choice(body: Mapping[str, Any]) -> LetterFilter | Sequence[int]:
    """Returns the dead letters that a body chooses by ``numbers`` or by a ``filter``."""
    if ("numbers" in body) == ("filter" in body):
        raise Refusal(
            400,
            "name the dead letters by numbers, or by a filter",
            next_step='Send {"numbers": [1, 2]}, or {"filter": {}} for all of them.',
        )
    if "filter" in body:
        return _read_filter_object(body["filter"])
    numbers = body["numbers"]
    is_list = isinstance(numbers, list) and 0 < len(numbers) <= _MOST_NUMBERS
    if not is_list or not all(map(_is_number, numbers)):
        raise Refusal(400, f"numbers must be a list of 1 to {_MOST_NUMBERS:,} whole numbers")
    return sorted(set(numbers))


def _read_filter_object(value: object) -> LetterFilter:
    """Refuses unknown fields: a misspelt one would choose more dead letters than intended."""
    if not isinstance(value, dict):
        raise Refusal(400, "filter must be an object")
    if unknown := value.keys() - _FIELDS:
        known = ", ".join(sorted(_FIELDS))
        raise Refusal(
            400, f"a filter has no {sorted(unknown)[0][:40]!r}", next_step=f"Use {known}."
        )
    return read_filter(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST_NUMBER


def read_edit(body: Mapping[str, Any]) -> LetterEdit | None:
    """Returns the edit in a body: a value, keys, headers; ``None`` if there is none."""
    if not body.keys() & {"value", "keys", "headers"}:
        return None
    numbers = body.get("numbers")
    if not isinstance(numbers, list) or len(numbers) != 1:
        raise Refusal(400, "only one dead letter can be edited at a time; name its number")
    return LetterEdit(
        value=_read_value(body["value"]) if body.get("value") is not None else None,
        keys=_read_keys(body["keys"]) if body.get("keys") is not None else None,
        headers=_read_headers(body["headers"]) if body.get("headers") is not None else None,
    )


def _read_value(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"]).encode()
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, "the value is not base64") from None
    raise Refusal(400, 'the value must be text, {"text": …} or {"base64": …}')


def _read_keys(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(key, str) for key in value):
        return value
    raise Refusal(400, "keys must be a list of texts")


def _read_headers(value: object) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise Refusal(400, "headers must be an object of texts")


def read_rate(body: Mapping[str, Any]) -> float | None:
    """Returns the rate in a body, in dead letters per second; ``None`` if there is none."""
    rate = body.get("rate")
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e9:
        raise Refusal(400, "rate must be a number of dead letters a second, more than 0")
    return float(rate)


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Returns a Boolean field; false if it is missing."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} must be true or false")
    return value
