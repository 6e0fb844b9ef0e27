"""The page itself: its files, and the door for those who have the token."""

from __future__ import annotations

from ebbflow.ui.guard import PageGuard
from ebbflow.ui.reply import PageReply
from ebbflow.ui.request import PageRequest
from ebbflow.ui.site import PageRoute
from ebbflow.ui.static_files import read_file
from ebbflow.web.exchange import Exchange

_HTML = "text/html; charset=utf-8"
_NOT_KEPT = {"cache-control": "no-store"}
# Not a redirect: a browser that came from elsewhere would not send the new cookie along. The script
# replaces this address, which may have the token, in the browser's history.
_ENTER = b"""<!doctype html><script src="/enter.js"></script>
<noscript><meta http-equiv="refresh" content="0; url=/"></noscript><a href="/">Open the page</a>"""
_ASK = b"""<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">
<title>Ebbflow</title><h1>Ebbflow</h1><form action="/" method="post"><p>%b</p>
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
            PageRoute("POST", "/", self._log_in, open=True, is_form=True),
            PageRoute("GET", "/enter.js", self._script, open=True),
            PageRoute("GET", "/favicon.ico", self._icon, open=True),
            PageRoute("GET", "/static/{path...}", self._file),
        ]

    async def _open_page(self, request: PageRequest, exchange: Exchange) -> None:
        if token := request.text("token"):
            self._enter(token, request, exchange)
        elif self._guard.admits(request.head):
            read_file(["index.html"], _known(request)).send(exchange)
        else:
            _ask(b"This page needs a token.", exchange)

    async def _log_in(self, request: PageRequest, exchange: Exchange) -> None:
        self._enter(str(request.body.get("token", "")), request, exchange)

    def _enter(self, token: str, request: PageRequest, exchange: Exchange) -> None:
        """Gives whoever knows the token a cookie; the others may try again."""
        cookie = self._guard.make_cookie(token, request.head)
        if cookie or self._guard.admits(request.head):
            headers = {**_NOT_KEPT, **({"set-cookie": cookie} if cookie else {})}
            PageReply(_ENTER, 200, _HTML, headers).send(exchange)
        else:
            _ask(b"This token is wrong.", exchange)

    async def _script(self, request: PageRequest, exchange: Exchange) -> None:
        read_file(["enter.js"], _known(request)).send(exchange)

    async def _icon(self, request: PageRequest, exchange: Exchange) -> None:
        read_file(["icon.svg"], _known(request)).send(exchange)

    async def _file(self, request: PageRequest, exchange: Exchange) -> None:
        read_file(request.path["path"].split("/"), _known(request)).send(exchange)


def _ask(words: bytes, exchange: Exchange) -> None:
    PageReply(_ASK % words, 401, _HTML).send(exchange)


def _known(request: PageRequest) -> bytes:
    return request.header("if-none-match").encode("latin-1")
