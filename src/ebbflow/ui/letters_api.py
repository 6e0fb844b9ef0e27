"""The part of the API about dead letters: search, open, export, replay and purge them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from ebbflow.deadletters import DeadLetters, LetterFilter, StoredLetter, describe_letter
from ebbflow.domain.errors import EbbflowError
from ebbflow.engine.causes import MOST_SHOWN
from ebbflow.ui.jobs import Jobs, Progress
from ebbflow.ui.letter_choice import (
    read_choice,
    read_edit,
    read_filter,
    read_flag,
    read_order,
    read_rate,
)
from ebbflow.ui.letter_readers import LetterReaders
from ebbflow.ui.pipelines import Pipelines
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest, read_number
from ebbflow.ui.site import PageRoute
from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal

T = TypeVar("T")

Chosen = LetterFilter | Sequence[int]
"""Letters that match a filter, or their numbers."""

_PAGE = 50
_LARGEST_PAGE = 1_000
_LARGEST_NUMBER = 10**15 - 1
_EXPORTED_AT_A_TIME = 200
_LINES = "application/x-ndjson"


class LettersApi:
    """Answers questions about dead letters."""

    def __init__(self, pipelines: Pipelines, jobs: Jobs) -> None:
        self._pipelines = pipelines
        self._jobs = jobs
        self._readers = LetterReaders()

    @property
    def routes(self) -> list[PageRoute]:
        """The paths of this part."""
        letters = "/api/pipelines/{pipeline}/dead-letters"
        return [
            PageRoute("GET", letters, self._search),
            PageRoute("GET", f"{letters}/counts", self._count),
            PageRoute("GET", f"{letters}/export", self._export),
            PageRoute("POST", f"{letters}/replay", self._replay),
            PageRoute("POST", f"{letters}/purge", self._purge),
            PageRoute("GET", f"{letters}/jobs/{{job}}", self._show_job),
            PageRoute("POST", f"{letters}/jobs/{{job}}/stop", self._stop_job),
            PageRoute("GET", f"{letters}/{{number}}", self._show),
        ]

    # --- finding --------------------------------------------------------------------------------

    async def _search(self, request: PageRequest, exchange: Exchange) -> None:
        chosen, newest = read_filter(request.query), read_order(request.query)
        after = request.number("after", 0, _LARGEST_NUMBER)
        limit = max(1, request.number("limit", _PAGE, _LARGEST_PAGE))
        page = await self._ask(
            request, lambda letters: letters.search(chosen, after, limit, newest)
        )
        entries = [describe(stored, whole=False) for stored in page.letters]
        answer = {"letters": entries, "next": page.next, "total": page.total}
        PageReply.of(answer).send(exchange)

    async def _count(self, request: PageRequest, exchange: Exchange) -> None:
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
        PageReply.of(answer).send(exchange)

    async def _show(self, request: PageRequest, exchange: Exchange) -> None:
        number = read_number(request.path["number"], "the number", _LARGEST_NUMBER)
        stored = await self._ask(request, partial(_find, number=number))
        PageReply.of(describe(stored, whole=True)).send(exchange)

    async def _export(self, request: PageRequest, exchange: Exchange) -> None:
        """Sends all that match, line by line; a client that reads slowly holds no thread."""
        chosen = read_filter(request.query)
        pipeline = request.pipeline
        await self._pipelines.check(pipeline)
        lines = await self._pipelines.work(lambda link: _lines(DeadLetters(link, pipeline), chosen))
        piece = await self._pipelines.work(lambda link: next(lines, b""))
        name = f'attachment; filename="{pipeline}-dead-letters.jsonl"'
        headers = {"content-disposition": name, "cache-control": "no-store"}
        exchange.begin(200, headers, _LINES)
        while piece:
            await exchange.send(piece)
            piece = await self._pipelines.work(lambda link: next(lines, b""))
        exchange.end()

    async def _ask(
        self, request: PageRequest, question: Callable[[DeadLetters], T], purpose: str = ""
    ) -> T:
        """Has a question answered that reads letters and changes none."""
        pipeline = request.pipeline
        await self._pipelines.check(pipeline)
        return await self._pipelines.work(
            lambda link: self._readers.use(link, pipeline, purpose, question)
        )

    # --- changing -------------------------------------------------------------------------------

    async def _replay(self, request: PageRequest, exchange: Exchange) -> None:
        body = request.body
        chosen, edit, rate = read_choice(body), read_edit(body), read_rate(body)
        dry_run = read_flag(body, "dry_run")

        def work(letters: DeadLetters, progress: Progress) -> dict[str, Any]:
            bounded = _bound(letters, chosen) if dry_run else chosen
            result = letters.replay(
                bounded,
                transform=edit,
                rate=rate,
                dry_run=dry_run,
                progress=lambda so_far: progress({"sent": so_far.sent, "purged": so_far.purged}),
            )
            facts = {"sent": result.sent, "purged": result.purged, "stayed": {**result.stayed}}
            return facts | _tell_bound(bounded)

        await self._begin_job(request, exchange, work)

    async def _purge(self, request: PageRequest, exchange: Exchange) -> None:
        chosen, dry_run = read_choice(request.body), read_flag(request.body, "dry_run")

        def work(letters: DeadLetters, progress: Progress) -> dict[str, Any]:
            if not dry_run:
                return {"purged": letters.purge(chosen)}
            bounded = _bound(letters, chosen)
            if not isinstance(bounded, LetterFilter):
                return {"purged": len(letters.get(*bounded))}
            return {"purged": _count_matching(letters, bounded, progress)} | _tell_bound(bounded)

        await self._begin_job(request, exchange, work)

    async def _begin_job(
        self,
        request: PageRequest,
        exchange: Exchange,
        work: Callable[[DeadLetters, Progress], dict[str, Any]],
    ) -> None:
        pipeline = request.pipeline
        await self._pipelines.check(pipeline)
        link = await self._pipelines.work(lambda link: link)
        reply = await self._jobs.run(
            pipeline, lambda progress: work(DeadLetters(link, pipeline), progress)
        )
        reply.send(exchange)

    async def _show_job(self, request: PageRequest, exchange: Exchange) -> None:
        job = self._jobs.find(request.pipeline, request.path["job"])
        PageReply.of(job.describe()).send(exchange)

    async def _stop_job(self, request: PageRequest, exchange: Exchange) -> None:
        job = self._jobs.find(request.pipeline, request.path["job"])
        job.stop.set()
        PageReply.of(job.describe()).send(exchange)


def describe(stored: StoredLetter, whole: bool) -> dict[str, Any]:
    """Returns a letter for the page: its value is ``{"text": …}`` or ``{"base64": …}``."""
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
            next_step="It was replayed or purged; look for its message by its id.",
        ) from None
    return stored


def _lines(letters: DeadLetters, chosen: LetterFilter) -> Iterator[bytes]:
    """Yields the letters as lines of JSON, some at a time; nothing is read before the first."""
    matching = letters.list(chosen)
    while some := list(islice(matching, _EXPORTED_AT_A_TIME)):
        lines = [json.dumps(describe_letter(stored, whole=True)) for stored in some]
        yield ("\n".join(lines) + "\n").encode()


def _bound(letters: DeadLetters, chosen: Chosen) -> Chosen:
    """Returns the choice without letters that come from now on.

    Whoever then does what was tried changes exactly the letters that were counted.
    """
    if not isinstance(chosen, LetterFilter):
        return chosen
    return replace(chosen, up_to=letters.last_number(chosen))


def _tell_bound(chosen: Chosen) -> dict[str, Any]:
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
