"""The book of requests: which are open, which have ended, and with what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from ebbflow.buffers.feed import Spot
from ebbflow.connectors.http.request import Envelope
from ebbflow.connectors.serving.served_request import ServedAnswer, ServedRequest
from ebbflow.nats.link import Link

TakeAnswer = Callable[[str, ServedAnswer], None]
"""Gets the key of a request (``answer_key``) and an answer of it, as it has been stored."""


class AnswerSource(Protocol):
    """The store as the book reads it, on the link's loop.

    A store that nobody can follow never calls ``take``: its answers are read when a request ends.
    """

    async def follow(self, take: TakeAnswer) -> None:
        """Calls ``take`` with each answer that is stored from now on, until it is closed."""

    async def get(self, request: str) -> list[ServedAnswer]:
        """Returns the answers of a request so far, in the order of their results."""

    async def close(self) -> None:
        """Follows no more."""


class RequestBook:
    """The requests of one serving source. Everything happens on the link's loop.

    ``ack_wait`` is how many seconds a caller waits to hear that its request is stored.
    """

    def __init__(self, link: Link, spot: Spot, answers: AnswerSource, ack_wait: float) -> None:
        raise NotImplementedError

    async def open(self) -> None:
        """Reads what is open from earlier runs, and follows what becomes of requests."""
        raise NotImplementedError

    async def close(self) -> None:
        """Writes down how far it is and follows no more; open requests stay open."""
        raise NotImplementedError

    async def submit(self, envelope: Envelope, body: bytes) -> None:
        """Accepts a request: it is durable when this returns.

        ``Refusal`` with 409 for an id that is known, 429, 503 or 413 when it is not accepted.
        """
        raise NotImplementedError

    async def ask(self, envelope: Envelope, body: bytes, seconds: float) -> ServedRequest:
        """Accepts a request and returns it when it has ended: ``submit`` and ``wait`` in one.

        It is the cheaper way, because answers are kept as they come. ``TimeoutError`` when it was
        accepted and has not ended in time; ``Refusal`` when it was not accepted.
        """
        raise NotImplementedError

    async def wait(self, id: str, seconds: float) -> ServedRequest:
        """Returns a request with its answers when it has ended; ``TimeoutError`` after a while.

        ``KeyError`` for an id that nobody knows.
        """
        raise NotImplementedError

    async def find(self, id: str) -> ServedRequest | None:
        """Returns a request, with its answers if it is completed; none if nobody knows it."""
        raise NotImplementedError

    async def status(self, id: str) -> ServedRequest | None:
        """Returns a request without its answers; none if nobody knows it."""
        raise NotImplementedError

    def watch(self, id: str) -> AsyncIterator[ServedAnswer | ServedRequest]:
        """Yields answers as they come, those that are there first, and last the ended request.

        ``KeyError``, at the first step, for an id that nobody knows.
        """
        raise NotImplementedError
