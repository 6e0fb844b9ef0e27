"""Which pages may ask from a browser: those of the origins in the spec, and no others.

Without a token a request from any other page is refused: a page that somebody happens to look at
could otherwise send requests to a server on the same machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from ebbflow.connectors.http.request import KEYS, TIME
from ebbflow.connectors.serving.results import LENGTH, LENGTHS
from ebbflow.web.connection import RequestHead
from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal

_REMEMBERED = 600


class Cors:
    """The rule for pages. ``trusts`` if whoever asks has a token to show."""

    def __init__(self, origins: Collection[str], id_header: str, trusts: bool) -> None:
        self._origins = frozenset(origins)
        self._trusts = trusts
        self._is_public = "*" in self._origins
        self._shown = f"access-control-expose-headers: {id_header}, {LENGTH}, {LENGTHS}\r\n"
        self._taken = ", ".join(
            ("authorization", "content-type", id_header, KEYS, TIME, "last-event-id")
        )

    @property
    def is_on(self) -> bool:
        """True if there are origins whose pages may ask."""
        return bool(self._origins)

    def check(self, head: RequestHead, exchange: Exchange) -> None:
        """Gives the answer the headers that a page needs; ``Refusal`` if it must not ask."""
        origin = _find(head, b"origin")
        if origin is None:
            return
        if self._is_public or origin in self._origins:
            allowed = "*" if self._is_public else origin
            lines = f"access-control-allow-origin: {allowed}\r\nvary: origin\r\n{self._shown}"
            exchange.lines += lines.encode()
        elif not self._trusts and urlsplit(origin).netloc != _find(head, b"host"):
            raise Refusal(403, "pages of this origin may not ask here; name it in cors")

    def answer_preflight(self, exchange: Exchange, methods: Sequence[bytes]) -> None:
        """Tells a browser what a page may send."""
        names = b", ".join(methods).decode()
        headers = {
            "access-control-allow-methods": names,
            "access-control-allow-headers": self._taken,
            "access-control-max-age": str(_REMEMBERED),
        }
        exchange.respond(204, b"", headers)


def _find(head: RequestHead, name: bytes) -> str | None:
    return next((text.decode("latin-1") for key, text in head.headers if key == name), None)
