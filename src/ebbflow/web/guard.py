"""Access control of web servers: the same rules for sources, serving and the web UI.

A server without a token listens on this machine only, but browsers on this machine run pages of
other sites. ``SiteGuard`` keeps these out. The ``Host`` of a request has to be a name of this
machine, which defeats DNS rebinding, and requests from pages of other sites are refused. Programs
send neither ``Origin`` nor ``Sec-Fetch-Site``.

A server with a token has a ``TokenGuard``. It compares tokens in constant time and slows down
guessing: an address that sent too many different wrong tokens has to wait.

A ``Guard`` has both. The web UI, which people open in a browser, also has a login cookie, and
requires a header that pages of other sites cannot send for every change. ``Cors`` tells browsers
which other pages may send requests.
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
    """Admits requests with the token, or all requests if there is none. Used on one loop."""

    def __init__(self, token: Secret | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token.reveal().encode() if token else None
        self._guesses = Guesses(clock)

    @property
    def needs_token(self) -> bool:
        """True if there is a token."""
        return self._token is not None

    def check_token(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` unless the bearer token is right or not required."""
        if not self.admits(request):
            raise Refusal(401, "the bearer token is missing or wrong", headers=_CHALLENGE)

    def admits(self, request: HttpRequest) -> bool:
        """Returns whether the token is right or not required; 429 after too many guesses."""
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
        # The time of the comparison must not reveal how much of the token was right.
        if hmac.compare_digest(token, self._token):
            return True
        self._guesses.add(token, client)
        return False

    def derive(self, purpose: bytes) -> str:
        """Returns a value that proves knowledge of the token without revealing it."""
        assert self._token is not None, "only a guard with a token has something to derive"
        return hmac.new(self._token, purpose, hashlib.sha256).hexdigest()


class Guard(TokenGuard):
    """The access rules of one server. ``sites`` applies if the server has no token."""

    def __init__(self, token: Secret | None, sites: SiteGuard) -> None:
        super().__init__(token)
        self._sites = sites

    def check_site(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a request from another site's page if there is no token."""
        if not self.needs_token:
            self._sites.check(request)


class WebUiGuard(Guard):
    """The guard of a web UI. ``port`` distinguishes the cookies of web UIs on one machine.

    If there is a token, each request needs it: as a bearer token, or as the cookie that a client
    gets for entering the token in the form or with ``?token=``. ``secured`` means that the web UI
    itself speaks TLS; then browsers send the cookie over TLS only.
    """

    def __init__(
        self, token: Secret | None, is_local: bool, port: int, secured: bool = False
    ) -> None:
        super().__init__(token, SiteGuard(() if is_local else None, _UI_ADVICE, _UI_ADVICE))
        self._cookie = f"ebbflow_{port}"
        self._secured = secured

    def check_site(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a request from a page of another site."""
        self._sites.check(request)

    def check_mark(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` for a change without the header that other sites cannot send."""
        if request.method not in (b"GET", b"HEAD") and not request.header(_MARK):
            raise Refusal(403, "the header X-Ebbflow is missing", next_step="Send it: X-Ebbflow: 1")

    def check_token(self, request: HttpRequest) -> None:
        """Raises ``Refusal`` unless the token is right or not required."""
        if not self.admits(request):
            raise Refusal(
                401,
                "the token is missing or wrong",
                headers=_CHALLENGE,
                next_step="Open the address that ebbflow printed when the web UI was started.",
            )

    def admits(self, request: HttpRequest) -> bool:
        """Returns whether the token is right or not required; 429 after too many guesses."""
        if not self.needs_token:
            return True
        # The cookie first: it cannot be guessed, so wrong guesses do not make its owner wait.
        shown = _cookies(request, self._cookie.encode())
        expected = self.derive(b"cookie").encode()
        return any(hmac.compare_digest(each, expected) for each in shown) or (
            self.has_bearer(request)
        )

    def make_cookie(self, token: str, request: HttpRequest) -> str | None:
        """Returns the cookie for the right token; ``None`` if it is wrong or not required.

        A proxy that speaks TLS says so in ``X-Forwarded-Proto``. Any client can send that header,
        but only makes its own browser send the cookie over TLS only.
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
    """Refuses requests from pages of other sites. ``advice`` says how to allow them.

    ``hosts`` are the names that the server answers to in addition to those of this machine;
    ``None`` allows any. ``rename`` is the advice for requests to another name. Pages of ``origins``
    are allowed; ``*`` means every page.
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
        """Raises ``Refusal`` for a request that may come from a page of another site."""
        if b"*" in self._origins:
            return
        facts = {name: text for name, text in request.headers if name in _ABOUT_THE_SENDER}
        # Browsers always send a host; HTTP 1.0 clients may not.
        if (host := facts.get(b"host")) is not None and not self._is_known(host):
            raise Refusal(403, f"this server answers to names of this machine only; {self._rename}")
        if facts.get(b"origin") in self._origins:
            return
        if _is_foreign(request.method, facts):
            raise Refusal(403, f"pages of other sites may not send requests here; {self._advice}")

    def _is_known(self, host: bytes) -> bool:
        return self._hosts is None or is_local_name(host) or _name_of(host) in self._hosts


def _is_foreign(method: bytes, facts: Mapping[bytes, bytes]) -> bool:
    """Returns whether a page of another site sent the request; modern browsers say so."""
    if (site := facts.get(b"sec-fetch-site")) is not None:
        # A link from another site to here may be followed.
        is_visit = method == b"GET" and facts.get(b"sec-fetch-mode") == b"navigate"
        return site not in _OWN_SITE and not is_visit
    origin = facts.get(b"origin")
    host = facts.get(b"host", b"")
    return origin is not None and origin.partition(b"://")[2].lower() != host.lower()


class Guesses:
    """The wrong tokens of the last minute by client address, with bounded memory.

    Only different tokens count: a program with a wrong token repeats it forever, learns nothing
    from that, and must not lock out other clients at the same address.
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
        """Records a wrong token, and forgets those older than a minute."""
        now, network = self._clock(), _network_of(client)
        before = self._wrong.pop(network, {})
        recent = {known: at for known, at in before.items() if at + _WINDOW > now}
        self._wrong[network] = {_digest(token): now} | recent
        if len(self._wrong) > _MOST_CLIENTS:
            self._wrong.popitem(last=False)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _network_of(client: str) -> str:
    """Returns the network whose guesses count together: the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    return client if address.version == 4 else str(ipaddress.ip_network((address, 64), False))


@lru_cache(128)
def is_local_name(host: bytes) -> bool:
    """Returns whether the ``Host`` of a request, with or without a port, means this machine."""
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
    """The headers that let pages of ``origins`` send requests and read the answers.

    Pages may send the headers in ``accepted`` and read those in ``exposed``.
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
        """True if there are origins whose pages may send requests."""
        return bool(self._origins)

    def allow(self, request: HttpRequest, exchange: Exchange) -> None:
        """Adds the headers that a page of one of the origins needs to the answer."""
        origin = request.header(b"origin").decode("latin-1")
        if origin and (self._is_public or origin in self._origins):
            allowed = "*" if self._is_public else origin
            lines = f"access-control-allow-origin: {allowed}\r\nvary: origin\r\n{self._exposed}"
            exchange.extra_headers += lines.encode()

    def answer_preflight(self, exchange: Exchange, methods: Sequence[bytes]) -> None:
        """Answers a browser's question what a page may send."""
        headers = {
            "access-control-allow-methods": b", ".join(methods).decode(),
            "access-control-allow-headers": self._accepted,
            "access-control-max-age": str(_PREFLIGHT_KEPT),
        }
        exchange.respond(204, b"", headers)
