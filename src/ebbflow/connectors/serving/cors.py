"""What a browser has to know so that pages of the origins in the spec may ask, and read answers.

Without a token a request from any other page is refused before: see ``web/guard.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ebbflow.connectors.http.request import KEYS, TIME
from ebbflow.connectors.serving.results import LENGTH, LENGTHS
from ebbflow.web.connection import RequestHead
from ebbflow.web.exchange import Exchange
from ebbflow.web.guard import find_header

_REMEMBERED = 600


class Cors:
    """The rule for pages."""

    def __init__(self, origins: Collection[str], id_header: str) -> None:
        self._origins = frozenset(origins)
        self._is_public = "*" in self._origins
        self._shown = f"access-control-expose-headers: {id_header}, {LENGTH}, {LENGTHS}\r\n"
        self._taken = ", ".join(
            ("authorization", "content-type", id_header, KEYS, TIME, "last-event-id")
        )

    @property
    def is_on(self) -> bool:
        """True if there are origins whose pages may ask."""
        return bool(self._origins)

    def allow(self, head: RequestHead, exchange: Exchange) -> None:
        """Gives the answer the headers that a page of one of the origins needs."""
        origin = find_header(head, b"origin").decode("latin-1")
        if origin and (self._is_public or origin in self._origins):
            allowed = "*" if self._is_public else origin
            lines = f"access-control-allow-origin: {allowed}\r\nvary: origin\r\n{self._shown}"
            exchange.lines += lines.encode()

    def answer_preflight(self, exchange: Exchange, methods: Sequence[bytes]) -> None:
        """Tells a browser what a page may send."""
        names = b", ".join(methods).decode()
        headers = {
            "access-control-allow-methods": names,
            "access-control-allow-headers": self._taken,
            "access-control-max-age": str(_REMEMBERED),
        }
        exchange.respond(204, b"", headers)
