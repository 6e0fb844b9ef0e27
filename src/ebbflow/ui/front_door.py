"""The page itself: its files, and the door for those who have the token."""

from __future__ import annotations

from ebbflow.ui.guard import PageGuard
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest
from ebbflow.ui.site import PageRoute
from ebbflow.ui.static_files import read_file
from ebbflow.web.exchange import Exchange
from ebbflow.web.refusal import Refusal

_HTML = "text/html; charset=utf-8"
_NOT_KEPT = {"cache-control": "no-store"}
# Not a redirect: a browser that came from elsewhere would not send the new cookie along.
_ENTER = b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">Go on</a>'
_ASK = b"""<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>Ebbflow</title><h1>Ebbflow</h1><form action="/"><p>%b</p>
<label>Token <input name="token" type="password" autofocus autocomplete="current-password"></label>
<button>Open</button></form></html>"""


class FrontDoor:
    """Answers with the files of the page."""

    def __init__(self, guard: PageGuard) -> None:
        self._guard = guard

    @property
    def routes(self) -> list[PageRoute]:
        """The paths of this part."""
        return [
            PageRoute("GET", "/", self._open_page, open=True),
            PageRoute("GET", "/favicon.ico", self._icon, open=True),
            PageRoute("GET", "/static/{path...}", self._file),
        ]

    async def _open_page(self, request: PageRequest, exchange: Exchange) -> None:
        token = request.text("token")
        if token is not None and (cookie := self._guard.make_cookie(token)):
            headers = {**_NOT_KEPT, "set-cookie": cookie}
            PageReply(_ENTER, 200, _HTML, headers).send(exchange)
            return
        try:
            self._guard.check_token(request.head)
        except Refusal:
            words = b"This page needs a token." if token is None else b"This token is wrong."
            PageReply(_ASK % words, 401, _HTML).send(exchange)
            return
        read_file(["index.html"], _known(request)).send(exchange)

    async def _icon(self, request: PageRequest, exchange: Exchange) -> None:
        read_file(["icon.svg"], _known(request)).send(exchange)

    async def _file(self, request: PageRequest, exchange: Exchange) -> None:
        read_file(request.path["path"].split("/"), _known(request)).send(exchange)


def _known(request: PageRequest) -> bytes:
    return request.header("if-none-match").encode("latin-1")
