"""What both kinds of client can do, as conversations that each carries out in its own way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ebbflow.client import asking
from ebbflow.client.asking import TimeLimit
from ebbflow.client.events import Following
from ebbflow.client.replies import Answered, RequestStatus
from ebbflow.client.requests import NamedRequest, ServerPaths
from ebbflow.client.steps import Conversation
from ebbflow.domain.durations import Duration, milliseconds


class LookOptions(TypedDict, total=False):
    """How to look for a request: ``timeout`` in place of the client's."""

    timeout: Duration


class AskOptions(LookOptions, total=False):
    """What a request has beside its value.

    ``id`` names it; left out, the client makes an id. ``keys`` and ``headers`` are those that its
    message has in the pipeline.
    """

    id: str | None
    keys: Iterable[str]
    headers: Mapping[str, str]


class Conversations:
    """Begins conversations with one server."""

    def __init__(self, id_header: str, timeout: Duration) -> None:
        self._at = ServerPaths(id_header)
        self._timeout = timeout

    def ask(self, value: Any, options: AskOptions) -> Conversation[Answered]:
        """Begins to hand in a request and to wait for its answer."""
        return asking.ask(self._at, _request_of(value, options), self._limit(options))

    def submit(self, value: Any, options: AskOptions) -> Conversation[str]:
        """Begins to hand in a request."""
        return asking.submit(self._at, _request_of(value, options), self._limit(options))

    def fetch(self, id: str, options: LookOptions) -> Conversation[Answered | None]:
        """Begins to look for an answer."""
        return asking.fetch(self._at, id, self._limit(options))

    def wait(self, id: str, options: LookOptions) -> Conversation[Answered]:
        """Begins to wait for an answer."""
        return asking.await_answer(self._at, id, self._limit(options))

    def status(self, id: str, options: LookOptions) -> Conversation[RequestStatus]:
        """Begins to look how far a request is."""
        return asking.status(self._at, id, self._limit(options))

    def follow(self, value: Any, options: AskOptions) -> Conversation[None]:
        """Begins to hand in a request and to follow it, or to follow the one that has the id."""
        request = None if value is None else _request_of(value, options)
        id = options.get("id") if request is None else request.id
        if id is None:
            raise ValueError("give a value to ask with, or the id of a request to follow")
        seconds, limit = self._seconds(options), self._limit(options)
        return Following(self._at, id, request, limit, seconds).follow()

    def _limit(self, options: LookOptions) -> TimeLimit:
        return TimeLimit.of(self._seconds(options), time.monotonic)

    def _seconds(self, options: LookOptions) -> float:
        return milliseconds(options.get("timeout", self._timeout)) / 1_000


def _request_of(value: Any, options: AskOptions) -> NamedRequest:
    headers = options.get("headers", {})
    return NamedRequest.of(value, options.get("id"), options.get("keys", ()), headers)
