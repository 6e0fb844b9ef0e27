"""Who may send requests to a web server of ours: one rule for sources, serving and the web UI.

A server that asks for no token listens on this machine only, and a browser on this machine runs the
pages of strangers. ``SiteGuard`` keeps them out: the ``Host`` of a request has to be a name of this
machine, so that a foreign name that leads here (DNS rebinding) is refused, and so are requests that
a page of another site has made. Programs send neither ``Origin`` nor ``Sec-Fetch-Site``.

A server that asks for a token has a ``TokenGuard``. It compares in constant time and slows down
guessing: an address from which too many different wrong tokens came has to wait.

A ``Guard`` has both. That of the web UI, which people open with a browser, also gives and takes a
cookie, and asks for a header that no foreign page can send from whoever changes something. ``Cors``
tells browsers which other pages may ask.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from ebbflow.domain.secrets import Secret
from ebbflow.web.exchange import Exchange, HttpRequest, Refusal

MOST_GUESSES = 10
_WINDOW = 60.0
_MOST_CLIENTS = 1_000
_CHALLENGE = {"www-authenticate": "Bearer"}
_ABOUT_THE_SENDER = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode"))
_OWN_SITE = (b"same-origin", b"none")
_MARK = b"x-ebbflow"
_UI_ADVICE = "open it as localhost, or have it listen beyond this machine"
_PREFLIGHT_KEPT = 600


class TokenGuard:
    """Admits those who know the token; without one, everybody. Used on one loop."""

    def __init__(self, token: Secret | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token.reveal().encode() if token else None
        self._guesses = Guesses(clock)

    @property
    def needs_token(self) -> bool:
        """True if there is a token."""
        return self._token is not None

    def check_token(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` unless the bearer token is right, or not needed."""
        if not self.admits(request):
            raise Refusal(401, "the bearer token is missing or wrong", headers=_CHALLENGE)

    def admits(self, request: HttpRequest) -> bool:
        """Returns whether the token is not needed, or known; 429 after too many guesses."""
        return not self.needs_token or self.has_bearer(request)

    def has_bearer(self, request: HttpRequest) -> bool:
        """Returns whether the request has the right bearer token; 429 after too many guesses."""
        kind, _, token = request.header(b"authorization").partition(b" ")
        return kind.lower() == b"bearer" and self.is_right(token.strip(), request.client)

    def is_right(self, token: bytes, client: str) -> bool:
        """Returns whether this is the token; ``Refusal`` (429) after too many guesses."""
        if self._token is None or not token:
            return False
        self._guesses.check(token, client)
        # How long it takes to compare must not tell how much of it was right.
        if hmac.compare_digest(token, self._token):
            return True
        self._guesses.add(token, client)
        return False

    def derive(self, purpose: bytes) -> str:
        """Returns what only those who know the token can know, and that is not the token."""
        assert self._token is not None, "only a guard with a token has something to derive"
        return hmac.new(self._token, purpose, hashlib.sha256).hexdigest()


class Guard(TokenGuard):
    """Who may send requests to one server. ``sites`` counts where no token keeps others out."""

    def __init__(self, token: Secret | None, sites: SiteGuard) -> None:
        super().__init__(token)
        self._sites = sites

    def check_site(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a request of a foreign page, where no token keeps it out."""
        if not self.needs_token:
            self._sites.check(request)


class WebUiGuard(Guard):
    """The guard of a web UI. ``port`` tells the cookies of several on one machine apart.

    Each request has to know the token, where there is one: as a bearer token, or in the cookie that
    whoever names the token is given, in the form or with ``?token=``. ``secured`` if the web UI
    speaks TLS itself; then browsers send the cookie over TLS only.
    """

    def __init__(
        self, token: Secret | None, is_local: bool, port: int, secured: bool = False
    ) -> None:
        super().__init__(token, SiteGuard(() if is_local else None, _UI_ADVICE, _UI_ADVICE))
        self._cookie = f"ebbflow_{port}"
        self._secured = secured

    def check_site(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a request that a page of another site has made."""
        self._sites.check(request)

    def check_mark(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a change without the header that foreign pages cannot send."""
        if request.method not in (b"GET", b"HEAD") and not request.header(_MARK):
            raise Refusal(403, "the header X-Ebbflow is missing", next_step="Send it: X-Ebbflow: 1")

    def check_token(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` unless the token is not needed, or known."""
        if not self.admits(request):
            raise Refusal(
                401,
                "the token is missing or wrong",
                headers=_CHALLENGE,
                next_step="Open the address that ebbflow printed when the web UI was started.",
            )

    def admits(self, request: HttpRequest) -> bool:
        """Returns whether the token is not needed, or known; 429 after too many guesses."""
        if not self.needs_token:
            return True
        # The cookie first: it cannot be guessed, so whoever has it need not wait for guessers.
        shown = _cookies(request, self._cookie.encode())
        expected = self.derive(b"cookie").encode()
        return any(hmac.compare_digest(each, expected) for each in shown) or (
            self.has_bearer(request)
        )

    def make_cookie(self, token: str, request: HttpRequest) -> str | None:
        """Returns the cookie for whoever knows the token; ``None`` if it is wrong or not needed.

        A proxy that speaks TLS says so in ``X-Forwarded-Proto``. Anybody may write that, but all
        they get is a cookie that their own browser sends over TLS only.
        """
        if not self.is_right(token.encode(), request.client):
            return None
        proxied = request.header(b"x-forwarded-proto").strip().lower() == b"https"
        secure = "; Secure" if self._secured or proxied else ""
        value = self.derive(b"cookie")
        return f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _cookies(request: HttpRequest, name: bytes) -> Iterable[bytes]:
    for key, text in request.headers:
        if key == b"cookie":
            for pair in text.split(b";"):
                label, _, value = pair.strip().partition(b"=")
                if label == name:
                    yield value


class SiteGuard:
    """Refuses what pages of other sites ask for. ``advice`` is for those who want them to.

    ``hosts`` are the names that the server answers to besides those of this machine; ``None`` for
    any. ``rename`` is the advice for those who come by another one. Pages of ``origins`` may ask;
    ``*`` is every page.
    """

    def __init__(
        self,
        hosts: Collection[str] | None,
        advice: str,
        rename: str,
        origins: Collection[str] = (),
    ) -> None:
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._advice = advice
        self._rename = rename
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def check(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a request that a page of another site has made, or may have."""
        if b"*" in self._origins:
            return
        facts = {name: text for name, text in request.headers if name in _ABOUT_THE_SENDER}
        # No browser leaves out the name; HTTP 1.0 may.
        if (host := facts.get(b"host")) is not None and not self._is_known(host):
            raise Refusal(403, f"this server answers to names of this machine only; {self._rename}")
        if facts.get(b"origin") in self._origins:
            return
        if _is_foreign(request.method, facts):
            raise Refusal(403, f"pages of other sites may not send requests here; {self._advice}")

    def _is_known(self, host: bytes) -> bool:
        return self._hosts is None or is_local_name(host) or _name_of(host) in self._hosts


def _is_foreign(method: bytes, facts: Mapping[bytes, bytes]) -> bool:
    """Returns whether a page of another site asks; browsers that are not old say so themselves."""
    if (site := facts.get(b"sec-fetch-site")) is not None:
        # A person may follow a link from another site to here.
        is_visit = method == b"GET" and facts.get(b"sec-fetch-mode") == b"navigate"
        return site not in _OWN_SITE and not is_visit
    origin = facts.get(b"origin")
    host = facts.get(b"host", b"")
    return origin is not None and origin.partition(b"://")[2].lower() != host.lower()


class Guesses:
    """Wrong tokens of the last minute by the address they came from, bounded in every respect.

    Only different ones count: a program that was given the wrong token repeats it for ever, learns
    nothing by that, and must not keep others at the same address out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, dict[bytes, float]] = OrderedDict()

    def check(self, token: bytes, client: str) -> None:
        """Raises ``Refusal`` if the address has to wait before it may try another token."""
        wrong = self._wrong.get(_network_of(client))
        if wrong is None or len(wrong) < MOST_GUESSES or _digest(token) in wrong:
            return
        wait = min(wrong.values()) + _WINDOW - self._clock()
        if wait > 0:
            raise Refusal(
                429, "too many wrong tokens came from this address", retry=math.ceil(wait)
            )

    def add(self, token: bytes, client: str) -> None:
        """Notes a wrong token; what is older than a minute is forgotten."""
        now, network = self._clock(), _network_of(client)
        before = self._wrong.pop(network, {})
        recent = {known: at for known, at in before.items() if at + _WINDOW > now}
        self._wrong[network] = {_digest(token): now} | recent
        if len(self._wrong) > _MOST_CLIENTS:
            self._wrong.popitem(last=False)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _network_of(client: str) -> str:
    """Returns whose guesses count together: of IPv6, which hands out many addresses, the /64."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    return client if address.version == 4 else str(ipaddress.ip_network((address, 64), False))


@lru_cache(128)
def is_local_name(host: bytes) -> bool:
    """Returns whether the ``Host`` of a request, with or without a port, is this machine."""
    name = _name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: bytes) -> str:
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] or text


class Cors:
    """What a browser has to know so that pages of the ``origins`` may ask, and read answers.

    They may send the headers of ``accepted`` and read those of ``exposed``.
    """

    def __init__(
        self, origins: Collection[str], accepted: Sequence[str], exposed: Sequence[str]
    ) -> None:
        self._origins = frozenset(origins)
        self._is_public = "*" in self._origins
        self._accepted = ", ".join(accepted)
        self._exposed = f"access-control-expose-headers: {', '.join(exposed)}\r\n"

    @property
    def is_on(self) -> bool:
        """True if there are origins whose pages may ask."""
        return bool(self._origins)

    def allow(self, request: HttpRequest, exchange: Exchange) -> None:
        """Gives the answer the headers that a page of one of the origins needs."""
        origin = request.header(b"origin").decode("latin-1")
        if origin and (self._is_public or origin in self._origins):
            allowed = "*" if self._is_public else origin
            lines = f"access-control-allow-origin: {allowed}\r\nvary: origin\r\n{self._exposed}"
            exchange.extra_headers += lines.encode()

    def answer_preflight(self, exchange: Exchange, methods: Sequence[bytes]) -> None:
        """Tells a browser what a page may send."""
        headers = {
            "access-control-allow-methods": b", ".join(methods).decode(),
            "access-control-allow-headers": self._accepted,
            "access-control-max-age": str(_PREFLIGHT_KEPT),
        }
        exchange.respond(204, b"", headers)
