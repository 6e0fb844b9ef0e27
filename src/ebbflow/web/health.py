"""How a web server is, for those who watch it: without a token, and without a word of messages.

Only those who have the token, where there is one, hear what is wrong, as on the page: its words may
be those of an error.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbflow.web.body import BodilessRequest
from ebbflow.web.connection import Receiver, RequestHead
from ebbflow.web.exchange import Exchange, describe_reason
from ebbflow.web.refusal import Refusal

Look = Callable[[], str | None]
"""Returns what is wrong at the moment; ``None`` when all is well."""

Admit = Callable[[RequestHead], bool]
"""Returns whether whoever has sent a request may hear what is wrong."""


class HealthCheck:
    """The path of one question: 200 with a word of JSON, or 204 if it is ``silent``; else 503."""

    methods = (b"GET", b"HEAD")
    describe = staticmethod(describe_reason)
    failure = None

    def __init__(self, look: Look, admits: Admit, silent: bool = False) -> None:
        self._look = look
        self._admits = admits
        self._silent = silent

    def open(self, head: RequestHead, exchange: Exchange) -> Receiver:
        """Returns who answers it."""
        return BodilessRequest(lambda: self._answer(head, exchange))

    def _answer(self, head: RequestHead, exchange: Exchange) -> None:
        if (reason := self._look()) is not None:
            raise Refusal(503, reason if self._admits(head) else "unavailable")
        exchange.respond(*((204, b"") if self._silent else (200, b'{"status":"ok"}')))
